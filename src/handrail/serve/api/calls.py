"""Calls over HTTP: run one, look it up, cancel it, explain it."""

import asyncio
import base64
import secrets
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from msgspec import Struct
from pydantic import BaseModel, Field
from starlette.responses import Response

from handrail.core.context import ToolContext
from handrail.core.text import compact_json, encodable
from handrail.core.values import Approval, ToolCall, ToolResult
from handrail.errors import ApprovalError
from handrail.execute.executor import Executor
from handrail.execute.results import describe_entry
from handrail.serve.api.error_responses import EVERY_ROUTE, ApiError, describe_errors, get_request_id, not_found
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
from handrail.serve.call_report import explain_past_call
from handrail.serve.mcp_calls import MAX_APPROVAL_WAIT
from handrail.store.api_keys import ApiKey
from handrail.store.database import to_storable

MAX_TURN: Final = 2**53
_MAX_ID_CHARS: Final = 200
_SUBMIT_SECONDS: Final = 0.25
"""How long a submitted call is waited for: who is refused hears it at once."""
_NOT_IN_LEDGER: Final = " A call that was refused, that waits for an approval or that only reads is not in it."

CallText = Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_ID_CHARS)]
ShortId = Annotated[str, Field(min_length=1, max_length=_MAX_ID_CHARS)]
StoredSessionId = Annotated[str, Field(min_length=1, max_length=1_000)]
"""A session as it is stored is longer than what a caller has named."""


class CallRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call. The text of its arguments stays as it was sent until the tool validates it."""

    tool: Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_ID_CHARS)]
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    session_id: CallText
    call_id: CallText | None = None
    customer_id: CallText | None = None
    agent_id: CallText | None = None
    turn: Annotated[int, msgspec.Meta(ge=0, le=MAX_TURN)] = 0
    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_APPROVAL_WAIT)] = 0.0


class CallBody(BaseModel):
    """A call of a tool."""

    model_config = {"extra": "forbid", "title": "Call"}

    tool: ShortId = Field(description="The name of the tool.")
    arguments: Any = Field(
        default_factory=dict[str, Any], description="A JSON object, as the schema of the tool wants it."
    )
    session_id: ShortId = Field(description="The conversation. Two tenants that use one name mean two sessions.")
    call_id: ShortId | None = Field(
        default=None, description="The id of this call in its session: the same id again is the same call, run once."
    )
    customer_id: ShortId | None = Field(
        default=None, description="The person in the conversation; the holder of the key if it is left out."
    )
    agent_id: ShortId | None = None
    turn: int = Field(default=0, ge=0, le=MAX_TURN, description="The number of the customer's message.")
    wait: float = Field(
        default=0, ge=0, le=MAX_APPROVAL_WAIT, description="Seconds to wait for an operator who has to agree."
    )


class FailureBody(BaseModel):
    """Why a call failed, as a model reads it."""

    code: str
    message: str
    retryable: bool


class QuestionBody(BaseModel):
    """What has to be agreed to before a call runs."""

    token: str
    by: Literal["customer", "operator"]
    question: str
    expires_at: float


class DecisionBody(BaseModel):
    """What decided about a call."""

    action: Literal["allow", "ask", "deny"]
    by: Literal["customer", "operator"] | None
    rule: str
    source: str
    reason: str


class MediaBody(BaseModel):
    """An image, a sound or a file of a result."""

    mime_type: str
    data: str | None = Field(description="Base64.")
    uri: str | None
    name: str | None


class ResultBody(BaseModel):
    """The result of a call. One that was refused or has failed has an `error`, and is a result all the same."""

    model_config = {"title": "Result"}

    ok: bool
    output: Any = Field(description="A JSON value; null if there is an error.")
    error: FailureBody | None
    text: str = Field(description="What a model reads.")
    session_id: str = Field(description="The session as it is stored, and found in the audit.")
    call_id: str
    tool: str
    origin: Literal["run", "replayed", "joined", "verified", "cached"]
    recorded: bool = Field(description="False if it took effect and its result could not be written.")
    duration_ms: float
    approval: QuestionBody | None = Field(description="What waits for somebody, if the error is `approval_required`.")
    decision: DecisionBody | None
    media: list[MediaBody]


class SubmittedBody(BaseModel):
    """A call that was taken, and is looked up by its ids."""

    model_config = {"title": "Submitted"}

    session_id: str
    call_id: str
    state: Literal["running", "queued"]


class CancelBody(BaseModel):
    """Which call to cancel."""

    model_config = {"extra": "forbid", "title": "Cancel"}

    session_id: ShortId
    call_id: ShortId


class CancelledBody(BaseModel):
    """Whether a call was cancelled here. What it did meanwhile, its result tells."""

    cancelled: bool


class ExplanationBody(BaseModel):
    """What would be decided about a call. Nothing ran, and nobody was asked."""

    decision: DecisionBody | None
    lines: list[str]


class SectionBody(BaseModel):
    """One question about a past call, and the answer."""

    title: str
    lines: list[str]


class PastCallBody(BaseModel):
    """Everything that is known about a past call."""

    session_id: str
    call_id: str
    tool: str
    outcome: str
    sections: list[SectionBody]


def build_router() -> APIRouter:
    """The routes of calls."""
    router = APIRouter(tags=["calls"])
    errors = describe_errors(400, *EVERY_ROUTE)
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Call"}}}, "required": True}
    running = RunningRequests()

    @router.post(
        "/calls",
        summary="Run a call",
        response_model=None,
        responses={200: {"model": ResultBody}, **errors},
        openapi_extra={"requestBody": body},
    )
    async def run_call(request: Request, key: ApiKey = allow("caller")) -> Response:
        """Run a call, and answer with its result. A call that is refused or fails is answered with 200, too: its
        `error` has the code and the text that a model reads."""
        service, given = get_service(request), read_call(await request.body())
        executor = await service.get_executor(key)
        context = await make_context(service, key, given)
        call = build_call(given, request)
        result = await running.run(executor, call, context)
        if (approval := result.approval) is not None and given.wait and await wait_for(executor, approval, given.wait):
            result = await running.run(executor, call, context)
        return respond_result(result, context.session_id)

    @router.post(
        "/calls/submit",
        summary="Submit a call",
        response_model=None,
        responses={200: {"model": ResultBody}, 202: {"model": SubmittedBody, "description": "It runs."}, **errors},
        openapi_extra={"requestBody": body},
    )
    async def submit_call(request: Request, key: ApiKey = allow("caller")) -> Response:
        """Begin a call, and do not wait for it: look it up by its ids. A call of a durable tool is stored, and a worker
        of any replica runs it; another one runs in this replica. One that is refused at once, or that only reads, is
        answered with its result."""
        service, given = get_service(request), read_call(await request.body())
        executor = await service.get_executor(key)
        context = await make_context(service, key, given)
        call = build_call(given, request)
        is_durable = executor.has_tool(call.name) and executor.registry.get(call.name).durable
        if is_durable:
            result = await executor.submit(call, context)
        else:
            result = await running.submit(executor, call, context)
        if result is not None:
            return respond_result(result, context.session_id)
        state = "queued" if is_durable else "running"
        accepted = {"session_id": context.session_id, "call_id": call.id, "state": state}
        return Response(encode_values(accepted), status_code=202, media_type="application/json")

    @router.get(
        "/calls/result",
        summary="Look a call up",
        response_model=None,
        responses={200: {"model": ResultBody}, **errors} | describe_errors(404),
    )
    async def look_up(
        request: Request,
        session_id: StoredSessionId,
        call_id: ShortId,
        wait: Annotated[float, Query(ge=0, le=MAX_APPROVAL_WAIT)] = 0,
        key: ApiKey = allow("caller", *READERS),
    ) -> Response:
        """What became of a consequential call: its recorded result, or `in_progress`, or `outcome_unknown`. A stored
        call is waited for at most `wait` seconds."""
        service = get_service(request)
        session, call = scope_session(key, session_id) if key.role == "caller" else clean(session_id), clean(call_id)
        stored = await service.store.work.get(session_id=session, call_id=call)
        if stored is not None and is_visible(key, stored.tenant_id):
            result = await service.executor.wait(session_id=session, call_id=call, timeout=wait)
            return respond_result(result, session)
        entry = (await service.store.ledger.recall(session_id=session, call_id=call)).by_id
        if entry is None or not is_visible(key, entry.tenant_id):
            raise not_found("call in the ledger", note=_NOT_IN_LEDGER)
        result = msgspec.structs.replace(describe_entry(entry), call_id=entry.call_id, tool_name=entry.tool)
        return respond_result(result, session)

    @router.post("/calls/cancel", summary="Cancel a call", responses=errors)
    async def cancel(request: Request, body: CancelBody, key: ApiKey = allow("caller")) -> CancelledBody:
        """Cancel a call that runs in this replica, or a stored one wherever it is, unless its tool cannot be
        interrupted."""
        service = get_service(request)
        executor = await service.get_executor(key)
        session, call = scope_session(key, body.session_id), to_storable(body.call_id)
        is_cancelled = executor.cancel(call, session_id=session)
        if not is_cancelled and await service.store.work.get(session_id=session, call_id=call) is not None:
            is_cancelled = await executor.cancel_stored(call, session_id=session)
        return CancelledBody(cancelled=is_cancelled)

    @router.get("/calls/why", summary="Explain a past call", responses=errors | describe_errors(404))
    async def why(
        request: Request,
        session_id: StoredSessionId,
        call_id: ShortId,
        tenant_id: ShortId | None = None,
        key: ApiKey = allow(*READERS),
    ) -> PastCallBody:
        """Who asked, which rule decided, whose approval, what ran, and what the model read."""
        service = get_service(request)
        report = await explain_past_call(
            service.store,
            session_id=clean(session_id),
            call_id=clean(call_id),
            tenant_id=choose_tenant(key, tenant_id),
            find_executor=service.find_executor,
        )
        if report is None:
            raise not_found("call")
        sections = [
            SectionBody(title=part.title, lines=[encodable(line) for line in part.lines]) for part in report.sections
        ]
        return PastCallBody(
            session_id=report.session_id,
            call_id=report.call_id,
            tool=report.tool,
            outcome=report.outcome,
            sections=sections,
        )

    @router.post(
        "/explain",
        summary="Explain what would be decided",
        responses=errors,
        openapi_extra={"requestBody": body},
    )
    async def explain(request: Request, key: ApiKey = allow("caller", *READERS)) -> ExplanationBody:
        """Which rule would decide about a call, where it stands, and why."""
        service, given = get_service(request), read_call(await request.body())
        executor = await service.get_executor(key)
        found = executor.explain(build_call(given, request), await make_context(service, key, given))
        decision = found.decision
        described = None if decision is None else DecisionBody(**msgspec.structs.asdict(decision))
        return ExplanationBody(decision=described, lines=[encodable(line) for line in found.lines])

    return router


class RunningRequests:
    """Keeps the consequential calls of requests running when a request ends before they do."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[ToolResult]] = set()

    async def run(self, executor: Executor, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        """Run a call; a request that is cut off does not cut off what may change something."""
        if executor.is_read_only(call.name):
            return await executor.run(call, context)
        return await asyncio.shield(self._start(executor, call, context))

    async def submit(self, executor: Executor, call: ToolCall, context: ToolContext[Any]) -> ToolResult | None:
        """Begin a call; its result, if it has one at once."""
        if executor.is_read_only(call.name):
            return await executor.run(call, context)
        task = self._start(executor, call, context)
        await asyncio.wait([task], timeout=_SUBMIT_SECONDS)
        return task.result() if task.done() else None

    def _start(self, executor: Executor, call: ToolCall, context: ToolContext[Any]) -> "asyncio.Task[ToolResult]":
        task = asyncio.create_task(executor.run(call, context), name=f"handrail:{context.session_id}:{call.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def read_call(body: bytes) -> CallRequest:
    """The call of a body; the error says where it is wrong."""
    try:
        return _DECODER.decode(body)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        field = f"body{place.rstrip('`')}"
        raise ApiError(
            422, "invalid_arguments", f"The request is not valid. {field}: {text}", fields=[(field, text)]
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "invalid_arguments", f"The body cannot be read as JSON: {error}.") from error


_DECODER: Final = msgspec.json.Decoder(CallRequest)


def build_call(given: CallRequest, request: Request) -> ToolCall:
    """The call as the executor gets it: the request is what asked for it."""
    request_id = get_request_id(request)
    return ToolCall(
        id=to_storable(given.call_id) if given.call_id else f"call-{secrets.token_hex(12)}",
        name=given.tool,
        arguments_json=bytes(given.arguments).decode("utf-8", "replace"),
        response_id=request_id,
    )


async def make_context(service: Service, key: ApiKey, given: CallRequest) -> ToolContext[Any]:
    """The context of a call that was sent."""
    return await service.make_context(
        key,
        session_id=given.session_id,
        customer_id=None if given.customer_id is None else to_storable(given.customer_id),
        agent_id=None if given.agent_id is None else to_storable(given.agent_id),
        turn=given.turn,
    )


async def wait_for(executor: Executor, approval: Approval, timeout: float) -> bool:
    """Wait for an operator's decision; whether it was made in time."""
    if approval.by != "operator" or approval.state != "pending":
        return False
    try:
        await executor.approvals.wait(approval.token, timeout=timeout)
    except (TimeoutError, ApprovalError):
        return False
    return True


def respond_result(result: ToolResult, session_id: str) -> Response:
    """The response with the result of a call."""
    return Response(encode_values(build_result(result, session_id)), media_type="application/json")


def build_result(result: ToolResult, session_id: str) -> dict[str, Any]:
    """The result of a call as JSON values."""
    approval, decision, error = result.approval, result.decision, result.error
    return {
        "ok": result.ok,
        "output": None if error is not None else result.output,
        "error": None
        if error is None
        else {"code": error.code, "message": error.message, "retryable": error.retryable},
        "text": result.for_model(),
        "session_id": session_id,
        "call_id": result.call_id,
        "tool": result.tool_name,
        "origin": result.origin,
        "recorded": result.recorded,
        "duration_ms": result.duration_ms,
        "approval": None
        if approval is None
        else {
            "token": approval.token,
            "by": approval.by,
            "question": approval.question,
            "expires_at": approval.expires_at,
        },
        "decision": None if decision is None else msgspec.structs.asdict(decision),
        "media": [
            {
                "mime_type": part.mime_type,
                "data": None if part.data is None else base64.b64encode(part.data).decode(),
                "uri": part.uri,
                "name": part.name,
            }
            for part in result.media
        ],
    }


def encode_values(values: dict[str, Any]) -> bytes:
    """JSON values as bytes, whatever a tool has returned."""
    try:
        return msgspec.json.encode(values)
    except (TypeError, ValueError, RecursionError):  # Half of a surrogate pair, or a value that JSON does not have.
        try:
            return compact_json(values).encode()
        except ValueError:  # What the model reads says so.
            return compact_json({**values, "output": None}).encode()
