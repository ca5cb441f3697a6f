"""Who may not make a call does not get the result of another one of the same effect."""

import asyncio
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolContext, tool
from handrail.core import DecisionMade
from handrail.execute import Timeouts
from tests.execute.helpers import ALLOWED, Heard, Held, at, call, code_of
from tests.warped import warped

INTERNS = Policy([Rule.deny("secret", agent="intern", reason="not for interns"), Rule.allow("secret")])
SAME_OR_EQUAL = pytest.mark.parametrize("id", ["c-1", "c-2"])
both = pytest.mark.parametrize("read_only", [True, False])


def build_secret(held: Held, *, read_only: bool = False, **options: Any) -> Any:
    @tool(name="secret", read_only=read_only, concurrency_safe=True, cache_for=60 if read_only else None, **options)
    async def secret() -> str:
        """A secret."""
        return await held()

    return secret


class Guard:
    """A hook that lets one agent pass."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []

    def authorised(self, call: Any, tool: Any, decision: Any, context: ToolContext[Any]) -> None:
        self.seen.append(context.agent_id)
        if context.agent_id != "boss":
            raise PermissionError("not theirs")


async def get_of_another(executor: Executor, held: Held, id: str, state: str) -> Any:
    """What an intern gets of a call that their boss made, or makes."""
    first = asyncio.create_task(executor.run(call("secret", "c-1"), at(agent_id="boss")))
    await held.begun.wait()
    if state == "done":
        held.go.set()
        await first
    result = await executor.run(call("secret", id), at(agent_id="intern"))
    held.go.set()
    assert (await first).output == "done"
    return result


@both
@SAME_OR_EQUAL
@pytest.mark.parametrize("state", ["done", "running"])
async def test_an_agent_that_a_rule_denies_does_not_get_the_result_of_another(
    read_only: bool, id: str, state: str
) -> None:
    held, heard = Held(), Heard()
    executor = Executor([build_secret(held, read_only=read_only)], policy=INTERNS, listeners=[heard])

    result = await get_of_another(executor, held, id, state)

    assert code_of(result) == "permission_denied"
    assert "not for interns" in result.for_model()
    assert (result.decision.action, held.runs) == ("deny", 1)
    assert [event.decision.action for event in heard.of(DecisionMade)] == ["deny"]
    assert (await executor.run(call("secret", "c-1"), at(agent_id="boss"))).origin == "replayed"


@both
@SAME_OR_EQUAL
@pytest.mark.parametrize("state", ["done", "running"])
async def test_a_hook_is_asked_before_the_result_of_another_is_given_away(read_only: bool, id: str, state: str) -> None:
    held, guard = Held(), Guard()
    executor = Executor([build_secret(held, read_only=read_only)], policy=ALLOWED, hooks=[guard])

    result = await get_of_another(executor, held, id, state)

    assert code_of(result) == "refused_by_hook"
    assert (guard.seen, held.runs) == (["boss", "intern"], 1)


@SAME_OR_EQUAL
@pytest.mark.parametrize("state", ["done", "running"])
async def test_a_permission_check_is_asked_before_the_result_of_another_is_given_away(id: str, state: str) -> None:
    held = Held()

    def check(arguments: dict[str, Any], context: ToolContext[Any]) -> bool:
        return context.agent_id == "boss"

    executor = Executor([build_secret(held, permission_check=check)], policy=ALLOWED)

    result = await get_of_another(executor, held, id, state)

    assert (code_of(result), held.runs) == ("permission_denied", 1)


@SAME_OR_EQUAL
async def test_what_is_only_observed_is_given_away_all_the_same(id: str) -> None:
    held = Held()
    executor = Executor([build_secret(held)], policy=INTERNS, mode="observe")

    result = await get_of_another(executor, held, id, "done")

    assert (result.output, result.origin, held.runs) == ("done", "replayed", 1)


@pytest.mark.parametrize(
    "policy", [ALLOWED, Policy([Rule.ask("secret", by="operator", agent="intern"), Rule.allow("*")])]
)
async def test_who_may_make_the_call_or_would_only_be_asked_gets_what_was_done(policy: Policy) -> None:
    held = Held()
    executor = Executor([build_secret(held)], policy=policy)

    result = await get_of_another(executor, held, "c-2", "done")

    assert (result.output, result.origin, held.runs) == ("done", "replayed", 1)


@warped
@pytest.mark.parametrize("how", ["check", "hook"])
async def test_a_check_that_hangs_gives_nothing_away(how: str) -> None:
    held = Held()

    async def hang_unless_boss(*arguments: Any) -> None:
        if arguments[-1].agent_id != "boss":
            await asyncio.Event().wait()

    class Slow:
        async def authorised(self, call: Any, tool: Any, decision: Any, context: ToolContext[Any]) -> None:
            await hang_unless_boss(context)

    secret = build_secret(held, permission_check=hang_unless_boss if how == "check" else None)
    hooks = [Slow()] if how == "hook" else []
    executor = Executor([secret], policy=ALLOWED, hooks=hooks, timeouts=Timeouts(overhead=5))

    result = await get_of_another(executor, held, "c-2", "done")

    assert (code_of(result), result.output, held.runs) == ("unavailable", None, 1)
