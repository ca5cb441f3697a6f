"""Code checks every verdict, and what it finds becomes an insight that the reply can use."""

from typing import Annotated, Any

import pytest
from pydantic import Field, SecretStr

from handrail import LLMFunctionTool, Policy, Rule, ToolContext, tool
from handrail.guide import ParameterOptions, ToolVerdict
from tests.guide.kit import Bank, agent_with, get_balance, needs, open_session, plan, scripted, transfer_money

ALLOW = Policy([Rule.allow("*")])


async def turn(
    tools: Any, *verdicts: ToolVerdict, text: str = "Go.", policy: Policy | None = ALLOW, **more: Any
) -> Any:
    """One turn with one guideline that applies and names these tools."""
    judge = scripted([plan(["g1"], *verdicts)] * 3, ["Fine."])
    agent = agent_with(judge, tools, policy=policy)
    await agent.create_guideline("Customer wants something", tools=list(tools))
    result = await open_session(agent, **more).send(text)
    return result, judge


@tool
async def order(
    size: Annotated[int, Field(ge=1, le=10)],
    code: Annotated[str, Field(pattern=r"^[A-Z]{2}\d$")],
    gift: bool = False,
    note: str = "none",
) -> dict[str, Any]:
    """Order something."""
    return {"size": size, "code": code, "gift": gift, "note": note}


@pytest.mark.proves("GC-D7", "GC-34")
@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"size": "many", "code": "AB1"}, "size"),
        ({"size": 11, "code": "AB1"}, "size"),
        ({"size": float("nan"), "code": "AB1"}, ""),
        ({"size": 1, "code": "abc"}, "code"),
        ({"size": 1, "code": "AB1", "gift": "perhaps"}, "gift"),
        ({"size": 1, "code": "AB1", "color": "red"}, "color"),
        ({"size": 1, "code": "AB1", "note": ["a"]}, "note"),
    ],
)
async def test_invalid_means_invalid_before_anything_runs(arguments: dict[str, Any], wrong: str) -> None:
    result, _ = await turn([order], needs("order", arguments))

    assert result.results == ()
    (evaluation,) = result.insights.evaluations
    assert (evaluation.state, [invalid.parameter for invalid in result.insights.invalid_data]) == (
        "cannot_run",
        [wrong] if wrong else [],
    )
    assert evaluation.reason


@pytest.mark.proves("GC-D11")
async def test_false_is_false_and_the_defaults_of_the_function_are_kept() -> None:
    @tool(read_only=True)
    async def estimate(size: int, gift: bool = True, note: str = "none") -> list[object]:
        """Estimate the price."""
        return [size, gift, note]

    result, _ = await turn([estimate], needs("estimate", {"size": "3", "gift": "False", "note": None}))
    assert [item.output for item in result.results] == [[3, False, "none"]]
    # A consequential tool converts nothing: what is not a boolean is invalid, and a default stays.
    text, _ = await turn([order], needs("order", {"size": 3, "code": "AB1", "gift": "False"}))
    assert (text.results, [invalid.parameter for invalid in text.insights.invalid_data]) == ((), ["gift"])
    plain, _ = await turn([order], needs("order", {"size": 3, "code": "AB1", "note": None}), text="3 of AB1")
    assert [item.output for item in plain.results] == [{"size": 3, "code": "AB1", "gift": False, "note": "none"}]


@pytest.mark.proves("GC-D9", "GC-16")
async def test_a_consequential_call_needs_evidence_for_every_argument_and_a_read_only_one_does_not() -> None:
    bank = Bank()
    half = ToolVerdict("transfer_money", "needs_to_run", {"recipient_name": "Ann", "amount": 5}, {"amount": "five"})
    read = ToolVerdict("get_balance", "needs_to_run", {"account": "a"})
    result, _ = await turn([transfer_money, get_balance], half, read, deps=bank, text="Send five to her")

    assert (bank.sent, bank.reads) == ([], ["a"])
    (missing,) = result.insights.missing_data
    assert (missing.parameter, missing.reason) == (
        "recipient_name",
        "nothing in the conversation supports a value for it",
    )


@pytest.mark.proves("GC-14", "GC-17", "GC-D8", "GC-32")
async def test_data_in_context_and_not_applicable_are_different_and_both_call_nothing() -> None:
    bank = Bank()
    result, judge = await turn(
        [get_balance, transfer_money],
        ToolVerdict("get_balance", "data_already_in_context", {"account": "a"}, reason="it was said before"),
        ToolVerdict("transfer_money", "not_applicable", reason="they only ask"),
        deps=bank,
    )

    assert (bank.reads, bank.sent) == ([], [])
    assert [(evaluation.tool, evaluation.state, evaluation.reason) for evaluation in result.insights.evaluations] == [
        ("get_balance", "data_already_in_context", "it was said before"),
        ("transfer_money", "not_applicable", "they only ask"),
    ]
    assert [guideline.id for guideline in judge.reply_requests[0].guidelines] == ["g1"]


@pytest.mark.proves("GC-35")
async def test_the_reply_gets_the_names_and_the_significance_of_what_is_missing() -> None:
    @tool
    async def transfer(
        amount: int,
        recipient: Annotated[
            str, ParameterOptions(display_name="the name of your friend", significance="so that it reaches them")
        ],
    ) -> str:
        """Transfer money."""
        return "sent"

    result, judge = await turn(
        [transfer], ToolVerdict("transfer", "cannot_run", {"amount": 500}, {"amount": "$500"}), text="$500 to my friend"
    )
    (missing,) = judge.reply_requests[0].insights.missing_data

    assert (missing.display_name, missing.significance) == ("the name of your friend", "so that it reaches them")
    assert result.insights == judge.reply_requests[0].insights


@tool
async def open_account(
    name: Annotated[str, ParameterOptions(precedence=1)],
    birthday: Annotated[str, ParameterOptions(precedence=1)],
    address: Annotated[str, ParameterOptions(precedence=2)],
    color: str,
    risk_score: Annotated[int, ParameterOptions(hidden=True, display_name="inner risk")],
    branch: Annotated[str, ParameterOptions(source="context")],
) -> str:
    """Open an account."""
    return "opened"


HIDDEN = {"risk_score": 3, "branch": "north"}


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({}, ["name", "birthday"]),
        ({"name": "Ann"}, ["birthday"]),
        ({"name": "Ann", "birthday": "1.1."}, ["address"]),
        ({"name": "Ann", "birthday": "1.1.", "address": "here"}, ["color"]),
        ({"name": "Ann", "birthday": "1.1.", "address": "here", "color": "red"}, []),
    ],
)
async def test_only_the_first_open_group_of_precedence_is_reported(given: dict[str, Any], reported: list[str]) -> None:
    said = "I am Ann, born 1.1., I live here in the north and like red"
    result, _ = await turn([open_account], needs("open_account", {**HIDDEN, **given}), text=said)

    assert [missing.parameter for missing in result.insights.missing_data] == reported
    assert (result.stop_reason == "approval_required") == (not reported)  # What a model hides, an operator looks at.


async def test_a_hidden_parameter_is_never_named_to_the_customer() -> None:
    seen = {"name": "Ann", "birthday": "1.1.", "address": "here", "color": "red"}
    reason = "The inner risk is not known, and neither is risk_score"
    cannot = ToolVerdict("open_account", "cannot_run", seen, {name: str(value) for name, value in seen.items()}, reason)
    judge = scripted([plan(["g1"], cannot)], ["Tell me your inner risk.", "What is your risk score?"])
    agent = agent_with(judge, [open_account], policy=ALLOW)
    await agent.create_guideline("Customer wants an account", tools=[open_account])
    result = await open_session(agent).send("Open it: Ann, 1.1., here, red")

    assert (result.results, result.insights.missing_data) == ((), ())
    for text in (str(result.insights), str(judge.reply_requests[0].insights), result.text):
        assert "risk" not in text
    assert "customer cannot give" in result.insights.evaluations[0].reason
    assert result.trace.reply.replaced


async def test_a_call_is_read_back_without_its_hidden_values() -> None:
    given = {"name": "Ann", "birthday": "1.1.", "address": "here", "color": "red", **HIDDEN}
    variables = {"risk": HIDDEN["risk_score"], "branch": HIDDEN["branch"]}
    judge = scripted([plan(["g1"], needs("open_account", given))], ["Ok."])
    agent = agent_with(judge, [open_account], variables=variables)
    await agent.create_guideline("Customer wants an account", tools=[open_account])
    result = await open_session(agent).send("I am Ann, born 1.1., I live here and like red")

    assert result.stop_reason == "approval_required"
    assert [approval.by for approval in result.approvals] == ["customer"]  # The program set what is hidden.
    for shown in ("Ann", "1.1.", "here", "red"):
        assert shown in result.text
    assert "risk" not in result.text


@pytest.mark.parametrize(("color", "runs"), [("red", True), ("blue", False)])
async def test_choices_may_depend_on_the_context(color: str, runs: bool) -> None:
    async def colors(context: ToolContext[Any]) -> list[str]:
        return context.plugin_data["colors"]

    @tool(read_only=True)
    async def paint(color: Annotated[str, ParameterOptions(choices=colors, examples=["red"])]) -> str:
        """Paint."""
        return color

    result, judge = await turn([paint], needs("paint", {"color": color}), plugin_data={"colors": ["red", "green"]})

    shown = judge.plan_requests[0].tools[0].schema["properties"]["color"]
    assert (shown["enum"], shown["examples"]) == (["red", "green"], ["red"])
    assert len(result.results) == runs
    assert [(invalid.parameter, invalid.value, invalid.choices) for invalid in result.insights.invalid_data] == (
        [] if runs else [("color", "blue", ("red", "green"))]
    )


async def test_options_are_read_from_a_class_and_given_beside_a_schema() -> None:
    class Book(LLMFunctionTool[None, None]):
        """Book a seat."""

        seat: Annotated[str, ParameterOptions(choices=["window", "aisle"])]

        def model_tool_handler(self, context: None) -> tuple[str, None]:
            return "booked", None

    judge = scripted([plan(["g1"], needs("Book", {"seat": "roof"}), needs("rate", {"stars": 9}))], ["Fine."])
    agent = agent_with(judge, [Book])
    await agent.create_guideline("Customer books", tools=["Book"])
    rate = await agent.create_tool(
        "rate",
        "Rate it.",
        {"stars": {"type": "integer"}},
        handler=lambda arguments: "rated",
        options={"stars": ParameterOptions(choices=[1, 2, 3], display_name="stars from 1 to 3")},
    )
    await agent.associate_tool_with_guideline(tool_id=rate.id, guideline_id="g1")
    result = await open_session(agent).send("Book the roof.")

    assert {invalid.parameter: invalid.choices for invalid in result.insights.invalid_data} == {
        "seat": ("window", "aisle"),
        "stars": (1, 2, 3),
    }


async def test_two_secrets_are_two_calls_and_a_yes_to_one_is_none_to_the_other() -> None:
    keys: list[str] = []

    @tool
    async def unlock(key: SecretStr) -> str:
        """Unlock."""
        keys.append(key.get_secret_value())
        return "unlocked"

    judge = scripted(
        [
            plan(["g1"], needs("unlock", {"key": "one"})),
            plan(["g1"], needs("unlock", {"key": "two"}, confirmation="yes")),
        ],
        ["Shall I?", "Shall I?"],
    )
    agent = agent_with(judge, [unlock])
    await agent.create_guideline("Customer unlocks", tools=[unlock])
    session = open_session(agent)
    await session.send("Unlock with one.")
    result = await session.send("Yes, with two.")

    assert (keys, result.stop_reason) == ([], "approval_required")
    assert "one" not in session.conversation.messages[-1].text.split()


@pytest.mark.proves("GC-48", "GC-D11")
async def test_a_call_that_was_made_in_this_turn_is_not_made_again() -> None:
    bank = Bank()
    again = plan(["g1"], needs("get_balance", {"account": "a"}), ToolVerdict("transfer_money", "cannot_run"))
    judge = scripted([again, again, again], ["Fine."])
    agent = agent_with(judge)
    await agent.create_guideline("Customer asks", tools=[get_balance, transfer_money])
    result = await open_session(agent, bank).send("Go.")

    assert (bank.reads, len(result.results)) == (["a"], 1)
    assert [evaluation.state for evaluation in result.insights.evaluations if evaluation.tool == "get_balance"] == [
        "needs_to_run",
        "data_already_in_context",
    ]


@pytest.mark.proves("GC-47")
async def test_iterations_have_a_limit_and_reaching_it_still_gives_a_reply() -> None:
    bank = Bank()
    numbers = iter(range(100))

    def more(request: Any) -> Any:
        return plan(
            ["g1"], needs("get_balance", {"account": f"a{next(numbers)}"}), ToolVerdict("transfer_money", "cannot_run")
        )

    judge = scripted([more] * 10, ["That is all."])
    agent = agent_with(judge)
    await agent.create_guideline("Customer asks", tools=[get_balance, transfer_money])
    result = await open_session(agent, bank).send("Go.")

    assert (len(bank.reads), len(result.trace.iterations), result.text) == (
        3,
        3,
        "That is all.\n\nNot done so far: transfer money.",
    )


@pytest.mark.proves("GC-D6")
async def test_calls_of_one_iteration_run_in_the_order_of_criticality() -> None:
    order: list[str] = []

    def named(name: str) -> Any:
        @tool(name=name, read_only=True)
        async def work(what: str) -> str:
            """Work."""
            order.append(name)
            return what

        return work

    names = ["low", "medium", "high"]
    judge = scripted([plan(["g1", "g2", "g3"], *(needs(item, {"what": "x"}) for item in names))], ["Done with it."])
    agent = agent_with(judge, [named(item) for item in names])
    for item in names:
        await agent.create_guideline(item, tools=[item], criticality=item)
    await open_session(agent).send("Go.")

    assert order == ["high", "medium", "low"]


@pytest.mark.proves("GC-11")
async def test_the_same_conversation_and_verdicts_give_the_same_calls() -> None:
    async def once() -> list[Any]:
        judge = scripted(
            [plan(["g1"], needs("get_balance", {"account": "a"}), needs("get_balance", {"account": "b"}))], ["Ok."]
        )
        agent = agent_with(judge)
        await agent.create_guideline("Customer asks", tools=[get_balance])
        session = open_session(agent)
        await session.send("Go.")
        return [item for message in session.conversation.messages for item in getattr(message, "calls", ())]

    assert await once() == await once()


@pytest.mark.proves("GC-D14")
async def test_the_judge_and_the_reply_read_why_a_tool_failed() -> None:
    @tool(read_only=True)
    async def broken(what: str) -> str:
        """Broken."""
        raise RuntimeError("secret stack")

    bank = Bank(balance=10)
    judge = scripted(
        [
            plan(
                ["g1"],
                needs("transfer_money", {"recipient_name": "Ann", "amount": 500}),
                needs("broken", {"what": "x"}),
            )
        ],
        ["Sorry."],
    )
    agent = agent_with(judge, [transfer_money, broken], policy=ALLOW)
    await agent.create_guideline("Customer transfers", tools=[transfer_money, broken])
    result = await open_session(agent, bank).send("500 to Ann")
    told = {item.tool_name: item.for_model() for item in judge.reply_requests[0].results}

    assert "There is not enough money in the account." in told["transfer_money"]
    assert "secret stack" not in told["broken"]
    assert "not enough money" in result.trace.why(result.results[0].call_id)


@pytest.mark.proves("GC-08", "GC-D2")
async def test_the_judge_sees_the_tools_of_the_guidelines_in_the_request_and_no_others() -> None:
    def named(name: str) -> Any:
        @tool(name=name, read_only=True)
        async def look(what: str) -> str:
            """Look."""
            return what

        return look

    tools = [named(f"t{number}") for number in range(20)]
    judge = scripted([plan(["g3"]), plan([], needs("t2", {"what": "x"}))], ["Fine."])
    agent = agent_with(judge, [*tools, get_balance])
    for number in range(20):
        await agent.create_guideline(f"Customer asks for {number}", tools=[f"t{number}"])
    result = await open_session(agent).send("Two, please.")

    matching, inferring = judge.plan_requests
    assert (len(matching.guidelines), matching.tools) == (20, ())
    assert ([guideline.id for guideline in inferring.guidelines], [item.name for item in inferring.tools]) == (
        ["g3"],
        ["t2"],
    )
    assert ([item.output for item in result.results], judge.questions) == (["x"], 3)


async def test_a_guideline_can_be_dropped_but_not_added_by_the_second_question() -> None:
    from handrail.guide import GuidelineMatch, GuideSettings, Plan

    bank = Bank()
    judge = scripted(
        [
            plan(["g1"]),
            Plan(
                (GuidelineMatch("g2"),),
                (needs("get_balance", {"account": "a"}), needs("transfer_money", {"recipient_name": "x", "amount": 1})),
            ),
        ],
        ["Fine."],
    )
    agent = agent_with(judge, settings=GuideSettings(match_first="always"), policy=ALLOW)
    await agent.create_guideline("A", tools=[get_balance])
    await agent.create_guideline("B", tools=[transfer_money])
    await open_session(agent, bank).send("Go.")

    assert (bank.reads, bank.sent) == (["a"], [])


async def test_always_on_guidelines_need_no_match_and_their_tools_are_candidates() -> None:
    bank = Bank()
    judge = scripted([plan([], needs("get_balance", {"account": "a"}))], ["Hello."])
    agent = agent_with(judge)
    await agent.create_guideline("", "Be polite", always=True, tools=[get_balance])
    result = await open_session(agent, bank).send("Hi.")

    assert bank.reads == ["a"]
    assert result.trace.iterations[0].guidelines[0].reason == "always"


async def test_without_tools_and_conditions_there_is_nothing_to_plan() -> None:
    judge = scripted([], ["Hello."])
    agent = agent_with(judge)
    await agent.create_guideline("", "Be polite", always=True)
    result = await open_session(agent).send("Hi.")

    assert (result.text, judge.questions) == ("Hello.", 1)


async def test_variables_are_read_from_the_context_and_kept_while_they_are_fresh() -> None:
    read: list[str] = []

    async def name(context: ToolContext[Any]) -> str:
        read.append(context.customer_id or "")
        return "Jerry"

    judge = scripted([plan([])] * 2, ["Hello."] * 2)
    agent = agent_with(judge)
    await agent.create_guideline("Customer asks", tools=[get_balance])
    await agent.create_variable("account_name", read=name, fresh_for=60)
    await agent.create_term("carrot", "a kind of fruit")
    session = open_session(agent)
    await session.send("Hi.")
    await session.send("Hi.")

    assert read == ["c-1"]
    assert judge.plan_requests[1].variables == judge.reply_requests[1].variables == {"account_name": "Jerry"}
    assert judge.plan_requests[0].terms == {"carrot": "a kind of fruit"}


async def test_a_tool_gets_the_agent_the_session_the_customer_and_plugin_data() -> None:
    seen: list[Any] = []

    @tool(read_only=True)
    async def look(context: ToolContext[Any]) -> str:
        """Look."""
        seen.append((context.agent_id, context.session_id, context.customer_id, dict(context.plugin_data)))
        return "x"

    await turn([look], plugin_data={"a": 1})
    assert seen == [("desk", "s-1", "c-1", {"a": 1})]
