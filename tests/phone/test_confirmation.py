"""A yes is a yes: what the agent said is compared, all words of the caller count, one question is asked at a time."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import structs

from handrail import Tool, ToolCall, ToolContext, tool
from handrail.phone import signals as s
from handrail.phone.confirmation import describe_call
from handrail.tenants import BuiltTool, Texts, ToolBuilder
from tests.phone.calls import play
from tests.phone.machine_call import READ_BACK, Call
from tests.tenants.samples import acme, refer


@pytest.mark.parametrize("yes", ["Yes.", "Oui, merci.", "Да", "好的", "Ja, bitte.", "Yes, 50 euros to Ann"])
def test_a_yes_after_the_read_back_is_a_yes_in_every_language(yes: str) -> None:
    call = Call()
    call.want()
    call.speak()
    call.hear(yes)

    assert call.state() == "yes"
    assert len(call.asked) == 1


@pytest.mark.parametrize(
    "spoken", ["Our opening hours are nine to five.", "I pay 60 euros to Ann.", "50 euros to Bob?"]
)
def test_a_yes_to_something_else_is_none_and_the_values_are_read_in_our_own_words(spoken: str) -> None:
    call = Call()
    call.want()
    call.speak(spoken)
    assert call.state() == "no"
    assert READ_BACK in call.asked[-1]
    assert "exactly" in call.asked[-1]
    call.speak(f"{READ_BACK}. Please answer yes or no.")
    call.hear("Yes.")

    assert call.state() == "yes"


@pytest.mark.parametrize(
    ("status", "is_played"), [("incomplete", True), ("completed", False), ("cancelled", False), ("failed", True)]
)
def test_a_read_back_that_was_not_heard_to_its_end_does_not_count_and_is_repeated(
    status: s.ResponseStatus, is_played: bool
) -> None:
    call = Call()
    call.want()
    call.speak(status=status, is_played=is_played)
    item = call.hear("Yes.")
    call.feed(s.TimerFired(name="blocked"))

    assert call.state() == "no"
    assert item
    assert len(call.asked) == 2


def test_everything_that_the_caller_said_since_the_read_back_counts() -> None:
    call = Call()
    call.want()
    call.speak()
    first = call.hear(is_written=False)
    call.hear("Hm.")
    assert call.state() == "unknown"
    call.feed(s.CallerTranscribed(item_id=first, transcript="No, stop!"))

    assert call.state() == "no"
    assert [command.token for command in call.of(s.RefuseApproval)] == ["t1"]


def test_a_yes_beside_words_that_nobody_understood_is_no_yes() -> None:
    call = Call()
    call.want()
    call.speak()
    first = call.hear(is_written=False)
    call.hear("Yes.")
    call.feed(s.CallerTranscribed(item_id=first, transcript=None))

    assert call.state() == "no"
    assert len(call.asked) == 2


def test_consent_is_unknown_until_its_transcript_is_there() -> None:
    call = Call()
    call.want()
    call.speak()
    item = call.hear(is_written=False)
    assert call.state() == "unknown"
    call.feed(s.CallerTranscribed(item_id=item, transcript="Yes."))

    assert call.state() == "yes"


@pytest.mark.parametrize("transcript", ["Mm.", "What does it cost?", "Yes, but only 40.", None, ""])
def test_what_is_neither_yes_nor_no_is_asked_again_twice_and_then_given_up(transcript: str | None) -> None:
    call = Call()
    call.want()
    for _ in range(3):
        call.speak(f"{READ_BACK}. Please answer yes or no.")
        call.hear(transcript)
        assert call.state() == "no"

    assert len(call.asked) == 3
    assert "confirmation_given_up" in call.notes
    assert "not clearly agreed" in call.of(s.SendMessage)[-1].text
    assert not call.of(s.RefuseApproval)


def test_a_no_and_then_a_yes_is_a_yes_to_the_new_read_back() -> None:
    call = Call()
    call.want()
    call.speak()
    call.hear("No, wait.")
    assert call.state() == "no"
    call.want("t2")
    call.speak()
    call.hear("Yes.")

    assert (call.state("t1"), call.state("t2")) == ("no", "yes")


def test_two_calls_are_read_back_one_after_the_other_each_with_its_own_answer() -> None:
    call = Call()
    call.want("t1")
    call.want("t2", text="Pay: amount: 900, to: Bob", values=(900, "Bob"))
    call.speak()
    assert len(call.asked) == 1  # The caller has not answered the first.
    call.hear("Yes.")
    assert (call.state("t1"), call.state("t2")) == ("yes", "no")
    call.speak("Pay 900 to Bob?")
    call.hear("No.")

    assert len(call.asked) == 2
    assert (call.state("t1"), call.state("t2")) == ("yes", "no")
    assert [command.token for command in call.of(s.RefuseApproval)] == ["t2"]


def test_a_refusal_before_the_read_back_was_heard_withdraws_the_question() -> None:
    call = Call()
    call.want()
    call.feed(s.CallerStarted(item_id="i1"), s.PlaybackCleared(response_id="none"))
    call.speak(status="cancelled", is_played=False)
    call.feed(s.CallerStopped(item_id="i1"), s.CallerTranscribed(item_id="i1", transcript="No, stop!"))
    call.feed(s.ResponseStarted(response_id="ok"), s.ResponseFinished(response_id="ok", status="completed"))

    assert [command.token for command in call.of(s.RefuseApproval)] == ["t1"]
    assert len(call.asked) == 1


def test_without_transcripts_the_model_reads_the_answer() -> None:
    call = Call(has_transcripts=False)
    call.want()
    call.speak()
    call.hear(is_written=False)

    assert call.state() == "yes"


TO_SALES: dict[str, Any] = {"name": "request_transfer", "args": {"destination_id": "sales"}}


def test_a_caller_who_changes_their_mind_is_asked_again_and_transferred() -> None:
    question = "Transfer the call to Service Commercial, yes or no?"
    played = play(
        {
            "model": [
                {"say": "Hello."},
                {"calls": [{"id": "c1", **TO_SALES}]},
                {"say": question},
                {"say": "Alright."},
                {"calls": [{"id": "c2", **TO_SALES}]},
                {"say": question},
                {"calls": [{"id": "c3", **TO_SALES}]},
                {"say": "I put you through."},
            ],
            "caller": [
                {"say": "Sales, please."},
                {"say": "No, wait."},
                {"say": "On second thought, do put me through."},
                {"say": "Yes."},
                {"sleep": 30},
            ],
            "expect": [{"http": "refer", "times": 1}, {"ended": "transferred"}],
        },
        tenants=[acme(greeting="Hello.", features={"refer": refer()}, transcription_model="gpt-4o-transcribe")],
    )

    items = [event["item"] for event in played.report.client_events("conversation.item.create")]
    outputs = {item["call_id"]: json.loads(item["output"]) for item in items if item["type"] == "function_call_output"}
    assert outputs["c1"]["error"] == outputs["c2"]["error"] == "approval_required"
    assert outputs["c3"]["message"] == "call_transfer_requested"


def test_the_numbers_of_a_tools_own_read_back_have_to_be_said_too() -> None:
    def read_back(arguments: Mapping[str, Any]) -> str:
        return f"Pay {arguments['amount']} to Al"

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    builder = ToolBuilder()
    builder.register(lambda cfg: BuiltTool(tool=pay, read_back=read_back))

    described = describe_call(builder.build_tools(acme()), "pay", {"amount": 50}, Texts())

    assert described.values == ("pay", "50")


@pytest.mark.parametrize(
    ("spoken", "state"),
    [
        ("Order a lamp, yes or no?", "no"),
        ("Order: item: lamp, express delivery: no. Yes or no?", "no"),
        ("Order: item: lamp, express delivery: yes. Please answer yes or no.", "yes"),
    ],
)
def test_a_truth_value_is_spoken_with_its_name(spoken: str, state: str) -> None:
    arguments = {"item": "lamp", "express_delivery": True}
    described = describe_call(ToolBuilder().build_tools(acme()), "order", arguments, Texts())
    call = Call()
    call.want(text=described.text, values=described.values)
    call.speak(spoken)
    call.hear("Yes.")

    assert call.state() == state


def test_a_truth_value_is_read_in_the_language_of_the_tenant() -> None:
    built = ToolBuilder().build_tools(acme())
    read = [describe_call(built, "buy", {"gift": gift}, Texts("fr")).text for gift in (True, False)]

    assert [text.rpartition(" ")[2] for text in read] == ["oui", "non"]


def test_a_long_read_back_is_read_to_its_end() -> None:
    @tool
    async def pay(note: str, amount: int) -> str:
        """Pay."""
        return "paid"

    builder = ToolBuilder()
    builder.register(
        lambda cfg: BuiltTool(tool=pay, read_back=lambda given: f"Note {given['note']}: {given['amount']}")
    )
    built, given = builder.build_tools(acme()), {"note": "rent " * 500, "amount": 5000}

    own, listed = describe_call(built, "pay", given, Texts()), describe_call(built, "other", given, Texts())

    assert "5000" in own.values
    assert own.text.endswith("5000")
    assert listed.text.endswith("5000")


def take_amount_and_fail(given: Any) -> str:
    raise RuntimeError(f"no rate for {given.pop('amount')}")


def take_amount_and_cancel(given: Any) -> str:
    given.clear()
    raise asyncio.CancelledError


@pytest.mark.parametrize("read_back", [take_amount_and_fail, take_amount_and_cancel])
def test_a_read_back_that_fails_leaves_every_value_to_be_listed(read_back: Any) -> None:
    @tool
    async def pay(name: str, amount: int) -> str:
        """Pay."""
        return "paid"

    builder = ToolBuilder()
    builder.register(lambda cfg: BuiltTool(tool=pay, read_back=read_back))

    described = describe_call(builder.build_tools(acme()), "pay", {"name": "Ann", "amount": 50}, Texts())

    assert described.text == "pay: name: Ann, amount: 50"
    assert described.values == ("Ann", 50)


DONE = Texts()("read_back.repeat")


@pytest.mark.parametrize(
    ("words", "state"), [("Yes.", "yes"), ("Yes, once more please.", "yes"), ("Yes, it was already done.", "no")]
)
def test_a_caller_hears_first_that_it_was_already_done(words: str, state: str) -> None:
    call = Call()
    call.want(values=("already", "once", 50, "Ann"), notice=DONE)
    assert f"{DONE}. {READ_BACK}" in call.asked[0]
    call.speak("I am going to pay 50 euros to Ann, yes or no?")  # Not a word of it.
    call.hear("Yes.")
    assert call.state() == "no"
    assert f"{DONE}. {READ_BACK}. Please answer yes or no." in call.asked[1]
    call.speak(f"{DONE}. Pay 50 to Ann?")
    call.hear(words)

    assert call.state() == state


def test_a_payment_that_is_wanted_twice_is_read_back_as_done() -> None:
    paid: list[int] = []

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    again = {"name": "pay", "args": {"amount": 50}}
    once, twice = "pay: amount: 50, yes or no?", f"{DONE}: pay: amount: 50, yes or no?"
    played = play(
        {
            "model": [
                {"say": "Hello."},
                {"calls": [{"id": "c1", **again}]},
                {"say": once},
                {"calls": [{"id": "c2", **again}]},
                {"say": "Paid."},
                {"calls": [{"id": "c3", **again}]},
                {"say": twice},
                {"calls": [{"id": "c4", **again}]},
                {"say": "Paid again."},
            ],
            "caller": [
                {"say": "Pay 50, please."},
                {"say": "Yes."},
                {"say": "Pay 50, please."},
                {"say": "Yes."},
                {"sleep": 30},
            ],
            "expect": [],
        },
        tools=[pay],
        tenants=[acme(greeting="Hello.", transcription_model="gpt-4o-transcribe")],
    )

    asked = [event["response"].get("instructions", "") for event in played.report.client_events("response.create")]
    assert [DONE in call for call in asked if "pay: amount: 50" in call] == [False, True]
    assert paid == [50, 50]


@pytest.mark.parametrize("locale", ["de", "en", "es", "fr", "it", "nl", "pt"])
def test_every_language_says_that_a_call_is_repeated(locale: str) -> None:
    texts = Texts(locale)
    built = ToolBuilder().build_tools(acme())
    once, again = (describe_call(built, "pay", {"amount": 50}, texts, repeats=repeats) for repeats in (False, True))

    assert again.spoken == f"{texts('read_back.repeat')}. {once.spoken}"
    assert len(again.values) > len(once.values)


class AddTip:
    """A hook of the host that changes what runs."""

    def before(self, call: ToolCall, tool: Tool[..., Any], context: ToolContext[Any]) -> ToolCall:
        given = json.loads(call.arguments_json)
        return structs.replace(call, arguments_json=json.dumps({**given, "amount": given["amount"] + 5}))


@pytest.mark.parametrize(("said", "expected"), [("pay: amount: 50, yes or no?", []), ("pay: amount: 55, yes?", [55])])
def test_a_caller_hears_the_values_that_a_hook_made_of_those_of_the_model(said: str, expected: list[int]) -> None:
    paid: list[int] = []

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    again = {"name": "pay", "args": {"amount": 50}}
    played = play(
        {
            "model": [
                {"say": "Hello."},
                {"calls": [{"id": "c1", **again}]},
                {"say": said},
                {"calls": [{"id": "c2", **again}]},
            ],
            "otherwise": {"say": "Done."},
            "caller": [{"say": "Pay 50, please."}, {"say": "Yes."}, {"sleep": 30}],
            "expect": [],
        },
        tools=[pay],
        tenants=[acme(greeting="Hello.", transcription_model="gpt-4o-transcribe")],
        executor_options={"hooks": [AddTip()]},
        check=False,
    )

    asked = [event["response"].get("instructions", "") for event in played.report.client_events("response.create")]
    assert [text for text in asked if "pay: amount" in text]
    assert not [text for text in asked if "pay: amount: 50" in text]
    assert paid == expected
