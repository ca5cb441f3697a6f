"""Tenants over HTTP: check a configuration, save it, see its history, and go back to an older one."""

import json
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Query, Request
from msgspec import structs
from pydantic import BaseModel, Field, ValidationError

from handrail.core.redact import HIDDEN
from handrail.errors import ConfigError, StoreError
from handrail.serve.api.error_responses import EVERY_ROUTE, ApiError, describe_errors, not_found
from handrail.serve.api.key_scope import Service, allow, clean, get_service, is_visible
from handrail.store.api_keys import ApiKey
from handrail.tenants.config import TenantConfig
from handrail.tenants.tool_source_config import McpServerConfig, OpenApiConfig

_REFERENCES: Final = ("secret:", "env:", "file:")
_MAX_REVISION: Final = 2**53

TenantId = Annotated[str, Field(min_length=1, max_length=64)]
Revision = Annotated[int, Query(ge=1, le=_MAX_REVISION)]


class TenantBody(BaseModel):
    """A tenant's configuration, as it is saved."""

    model_config = {"title": "Tenant"}

    tenant_id: str
    revision: int = Field(description="0 if it is not in the database, but in files or in the program.")
    version: str = Field(description="A digest: equal configurations have equal versions.")
    config: dict[str, Any] = Field(description="As it was saved. A literal value of a header is not shown.")
    problem: str | None = Field(description="Why this revision does not serve in this replica, and an older one does.")


class TenantSummary(BaseModel):
    """A tenant in a list."""

    tenant_id: str
    version: str
    enabled: bool | None = Field(description="Null if the configuration is not valid.")
    problem: str | None = Field(description="Why the newest revision does not serve in this replica.")


class TenantList(BaseModel):
    """The tenants, by id."""

    items: list[TenantSummary]


class RevisionBody(BaseModel):
    """One saved state of a tenant."""

    model_config = {"title": "Revision"}

    revision: int
    version: str
    saved_at: float
    who: str
    removed: bool


class RevisionList(BaseModel):
    """The revisions of a tenant, the newest first."""

    items: list[RevisionBody]


class ValidationBody(BaseModel):
    """Whether a configuration can be used."""

    model_config = {"title": "Validation"}

    valid: bool
    problems: list[str]
    version: str | None


class SavedBody(BaseModel):
    """The new revision."""

    model_config = {"title": "Saved"}

    revision: int
    version: str


class ConfigBody(BaseModel):
    """A configuration."""

    model_config = {"extra": "forbid", "title": "Config"}

    config: dict[str, Any] = Field(description="The fields of a tenant; see the documentation of tenants.")


class RollbackBody(BaseModel):
    """Which revision to save once more, as the newest."""

    model_config = {"extra": "forbid", "title": "Rollback"}

    revision: Annotated[int, Field(ge=1, le=_MAX_REVISION)]


def build_router() -> APIRouter:
    """The routes of tenants."""
    router = APIRouter(tags=["tenants"])
    TenantConfig.model_rebuild()  # Here: Pydantic builds a model in one thread at a time only.
    errors = describe_errors(*EVERY_ROUTE)
    found, changed = errors | describe_errors(404), errors | describe_errors(400, 404, 409)

    @router.get("/tenants", summary="List tenants", responses=errors)
    async def list_tenants(request: Request, key: ApiKey = allow("admin")) -> TenantList:
        """The tenants that this key may manage."""
        service = get_service(request)
        if service.tenants is None:
            return TenantList(items=[])
        invalid: dict[str, str] = {}
        if key.tenant_id is None:
            every = await service.tenants.directory.list()
            if _is_stored(service):
                invalid = service.store.tenants.problems
        else:
            try:
                own = await service.tenants.directory.get(key.tenant_id)
            except ConfigError as error:
                if not _is_stored(service):
                    raise
                own, invalid = None, {key.tenant_id: error.message}
            every = [] if own is None else [own]
        items = [
            TenantSummary(
                tenant_id=cfg.tenant_id,
                version=cfg.version,
                enabled=cfg.enabled,
                problem=service.tenants.problems.get(cfg.tenant_id),
            )
            for cfg in every
        ]
        for tenant_id, problem in invalid.items():
            newest = (await service.store.tenants.history(tenant_id))[0]
            items.append(TenantSummary(tenant_id=tenant_id, version=newest.version, enabled=None, problem=problem))
        return TenantList(items=sorted(items, key=lambda item: item.tenant_id))

    @router.post("/tenants/validate", summary="Check a configuration", responses=errors | describe_errors(400))
    async def validate(request: Request, body: ConfigBody, key: ApiKey = allow("admin")) -> ValidationBody:
        """What is wrong with a configuration; nothing is saved."""
        service = get_service(request)
        try:
            cfg = await service.run_in_thread(key, _read_config, body.config)
            is_own = is_visible(key, cfg.tenant_id)
            if is_own:  # What another tenant may refer to is not for this one to find out.
                await _check_config(service, cfg)
        except ApiError as error:
            problems = [f"{field}: {text}" for field, text in error.fields] or [error.message]
            return ValidationBody(valid=False, problems=problems, version=None)
        except ConfigError as error:
            return ValidationBody(valid=False, problems=[error.message], version=None)
        if not is_own:
            raise ApiError(403, "permission_denied", "This key is of another tenant.")
        return ValidationBody(valid=True, problems=[], version=cfg.version)

    @router.get("/tenants/{tenant_id}", summary="Show a tenant", responses=found)
    async def show(
        request: Request, tenant_id: TenantId, revision: Revision | None = None, key: ApiKey = allow("admin")
    ) -> TenantBody:
        """The newest configuration of a tenant, or an older revision."""
        service, id = get_service(request), _check_tenant(key, tenant_id)
        if service.tenants is None:
            raise not_found("tenant")
        if revision is None and not _is_stored(service):
            cfg = await service.tenants.directory.get(id)
            if cfg is None:
                raise not_found("tenant")
            number, version, written = 0, cfg.version, cfg.model_dump_json(exclude_unset=True).encode()
            problem = service.tenants.problems.get(id)
        else:
            history = await service.store.tenants.history(id)
            found = next((one for one in history if revision in (None, one.revision)), None)
            if found is None or found.removed:
                raise not_found("tenant")
            number, version = found.revision, found.version
            written = await service.store.tenants.read_written(id, revision=number) or b"{}"
            problem = service.tenants.problems.get(id) if revision is None else None
            try:
                await service.store.tenants.get(id, revision=number)
            except ConfigError as error:
                problem = error.message
        return TenantBody(tenant_id=id, revision=number, version=version, config=_show_config(written), problem=problem)

    @router.put("/tenants/{tenant_id}", summary="Save a tenant", responses=changed)
    async def put(
        request: Request,
        tenant_id: TenantId,
        body: ConfigBody,
        revision: Annotated[int, Query(ge=0, le=_MAX_REVISION)] | None = None,
        key: ApiKey = allow("admin"),
    ) -> SavedBody:
        """Save a new revision, which applies to the next call in every replica. With `revision`, only if that is the
        newest one that is saved."""
        service, id = _require_store(request), _check_tenant(key, tenant_id)
        cfg = await service.run_in_thread(key, _read_config, body.config)
        if cfg.tenant_id != id:
            raise ApiError(422, "invalid_arguments", "tenant_id of the configuration must be that of the address.")
        await _check_config(service, cfg)
        return await _save(service, request, key, cfg, revision)

    @router.get("/tenants/{tenant_id}/history", summary="List revisions", responses=found)
    async def history(request: Request, tenant_id: TenantId, key: ApiKey = allow("admin")) -> RevisionList:
        """Every saved state of a tenant, the newest first."""
        service, id = _require_store(request), _check_tenant(key, tenant_id)
        revisions = await service.store.tenants.history(id)
        if not revisions:
            raise not_found("tenant")
        return RevisionList(items=[RevisionBody(**structs.asdict(revision)) for revision in revisions])

    @router.post("/tenants/{tenant_id}/rollback", summary="Go back to a revision", responses=changed)
    async def roll_back(
        request: Request, tenant_id: TenantId, body: RollbackBody, key: ApiKey = allow("admin")
    ) -> SavedBody:
        """Save an old revision as the newest one; nothing is lost."""
        service, id = _require_store(request), _check_tenant(key, tenant_id)
        cfg = await service.store.tenants.get(id, revision=body.revision)
        if cfg is None:
            raise not_found("revision")
        await _check_config(service, cfg)
        return await _save(service, request, key, cfg, None)

    @router.delete("/tenants/{tenant_id}", summary="Turn a tenant off", responses=found, status_code=204)
    async def remove(request: Request, tenant_id: TenantId, key: ApiKey = allow("admin")) -> None:
        """Turn a tenant off for good; its revisions stay, and can be saved again."""
        service, id = _require_store(request), _check_tenant(key, tenant_id)
        if not await service.store.tenants.remove(id, who=key.who):
            raise not_found("tenant")
        service.note(request, key, "tenant_removed_over_http", tenant_id=id)

    return router


def _is_stored(service: Service) -> bool:
    return service.tenants is not None and service.tenants.directory is service.store.tenants


def _require_store(request: Request) -> Service:
    service = get_service(request)
    if not _is_stored(service):
        raise ApiError(
            409, ConfigError.code, "Tenants are not kept in the database here: build_app(…, tenants=store.tenants)."
        )
    return service


def _check_tenant(key: ApiKey, tenant_id: str) -> str:
    if not is_visible(key, tenant_id):
        raise not_found("tenant")
    return clean(tenant_id)


def _read_config(given: dict[str, Any]) -> TenantConfig:
    """A configuration whose fields are valid, or an error with each that is wrong. It may take seconds."""
    try:
        text = json.dumps(given, allow_nan=False)
        if HIDDEN in json.dumps(given, ensure_ascii=False):
            raise ApiError(
                422,
                "invalid_arguments",
                f"config must not contain {HIDDEN!r}: it stands for a value that is not shown.",
            )
        cfg = TenantConfig.model_validate_json(text)
    except ValidationError as error:
        fields = [
            (f"body.config.{'.'.join(map(str, problem['loc']))}", problem["msg"])
            for problem in error.errors(include_input=False)
        ]
        listed = "; ".join(f"{field}: {message}" for field, message in fields[:3])
        raise ApiError(422, "invalid_arguments", f"The configuration is not valid. {listed}", fields=fields) from error
    except (ValueError, RecursionError) as error:
        raise ApiError(422, "invalid_arguments", f"The configuration cannot be read: {error}.") from error
    return cfg


async def _check_config(service: Service, cfg: TenantConfig) -> None:
    """Raise `ConfigError` for what this service cannot use, or must not give to the tenant."""
    if service.tenants is not None:
        await service.tenants.check(cfg)


async def _save(service: Service, request: Request, key: ApiKey, cfg: TenantConfig, revision: int | None) -> SavedBody:
    try:
        saved = await service.store.tenants.put(cfg, who=key.who, revision=revision)
    except ConfigError as error:
        if key.tenant_id is None:
            raise
        # Whose number it is, is not for another tenant to know.
        raise ApiError(422, error.code, "numbers: one of them belongs to another tenant already.") from error
    except StoreError as error:
        if error.__cause__ is None or "changed by somebody" in error.message:  # Not a database that is away.
            raise ApiError(409, error.code, error.message) from error
        raise
    service.note(request, key, "tenant_saved_over_http", tenant_id=cfg.tenant_id, revision=saved, version=cfg.version)
    return SavedBody(revision=saved, version=cfg.version)


def _show_config(written: bytes) -> dict[str, Any]:
    """A configuration with its references; a literal value where a reference may stand is not shown, and of one that is
    not valid any more no value of a field of a source that is not known."""
    values: dict[str, Any] = json.loads(written)
    for kind, known in (("mcp_servers", McpServerConfig), ("openapi", OpenApiConfig)):
        sources = values.get(kind)
        for source in cast(list[Any], sources) if isinstance(sources, list) else ():
            for name in cast(dict[str, Any], source) if isinstance(source, dict) else ():
                if name in ("headers", "env", "api_key") or name not in known.model_fields:
                    source[name] = _hide(source[name])
    return values


def _hide(value: Any) -> Any:
    match value:
        case dict():
            return {name: _hide(item) for name, item in cast(dict[str, Any], value).items()}
        case list():
            return [_hide(item) for item in cast(list[Any], value)]
        case str() if not value.startswith(_REFERENCES):
            return HIDDEN
        case _:
            return value
