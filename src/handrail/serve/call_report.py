"""Why a call did what it did: everything that the store knows about one call, in the order in which it happened."""

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from handrail.core.context import ToolContext
from handrail.core.failure_results import format_time
from handrail.core.text import compact_json, escape_line
from handrail.core.values import Approval, ToolCall
from handrail.errors import StoreError
from handrail.execute.executor import Executor
from handrail.execute.ledger import Entry
from handrail.execute.stored_calls import WorkItem
from handrail.store import SqlStore
from handrail.store.audit_rows import AuditRow

NOT_STORED = "(the values are not stored: the store was opened without audit_values)"
_MAX_ROWS = 500
_MAX_LINES = 12


class ReportSection(Struct, frozen=True, kw_only=True):
    """One question about the call, and the answer."""

    title: str
    lines: tuple[str, ...]


FindTenantExecutor = Callable[[str | None], Awaitable[Executor]]


class PastCall(Struct, frozen=True, kw_only=True):
    """What is known about one call."""

    session_id: str
    call_id: str
    tool: str
    outcome: str
    sections: tuple[ReportSection, ...]

    def __str__(self) -> str:
        lines = [escape_line(f"{self.tool}  {self.outcome}  (session {self.session_id}, call {self.call_id})")]
        for section in self.sections:
            lines.append(f"{section.title}:")
            # A text of somebody else cannot begin a line that looks like one of these.
            lines.extend("  " + "\n      ".join(text.splitlines()) for text in section.lines)
        return "\n".join(lines)


async def explain_past_call(
    store: SqlStore,
    *,
    session_id: str,
    call_id: str,
    tenant_id: str | None = None,
    find_executor: FindTenantExecutor | None = None,
) -> PastCall | None:
    """Everything that is known about a call; None if nothing is, or if it is another tenant's.

    With `find_executor`, which returns the executor of a tenant, it also says what the rules of now would decide.
    """
    rows = await store.audit.query(session_id=session_id, call_id=call_id, tenant_id=tenant_id, limit=_MAX_ROWS)
    entry = (await store.ledger.recall(session_id=session_id, call_id=call_id)).by_id
    if entry is not None and tenant_id is not None and entry.tenant_id != tenant_id:
        entry = None
    tokens = {row.detail.get("token") for row in rows if row.detail.get("token")}
    approvals = [
        approval
        for approval in await store.approvals.history(session_id=session_id, tenant_id=tenant_id, limit=_MAX_ROWS)
        if approval.call_id == call_id or approval.token in tokens
    ]
    if not rows and entry is None and not approvals:
        return None
    planned = [
        row
        for row in await store.audit.query(session_id=session_id, tenant_id=tenant_id, kind="turn_planned", limit=100)
        if call_id in row.detail.get("call_ids", ())
    ]
    earlier = await _find_earlier(store, entry)
    item = await _find_stored(store, session_id, call_id, tenant_id)
    tool = next((row.tool for row in rows if row.tool), None) or (entry.tool if entry else approvals[0].tool)
    finished = [row for row in rows if row.kind == "call_finished"]
    if any(row.error == "unavailable" for row in finished):  # Perhaps by its circuit breaker, which belongs to no call.
        rows = [*rows, *await store.audit.query(kind="circuit_breaker_changed", tool=tool, until=rows[-1].at, limit=2)]
    sections = (
        _section("Asked by", _describe_caller(rows, entry, approvals)),
        _section("Guidelines", _describe_guidelines(rows, entry, planned)),
        _section(
            "Rule",
            [*_describe_decisions(rows, entry), *await _explain_now(find_executor, tool, rows, entry, approvals)],
        ),
        _section("Approval", _describe_approvals(approvals, rows)),
        _section("Arguments", _describe_arguments(rows, entry, approvals)),
        _section("Attempts", [*_describe_work(item), *_describe_attempts(rows, entry, earlier)]),
        _section("Result", _describe_result(finished, rows, entry)),
        _section("The model read", _describe_output(finished, entry)),
    )
    return PastCall(
        session_id=session_id,
        call_id=call_id,
        tool=tool,
        outcome=_find_outcome(finished, entry, approvals),
        sections=sections,
    )


async def _find_stored(store: SqlStore, session_id: str, call_id: str, tenant_id: str | None) -> WorkItem | None:
    """The row of a durable call."""
    try:
        item = await store.work.get(session_id=session_id, call_id=call_id)
    except (StoreError, msgspec.MsgspecError):  # Its arguments are encrypted with another key, or were changed.
        return None
    return None if item is None or tenant_id not in (None, item.tenant_id) else item


async def _find_earlier(store: SqlStore, entry: Entry | None) -> Entry | None:
    """The newest other call of the same effect."""
    if entry is None:
        return None
    recalled = await store.ledger.recall(
        session_id=entry.session_id, call_id="", key=entry.key, full_key=entry.full_key
    )
    known = recalled.by_key or recalled.by_full_key
    is_same = known is None or (known.session_id, known.call_id) == (entry.session_id, entry.call_id)
    return None if is_same else known


def _section(title: str, lines: Sequence[str] | Iterator[str]) -> ReportSection:
    every = [line for line in lines if line]
    if len(every) > _MAX_LINES:
        every = [*every[: _MAX_LINES - 1], f"… and {len(every) - _MAX_LINES + 1} more lines"]
    return ReportSection(title=title, lines=tuple(every) or ("nothing is recorded",))


def _describe_caller(rows: Sequence[AuditRow], entry: Entry | None, approvals: Sequence[Approval]) -> Iterator[str]:
    for known in (*rows, *([entry] if entry else []), *approvals):
        tenant = f"tenant {known.tenant_id}" if known.tenant_id else "no tenant"
        customer = f"customer {known.customer_id}" if known.customer_id else "no customer"
        yield f"session {known.session_id}, {customer}, {tenant}"
        break
    if entry is not None:
        yield f"turn {entry.turn}" + (f", agent {entry.agent_id}" if entry.agent_id else "")
    if response := next((row.response_id for row in rows if row.response_id), None):
        yield f"in the response or the request {response}"
    times = [row.at for row in rows]
    if times:
        yield f"first seen at {format_time(min(times))}, last at {format_time(max(times))}"


def _describe_guidelines(rows: Sequence[AuditRow], entry: Entry | None, planned: Sequence[AuditRow]) -> Iterator[str]:
    named = dict.fromkeys(
        name for ids in (*(row.guideline_ids for row in rows), entry.guideline_ids if entry else ()) for name in ids
    )
    yield f"led to by {', '.join(named)}" if named else "none led to it"
    for row in planned:
        yield from row.detail.get("trace", ())


def _describe_decisions(rows: Sequence[AuditRow], entry: Entry | None) -> Iterator[str]:
    said: set[str] = set()
    for row in rows:
        if row.action is None:
            continue
        by = f" the {row.by}" if row.by else ""
        where = f" ({row.source})" if row.source else ""
        text = f"{row.action}{by}, by {row.rule or 'no rule'}{where}" + (f": {row.reason}" if row.reason else "")
        if row.detail.get("observed"):
            text += " (observed only)"
        if text not in said:
            said.add(text)
            yield text
    if not said and entry is not None and (decision := entry.decision) is not None:
        # The process died before it could audit the decision; the claim has it.
        by = f" the {decision.by}" if decision.by else ""
        reason = f": {decision.reason}" if decision.reason else ""
        yield f"{decision.action}{by}, by {decision.rule} ({decision.source}){reason}"


async def _explain_now(
    find_executor: FindTenantExecutor | None,
    tool: str,
    rows: Sequence[AuditRow],
    entry: Entry | None,
    approvals: Sequence[Approval],
) -> list[str]:
    arguments = next((row.arguments for row in rows if isinstance(cast(object, row.arguments), dict)), None)
    text = entry.arguments if entry is not None else None if arguments is None else compact_json(arguments)
    if find_executor is None or text is None:
        return []
    known: Any = entry or next(iter(rows), None) or approvals[0]
    try:
        executor = await find_executor(known.tenant_id)
    except StoreError:  # The rules of this tenant are not known now; what happened is.
        return []
    if not executor.has_tool(tool):
        return []
    context = ToolContext(session_id=known.session_id, tenant_id=known.tenant_id, customer_id=known.customer_id)
    explained = executor.explain(ToolCall(id="why", name=tool, arguments_json=text), context)
    return [
        "the rules of now, with what is stored of the arguments:",
        *(f"  {line}" for line in explained.lines),
    ]


def _describe_approvals(approvals: Sequence[Approval], rows: Sequence[AuditRow]) -> Iterator[str]:
    now = time.time()
    for approval in approvals:
        question = f": {approval.question}" if approval.question else ""
        yield f"{approval.token}: the {approval.by} was asked at {format_time(approval.created_at)}{question}"
        for path, sentence in approval.seen.items():
            yield f"  {path}: {sentence}"
        if approval.decided_at is not None:
            verb = "denied" if approval.state == "denied" else "approved"
            waited = approval.decided_at - approval.created_at
            why = f": {approval.reason}" if approval.reason else ", without a reason"
            yield f"  {verb} by {approval.who} after {format_seconds(waited)}{why}"
        if approval.changed_arguments is not None:
            yield f"  changed the arguments to {compact_json(dict(approval.changed_arguments))}"
        if approval.state == "used":
            yield "  it was used, once"
        elif approval.state == "withdrawn":
            yield "  it was withdrawn: nobody needed the answer any more"
        elif approval.is_expired(now):
            yield f"  it expired at {format_time(approval.expires_at)} and counts no more"
        elif approval.state == "pending":
            yield f"  it is waiting, until {format_time(approval.expires_at)}"
        elif approval.state == "approved":
            yield f"  the call has not come again yet; it may until {format_time(approval.expires_at)}"
    used = {row.detail.get("token") for row in rows if row.kind == "approval_used"}
    for token in sorted(used - {approval.token for approval in approvals} - {None}, key=str):
        yield f"{token}: used by this call; it was asked for another one, or is not kept any more"
    if not approvals and not used:
        yield "nobody was asked"


def _describe_arguments(rows: Sequence[AuditRow], entry: Entry | None, approvals: Sequence[Approval]) -> Iterator[str]:
    sent = next((row.arguments for row in rows if row.arguments is not None), None)
    names = next((row.argument_keys for row in rows if row.argument_keys is not None), None)
    if sent is not None:
        yield f"sent: {sent if isinstance(sent, str) else compact_json(sent)}"
    elif names is not None:
        yield f"sent: {', '.join(names) or 'none'} {NOT_STORED if names else ''}".rstrip()
    if entry is not None:
        yield "erased with the data of their customer" if entry.erased_at else f"ran with: {entry.arguments}"
    if sent is None and entry is None:
        for approval in approvals[-1:]:
            yield f"asked about: {compact_json(dict(approval.arguments))}"


def _describe_work(item: WorkItem | None) -> Iterator[str]:
    """How often workers have taken a durable call, and which one has it."""
    if item is not None:
        times = "once" if item.attempts == 1 else f"{item.attempts} times"
        having = f", worker {item.owner} has it" if item.owner and item.state == "running" else ""
        yield f"durable: {item.state}, taken by workers {times}{having}"


def _describe_attempts(rows: Sequence[AuditRow], entry: Entry | None, earlier: Entry | None) -> Iterator[str]:
    for row in rows:
        if row.kind in ("call_accepted", "call_started", "call_cancelled", "call_ignored"):
            what = row.kind.removeprefix("call_")
            yield f"{format_time(row.at)}  {what} in process {row.writer}" + (f": {row.reason}" if row.reason else "")
        elif row.kind == "call_queued":
            yield f"{format_time(row.at)}  stored for a worker by process {row.writer}"
        elif row.kind == "call_taken_over":
            owners = f"{row.detail.get('owner')} from {row.detail.get('previous_owner')}"
            yield f"{format_time(row.at)}  taken over by worker {owners}"
    if entry is not None:
        yield f"claimed at {format_time(entry.claimed_at)} by {entry.owner}, effect {entry.idempotency_key}"
        if entry.state_at(time.time()) == "unknown":
            yield f"nobody knows the outcome; that nothing happened can be said from {format_time(entry.run_until)} on"
    else:
        yield "never claimed: no effect of this call is in the ledger"
    if earlier is not None:
        yield (
            f"the same effect: call {earlier.call_id} of session {earlier.session_id}, {earlier.state}, "
            f"claimed at {format_time(earlier.claimed_at)}"
        )


def describe_decision(row: AuditRow) -> str:
    """What a person was asked or said, in a row about an approval or a doubt; empty for any other row."""
    who, why = row.detail.get("who"), f": {row.reason}" if row.reason else ""
    if row.kind == "approval_requested":
        return f"the {row.by} is asked"
    if row.kind == "approval_decided":
        return f"{row.detail.get('outcome')}{f' by {who}' if who else ''}{why}"
    if row.kind == "doubt_resolved":
        said = "it happened" if row.detail.get("happened") else "it did not happen"
        return f"{who} said that {said}{why or ': no reason given'}"
    return ""


def _describe_result(finished: Sequence[AuditRow], rows: Sequence[AuditRow], entry: Entry | None) -> Iterator[str]:
    for row in finished:
        took = "" if row.duration_ms is None else f" after {format_seconds(row.duration_ms / 1000)}"
        origin = row.detail.get("origin")
        how = {
            "replayed": ", the recorded result of an earlier call: nothing ran",
            "joined": ", the result of an equal call that was running: nothing ran twice",
            "verified": ", as the tool's own verify found out",
            "cached": ", from the cache",
        }.get(str(origin), "")
        yield f"{format_time(row.at)}  {'ok' if row.ok else row.error}{took}{how}"
        if row.detail.get("recorded") is False:
            yield "  it took effect, but its result could not be recorded"
    for row in rows:
        if row.kind == "doubt_resolved":
            yield f"{format_time(row.at)}  {describe_decision(row)}"
        elif row.kind == "call_ignored":
            known = (
                "is running"
                if row.reason == "already_pending"
                else "was done before, and its recorded result is the answer"
            )
            yield f"{format_time(row.at)}  not run again: an equal call {known}"
        elif row.kind == "circuit_breaker_changed":
            yield f"{format_time(row.at)}  the circuit breaker of the tool is {row.reason}"
    if entry is not None:
        at = f" at {format_time(entry.settled_at)}" if entry.settled_at else ""
        yield f"in the ledger: {entry.state_at(time.time())}{at}"


def _describe_output(finished: Sequence[AuditRow], entry: Entry | None) -> Iterator[str]:
    if output := next((row.output for row in reversed(finished) if row.output is not None), None):
        yield _cut(output)
    elif entry is not None and entry.recorded is not None and entry.settled_at is not None:
        yield _cut(entry.recorded.to_result().for_model())
    elif finished:
        yield f"{finished[-1].output_length or 0:,} characters {NOT_STORED}"


def _find_outcome(finished: Sequence[AuditRow], entry: Entry | None, approvals: Sequence[Approval]) -> str:
    state = entry.state_at(time.time()) if entry is not None else None
    if state == "unknown":
        return "in doubt"
    if state == "committed":
        return "done"
    if finished:
        return "ok" if finished[-1].ok else str(finished[-1].error)
    return state or (approvals[-1].state if approvals else "not run again")


def _cut(text: str, limit: int = 2_000) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


def format_seconds(seconds: float) -> str:
    """A duration for people: `0.2 s`, `12 s`, `5 min`, `3 h`, `2 days`."""
    for limit, unit, name in ((1, 1, "s"), (100, 1, "s"), (6_000, 60, "min"), (172_800, 3_600, "h")):
        if abs(seconds) < limit:
            return f"{seconds / unit:.1f} {name}" if limit == 1 else f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} days"
