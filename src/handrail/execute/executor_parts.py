"""What the calls of one executor have in common, built once and passed as one value; and the store that keeps them."""

import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Final, Protocol, TypeVar, cast

from msgspec import Struct

from handrail.authorize.approvals import ApprovalEvents, Approvals, MemoryApprovals
from handrail.authorize.authorizer import Authorizer, Mode
from handrail.authorize.effect_keys import CallDigests
from handrail.authorize.hooks import CallbackRunner, check_hooks
from handrail.core.events import Listener
from handrail.core.redact import Redactor
from handrail.core.secrets import Reference, Secrets
from handrail.errors import ConfigError
from handrail.execute.doubts import Verification
from handrail.execute.event_bus import EventBus
from handrail.execute.handlers import HandlerRunner
from handrail.execute.leases import LeaseKeeper
from handrail.execute.ledger import Ledger, LedgerReader, MemoryLedger
from handrail.execute.limits import AdmissionControl, Limits, RetryPolicy, Timeouts
from handrail.execute.output_limit import OutputLimiter
from handrail.execute.results import CallResults
from handrail.execute.running import RunningCalls
from handrail.execute.scheduler import Scheduler
from handrail.execute.settlement import Settlement
from handrail.execute.stored_calls import Work
from handrail.execute.threads import WorkerThreads

T = TypeVar("T")


class Store(Protocol):
    """Keeps the ledger and the approvals, and audits: what `handrail.store.open_store` returns is one."""

    @property
    def ledger(self) -> Ledger: ...
    @property
    def approvals(self) -> Approvals: ...
    @property
    def audit(self) -> Listener: ...

    @property
    def is_open(self) -> bool:
        """Whether it can be used. If not, the executor opens it before a call."""
        ...

    async def open(self) -> None:
        """Open it, if it is not open; several callers open it once. Raises if that is not possible."""
        ...

    async def aclose(self) -> None:
        """Write what waits, and close it. `open` opens it again."""
        ...


class StoreParts(Struct, frozen=True, kw_only=True):
    """The store of an executor that got none, or only parts of one. There is nothing to open."""

    ledger: Ledger
    approvals: Approvals
    work: Work | None = None
    audit: Listener | None = None
    is_open: bool = True

    async def open(self) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing: the parts are the caller's."""


def choose_store(
    store: Store | str | None,
    *,
    ledger: Ledger | None,
    approvals: Approvals | None,
    work: Work | None,
    redactor: Redactor,
) -> Store | StoreParts:
    """The store of an executor, by what was passed to it.

    This package is below `handrail.store`, and works without its extra `sql`: the package is imported by its name, and
    only if there is a URL. It says what to install.
    """
    if store is None:
        return StoreParts(
            ledger=MemoryLedger() if ledger is None else _require(ledger, "ledger", _LEDGER_MEMBERS),
            approvals=MemoryApprovals(redactor=redactor)
            if approvals is None
            else _require(approvals, "approvals", _APPROVALS_MEMBERS),
            work=None if work is None else _require(work, "work", _WORK_MEMBERS),
        )
    if ledger is not None or approvals is not None or work is not None:
        raise ConfigError("store must be passed without ledger, approvals and work: it has its own.")
    if isinstance(store, str):
        return cast(Store, import_module("handrail.store").open_store(store, redactor=redactor))
    if missing := [name for name in _MEMBERS if not hasattr(store, name)]:
        kind = type(store).__name__
        raise ConfigError(f"store must be a Store or the URL of a database, got {kind}, which has no {missing[0]!r}.")
    _require(store.ledger, "store.ledger", _LEDGER_MEMBERS)
    _require(store.approvals, "store.approvals", _APPROVALS_MEMBERS)
    return store


def find_work(store: Store | StoreParts) -> Work | None:
    """Where a store keeps durable calls; None if it has no place for them."""
    return getattr(store, "work", None)


def _require(part: T, name: str, members: Iterable[str]) -> T:
    """A part with what every call needs of it, or `ConfigError`: a user's own is checked when the executor is built."""
    if missing := [member for member in members if not hasattr(type(part), member) and not hasattr(part, member)]:
        raise ConfigError(f"{name} must have {', '.join(map(repr, missing))}, got a {type(part).__name__} without.")
    return part


_WORK_MEMBERS: Final = (
    *("is_immediate", "delivery", "put", "get", "take", "release", "finish", "hold", "end", "park", "wake", "find"),
    *("renew", "cancel", "find_cancelled", "observe", "count_attempts", "watch_end"),
)
_LEDGER_MEMBERS: Final = (
    *("digest_key", "is_immediate", "needs_lease", "is_written"),
    *("recall", "claim", "settle", "take_over"),
)
_APPROVALS_MEMBERS: Final = ("is_immediate", "ask", "consume", "restore", "withdraw")
_MEMBERS: Final = ("ledger", "approvals", "audit", "is_open", "open", "aclose")


class CallParts(Struct, frozen=True, kw_only=True):
    """What the calls of one executor have in common."""

    owner: str
    """What the ledger and stored calls name the executor by."""
    store: Store | StoreParts
    ledger: Ledger
    reader: LedgerReader
    approvals: Approvals
    work: Work | None
    """Where durable calls are stored; None without a store of such calls."""
    hooks: tuple[object, ...]
    authorizer: Authorizer
    callbacks: CallbackRunner
    digests: CallDigests
    threads: WorkerThreads
    handlers: HandlerRunner
    output_limiter: OutputLimiter
    leases: LeaseKeeper
    settlement: Settlement
    verification: Verification
    scheduler: Scheduler
    admission: AdmissionControl
    running: RunningCalls
    events: EventBus
    results: CallResults
    redactor: Redactor
    limits: Limits
    timeouts: Timeouts


def build_parts(
    store: Store | StoreParts,
    *,
    listeners: Iterable[Listener],
    hooks: Iterable[object],
    mode: Mode | Mapping[str, Mode],
    limits: Limits,
    timeouts: Timeouts,
    retry: RetryPolicy,
    secrets: Mapping[str, Reference],
    redactor: Redactor,
) -> CallParts:
    """Build what calls need, from the options of an executor. Raises `ConfigError` if one of them is wrong."""
    ledger, approvals, work = store.ledger, store.approvals, find_work(store)
    listeners, hooks = tuple(listeners), tuple(hooks)
    audit = store.audit
    if audit is not None and audit not in listeners:
        listeners = (*listeners, audit)
    check_hooks(hooks)
    owner = os.urandom(8).hex()
    output_limiter, running = OutputLimiter(), RunningCalls()
    threads = WorkerThreads(max_threads=limits.max_threads)
    events = EventBus(listeners, slow_after=timeouts.slow_after, redactor=redactor, audit=audit)
    if isinstance(approval_events := getattr(approvals, "events", None), ApprovalEvents):
        approval_events.subscribe(events)
    digests = CallDigests(lambda: ledger.digest_key)
    if store.is_open:
        digests.load_key()
    callbacks = CallbackRunner(lambda function, owner: threads.run(function, owner=owner))
    authorizer = Authorizer(
        callbacks=callbacks,
        approvals=approvals,
        hooks=hooks,
        digests=digests,
        emit=events.emit,
        mode=mode,
        approval_timeout=timeouts.approval,
    )
    handlers = HandlerRunner(
        threads=threads, output_limiter=output_limiter, secrets=Secrets(secrets), retry=retry, emit=events.emit
    )
    leases = LeaseKeeper(ledger, lease_timeout=timeouts.lease, lease_grace=timeouts.lease_grace, owner=owner, work=work)
    settlement = Settlement(ledger=ledger, handlers=handlers, redactor=redactor, leases=leases, work=work)
    return CallParts(
        owner=owner,
        store=store,
        ledger=ledger,
        reader=LedgerReader(ledger, repeat_window=timeouts.repeat_window),
        approvals=approvals,
        work=work,
        hooks=hooks,
        authorizer=authorizer,
        callbacks=callbacks,
        digests=digests,
        threads=threads,
        handlers=handlers,
        output_limiter=output_limiter,
        leases=leases,
        settlement=settlement,
        verification=Verification(ledger=ledger, handlers=handlers, settlement=settlement),
        scheduler=Scheduler(),
        admission=AdmissionControl(limits, events=events),
        running=running,
        events=events,
        results=CallResults(events=events, running=running),
        redactor=redactor,
        limits=limits,
        timeouts=timeouts,
    )
