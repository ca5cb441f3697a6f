"""The pages where people see what waits, what is in doubt, what ran and why, and where they decide."""

import asyncio
import hmac
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final, cast
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from handrail.core.events import LogEvent
from handrail.core.failure_results import format_time
from handrail.core.text import encodable, escape_invisible, is_same_json, parse_duration
from handrail.core.values import Approval
from handrail.errors import ApprovalError, ConfigError, ToolError
from handrail.serve.access import COOKIE, SESSION_SECONDS, BrowserSession
from handrail.serve.api.key_scope import Service
from handrail.serve.audit_feed import AuditFeed, read_cursor, write_cursor
from handrail.serve.call_report import explain_past_call, format_seconds
from handrail.store.audit_rows import AuditRow
from handrail.store.database import to_storable

_MAX_FORM_BYTES: Final = 8_000_000
_MAX_LOGIN_BYTES: Final = 10_000
"""Of a form that anybody can send."""
_MAX_QUICK_BYTES: Final = 100_000
"""Of a form that is read at once: millions of escaped characters take a second, and nobody else is served meanwhile."""
_FORM_SECONDS: Final = 15.0
"""In which a form has to arrive."""
_BAD_FORM: Final = "The form is too long, or cannot be read."
"""Changed arguments may be as long as those of a call, with every character escaped."""
_MAX_REASON_CHARS: Final = 2_000
_MAX_ID_CHARS: Final = 512
_LISTED: Final = 50
_SEARCHED: Final = 20
"""Questions about a tool and a customer among which those that were decided are looked for."""
_CARD_CHARS: Final = 4_000
"""Longer arguments are shown whole on the page of their own question, and can only be approved there."""

Notices = Callable[[], list[str]]
PageHandler = Callable[[Request, BrowserSession], Awaitable[Response]]


class CallFilters(Struct, frozen=True, kw_only=True):
    """What the calls are filtered by; each is in the address of the page."""

    tool: str = ""
    tenant: str = ""
    session: str = ""
    customer: str = ""
    outcome: str = ""
    waiting: str = ""

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> "CallFilters":
        """The filters of an address."""
        return cls(**{name: _clean(query.get(name, "")).strip() for name in cls.__struct_fields__})

    def to_query(self) -> str:
        """The filters as a part of an address."""
        return urlencode({name: value for name in self.__struct_fields__ if (value := getattr(self, name))})

    def matches(self, row: AuditRow) -> bool:
        """Whether a row is one of those that are wanted."""
        pairs = (
            *((self.tool, row.tool), (self.tenant, row.tenant_id), (self.session, row.session_id)),
            *((self.customer, row.customer_id), (self.outcome, "ok" if row.ok else row.error)),
        )
        return all(not wanted or wanted == found for wanted, found in pairs)


_MAX_CHARS: Final = 4_000


def show_text(text: object, limit: int = _MAX_CHARS) -> str:
    """A text of any origin on one page: what cannot be seen is written as an escape, and what is too long is cut."""
    every = str(text)
    cut = every[:limit]
    shown = escape_invisible(cut)
    return shown if len(every) <= limit else f"{shown}… ({len(every):,} characters)"


def show_json(value: object, limit: int = _MAX_CHARS) -> str:
    """A value as indented JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return show_text(value, limit)
    plain = dict(value) if isinstance(value, Mapping) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return show_text(json.dumps(plain, indent=2, ensure_ascii=False, default=str), limit)


def show_age(at: float) -> str:
    """How long ago something was, or how far it is ahead."""
    seconds = time.time() - at
    return f"{format_seconds(seconds)} ago" if seconds >= 0 else f"in {format_seconds(-seconds)}"


def quote_part(text: str) -> str:
    """A text as one part of an address."""
    return quote(text, safe="", errors="replace")


def choose_badge(ok: bool | None, error: str | None) -> str:
    """How the end of a call is marked: a call that waits, or of which nobody knows, has not failed."""
    if ok:
        return "done"
    return "pending" if error in ("approval_required", "in_progress", "outcome_unknown") else "failed"


def build_environment() -> Environment:
    """The templates of this package."""
    environment = Environment(
        loader=PackageLoader("handrail.serve"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "text": show_text,
        "json": show_json,
        "age": show_age,
        "time": format_time,
        "quote": quote_part,
        "badge": choose_badge,
    }
    environment.filters |= filters
    return environment


class Renderer:
    """Renders templates; every link is below the path at which the app is mounted."""

    def __init__(self) -> None:
        self._environment = build_environment()

    def render(self, request: Request, template: str, **values: Any) -> str:
        """The HTML of a template."""
        root = request.scope.get("root_path", "").rstrip("/")
        html = self._environment.get_template(template).render(root=root, path=request.url.path, **values)
        return encodable(html)

    def respond(self, request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """A page."""
        return HTMLResponse(self.render(request, template, **values), status_code=status)


class Console:
    """The pages of one service."""

    def __init__(self, service: Service, *, feed: AuditFeed, notices: Notices, title: str) -> None:
        self._service = service
        self._executor = service.executor
        self._store = service.store
        self._access = service.access
        self._feed = feed
        self._notices = notices
        self._title = title
        self._renderer = Renderer()

    def build_routes(self) -> list[Route]:
        """The routes of the pages."""
        return [
            Route("/", self.page(self._home)),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self.action(self._logout), methods=["POST"]),
            Route("/decide", self.page(self._decide)),
            Route("/decide/history", self.page(self._history)),
            Route("/decide/{token}", self.page(self._question)),
            Route("/decide/{token}/{answer}", self.action(self._answer), methods=["POST"]),
            Route("/doubts", self.page(self._doubts)),
            Route("/doubts/resolve", self.action(self._resolve), methods=["POST"]),
            Route("/calls", self.page(self._calls)),
            Route("/calls/stream", self.page(self._stream)),
            Route("/call", self.page(self._call)),
        ]

    # Who is there.

    def page(self, page: PageHandler) -> Callable[[Request], Awaitable[Response]]:
        """A page for people who have signed in; the others are sent to sign in."""

        async def respond(request: Request) -> Response:
            session = await self._access.find_session(request.cookies)
            if session is None:
                back = urlencode({"next": request.url.path + (f"?{request.url.query}" if request.url.query else "")})
                return RedirectResponse(f"{_root(request)}/login?{back}", status_code=303)
            return await page(request, session)

        return respond

    def action(
        self, action: Callable[[Request, BrowserSession, dict[str, str]], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """A form that changes something: its token must be that of the session that sends it."""

        async def respond(request: Request) -> Response:
            session = await self._access.find_session(request.cookies)
            if session is None:
                return self.message(request, None, 403, "Your session is over. Sign in again.")
            form = await _read_form(request)
            if form is None:
                return self.message(request, session, 413, _BAD_FORM)
            if not hmac.compare_digest(form.get("form_token", "").encode(), session.form_token.encode()):
                return self.message(request, session, 403, "This form is not of your session. Reload the page.")
            return await action(request, session, form)

        return respond

    async def _login(self, request: Request) -> Response:
        form = await _read_form(request, max_bytes=_MAX_LOGIN_BYTES) if request.method == "POST" else {}
        if form is None:
            return self.message(request, None, 413, _BAD_FORM)
        following = form.get("next") or request.query_params.get("next", "")
        if not following.startswith("/") or following.startswith(("//", "/\\")):
            following = ""
        problem = ""
        if form and request.method == "POST":
            key = await self._access.find_key(form.get("key", "").strip())
            if key is not None and key.role != "caller":
                fields = {"id": key.id, "role": key.role, "who": key.who}
                event = LogEvent(
                    at=time.time(), session_id="", tenant_id=key.tenant_id, name="signed_in", fields=fields
                )
                self._store.audit(event)
                response = RedirectResponse(following or f"{_root(request)}/decide", status_code=303)
                response.set_cookie(
                    COOKIE,
                    self._access.build_cookie(key),
                    max_age=SESSION_SECONDS,
                    httponly=True,
                    samesite="strict",
                    secure=request.url.scheme == "https",
                    path=f"{_root(request)}/",
                )
                return response
            problem = (
                "There is no such key, or it was revoked."
                if key is None
                else "This key calls tools and cannot sign in: create one with --role operator or viewer."
            )
        status = 403 if problem else 200
        values = {"title": self._title, "problem": problem, "next": following}
        return self._renderer.respond(request, "login.html", status=status, **values)

    async def _logout(self, request: Request, session: BrowserSession, form: dict[str, str]) -> Response:
        response = RedirectResponse(f"{_root(request)}/login", status_code=303)
        response.delete_cookie(COOKIE, path=f"{_root(request)}/")
        return response

    async def _home(self, request: Request, session: BrowserSession) -> Response:
        return RedirectResponse(f"{_root(request)}/decide", status_code=303)

    # Decide.

    async def _decide(self, request: Request, session: BrowserSession) -> Response:
        pending = await self._store.approvals.pending(tenant_id=session.key.tenant_id, limit=_LISTED + 1)
        waiting = [
            await self._describe_question(approval)
            for approval in sorted(pending[:_LISTED], key=lambda approval: approval.created_at)
        ]
        more = len(pending) > _LISTED
        return self.show(request, session, "decide.html", waiting=waiting, more=more, limit=_CARD_CHARS)

    async def _question(self, request: Request, session: BrowserSession) -> Response:
        approval = await self._find_approval(request, session)
        if approval is None:
            return self.message(request, session, 404, "There is no such question.")
        described = await self._describe_question(approval)
        return self.show(request, session, "question.html", waiting=described, limit=10_000_000)

    async def _history(self, request: Request, session: BrowserSession) -> Response:
        query = request.query_params
        wanted = {name: _clean(query.get(name, "")) or None for name in ("tool", "who", "customer_id", "session_id")}
        before = await self._store.approvals.get(_clean(query["before"])) if query.get("before") else None
        if before is not None and not _is_visible(before.tenant_id, session):
            before = None
        found = await self._store.approvals.history(
            limit=_LISTED, before=before, tenant_id=session.key.tenant_id, **cast(Any, wanted)
        )
        older = ""
        if len(found) == _LISTED:
            given = {name: value for name, value in wanted.items() if value}
            older = urlencode({**given, "before": found[0].token})
        values = {"approvals": found[::-1], "older": older, "wanted": wanted, "now": time.time()}
        return self.show(request, session, "history.html", **values)

    async def _answer(self, request: Request, session: BrowserSession, form: dict[str, str]) -> Response:
        answer = request.path_params["answer"]
        if answer not in ("approve", "deny"):
            return self.message(request, session, 404, "There is no such page.")
        if not session.can_decide:
            return self.message(request, session, 403, f"A {session.key.role} sees, and decides nothing.")
        known = await self._find_approval(request, session)
        if known is None:
            return self.message(request, session, 404, "There is no such question.")
        who, reason = session.key.who, form.get("reason", "").strip()[:_MAX_REASON_CHARS]
        problem, refused = "", {"given": "", "reason": ""}
        try:
            if answer == "deny":
                after = await self._store.approvals.deny(known.token, by="operator", who=who, reason=reason)
            else:
                arguments = await self._read_arguments(known, form.get("arguments", ""))
                after = await self._store.approvals.approve(
                    known.token, by="operator", who=who, reason=reason, arguments=arguments
                )
        except (ApprovalError, ToolError) as error:
            problem = error.message
            refused = {"given": form.get("arguments", "").replace("\r\n", "\n"), "reason": reason}
            after = await self._store.approvals.get(known.token) or known
        if known.state != "pending" or after.who not in (None, who):
            problem = _describe_faster(after, who)
        described = {**await self._describe_question(after), **refused}
        template = "_question.html" if "hx-request" in request.headers else "question.html"
        values = {"waiting": described, "problem": problem, "limit": _CARD_CHARS if "_" in template else 10_000_000}
        return self.show(request, session, template, **values)

    async def _read_arguments(self, approval: Approval, text: str) -> dict[str, Any] | None:
        """The arguments that an approver wants instead, validated as the model's are; None if they are the same."""
        text = text.strip()
        if not text:
            return None
        try:
            given: object = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ApprovalError(f"The arguments are not JSON: {error}.") from error
        if not isinstance(given, dict):
            raise ApprovalError("The arguments must be a JSON object.")
        if is_same_json(json.dumps(given), json.dumps(dict(approval.arguments), default=str)):
            return None
        executor = await self._service.find_executor(approval.tenant_id)
        if not executor.has_tool(approval.tool):
            raise ApprovalError(
                f"`{approval.tool}` is not among the tools now, so that other arguments cannot be checked."
            )
        executor.registry.get(approval.tool).parse(text)
        return cast(dict[str, Any], given)

    async def _find_approval(self, request: Request, session: BrowserSession) -> Approval | None:
        approval = await self._store.approvals.get(_clean(request.path_params["token"]))
        return approval if approval is not None and _is_visible(approval.tenant_id, session) else None

    async def _describe_question(self, approval: Approval) -> dict[str, Any]:
        """A question with the rule that asked it, and what became of others about the same tool and customer."""
        rule: AuditRow | None = None
        if approval.call_id:
            rows = await self._store.audit.query(
                session_id=approval.session_id, call_id=approval.call_id, kind="decision_made", limit=1
            )
            rule = rows[0] if rows else None
        before = await self._store.approvals.history(
            tool=approval.tool,
            customer_id=approval.customer_id,
            session_id=None if approval.customer_id else approval.session_id,
            tenant_id=approval.tenant_id,
            limit=_SEARCHED,
        )
        now = time.time()
        earlier = [
            known
            for known in before[::-1]
            if known.token != approval.token
            and (known.customer_id, known.tenant_id) == (approval.customer_id, approval.tenant_id)
            and (known.state != "pending" or known.is_expired(now))
        ]
        return {"approval": approval, "rule": rule, "earlier": earlier[:5], "now": now, "given": "", "reason": ""}

    # Doubts.

    async def _doubts(self, request: Request, session: BrowserSession) -> Response:
        return await self._show_doubts(request, session)

    async def _show_doubts(
        self, request: Request, session: BrowserSession, problem: str = "", done: str = ""
    ) -> Response:
        found = await self._executor.doubts(tenant_id=session.key.tenant_id, limit=_LISTED)
        values = {"doubts": found, "problem": problem, "done": done, "now": time.time()}
        return self.show(request, session, "doubts.html", **values)

    async def _resolve(self, request: Request, session: BrowserSession, form: dict[str, str]) -> Response:
        if not session.can_decide:
            return self.message(request, session, 403, f"A {session.key.role} sees, and decides nothing.")
        of_session, of_call = _clean(form.get("session_id", "")), _clean(form.get("call_id", ""))
        entry = (await self._store.ledger.recall(session_id=of_session, call_id=of_call)).by_id
        if entry is None or not _is_visible(entry.tenant_id, session):
            return await self._show_doubts(request, session, problem="There is no such call.")
        if form.get("happened") not in ("yes", "no"):
            return await self._show_doubts(request, session, problem="Say whether it happened.")
        try:
            result = await self._executor.resolve(
                session_id=of_session,
                call_id=of_call,
                happened=form["happened"] == "yes",
                who=session.key.who,
                reason=form.get("reason", "").strip()[:_MAX_REASON_CHARS],
                expected=form.get("expected") or None,
            )
        except ConfigError as error:
            return await self._show_doubts(request, session, problem=error.message)
        return await self._show_doubts(request, session, done=result.for_model())

    # Calls.

    async def _calls(self, request: Request, session: BrowserSession) -> Response:
        filters = CallFilters.from_query(request.query_params)
        values: dict[str, Any] = {"filters": filters, "rows": [], "waiting": None, "problem": "", "older": ""}
        if filters.waiting:
            values["waiting"], values["problem"] = await self._find_waiting(session, filters)
            return self.show(request, session, "calls.html", **values)
        tenant = _choose_tenant(session, filters.tenant)
        given = request.query_params.get("before", "")
        before = await read_cursor(self._store, given, tenant) if given else None
        rows = await self._query_calls(session, filters, before)
        values["rows"] = rows[::-1]
        if len(rows) == _LISTED:
            older = urlencode({"before": write_cursor(self._store, rows[0])})
            values["older"] = f"{filters.to_query()}&{older}".lstrip("&")
        return self.show(request, session, "calls.html", **values)

    async def _query_calls(
        self, session: BrowserSession, filters: CallFilters, before: AuditRow | None
    ) -> list[AuditRow]:
        return await self._store.audit.query(
            kind="call_finished",
            tenant_id=_choose_tenant(session, filters.tenant),
            session_id=filters.session or None,
            customer_id=filters.customer or None,
            tool=filters.tool or None,
            outcome=filters.outcome or None,
            limit=_LISTED,
            before=before,
        )

    async def _find_waiting(self, session: BrowserSession, filters: CallFilters) -> tuple[list[Approval], str]:
        try:
            least = parse_duration(filters.waiting)
        except ConfigError as error:
            return [], error.message
        tenant = _choose_tenant(session, filters.tenant)
        pending = await self._store.approvals.pending(tenant_id=tenant, session_id=filters.session or None, limit=500)
        wanted = [
            approval
            for approval in pending
            if approval.created_at <= time.time() - least
            and filters.tool in ("", approval.tool)
            and filters.customer in ("", approval.customer_id)
        ]
        return sorted(wanted, key=lambda approval: approval.created_at), ""

    async def _stream(self, request: Request, session: BrowserSession) -> Response:
        """Server-sent events: each is the row of a call that has ended."""
        if self._feed.is_full(session.key.tenant_id):
            return Response("too many pages are open", status_code=503, headers={"Retry-After": "30"})
        filters = CallFilters.from_query(request.query_params)

        def is_wanted(row: AuditRow) -> bool:
            return _is_visible(row.tenant_id, session) and filters.matches(row)

        async def send() -> AsyncGenerator[str]:
            yield ": connected\n\n"
            async with aclosing(self._feed.stream(is_wanted, tenant_id=session.key.tenant_id)) as rows:
                async for row in rows:
                    if await self._access.find_session(request.cookies) is None:  # Revoked while the page was open.
                        return
                    if row is None:
                        yield ": nothing new\n\n"
                        continue
                    html = self._renderer.render(request, "_row.html", row=row, session=session)
                    yield "".join(f"data: {line}\n" for line in html.splitlines()) + "\n"

        return StreamingResponse(send(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _call(self, request: Request, session: BrowserSession) -> Response:
        query = request.query_params
        report = await explain_past_call(
            self._store,
            session_id=_clean(query.get("session", "")),
            call_id=_clean(query.get("call", "")),
            tenant_id=session.key.tenant_id,
            find_executor=self._service.find_executor,
        )
        if report is None:
            return self.message(request, session, 404, "Nothing is known about this call.")
        return self.show(request, session, "call.html", report=report)

    # Rendering.

    async def find_session(self, request: Request) -> BrowserSession | None:
        """Who has signed in, if their session is not over."""
        return await self._access.find_session(request.cookies)

    def render(self, request: Request, template: str, **values: Any) -> str:
        """A part of a page."""
        return self._renderer.render(request, template, **values)

    def show(self, request: Request, session: BrowserSession, template: str, **values: Any) -> HTMLResponse:
        """A page with its template."""
        values = {"problem": "", "done": "", **values}
        return self._renderer.respond(
            request, template, session=session, title=self._title, notices=self._notices(), **values
        )

    def message(self, request: Request, session: BrowserSession | None, status: int, text: str) -> HTMLResponse:
        """A page that says one thing."""
        values: dict[str, Any] = {
            "title": self._title,
            "notices": [],
            "session": session,
            "text": text,
            "problem": "",
            "done": "",
        }
        return self._renderer.respond(request, "message.html", status=status, **values)


def _root(request: Request) -> str:
    return request.scope.get("root_path", "").rstrip("/")


def _is_visible(tenant_id: str | None, session: BrowserSession) -> bool:
    return session.key.tenant_id is None or session.key.tenant_id == tenant_id


def _choose_tenant(session: BrowserSession, wanted: str) -> str | None:
    """The tenant of the key, whatever the address says; who sees every tenant may choose one."""
    return session.key.tenant_id if session.key.tenant_id is not None else wanted or None


def _describe_faster(approval: Approval, who: str) -> str:
    verb = {"denied": "denied", "withdrawn": "withdrawn"}.get(approval.state, "approved")
    by = "You have" if approval.who == who else f"{approval.who} was faster and has" if approval.who else "It was"
    return f"{by} {verb} this call already." if approval.who else f"This question was {verb} already."


def _clean(text: str) -> str:
    """A text of an address or a form as a database can look it up."""
    return to_storable(text[:_MAX_ID_CHARS])


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number that JSON has")


async def _read_form(request: Request, *, max_bytes: int = _MAX_FORM_BYTES) -> dict[str, str] | None:
    """The fields of a form; None if it is too long or cannot be read."""
    body = bytearray()
    try:
        async with asyncio.timeout(_FORM_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    return None
    except (ClientDisconnect, TimeoutError):
        return None
    parse = partial(parse_qsl, body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=50)
    try:
        return dict(parse() if len(body) <= _MAX_QUICK_BYTES else await asyncio.to_thread(parse))
    except ValueError:
        return None
