"""The page where an operator tries the agent: a chat as the customer, with the trace of each turn beside it."""

import re
import secrets
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlencode

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from handrail.chat.conversation import Conversation
from handrail.core.events import CallFinished, CallStarted, Progress
from handrail.core.log import log
from handrail.core.text import compact_json
from handrail.core.values import Approval, ToolCall, ToolResult
from handrail.errors import ApprovalError, HandrailError
from handrail.providers.messages import AssistantMessage, ToolMessage, UserMessage
from handrail.providers.provider import TextDelta
from handrail.serve.access import BrowserSession
from handrail.serve.api.error_responses import ApiError, to_api_error
from handrail.serve.api.key_scope import Service, clean, scope_tenant_session
from handrail.serve.api.turns import Conversations, RunningTurn, can_resume
from handrail.serve.console import Console
from handrail.store.audit_rows import AuditRow

_NAME: Final = re.compile(r"try-[0-9a-f]{12}\Z")
_MAX_MESSAGE_CHARS: Final = 20_000
_SHOWN: Final = 50
"""Turns on the page."""
_WAIT_SECONDS: Final = 60.0
"""How long a browser without scripts waits for the end of a turn."""
_FLUSH_SECONDS: Final = 5.0


class CallView(Struct, frozen=True, kw_only=True):
    """A call of a turn: what decided about it, who allowed it, and what came of it."""

    call: ToolCall
    decision: AuditRow | None = None
    approval: Approval | None = None
    finished: AuditRow | None = None
    result: ToolResult | None = None


class TurnView(Struct, frozen=True, kw_only=True):
    """What was said from one message of the customer to the next, and the calls in between."""

    message: str
    replies: list[str] = []
    calls: list[CallView] = []


def build_turns(conversation: Conversation, rows: Sequence[AuditRow], approvals: Iterable[Approval]) -> list[TurnView]:
    """The turns of a conversation, each with its calls as the audit knows them."""
    # A read that is allowed has its decision in the row of its end.
    decided = {row.call_id: row for row in rows if row.kind in ("decision_made", "call_finished") and row.action}
    finished = {row.call_id: row for row in rows if row.kind == "call_finished"}
    asked = {approval.call_id: approval for approval in approvals}
    results = {result.call_id: result for result in conversation.results}

    def view(call: ToolCall) -> CallView:
        return CallView(
            call=call,
            decision=decided.get(call.id),
            approval=asked.get(call.id),
            finished=finished.get(call.id),
            result=results.get(call.id),
        )

    turns: list[TurnView] = []
    for message in conversation.messages:
        if isinstance(message, UserMessage):
            turns.append(TurnView(message=message.text, replies=[], calls=[]))
        elif isinstance(message, AssistantMessage) and turns:
            turns[-1].replies.extend([message.text] if message.text else [])
            turns[-1].calls.extend(view(call) for call in message.calls)
        elif not isinstance(message, ToolMessage):
            turns.append(TurnView(message="", replies=[message.text], calls=[]))
    if turns:
        turns[-1].calls.extend(view(pending.call) for pending in conversation.pending)
    return turns


class ChatPages:
    """The chat of an operator with the agent."""

    def __init__(self, console: Console, service: Service, conversations: Conversations | None) -> None:
        self._console = console
        self._service = service
        self._store = service.store
        self._conversations = conversations

    def build_routes(self) -> list[Route]:
        """The routes of the page."""
        return [
            Route("/sessions/chat", self._console.page(self._chat)),
            Route("/sessions/chat/{action}", self._console.action(self._act), methods=["POST"]),
        ]

    async def _chat(self, request: Request, session: BrowserSession) -> Response:
        if (refused := self._refuse(request, session)) is not None:
            return refused
        id = request.query_params.get("id", "")
        if not id:
            new = urlencode({"id": f"try-{secrets.token_hex(6)}"})
            return RedirectResponse(f"{request.scope.get('root_path', '')}/sessions/chat?{new}", status_code=303)
        if not _NAME.match(id):
            return self._console.message(request, session, 404, "There is no such conversation.")
        return self._console.show(request, session, "chat.html", **await self._read(session, id))

    async def _act(self, request: Request, session: BrowserSession, form: dict[str, str]) -> Response:
        if (refused := self._refuse(request, session)) is not None:
            return refused
        id, action = form.get("id", ""), request.path_params["action"]
        if not _NAME.match(id) or action not in ("send", "decide", "resume", "interrupt"):
            return self._console.message(request, session, 404, "There is no such conversation.")
        try:
            if action == "interrupt":
                assert self._conversations is not None
                await self._conversations.interrupt(scope_tenant_session(session.key.tenant_id, id))
                return self._go_back(request, id)
            turn = await self._start(session, id, action, form)
        except (ApiError, HandrailError) as error:
            failed = to_api_error(error)
            return self._console.message(request, session, failed.status, failed.message)
        if "text/event-stream" in request.headers.get("accept", ""):
            events = self._stream(request, session, id, turn)
            return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        await turn.wait(timeout=_WAIT_SECONDS)
        if turn.error is not None:
            failed = to_api_error(turn.error)
            return self._console.message(request, session, failed.status, failed.message)
        return self._go_back(request, id)

    def _refuse(self, request: Request, session: BrowserSession) -> Response | None:
        if self._conversations is None:
            text = "No agent is served here: build_app(…, agent=agent), or handrail serve with a model."
            return self._console.message(request, session, 404, text)
        if not session.can_decide:  # Its calls are real.
            return self._console.message(request, session, 403, "Only an operator can try the agent.")
        return None

    def _go_back(self, request: Request, id: str) -> Response:
        root = request.scope.get("root_path", "")
        return RedirectResponse(f"{root}/sessions/chat?{urlencode({'id': id})}", status_code=303)

    async def _start(self, session: BrowserSession, id: str, action: str, form: dict[str, str]) -> RunningTurn:
        assert self._conversations is not None
        key = session.key
        message = form.get("message", "").strip() if action == "send" else None
        if message is not None and not 0 < len(message) <= _MAX_MESSAGE_CHARS:
            raise ApiError(422, "invalid_arguments", f"A message has 1 to {_MAX_MESSAGE_CHARS:,} characters.")
        executor = await self._service.get_executor(key)
        context = await self._service.make_context(
            key, session_id=id, customer_id=name_customer(session), agent_id=None, turn=0
        )
        if action == "decide":
            await self._decide(session, context.session_id, form)
        return await self._conversations.start(executor, context, message=message)

    async def _decide(self, session: BrowserSession, session_id: str, form: dict[str, str]) -> None:
        """Decide as the customer, whom the operator plays here; what an operator is asked is on the page Decide."""
        customer = name_customer(session)
        approval = await self._store.approvals.get(clean(form.get("token", "")))
        if approval is None or (approval.session_id, approval.customer_id) != (session_id, customer):
            raise ApprovalError("this token belongs to no open approval of this conversation.")
        if form.get("answer") == "yes":
            await self._store.approvals.approve(approval.token, by="customer", who=customer)
        else:
            await self._store.approvals.deny(approval.token, by="customer", who=customer)

    async def _stream(
        self, request: Request, session: BrowserSession, id: str, turn: RunningTurn
    ) -> AsyncGenerator[str]:
        """Text as it is written, and lines of the trace; at the end the turns as the page shows them."""
        async for event in turn.read():
            if await self._console.find_session(request) is None:  # Signed out, or revoked.
                return
            match event:
                case None:
                    yield ": waiting\n\n"
                case TextDelta():
                    yield _encode("text", compact_json(event.text))
                case CallStarted() | CallFinished() | Progress() | Approval():
                    values = {"event": event, "kind": type(event).__name__}
                    yield _encode("trace", self._console.render(request, "_trace_event.html", **values))
                case _:
                    pass
        values = await self._read(session, id)
        if turn.error is not None:
            log.warning("a turn on the page failed: %s", turn.error)
            values["problem"] = to_api_error(turn.error).message
        yield _encode("turns", self._console.render(request, "_turns.html", session=session, **values))

    async def _read(self, session: BrowserSession, id: str) -> dict[str, Any]:
        """Everything that the page shows of a conversation; of one that another person began, nothing."""
        assert self._conversations is not None
        tenant = session.key.tenant_id
        name = scope_tenant_session(tenant, id)
        found = await self._conversations.find(name, tenant_id=tenant)
        values: dict[str, Any] = {"id": id, "name": name, "customer": name_customer(session), "turns": [], "open": []}
        values |= {"resumable": False, "running": False, "problem": "", "handed_off": False}
        if found is None or found.customer_id != values["customer"]:
            return values
        with suppress(TimeoutError):  # Then the last lines are missing.
            await self._store.audit.flush(timeout=_FLUSH_SECONDS)
        rows = await self._store.audit.query(session_id=name, tenant_id=tenant, limit=2_000)
        approvals = await self._store.approvals.history(session_id=name, tenant_id=tenant, limit=500)
        pending = await self._store.approvals.pending(session_id=name, tenant_id=tenant, limit=50)
        is_running = await self._conversations.is_running(name)
        return values | {
            "turns": build_turns(found, rows, approvals)[-_SHOWN:],
            "open": pending,
            "resumable": can_resume(found) and not is_running,
            "running": is_running,
            "handed_off": found.handed_off,
        }


def name_customer(session: BrowserSession) -> str:
    """The customer that a person plays: nobody who is a customer elsewhere."""
    return f"console:{session.key.who}"


def _encode(name: str, data: str) -> str:
    return f"event: {name}\n" + "".join(f"data: {line}\n" for line in data.split("\n")) + "\n"
