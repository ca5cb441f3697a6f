"""The cases that guided calling was written for, each with a judge that answers as a good model would."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import pytest

from handrail import Control, Policy, Rule, ToolContext, ToolResult, tool
from handrail.guide import Draft, GuidelineMatch, GuideSettings, ParameterOptions, Plan, PlanRequest, ToolVerdict
from tests.guide.kit import (
    Bank,
    agent_with,
    applies,
    get_balance,
    get_investment_options,
    needs,
    open_session,
    plan,
    scripted,
    transfer_money,
)


def calls_of(result: Any) -> list[tuple[str, dict[str, Any]]]:
    """The calls of a turn, from its trace."""
    return [
        (candidate.tool, dict(candidate.call.arguments))
        for iteration in result.trace.iterations
        for candidate in iteration.candidates
        if candidate.call is not None and candidate.call.ok is not None
    ]


async def test_a_read_only_tool_without_parameters_runs_without_a_verdict_once_in_every_turn_that_wants_it() -> None:
    made: list[str] = []

    @tool(read_only=True, concurrency_safe=True)
    async def get_available_drinks() -> list[str]:
        """List the drinks."""
        made.append("drinks")
        return ["Sprite", "Coca Cola"]

    judge = scripted([plan(["g1"]), plan(["g1"])], ["We have Sprite.", "Yes, Sprite."])
    agent = agent_with(judge, [get_available_drinks])
    await agent.create_guideline("Customer asks for a drink", "Check that it is there", tools=[get_available_drinks])
    session = open_session(agent)
    first = await session.send("Can I order a pizza with Sprite?")
    again = await session.send("So there is Sprite?")

    assert made == ["drinks", "drinks"]  # What there is may have changed since.
    assert judge.questions == 4  # A plan and a reply in each turn, and nothing to infer arguments.
    assert calls_of(first) == [("get_available_drinks", {})]
    assert calls_of(again) == [("get_available_drinks", {})]


@pytest.mark.proves("GC-25", "GC-D2")
async def test_several_calls_of_one_tool_run_in_one_iteration_and_identical_ones_once() -> None:
    @tool(read_only=True, concurrency_safe=True)
    async def add(first: int, second: int) -> int:
        """Add two numbers."""
        return first + second

    verdicts = [needs("add", {"first": 8, "second": 2}), needs("add", {"first": 4, "second": 6})]
    judge = scripted([plan(["g1"], *verdicts, verdicts[0])], ["10 and 10."])
    agent = agent_with(judge, [add])
    await agent.create_guideline("Customer seeks to add numbers", tools=[add])
    result = await open_session(agent).send("What is 8+2 and 4+6?")

    assert calls_of(result) == [("add", {"first": 8, "second": 2}), ("add", {"first": 4, "second": 6})]
    assert [item.output for item in result.results] == [10, 10]
    assert (len(result.trace.iterations), judge.questions) == (1, 2)


@pytest.mark.proves("GC-24")
async def test_independent_reads_of_one_iteration_run_together() -> None:
    met = asyncio.Barrier(2)

    @tool(read_only=True, concurrency_safe=True)
    async def meet(name: str) -> str:
        """Wait until the other one is there too."""
        await asyncio.wait_for(met.wait(), 20)
        return name

    judge = scripted([plan(["g1"], needs("meet", {"name": "a"}), needs("meet", {"name": "b"}))], ["Fine."])
    agent = agent_with(judge, [meet])
    await agent.create_guideline("Customer asks", tools=[meet])
    result = await open_session(agent).send("Go.")

    assert [item.output for item in result.results] == ["a", "b"]


async def test_one_guideline_may_want_a_tool_for_two_values() -> None:
    @tool(read_only=True, concurrency_safe=True)
    async def stock(product_type: Literal["drinks", "toppings"]) -> str:
        """What is in stock."""
        return product_type

    judge = scripted(
        [plan(["g1"], needs("stock", {"product_type": "toppings"}), needs("stock", {"product_type": "drinks"}))],
        ["Yes."],
    )
    agent = agent_with(judge, [stock])
    await agent.create_guideline("Customer asks for toppings or drinks", tools=[stock])
    result = await open_session(agent).send("a large pizza with pepperoni and a Sprite")

    assert [item.output for item in result.results] == ["toppings", "drinks"]


NOW = datetime(2026, 11, 16, 9, 0, tzinfo=UTC)


def bill_agent(judge: Any) -> tuple[Any, list[str]]:
    paid: list[str] = []

    @tool
    async def pay_cc_bill(payment_date: Annotated[str, ParameterOptions(source="customer")]) -> str:
        """Pay the credit card bill."""
        paid.append(payment_date)
        return "paid"

    agent = agent_with(judge, [pay_cc_bill], policy=Policy([Rule.allow("pay_cc_bill")]), clock=lambda: NOW)
    return agent, paid


@pytest.mark.proves("GC-15", "GC-16", "GC-33", "GC-D4", "GC-D9")
@pytest.mark.parametrize(
    "verdict",
    [
        ToolVerdict("pay_cc_bill", "cannot_run", reason="they did not say when"),
        ToolVerdict("pay_cc_bill", "needs_to_run"),  # The judge forgets the argument.
        ToolVerdict("pay_cc_bill", "needs_to_run", {"payment_date": None}, {"payment_date": "?"}),
        # It takes the date from a variable, although only the customer can say it.
        ToolVerdict(
            "pay_cc_bill", "needs_to_run", {"payment_date": "18-11-2026"}, {"payment_date": "due_date: 18-11-2026"}
        ),
        ToolVerdict("pay_cc_bill", "needs_to_run", {"payment_date": "18-11-2026"}),
    ],
)
async def test_a_bill_is_not_paid_without_a_date_that_the_customer_gave(verdict: ToolVerdict) -> None:
    judge = scripted([plan(["g1"], verdict)], ["When should I pay it?"])
    agent, paid = bill_agent(judge)
    bill = await agent.create_guideline("Customer wants to pay a bill", tools=["pay_cc_bill"])
    await agent.create_variable("due_date", value="18-11-2026")
    result = await open_session(agent).send("Let's please pay my credit card bill")

    assert (paid, result.results) == ([], ())
    assert [evaluation.state for evaluation in result.insights.evaluations] == ["cannot_run"]
    (missing,) = result.insights.missing_data
    assert (missing.tool, missing.parameter, missing.guideline_ids) == ("pay_cc_bill", "payment_date", (bill.id,))
    assert missing.reason
    assert judge.reply_requests[0].insights.missing_data == (missing,)
    assert judge.plan_requests[0].variables == {"due_date": "18-11-2026"}


async def test_immediately_is_today() -> None:
    def today(request: PlanRequest) -> Plan:
        assert request.now is not None
        given = {"payment_date": request.now.strftime("%d-%m-%Y")}
        return Plan(
            applies("g1"), (ToolVerdict("pay_cc_bill", "needs_to_run", given, {"payment_date": "immediately"}),)
        )

    agent, paid = bill_agent(scripted([today], ["It is paid."]))
    await agent.create_guideline("Customer wants to pay a bill", tools=["pay_cc_bill"])
    result = await open_session(agent).send("Let's please pay my credit card bill immediately")

    assert (paid, result.text) == (["16-11-2026"], "It is paid.")


COINS = {"amount": 1500, "from_account": "Mark Corrigan", "to_account": "Sophie Chapman", "pincode": "1234"}


async def test_coins_are_asked_for_prepared_confirmed_and_sent_once() -> None:
    sent: list[dict[str, Any]] = []

    @tool
    async def transfer_coins(
        amount: int,
        from_account: str,
        to_account: str,
        pincode: Annotated[str, ParameterOptions(display="masked")],
    ) -> str:
        """Transfer coins."""
        sent.append({"amount": amount, "from_account": from_account, "to_account": to_account, "pincode": pincode})
        return "Transferred."

    some = {"amount": 1500, "to_account": "Sophie Chapman"}
    quoted = {"amount": "$1500", "to_account": "to Sophie Chapman"}
    judge = scripted(
        [
            plan(
                ["g1"],
                ToolVerdict("transfer_coins", "cannot_run", some, quoted),
            ),
            plan(["g1"], needs("transfer_coins", COINS)),
            plan(["g1"], needs("transfer_coins", COINS, confirmation="yes")),
        ],
        ["From which account, and what is the pincode?", "Shall I do it?", "It is transferred."],
    )
    agent = agent_with(judge, [transfer_coins])
    await agent.create_guideline("Customer wants to transfer coins", tools=[transfer_coins])
    session = open_session(agent)

    first = await session.send("transfer $1500 from my account to Sophie Chapman")
    assert [missing.parameter for missing in first.insights.missing_data] == ["from_account", "pincode"]
    assert (first.stop_reason, sent) == ("completed", [])

    second = await session.send("My name is Mark Corrigan, the pincode is 1234")
    assert (second.stop_reason, sent, second.insights.missing_data) == ("approval_required", [], ())
    assert "1500" in second.text
    assert "Mark Corrigan" in second.text
    assert "pincode: ••••)" in second.text
    assert "1234" not in second.text

    third = await session.send("Yes, go ahead.")
    assert (third.stop_reason, sent, third.text) == ("completed", [COINS], "It is transferred.")


async def test_somebody_who_is_not_sure_transfers_nothing() -> None:
    bank = Bank()
    judge = scripted(
        [plan(["g1"], ToolVerdict("transfer_money", "not_applicable", reason="they are not sure"))], ["Ok."]
    )
    agent = agent_with(judge)
    await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money])
    result = await open_session(agent, bank).send("500 to Sophie, but I'm not sure if I want to do it right now")

    assert (bank.sent, result.stop_reason) == ([], "completed")


@pytest.mark.proves("GC-34", "GC-D4", "GC-D7")
async def test_a_flight_to_nowhere_names_what_is_missing_and_what_is_invalid_with_its_choices() -> None:
    @tool
    async def book_flight(destination: Literal["London", "Tokyo", "Reykjavik"], passenger_id: int) -> str:
        """Book a flight."""
        raise AssertionError("nothing is booked")

    judge = scripted([plan(["g1"], needs("book_flight", {"destination": "Singapore"}))], ["We fly to London, …"])
    agent = agent_with(judge, [book_flight], policy=Policy([Rule.allow("*")]))
    await agent.create_guideline("Customer books a flight", tools=[book_flight])
    result = await open_session(agent).send("Book me a flight to Singapore")

    (missing,), (invalid,) = result.insights.missing_data, result.insights.invalid_data
    assert missing.parameter == "passenger_id"
    assert (invalid.parameter, invalid.value) == ("destination", "Singapore")
    assert invalid.choices == ("London", "Tokyo", "Reykjavik")
    assert result.results == ()


@pytest.mark.parametrize(("names", "batches"), [("abc", [("a", "b", "c")]), ("ac", [("a",), ("c",)])])
async def test_tools_that_overlap_are_judged_together_also_through_another_one(
    names: str, batches: list[tuple[str, ...]]
) -> None:
    def look(name: str) -> Any:
        @tool(name=name, read_only=True)
        async def look(what: str) -> str:
            """Look."""
            return what

        return look

    judge = scripted([plan(["g1"]), *[plan([])] * len(batches)], ["Fine."])
    settings = GuideSettings(match_first="always", max_tools_per_plan=1)
    agent = agent_with(judge, [look(item) for item in "abc"], settings=settings)
    await agent.create_guideline("Customer asks", tools=list(names))
    await agent.create_relationship("a", "overlaps", "b")
    await agent.create_relationship("c", "overlaps", "b")
    await open_session(agent).send("Look!")

    matching, *asked = judge.plan_requests
    assert matching.tools == ()
    assert sorted(tuple(item.name for item in request.tools) for request in asked) == batches


@pytest.mark.proves("GC-45", "GC-46")
async def test_a_guideline_that_a_result_brings_in_is_active_in_the_same_turn() -> None:
    @tool(read_only=True)
    async def availability_check() -> str:
        """Which rooms are free."""
        return "luxury: no"

    judge = scripted([plan(["g1"])], [Draft("Let me see.", new_matches=("g3",)), "I can offer the dungeon."])
    agent = agent_with(judge, [availability_check])
    await agent.create_guideline("Customer wants a room", tools=[availability_check])
    await agent.create_guideline("A luxury room is available", "Recommend it")
    await agent.create_guideline("No luxury room is available", "Recommend the dungeon")
    result = await open_session(agent).send("A room, please.")

    assert result.text == "I can offer the dungeon."
    assert [candidate.id for candidate in judge.reply_requests[0].candidates] == ["g2", "g3"]
    assert [guideline.id for guideline in judge.reply_requests[-1].guidelines] == ["g1", "g3"]
    assert (judge.questions, len(result.results)) == (3, 1)


@pytest.mark.proves("GC-09")
async def test_a_tool_that_two_guidelines_want_is_judged_once_called_once_and_remembers_both() -> None:
    bank = Bank()
    judge = scripted([plan(["g1", "g2"], needs("get_balance", {"account": "a"}))], ["Fine."])
    agent = agent_with(judge)
    await agent.create_guideline("Customer asks for the balance", tools=[get_balance])
    await agent.create_guideline("Customer wants to buy", tools=[get_balance])
    result = await open_session(agent, bank).send("Can I afford it?")

    (candidate,) = judge.plan_requests[0].tools
    assert candidate.guideline_ids == ("g1", "g2")
    assert (bank.reads, [evaluation.guideline_ids for evaluation in result.insights.evaluations]) == (
        ["a"],
        [("g1", "g2")],
    )


@pytest.mark.parametrize("matched", [["g1", "g2"], ["g2"]])
async def test_only_the_tools_of_the_guideline_with_priority_are_candidates(matched: list[str]) -> None:
    bank = Bank()
    judge = scripted([plan(matched, needs("get_balance", {"account": "b"}))], ["Fine."])
    agent = agent_with(judge)
    first = await agent.create_guideline("A")
    second = await agent.create_guideline("B", tools=[get_balance])
    await agent.create_relationship(first, "takes_priority_over", second)
    await open_session(agent, bank).send("Go.")

    assert bank.reads == ([] if "g1" in matched else ["b"])


@pytest.mark.parametrize("matched", [["g1"], ["g1", "g2"]])
async def test_a_guideline_is_inactive_while_what_it_depends_on_does_not_match(matched: list[str]) -> None:
    bank = Bank()
    judge = scripted([plan(matched, needs("get_balance", {"account": "b"}))], ["Fine."])
    agent = agent_with(judge)
    dependent = await agent.create_guideline("B", tools=[get_balance])
    needed = await agent.create_guideline("C")
    await agent.create_relationship(dependent, "depends_on", needed)
    await open_session(agent, bank).send("Go.")

    assert bank.reads == (["b"] if "g2" in matched else [])


async def test_a_guideline_that_another_entails_brings_its_tools() -> None:
    bank = Bank()
    judge = scripted(
        [Plan((GuidelineMatch("g1"), GuidelineMatch("g2", False)), (needs("get_balance", {"account": "x"}),))], ["Ok."]
    )
    agent = agent_with(judge)
    suggest = await agent.create_guideline("Customer wants a suggestion")
    check = await agent.create_guideline("Something is suggested", tools=[get_balance])
    await agent.create_relationship(suggest, "entails", check)
    result = await open_session(agent, bank).send("Suggest something.")

    assert bank.reads == ["x"]
    assert {guideline.id: guideline.applies for guideline in result.trace.iterations[0].guidelines} == {
        "g1": True,
        "g2": True,
    }


@pytest.mark.proves("GC-30", "GC-D13")
async def test_a_tool_that_sets_manual_mode_silences_the_agent_whatever_another_tool_says() -> None:
    @tool(read_only=True)
    async def call_a_person() -> ToolResult:
        """Hand over."""
        return ToolResult(output="coming", control=Control(mode="manual"))

    @tool(read_only=True)
    async def say_nothing() -> ToolResult:
        """Nothing."""
        return ToolResult(output="nothing", control=Control(mode="auto"))

    judge = scripted([plan(["g1"])])
    agent = agent_with(judge, [call_a_person, say_nothing])
    await agent.create_guideline("Customer is angry", tools=[call_a_person, say_nothing])
    session = open_session(agent)
    result = await session.send("I want a person!")
    later = await session.send("Hello?")

    assert (result.stop_reason, result.text, len(result.results)) == ("handed_off", "", 2)
    assert (later.stop_reason, later.text, judge.questions) == ("handed_off", "", 1)


@pytest.mark.proves("GC-31")
async def test_a_result_for_this_reply_only_is_not_in_the_history_and_can_be_asked_for_again() -> None:
    made: list[int] = []

    @tool(read_only=True)
    async def secret_offer() -> ToolResult:
        """The offer of the hour."""
        made.append(1)
        return ToolResult(output="10 % off", control=Control(lifespan="response"))

    judge = scripted([plan(["g1"]), plan(["g1"])], ["10 % off.", "Still 10 %."])
    agent = agent_with(judge, [secret_offer])
    await agent.create_guideline("Customer asks for an offer", tools=[secret_offer])
    session = open_session(agent)
    await session.send("An offer?")

    assert [result.output for result in judge.reply_requests[0].results] == ["10 % off"]
    assert "10 % off" not in str([message for message in session.conversation.messages if hasattr(message, "results")])
    await session.send("And now?")
    assert made == [1, 1]


@pytest.mark.proves("GC-45", "GC-46", "GC-D1")
async def test_a_high_balance_leads_to_the_investments_in_the_same_turn() -> None:
    bank = Bank()
    judge = scripted(
        [plan(["g1"], needs("get_balance", {"account": "current"}))],
        [Draft("You have 20000 EUR.", new_matches=("g2",)), "You have 20000 EUR; how about bonds?"],
    )
    agent = agent_with(judge, [get_balance, get_investment_options])
    await agent.create_guideline("Customer asks for the balance", tools=[get_balance])
    await agent.create_guideline("The balance is high", "Recommend investments", tools=[get_investment_options])
    result = await open_session(agent, bank).send("How much do I have?")

    assert bank.reads == ["current", "investments"]
    assert result.text == "You have 20000 EUR; how about bonds?"
    assert (judge.questions, result.trace.model_calls, len(result.trace.iterations)) == (3, 3, 2)
    assert result.trace.reply.rejected == ("g2 applies only now",)


async def test_a_cascade_whose_tool_needs_arguments_takes_four_questions() -> None:
    bank = Bank()

    @tool(read_only=True)
    async def other(account: str, context: ToolContext[Bank]) -> str:
        """Another."""
        context.deps.reads.append(account)
        return account

    judge = scripted(
        [plan(["g1"], needs("get_balance", {"account": "a"})), plan(["g1", "g2"], needs("other", {"account": "b"}))],
        [Draft("…", new_matches=(GuidelineMatch("g2"),)), "Both."],
    )
    agent = agent_with(judge, [get_balance, other])
    await agent.create_guideline("Customer asks for the balance", tools=[get_balance])
    await agent.create_guideline("The balance is high", tools=[other])
    await open_session(agent, bank).send("How much do I have?")

    assert (bank.reads, judge.questions) == (["a", "b"], 4)


@pytest.mark.proves("GC-45", "GC-D12")
async def test_a_missing_value_that_a_result_supplies_is_no_longer_an_insight() -> None:
    @tool(read_only=True)
    async def find_id(name: str) -> str:
        """Find the id of a person."""
        return "17"

    @tool(read_only=True)
    async def details(person_id: str) -> str:
        """Details of a person."""
        return f"details of {person_id}"

    judge = scripted(
        [
            plan(["g1"], needs("find_id", {"name": "Ann"}), ToolVerdict("details", "cannot_run")),
            plan(["g1"], needs("details", {"person_id": "17"})),
        ],
        ["Here."],
    )
    agent = agent_with(judge, [find_id, details])
    await agent.create_guideline("Customer asks about a person", tools=[find_id, details])
    result = await open_session(agent).send("Who is Ann?")

    assert [item.output for item in result.results] == ["17", "details of 17"]
    assert (result.insights.missing_data, len(result.trace.iterations)) == ((), 2)
    assert [evaluation.state for evaluation in result.insights.evaluations if evaluation.tool == "details"] == [
        "cannot_run",
        "needs_to_run",
    ]
    assert [item.output for item in judge.plan_requests[1].results] == ["17"]
