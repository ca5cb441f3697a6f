"""What a service needs beside its calls: health, metrics, keys, and the webhook of the phone."""

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request
from msgspec import structs
from pydantic import BaseModel, Field
from starlette.responses import Response

from handrail.core.log import log
from handrail.errors import StoreError
from handrail.serve.api.error_responses import EVERY_ROUTE, ApiError, describe_errors, not_found
from handrail.serve.api.key_scope import Service, allow, choose_tenant, clean, is_visible
from handrail.store.api_keys import ApiKey, Role

_READY_SECONDS: Final = 3.0

HolderName = Annotated[str, Field(min_length=1, max_length=200)]


class HealthBody(BaseModel):
    """That the process answers."""

    model_config = {"title": "Health"}

    status: str


class ReadyBody(BaseModel):
    """Whether the process can take calls."""

    model_config = {"title": "Ready"}

    ready: bool
    database: bool


class KeyBody(BaseModel):
    """A key, without its secret."""

    model_config = {"title": "Key"}

    id: str
    role: Role
    tenant_id: str | None
    who: str
    created_at: float
    revoked_at: float | None


class KeyList(BaseModel):
    """The keys, the oldest first."""

    items: list[KeyBody]


class CreateKeyBody(BaseModel):
    """A new key."""

    model_config = {"extra": "forbid", "title": "CreateKey"}

    role: Role
    who: HolderName = Field(description="The holder: what is audited as who decided.")
    tenant_id: HolderName | None = None


class CreatedKeyBody(BaseModel):
    """A new key with its secret, which is shown only now."""

    model_config = {"title": "CreatedKey"}

    key: KeyBody
    secret: str


def build_router(service: Service) -> APIRouter:
    """The routes of operation; those of the phone and of metrics only where there is one."""
    router = APIRouter(tags=["operation"])
    errors = describe_errors(*EVERY_ROUTE)

    @router.get("/health", summary="Is the process alive", responses=describe_errors(408, 413))
    async def check_health() -> HealthBody:
        """That the process answers. It says nothing about the database."""
        return HealthBody(status="ok")

    @router.get(
        "/ready",
        summary="Can it take calls",
        response_model=ReadyBody,
        responses={
            503: {"model": ReadyBody, "description": "The database does not answer."},
            **describe_errors(408, 413),
        },
    )
    async def check_ready(response: Response) -> ReadyBody:
        """Whether the database answers: a load balancer sends calls to replicas that are ready."""
        is_there = True
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await service.store.keys.get("ready")
        except (StoreError, TimeoutError, OSError):
            log.warning("not ready: the database does not answer", exc_info=True)
            is_there = False
        response.status_code = 200 if is_there else 503
        return ReadyBody(ready=is_there, database=is_there)

    @router.get("/keys", summary="List keys", responses=errors)
    async def list_keys(request: Request, key: ApiKey = allow("admin")) -> KeyList:
        """The keys of a tenant, or every key."""
        found = await service.store.keys.list(tenant_id=key.tenant_id)
        return KeyList(items=[_build_key(api_key) for api_key in found])

    @router.post("/keys", summary="Create a key", status_code=201, responses=errors | describe_errors(400))
    async def create_key(request: Request, body: CreateKeyBody, key: ApiKey = allow("admin")) -> CreatedKeyBody:
        """Create a key. Its secret is in this response, and nowhere else."""
        tenant = choose_tenant(key, body.tenant_id)
        created, secret = await service.store.keys.create(role=body.role, who=body.who, tenant_id=tenant)
        service.note(request, key, "key_created_over_http", tenant_id=tenant, created=created.id)
        return CreatedKeyBody(key=_build_key(created), secret=secret)

    @router.delete("/keys/{id}", summary="Revoke a key", responses=errors | describe_errors(404))
    async def revoke_key(request: Request, id: HolderName, key: ApiKey = allow("admin")) -> KeyBody:
        """Revoke a key for good; every replica refuses it within a second."""
        known = await service.store.keys.get(clean(id))
        if known is None or not is_visible(key, known.tenant_id):
            raise not_found("key")
        revoked = await service.store.keys.revoke(known.id)
        service.note(request, key, "key_revoked_over_http", tenant_id=known.tenant_id, revoked=known.id)
        return _build_key(revoked)

    if service.registry is not None:
        _add_metrics(router, service, errors)
    if service.phone is not None:
        _add_webhook(router, service)
    return router


def _add_metrics(router: APIRouter, service: Service, errors: Any) -> None:
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest  # noqa: PLC0415  # optional

    @router.get(
        "/metrics",
        summary="Read the metrics",
        response_class=Response,
        responses={
            200: {
                "content": {"text/plain": {"schema": {"type": "string"}}},
                "description": "As Prometheus reads them.",
            },
            **errors,
        },
    )
    async def read_metrics(request: Request, key: ApiKey = allow("viewer", "operator", "admin")) -> Response:
        """Counts of this replica. They are about all tenants: a key of one tenant does not see them."""
        if key.tenant_id is not None:
            raise ApiError(403, "permission_denied", "The metrics are about all tenants; this key is of one.")
        assert service.registry is not None
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)


def _add_webhook(router: APIRouter, service: Service) -> None:
    phone = service.phone
    assert phone is not None

    @router.post(
        "/phone/webhook",
        summary="Take a phone call",
        response_class=Response,
        responses={
            200: {
                "content": {"text/plain": {"schema": {"type": "string"}}},
                "description": "It was taken, or ignored.",
            },
            400: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "It is no signed webhook."},
            401: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The signature is wrong."},
            503: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Deliver it again."},
            **describe_errors(408, 413),
        },
    )
    async def take_call(request: Request) -> Response:
        """A webhook of the realtime API, with its own signature; it needs no key."""
        taken = await phone.handle_webhook(list(request.headers.items()), await request.body())
        return Response(taken.body, status_code=taken.status, media_type="text/plain")


def _build_key(key: ApiKey) -> KeyBody:
    return KeyBody(**structs.asdict(key))
