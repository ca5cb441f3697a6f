"""The parts of the state machine of a call, each by itself: who may speak, what is owed, how a call ends."""

from typing import Any

import pytest

from handrail import ToolCall
from handrail.phone import MachineOptions
from handrail.phone import signals as s
from handrail.phone.call_ending import CallEnding
from handrail.phone.call_limits import CallLimits
from handrail.phone.confirmation import Confirmations, ReadBack, is_listening_sound
from handrail.phone.speech import Filler, ResponseSlot, Speech, Speeches
from handrail.phone.tool_outputs import ToolCalls
from handrail.tenants import Texts

TEXTS = Texts()


class Done(list[Any]):
    """The commands that a part gave, as short texts; `take` returns what is new."""

    def take(self) -> list[str]:
        found = [_write(command) for command in self]
        self.clear()
        return found


def _write(command: Any) -> str:
    match command:
        case s.StartTimer():
            return f"start {command.name} {command.seconds:g}"
        case s.StopTimer():
            return f"stop {command.name}"
        case s.RequestResponse():
            return f"request {command.request_id} {command.purpose} {command.allow_tools}"
        case s.SendOutput():
            return f"output {command.call_id} {command.output}"
        case s.SendMessage():
            return f"message {command.request_id}"
        case s.DeleteItem():
            return f"delete {command.sent_as or command.item_id}"
        case s.FinishTransfer() | s.FinishHangUp():
            return f"{type(command).__name__} {command.request_id} {command.outcome}"
        case s.Note():
            return f"note {command.name} {command.severity}"
        case s.InterruptTools():
            return f"interrupt {command.response_id}"
        case s.IgnoreCall():
            return f"ignore {command.call.id} {command.reason}"
        case _:
            return type(command).__name__


# Who may speak


def a_slot(**options: Any) -> tuple[ResponseSlot, Done]:
    done = Done()
    return ResponseSlot(do=done.append, options=MachineOptions(**options)), done


def test_the_slot_is_taken_from_the_request_to_the_end_of_the_response() -> None:
    slot, done = a_slot()
    assert not slot.is_busy
    slot.request("q1", Speech("reply"), allow_tools=True)
    assert (slot.is_busy, slot.is_requested("q1"), slot.is_requested("q2"), slot.is_requested(None)) == (
        *(True, True, False),
        False,
    )
    speech = slot.take_request()
    assert (speech.purpose if speech else None, slot.take_request(), slot.is_busy) == ("reply", None, False)

    assert slot.begin("r1") is None
    assert (slot.is_busy, slot.is_over("r1")) == (True, False)
    slot.finish("r1")
    assert (slot.is_busy, slot.is_over("r1"), slot.active) == (False, True, None)
    assert done.take() == [
        *("start request 5", "request q1 reply True", "stop request", "stop turn", "start response 20"),
        "stop response",
    ]


def test_the_end_of_another_response_leaves_the_one_that_is_being_generated() -> None:
    slot, done = a_slot()
    slot.begin("r1")
    slot.finish("r0")

    assert (slot.active, slot.is_busy) == ("r1", True)
    assert slot.begin("r2") == "r1"  # The end of r1 was missed.
    assert "stop response" not in done.take()


def test_a_response_that_goes_on_has_more_time_and_less_after_a_call() -> None:
    slot, done = a_slot(response_timeout=20, call_timeout=3)
    slot.extend()
    slot.extend(has_called=True)

    assert done.take() == ["start response 20", "start response 3"]


@pytest.mark.parametrize(
    ("before", "request_id", "answers"),
    [
        ([], "q1", True),
        ([], "q2", False),
        ([], None, True),  # This server does not say.
        (["q0"], None, False),  # It does, and this is none of ours.
        (["q0"], "q1", True),
    ],
)
def test_a_response_answers_the_request_that_it_names(before: list[str], request_id: str | None, answers: bool) -> None:
    slot, _ = a_slot()
    for earlier in before:
        slot.answers_request(earlier)
    slot.request("q1", Speech("reply"), allow_tools=True)

    assert slot.answers_request(request_id) is answers


@pytest.mark.parametrize("who", ["nobody asked", "the caller speaks", "the turn is the provider's"])
def test_a_response_without_a_name_is_not_ours_where_the_provider_answers_by_itself(who: str) -> None:
    slot, _ = a_slot()
    if who != "nobody asked":
        slot.request("q1", Speech("reply"), allow_tools=True)
    if who == "the caller speaks":
        slot.start_caller()
    if who == "the turn is the provider's":
        slot.await_turn()

    assert not slot.answers_request(None)


def test_the_callers_turn_is_waited_for_missed_and_answered() -> None:
    slot, done = a_slot(turn_timeout=2)
    slot.await_turn()
    assert (slot.awaits_turn, slot.owes_turn, slot.is_busy) == (True, False, True)
    slot.miss_turn()
    assert (slot.awaits_turn, slot.owes_turn, slot.is_busy) == (False, True, False)
    slot.answer_turn()
    assert (slot.awaits_turn, slot.owes_turn) == (False, False)
    slot.await_turn()
    slot.start_caller()
    assert (slot.awaits_turn, slot.is_caller_speaking, slot.is_busy) == (False, True, True)
    assert done.take() == ["start turn 2", "stop turn", "start turn 2", "stop turn"]


def test_each_failure_holds_the_next_response_back_for_longer_up_to_a_limit() -> None:
    slot, done = a_slot(retry_delay=1)
    for _ in range(6):
        slot.fail()
    assert slot.is_busy
    assert done.take() == [f"start blocked {seconds}" for seconds in (1, 2, 4, 8, 8, 8)]
    slot.unblock()
    assert not slot.is_busy

    slot.block()
    slot.begin("r1")
    slot.finish("r1")
    assert not slot.is_busy
    assert done.take() == ["start blocked 1", "stop turn", "stop blocked", "start response 20", "stop response"]


def test_without_a_connection_nothing_is_known_of_what_is_being_said() -> None:
    slot, _ = a_slot()
    slot.start_caller()
    slot.await_turn()
    slot.begin("r1")
    slot.await_turn()
    slot.disconnect()

    assert (slot.active, slot.is_caller_speaking, slot.awaits_turn, slot.is_busy) == (None, False, False, False)


# What has to be said


def ask_next(speeches: Speeches, **state: bool) -> str | None:
    given = {"is_ending": False, "is_handed_off": False, "has_reply": False, "may_ask": True, **state}
    found = speeches.next(**given)
    return found.purpose if found else None


def with_speeches(*purposes: Any, max_attempts: int = 5) -> Speeches:
    speeches = Speeches(max_attempts=max_attempts)
    for purpose in purposes:
        speeches.add(purpose, f"say {purpose}")
    return speeches


def test_the_most_urgent_comes_first_and_a_reply_before_what_can_wait() -> None:
    speeches = with_speeches("filler", "wrap_up", "read_back", "operator", "greeting")

    assert [ask_next(speeches, has_reply=True) for _ in range(3)] == ["greeting", "operator", None]
    assert [ask_next(speeches) for _ in range(4)] == ["read_back", "wrap_up", "filler", None]


def test_at_the_end_of_a_call_and_with_a_person_only_what_belongs_there_is_said() -> None:
    everything = ("filler", "goodbye", "operator", "read_back", "apology")

    ending, handed_off = with_speeches(*everything), with_speeches(*everything)

    assert [ask_next(ending, is_ending=True) for _ in range(3)] == ["apology", "goodbye", None]
    assert [ask_next(handed_off, is_handed_off=True) for _ in range(4)] == ["apology", "goodbye", "operator", None]


def test_nothing_is_read_back_while_something_else_is_asked() -> None:
    speeches = with_speeches("read_back", "filler")

    assert ask_next(speeches, may_ask=False) == "filler"
    speeches.begin("r1", Speech("read_back"))
    assert ask_next(speeches) is None
    speeches.take("r1")
    assert ask_next(speeches) == "read_back"


def test_the_same_is_said_once_and_a_read_back_replaces_the_one_of_its_approval() -> None:
    speeches = with_speeches("filler", "filler", "goodbye")
    speeches.add("read_back", "old", token="t1", covers=("c1",))
    speeches.add("read_back", "other", token="t2", covers=("c2",))
    speeches.add("read_back", "new", token="t1", covers=("c3",))

    assert [item.instructions for item in speeches.waiting] == ["say filler", "say goodbye", "other", "new"]
    assert speeches.list_read_backs() == ["t2", "t1"]
    assert speeches.read_backs == {"c2", "c3"}
    speeches.drop_read_back("t2")
    assert speeches.list_read_backs() == ["t1"]
    speeches.drop("filler")
    speeches.drop(None)
    assert [item.purpose for item in speeches.waiting] == ["goodbye", "read_back"]


def test_what_was_meant_for_silence_is_not_said_to_a_caller_who_speaks() -> None:
    speeches = with_speeches("filler", "greeting", "goodbye")
    speeches.drop_for_caller()

    assert [item.purpose for item in speeches.waiting] == ["goodbye"]
    assert speeches.say_again(Speech("greeting"), is_caller_speaking=True)
    assert [item.purpose for item in speeches.waiting] == ["goodbye"]
    assert speeches.say_again(Speech("greeting"), is_caller_speaking=False)
    assert speeches.say_again(Speech("apology"), is_caller_speaking=True)
    assert [item.purpose for item in speeches.waiting] == ["apology", "greeting", "goodbye"]


def test_something_is_said_again_so_often_and_not_more() -> None:
    speeches, speech = with_speeches(max_attempts=3), Speech("apology", is_complete=True)

    assert [speeches.say_again(speech, is_caller_speaking=False) for _ in range(3)] == [True, True, False]
    assert not speech.is_complete


@pytest.mark.parametrize(
    ("purpose", "has_to_be"), [("greeting", True), ("read_back", True), ("filler", False), ("reply", False)]
)
def test_what_a_failure_is_no_reason_to_leave_out(purpose: Any, has_to_be: bool) -> None:
    assert Speeches.has_to_be_said(Speech(purpose)) is has_to_be


def test_what_is_playing_is_known_until_it_stops_or_everything_does() -> None:
    speeches = with_speeches()
    speeches.add_audio("r0", 9.0)  # Nobody tells what is heard, so that nothing is known to be playing.
    assert (speeches.unplayed_seconds, speeches.is_playing, speeches.is_quiet) == (9.0, False, True)
    speeches.stop_playing()
    assert speeches.unplayed_seconds == 0
    speeches.start_playing("r1")
    speeches.start_playing("r2")
    speeches.add_audio("r1", 3.0)
    speeches.add_audio("r2", 4.0)
    assert (speeches.unplayed_seconds, speeches.is_playing, speeches.is_quiet) == (7.0, True, False)
    speeches.stop_playing("r1")
    assert (speeches.unplayed_seconds, speeches.is_playing) == (4.0, True)
    speeches.stop_playing()
    assert (speeches.unplayed_seconds, speeches.is_playing, speeches.is_quiet) == (0, False, True)


def test_what_was_generated_to_its_end_was_heard_and_what_was_not_is_still_being_said() -> None:
    speeches = with_speeches()
    speeches.begin("r1", Speech("apology", is_complete=True))
    speeches.begin("r2", Speech("operator"))
    speeches.start_playing("r1")

    assert [item.purpose for item in speeches.take_complete()] == ["apology"]
    assert not speeches.is_playing
    assert (speeches.get("r1"), speeches.is_quiet) == (None, False)
    assert speeches.get("r2") is not None


def test_without_a_connection_only_what_ends_the_call_or_a_person_said_is_said_again() -> None:
    speeches = with_speeches()
    for number, purpose in enumerate(("greeting", "operator", "goodbye", "read_back")):
        speeches.begin(f"r{number}", Speech(purpose))
    speeches.start_playing("r1")
    speeches.add_audio("r1", 3.0)

    assert [item.purpose for item in speeches.take_unheard()] == ["operator", "goodbye"]
    assert (speeches.is_playing, speeches.unplayed_seconds, speeches.is_quiet) == (False, 0, True)


def test_an_announcement_that_waits_is_no_quiet() -> None:
    assert not with_speeches("announcement").is_quiet
    assert with_speeches("goodbye").is_quiet


def test_a_filler_is_said_so_often_in_its_own_words_and_again_after_the_caller_spoke() -> None:
    done, speeches = Done(), with_speeches()
    options = MachineOptions(filler_after=4, filler_every=6, max_fillers=2, fillers={"pay": "I am paying."})
    filler = Filler(speeches, do=done.append, options=options)

    filler.wait()
    filler.say(is_quiet=False, tools=["pay"], default="Working.")
    assert (speeches.waiting, done.take()) == ([], ["start filler 4", "start filler 4"])
    filler.say(is_quiet=True, tools=["look", "pay"], default="Working.")
    filler.say(is_quiet=True, tools=["look"], default="Working.")
    filler.say(is_quiet=True, tools=["other"], default="Nothing.")
    assert [item.instructions for item in speeches.waiting] == ["I am paying.", "Working."]
    assert done.take() == ["start filler 6"]
    filler.reset()
    filler.wait()
    assert done.take() == ["start filler 4"]


@pytest.mark.parametrize("options", [{"filler_after": None}, {"max_fillers": 0}])
def test_no_filler_is_waited_for_where_none_is_wanted(options: dict[str, Any]) -> None:
    done = Done()
    Filler(with_speeches(), do=done.append, options=MachineOptions(**options)).wait()

    assert done == []


# What is owed


class Owed:
    """The calls of a phone call."""

    def __init__(self, **options: Any) -> None:
        self.done = Done()
        self.calls = ToolCalls(do=self.done.append, options=MachineOptions(**options), texts=TEXTS)

    def add(self, id: str = "c1", response: str | None = "r1", **fields: Any) -> Any:
        return self.calls.add(ToolCall(id=id, name="pay", response_id=response, item_id=f"i-{id}", **fields))

    def answer(self, id: str = "c1", response: str | None = "r1", *, is_added: bool = True, **how: Any) -> Any:
        """A call with a result that was sent."""
        state = self.add(id, response)
        self.calls.answer(state, f"result of {id}", **how)
        self.calls.send()
        if is_added:
            self.calls.mark_added(id)
        self.done.clear()
        return state


def test_a_call_that_is_known_neither_runs_nor_is_answered_again() -> None:
    owed = Owed()
    state = owed.add()
    assert owed.add() is None
    owed.calls.answer(state, "paid")
    assert owed.add() is None
    assert owed.add(arguments_json='{"amount": 2}') is None

    assert owed.done.take() == ["ignore c1 already_pending", "ignore c1 already_executed", "ignore c1 other_arguments"]
    assert len(owed.calls) == 1


def test_results_of_one_response_wait_for_each_other_for_a_while() -> None:
    owed = Owed(batch_timeout=1.5)
    first, second = owed.add("c1"), owed.add("c2")
    other = owed.add("c3", "r2")
    owed.calls.answer(first, "one")
    assert owed.done.take() == ["start batch 1.5"]
    owed.calls.answer(other, "three")
    assert owed.done.take() == []
    owed.calls.send()
    assert owed.calls.list_owed() == ("c3",)
    owed.calls.is_batch_late = True
    assert owed.calls.list_owed() == ("c1", "c3")
    owed.calls.is_batch_late = False
    owed.calls.answer(second, "two")
    assert owed.calls.list_owed() == ("c1", "c3")  # It was not sent yet.
    owed.calls.send()
    assert owed.calls.list_owed() == ("c1", "c3", "c2")
    assert not owed.calls.has_awaited


def test_calls_without_a_response_do_not_wait_for_each_other() -> None:
    owed = Owed()
    owed.add("c2", None)
    owed.answer("c1", None)

    assert owed.calls.list_owed() == ("c1",)


def test_a_silent_result_is_sent_and_owed_to_nobody() -> None:
    owed = Owed()
    state = owed.add()
    owed.calls.answer(state, "noted", is_silent=True)
    assert owed.calls.has_unsent
    owed.calls.send()

    assert (owed.calls.has_unsent, owed.calls.list_owed(), owed.calls.open) == (False, (), ())
    assert owed.done.take() == ["output c1 noted"]
    owed.calls.send()
    assert owed.done.take() == []


def test_a_call_in_the_background_is_told_first_as_running_and_then_as_a_message() -> None:
    owed = Owed()
    state = owed.add()
    assert (owed.calls.has_awaited, owed.calls.open) == (True, ("c1",))
    owed.calls.continue_in_background(state, "it runs")
    assert (owed.calls.has_awaited, owed.calls.awaited_tools) == (False, ())
    owed.calls.send()
    owed.calls.answer(state, "paid")
    assert owed.calls.list_owed() == ()
    owed.calls.send()
    assert owed.done.take() == ["output c1 it runs", "message late_c1"]
    assert owed.calls.list_owed() == ("c1",)

    early = Owed()
    state = early.add()
    early.calls.continue_in_background(state, "it runs")
    early.calls.answer(state, "paid")  # Before anything was sent.
    early.calls.send()
    assert early.done.take() == ["output c1 paid"]


def test_what_was_not_seen_in_the_conversation_is_sent_again_over_a_new_connection() -> None:
    owed = Owed()
    owed.answer("c1", is_added=True)
    owed.answer("c2", is_added=False)
    owed.calls.send_again()
    owed.calls.send()

    assert owed.done.take() == ["output c2 result of c2"]
    assert [owed.calls.is_added(id) for id in ("c1", "c2", "c9")] == [True, False, False]


def test_a_late_result_is_sent_again_unless_it_was_seen() -> None:
    owed = Owed()
    state = owed.add()
    owed.calls.continue_in_background(state, "it runs")
    owed.calls.send()
    owed.calls.mark_added("c1")
    owed.calls.answer(state, "paid")
    owed.calls.send()
    owed.done.clear()

    owed.calls.send_again()
    owed.calls.send()
    assert owed.done.take() == ["message late_c1"]
    owed.calls.mark_added("c1", is_late=True)
    owed.calls.mark_added("c9", is_late=True)
    owed.calls.send_again()
    owed.calls.send()
    assert owed.done.take() == []


@pytest.mark.parametrize(
    ("status", "owed_then", "never"),
    [("finished", (), 0), ("cut off", ("c1",), 0), ("without words", ("c1",), 0), ("without a connection", ("c1",), 0)],
)
def test_a_result_is_owed_until_a_response_has_spoken_about_it(
    status: str, owed_then: tuple[str, ...], never: int
) -> None:
    owed = Owed()
    owed.answer()
    owed.calls.cover("r2", ("c1",))
    assert (owed.calls.list_owed(), owed.calls.unspoken) == ((), ("c1",))
    match status:
        case "finished":
            owed.calls.finish("r2")
        case "cut off":
            owed.calls.break_off("r2")
        case "without words":
            owed.calls.finish_without_words("r2")
        case _:
            owed.calls.break_off_all()

    assert (owed.calls.list_owed(), owed.calls.unspoken, len(owed.calls.never_spoken)) == (owed_then, owed_then, never)
    heard = ("c1",) if status in ("finished", "cut off") else ()
    assert (owed.calls.take_heard("r2"), owed.calls.take_heard("r2")) == (heard, ())


def test_what_was_tried_too_often_counts_as_never_spoken_and_a_lost_connection_is_no_attempt() -> None:
    owed = Owed(max_attempts=2)
    owed.answer()
    for count in (False, True, True):
        assert owed.calls.list_owed() == ("c1",)
        owed.calls.cover("r2", ("c1",))
        owed.calls.break_off("r2", count=count)

    assert (owed.calls.list_owed(), owed.calls.never_spoken) == ((), ["c1"])
    assert owed.done.take() == ["note tool_result_never_spoken error"]


def test_a_response_that_only_makes_calls_leaves_its_results_to_their_reply() -> None:
    owed = Owed(max_attempts=1)
    owed.answer()
    owed.calls.cover("r2", ("c1",))
    owed.add("c2", "r2")
    owed.calls.finish_without_words("r2")

    assert owed.calls.never_spoken == []
    assert owed.calls.list_owed() == ()  # It is spoken about with the result of c2.
    owed.calls.answer(owed.calls.get("c2"), "two")  # type: ignore[arg-type]
    owed.calls.send()
    assert owed.calls.list_owed() == ("c1", "c2")

    without = Owed(max_attempts=1)
    without.answer()
    without.calls.cover("r2", ("c1",))
    without.calls.finish_without_words("r2")
    assert without.calls.never_spoken == ["c1"]


def test_a_response_of_the_provider_knows_what_was_in_the_conversation_before_it() -> None:
    owed = Owed()
    owed.answer("c1", is_added=True)
    owed.answer("c2", "r2", is_added=False)
    owed.calls.cover("r9", None)

    assert owed.calls.list_owed() == ("c2",)
    assert owed.calls.take_heard("r9") == ("c1",)


def test_a_result_for_one_reply_leaves_the_conversation_after_it() -> None:
    owed = Owed()
    owed.answer("c1", is_transient=True)
    owed.calls.cover("r2", ("c1",))
    owed.calls.finish("r2")

    assert owed.done.take() == ["delete c1", "delete i-c1"]
    owed.calls.cover("r3", ())
    owed.calls.finish("r3")
    assert owed.done.take() == []


@pytest.mark.parametrize("how", ["it makes another call", "it does not know it", "it is still owed"])
def test_a_result_for_one_reply_stays_while_it_is_needed(how: str) -> None:
    owed = Owed()
    owed.answer("c1", is_transient=True, is_added=how != "it does not know it")
    owed.calls.cover("r2", () if how != "it makes another call" else ("c1",))
    if how == "it makes another call":
        owed.add("c2", "r2")
    owed.done.clear()
    owed.calls.finish("r2")

    assert owed.done.take() == []


@pytest.mark.parametrize(("is_duplicate", "told"), [(True, []), (False, ["message gone_c1"])])
def test_an_output_that_is_refused_was_there_or_is_told_as_a_message(is_duplicate: bool, told: list[str]) -> None:
    owed = Owed()
    owed.answer("c1", is_added=False)
    assert owed.calls.has_sent("output_c1")
    assert not owed.calls.has_sent("output_c2")

    assert owed.calls.reject("output_c1", is_duplicate=is_duplicate) is bool(told)
    assert owed.done.take() == told
    assert owed.calls.is_added("c1")
    assert owed.calls.list_owed() == (("c1",) if is_duplicate else ())
    assert not owed.calls.has_sent("output_c1")


def test_a_refused_result_is_owed_by_no_response_any_more() -> None:
    owed = Owed()
    owed.answer("c1", is_added=False)
    owed.answer("c2", is_added=True)
    owed.calls.cover("r2", ("c1", "c2"))
    owed.calls.reject("output_c1", is_duplicate=False)

    assert owed.calls.unspoken == ("c2",)


def test_running_calls_are_interrupted_once_each_all_or_those_of_a_response() -> None:
    owed = Owed()
    owed.add("c1", "r1")
    owed.add("c2", "r2")
    owed.add("c3", None)
    owed.answer("c4", "r4")
    owed.calls.interrupt("r1")
    owed.calls.interrupt("r1")
    assert owed.done.take() == ["interrupt r1"]
    owed.calls.interrupt()
    owed.calls.interrupt()
    assert owed.done.take() == ["interrupt r2"]


def test_results_that_come_after_the_end_are_noted_unless_they_belong_there() -> None:
    owed = Owed()
    for id in ("c1", "c2", "c3"):
        owed.add(id)
    owed.calls.record_late("c1", is_expected=False)
    owed.calls.record_late("c1", is_expected=False)
    owed.calls.record_late("c2", is_expected=True)
    owed.calls.record_late("c9", is_expected=False)

    assert owed.done.take() == ["note tool_result_after_call_end info"]
    assert [state.call.id for state in owed.calls.list_awaited()] == ["c3"]


def test_results_beside_a_call_are_pending_while_they_run_or_are_owed() -> None:
    owed = Owed()
    owed.add("c1")
    assert not owed.calls.has_pending_results(beside="c1")
    assert owed.calls.has_pending_results(beside=None)
    owed.answer("c2", "r2")
    assert owed.calls.has_pending_results(beside="c1")
    owed.calls.reserve(("c2",))
    assert not owed.calls.has_pending_results(beside="c1")


# How a call ends


def an_ending() -> tuple[CallEnding, Done, list[str]]:
    done, said = Done(), list[str]()
    ending = CallEnding(
        do=done.append, say=lambda purpose, text: said.append(purpose), texts=TEXTS, options=MachineOptions()
    )
    return ending, done, said


def a_transfer(announcement: str = "I put you through.", **fields: Any) -> s.TransferRequested:
    return s.TransferRequested(request_id="q1", target_uri="tel:+1", announcement=announcement, **fields)


def a_hang_up(request_id: str | None = "q2", goodbye: str = "Bye.", **fields: Any) -> s.HangUpRequested:
    return s.HangUpRequested(request_id=request_id, goodbye=goodbye, **fields)


def transferring(*, state: str, **fields: Any) -> tuple[CallEnding, Done, list[str]]:
    ending, done, said = an_ending()
    ending.request_transfer(a_transfer(**fields), is_caller_speaking=False)
    if state != "announcing":
        ending.start_transfer()
    if state in ("taken", "unknown"):
        ending.answer_transfer("unknown" if state == "unknown" else "transferred")
    done.clear()
    return ending, done, said


def test_a_transfer_is_announced_requested_once_and_then_waited_for() -> None:
    ending, done, said = an_ending()
    ending.request_transfer(a_transfer(), is_caller_speaking=False)
    assert (ending.is_under_way, ending.is_announcing, said, done.take()) == (True, True, ["announcement"], [])
    ending.start_transfer()
    ending.start_transfer()
    assert done.take() == ["start trying 3", "TransferCall"]
    assert not ending.is_announcing
    request = ending.answer_transfer("transferred")
    assert request is not None
    assert done.take() == ["start transfer 15", "start trying 7", "note call_transfer_accepted info"]
    assert ending.answer_transfer("transferred") is None


def test_a_transfer_without_words_waits_for_what_is_being_said() -> None:
    ending, done, said = an_ending()
    ending.request_transfer(a_transfer(""), is_caller_speaking=False)

    assert (said, done.take()) == ([], ["start playout 20"])


@pytest.mark.parametrize(
    ("is_speaking", "is_under_way", "outcome"),
    [(True, False, "interrupted"), (False, True, "in_progress"), (True, True, "in_progress")],
)
def test_a_transfer_is_refused_while_the_caller_speaks_or_another_is_under_way(
    is_speaking: bool, is_under_way: bool, outcome: str
) -> None:
    ending, done, _ = transferring(state="announcing") if is_under_way else an_ending()
    ending.request_transfer(a_transfer(), is_caller_speaking=is_speaking)

    assert done.take() == [f"FinishTransfer q1 {outcome}"]
    assert ending.is_under_way is is_under_way


def test_a_transfer_that_the_provider_refuses_is_over() -> None:
    ending, done, _ = transferring(state="requested")

    assert ending.answer_transfer("failed") is None
    assert done.take() == ["stop transfer", "stop trying", "FinishTransfer q1 failed"]
    assert not ending.is_under_way
    assert ending.answer_transfer("transferred") is None
    assert done.take() == []


def test_nobody_knows_what_became_of_a_transfer_and_the_caller_hears_that_it_is_tried_once() -> None:
    ending, done, said = transferring(state="requested")
    assert ending.answer_transfer("unknown") is None
    assert (said, done.take()) == (["announcement"] * 2, ["start transfer 15", "start trying 7"])

    ending, done, said = transferring(state="requested")
    ending.tell_trying()
    ending.answer_transfer("unknown")
    assert (said, done.take()) == (["announcement"] * 2, ["start trying 7", "start transfer 15"])


def test_nobody_hears_of_trying_before_it_is_tried() -> None:
    ending, done, said = transferring(state="announcing")
    ending.tell_trying()

    assert (said, done.take()) == (["announcement"], [])


@pytest.mark.parametrize(
    ("state", "call_id", "outcome", "tells"),
    [
        ("announcing", None, None, False),
        ("requested", None, None, False),
        ("taken", None, "not_taken", True),
        ("taken", "c1", "not_taken", False),
        ("unknown", None, "failed", True),
        ("unknown", "c1", "failed", False),
    ],
)
def test_a_call_that_is_still_here_was_not_transferred(
    state: str, call_id: str | None, outcome: str | None, tells: bool
) -> None:
    ending, done, _ = transferring(state=state, call_id=call_id)

    assert ending.expire_transfer() is tells
    found = done.take()
    assert ("note call_transfer_not_taken warning" in found) is (state == "taken")
    assert [item for item in found if item.startswith("Finish")] == (
        [f"FinishTransfer q1 {outcome}"] if outcome else []
    )
    assert ending.is_under_way is (outcome is None)


def test_a_doubt_about_an_announcement_has_its_time() -> None:
    ending, done, _ = transferring(state="announcing")
    ending.doubt_announcement("i1")
    assert (ending.doubt, done.take()) == ("i1", ["start words 3"])
    ending.settle_doubt()
    assert (ending.doubt, done.take()) == (None, ["stop words"])


NOTHING_AGAINST = {
    "is_caller_speaking": False,
    "has_caller_spoken": True,
    "has_pending_results": False,
    "is_responding": False,
}


def test_a_hang_up_has_a_goodbye_and_ends_the_call_once() -> None:
    ending, done, said = an_ending()
    ending.request_hang_up(a_hang_up(call_id="c1"), **NOTHING_AGAINST)
    assert (ending.is_under_way, ending.is_closing, ending.closing_call, said) == (True, False, "c1", ["goodbye"])
    ending.close()
    ending.close()
    assert [item.rpartition(" ")[0] for item in done.take()] == ["FinishHangUp q2", "start hang_up"]
    ending.hang_up()
    ending.hang_up()
    assert done.take() == ["stop hang_up", "HangUp"]


def test_without_a_goodbye_it_is_closed_at_once() -> None:
    ending, done, said = an_ending()
    ending.request_hang_up(a_hang_up(None, ""), **NOTHING_AGAINST)

    assert (ending.is_closing, said) == (True, [])
    assert [item.split()[0] for item in done.take()] == ["start"]


@pytest.mark.parametrize(
    ("request_id", "against", "is_under_way", "outcome"),
    [
        ("q2", {"is_caller_speaking": True}, False, "interrupted"),
        ("q2", {"has_caller_spoken": False}, False, "too_early"),
        ("q2", {"has_pending_results": True}, False, "results_pending"),
        (
            "q2",
            {"is_caller_speaking": True, "has_caller_spoken": False, "has_pending_results": True},
            False,
            "interrupted",
        ),
        ("q2", {"has_caller_spoken": False, "has_pending_results": True}, False, "too_early"),
        ("q2", {}, True, "failed"),
        ("q2", {"has_caller_spoken": False}, True, "failed"),
        (None, {"has_caller_spoken": False}, False, None),
        (None, {}, True, None),
    ],
)
def test_a_tool_may_be_refused_to_hang_up_and_a_limit_is_not(
    request_id: str | None, against: dict[str, bool], is_under_way: bool, outcome: str | None
) -> None:
    ending, done, said = transferring(state="announcing") if is_under_way else an_ending()
    said.clear()
    ending.request_hang_up(a_hang_up(request_id), **NOTHING_AGAINST | against)

    assert done.take() == ([f"FinishHangUp q2 {outcome}"] if outcome else [])
    begins = request_id is None and not is_under_way
    assert (said, ending.is_under_way) == (["goodbye"] if begins else [], begins or is_under_way)


def test_a_caller_who_speaks_in_time_stops_what_would_end_the_call() -> None:
    ending, done, _ = transferring(state="announcing")
    assert ending.interrupt() == "announcement"
    assert done.take()[-1] == "FinishTransfer q1 interrupted"
    assert not ending.is_under_way

    ending, done, _ = an_ending()
    ending.request_hang_up(a_hang_up(), **NOTHING_AGAINST)
    assert ending.interrupt() == "goodbye"
    assert (done.take(), ending.is_under_way, ending.closing_call) == (["FinishHangUp q2 interrupted"], False, None)
    assert ending.interrupt() is None


@pytest.mark.parametrize("why", ["it is requested", "it is a limit", "it is closing"])
def test_what_can_no_longer_be_stopped_goes_on(why: str) -> None:
    if why == "it is requested":
        ending, done, _ = transferring(state="requested")
    else:
        ending, done, _ = an_ending()
        ending.request_hang_up(a_hang_up(None if why == "it is a limit" else "q2"), **NOTHING_AGAINST)
        if why == "it is closing":
            ending.close()
    done.clear()

    assert (ending.interrupt(), done.take(), ending.is_under_way) == (None, [], True)


@pytest.mark.parametrize(
    ("state", "reason", "ended", "outcome"),
    [
        ("announcing", "caller", "caller", "ended"),
        ("requested", "caller", "transferred", "transferred"),
        ("requested", "lost", "transferred", "transferred"),
        ("unknown", "agent", "transferred", "transferred"),
        ("requested", "shutdown", "shutdown", "unknown"),
        ("announcing", "shutdown", "shutdown", "ended"),
    ],
)
def test_a_call_that_ends_during_a_transfer_was_transferred_if_it_left(
    state: str, reason: Any, ended: str, outcome: str
) -> None:
    ending, done, _ = transferring(state=state, call_id="c1")

    assert ending.end(reason) == ended
    assert done.take() == [f"FinishTransfer q1 {outcome}"]
    assert ending.transfer_call == ("c1" if ended == "transferred" else None)


@pytest.mark.parametrize(
    ("request_id", "is_closing", "reason", "ended", "told"),
    [
        ("q2", True, "caller", "agent", []),
        ("q2", False, "caller", "caller", ["FinishHangUp q2 ended"]),
        (None, True, "caller", "agent", []),
        (None, False, "caller", "caller", []),
        ("q2", True, "lost", "lost", []),
    ],
)
def test_a_call_that_ends_during_a_hang_up_was_ended_by_the_agent_if_it_had_said_goodbye(
    request_id: str | None, is_closing: bool, reason: Any, ended: str, told: list[str]
) -> None:
    ending, done, _ = an_ending()
    ending.request_hang_up(a_hang_up(request_id), **NOTHING_AGAINST)
    if is_closing:
        ending.close()
    done.clear()

    assert (ending.end(reason), done.take()) == (ended, told)


def test_after_the_end_there_is_nothing_to_transfer_or_to_end() -> None:
    ending, done, _ = an_ending()
    assert ending.end("caller") == "caller"
    for signal in (a_transfer(), a_hang_up(), a_hang_up(None)):
        ending.refuse(signal)

    assert done.take() == ["FinishTransfer q1 ended", "FinishHangUp q2 ended"]


def test_a_call_has_its_limits_and_is_brought_to_its_end_once() -> None:
    done, said = Done(), list[str]()
    options = MachineOptions(max_duration=100, idle_timeout=30, wrap_up=10, max_tokens=1_000)
    limits = CallLimits(do=done.append, say=lambda purpose, text: said.append(purpose), texts=TEXTS, options=options)
    limits.start()
    assert done.take() == ["start max_duration 100", "start idle 30"]
    limits.count_tokens(1_000)
    assert (said, done.take()) == ([], [])
    limits.count_tokens(1)
    assert (said, done.take()) == (["wrap_up"], ["note token_budget_exceeded warning", "start wrap_up 10"])
    limits.count_tokens(1)
    limits.wrap_up()
    assert (said, done.take()) == (["wrap_up"], [])

    without = CallLimits(
        do=done.append,
        say=lambda purpose, text: said.append(purpose),
        texts=TEXTS,
        options=MachineOptions(idle_timeout=None),
    )
    without.touch()
    without.count_tokens(10**9)
    assert done.take() == []


# What the caller agreed to


def asked(*, has_transcripts: bool = True, is_heard: bool = True) -> Confirmations:
    confirmations = Confirmations(has_transcripts=has_transcripts)
    confirmations.add("t1", ReadBack(text="Pay 50 to Ann", values=(50, "Ann"), action="pay"))
    confirmations.begin("t1")
    if is_heard:
        assert confirmations.hear("t1", "Pay 50 euros to Ann, yes or no?")
    return confirmations


@pytest.mark.parametrize(
    ("transcripts", "state"),
    [
        ([], "no"),
        (["Yes."], "yes"),
        (["No."], "no"),
        (["Hmm."], "no"),
        (["Yes.", None], "no"),
        (["Yes.", "No, wait."], "no"),
    ],
)
def test_all_that_was_said_since_the_question_has_to_be_a_yes(transcripts: list[str | None], state: str) -> None:
    confirmations = asked()
    for number, _ in enumerate(transcripts):
        confirmations.answer(f"i{number}")
    assert confirmations.state("t1") == ("unknown" if transcripts else "no")
    for number, transcript in enumerate(transcripts):
        confirmations.transcribe(f"i{number}", transcript)

    assert confirmations.state("t1") == state
    assert confirmations.has_answers is bool(transcripts)


def test_a_question_is_answered_only_after_it_was_heard_whole() -> None:
    confirmations = asked(is_heard=False)
    confirmations.answer("i1")
    assert (confirmations.state("t1"), confirmations.has_answers, confirmations.is_open) == ("no", False, False)
    assert not confirmations.hear("t1", "Pay 50, yes or no?")  # To whom?
    assert confirmations.open is None
    assert confirmations.hear("t1", "Pay 50 to Ann?")
    assert (confirmations.open, confirmations.is_open) == ("t1", True)
    confirmations.answer("i2")
    assert not confirmations.is_open
    assert confirmations.hear("t9", "anything")  # Nobody asked.
    assert confirmations.open == "t1"


def test_where_nobody_knows_the_agents_words_what_was_played_was_heard() -> None:
    confirmations = asked(is_heard=False)
    assert confirmations.hear("t1", "")

    known = asked(is_heard=False)
    known.learn_words("Hello.")
    assert not known.hear("t1", "")
    known = asked(is_heard=False)
    known.learn_words("")
    assert known.hear("t1", "")


def test_without_transcripts_any_answer_after_the_question_counts() -> None:
    confirmations = asked(has_transcripts=False)
    assert confirmations.state("t1") == "no"
    confirmations.answer("i1")
    assert confirmations.state("t1") == "yes"
    assert confirmations.transcribe("i1", "No.") is None


def test_a_question_that_is_read_back_anew_is_not_answered_by_what_was_said_before() -> None:
    confirmations = asked()
    confirmations.answer("i1")
    confirmations.transcribe("i1", "Yes.")
    confirmations.begin("t1")
    assert confirmations.state("t1") == "no"
    confirmations.answer("i2")
    assert confirmations.state("t1") == "no"
    confirmations.begin("t9")


def test_a_question_may_be_asked_three_times_and_not_more() -> None:
    confirmations = asked()
    for _ in range(2):
        assert confirmations.get_read_back("t1") is not None
        confirmations.begin("t1")
    assert confirmations.get_read_back("t1") is None
    assert confirmations.get_read_back("t9") is None


def test_a_call_that_was_made_again_closes_a_question_without_an_answer() -> None:
    confirmations = asked()
    confirmations.close("t2")
    assert confirmations.open == "t1"
    confirmations.close("t1")
    assert confirmations.open is None

    answered = asked()
    answered.answer("i1")
    answered.close("t1")
    assert answered.open == "t1"


def test_what_was_agreed_to_is_exactly_what_was_read_back_and_is_forgotten_once() -> None:
    confirmations = asked()
    assert confirmations.has_agreed_to("t1", "Pay 50 to Ann")
    assert not confirmations.has_agreed_to("t1", "Pay 60 to Ann")
    assert not confirmations.has_agreed_to("t2", "Pay 50 to Ann")
    confirmations.add("t1", ReadBack(text="Pay 60 to Ann"))
    assert confirmations.has_agreed_to("t1", "Pay 60 to Ann")
    confirmations.forget("t2")
    assert confirmations.open == "t1"
    confirmations.forget("t1")
    assert (confirmations.open, confirmations.state("t1")) == (None, "no")


@pytest.mark.parametrize(
    ("transcript", "is_one"),
    [("Mm-hm.", True), ("Okay, thanks.", True), ("Yes.", True), ("No!", False), ("Wait, stop.", False), (None, False)],
)
def test_sounds_of_listening_ask_for_nothing(transcript: str | None, is_one: bool) -> None:
    assert is_listening_sound(transcript) is is_one


@pytest.mark.parametrize(
    ("transcript", "is_no"), [("No.", True), ("Yes.", False), ("The weather.", False), (None, False)]
)
def test_a_refusal_is_one_whatever_was_asked(transcript: str | None, is_no: bool) -> None:
    assert asked().refuses(transcript) is is_no
