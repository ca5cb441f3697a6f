"""The executors of tenants: one for each version of a tenant's configuration, shared by all of its phone calls."""

import asyncio
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct, structs

from handrail.authorize.approvals import Approvals
from handrail.authorize.policy import Policy, Rule
from handrail.core.events import Event
from handrail.core.fair_threads import FairThreads
from handrail.core.log import log
from handrail.core.redact import Redactor
from handrail.core.tool import Tool
from handrail.errors import ConfigError
from handrail.execute.executor import Executor
from handrail.execute.ledger import Ledger
from handrail.execute.limits import Limits, Timeouts
from handrail.phone.events import Severity
from handrail.sources.source import Sources
from handrail.tenants.config import TenantConfig
from handrail.tenants.tool_builder import ToolBuilder, ToolBuildResult
from handrail.tenants.tool_sources import open_sources
from handrail.tenants.trust import TenantTrust

Key = tuple[str, str]
"""A tenant, and a version of it."""
OnSource = Callable[[Severity, Mapping[str, Any]], None]
"""Gets the severity and the fields of a log event about a source that was opened."""

_OWN_OPTIONS = frozenset(("tools", "policy", "store", "ledger", "approvals", "listeners", "secrets", "redactor"))
"""Options of an executor that the gateway sets itself."""
_APPROVAL_TIMEOUT = 120.0
"""Seconds in which a caller can agree; what was refused can be asked for again after that."""


class TenantTools(Struct, frozen=True, kw_only=True):
    """What the phone calls of one version of a tenant share."""

    built: ToolBuildResult
    executor: Executor
    definitions: list[Any]
    """The tools as the provider gets them."""


class TenantExecutors:
    """Builds a tenant's tools and their executor once, and again after a version or a source has changed.

    All calls of one version share limits, circuit breakers and the connections of its sources.
    """

    def __init__(
        self,
        *,
        builder: ToolBuilder,
        rules: Iterable[Rule],
        ledger: Ledger | None,
        approvals: Approvals | None,
        redactor: Redactor,
        trust: TenantTrust,
        emit: Callable[[Event], None],
        options: Mapping[str, Any],
    ) -> None:
        known = set(inspect.signature(Executor).parameters) - _OWN_OPTIONS
        if wrong := sorted(set(options) - known):
            raise ConfigError(f"executor_options must be among {', '.join(sorted(known))}, got {wrong[0]!r}.")
        self._builder = builder
        self._rules = tuple(rules)
        self._stores: dict[str, Any] = {"ledger": ledger, "approvals": approvals, "redactor": redactor}
        self._trust = trust
        self._emit = emit
        self._options = dict(options)
        self._built: dict[Key, TenantTools] = {}
        self._sources: dict[Key, Sources] = {}
        self._changed: set[Key] = set()
        """Versions whose sources have other tools than those that were built."""
        self._locks: dict[Key, asyncio.Lock] = {}
        self._threads = FairThreads("phone-tenants")
        """For what takes seconds, and may be made to by one tenant: the calls of the others go on."""

    async def get(self, cfg: TenantConfig, *, session_id: str, on_source: OnSource) -> TenantTools:
        """The tools of one version of a tenant, and what runs them."""
        key = cfg.tenant_id, cfg.version
        # Many calls may arrive at once for a version that nobody has built.
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._sources:
                await self._open_sources(key, cfg, on_source)
            if key not in self._built or key in self._changed:
                self._changed.discard(key)
                try:
                    self._built[key] = await self._build(cfg, self._sources[key], session_id)
                except Exception as error:
                    if key not in self._built:
                        await self._sources.pop(key).aclose()  # The next call opens them again.
                        raise
                    log.error("the new tools of the tenant %s cannot be used: %s", cfg.tenant_id, error)
        return self._built[key]

    async def _open_sources(self, key: Key, cfg: TenantConfig, on_source: OnSource) -> None:
        self._sources[key] = sources = await open_sources(cfg, self._trust) or Sources()
        sources.subscribe(lambda: self._changed.add(key))
        for name, status in sources.status.items():
            severity: Severity = "info" if status.state == "connected" else "warning"
            on_source(severity, {"source": name, "state": status.state, "reason": status.reason})

    async def _build(self, cfg: TenantConfig, sources: Sources, session_id: str) -> TenantTools:
        run = partial(self._threads.run, cfg.tenant_id)
        built = await self._builder.build_tools_aside(
            cfg, run, tools=sources.tools, listeners=[self._emit], session_id=session_id
        )
        return await self._threads.run(cfg.tenant_id, self._build_executor, built)

    def _build_executor(self, built: ToolBuildResult) -> TenantTools:
        cfg = built.config
        options: dict[str, Any] = self._options | {
            "limits": structs.replace(
                self._options.get("limits") or Limits(),
                max_output_chars=cfg.limits.max_output_chars,
                max_concurrent_per_session=cfg.limits.max_concurrent_tools,
            ),
            "timeouts": structs.replace(
                self._options.get("timeouts") or Timeouts(approval=_APPROVAL_TIMEOUT), call=cfg.limits.tool_timeout
            ),
        }
        executor = Executor(
            built.tools,
            policy=self._choose_policy(built),
            listeners=[self._emit],
            secrets=self._trust.select_secrets(cfg),
            **self._stores,
            **options,
        )
        return TenantTools(
            built=built, executor=executor, definitions=list(executor.registry.to_openai_realtime_tools())
        )

    def _choose_policy(self, built: ToolBuildResult) -> Policy:
        """The gateway's rules and the tenant's. With a rule that can never apply, nobody knows what was meant: the
        caller is answered all the same, and no tool runs."""
        policy = Policy((*(rule for rule in self._rules if any(map(rule.selects, built.tools))), *built.rules))
        problems = list(policy.find_problems(built.tools))
        if not problems:
            return policy
        tenant_id = built.config.tenant_id
        log.error("no tool of the tenant %s runs, because of its rules: %s", tenant_id, problems[0])
        reason = "the rules of this tenant have to be corrected"
        return Policy([Rule.deny("*", reason=reason, source=built.config.source)])

    async def check(self, tenants: Iterable[TenantConfig]) -> dict[str, str]:
        """What is wrong with tenants, by their ids; `ConfigError` for a rule of the gateway that applies to none."""
        return await self._threads.run("", self._check, tenants)

    def _check(self, tenants: Iterable[TenantConfig]) -> dict[str, str]:
        wrong: dict[str, str] = {}
        tools: dict[str, Tool[..., Any]] = {}
        is_partial = False
        for cfg in tenants:
            try:
                self._builder.check(cfg)
            except ConfigError as error:
                wrong[cfg.tenant_id] = error.message
            for place, problem in self._trust.find_problems(cfg).items():
                wrong.setdefault(cfg.tenant_id, f"tenant {cfg.tenant_id!r}: {place}: {problem}")
            built = self._builder.preview(cfg)
            self._choose_policy(built)
            is_partial = is_partial or built.is_partial
            tools |= {tool.name: tool for tool in built.tools}
        problems = list(Policy(self._rules).find_problems(tools.values()))
        if problems and tools and not is_partial:
            listed = "\n".join(f"- {problem}" for problem in problems)
            raise ConfigError(f"policy has rules that can never apply to the tools of any tenant:\n{listed}")
        return wrong

    async def forget(self, *, used: Collection[Key], ringing: Collection[str]) -> None:
        """Drop the versions that no call uses, but for the newest of each tenant, and those of tenants that ring."""
        newest = dict(self._built.keys())
        for key in [key for key in self._built if key not in used and newest[key[0]] != key[1]]:
            if key[0] not in ringing:
                del self._built[key]
                self._locks.pop(key, None)
                self._changed.discard(key)
                await self._sources.pop(key).aclose()

    async def aclose(self) -> None:
        """Close the sources of every tenant."""
        await asyncio.gather(*(sources.aclose() for sources in self._sources.values()))
        self._sources.clear()
