"""Hooks may change a call before it is validated, and refuse it after it was authorised; one that fails refuses."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from handrail import ConfigError, Decision, Executor, Policy, Rule, Tool, ToolCall, ToolContext, ToolError, tool
from handrail.core import CallFinished
from tests.execute.helpers import ALLOWED, Heard, at, call, code_of

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@tool(read_only=True)
async def look(text: str) -> str:
    """Look."""
    ran.append(text)
    return text


@tool
async def act(text: str) -> str:
    """Act."""
    ran.append(text)
    return text


both = pytest.mark.parametrize("name", ["look", "act"])


class Hook:
    """A hook made of functions, sync or async."""

    def __init__(self, before: Any = None, authorised: Any = None) -> None:
        self.seen: list[Any] = []
        if before is not None:
            self.before: Any = before
        if authorised is not None:
            self.authorised: Any = authorised


def as_async(function: Callable[..., Any]) -> Callable[..., Any]:
    async def later(*arguments: Any) -> Any:
        await asyncio.sleep(0)
        answer = function(*arguments)
        return await answer if inspect.isawaitable(answer) else answer

    return later


def rail_with(*hooks: Any, policy: Policy = ALLOWED) -> tuple[Executor, Heard]:
    heard = Heard()
    return Executor([look, act], policy=policy, hooks=hooks, listeners=[heard]), heard


@both
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_hook_changes_arguments_before_they_are_validated(name: str, is_async: bool) -> None:
    def before(call: ToolCall, tool: Tool[..., Any], context: ToolContext[Any]) -> ToolCall | None:
        assert (tool.name, context.session_id) == (name, "s-1")
        return structs.replace(call, arguments_json='{"text": "mended"}')

    executor, heard = rail_with(Hook(before=as_async(before) if is_async else before))
    result = await executor.run(call(name, wrong=1), at())

    assert result.output == "mended"
    assert heard.of(CallFinished)[0].call.arguments_json == '{"text": "mended"}'


@both
async def test_a_call_that_a_hook_builds_anew_differs_in_its_arguments_only(name: str) -> None:
    def before(call: ToolCall, tool: Tool[..., Any], context: ToolContext[Any]) -> ToolCall:
        return ToolCall(id=call.id, name=call.name, arguments_json='{"text": "changed"}')

    executor, heard = rail_with(Hook(before=before))
    sent = ToolCall(
        id="r-1/0",
        name=name,
        arguments_json='{"text": "sent"}',
        response_id="r-1",
        provider_id="0",
        guideline_ids=("g",),
    )

    result = await executor.run(sent, at())

    assert (result.output, result.provider_id) == ("changed", "0")
    assert heard.of(CallFinished)[0].call == structs.replace(sent, arguments_json='{"text": "changed"}')


@both
async def test_a_call_that_an_operator_has_to_agree_to_stays_so_whatever_a_hook_makes_of_it(name: str) -> None:
    def before(call: ToolCall, tool: Tool[..., Any], context: ToolContext[Any]) -> ToolCall:
        return ToolCall(id=call.id, name=call.name, arguments_json=call.arguments_json)

    executor, _ = rail_with(Hook(before=before))
    sent = ToolCall(id="c-1", name=name, arguments_json='{"text": "sent"}', ask_operator="the guideline says so")

    result = await executor.run(sent, at())

    assert (code_of(result), ran) == ("approval_required", [])


@both
async def test_hooks_run_in_order_and_may_leave_a_call_as_it_is(name: str) -> None:
    def append(letter: str) -> Callable[..., ToolCall]:
        def before(call: ToolCall, *_: Any) -> ToolCall:
            return structs.replace(call, arguments_json=call.arguments_json.replace('"}', f'{letter}"}}'))

        return before

    executor, _ = rail_with(Hook(before=append("b")), Hook(before=lambda *_: None), Hook(before=append("c")))

    assert (await executor.run(call(name, text="a"), at())).output == "abc"


@both
async def test_a_hook_cannot_make_another_call_of_it(name: str) -> None:
    for other in ({"id": "c-2"}, {"name": "other"}):
        executor, _ = rail_with(Hook(before=lambda call, *_, other=other: structs.replace(call, **other)))
        result = await executor.run(call(name, text="a"), at())
        assert result.error is not None
        assert (result.error.code, result.call_id, result.tool_name) == ("refused_by_hook", "c-1", name)
    executor, _ = rail_with(Hook(before=lambda *_: "nonsense"))
    assert not (await executor.run(call(name, text="a"), at())).ok
    assert not ran


ANYTHING = [
    ValueError("v"),
    SystemExit(1),
    GeneratorExit(),
    asyncio.CancelledError(),
    ExceptionGroup("g", [ValueError()]),
    StopAsyncIteration(),
]


@both
@pytest.mark.parametrize("moment", ["before", "authorised"])
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("error", ANYTHING, ids=lambda error: type(error).__name__)
async def test_a_hook_that_fails_in_any_way_refuses(
    name: str, moment: str, is_async: bool, error: BaseException
) -> None:
    def fail(*_: Any) -> None:
        raise error

    executor, heard = rail_with(Hook(**{moment: as_async(fail) if is_async else fail}))
    result = await executor.run(call(name, text="a"), at())

    assert result.error is not None
    assert result.error.code == "refused_by_hook"
    assert "hook failed" in result.error.message
    assert not ran
    assert [event.result for event in heard.of(CallFinished)] == [result]
    assert not executor.running_calls("s-1")


@both
@pytest.mark.parametrize("moment", ["before", "authorised"])
async def test_a_hook_may_refuse_in_words_for_the_model(name: str, moment: str) -> None:
    def refuse(*_: Any) -> None:
        raise ToolError("Not on a Sunday.")

    executor, _ = rail_with(Hook(**{moment: refuse}))
    result = await executor.run(call(name, text="a"), at())

    assert result.error is not None
    assert (result.error.code, result.error.message) == ("refused_by_hook", "Not on a Sunday.")
    assert not ran


@both
async def test_after_authorise_a_hook_sees_the_decision_and_only_what_may_run(name: str) -> None:
    seen: list[tuple[str, str]] = []

    def look_on(call: ToolCall, tool: Tool[..., Any], decision: Decision, context: ToolContext[Any]) -> None:
        seen.append((call.id, decision.action))

    executor, _ = rail_with(Hook(authorised=look_on), policy=Policy([Rule.deny("*", tenant="acme"), Rule.allow("*")]))
    await executor.run(call(name, "c-1", text="a"), at())
    await executor.run(call(name, "c-2", text="b"), at(tenant_id="acme"))

    assert seen == [("c-1", "allow")]


async def test_a_refusal_by_a_hook_uses_up_no_approval() -> None:
    closed = [True]

    def refuse(*_: Any) -> None:
        if closed:
            raise ToolError("Closed.")

    for name in ("look", "act"):
        closed[:] = [True]
        executor, _ = rail_with(Hook(authorised=refuse), policy=Policy([Rule.ask("*", by="operator")]))
        asked = await executor.run(call(name, text="a"), at())
        await executor.approvals.approve(asked.approval.token, by="operator", who="ann")
        assert (await executor.run(call(name, text="a"), at())).error is not None
        closed.clear()
        assert (await executor.run(call(name, text="a"), at())).output == "a"


async def test_calls_start_in_their_order_however_long_their_hooks_take() -> None:
    gates = [asyncio.Event() for _ in range(3)]

    async def before(call: ToolCall, *_: Any) -> None:
        await gates[int(call.id)].wait()

    executor, _ = rail_with(Hook(before=before))
    running = asyncio.create_task(executor.run_all([call("act", str(n), text=str(n)) for n in range(3)], at()))
    for gate in reversed(gates):
        gate.set()
        await asyncio.sleep(0)

    assert [item.output for item in await running] == ["0", "1", "2"]
    assert ran == ["0", "1", "2"]


# What would never be called


class Misspelt:
    """A hook that would refuse nothing."""

    def authorized(self, call: Any, tool: Any, decision: Any, context: Any) -> None:
        raise AssertionError("nobody calls it")


class MisspeltBeside(Misspelt):
    """A hook of which a part would be called."""

    def before(self, call: Any, tool: Any, context: Any) -> None:
        return None


class Unrelated:
    """An object that is no hook."""

    def close(self) -> None:
        """Close."""


class NotCallable:
    """A hook with a name that is near, and is no method."""

    authorized = "by the host"

    def before(self, call: Any, tool: Any, context: Any) -> None:
        return None


class TooFew:
    """A hook that takes other parameters."""

    def authorised(self, call: Any) -> None:
        return None


class Loose:
    """A hook that takes anything."""

    def before(self, *arguments: Any) -> None:
        return None


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        (Misspelt(), "the hook Misspelt has 'authorized', which is never called; did you mean 'authorised'?"),
        (MisspeltBeside(), "has 'authorized', which is never called"),
        (Unrelated(), "the hook Unrelated has neither 'before' nor 'authorised', and is never called; it has: close."),
        (object(), "the hook object has neither 'before' nor 'authorised', and is never called."),
        (Loose, "give Loose\\(\\), not the class"),
        (TooFew(), "TooFew.authorised must take \\(call, tool, decision, context\\)"),
    ],
)
def test_a_hook_that_would_never_be_called_is_refused_in_words(hook: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Executor([look], hooks=[hook])


@pytest.mark.parametrize("hook", [Loose(), NotCallable(), Hook(before=print), Hook(authorised=dict)])
def test_any_object_with_one_of_the_methods_is_a_hook(hook: Any) -> None:
    assert Executor([look], hooks=[hook])


@both
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("answer", "passes"), [(None, True), (True, True), (False, False), ("deny", False), (0, False), (1, False)]
)
async def test_only_none_and_true_of_a_hook_let_a_call_run(
    name: str, answer: Any, passes: bool, is_async: bool
) -> None:
    def authorised(*_: Any) -> Any:
        return answer

    executor, _ = rail_with(Hook(authorised=as_async(authorised) if is_async else authorised))
    result = await executor.run(call(name, text="x"), at())

    assert (result.ok, ran) == ((True, ["x"]) if passes else (False, []))
    assert result.ok or (result.error is not None and result.error.code == "refused_by_hook")
