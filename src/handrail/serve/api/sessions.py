"""Conversations over HTTP: a turn as a stream of events or as one answer, its interruption, and what was said."""

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Request
from msgspec import structs
from pydantic import BaseModel, Field
from starlette.responses import Response, StreamingResponse

from handrail.chat.conversation import Conversation
from handrail.chat.turn import ChatEvent, TurnResult
from handrail.core.events import CallFinished, CallIgnored, CallStarted, Progress
from handrail.core.log import log
from handrail.core.text import encodable
from handrail.core.values import Approval
from handrail.errors import StoreError
from handrail.execute.budget import StopReason
from handrail.guide.turn import GuidedTurnResult
from handrail.providers.messages import AssistantMessage, Message, ToolMessage, UserMessage
from handrail.providers.provider import FinishReason, TextDelta
from handrail.serve.api.calls import MAX_TURN, ResultBody, ShortId, build_result, encode_values
from handrail.serve.api.decisions import ApprovalBody, build_approval
from handrail.serve.api.error_responses import (
    EVERY_ROUTE,
    ApiError,
    describe_errors,
    get_request_id,
    not_found,
    render_problem,
    to_api_error,
)
from handrail.serve.api.key_scope import (
    Service,
    allow,
    choose_tenant,
    find_session_name,
    scope_session,
    scope_tenant_session,
)
from handrail.serve.api.turns import Conversations, RunningTurn, can_resume
from handrail.store.api_keys import ApiKey
from handrail.store.database import to_storable
from handrail.store.sessions import SavedSession

_MAX_MESSAGE_CHARS: Final = 200_000
_FIRST_SECONDS: Final = 0.25
"""How long a stream waits before it begins: what is refused at once has a status of its own."""
_EVENTS: Final = (
    *("text", "call_started", "call_progress", "call_finished", "call_ignored", "approval_requested", "skipped"),
    *("turn_finished", "error"),
)
_EVENT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "event": {"enum": list(_EVENTS)},
        "data": {"type": "string", "description": "JSON text: of `turn_finished` a Turn, of `error` an ErrorBody."},
    },
    "required": ["event", "data"],
}
_ROLES: Final = {UserMessage: "customer", AssistantMessage: "agent", ToolMessage: "tools"}

SessionName = Annotated[str, Path(min_length=1, max_length=200, description="The conversation, within its tenant.")]
MessageText = Annotated[str, Field(min_length=1, description=f"At most {_MAX_MESSAGE_CHARS:,} characters.")]


class TurnRequestBody(BaseModel):
    """What the customer says."""

    model_config = {"extra": "forbid", "title": "TurnRequest"}

    message: MessageText
    quoted: list[MessageText] = Field(
        default_factory=list[str],
        max_length=20,
        description="What they pasted or forwarded: the model reads it; for a rule with `from` it is nobody's word.",
    )
    customer_id: ShortId | None = Field(
        default=None,
        description="The person in the conversation. Left out: the one that it began with, or the holder of the key.",
    )
    turn: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TURN,
        description="The number that this turn shall have: the same message, sent twice by mistake, is refused.",
    )


class UsageBody(BaseModel):
    """The tokens and the cost of a turn, or of a conversation."""

    input: int
    output: int
    cached: int
    cost: float | None


class TurnBody(BaseModel):
    """How a turn ended."""

    model_config = {"title": "Turn"}

    session_id: str = Field(description="The session as it is stored, and found in the audit.")
    turn: int
    text: str = Field(description="The last text of the agent.")
    stop_reason: StopReason
    finish_reason: FinishReason
    results: list[ResultBody]
    approvals: list[ApprovalBody] = Field(description="What waits: decide, then resume the conversation.")
    usage: UsageBody
    trace: list[str] = Field(description="Which guidelines applied and what they led to; empty without guidelines.")


class CallOfMessage(BaseModel):
    """A call that the agent made."""

    call_id: str
    tool: str
    arguments: str = Field(description="JSON text.")
    guideline_ids: list[str]


class ResultOfMessage(BaseModel):
    """What the agent read of a call's result."""

    call_id: str
    tool: str
    ok: bool
    text: str


class MessageBody(BaseModel):
    """One message of a conversation."""

    role: Literal["customer", "agent", "tools"]
    text: str
    calls: list[CallOfMessage]
    results: list[ResultOfMessage]


class SessionBody(BaseModel):
    """A conversation."""

    model_config = {"title": "Session"}

    session_id: str
    tenant_id: str | None
    customer_id: str | None
    turn: int = Field(description="Of the last turn.")
    running: bool = Field(description="Whether a turn is running, in any replica.")
    resumable: bool = Field(description="Whether a turn stopped before its end: decide what waits, and resume it.")
    handed_off: bool = Field(description="Whether a person has taken over.")
    approvals: list[ApprovalBody] = Field(description="The open questions of this conversation.")
    messages: list[MessageBody]
    total_messages: int
    usage: UsageBody


class SessionSummaryBody(BaseModel):
    """A conversation in a list."""

    model_config = {"title": "SessionSummary"}

    name: str = Field(description="The conversation, within its tenant: the `session_id` of the other routes.")
    session_id: str = Field(description="The session as it is stored, and found in the audit.")
    tenant_id: str | None
    customer_id: str | None
    saved_at: float = Field(description="When it was changed last.")


class SessionPage(BaseModel):
    """A page of conversations, the one that was changed last first."""

    items: list[SessionSummaryBody]
    before: str | None = Field(description="The value of `before` for the page of older ones; null at the end.")


class InterruptedBody(BaseModel):
    """Whether a turn was running."""

    interrupted: bool


def build_router(service: Service, conversations: Conversations, *, json_timeout: float) -> APIRouter:
    """The routes of conversations."""
    router = APIRouter(tags=["sessions"])
    errors = describe_errors(*EVERY_ROUTE, 404)
    turn_responses: dict[int | str, dict[str, Any]] = {
        200: {
            "model": TurnBody,
            "description": "The events of the turn; with `Accept: application/json`, how it ended.",
            "content": {"text/event-stream": {"schema": _EVENT_SCHEMA}},
        },
        **errors,
        **describe_errors(400, 409, 502),
    }

    async def respond(request: Request, key: ApiKey, session_id: str, turn: RunningTurn) -> Response:
        request_id = get_request_id(request)
        service.note(request, key, "turn_over_http", session_id=session_id, turn=turn.session.conversation.turn + 1)
        if _wants_json(request):
            if not await turn.wait(timeout=json_timeout):
                text = f"The turn has not ended within {json_timeout:g} seconds. It goes on: look at the session."
                raise ApiError(503, "unavailable", text, retryable=False)
            return Response(encode_values(_build_end(turn, session_id)), media_type="application/json")
        await turn.wait_for_first(timeout=_FIRST_SECONDS)
        if turn.is_over and turn.error is not None and not turn.waiting:
            raise turn.error

        async def send() -> AsyncGenerator[bytes]:
            async for event in turn.read():
                try:
                    known = await service.access.find_bearer(request.headers)
                except StoreError as error:  # The turn goes on.
                    log.warning("the key of a stream cannot be looked up", exc_info=True)
                    yield _encode_error(error, request_id)
                    return
                if known is None:  # Revoked meanwhile.
                    await conversations.interrupt(session_id)
                    revoked = ApiError(401, "permission_denied", "The key is not valid any more.")
                    yield _encode_error(revoked, request_id)
                    return
                yield b": waiting\n\n" if event is None else encode_event(event, session_id)
            if turn.skipped:
                yield _encode_event("skipped", {"count": turn.skipped})
            if turn.error is not None:
                yield _encode_error(turn.error, request_id)
            else:
                yield _encode_event("turn_finished", _build_end(turn, session_id))

        return StreamingResponse(send(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    @router.post(
        "/sessions/{session_id}/turns", summary="Send a message", response_model=None, responses=turn_responses
    )
    async def send_message(
        request: Request, session_id: SessionName, body: TurnRequestBody, key: ApiKey = allow("caller")
    ) -> Response:
        """Send a message, and read the events of the turn: `text`, `call_started`, `call_progress`, `call_finished`,
        `call_ignored`, `approval_requested`, at last `turn_finished` or `error`. A client that leaves does not end the
        turn: what it may have changed is in the conversation, which `GET /sessions/{session_id}` shows."""
        _check_texts(body)
        name, executor = scope_session(key, session_id), await service.get_executor(key)
        context = await service.make_context(key, session_id=session_id, customer_id=None, agent_id=None, turn=0)
        customer = None if body.customer_id is None else to_storable(body.customer_id)
        turn = await conversations.start(
            executor,
            structs.replace(context, customer_id=customer),
            message=body.message,
            quoted=body.quoted,
            expected_turn=body.turn,
            default_customer=key.who,
        )
        return await respond(request, key, name, turn)

    @router.post(
        "/sessions/{session_id}/resume", summary="Resume a turn", response_model=None, responses=turn_responses
    )
    async def resume(request: Request, session_id: SessionName, key: ApiKey = allow("caller")) -> Response:
        """Resume a turn that stopped: after a decision, a failure of the model's provider, or the end of a replica."""
        name, executor = scope_session(key, session_id), await service.get_executor(key)
        context = await service.make_context(key, session_id=session_id, customer_id=None, agent_id=None, turn=0)
        turn = await conversations.start(executor, structs.replace(context, customer_id=None), message=None)
        return await respond(request, key, name, turn)

    @router.post("/sessions/{session_id}/interrupt", summary="Interrupt a turn", responses=errors)
    async def interrupt(request: Request, session_id: SessionName, key: ApiKey = allow("caller")) -> InterruptedBody:
        """Stop the turn that is running, in whichever replica: the agent's text ends here, and calls are cancelled as
        their tools' `on_interrupt` says."""
        name = scope_session(key, session_id)
        is_interrupted = await conversations.interrupt(name)
        if is_interrupted:
            service.note(request, key, "turn_interrupted_over_http", session_id=name)
        return InterruptedBody(interrupted=is_interrupted)

    @router.get("/sessions", summary="List conversations", responses=describe_errors(*EVERY_ROUTE))
    async def list_sessions(
        request: Request,
        tenant_id: ShortId | None = None,
        before: Annotated[str, Query(max_length=1_000)] | None = None,
        limit: Annotated[int, Query(ge=1, le=500, description="How many at most; a page may have fewer.")] = 100,
        key: ApiKey = allow("caller", "operator"),
    ) -> SessionPage:
        """The conversations of a tenant. One that goes on meanwhile moves to the front. An operator without a tenant
        names the tenant."""
        tenant = choose_tenant(key, tenant_id) if key.role != "caller" else key.tenant_id
        older_than = None if before is None else _read_cursor(before)
        found = await service.store.sessions.list_saved(tenant_id=tenant, limit=limit, before=older_than)
        named = [(find_session_name(tenant, session.session_id), session) for session in found]
        # Those without a name are the application's own, which no route shows.
        items = [
            SessionSummaryBody(name=name, **structs.asdict(session)) for name, session in named if name is not None
        ]
        return SessionPage(items=items, before=_write_cursor(found[-1]) if len(found) == limit else None)

    @router.get("/sessions/{session_id}", summary="Show a conversation", responses=errors)
    async def show(
        request: Request,
        session_id: SessionName,
        tenant_id: ShortId | None = None,
        limit: Annotated[int, Query(ge=1, le=1_000, description="How many of the newest messages.")] = 100,
        key: ApiKey = allow("caller", "operator"),
    ) -> SessionBody:
        """What was said, and what waits. An operator without a tenant names the tenant."""
        tenant = choose_tenant(key, tenant_id) if key.role != "caller" else key.tenant_id
        name = scope_tenant_session(tenant, session_id)
        found = await conversations.find(name, tenant_id=tenant)
        if found is None:
            raise not_found("session")
        pending = await service.store.approvals.pending(session_id=name, tenant_id=tenant, limit=500)
        return _build_session(
            found,
            limit=limit,
            is_running=await conversations.is_running(name),
            approvals=[approval for approval in pending if approval.tenant_id == tenant],
        )

    return router


def _write_cursor(last: SavedSession) -> str:
    return f"{last.saved_at!r}:{last.session_id}"


def _read_cursor(text: str) -> tuple[float, str]:
    at, separator, session_id = text.partition(":")
    try:
        moment = float(at)
    except ValueError:
        moment = -1.0
    if not (separator and 0 <= moment < 1e11):
        raise ApiError(422, "invalid_arguments", "before must be a value that a page has returned.")
    return moment, to_storable(session_id)


def _check_texts(body: TurnRequestBody) -> None:
    """Refuse a message that says nothing, and texts that are too long."""
    field, problem = "", ""
    if not body.message.strip() and not any(quote.strip() for quote in body.quoted):
        field, problem = "message", "must not be empty"
    for name, text in (("message", body.message), *((f"quoted.{at}", quote) for at, quote in enumerate(body.quoted))):
        if len(text) > _MAX_MESSAGE_CHARS:
            field, problem = name, f"must have at most {_MAX_MESSAGE_CHARS:,} characters"
    if problem:
        raise ApiError(422, "invalid_arguments", f"{field} {problem}.", fields=[(f"body.{field}", problem)])


def _wants_json(request: Request) -> bool:
    """Whether the client asks for JSON, and not for a stream."""
    accept = ",".join(request.headers.getlist("accept")).lower()
    return "application/json" in accept and "text/event-stream" not in accept


def encode_event(event: ChatEvent, session_id: str) -> bytes:
    """An event of a turn as a server-sent event."""
    match event:
        case TextDelta():
            return _encode_event("text", {"text": event.text})
        case CallStarted():
            call = event.call
            values = {"call_id": call.id, "tool": call.name, "arguments": call.arguments_json}
            return _encode_event("call_started", values)
        case Progress():
            values = {
                "call_id": event.call_id,
                "tool": event.tool_name,
                "message": event.message,
                "fraction": event.fraction,
            }
            return _encode_event("call_progress", values)
        case CallFinished():
            return _encode_event("call_finished", build_result(event.result, session_id))
        case CallIgnored():
            call = event.call
            return _encode_event("call_ignored", {"call_id": call.id, "tool": call.name, "reason": event.reason})
        case Approval():
            return _encode_event("approval_requested", build_approval(event).model_dump())
        case _:
            raise TypeError(f"a turn has no events of the type {type(event).__name__}")


def _encode_event(name: str, values: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), encode_values(values))


def _encode_error(error: Exception, request_id: str) -> bytes:
    return b"event: error\ndata: %s\n\n" % render_problem(to_api_error(error), request_id)[0]


def _build_end(turn: RunningTurn, session_id: str) -> dict[str, Any]:
    """How a turn ended; raises what ended it, if that is an error."""
    if turn.error is not None:
        raise turn.error
    result = turn.result
    assert isinstance(result, TurnResult)
    return {
        "session_id": session_id,
        "turn": turn.session.conversation.turn,
        "text": encodable(result.text),
        "stop_reason": result.stop_reason,
        "finish_reason": result.finish_reason,
        "results": [build_result(call_result, session_id) for call_result in result.results],
        "approvals": [build_approval(approval).model_dump() for approval in result.approvals],
        "usage": structs.asdict(result.usage),
        "trace": list(result.trace.summary()) if isinstance(result, GuidedTurnResult) else [],
    }


def _build_session(
    conversation: Conversation, *, limit: int, is_running: bool, approvals: list[Approval]
) -> SessionBody:
    messages = conversation.messages
    return SessionBody(
        session_id=conversation.session_id,
        tenant_id=conversation.tenant_id,
        customer_id=conversation.customer_id,
        turn=conversation.turn,
        running=is_running,
        resumable=not is_running and can_resume(conversation),
        handed_off=conversation.handed_off,
        approvals=[build_approval(approval) for approval in approvals],
        messages=[_build_message(message) for message in messages[-limit:]],
        total_messages=len(messages),
        usage=UsageBody.model_validate(msgspec.to_builtins(conversation.usage)),
    )


def _build_message(message: Message) -> MessageBody:
    calls = message.calls if isinstance(message, AssistantMessage) else ()
    results = message.results if isinstance(message, ToolMessage) else ()
    return MessageBody.model_validate(
        {
            "role": _ROLES[type(message)],
            "text": "" if isinstance(message, ToolMessage) else encodable(message.text),
            "calls": [
                {
                    "call_id": call.id,
                    "tool": call.name,
                    "arguments": encodable(call.arguments_json),
                    "guideline_ids": list(call.guideline_ids),
                }
                for call in calls
            ],
            "results": [
                {
                    "call_id": result.call_id,
                    "tool": result.tool_name,
                    "ok": result.ok,
                    "text": encodable(result.for_model()),
                }
                for result in results
            ],
        }
    )
