"""The checks of a judge's verdicts, one by one: what counts, what is reported, and what nobody may read."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, PlainSerializer, SecretStr, model_validator

from handrail import Executor, Policy, Rule, ToolCall, ToolError, tool
from handrail.chat import PendingCall
from handrail.core import Approval
from handrail.errors import InvalidArgumentsError
from handrail.guide import GuidelineMatch, ParameterOptions, Plan, ToolVerdict
from handrail.guide.confirmation import decide_pending, find_objection
from handrail.guide.parameters import EvidenceSources, compile_tool
from handrail.guide.reply_checks import build_effect, find_false_claims, names_hidden
from handrail.guide.verdicts import (
    NOT_ADAPTED,
    AdaptedArguments,
    MalformedResponse,
    adapt_verdicts,
    build_arguments_key,
    check_arguments,
    check_plan,
)
from handrail.providers import AssistantMessage, UserMessage
from tests.execute.helpers import at
from tests.guide.kit import agent_with, needs, open_session, plan, scripted

ALLOW = Policy([Rule.allow("*")])
SAID = EvidenceSources(customer=("Send 500 to Sophie on Monday, please.",), others=("The limit is 900.",))


def check(made: Any, arguments: dict[str, Any], **options: Any) -> Any:
    """The arguments of a verdict after the checks; the evidence for each is the value itself."""
    verdict = ToolVerdict(made.name, "needs_to_run", arguments, {name: str(value) for name, value in arguments.items()})
    given = {"guideline_ids": ("g1",), "choices": {}, "find_sources": lambda: SAID, "adapted": NOT_ADAPTED, **options}
    return check_arguments(compile_tool(made), verdict, **given)


# A plan


@pytest.mark.parametrize(("matches", "verdicts"), [(500, 0), (0, 100)])
def test_a_plan_may_be_as_long_as_it_may_be_and_no_longer(matches: int, verdicts: int) -> None:
    from handrail.guide.verdicts import MAX_MATCHES, MAX_VERDICTS

    match, verdict = GuidelineMatch("g", True, ""), ToolVerdict("t", "not_applicable", {}, {})
    limits = {"matches": MAX_MATCHES if matches else 0, "verdicts": MAX_VERDICTS if verdicts else 0}

    whole = Plan((match,) * limits["matches"], (verdict,) * limits["verdicts"])
    assert len(check_plan(whole).matches) == limits["matches"]
    with pytest.raises(MalformedResponse, match="must have at most"):
        check_plan(
            Plan((match,) * (limits["matches"] + bool(matches)), (verdict,) * (limits["verdicts"] + bool(verdicts)))
        )


# Arguments


class Range(BaseModel):
    """Two numbers that have to fit together."""

    low: int
    high: int

    @model_validator(mode="after")
    def check(self) -> "Range":
        if self.low > self.high:
            raise ValueError("the limit_code is wrong" if self.low > 1_000 else "low must not be above high")
        return self


@tool(read_only=True)
def count(within: Range, color: str = "red", tags: list[str] | None = None) -> str:
    """Count."""
    return "7"


@pytest.mark.parametrize(
    ("arguments", "choices", "wrong"),
    [
        ({"color": "red"}, {"color": ["red", "blue"]}, []),
        ({"color": "green"}, {"color": ["red", "blue"]}, ["color"]),
        ({"tags": ["a", "b"]}, {"tags": ["a", "b", "c"]}, []),
        ({"tags": ["a", "x"]}, {"tags": ["a", "b", "c"]}, ["tags"]),
        ({"tags": []}, {"tags": ["a"]}, []),
        ({}, {"color": ["blue"]}, []),
    ],
)
def test_a_value_is_one_of_the_choices_and_so_is_each_of_a_list(
    arguments: dict[str, Any], choices: Any, wrong: list[str]
) -> None:
    checked = check(count, {"within": {"low": 1, "high": 2}, **arguments}, choices=choices)

    assert [item.parameter for item in checked.invalid] == wrong
    assert checked.ok is not bool(wrong)


def test_a_problem_of_one_parameter_is_its_own_and_one_of_all_is_of_the_whole() -> None:
    inside = check(count, {"within": {"low": "x", "high": 2}})
    both = check(count, {"within": {"low": 3, "high": 2}})

    assert [item.parameter for item in inside.invalid] == ["within"]
    assert inside.error == ""
    assert (inside.missing, inside.ok) == ((), False)
    assert not both.ok
    assert "low must not be above high" in (both.error + "".join(item.reason for item in both.invalid))


@tool
def pay(
    amount: int,
    limit_code: Annotated[str, ParameterOptions(hidden=True)] = "std",
    note: Annotated[str, ParameterOptions(precedence=2)] = "",
    to: Annotated[str, ParameterOptions(precedence=1)] = "",
) -> str:
    """Pay."""
    return "paid"


def test_an_error_of_a_tool_is_told_unless_it_names_what_is_hidden() -> None:
    def refuse(text: str) -> Any:
        def parse(arguments_json: str) -> Any:
            raise ToolError(text)

        return replace(pay, parse=parse)

    assert check(refuse("the desk is closed"), {"amount": 500}).error == "the desk is closed"
    assert check(refuse("limit_code is wrong"), {"amount": 500}).error == "the arguments are not valid"


def test_only_the_parameters_of_the_lowest_precedence_are_reported_and_never_hidden_ones() -> None:
    checked = check(pay, {"amount": 500, "note": 7, "to": 8, "limit_code": 9})
    without = check(pay, {"amount": 500, "note": 7, "limit_code": 9})
    hidden = check(pay, {"amount": 500, "limit_code": 9})

    assert [item.parameter for item in checked.invalid] == ["to"]
    assert [item.parameter for item in without.invalid] == ["note"]
    assert hidden.invalid == ()
    assert not hidden.ok
    assert hidden.error


@pytest.mark.parametrize(
    ("problems", "reported"),
    [({"amount": "no number"}, "amount"), ({}, "amount"), ({"note": "no text"}, "note")],  # A precedence comes first.
)
def test_a_value_that_could_not_be_adapted_is_reported_as_invalid(problems: dict[str, str], reported: str) -> None:
    checked = check(pay, {"amount": "many"}, adapted=AdaptedArguments(said={}, problems=problems))

    [invalid] = checked.invalid
    assert (invalid.parameter, checked.ok) == (reported, False)
    assert not problems or invalid.reason == problems[reported]
    assert checked.error == ""


@pytest.mark.parametrize(
    ("problems", "error"),
    [({}, "nothing fits together"), ({"amount": "no number"}, ""), ({"note": "no text"}, "")],
)
def test_a_problem_of_the_whole_is_not_told_beside_a_value_that_could_not_be_adapted(
    problems: dict[str, str], error: str
) -> None:
    def parse(arguments_json: str) -> Any:
        raise InvalidArgumentsError("nothing fits together")

    checked = check(replace(pay, parse=parse), {"amount": 500}, adapted=AdaptedArguments(said={}, problems=problems))

    assert checked.error == error
    assert not checked.ok


@pytest.mark.parametrize(
    ("message", "places", "error"),
    [
        ("- amount: not a number", ["amount"], ""),
        ("- amount: not a number", ["amount", ""], "- amount: not a number"),
        ("they do not fit", [], "they do not fit"),
        ("they do not fit", [""], "they do not fit"),
        ("the limit_code does not fit", [""], "the arguments are not valid together"),
    ],
)
def test_what_is_wrong_with_the_arguments_as_a_whole_is_said_unless_it_names_what_is_hidden(
    message: str, places: list[str], error: str
) -> None:
    def parse(arguments_json: str) -> Any:
        raise InvalidArgumentsError(message, places=places)

    assert check(replace(pay, parse=parse), {"amount": 500}).error == error


def test_equal_arguments_have_one_key_and_secrets_tell_two_calls_apart() -> None:
    @tool
    def charge(card: SecretStr, amount: int = 5) -> None:
        """Charge."""

    made = compile_tool(charge)
    first = build_arguments_key(made, '{"card": "4111"}')

    assert build_arguments_key(made, '{ "card": "4111" }') == first
    assert build_arguments_key(made, '{"card": "4222"}') != first
    plain = compile_tool(count)
    short, whole = ('{"within": {"low": 1, "high": 2}}', '{"within": {"low": 1, "high": 2}, "color": "red"}')
    assert build_arguments_key(plain, short) == build_arguments_key(plain, whole)


def fail_to_write(value: str) -> str:
    raise RuntimeError("cannot be written")


def test_arguments_that_cannot_be_written_are_an_error_and_no_call() -> None:
    @tool
    def odd(text: Annotated[str, PlainSerializer(fail_to_write)]) -> None:
        """Odd."""

    with pytest.raises(ToolError, match="could not be compared"):
        build_arguments_key(compile_tool(odd), '{"text": "a"}')


@pytest.mark.parametrize(
    ("text", "values", "found"),
    [
        ("the limit_code says no", (), "limit_code"),
        ("it is GOLD7", ("GOLD7",), "a value"),
        ("it is GOLD", ("GOLD",), "a value"),
        ("it is ABC", ("ABC",), None),  # Too short to tell anything.
        ("that is True", (True,), None),
        ("None of them", (None,), None),
        ("it is 1234", (1234,), "a value"),
        ("nothing", ("GOLD7",), None),
    ],
)
def test_a_text_names_what_is_hidden_by_its_name_or_its_value(text: str, values: Any, found: str | None) -> None:
    assert names_hidden(compile_tool(pay), text, values) == found


@pytest.mark.parametrize(
    ("pending", "is_adapted"),
    [
        ([], True),
        ([ToolCall(id="c", name="wire", arguments_json='{"amount": "ten"}')], False),
        ([ToolCall(id="c", name="wire", arguments_json='{"amount": "eleven"}')], True),
        ([ToolCall(id="c", name="other", arguments_json='{"amount": "ten"}')], True),
    ],
)
async def test_what_the_customer_said_is_adapted_unless_it_is_a_call_that_waits_already(
    pending: Any, is_adapted: bool
) -> None:
    @tool
    def wire(amount: Annotated[int, ParameterOptions(adapter=lambda said, context: {"ten": 10}[said])]) -> None:
        """Wire."""

    guide: Any = SimpleNamespace(tools={"wire": compile_tool(wire), "other": compile_tool(list_offers)})
    judged = Plan((), (ToolVerdict("wire", "needs_to_run", {"amount": "ten"}, {}),))
    adapted, said = await adapt_verdicts(judged, guide, at(), Executor([]), candidates=["wire"], pending=pending)

    assert adapted.verdicts[0].arguments == {"amount": 10 if is_adapted else "ten"}
    assert {place: dict(one.said) for place, one in said.items()} == ({0: {"amount": "ten"}} if is_adapted else {})


# Evaluations: what a person reads in the trace.


@tool(read_only=True)
def list_offers() -> str:
    """List offers."""
    return "bonds"


@tool
def send(amount: int, code: Annotated[str, ParameterOptions(hidden=True)] = "std") -> str:
    """Send an amount."""
    return f"sent {amount}"


async def evaluate(tools: Any, *plans: Plan, text: str = "Send 500.") -> list[tuple[int, str, str, str]]:
    judge = scripted(plans, ["Fine."])
    agent = agent_with(judge, tools, policy=ALLOW)
    await agent.create_guideline("Customer wants something", tools=list(tools))
    result = await open_session(agent).send(text)
    return [
        (evaluation.iteration, evaluation.tool, evaluation.state, evaluation.reason)
        for evaluation in result.insights.evaluations
    ]


async def test_a_tool_that_needs_no_arguments_runs_once_and_is_in_the_trace() -> None:
    judge = scripted([plan(["g1"]), plan(["g1", "g2"], needs("look", {"amount": 500})), plan(["g1", "g2"])], ["Fine."])
    agent = agent_with(judge, [list_offers, look], policy=ALLOW)
    await agent.create_guideline("Customer asks for offers", tools=[list_offers], id="g1")
    await agent.create_guideline("There are bonds", tools=[look], id="g2")
    result = await open_session(agent).send("What is there for 500?")

    found = [
        (evaluation.iteration, evaluation.state, evaluation.reason)
        for evaluation in result.insights.evaluations
        if evaluation.tool == "list_offers"
    ]
    assert found[0] == (1, "needs_to_run", "it needs no arguments")
    assert "needs_to_run" not in [state for _, state, _ in found[1:]]
    assert [item.tool_name for item in result.results].count("list_offers") == 1


async def test_equal_calls_of_one_plan_are_one_call_and_both_are_in_the_trace() -> None:
    twice = needs("send", {"amount": 500}, reason="asked for")
    found = await evaluate([send], plan(["g1"], twice, twice), plan(["g1"], twice), plan(["g1"]))

    assert [item[2:] for item in found if item[0] == found[0][0]] == [
        ("needs_to_run", "asked for"),
        ("data_already_in_context", "the same call is already planned"),
    ]


@tool(read_only=True)
def look(amount: int, code: Annotated[str, ParameterOptions(hidden=True)] = "std") -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize(
    ("made", "arguments", "asked", "ran"),
    [
        (send, {"amount": 500}, [], 1),
        (send, {"amount": 500, "code": "std"}, [], 1),
        (send, {"amount": 500, "code": "gold"}, ["operator"], 0),
        (look, {"amount": 500, "code": "gold"}, [], 1),
    ],
)
async def test_an_operator_agrees_to_what_a_model_set_and_the_customer_cannot_see(
    made: Any, arguments: dict[str, Any], asked: list[str], ran: int
) -> None:
    judge = scripted([plan(["g1"], needs(made.name, arguments)), plan(["g1"]), plan(["g1"])], ["Fine."])
    agent = agent_with(judge, [made], policy=ALLOW)
    await agent.create_guideline("Customer wants something", tools=[made])
    session = open_session(agent)
    result = await session.send("Send 500.")

    assert [approval.by for approval in await session.approvals()] == asked
    assert len([item for item in result.results if item.ok]) == ran


# Pending calls


def a_pending(
    id: str = "c-1", *, by: Literal["customer", "operator"] = "customer", read_back_at: int = 2, **more: Any
) -> Any:
    arguments = more.pop("arguments", {"amount": 500})
    approval = Approval(
        token=f"t-{id}",
        tool="send",
        digest=id,
        session_id="s-1",
        by=by,
        turn=more.pop("turn", 1),
        arguments=arguments,
        created_at=1.0,
        expires_at=4e9,
    )
    call = ToolCall(id=id, name=more.pop("name", "send"), arguments_json=str(arguments).replace("'", '"'))
    return PendingCall(call=call, approval=approval, read_back_at=read_back_at)


def says(*texts: str, turn: int = 2, waiting: Any = None, pending: Any = None, after: Any = ()) -> str | None:
    waiting = waiting or a_pending()
    messages = (UserMessage(text="Send it."), AssistantMessage(text="Shall I send 500?"))
    messages += tuple(UserMessage(text=text) for text in texts) + tuple(after)
    tools = {"send": compile_tool(send)}
    return find_objection(waiting, pending=pending or [waiting], tools=tools, messages=messages, turn=turn, locale="en")


def test_a_yes_counts_in_a_later_turn_than_the_question_and_after_it_was_read_back() -> None:
    assert says("Yes, send it.") is None
    assert says("Yes, send it.", turn=1) == "it was not read back in an earlier turn"
    assert says("Yes.", waiting=a_pending(read_back_at=0)) == "it was not read back in an earlier turn"
    assert says("Yes.", waiting=a_pending(turn=2)) == "it was not read back in an earlier turn"
    assert says("Yes.", waiting=a_pending(turn=3), turn=4) is None
    assert says("Yes.", waiting=a_pending(by="operator")) == "it waits for the operator"


def test_only_what_the_customer_wrote_since_then_counts_and_a_no_among_it_is_a_no() -> None:
    assert says() == "the customer has not answered since it was read back"
    assert says(after=[AssistantMessage(text="Yes.")]) == "the customer has not answered since it was read back"
    assert says("Yes, send it.", after=[AssistantMessage(text="No.")]) is None
    assert says("No, do not.", "Yes, send it.") == "the customer refused it"
    assert says("Yes, send it.", "Hmm, the weather.") == "the customer's words are not a clear yes to it"


def test_a_call_that_waits_for_an_operator_takes_no_part_in_what_a_yes_is_about() -> None:
    waiting, other = a_pending(), a_pending("c-2", by="operator", arguments={"amount": 900})

    assert says("Yes, send 500.", waiting=waiting, pending=[waiting, other]) is None
    assert says("Yes, 500 and 900.", waiting=waiting, pending=[waiting, other]) == says("Yes, 500 and 900.")


def test_of_several_calls_that_were_read_back_a_yes_names_the_one_or_both() -> None:
    waiting, other = a_pending(), a_pending("c-2", arguments={"amount": 900})
    pending = [waiting, other]

    assert says("Yes, the 500 and the 900.", waiting=waiting, pending=pending) is None
    assert says("Yes, the 500 and the 900.", waiting=other, pending=pending) is None
    assert says("Yes, the 900.", waiting=waiting, pending=pending) is not None


def decide(pending: list[Any], *verdicts: ToolVerdict, keys: Any = None, **more: Any) -> list[tuple[str, str]]:
    pending_keys = {approval.call.id: f"k-{approval.approval.arguments['amount']}" for approval in pending}
    found = {index: f"k-{one.arguments['amount']}" for index, one in enumerate(verdicts) if one.arguments}
    given = {"objections": {}, "removed": {}, **more}
    decisions, _ = decide_pending(pending, verdicts, keys or found, pending_keys, **given)
    return [(decision.action, decision.reason) for decision in decisions]


def a_verdict(amount: int | None = 500, confirmation: Any = "yes", state: Any = "needs_to_run") -> ToolVerdict:
    return ToolVerdict("send", state, {} if amount is None else {"amount": amount}, {}, "", confirmation)


@pytest.mark.parametrize(
    ("verdicts", "actions"),
    [
        ([a_verdict(500)], ["run", "withdraw"]),
        ([a_verdict(500), a_verdict(900)], ["run", "run"]),
        ([a_verdict(500, "no")], ["deny", "withdraw"]),
        ([a_verdict(None, "no")], ["deny", "deny"]),
        ([a_verdict(700, "no")], ["withdraw", "withdraw"]),
        ([a_verdict(500, None)], ["keep", "withdraw"]),
        ([a_verdict(500, "yes", "cannot_run")], ["withdraw", "withdraw"]),
        ([a_verdict(None, "yes")], ["keep", "keep"]),
        ([], ["withdraw", "withdraw"]),
    ],
)
def test_what_a_judge_said_about_two_pending_calls_of_one_tool(verdicts: Any, actions: list[str]) -> None:
    pending = [a_pending(), a_pending("c-2", arguments={"amount": 900})]

    assert [action for action, _ in decide(pending, *verdicts)] == actions


def test_a_no_without_its_values_is_about_the_only_call_of_its_tool() -> None:
    assert decide([a_pending()], a_verdict(700, "no")) == [("deny", "the customer rejected it")]


def test_a_yes_that_does_not_count_keeps_the_call_and_says_why() -> None:
    assert decide([a_pending()], a_verdict(), objections={"c-1": "no clear yes"}) == [("keep", "no clear yes")]
    assert decide([a_pending()], a_verdict(), removed={"c-1": "gone"}) == [("withdraw", "gone")]
    assert decide([a_pending()], a_verdict(confirmation="no"), removed={"c-1": "gone"})[0][0] == "deny"


def test_a_call_that_waits_for_an_operator_stays_unless_the_customer_changes_it() -> None:
    waiting = a_pending(by="operator", arguments={"amount": 500, "to": "Sophie"})

    assert decide([waiting]) == [("keep", "it waits for the operator")]
    changed = ToolVerdict("send", "needs_to_run", {"amount": 700, "to": "Sophie"}, {}, "", None)
    other = ToolVerdict("send", "needs_to_run", {"amount": 700, "to": "Bob"}, {}, "", None)
    assert decide([waiting], changed) == [("withdraw", "the customer wants it with other values")]
    assert decide([waiting], other) == [("keep", "it waits for the operator")]
    alone = a_pending(by="operator")
    assert decide([alone], a_verdict(700, None)) == [("withdraw", "the customer wants it with other values")]


def test_why_a_customers_call_is_withdrawn() -> None:
    assert decide([a_pending()], a_verdict(700, None)) == [("withdraw", "the customer wants something else")]
    assert decide([a_pending()]) == [("withdraw", "it was not confirmed")]
    assert decide([a_pending()], a_verdict(None, "yes")) == [("keep", "the yes did not repeat its arguments")]


# Claims


def test_an_effect_is_known_by_its_own_words_and_not_by_those_of_every_tool() -> None:
    effect = build_effect("transfer_money", "Transfer funds to the account of a customer, for you and with it all")

    assert effect.stems == build_effect("transfer_money", "Transfer funds").stems
    assert {"the", "of", "to", "a"}.isdisjoint(effect.stems)


@pytest.mark.parametrize("text", ["", "  ", " . . ", "\n\n"])
def test_a_text_without_a_sentence_claims_nothing(text: str) -> None:
    assert find_false_claims(text, candidates=[build_effect("transfer_money", "Transfer funds")]) == ()
