"""What the calls of one executor have in common: built once, and passed as one value to everything that runs them."""

import os
from collections.abc import Iterable, Mapping

from msgspec import Struct

from handrail.authorize.approvals import ApprovalEvents, Approvals
from handrail.authorize.authorizer import Authorizer, Mode
from handrail.authorize.effect_keys import CallDigests
from handrail.authorize.hooks import check_hooks
from handrail.core.blocking_code import CallbackRunner
from handrail.core.events import Listener
from handrail.core.redact import Redactor
from handrail.core.secrets import Reference, Secrets
from handrail.execute.event_bus import EventBus
from handrail.execute.executor_store import Store, StoreParts, find_work
from handrail.execute.handlers import HandlerRunner
from handrail.execute.leases import LeaseKeeper
from handrail.execute.ledger import Ledger, LedgerReader
from handrail.execute.limit_checks import AdmissionControl
from handrail.execute.limits import Limits, RetryPolicy, Timeouts
from handrail.execute.output_limit import OutputLimiter
from handrail.execute.results import CallResults
from handrail.execute.running import RunningCalls
from handrail.execute.scheduler import Scheduler
from handrail.execute.settlement import Settlement
from handrail.execute.stored_calls import Work
from handrail.execute.threads import WorkerThreads
from handrail.execute.verification import Verification


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
