"""Several real processes share one database: one of them runs an effect, and one that is killed leaves the truth."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, Tool, ToolCall, ToolContext, ToolResult, tool
from handrail.execute import Timeouts
from handrail.store import SqlStore, open_store
from tests.store.programs import APPROVE, KILLED_IN_ITS_HANDLER, PAY, run_program, start_program

pytestmark = pytest.mark.timeout(600)


def paying(effects: Path, *, happened: bool | None = None) -> Tool[..., Any]:
    """The tool of the programs, in this process; `happened` is what `verify` says."""

    async def verify(arguments: Any, context: ToolContext[Any]) -> bool | None:
        return happened

    @tool(key=("invoice",), timeout=0.5, verify=verify)
    async def pay(invoice: str, context: ToolContext[Any]) -> str:
        """Pay an invoice."""
        with effects.open("a") as file:
            file.write(f"{context.idempotency_key}\n")
        return f"paid {invoice}"

    return pay


def a_rail(
    store: SqlStore, effects: Path, *, policy: Policy | None = None, timeouts: Timeouts | None = None, **options: Any
) -> Executor:
    return Executor(
        [paying(effects, **options)],
        policy=policy or Policy([Rule.allow("pay")]),
        ledger=store.ledger,
        approvals=store.approvals,
        timeouts=timeouts or Timeouts(in_progress=0),
    )


def a_call(id_: str) -> ToolCall:
    return ToolCall(id=id_, name="pay", arguments_json='{"invoice":"i-1"}')


def a_context(turn: int = 1) -> ToolContext[Any]:
    return ToolContext(session_id="s-1", customer_id="c-1", turn=turn)


def code(result: ToolResult) -> str | None:
    return result.error.code if result.error else None


def lines(effects: Path) -> list[str]:
    return effects.read_text().split() if effects.exists() else []


async def started(url: str, effects: Path, how: str = "pay", turn: int = 1) -> asyncio.subprocess.Process:
    """A process that will pay when it is told to."""
    program = await start_program(PAY, url, str(effects), how, str(turn))
    assert program.stdout is not None
    assert await program.stdout.readline() == b"ready\n"
    return program


async def told(program: asyncio.subprocess.Process) -> list[Any]:
    output, _ = await program.communicate(b"go\n")
    assert program.returncode == 0
    return json.loads(output)


async def test_of_processes_that_race_for_one_effect_exactly_one_runs_it(url: str, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    racers = [await started(url, effects) for _ in range(3)]

    answers = await asyncio.gather(*(told(racer) for racer in racers))

    assert len(lines(effects)) == 1
    assert answers.count([None, False]) == 1
    assert all(answer in ([None, False], [None, True]) for answer in answers)  # The others wait for the true answer.


@pytest.mark.parametrize(("how", "happened"), [("hang before", False), ("hang after", True)])
async def test_a_process_killed_between_claim_and_outcome_leaves_an_entry_that_says_so(
    url: str, tmp_path: Path, how: str, happened: bool
) -> None:
    effects = tmp_path / "effects"
    program = await started(url, effects, how)
    assert program.stdin is not None
    assert program.stdout is not None
    async with open_store(url) as store:
        executor = a_rail(store, effects)
        program.stdin.write(b"go\n")
        assert await program.stdout.readline() == b"running\n"
        assert code(await executor.run(a_call("while it runs"), a_context())) == "in_progress"
        program.send_signal(signal.SIGKILL)
        await program.wait()

        said = [code(await executor.run(a_call("0"), a_context()))]
        while said[-1] == "in_progress":  # Until its lease is over.
            await asyncio.sleep(0.05)
            said.append(code(await executor.run(a_call(str(len(said))), a_context())))

        assert said[-1] == "outcome_unknown"
        for number in range(3):  # And so it stays, in every turn, for everybody.
            later = await a_rail(store, effects).run(a_call(f"later-{number}"), a_context(turn=number))
            assert code(later) == "outcome_unknown"
        assert len(lines(effects)) == happened

        # Only who can find out what happened may go on, once the dead one was seen to be dead for a lease.
        finder = a_rail(store, effects, happened=happened, timeouts=Timeouts(lease=0.5, in_progress=30))
        known = await finder.run(a_call("found out"), a_context())
        assert known.ok
        assert (known.origin == "verified") == happened
        assert len(lines(effects)) == 1


async def test_an_intended_second_payment_in_a_later_turn_runs_with_an_approval(url: str, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    assert await told(await started(url, effects, turn=1)) == [None, False]

    async with open_store(url) as store:
        executor = a_rail(store, effects)
        assert (await executor.run(a_call("same turn"), a_context(1))).origin == "replayed"
        asked = await executor.run(a_call("again"), a_context(2))
        assert code(asked) == "approval_required"
        assert len(lines(effects)) == 1

        await store.approvals.approve(asked.approval.token, by="customer", who="c-1")
        again = await executor.run(a_call("again"), a_context(3))

        assert again.output == "paid i-1"
        first, second = lines(effects)
        assert first != second  # Nor is it swallowed downstream: the repetition has a key of its own.
        assert (await executor.run(a_call("once more"), a_context(3))).origin == "replayed"
        assert code(await executor.run(a_call("and again"), a_context(4))) == "approval_required"
        assert len(lines(effects)) == 2


async def test_a_call_is_approved_from_another_process(url: str, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    async with open_store(url) as store:
        executor = a_rail(store, effects, policy=Policy([Rule.ask("pay", by="operator")]))
        assert code(await executor.run(a_call("c-1"), a_context())) == "approval_required"

        await run_program(APPROVE, url)

        assert (await executor.run(a_call("c-1"), a_context())).output == "paid i-1"
        assert len(lines(effects)) == 1
        assert await store.approvals.pending() == []


async def test_a_process_that_is_killed_in_a_handler_leaves_what_it_had_begun_in_the_audit(url: str) -> None:
    program = await start_program(KILLED_IN_ITS_HANDLER, url)
    await program.communicate()
    assert program.returncode == -signal.SIGKILL

    async with open_store(url) as store:
        rows = await store.audit.query(call_id="call-1")
        assert sorted((row.kind, row.tool, row.customer_id) for row in rows) == [
            ("approval_used", "pay", "c-1"),
            ("call_started", "pay", "c-1"),
        ]
