"""Pages about what there is rather than what happened: tools and their health, rules tried on the past, sessions."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from handrail.authorize.policy import Policy
from handrail.authorize.policy_file import parse_policy
from handrail.core.tool import Tool
from handrail.errors import ConfigError
from handrail.execute.executor import Executor
from handrail.serve.access import BrowserSession
from handrail.serve.api.key_scope import Service, clean
from handrail.serve.api.tools import RENDERERS
from handrail.serve.call_report import describe_decision
from handrail.serve.console import Console, choose_badge
from handrail.serve.policy_replay import replay_policy
from handrail.sources.pins import PinDifference
from handrail.store.audit_rows import AuditRow

_HEALTH_ROWS: Final = 2_000
"""The newest finished calls that the figures of the tools are made from."""
_SHOWN: Final = 100
_MAX_REPLAYED: Final = 5_000
_MAX_RULES_CHARS: Final = 50_000
"""Of rules that somebody tries: more than a thousand of them."""
_NOISE: Final = frozenset(("arguments_digest", "expires_at", "trace"))
"""Details that say nothing to a person in a timeline; the page of a call has them."""


class ToolHealth(Struct, frozen=True, kw_only=True):
    """How the newest calls of a tool went."""

    calls: int = 0
    success_rate: str = "–"
    """In percent, or a dash without a call."""
    p50: float | None = None
    """Milliseconds."""
    p95: float | None = None


def measure_health(rows: Iterable[AuditRow]) -> dict[str, ToolHealth]:
    """The figures of each tool; a call that was refused or asked about says nothing about its tool."""
    by_tool: dict[str, list[AuditRow]] = {}
    for row in rows:
        if row.tool and row.error not in _NOT_THE_TOOL:
            by_tool.setdefault(row.tool, []).append(row)
    found: dict[str, ToolHealth] = {}
    for tool, own in by_tool.items():
        times = sorted(row.duration_ms for row in own if row.duration_ms is not None)
        found[tool] = ToolHealth(
            calls=len(own),
            success_rate=f"{100 * sum(row.ok is True for row in own) / len(own):.0f} %",
            p50=times[len(times) // 2] if times else None,
            p95=times[min(len(times) - 1, int(len(times) * 0.95))] if times else None,
        )
    return found


_NOT_THE_TOOL: Final = frozenset(
    (
        *("approval_required", "permission_denied", "invalid_arguments", "tool_args_parse_error", "tool_not_found"),
        *("refused_by_hook", "rate_limited", "duplicate_call", "in_progress"),
    )
)


class ToolPages:
    """The pages of tools, of rules to try, and of sessions."""

    def __init__(
        self, console: Console, service: Service, *, held_tools: Callable[[], Mapping[str, PinDifference]]
    ) -> None:
        self._console = console
        self._find_held = held_tools
        self._service = service
        self._store = service.store

    def build_routes(self) -> list[Route]:
        """The routes of the pages."""
        page = self._console.page
        return [
            Route("/tools", page(self._tools)),
            Route("/tools/{name}", page(self._tool)),
            Route("/policy", page(self._policy)),
            Route("/policy/test", self._console.action(self._test), methods=["POST"]),
            Route("/sessions", page(self._sessions)),
            Route("/sessions/timeline", page(self._session)),
        ]

    # Tools.

    async def _tools(self, request: Request, session: BrowserSession) -> Response:
        executor = await self._service.get_executor(session.key)
        health = measure_health(await self._read_finished(session, limit=_HEALTH_ROWS))
        tools = [(tool, health.get(tool.name, ToolHealth())) for tool in sorted(executor.registry, key=_get_name)]
        return self._console.show(
            request, session, "tools.html", tools=tools, held=self._find_held(), problems=self._list_problems(session)
        )

    async def _tool(self, request: Request, session: BrowserSession) -> Response:
        executor = await self._service.get_executor(session.key)
        name = clean(request.path_params["name"])
        difference = self._find_held().get(name)
        if name not in executor.registry:
            if difference is not None:
                return self._console.show(request, session, "held.html", name=name, difference=difference)
            return self._console.message(request, session, 404, "There is no such tool.")
        tool = executor.registry.get(name)
        rows = await self._read_finished(session, limit=_HEALTH_ROWS, tool=name)
        breakers = await self._store.audit.query(
            kind="circuit_breaker_changed", tool=name, tenant_id=session.key.tenant_id, limit=1
        )
        definitions = [(form, *self._render(executor, tool, method)) for form, method in RENDERERS.items()]
        return self._console.show(
            request,
            session,
            "tool.html",
            tool=tool,
            health=measure_health(rows).get(name, ToolHealth()),
            breaker=breakers[-1].reason if breakers else "closed",
            rules=[rule for rule in executor.policy.rules if rule.selects(tool)],
            definitions=definitions,
            difference=difference,
        )

    def _render(self, executor: Executor, tool: Tool[..., Any], method: str) -> tuple[Any, list[str]]:
        """A tool as one provider gets it, and what was changed or dropped for it."""
        definitions = getattr(executor.registry.select(tool.name), method)()
        notes = [note.text for note in definitions.notes]
        return list(definitions), [*notes, *(f"not sent: {note.text}" for note in definitions.skipped)]

    async def _read_finished(self, session: BrowserSession, *, limit: int, tool: str | None = None) -> list[AuditRow]:
        return await self._store.audit.query(
            kind="call_finished", tenant_id=session.key.tenant_id, tool=tool, limit=limit
        )

    def _list_problems(self, session: BrowserSession) -> list[str]:
        """Tenants whose newest revision does not serve, as far as they are the holder's to see."""
        pools = self._service.tenants
        if pools is None:
            return []
        own = session.key.tenant_id
        return [
            f"The newest revision of the tenant {tenant_id} cannot be used, and the one before serves: {text}"
            for tenant_id, text in sorted(pools.problems.items())
            if own in (None, tenant_id)
        ]

    # Rules to try.

    async def _policy(self, request: Request, session: BrowserSession) -> Response:
        executor = await self._service.get_executor(session.key)
        values: dict[str, Any] = {"rules": executor.policy.rules, "text": "", "replay": None}
        return self._console.show(request, session, "policy.html", **values)

    async def _test(self, request: Request, session: BrowserSession, form: dict[str, str]) -> Response:
        executor = await self._service.get_executor(session.key)
        text = form.get("rules", "")
        values: dict[str, Any] = {"rules": executor.policy.rules, "text": text, "replay": None, "problem": ""}
        try:
            if len(text) > _MAX_RULES_CHARS:
                raise ConfigError(f"The rules must have at most {_MAX_RULES_CHARS:,} characters, got {len(text):,}.")
            # In threads: while a viewer tries rules, calls go on.
            read = await asyncio.to_thread(parse_policy, text, source="the rules below")
            policy = Policy(read.rules, default=read.default, asks=executor.policy.asks)
            if problems := await asyncio.to_thread(executor.find_policy_problems, policy):
                raise ConfigError("\n".join(str(problem) for problem in problems[:5]))
        except ConfigError as error:
            values["problem"] = error.message
        else:
            tools = {tool.name: tool for tool in executor.registry}
            values["replay"] = await replay_policy(
                self._store, tools, policy, tenant_id=session.key.tenant_id, max_calls=_MAX_REPLAYED
            )
        return self._console.show(request, session, "policy.html", limit=_SHOWN, **values)

    # Sessions.

    async def _sessions(self, request: Request, session: BrowserSession) -> Response:
        rows = await self._read_finished(session, limit=1_000)
        found: dict[str, dict[str, Any]] = {}
        for row in reversed(rows):
            one = found.setdefault(
                row.session_id,
                {
                    "id": row.session_id,
                    "at": row.at,
                    "calls": 0,
                    "failed": 0,
                    "customer": None,
                    "tenant": row.tenant_id,
                },
            )
            one["calls"] += 1
            one["failed"] += choose_badge(row.ok, row.error) == "failed"
            one["customer"] = one["customer"] or row.customer_id
        can_chat = self._service.conversations is not None and session.can_decide
        return self._console.show(
            request, session, "sessions.html", sessions=list(found.values())[:_SHOWN], can_chat=can_chat
        )

    async def _session(self, request: Request, session: BrowserSession) -> Response:
        id = clean(request.query_params.get("id", ""))
        rows = await self._store.audit.query(session_id=id, tenant_id=session.key.tenant_id, limit=500) if id else []
        if not rows:
            return self._console.message(request, session, 404, "Nothing is known about this session.")
        details = [{name: value for name, value in row.detail.items() if value and name not in _NOISE} for row in rows]
        values: dict[str, Any] = {
            "id": id,
            "rows": zip(rows, map(describe_decision, rows), details, strict=True),
            "begun": rows[0].at,
        }
        return self._console.show(request, session, "session.html", **values)


def _get_name(tool: Tool[..., Any]) -> str:
    return tool.name
