"""The guarantees that the configuration decides: where calls are kept, for how long, and what the tools' flags say."""

from collections.abc import Generator
from typing import Any, Final

from handrail.cli.verify.guarantee import Guarantee, GuaranteeStatus
from handrail.core.tool import Tool
from handrail.execute.executor import Executor

_MIN_LEASE: Final = 1.0
"""Seconds. A shorter lease runs out while a busy process waits for its processor."""


def check_executor(executor: Executor, *, is_shared: bool, is_encrypted: bool, is_audited: bool) -> list[Guarantee]:
    """What holds for every tool."""
    timeouts = executor.timeouts
    return [
        _build(
            "store",
            "other processes know what was done, and it survives a restart",
            is_shared,
            'the ledger is in memory: Executor(…, store="sqlite:///handrail.db") or postgresql://…, or --store URL',
        ),
        _build(
            "audit",
            "every decision and every call is audited",
            is_audited,
            "nothing is audited: the audit is part of a store",
        ),
        _build(
            "encryption",
            "the arguments of open approvals are encrypted",
            is_encrypted,
            "they are stored in plain text until somebody has decided: open_store(…, encryption_key=…)",
        ),
        _build(
            "lease",
            "a process that is busy is not taken for dead",
            not is_shared or timeouts.lease >= _MIN_LEASE,
            f"Timeouts(lease={timeouts.lease:g}) runs out in a pause of the process; the default is 15 seconds",
        ),
        _build(
            "repeat_window",
            "a repetition is recognised for as long as its approval can be used",
            timeouts.repeat_window >= timeouts.approval,
            f"Timeouts(repeat_window={timeouts.repeat_window:g}) is shorter than approval={timeouts.approval:g}",
        ),
    ]


def check_tool(executor: Executor, tool: Tool[..., Any]) -> Generator[Guarantee]:
    """What the flags of one consequential tool, and the policy, say."""
    lease_grace = executor.timeouts.lease_grace
    names = list(tool.input_schema.get("properties", {}))
    yield _build(
        "key",
        "two calls for the same effect are recognised, also if the model words them differently",
        tool.key is not None or tool.repeatable or len(names) == 1,
        f"without a key, calls that differ in any argument ({', '.join(names) or 'no schema is known'}) are two "
        "effects: @tool(key=…) names what makes two calls the same, repeatable=True says that each is one of its own",
        tool,
    )
    yield _build(
        "recovery",
        "after a crash, nobody has to look what happened",
        tool.idempotent or tool.verify is not None,
        "the outcome of a call whose process died is unknown until a person resolves it: @tool(verify=…) finds out, "
        "idempotent=True runs again with the same idempotency key",
        tool,
    )
    yield _build(
        "takeover",
        "a call is taken over only once its first handler cannot take effect any more",
        tool.idempotent or tool.verify is None or lease_grace > 0,
        "Timeouts(lease_grace=0): a handler that was slow to end may take effect after `verify` has said no",
        tool,
    )
    yield _build(
        "policy",
        "the policy decides, and does not only observe",
        not executor.is_observed(tool),
        'mode="observe": the decision is recorded, and every call runs',
        tool,
    )


def _build(name: str, title: str, holds: bool, text: str, tool: Tool[..., Any] | None = None) -> Guarantee:
    status: GuaranteeStatus = "holds" if holds else "fails"
    return Guarantee(
        name=name, title=title, tool=None if tool is None else tool.name, status=status, text="" if holds else text
    )
