"""Promises of the executor's parts that no other test of this folder keeps: each would go unnoticed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from handrail import ConfigError, Executor, Failure, Policy, Rule, ToolError, ToolResult, tool
from handrail.execute import Budget, MemoryLedger
from handrail.execute.budget import LoopProgress, run_again
from handrail.execute.output_limit import OutputLimiter
from tests.execute.helpers import ALLOWED, Book, at, call, code_of


@tool
async def pay(amount: int = 1) -> str:
    """Pay."""
    if amount == 0:
        raise ConnectionError("lost")
    return "paid"


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


# Doubts


async def test_a_doubt_is_resolved_once_as_it_was_looked_at() -> None:
    executor = Executor([pay], policy=ALLOWED)
    await executor.run(call("pay", amount=0), at())
    [doubt] = await executor.doubts()
    about: dict[str, Any] = {"session_id": "s-1", "call_id": "c-1", "happened": True, "who": "bo"}
    with pytest.raises(ConfigError):
        await executor.resolve(**about, expected="another version")
    assert len(await executor.doubts()) == 1

    result = await executor.resolve(**about, expected=doubt.version)
    assert result.ok
    assert await executor.doubts() == []
    with pytest.raises(ConfigError):
        await executor.resolve(**about)


async def test_a_ledger_that_is_full_forgets_what_is_settled_and_never_a_doubt() -> None:
    executor = Executor([pay], policy=ALLOWED, ledger=MemoryLedger(max_entries=3, keep_for=0))
    await executor.run(call("pay", "lost", amount=0), at())
    for number in range(1, 6):
        assert (await executor.run(call("pay", f"c-{number}", amount=number), at())).ok

    assert [doubt.call_id for doubt in await executor.doubts()] == ["lost"]
    assert code_of(await executor.run(call("pay", "lost", amount=0), at())) == "outcome_unknown"


class Refusing(Book):
    """A ledger whose claim raises before there is anything to await."""

    def claim(self, *given: Any, **more: Any) -> Any:
        raise ConnectionError("the ledger is away")


class RefusingSlowly(Refusing):
    is_immediate = False


@pytest.mark.parametrize("can_claim_new", [True, False])
@pytest.mark.parametrize("ledger", [Refusing, RefusingSlowly])
async def test_a_ledger_that_raises_at_once_is_unavailable_and_nobody_cancelled_the_call(
    ledger: type[Book], can_claim_new: bool
) -> None:
    executor = Executor([pay], policy=ALLOWED, ledger=ledger(can_claim_new=can_claim_new))

    assert code_of(await executor.run(call("pay"), at())) == "unavailable"


# Tools and policy


def test_a_policy_that_can_never_apply_is_refused_and_the_old_one_stays() -> None:
    policy = Policy([Rule.deny("pay")])
    executor = Executor([pay], policy=policy)
    with pytest.raises(ConfigError, match="unknown tool 'pya'"):
        executor.replace_policy(Policy([Rule.allow("pya")]))

    assert executor.policy is policy
    assert executor.is_denied("pay", at())
    executor.replace_policy(ALLOWED)
    assert not executor.is_denied("pay", at())


def test_what_only_reads_is_known_and_what_nobody_knows_may_change_something() -> None:
    executor = Executor([pay, look], policy=ALLOWED)

    assert [executor.is_read_only(name) for name in ("look", "pay", "unknown")] == [True, False, False]


async def test_what_tools_have_opened_is_closed_once_and_others_have_nothing_to_close() -> None:
    closed: list[str] = []

    async def close() -> None:
        closed.append("closed")

    async with Executor([replace(pay, aclose=close), replace(look, aclose=close)], policy=ALLOWED) as executor:
        assert (await executor.run(call("look"), at())).ok
        assert closed == []
    assert closed == ["closed"]

    async with Executor([pay, look], policy=ALLOWED):
        pass


async def test_a_store_that_cannot_be_opened_means_that_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("this is no database " * 100)
    executor = Executor([pay], policy=ALLOWED, store=f"sqlite:///{tmp_path}/x.db")

    result = await executor.run(call("pay"), at())

    assert (result.ok, result.output, code_of(result)) == (False, None, "unavailable")


# What is written


class Written(Book):
    """A ledger that is written somewhere."""

    is_written = True


async def test_the_reason_of_a_question_is_redacted_where_it_is_written() -> None:
    reason = "for the card 4111 1111 1111 1111"
    ledger = Written()
    executor = Executor([pay], policy=Policy([Rule.ask("pay", by="operator", reason=reason)]), ledger=ledger)
    asked = await executor.run(call("pay"), at())
    await executor.approvals.approve(asked.approval.token, by="operator", who="bo")
    assert (await executor.run(call("pay"), at())).ok

    entry = await ledger.entry()
    assert entry is not None
    assert entry.decision is not None
    assert "4111" not in entry.decision.reason
    assert entry.decision.reason.startswith("for the card")


async def test_the_reason_of_a_permission_is_written_as_the_rule_says_it() -> None:
    ledger = Written()
    executor = Executor([pay], policy=Policy([Rule.allow("pay", reason="card 4111 1111 1111 1111")]), ledger=ledger)
    await executor.run(call("pay"), at())

    entry = await ledger.entry()
    assert entry is not None
    assert entry.decision is not None
    assert entry.decision.reason == "card 4111 1111 1111 1111"


# Loops


@pytest.mark.parametrize(
    ("code", "name", "origin", "is_open"),
    [
        ("outcome_unknown", "pay", "run", True),
        ("in_progress", "pay", "run", True),
        ("tool_execution_failed", "pay", "run", False),
        ("outcome_unknown", "pay", "replayed", False),
        ("outcome_unknown", "look", "run", False),
        ("outcome_unknown", "gone", "run", True),
    ],
)
def test_a_call_without_a_final_result_stops_a_loop(code: str, name: str, origin: Any, is_open: bool) -> None:
    progress = LoopProgress(Budget(), Executor([pay, look], policy=ALLOWED))
    result = ToolResult(error=Failure(code=code, message="x"), tool_name=name, origin=origin, call_id="c-1")

    assert progress.is_unsettled(result) is is_open
    assert progress.add([result]) == ({"c-1"} if is_open else set())
    progress.stop_if_unsettled([result])
    assert progress.stop_reason == (code if is_open else None)


class Strict:
    """A hook that refuses everything once it is told to."""

    is_closed = False

    def before(self, call: Any, tool: Any, context: Any) -> None:
        if self.is_closed:
            raise ToolError("closed today")


async def test_a_refusal_of_today_does_not_hide_what_was_done_before() -> None:
    hook = Strict()
    executor = Executor([pay], policy=ALLOWED, hooks=[hook])
    await executor.run(call("pay", "c-1"), at())
    hook.is_closed = True

    done, never = await run_again(executor, [call("pay", "c-1"), call("pay", "c-2", amount=2)], at())

    assert (done.output, done.origin) == ("paid", "replayed")
    assert code_of(never) == "refused_by_hook"


async def test_calls_that_are_made_again_have_their_own_result_of_today_if_they_ran_today() -> None:
    hook = Strict()

    @tool(key="amount")
    async def refund(amount: int) -> str:
        """Refund."""
        if amount == 0:
            raise ToolError("nothing to refund")
        return "refunded"

    executor = Executor([refund], policy=ALLOWED, hooks=[hook])
    new, refused = await run_again(executor, [call("refund", "c-1", amount=1), call("refund", "c-2", amount=0)], at())
    hook.is_closed = True
    [other] = await run_again(executor, [call("refund", "c-3", amount=1)], at())

    assert [(item.origin, code_of(item)) for item in (new, refused)] == [
        ("run", None),
        ("run", "tool_execution_failed"),
    ]
    assert code_of(other) == "refused_by_hook"  # What another call of the effect did is not its own result.


# Long outputs


def test_outputs_that_were_forgotten_are_forgotten_with_their_session_too() -> None:
    limiter = OutputLimiter(max_outputs=1)
    for text in ("a" * 500, "b" * 500):
        limited, _ = limiter.limit(text, max_chars=100, session_id="s-1")
        assert "read_more" in limited
    limiter.limit("c" * 500, max_chars=100, session_id="s-2")
    limiter.forget_session("s-1")
    limiter.forget_session("s-2")
    limiter.forget_session("s-2")

    again, _ = limiter.limit("d" * 500, max_chars=100, session_id="s-1")
    assert "read_more" in again


def keep(limiter: OutputLimiter, text: str, session_id: str = "s-1") -> str:
    """Cut a text, and return the handle that it can be read by."""
    limiter.has_read_more = True
    limited, _ = limiter.limit(text, max_chars=10, session_id=session_id)
    return limited.partition("handle='")[2].partition("'")[0]


async def test_as_many_long_outputs_are_kept_as_allowed_and_the_oldest_goes_first() -> None:
    async def list_kept(limiter: OutputLimiter, lengths: list[int]) -> list[bool]:
        handles = [keep(limiter, "x" * length) for length in lengths]
        read_more = Executor([limiter.read_more_tool()])
        results = [await read_more.run(call("read_more", handle, handle=handle), at()) for handle in handles]
        return [result.ok for result in results]

    assert await list_kept(OutputLimiter(max_outputs=2), [20, 20, 20]) == [False, True, True]
    assert await list_kept(OutputLimiter(max_outputs=2), [20, 20]) == [True, True]
    assert await list_kept(OutputLimiter(max_chars=100), [50, 50]) == [True, True]
    assert await list_kept(OutputLimiter(max_chars=100), [50, 51]) == [False, True]
    assert await list_kept(OutputLimiter(max_chars=100), [20, 30, 60]) == [False, True, True]
    assert await list_kept(OutputLimiter(max_chars=100), [300]) == [True]
    limiter = OutputLimiter(max_chars=100)
    keep(limiter, "x" * 90)
    limiter.forget_session("s-1")
    assert await list_kept(limiter, [60, 40]) == [True, True]


@pytest.mark.parametrize("wrong", [{"offset": -1}, {"limit": 0}])
async def test_the_model_may_try_again_to_read_on(wrong: dict[str, int]) -> None:
    limiter = OutputLimiter()
    handle = keep(limiter, "x" * 50)
    refused = await Executor([limiter.read_more_tool()]).run(call("read_more", handle=handle, **wrong), at())

    assert refused.error is not None
    assert (refused.error.code, refused.error.retryable) == ("invalid_arguments", True)


@pytest.mark.parametrize(
    ("value", "fits"), [("x" * 10, True), ("x" * 11, False), ([1, 2, 3, 44], True), ([1, 2, 3, 444], False)]
)
def test_an_output_of_exactly_the_limit_is_left_as_it_is(value: Any, fits: bool) -> None:
    limited, length = OutputLimiter().limit(value, max_chars=10, session_id="s-1")

    assert ((limited, length) == (value, 10)) is fits
