"""The audit over HTTP: filtered, in pages, and as lines of JSON; and the erasure of one customer."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import StreamingResponse

from handrail.core.log import log
from handrail.errors import HandrailError
from handrail.serve.api.calls import ShortId
from handrail.serve.api.error_responses import (
    EVERY_ROUTE,
    ApiError,
    describe_errors,
    get_request_id,
    render_problem,
    to_api_error,
)
from handrail.serve.api.key_scope import READERS, allow, choose_tenant, clean, get_service
from handrail.serve.audit_feed import read_cursor, write_cursor
from handrail.store.api_keys import ApiKey
from handrail.store.audit_rows import AuditRow

EXPORT_PAGE: Final = 500
"""Rows that an export reads at once."""
MAX_EXPORT_SECONDS: Final = 600.0
_HIDDEN: Final = frozenset(("writer", "number"))
"""The number of a row says how many rows there are, also those of other tenants."""

LongId = Annotated[str, Query(max_length=1_000)]
Moment = Annotated[float, Query(ge=0, le=1e11, description="Seconds since the epoch.")]


class AuditBody(BaseModel):
    """One row of the audit."""

    model_config = {"title": "AuditRow"}

    at: float
    kind: str
    session_id: str
    tenant_id: str | None
    call_id: str | None
    tool: str | None
    response_id: str | None = Field(description="For a call over HTTP: the `X-Request-ID` of its request.")
    item_id: str | None
    guideline_ids: list[str]
    argument_keys: list[str] | None
    action: str | None
    by: str | None
    rule: str | None
    source: str | None
    reason: str | None
    ok: bool | None
    error: str | None
    duration_ms: float | None
    output_length: int | None
    detail: dict[str, Any]
    arguments: Any = Field(description="Redacted; null unless the store was opened with `audit_values`.")
    output: str | None = Field(description="Redacted; null unless the store was opened with `audit_values`.")
    customer_id: str | None
    erased_at: float | None


class AuditPage(BaseModel):
    """A page of the audit, the oldest row first."""

    items: list[AuditBody]
    before: str | None = Field(description="The value of `before` for the page of older rows; null at the end.")


class EraseBody(BaseModel):
    """Whose values to erase."""

    model_config = {"extra": "forbid", "title": "Erase"}

    customer_id: ShortId
    tenant_id: ShortId | None = None


class ErasureBody(BaseModel):
    """How many of each lost their values."""

    calls: int
    approvals: int
    conversations: int
    audit_rows: int
    recordings: int
    open_calls: int = Field(description="Calls that run or are in doubt: erase again when they are settled.")


def build_router() -> APIRouter:
    """The routes of the audit."""
    router = APIRouter(tags=["audit"])
    errors = describe_errors(*EVERY_ROUTE)

    @router.get("/audit", summary="Read the audit", responses=errors)
    async def read(
        request: Request,
        session_id: LongId | None = None,
        tenant_id: ShortId | None = None,
        customer_id: ShortId | None = None,
        call_id: ShortId | None = None,
        tool: ShortId | None = None,
        outcome: ShortId | None = None,
        kind: ShortId | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        before: Annotated[str, Query(max_length=200)] | None = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
        key: ApiKey = allow(*READERS),
    ) -> AuditPage:
        """The newest rows that match. `outcome` is `ok` or the code of an error."""
        store, tenant = get_service(request).store, choose_tenant(key, tenant_id)
        texts = {"session_id": session_id, "customer_id": customer_id, "call_id": call_id, "tool": tool}
        texts |= {"outcome": outcome, "kind": kind}
        filters: dict[str, Any] = {name: None if text is None else clean(text) for name, text in texts.items()}
        filters |= {"tenant_id": tenant, "since": since, "until": until}
        older_than = None if before is None else await read_cursor(store, before, tenant)
        if before is not None and older_than is None:
            raise ApiError(422, "invalid_arguments", "before must be a value that a page has returned.")
        rows = await store.audit.query(limit=limit, before=older_than, **filters)
        cursor = write_cursor(store, rows[0]) if len(rows) == limit else None
        return AuditPage(items=[AuditBody.model_validate(build_row(row)) for row in rows], before=cursor)

    @router.get(
        "/audit/export",
        summary="Export the audit",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}, "description": "A row a line."},
            **errors,
        },
    )
    async def export(
        request: Request,
        tenant_id: ShortId | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        limit: Annotated[int, Query(ge=1, le=10_000_000)] = 1_000_000,
        key: ApiKey = allow(*READERS),
    ) -> StreamingResponse:
        """All rows that match as lines of JSON, the newest first. If it breaks off, the last line has an `error`."""
        service, tenant, request_id = get_service(request), choose_tenant(key, tenant_id), get_request_id(request)
        ends = time.monotonic() + MAX_EXPORT_SECONDS

        async def write() -> AsyncGenerator[bytes]:
            left, before = limit, None
            try:
                while left:
                    if await service.access.find_bearer(request.headers) is None:  # Revoked meanwhile.
                        raise ApiError(401, "permission_denied", "The key is not valid any more.")
                    if time.monotonic() > ends:
                        text = (
                            f"It took longer than {MAX_EXPORT_SECONDS:g} seconds. Go on with `until` at the last row."
                        )
                        raise ApiError(503, "unavailable", text, retryable=True)
                    rows = await service.store.audit.query(
                        tenant_id=tenant, since=since, until=until, limit=min(left, EXPORT_PAGE), before=before
                    )
                    yield b"".join(msgspec.json.encode(build_row(row)) + b"\n" for row in reversed(rows))
                    left -= len(rows)
                    if len(rows) < EXPORT_PAGE:
                        return
                    before = rows[0]
            except (ApiError, HandrailError) as error:
                log.error("an export of the audit broke off: %s", error)
                yield render_problem(to_api_error(error), request_id)[0] + b"\n"

        return StreamingResponse(write(), media_type="application/x-ndjson")

    @router.post("/erase", summary="Erase a customer", responses=errors | describe_errors(400))
    async def erase(request: Request, body: EraseBody, key: ApiKey = allow("admin")) -> ErasureBody:
        """Erase the values of one customer of a tenant everywhere; what makes a call run at most once stays."""
        service, tenant = get_service(request), choose_tenant(key, body.tenant_id)
        folder = None if service.phone is None else service.phone.recordings
        recordings = folder if folder is not None and await asyncio.to_thread(folder.is_dir) else None
        done = await service.store.erase(
            customer_id=clean(body.customer_id), tenant_id=tenant, who=key.who, recordings=recordings
        )
        service.note(request, key, "erased_over_http", tenant_id=tenant)
        return ErasureBody.model_validate(msgspec.structs.asdict(done))

    return router


def build_row(row: AuditRow) -> dict[str, Any]:
    """A row as JSON values, without what counts the rows of others."""
    return {name: value for name, value in msgspec.to_builtins(row).items() if name not in _HIDDEN}
