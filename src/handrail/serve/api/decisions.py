"""Approvals and doubts over HTTP: what waits for a person, and what nobody knows."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from msgspec import structs, to_builtins
from pydantic import BaseModel, Field

from handrail.core.text import compact_json
from handrail.core.values import Approval
from handrail.errors import ApprovalError, ConfigError, ToolError
from handrail.execute.doubts import Doubt
from handrail.serve.api.calls import DecisionBody, ResultBody, ShortId, respond_result
from handrail.serve.api.error_responses import EVERY_ROUTE, ApiError, describe_errors, not_found
from handrail.serve.api.key_scope import (
    READERS,
    Service,
    allow,
    choose_tenant,
    clean,
    get_service,
    is_visible,
    scope_session,
)
from handrail.store.api_keys import ApiKey

_MAX_REASON_CHARS = 2_000

Limit = Annotated[int, Query(ge=1, le=500, description="How many at most.")]
Token = Annotated[str, Field(max_length=200)]


class ApprovalBody(BaseModel):
    """A question about one exact call, and the decision about it."""

    model_config = {"title": "Approval"}

    token: str
    tool: str
    session_id: str
    tenant_id: str | None
    customer_id: str | None
    call_id: str | None
    by: Literal["customer", "operator"] = Field(description="Who has to decide.")
    turn: int
    arguments: dict[str, Any]
    changed_arguments: dict[str, Any] | None = Field(description="What the approver wants to run instead.")
    question: str
    seen: dict[str, str] = Field(
        description="Where values come from that a rule with `from` asks about, by their path."
    )
    repeat: int = Field(description="How often the same effect was done before.")
    state: Literal["pending", "approved", "denied", "used", "withdrawn"]
    who: str | None
    reason: str
    created_at: float
    expires_at: float
    decided_at: float | None


class ApprovalPage(BaseModel):
    """A page of approvals."""

    items: list[ApprovalBody]
    next: str | None = Field(description="The value of `after`, or `before`, for the next page; null at the end.")


class ApproveBody(BaseModel):
    """A yes, perhaps with other arguments."""

    model_config = {"extra": "forbid", "title": "Approve"}

    reason: Annotated[str, Field(max_length=_MAX_REASON_CHARS)] = ""
    arguments: dict[str, Any] | None = Field(
        default=None, description="What shall run instead; validated as the arguments of a call are."
    )


class DenyBody(BaseModel):
    """A no."""

    model_config = {"extra": "forbid", "title": "Deny"}

    reason: Annotated[str, Field(max_length=_MAX_REASON_CHARS)] = ""


class DoubtBody(BaseModel):
    """A consequential call whose outcome nobody knows."""

    model_config = {"title": "Doubt"}

    session_id: str
    call_id: str
    tool: str
    tenant_id: str | None
    customer_id: str | None
    turn: int
    arguments: str = Field(description="The arguments that ran, as JSON text; redacted.")
    claimed_at: float
    run_until: float = Field(description="From when on it can be said that nothing happened.")
    idempotency_key: str = Field(description="What other services were sent: search for it there.")
    owner: str = Field(description="The worker, or the process, that had it last.")
    attempts: int = Field(description="How often workers have taken it; 0 for a call that is not durable.")
    decision: DecisionBody | None
    approval: str | None
    verified: str | None = Field(description="What the tool's own check said last.")
    version: str = Field(description="Changes with the call; send it as `expected`.")


class DoubtList(BaseModel):
    """What is in doubt, the oldest first."""

    items: list[DoubtBody]


class ResolveBody(BaseModel):
    """What an operator found out about a call in doubt."""

    model_config = {"extra": "forbid", "title": "Resolve"}

    session_id: Annotated[str, Field(min_length=1, max_length=1_000)]
    call_id: ShortId
    happened: bool
    reason: Annotated[str, Field(max_length=_MAX_REASON_CHARS)] = ""
    expected: Annotated[str, Field(max_length=200)] | None = Field(
        default=None, description="The `version` of the doubt that was looked at: nothing is written if it changed."
    )


def build_router() -> APIRouter:
    """The routes of approvals and doubts."""
    router = APIRouter()
    errors = describe_errors(*EVERY_ROUTE)
    found, decided = errors | describe_errors(404), errors | describe_errors(400, 404, 409)

    @router.get("/approvals", tags=["approvals"], summary="List what waits", responses=found)
    async def list_pending(
        request: Request,
        session_id: Annotated[str, Query(max_length=1_000)] | None = None,
        tenant_id: ShortId | None = None,
        after: Token | None = None,
        limit: Limit = 100,
        key: ApiKey = allow("caller", *READERS),
    ) -> ApprovalPage:
        """The open questions, those first that expire first. A caller has to name one of its sessions."""
        store, session = get_service(request).store, None if session_id is None else clean(session_id)
        if key.role == "caller":
            if session is None:
                raise ApiError(422, "invalid_arguments", "A caller has to name a session_id.")
            session = scope_session(key, session)
        last = None if after is None else await find_approval(request, key, after)
        items = await store.approvals.pending(
            session_id=session, tenant_id=choose_tenant(key, tenant_id), limit=limit, after=last
        )
        return _build_page(key, items, items[-1] if len(items) == limit else None)

    @router.get("/approvals/history", tags=["approvals"], summary="List what was decided", responses=found)
    async def list_history(
        request: Request,
        session_id: Annotated[str, Query(max_length=1_000)] | None = None,
        tenant_id: ShortId | None = None,
        customer_id: ShortId | None = None,
        tool: ShortId | None = None,
        who: ShortId | None = None,
        before: Token | None = None,
        limit: Limit = 100,
        key: ApiKey = allow(*READERS),
    ) -> ApprovalPage:
        """The newest questions, whatever became of them, the oldest of a page first."""
        given = {"session_id": session_id, "customer_id": customer_id, "tool": tool, "who": who}
        filters: dict[str, Any] = {name: None if text is None else clean(text) for name, text in given.items()}
        items = await get_service(request).store.approvals.history(
            limit=limit,
            before=None if before is None else await find_approval(request, key, before),
            tenant_id=choose_tenant(key, tenant_id),
            **filters,
        )
        return _build_page(key, items, items[0] if len(items) == limit else None)

    @router.get("/approvals/{token}", tags=["approvals"], summary="Show one question", responses=found)
    async def show(request: Request, token: Token, key: ApiKey = allow("caller", *READERS)) -> ApprovalBody:
        """One question, with the exact arguments."""
        return build_approval(await find_approval(request, key, token))

    @router.post("/approvals/{token}/approve", tags=["approvals"], summary="Approve a call", responses=decided)
    async def approve(
        request: Request, token: Token, body: ApproveBody, key: ApiKey = allow("operator", "caller")
    ) -> ApprovalBody:
        """Agree to one exact call; it runs when it is sent again, once. An operator decides what an operator is asked,
        and a caller passes on what the customer of the conversation has said: neither stands for the other."""
        service, known = get_service(request), await find_approval(request, key, token)
        arguments = await _check_arguments(service, known, body.arguments)
        after = await service.store.approvals.approve(
            known.token, by=_get_side(key), who=_get_who(key, known), reason=body.reason, arguments=arguments
        )
        return _finish(service, request, key, known, after)

    @router.post("/approvals/{token}/deny", tags=["approvals"], summary="Deny a call", responses=decided)
    async def deny(
        request: Request, token: Token, body: DenyBody, key: ApiKey = allow("operator", "caller")
    ) -> ApprovalBody:
        """Refuse one exact call; who sends it again is told so, with the reason."""
        service, known = get_service(request), await find_approval(request, key, token)
        after = await service.store.approvals.deny(
            known.token, by=_get_side(key), who=_get_who(key, known), reason=body.reason
        )
        return _finish(service, request, key, known, after)

    @router.get("/doubts", tags=["doubts"], summary="List what is in doubt", responses=errors)
    async def list_doubts(
        request: Request,
        session_id: Annotated[str, Query(max_length=1_000)] | None = None,
        tenant_id: ShortId | None = None,
        limit: Limit = 100,
        key: ApiKey = allow(*READERS),
    ) -> DoubtList:
        """Calls of which nobody knows whether they took effect, the oldest first."""
        items = await get_service(request).executor.doubts(
            session_id=None if session_id is None else clean(session_id),
            tenant_id=choose_tenant(key, tenant_id),
            limit=limit,
        )
        return DoubtList(items=[_build_doubt(doubt) for doubt in items if is_visible(key, doubt.tenant_id)])

    @router.post(
        "/doubts/resolve",
        tags=["doubts"],
        summary="Say what happened",
        response_model=None,
        responses={200: {"model": ResultBody}, **decided},
    )
    async def resolve(request: Request, body: ResolveBody, key: ApiKey = allow("operator")) -> Any:
        """Record whether a call in doubt took effect; the answer is the result that the call has from now on."""
        service = get_service(request)
        session, call = clean(body.session_id), clean(body.call_id)
        entry = (await service.store.ledger.recall(session_id=session, call_id=call)).by_id
        if entry is None or not is_visible(key, entry.tenant_id):
            raise not_found("call")
        try:
            result = await service.executor.resolve(
                session_id=session,
                call_id=call,
                happened=body.happened,
                who=key.who,
                reason=body.reason,
                expected=body.expected,
            )
        except ConfigError as error:
            raise ApiError(409, error.code, error.message) from error
        service.note(request, key, "doubt_resolved_over_http", tenant_id=entry.tenant_id, call_id=call)
        return respond_result(structs.replace(result, call_id=entry.call_id, tool_name=entry.tool), session)

    return router


async def find_approval(request: Request, key: ApiKey, token: str) -> Approval:
    """The approval of a token, if it is the holder's to see."""
    approval = await get_service(request).store.approvals.get(clean(token))
    if approval is None or not is_visible(key, approval.tenant_id):
        raise not_found("approval")
    return approval


def _get_side(key: ApiKey) -> Literal["customer", "operator"]:
    return "customer" if key.role == "caller" else "operator"


def _get_who(key: ApiKey, approval: Approval) -> str:
    """Whose decision it is: the key's holder, or the customer that the holder speaks for."""
    return approval.customer_id or key.who if key.role == "caller" else key.who


async def _check_arguments(
    service: Service, approval: Approval, arguments: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    if arguments is None:
        return None
    executor = await service.find_executor(approval.tenant_id)
    if not executor.has_tool(approval.tool):
        raise ApprovalError(f"`{approval.tool}` is not among the tools now, so that other arguments cannot be checked.")
    try:
        text = json.dumps(arguments, allow_nan=False)
    except ValueError as error:
        raise ToolError("The arguments must not have NaN or infinite numbers.", code="invalid_arguments") from error
    executor.registry.get(approval.tool).parse(text)
    return arguments


def _finish(service: Service, request: Request, key: ApiKey, known: Approval, after: Approval) -> ApprovalBody:
    if known.state == "pending":
        fields = {"token": known.token, "state": after.state}
        service.note(request, key, "approval_decided_over_http", tenant_id=known.tenant_id, **fields)
    elif after.who not in (None, _get_who(key, known)):
        raise ApiError(409, ApprovalError.code, f"{after.who} was faster: this approval is {after.state} already.")
    return build_approval(after)


def _build_page(key: ApiKey, items: list[Approval], last: Approval | None) -> ApprovalPage:
    seen = [build_approval(item) for item in items if is_visible(key, item.tenant_id)]
    return ApprovalPage(items=seen, next=None if last is None else last.token)


def build_approval(approval: Approval) -> ApprovalBody:
    """An approval as the API shows it."""
    values = {name: getattr(approval, name) for name in ApprovalBody.model_fields}
    for name in ("arguments", "changed_arguments"):
        if values[name] is not None:
            values[name] = json.loads(compact_json(dict(values[name])))
    return ApprovalBody.model_validate(values)


def _build_doubt(doubt: Doubt) -> DoubtBody:
    return DoubtBody.model_validate(to_builtins(doubt))
