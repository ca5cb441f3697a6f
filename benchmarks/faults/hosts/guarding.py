"""What the guarded hosts share: an executor on SQLite whose questions a person reads in full."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.faults.world import World
from handrail import Executor, Policy, Rule, ToolContext, ToolFlags
from handrail.execute import Timeouts
from handrail.store import open_store

APPROVE = "approve"
"""The key of the question in a result of an MCP server that asks the client's user."""
CUSTOMER = "c-1"
SESSION = "s-1"
LEASE = 0.5
"""Seconds until a call of a process that died is in doubt. The default is longer; here somebody waits for it."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One question, as `cells.Question` wants it."""

    id: str
    arguments: Mapping[str, Any]
    text: str
    is_doubt: bool = False


class Guard:
    """An executor with its store, opened on first use."""

    def __init__(self, world: World, *, timeout: float, url: str = "") -> None:
        self.world = world
        self._timeout = timeout
        self._url = url or f"sqlite+aiosqlite:///{world.directory / 'handrail.db'}"
        self._stack = AsyncExitStack()
        self._executor: Executor | None = None

    async def executor(self) -> Executor:
        """The executor; `pay` is declared, whoever runs it."""
        if self._executor is None:
            store = await self._stack.enter_async_context(open_store(self._url))
            self._executor = await self._stack.enter_async_context(
                Executor(
                    policy=Policy([Rule.ask("pay", by="customer")]),
                    ledger=store.ledger,
                    approvals=store.approvals,
                    declared={"pay": ToolFlags(key="invoice_id", timeout=self._timeout)},
                    timeouts=Timeouts(lease=LEASE, lease_grace=LEASE, in_progress=5.0),
                )
            )
        return self._executor

    def context(self, turn: int) -> ToolContext[None]:
        """Where a call happens."""
        return ToolContext(session_id=SESSION, customer_id=CUSTOMER, turn=turn)

    async def questions(self) -> list[Asked]:
        """The pending approvals, with all that a person is shown, and the calls in doubt."""
        executor = await self.executor()
        pending = await executor.approvals.pending(session_id=SESSION)
        doubts = await executor.doubts(session_id=SESSION)
        return [
            *(
                Asked(
                    id=approval.token,
                    arguments=dict(approval.arguments),
                    text=f"{approval.tool} {approval.question or ''}",
                )
                for approval in pending
            ),
            *(
                Asked(id=doubt.call_id, arguments={}, text=f"{doubt.tool} is in doubt", is_doubt=True)
                for doubt in doubts
            ),
        ]

    async def decide(self, question: Asked, *, yes: bool) -> None:
        """A customer's decision, in the executor's own store."""
        approvals = (await self.executor()).approvals
        if yes:
            await approvals.approve(question.id, by="customer", who=CUSTOMER)
        else:
            await approvals.deny(question.id, by="customer", who=CUSTOMER, reason="I did not want that")

    async def resolve(self, question: Asked, *, happened: bool) -> None:
        """What an operator found out, as `handrail doubts resolve` records it."""
        executor = await self.executor()
        await executor.resolve(session_id=SESSION, call_id=question.id, happened=happened, who="ann")

    async def aclose(self) -> None:
        """Close the store."""
        await self._stack.aclose()
