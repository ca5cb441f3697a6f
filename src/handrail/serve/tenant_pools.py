"""The tools and rules of each tenant, built from its newest revision; one that cannot be built leaves the old one."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final
from urllib.parse import quote
from weakref import WeakSet

from msgspec import Struct, structs

from handrail.authorize.policy import Policy, Rule
from handrail.core.fair_threads import FairThreads
from handrail.core.log import log
from handrail.core.secrets import Secrets
from handrail.core.selectors import is_name
from handrail.core.tool import Tool
from handrail.errors import ConfigError, HandrailError, StoreError
from handrail.execute.executor import Executor
from handrail.registry.registry import ToolRegistry
from handrail.sources.source import Sources
from handrail.tenants.config import TenantConfig
from handrail.tenants.directory import Tenants
from handrail.tenants.tool_builder import CALL_TOOL_NAMES, ToolBuilder, ToolBuildResult
from handrail.tenants.tool_sources import open_sources
from handrail.tenants.trust import TenantTrust

DISABLED: Final = "This tenant is not enabled."
_CHANGED: Final = "The tools of this tenant have changed: begin another turn."
_GRACE_SECONDS: Final = 3_600.0
"""For the calls of sources that were replaced; each has the timeout of its tool."""
_CACHED_SECONDS: Final = 1.0
"""How long a revision is believed to be the newest."""
_WATCH_SECONDS: Final = 5.0
"""Between two looks for new revisions of the tenants that have running turns, or clients that want to be told."""
_WATCH_PATIENCE: Final = 0.25
"""Seconds that such a look may keep those for other tenants waiting."""


class TenantUnusableError(StoreError):
    """No revision of a tenant can be used: nothing is allowed that nobody has looked at."""


class TenantPool(Struct, frozen=True, kw_only=True):
    """What the calls of one tenant share."""

    executor: Executor
    config: TenantConfig | None
    """None for a tenant that has no configuration: its tools are those of all."""
    is_enabled: bool = True
    """False for a tenant that is turned off: its executor denies every call."""
    base: tuple[ToolRegistry, Policy]
    """The tools and the policy of all that it was built with."""
    secrets: Mapping[str, str] = {}
    sources: Sources | None = None

    @property
    def version(self) -> str:
        """Of the configuration; empty without one."""
        return "" if self.config is None else self.config.version


class TenantPools:
    """Builds the executor of a tenant: the tools of all, and those that its configuration adds, under its rules."""

    def __init__(self, executor: Executor, tenants: Tenants, *, builder: ToolBuilder, trust: TenantTrust) -> None:
        self.directory = tenants
        self.builder = builder
        self.trust = trust
        self.problems: dict[str, str] = {}
        """Why the newest revision of a tenant is not the one that serves, by the tenant's id."""
        self._executor = executor
        self._pools: dict[str, TenantPool] = {}
        self._checked: dict[str, float] = {}
        self._refused: dict[str, str] = {}
        """The version that could not be built, by the tenant's id: it is not tried again with each call."""
        self._changed: set[str] = set()
        """Tenants whose sources have other tools than those that were built."""
        self._looking: dict[str, asyncio.Task[TenantPool]] = {}
        """Who looks for the newest revision of a tenant. It goes on when its caller is cancelled: a source may take
        longer to answer than a caller waits, and would be asked from the beginning by each of them."""
        self.threads = FairThreads("tenants")
        """For what takes seconds, and may be made to by one tenant."""
        self.on_change: Callable[[str], None] = lambda tenant_id: None
        """Called with a tenant's id when its calls have other tools, or other rules, than those before."""
        self._executors: dict[str, WeakSet[Executor]] = {}
        """Those of each tenant that a turn may still use."""
        self._closing: set[asyncio.Task[None]] = set()
        """Of sources that a newer revision has replaced, while their last calls end."""

    async def get(self, tenant_id: str) -> TenantPool:
        """What a tenant's calls use now."""
        while True:
            known = self._pools.get(tenant_id)
            is_recent = time.monotonic() - self._checked.get(tenant_id, 0.0) < _CACHED_SECONDS
            if known is not None and is_recent and self._is_current(tenant_id, known):
                return known
            looking = self._looking.get(tenant_id)
            if looking is None:
                looking = asyncio.create_task(self._look(tenant_id), name=f"handrail:tenant:{tenant_id}")
                self._looking[tenant_id] = looking
                looking.add_done_callback(partial(self._end_look, tenant_id))
                return await asyncio.shield(looking)
            await asyncio.wait({looking})  # What it finds may be older than this call.

    def _end_look(self, tenant_id: str, looking: "asyncio.Task[TenantPool]") -> None:
        self._looking.pop(tenant_id, None)
        if not looking.cancelled():
            looking.exception()  # Its caller may be gone.

    def _is_current(self, tenant_id: str, pool: TenantPool) -> bool:
        """Whether the tools and the policy of all, and the tenant's sources, are what it was built with."""
        registry, policy = pool.base
        is_same = registry is self._executor.registry and policy is self._executor.policy
        return is_same and tenant_id not in self._changed

    async def _look(self, tenant_id: str) -> TenantPool:
        known = self._pools.get(tenant_id)
        is_current = known is not None and self._is_current(tenant_id, known)
        try:
            cfg = await self.directory.get(tenant_id)
            is_enabled = not await self.directory.is_removed(tenant_id) if cfg is None else cfg.enabled
        except StoreError:
            if known is None:
                raise
            log.warning("the configuration of the tenant %s cannot be read; the one before serves", tenant_id)
            return known if is_current else await self._renew(tenant_id, known)
        except ConfigError as error:
            return await self._keep(tenant_id, known, "", error, is_current=is_current)
        self._checked[tenant_id] = time.monotonic()
        version = "" if cfg is None else cfg.version
        if known is not None and is_current:
            if (known.version, known.is_enabled) == (version, is_enabled):
                self.problems.pop(tenant_id, None)
                return known
            if cfg is not None and version == self._refused.get(tenant_id):
                return known
        try:
            self._changed.discard(tenant_id)
            built = await self._build(cfg, known) if is_enabled else self._build_disabled(tenant_id, cfg)
        except HandrailError as error:
            return await self._keep(tenant_id, known, version, error, is_current=is_current)
        self._refused.pop(tenant_id, None)
        self.problems.pop(tenant_id, None)
        await self._put(tenant_id, built)
        if known is not None and (known.config is not None or built.config is not None):
            self.on_change(tenant_id)
        return built

    async def watch(self, list_tenants: Callable[[], Iterable[str | None]]) -> None:
        """Look for changes of these tenants again and again, so that `on_change` is called without a call of theirs."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for tenant_id in list_tenants():
                try:
                    if tenant_id is not None:
                        async with asyncio.timeout(_WATCH_PATIENCE):
                            await self.get(tenant_id)
                except TimeoutError:  # It goes on, and the other tenants are not kept waiting.
                    continue
                except Exception:  # The next call says why.
                    log.debug("the tools of the tenant %s cannot be looked at", tenant_id, exc_info=True)

    async def _keep(
        self, tenant_id: str, known: TenantPool | None, version: str, error: HandrailError, *, is_current: bool
    ) -> TenantPool:
        """What serves instead of the newest revision, which cannot be used."""
        log.error("the newest revision of the tenant %s cannot be used: %s", tenant_id, error)
        self.problems[tenant_id] = str(error)
        self._checked[tenant_id] = time.monotonic()
        if known is None:
            raise _build_unusable_error(tenant_id) from error
        self._refused[tenant_id] = version
        return known if is_current else await self._renew(tenant_id, known)

    async def _renew(self, tenant_id: str, known: TenantPool) -> TenantPool:
        """What serves already, under the rules of all and with the tools that there are now: what an operator denies
        is denied, whatever a tenant has saved."""
        self._changed.discard(tenant_id)
        try:
            if known.is_enabled:
                built = await self._build(known.config, known, serves=True)
            else:
                built = self._build_disabled(tenant_id, known.config)
        except HandrailError as error:
            self._changed.add(tenant_id)
            raise _build_unusable_error(tenant_id) from error
        await self._put(tenant_id, built)
        self.on_change(tenant_id)
        return built

    async def _put(self, tenant_id: str, pool: TenantPool) -> None:
        """Let this pool serve: what is decided from now on is decided by its rules, in running turns, too."""
        known = self._pools.get(tenant_id)
        self._pools[tenant_id] = pool
        if known is not None and known.sources is not None and known.sources is not pool.sources:
            closing = asyncio.create_task(_close_replaced(known.sources), name="handrail:close-sources")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        executors = self._executors.setdefault(tenant_id, WeakSet())
        older = tuple(executors)
        if pool.executor is not self._executor:
            executors.add(pool.executor)
        for executor in older:
            replace_policy = await self.threads.run(tenant_id, _prepare_policy, executor, pool.executor.policy)
            replace_policy()

    async def _build(self, cfg: TenantConfig | None, known: TenantPool | None, *, serves: bool = False) -> TenantPool:
        """The pool of a configuration. One that `serves` may have rules for tools that are not there any more."""
        base = registry, policy = self._executor.registry, self._executor.policy
        if cfg is None:
            return TenantPool(executor=self._executor, config=None, base=base)
        if not serves:
            await self.check(cfg, are_all=not self._executor.is_open)
        if known is not None and _can_keep_sources(known, cfg):
            sources = known.sources
        else:
            sources = await open_sources(cfg, self.trust)
            if sources is not None:
                sources.subscribe(lambda: self._changed.add(cfg.tenant_id))
        try:
            found = (*registry, *(() if sources is None else sources.tools))
            run = partial(self.threads.run, cfg.tenant_id)
            built = await self.builder.build_tools_aside(cfg, run, tools=found)
            executor = await self.threads.run(cfg.tenant_id, self._build_executor, built, policy, serves=serves)
        except BaseException:
            if sources is not None and (known is None or sources is not known.sources):
                await sources.aclose()
            raise
        secrets = Secrets(self.trust.select_secrets(cfg))
        return TenantPool(executor=executor, config=cfg, base=base, secrets=secrets, sources=sources)

    def _build_executor(self, built: ToolBuildResult, policy: Policy, *, serves: bool) -> Executor:
        tools = [tool for tool in built.tools if tool.name not in CALL_TOOL_NAMES]
        own = list(_leave_out_tools(built.rules, CALL_TOOL_NAMES))
        rules = (*policy.rules, *(_leave_out_absent(own, tools) if serves else own))
        return self._executor.with_tools(tools, policy=Policy(rules, default=policy.default, asks=policy.asks))

    def _build_disabled(self, tenant_id: str, cfg: TenantConfig | None) -> TenantPool:
        """What is left to a tenant that is turned off, also if the rest of its configuration cannot be used."""
        rule = Rule.deny("*", reason=DISABLED, source=f"tenant:{tenant_id}")
        executor = self._executor.with_tools(self._executor.registry, policy=Policy([rule]))
        base = self._executor.registry, self._executor.policy
        return TenantPool(executor=executor, config=cfg, is_enabled=False, base=base)

    async def check(self, cfg: TenantConfig, *, are_all: bool = True) -> None:
        """Raise `ConfigError` for a configuration that cannot be used: a wrong section, a rule that cannot apply, or
        something of the host that a tenant must not reach."""
        run = partial(self.threads.run, cfg.tenant_id)
        await self.builder.check_aside(cfg, run, tools=self._executor.registry, are_all=are_all)
        for place, problem in self.trust.find_problems(cfg).items():
            raise ConfigError(f"{place}: {problem}")

    async def aclose(self) -> None:
        """Close the sources of all tenants."""
        looking = list(self._looking.values())
        for task in (*looking, *self._closing):  # Nobody waits for their calls any more.
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
        pools, self._pools = list(self._pools.values()), {}
        await asyncio.gather(*(pool.sources.aclose() for pool in pools if pool.sources is not None))
        await asyncio.gather(*self._closing, return_exceptions=True)


def _build_unusable_error(tenant_id: str) -> TenantUnusableError:
    return TenantUnusableError(
        f"The configuration of the tenant {tenant_id!r} cannot be used now. Nothing was done; "
        f"GET /v1/tenants/{quote(tenant_id, safe='')} says why."
    )


def _leave_out_tools(rules: Iterable[Rule], left_out: Set[str]) -> Iterator[Rule]:
    """The rules without what they say of these tools."""
    for rule in rules:
        kept = tuple(name for name in rule.tools if name not in left_out)
        if kept or not rule.tools:
            yield rule if kept == tuple(rule.tools) else structs.replace(rule, tools=kept)


def _leave_out_absent(rules: Sequence[Rule], tools: Sequence[Tool[..., Any]]) -> Iterator[Rule]:
    """The rules without what they say of tools that are not there: it can never apply."""
    names = {tool.name for tool in tools}
    absent = {text for rule in rules for text in rule.tools if is_name(text) and text not in names}
    return (rule for rule in _leave_out_tools(rules, absent) if any(map(rule.selects, tools)))


def _prepare_policy(executor: Executor, policy: Policy) -> Callable[[], None]:
    """What lets other rules decide about calls with the tools of an older revision."""
    rules = _leave_out_absent(policy.rules, list(executor.registry))
    try:
        return executor.prepare_policy(Policy(rules, default=policy.default, asks=policy.asks))
    except ConfigError:  # A rule is about other arguments than these tools have.
        return executor.prepare_policy(Policy([Rule.deny("*", reason=_CHANGED, source="tenant")]))


def _can_keep_sources(pool: TenantPool, cfg: TenantConfig) -> bool:
    """Whether a new revision has the sources of the one before, and none of them has to be opened once more."""
    if pool.config is None or not pool.is_enabled:
        return False
    if pool.version == cfg.version:
        return True
    names = ("mcp_servers", "openapi", "secrets")
    is_same = all(getattr(pool.config, name) == getattr(cfg, name) for name in names)
    return is_same and (
        pool.sources is None or all(status.state != "failed" for status in pool.sources.status.values())
    )


async def _close_replaced(sources: Sources) -> None:
    """Close sources that a newer revision has replaced, once their calls have ended: it applies to later ones only."""
    try:
        async with asyncio.timeout(_GRACE_SECONDS):
            await sources.wait_idle()
    except TimeoutError:
        log.warning("a source that was replaced is closed while its calls are under way")
    finally:
        await sources.aclose()
