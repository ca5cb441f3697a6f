"""Recorded answers of tools: what a replay gives, that it executes nothing, and when a recording is made."""

import asyncio
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from handrail import (
    Control,
    Executor,
    Failure,
    LLMFunctionTool,
    Policy,
    Rule,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    as_tool,
    build_tool,
    tool,
)
from handrail.core import Redactor
from handrail.testing import Cassette, run_tool
from tests.testing.kit import (
    HERE,
    JSON,
    balance,
    call_and_raise,
    counted,
    counter,
    deadly,
    pay,
    recorded,
    replayed,
    shown,
)

# What a replay gives.


def test_a_replay_answers_as_the_tools_did_and_never_executes(tmp_path: Path) -> None:
    calls = (("balance", {}), ("pay", {"amount": 5}), ("balance", {"account": "other"}))
    real = recorded(tmp_path / "a.json", [balance, pay], *calls)
    again = replayed(tmp_path / "a.json", [balance, pay], *calls)

    assert list(map(shown, again)) == list(map(shown, real))
    assert [item.for_model() for item in again] == [item.for_model() for item in real]
    assert again[1].output == "paid 5"


def test_the_handlers_that_prove_it_would_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    run_tool(deadly(pay), amount=1)
    run_tool(deadly(balance))

    assert ended == [97, 97]


def test_a_default_that_was_left_out_is_the_same_call(tmp_path: Path) -> None:
    recorded(tmp_path / "a.json", [balance], ("balance", {}))

    (result,) = replayed(tmp_path / "a.json", [balance], ("balance", {"account": "main"}))
    assert result.ok


def test_an_error_for_the_model_is_raised_again(tmp_path: Path) -> None:
    recorded(tmp_path / "a.json", [pay], ("pay", {"amount": 101}))

    (result,) = replayed(tmp_path / "a.json", [pay], ("pay", {"amount": 101}))
    assert result.error == Failure(code="too_much", message="Too much.", retryable=True)


def test_any_other_exception_has_the_same_result_again(tmp_path: Path) -> None:
    (real,) = recorded(tmp_path / "a.json", [pay], ("pay", {"amount": -1}))

    (result,) = replayed(tmp_path / "a.json", [pay], ("pay", {"amount": -1}))
    assert result.error == real.error
    assert "ZeroDivisionError: the bank is broken" in (tmp_path / "a.json").read_text()


@pytest.mark.parametrize(
    "given",
    [
        ToolResult(output={"a": 1}, metadata={"m": [1]}, control=Control(mode="manual", lifespan="response")),
        ToolResult(error=Failure(code="x", message="No.", retryable=True), metadata={"why": "closed"}),
        ToolResult(error="No."),
        ToolResult(output=None),
        ToolResult(output="text", control=Control()),
    ],
)
def test_a_result_comes_back_whole_but_for_what_belongs_to_the_callers_own_code(
    given: ToolResult, tmp_path: Path
) -> None:
    @tool
    def act() -> ToolResult:
        """Act."""
        return structs.replace(given, context=object())

    (real,) = recorded(tmp_path / "a.json", [act], ("act", {}))
    (again,) = replayed(tmp_path / "a.json", [act], ("act", {}))

    assert shown(again) == shown(real)
    assert (again.output, again.error, dict(again.metadata), again.control) == shown(given)
    assert again.context is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(st.tuples(JSON, JSON), max_size=4))
def test_any_json_survives_and_the_file_is_the_same_when_it_is_recorded_again(
    calls: list[tuple[Any, Any]], tmp_path: Path
) -> None:
    outputs = iter([output for _, output in calls] * 2)

    def answer(arguments: dict[str, Any], context: Any) -> Any:
        return next(outputs)

    echo = build_tool({"name": "echo", "input_schema": {"type": "object", "properties": {"v": {}}}, "execute": answer})
    asked = [("echo", {"v": value}) for value, _ in calls]
    path = tmp_path / "a.json"
    real = recorded(path, [echo], *asked)
    first = path.read_bytes()
    redact = Redactor()

    assert [item.output for item in replayed(path, [echo], *asked)] == [redact.value(item.output) for item in real]
    recorded(path, [echo], *asked)
    assert path.read_bytes() == first


def test_equal_calls_replay_in_order_and_a_read_continues_with_its_last_result(tmp_path: Path) -> None:
    counted.clear()
    twice = [("counter", {})] * 2
    recorded(tmp_path / "a.json", [counter], *twice)

    assert [item.output for item in replayed(tmp_path / "a.json", [counter], *twice, *twice)] == [1, 2, 2, 2]


def test_what_has_consequences_is_not_replayed_more_often_than_it_was_recorded(tmp_path: Path) -> None:
    once = ("pay", {"amount": 5})
    recorded(tmp_path / "a.json", [pay], once, once)

    assert [item.output for item in replayed(tmp_path / "a.json", [pay], once, once)] == ["paid 5"] * 2
    with pytest.raises(AssertionError, match=r"'pay' was called with .*, but .* has only 2 recordings"):
        replayed(tmp_path / "a.json", [pay], once, once, once)


async def test_equal_calls_that_ran_together_keep_the_order_in_which_they_began(tmp_path: Path) -> None:
    second_is_done = asyncio.Event()
    begun: list[int] = []

    @tool(read_only=True, concurrency_safe=True)
    async def look() -> int:
        """Look."""
        begun.append(1)
        if len(begun) == 1:
            await second_is_done.wait()
            return 1
        second_is_done.set()
        return 2

    async def both(cassette: Cassette, one: Tool[..., Any]) -> list[Any]:
        with cassette:
            calls = [ToolCall(id=call_id, name="look") for call_id in ("1", "2")]
            return [result.output for result in await Executor(cassette.tools([one])).run_all(calls, HERE)]

    assert await both(Cassette(tmp_path / "a.json", mode="record"), look) == [1, 2]
    assert await both(Cassette(tmp_path / "a.json", mode="strict"), deadly(look)) == [1, 2]


def test_a_class_that_is_a_tool_is_recorded_without_what_it_gives_to_its_caller(tmp_path: Path) -> None:
    class greet(LLMFunctionTool[Any, Any]):
        """Greet somebody."""

        name: str
        loudly: bool = False

        async def model_tool_handler(self, context: Any) -> tuple[str, Any]:
            return f"Hello {self.name}", object()

    (real,) = recorded(tmp_path / "a.json", [greet], ("greet", {"name": "Ann"}))
    (again,) = replayed(tmp_path / "a.json", [as_tool(greet)], ("greet", {"name": "Ann", "loudly": False}))

    assert shown(again) == shown(real)
    assert (again.output, real.context is None, again.context) == ("Hello Ann", False, None)


def test_who_changes_a_result_does_not_change_the_next_one(tmp_path: Path) -> None:
    recorded(tmp_path / "a.json", [balance], ("balance", {}))

    with Cassette(tmp_path / "a.json") as cassette:
        (played,) = cassette.tools([balance])
        run_tool(played).output.clear()
        assert run_tool(played).output["amount"] == 100


def test_tools_keep_their_names_schemas_and_flags(tmp_path: Path) -> None:
    for mode in ("record", "replay"):
        wrapped = Cassette(tmp_path / "a.json", mode=mode).tools([balance, pay])
        for before, after in zip([balance, pay], wrapped, strict=True):
            changed = {
                field.name for field in fields(Tool) if getattr(before, field.name) != getattr(after, field.name)
            }
            assert changed == {"function", "handler"}
            assert before.__signature__ == after.__signature__


@pytest.mark.parametrize("mode", ["record", "replay"])
def test_a_tool_of_a_cassette_cannot_be_called_past_the_cassette(mode: Any, tmp_path: Path) -> None:
    (played,) = Cassette(tmp_path / "a.json", mode=mode).tools([pay])

    with pytest.raises(AssertionError, match="'pay' belongs to a cassette"):
        played(5)


def test_arguments_are_validated_before_the_cassette_is_asked(tmp_path: Path) -> None:
    recorded(tmp_path / "a.json", [pay], ("pay", {"amount": 5}))

    results = replayed(tmp_path / "a.json", [pay], ("pay", {"amount": "x"}), ("pay", {"amount": 5}))
    assert [result.ok for result in results] == [False, True]


async def test_verify_is_recorded_and_replayed_too(tmp_path: Path) -> None:
    asked: list[Any] = []

    def look(arguments: dict[str, Any], context: ToolContext[Any]) -> str:
        asked.append(arguments)
        return f"found {arguments['amount']}"

    @tool(verify=look)
    def send(amount: int) -> str:
        """Send an amount."""
        raise OSError("the line is dead")

    async def once(cassette: Cassette, one: Tool[..., Any]) -> Any:
        with cassette:
            executor = Executor(cassette.tools([one]), policy=Policy([Rule.allow("*")]))
            for call_id in ("1", "2"):
                call = ToolCall(id=call_id, name="send", arguments_json='{"amount": 5}')
                result = await executor.run(call, HERE)
            return result

    real = await once(Cassette(tmp_path / "a.json", mode="record"), send)
    assert asked
    seen = len(asked)
    again = await once(Cassette(tmp_path / "a.json"), deadly(send))

    assert (again.output, again.error) == (real.output, real.error)
    assert len(asked) == seen
    assert '"verify": true' in (tmp_path / "a.json").read_text()


async def test_a_plain_function_around_a_coroutine_function_is_recorded_when_it_is_done(tmp_path: Path) -> None:
    async def inner(payload: dict[str, Any]) -> str:
        if payload.get("bad"):
            raise ToolError("Bad.")
        return "done"

    schema = {"type": "object", "properties": {"bad": {"type": "boolean"}}}
    outer = build_tool({"name": "outer", "input_schema": schema, "execute": lambda payload, context: inner(payload)})

    async def both(cassette: Cassette, one: Tool[..., Any]) -> list[Any]:
        with cassette:
            (wrapped,) = cassette.tools([one])
            # An executor refuses such a tool; a loop written by hand does not.
            return [shown(await wrapped.execute(payload, HERE)) for payload in ({}, {"bad": True})]

    real = await both(Cassette(tmp_path / "a.json", mode="record"), outer)
    assert [output for output, *_ in real] == ["done", None]
    assert await both(Cassette(tmp_path / "a.json"), deadly(outer)) == real


# What is not recorded.


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (None, "there is no cassette"),
        ([], "has no recording of this kind"),
        ([("pay", {"amount": 6})], r'Recorded are: pay\({"amount":6}\)'),
        ([("balance", {})], r'Recorded are: balance\({"account":"main"}\)'),
    ],
)
def test_an_unrecorded_call_fails_at_the_end_and_says_what_is_recorded_and_how_to_record(
    known: Any, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    if known is not None:
        recorded(path, [pay, balance], *known)

    with pytest.raises(AssertionError, match=said) as caught:
        replayed(path, [pay, balance], ("pay", {"amount": 5}))
    for part in ("'pay' was called with {\"amount\":5}", str(path), "pytest --cassette=record"):
        assert part in str(caught.value)


def test_the_failure_of_a_test_is_the_cause_of_what_the_cassette_says(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no cassette") as caught:
        call_and_raise(Cassette(tmp_path / "a.json"), KeyError)
    assert isinstance(caught.value.__cause__, KeyError)


def test_one_who_wants_to_stop_is_let_go(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        call_and_raise(Cassette(tmp_path / "a.json"), KeyboardInterrupt)


def test_many_recordings_are_not_all_listed(tmp_path: Path) -> None:
    recorded(tmp_path / "a.json", [pay], *(("pay", {"amount": number}) for number in range(1, 40)))

    with pytest.raises(AssertionError, match="and 29 more"):
        replayed(tmp_path / "a.json", [pay], ("pay", {"amount": 50}))


def test_a_recording_that_was_not_used_fails_only_if_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    recorded(path, [pay, balance], ("pay", {"amount": 5}), ("balance", {}))

    replayed(path, [pay, balance], ("balance", {}))
    replayed(path, [pay, balance], ("balance", {}), ("pay", {"amount": 5}), mode="strict")
    with pytest.raises(AssertionError, match=r'not used: pay\({"amount":5}\)\. Record it'):
        replayed(path, [pay, balance], ("balance", {}), mode="strict")


def test_after_its_test_a_cassette_answers_nothing(tmp_path: Path) -> None:
    recorded(tmp_path / "a.json", [balance], ("balance", {}))
    for mode in ("replay", "record"):
        with Cassette(tmp_path / "a.json", mode=mode) as cassette:
            (late,) = cassette.tools([balance])

        assert not run_tool(late).ok
