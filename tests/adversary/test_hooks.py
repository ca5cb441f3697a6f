"""A hook that would never be called refuses nothing: it is an error when the executor is built."""

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from handrail import ConfigError, Executor, tool
from handrail.authorize import Hook
from tests.execute.helpers import ALLOWED, at, call, code_of


def hook(**methods: Any) -> Any:
    return SimpleNamespace(**methods)


class Inherits(Hook):
    def authorized(self, call: Any, tool: Any, decision: Any, context: Any) -> None:
        raise AssertionError("it is never called")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (hook(authorized=lambda *_: None), "has 'authorized', which is never called; did you mean 'authorised'"),
        (hook(authorise=lambda *_: None), "did you mean 'authorised'"),
        (hook(Before=lambda *_: None), "did you mean 'before'"),
        (hook(before=lambda *_: None, authorized=lambda *_: None), "did you mean 'authorised'"),
        (Inherits(), "did you mean 'authorised'"),
        (hook(after=lambda *_: None), "has neither 'before' nor 'authorised', and is never called; it has: after"),
        (object(), "has neither 'before' nor 'authorised'"),
        (Hook, r"give Hook\(\), not the class"),
        (hook(before=lambda call: call), r"before must take \(call, tool, context\): too many positional"),
        (hook(authorised=lambda call, tool, context: None), r"must take \(call, tool, decision, context\)"),
        (hook(before="nothing"), "must take"),
    ],
)
def test_a_hook_that_is_not_called_as_it_expects_is_an_error(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Executor(hooks=[given])


async def test_other_methods_and_attributes_of_a_hook_are_its_own() -> None:
    ran: list[str] = []

    @tool(read_only=True)
    def act() -> None:
        """Act."""
        ran.append("acted")

    seen = hook(before=lambda *_: ran.append("asked"), limit=5, after=lambda: ran.append("after"), reset=lambda: None)
    executor = Executor([act], policy=ALLOWED, hooks=[seen])

    assert (await executor.run(call("act"), at())).ok
    assert ran == ["asked", "acted"]


@pytest.mark.parametrize("arguments", [{"amount": 1}, None, b"{}", 5])
@pytest.mark.parametrize("read_only", [True, False])
async def test_arguments_of_a_hook_that_are_no_text_refuse_the_call(arguments: Any, read_only: bool) -> None:
    ran: list[int] = []

    @tool(read_only=read_only)
    def act(amount: int = 0) -> None:
        """Act."""
        ran.append(amount)

    changing = hook(before=lambda call, *_: structs.replace(call, arguments_json=arguments))
    executor = Executor([act], policy=ALLOWED, hooks=[changing])

    assert code_of(await executor.run(call("act"), at())) == "refused_by_hook"
    assert not ran
