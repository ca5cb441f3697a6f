"""Bad definitions are errors that name what is wrong; bad judges are insights, and never a call."""

import asyncio
import contextlib
import time
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import pytest

from handrail import Agent, ConfigError, Executor, Guideline, Policy, Rule, ToolNotFoundError, tool
from handrail.chat import FileSessionStore
from handrail.errors import ProviderDownError
from handrail.guide import (
    Claim,
    Draft,
    GuidelineMatch,
    GuideSettings,
    ParameterOptions,
    Plan,
    ScriptedJudge,
    ToolVerdict,
)
from handrail.guide.judges.provider import render_reply_request
from handrail.providers import Usage
from tests.guide.kit import (
    SEND_500,
    Bank,
    agent_with,
    applies,
    get_balance,
    needs,
    open_session,
    plan,
    scripted,
    transfer_money,
)
from tests.warped import warped


@pytest.mark.proves("GC-05")
async def test_unknown_ids_are_named_with_what_was_probably_meant() -> None:
    agent = agent_with(scripted())
    guideline = await agent.create_guideline("Customer asks", id="balance")

    with pytest.raises(ConfigError, match="unknown tool 'get_balanse'; did you mean 'get_balance'"):
        await agent.create_guideline("x", tools=["get_balanse"])
    with pytest.raises(ConfigError, match="unknown guideline 'balanc'; did you mean 'balance'"):
        await agent.associate_tool_with_guideline(tool_id="get_balance", guideline_id="balanc")
    with pytest.raises(ConfigError, match="unknown tool 17"):
        await agent.associate_tool_with_guideline(tool_id=17, guideline_id=guideline.id)
    with pytest.raises(ConfigError, match="unknown guideline"):
        await agent.create_relationship(guideline, "entails", "nobody")
    tied = await agent.associate_tool_with_guideline(tool_id="get_balance", guideline_id="balance")
    assert tied.tools == ("get_balance",)


async def test_a_second_guideline_with_the_same_id_is_an_error() -> None:
    agent = agent_with(scripted())
    await agent.create_guideline("A", id="one")
    with pytest.raises(ConfigError, match="two guidelines have the id 'one'"):
        await agent.create_guideline("B", id="one")
    with pytest.raises(ConfigError, match="two guidelines have the id 'x'"):
        Agent(judge=scripted(), guidelines=[Guideline(condition="A", id="x"), Guideline(condition="B", id="x")])


@pytest.mark.parametrize("kind", ["entails", "depends_on", "depends_on_any", "takes_priority_over", "disambiguates"])
async def test_relationships_in_a_circle_are_refused_when_they_are_made(kind: Any) -> None:
    agent = agent_with(scripted())
    a, b, c = [await agent.create_guideline(item) for item in "abc"]
    await agent.create_relationship(a, kind, b)
    await agent.create_relationship(b, kind, c)
    with pytest.raises(ConfigError, match=f"cycle: g3 {kind} g1 {kind} g2 {kind} g3"):
        await agent.create_relationship(c, kind, a)
    with pytest.raises(ConfigError, match="itself"):
        await agent.create_relationship(a, kind, a)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"condition": "x" * 100_000}, "condition must be at most 10000 characters, got 100000"),
        ({"condition": " "}, "condition must not be empty"),
        ({"condition": 5}, "condition must be a text, got int"),
        ({"condition": "a \ud800"}, "UTF-8"),
        ({"condition": "a", "criticality": "urgent"}, "criticality must be one of low, medium, high, got 'urgent'"),
        ({"condition": "a", "tools": [5]}, "a tool must be a name or a Tool, got 5"),
    ],
)
async def test_a_guideline_that_makes_no_sense_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        await agent_with(scripted()).create_guideline(**options)


def test_an_agent_needs_somebody_who_judges_and_one_place_for_its_tools() -> None:
    with pytest.raises(ConfigError, match="provider or a judge"):
        Agent(tools=[get_balance]).session(session_id="s")
    with pytest.raises(ConfigError, match="executor must be passed without"):
        Agent(judge=scripted(), executor=Executor([]), tools=[get_balance])
    with pytest.raises(ConfigError, match="match_first must be"):
        GuideSettings(match_first="sometimes")
    with pytest.raises(ConfigError, match="max_iterations must be at least 1, got 0"):
        GuideSettings(max_iterations=0)


GARBAGE: list[Any] = [
    None,
    "Sure, I will do that!",
    Plan(matches=5),
    Plan(matches=("g1",)),
    Plan(matches=(GuidelineMatch("g1", "yes"),)),
    Plan(applies("g1"), ("get_balance",)),
    Plan(applies("g1"), (ToolVerdict("get_balance", "RUN IT", {"account": "a"}),)),
    Plan(applies("g1"), (ToolVerdict("get_balance", "needs_to_run", "account=a"),)),
    Plan(applies("g1"), (ToolVerdict("get_balance", "needs_to_run", {"account": "a"}, {}, "", "perhaps"),)),
    Plan(applies("g1"), (needs("get_balance", {"account": "a"}),) * 10_000),
    ValueError("a bug"),
]


@pytest.mark.parametrize("answer", GARBAGE, ids=lambda answer: repr(answer)[:40])
async def test_a_judge_that_responds_with_garbage_is_asked_again_with_the_error_three_times_at_most(
    answer: Any,
) -> None:
    errors: list[str] = []

    class Garbage(ScriptedJudge):
        async def plan(self, request: Any) -> Plan:
            errors.append(request.error)
            if isinstance(answer, Exception):
                raise answer
            return answer

    bank = Bank()
    agent = agent_with(Garbage([], ["What can I do for you?"]))
    await agent.create_guideline("Customer asks for the balance", tools=[get_balance])
    result = await open_session(agent, bank).send("How much?")

    assert len(errors) == 3
    assert errors[0] == ""
    assert all(errors[1:])
    assert (bank.reads, result.text, result.stop_reason) == ([], "What can I do for you?", "completed")
    (evaluation,) = result.insights.evaluations
    assert (evaluation.tool, evaluation.state) == ("get_balance", "cannot_run")
    assert "no usable response" in evaluation.reason


async def test_a_judge_that_corrects_its_response_is_used() -> None:
    answers: list[Any] = ["garbage", plan(["g1"], needs("get_balance", {"account": "a"}))]

    class Mending(ScriptedJudge):
        async def plan(self, request: Any) -> Plan:
            return answers.pop(0)

    bank = Bank()
    agent = agent_with(Mending([], ["Fine."]))
    await agent.create_guideline("Customer asks for the balance", tools=[get_balance])
    result = await open_session(agent, bank).send("How much?")

    assert (bank.reads, result.trace.model_calls) == (["a"], 3)


BAD: Any = object()


@pytest.mark.parametrize(
    "draft",
    [
        None,
        Draft(""),
        Draft(BAD),
        Draft("x", new_matches=BAD),
        Draft("x", new_matches=(GuidelineMatch(BAD),)),
        Draft("x", new_matches=(GuidelineMatch("g1", BAD),)),
        Draft("x", new_matches=(GuidelineMatch("g1", True, BAD),)),
        Draft("x", claims=(Claim(BAD),)),
        Draft("x", claims=(Claim("get_balance", BAD),)),
        Draft("x", claims=(Claim("get_balance", {"account": BAD}),)),
        Draft("x" * 200_000),
        KeyError(),
    ],
)
async def test_a_reply_that_cannot_be_used_is_replaced_by_a_plain_text(draft: Any) -> None:
    class Garbage(ScriptedJudge):
        async def reply(self, request: Any) -> Draft:
            if isinstance(draft, Exception):
                raise draft
            return draft

    agent = agent_with(Garbage([plan(["g1"], needs("get_balance", {"account": "a"}))]))
    await agent.create_guideline("Customer asks for the balance", tools=[get_balance])
    result = await open_session(agent).send("How much?")

    assert result.text == "get balance: 20000 EUR"
    assert result.trace.reply.replaced


@pytest.mark.parametrize(
    "counted", [{"usage": BAD}, {"usage": Usage(input=BAD)}, {"usage": Usage(cost=BAD)}, {"model_calls": BAD}]
)
async def test_a_judge_that_counts_nonsense_is_counted_as_one_call(counted: dict[str, Any]) -> None:
    bank = Bank()
    planned = Plan(applies("g1"), (needs("transfer_money", SEND_500),), **counted)
    judge = scripted([planned, Plan(**counted)], [Draft("I sent 500 to Sophie.", **counted)])
    agent = agent_with(judge, policy=Policy([Rule.allow("*")]))
    await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money])
    result = await open_session(agent, bank).send("Send 500 to Sophie")

    assert (bank.sent, result.text) == ([("Sophie", 500)], "I sent 500 to Sophie.")
    assert (result.usage, result.trace.model_calls) == (Usage(), 2)


async def test_a_judge_that_hangs_is_not_waited_for() -> None:
    class Hanging(ScriptedJudge):
        async def plan(self, request: Any) -> Plan:
            await asyncio.sleep(3600)
            raise AssertionError

        reply = plan

    agent = agent_with(Hanging(), settings=GuideSettings(judge_timeout=0.01))
    await agent.create_guideline("Customer asks for the balance", tools=[get_balance])
    result = await asyncio.wait_for(open_session(agent).send("How much?"), 20)

    assert result.stop_reason == "completed"
    assert "no response within 0.01 seconds" in result.insights.evaluations[0].reason


async def test_a_judge_that_cancels_itself_does_not_cancel_the_turn() -> None:
    class Odd(ScriptedJudge):
        async def plan(self, request: Any) -> Plan:
            raise asyncio.CancelledError

    agent = agent_with(Odd([], ["Hello."]))
    await agent.create_guideline("Customer asks for the balance", tools=[get_balance])

    assert (await open_session(agent).send("Hi.")).text == "Hello."


async def swallow() -> None:
    """Goes on when it is cancelled; it ends with the loop."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()


class Odd(BaseException):
    pass


ODD = [asyncio.CancelledError(), SystemExit(3), GeneratorExit(), Odd(), BaseExceptionGroup("odd", [Odd()]), swallow]


@pytest.mark.parametrize(
    ("where", "failure"),
    [
        *product(("matches", "on_match", "variable", "retriever", "choices", "adapter"), ODD),
        *product(("judge",), (ODD[0], swallow)),
    ],
    ids=lambda one: one if isinstance(one, str) else getattr(one, "__name__", type(one).__name__),
)
@warped
async def test_no_function_of_the_developer_ends_a_turn_or_keeps_it_waiting(where: str, failure: Any) -> None:
    async def fail(*_: Any) -> Any:
        if failure is swallow:
            await swallow()
        raise failure

    class OddJudge(ScriptedJudge):
        async def plan(self, request: Any) -> Plan:
            return await fail()

    options: dict[str, Any] = {where: fail} if where in ("choices", "adapter") else {}

    @tool(read_only=True)
    async def pick(color: Annotated[str, ParameterOptions(**options)]) -> str:
        """Pick."""
        return color

    plans, replies = [plan(["g1"], needs("pick", {"color": "red"}))] * 3, ["Well."] * 3
    agent = agent_with(OddJudge(plans, replies) if where == "judge" else ScriptedJudge(plans, replies), [pick])
    guideline: dict[str, Any] = {where: fail} if where in ("matches", "on_match") else {}
    await agent.create_guideline("Customer picks", tools=[pick], **guideline)
    if where == "variable":
        await agent.create_variable("odd", read=fail)
    elif where == "retriever":
        agent.retriever(fail)
    result = await open_session(agent).send("Red.")

    assert (result.stop_reason, result.text) == ("completed", "Well.")


async def test_a_provider_that_is_down_raises_and_the_turn_can_be_resumed() -> None:
    class Down(ScriptedJudge):
        async def plan(self, request: Any) -> Plan:
            if not self.plan_requests:
                self.plan_requests.append(request)
                raise ProviderDownError("down")
            return await super().plan(request)

    bank = Bank()
    agent = agent_with(Down([plan(["g1"], needs("get_balance", {"account": "a"}))], ["Fine."]))
    await agent.create_guideline("Customer asks for the balance", tools=[get_balance])
    session = open_session(agent, bank)
    with pytest.raises(ProviderDownError):
        await session.send("How much?")

    assert ((await session.resume()).text, bank.reads) == ("Fine.", ["a"])


async def test_verdicts_about_tools_that_are_no_candidates_and_unknown_guidelines_change_nothing() -> None:
    bank = Bank()
    verdicts = [needs("transfer_money", {"recipient_name": "x", "amount": 1}), needs("rm_rf", {}), needs("", {})]
    judge = scripted([plan(["g1", "g9", ""], *verdicts)], ["Hello."])
    agent = agent_with(judge, policy=Policy([Rule.allow("*")]))
    await agent.create_guideline("Customer asks for the balance", tools=[get_balance])
    result = await open_session(agent, bank).send("Hi.")

    assert (bank.sent, bank.reads, result.results) == ([], [], ())
    states = {evaluation.tool: evaluation.state for evaluation in result.insights.evaluations}
    assert states == {
        "transfer_money": "cannot_run",
        "rm_rf": "cannot_run",
        "": "cannot_run",
        "get_balance": "not_applicable",
    }
    assert any("unknown guideline: g9" in note for note in result.trace.iterations[0].notes)


@pytest.mark.proves("GC-04", "GC-38", "GC-05")
async def test_the_snippets_of_the_document_run_as_printed() -> None:
    judge = scripted([plan(["g1"], needs("get_balance", {})), plan(["g1"])], ["I cannot see it.", "Sorry."])
    agent = Agent(judge=judge)

    # The guideline
    guideline = await agent.create_guideline(
        condition="Customer asks about their account balance",
        action="Look up their balance and tell them"
    )  # fmt: skip

    # The tool
    tool = await agent.create_tool(
        name="get_balance",
        description="Retrieves account balance for a customer",
        parameters={...}
    )  # fmt: skip

    # The association
    await agent.associate_tool_with_guideline(
        tool_id=tool.id,
        guideline_id=guideline.id
    )  # fmt: skip
    marked = await agent.create_tool(
        name="transfer_money",
        description="Transfer funds between accounts",
        consequential=True, # Marks as consequential
        # ...: a positional `...` after keywords is no Python
    )  # fmt: skip

    assert (tool.id, tool.consequential, marked.consequential) == ("get_balance", True, True)
    session = agent.session(session_id="s-1")
    for _ in range(2):  # With a verdict, and without one.
        result = await session.send("How much do I have?")
        (evaluation,) = result.insights.evaluations
        assert (evaluation.tool, evaluation.state) == ("get_balance", "cannot_run")
        assert (evaluation.reason, evaluation.guideline_ids) == (
            "it is not available: it has no handler, or its source is not connected",
            ("g1",),
        )
        assert result.results == ()


@pytest.mark.proves("GC-38")
async def test_a_tool_is_made_with_a_handler_or_meant_by_its_name() -> None:
    bank = Bank()

    async def close(arguments: dict[str, Any], context: Any) -> str:
        context.deps.sent.append((arguments["reason"], 0))
        return "closed"

    judge = scripted(
        [plan(["g1"], needs("close_account", {"reason": "moved"}), needs("get_balance", {"account": "a"}))], ["Ok."]
    )
    agent = agent_with(judge, policy=Policy([Rule.allow("*")]))
    guideline = await agent.create_guideline("Customer wants to close the account")
    made = await agent.create_tool(
        name="close_account", description="Close an account.", parameters={"reason": {"type": "string"}}, handler=close
    )
    meant = await agent.create_tool(name="get_balance")
    read = await agent.create_tool(name="look", handler=close, consequential=False)
    for item in (made, meant):
        await agent.associate_tool_with_guideline(tool_id=item.id, guideline_id=guideline.id)
    await open_session(agent, bank).send("Close it, I moved.")

    assert (bank.sent, bank.reads) == ([("moved", 0)], ["a"])
    assert (made.consequential, meant is get_balance, read.read_only) == (True, True, True)
    with pytest.raises(ConfigError, match="two tools are called 'close_account'"):
        await agent.create_tool(name="close_account", handler=close)
    with pytest.raises(ConfigError, match="the tool 'get_balance' is read-only, got True"):
        await agent.create_tool(name="get_balance", consequential=True)
    with pytest.raises(ConfigError, match="'late' cannot be added: the agent has a session already"):
        await agent.create_tool(name="late", handler=close)


@pytest.mark.parametrize(
    "verdict",
    [
        needs("pay", {"amount": 5}, confirmation="yes"),
        needs("pay", {"amount": 4}),
        needs("pay", {}, confirmation="no"),
        ToolVerdict("pay", "cannot_run", {"amount": 5}),
    ],
)
@pytest.mark.parametrize("adapted", [True, False])
async def test_a_pending_call_of_a_tool_that_a_release_took_away_is_withdrawn_by_its_name(
    adapted: bool, verdict: ToolVerdict, tmp_path: Path
) -> None:
    @tool
    async def pay(amount: int, code: Annotated[str, ParameterOptions(hidden=True)] = "std-4711") -> str:
        """Pay."""
        return "paid"

    @tool(read_only=True)
    async def look(
        what: Annotated[str, ParameterOptions(adapter=(lambda value, context: value) if adapted else None)],
    ) -> str:
        """Look."""
        return "seen"

    plans = [plan(["g1"], needs("pay", {"amount": 5})), plan(["g1"], verdict, needs("look", {"what": "a"}))]
    judge = scripted([*plans, *[plan(["g1"])] * 2], ["Ok."] * 3)
    sessions = FileSessionStore(tmp_path)
    for number, tools in enumerate([pay, look]):
        agent = agent_with(judge, [tools])
        await agent.create_guideline("Customer wants something", tools=[tools])
        load = {"customer_id": "c-1", "deps": Bank(), "sessions": sessions, "allow_memory_ledger": True}
        if number == 0:
            result = await agent.session(session_id="s-1", **load).send("Pay 5.")
            assert "pay (amount: 5)" in result.text
        else:
            result = await (await agent.load_session("s-1", **load)).send("Yes, 5.")
            assert result.text == "Ok.\n\nThis will not be done: pay."
            assert [one.tool_name for one in result.results] == ["look"]


async def test_a_judge_without_a_provider_has_no_model_to_ask() -> None:
    session = open_session(agent_with(scripted()))
    with pytest.raises(ConfigError, match="no provider"):
        session.provider.stream(None)
    with pytest.raises(ToolNotFoundError):
        session.executor.registry.get("nothing")


async def test_variables_that_cannot_be_read_and_choices_that_fail_do_not_end_the_turn() -> None:
    def broken(context: Any) -> Any:
        raise RuntimeError("boom")

    @tool(read_only=True)
    async def pick(color: Annotated[str, ParameterOptions(choices=broken)]) -> str:
        """Pick."""
        return color

    judge = scripted([plan(["g1"], needs("pick", {"color": "red"}))], ["Sorry."])
    agent = agent_with(judge, [pick])
    await agent.create_guideline("Customer picks", tools=[pick])
    await agent.create_variable("broken", read=broken)
    await agent.create_variable("fine", value=1)
    result = await open_session(agent).send("Red.")

    assert judge.plan_requests[0].variables == {"fine": 1}
    assert [(evaluation.state, evaluation.reason) for evaluation in result.insights.evaluations] == [
        ("cannot_run", "the choices of a parameter could not be read")
    ]


async def test_a_guideline_that_is_added_counts_from_the_next_turn_on() -> None:
    judge = scripted([plan([]), plan(["g2"])], ["Hello.", "Hello again."])
    agent = agent_with(judge)
    await agent.create_guideline("A", tools=[transfer_money])
    session = open_session(agent)
    await session.send("Hi.")
    await agent.create_guideline("B")
    await session.send("Hi.")

    assert [len(request.guidelines) for request in judge.plan_requests] == [1, 2]


class Unreadable(dict[str, Any]):
    """A mapping that cannot be read."""

    def items(self) -> Any:
        raise RuntimeError("no items")


def _nest(depth: int) -> dict[str, Any]:
    node: dict[str, Any] = {}
    for _ in range(depth):
        node = {"in": node}
    return node


@pytest.mark.parametrize("arguments", [Unreadable(a=1), {"recipient_name": _nest(5_000), "amount": 5}])
async def test_arguments_that_cannot_be_read_run_nothing_and_the_turn_has_a_reply(arguments: Any) -> None:
    bank = Bank()
    verdict = ToolVerdict("transfer_money", "needs_to_run", arguments, {"recipient_name": "Ann", "amount": "5"})
    agent = agent_with(scripted([plan(["g1"], verdict)] * 3, ["Ok."]), policy=Policy([Rule.allow("*")]))
    await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money])
    result = await open_session(agent, bank).send("Send 5 to Ann")

    assert (bank.sent, result.text, result.stop_reason) == ([], "Ok.", "completed")
    assert result.insights.evaluations[0].state == "cannot_run"


async def test_eighty_tools_that_match_at_once_are_asked_about_in_batches() -> None:
    def build(number: int) -> Any:
        async def read(x: int) -> str:
            """Read something."""
            return f"{number}"

        read.__name__ = f"read_{number}"
        return tool(read_only=True)(read)

    tools = [build(number) for number in range(80)]
    judge = ScriptedJudge(
        lambda request: Plan(
            (GuidelineMatch("g1"),), tuple(ToolVerdict(item.name, "needs_to_run", {"x": 1}) for item in request.tools)
        ),
        ["Ok."],
    )
    agent = agent_with(judge, tools)
    await agent.create_guideline("Customer asks", tools=tools)
    result = await open_session(agent).send("Go")

    assert (len(result.results), result.text) == (80, "Ok.")
    assert max(len(item.tools) for item in judge.plan_requests) <= 12


async def test_nul_and_lone_surrogates_are_text_like_any_other() -> None:
    @tool(read_only=True)
    async def echo(words: str) -> str:
        """Repeat."""
        return f"{words}\0\ud800"

    judge = scripted([plan(["g1"], needs("echo", {"words": "a\0b"}, reason="\0\ud800"))], ["\0 Fine \ud800."])
    agent = agent_with(judge, [echo], variables={"v": "\0"})
    await agent.create_guideline("Customer says \0", tools=[echo])
    result = await open_session(agent).send("a\0b \ud800")

    assert (result.stop_reason, result.results[0].ok, result.text[:6]) == ("completed", True, "\0 Fine")
    (
        result.text + result.trace.to_json() + result.trace.tree() + render_reply_request(judge.reply_requests[0])
    ).encode()


async def test_a_session_id_that_two_tenants_use_is_two_conversations(tmp_path: Path) -> None:
    """A yes of one tenant's customer confirms nothing of the other's, and neither loads the other's conversation."""
    confirmed = plan(["g1"], needs("transfer_money", SEND_500, confirmation="yes"))
    prepared = plan(["g1"], needs("transfer_money", SEND_500))
    judge = scripted([prepared, confirmed, confirmed], ["Ok."] * 3)
    agent = agent_with(judge)
    await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money])
    one, other = Bank(), Bank()
    sessions = FileSessionStore(tmp_path)
    first = open_session(agent, one, tenant_id="a", sessions=sessions, allow_memory_ledger=True)
    second = open_session(agent, other, tenant_id="b")
    await first.send("Send 500 to Sophie")
    waiting = await second.send("Yes, 500 to Sophie")
    assert (one.sent, other.sent, waiting.stop_reason) == ([], [], "approval_required")
    with pytest.raises(ConfigError, match="tenant_id"):
        await agent.load_session(
            "s-1", customer_id="c-1", tenant_id="b", sessions=sessions, deps=other, allow_memory_ledger=True
        )
    await first.send("Yes.")
    assert (one.sent, other.sent) == ([("Sophie", 500)], [])


async def test_a_yes_to_a_question_from_yesterday_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmed = plan(["g1"], needs("transfer_money", SEND_500, confirmation="yes"))
    sessions = FileSessionStore(tmp_path)
    bank = Bank()

    async def talk(text: str, answer: Plan) -> Any:  # Every message comes to another process.
        agent = agent_with(scripted([answer], ["Ok."]))
        await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money])
        session = await agent.load_session(
            "s-1", customer_id="c-1", deps=bank, sessions=sessions, create=True, allow_memory_ledger=True
        )
        return await session.send(text)

    await talk("Send 500 to Sophie", plan(["g1"], needs("transfer_money", SEND_500)))
    tomorrow = time.time() + 86_400
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    late = await talk("Yes.", confirmed)
    assert (bank.sent, late.stop_reason, "Shall I go ahead?" in late.text) == ([], "approval_required", True)
    await talk("Yes.", confirmed)
    assert bank.sent == [("Sophie", 500)]
