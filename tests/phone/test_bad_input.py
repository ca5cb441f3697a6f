"""What providers, tenants, callers and stores should not do: the call goes on or ends, and the record says how."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any, ClassVar

import pytest

from handrail import tool
from handrail.authorize import MemoryApprovals
from handrail.core import Approval, CallFinished
from handrail.phone import PhoneCallEnded
from handrail.store import SqlStore, open_store
from tests.phone.calls import Played, play
from tests.phone.faulty_calls import STATES, describe, find_wrong, play_faulty
from tests.tenants.samples import acme

BOOK = {"name": "book", "args": {"slot": "9:30"}}
ASKS: dict[str, Any] = {
    "greeting": "Hello.",
    "transcription_model": "gpt-4o-transcribe",
    "policy": [{"ask": "book", "by": "customer"}],
    "features": {},
}


def play_booking(script: dict[str, Any], **tenant: Any) -> tuple[Played, list[str]]:
    booked: list[str] = []

    @tool
    async def book(slot: str) -> str:
        """Book an appointment."""
        booked.append(slot)
        return "booked"

    return play(script, tenants=[acme(**{**ASKS, **tenant})], tools=[book], check=False), booked


@pytest.mark.parametrize("status", [400, 422])
def test_a_session_that_the_api_refuses_is_turned_away_and_the_log_says_why(status: int) -> None:
    played = play({"http": [{"verb": "accept", "status": status}]}, check=False)

    assert [request.verb for request in played.report.http] == ["accept", "reject"]
    assert played.report.ended == "rejected"
    [failed] = [event for event in played.events if getattr(event, "name", "") == "phone_call_failed"]
    assert (failed.severity, str(status) in failed.fields["reason"]) == ("error", True)


@pytest.mark.parametrize("answer", ["Oui, d'accord.", "Ja, genau.", "Yes, please."])
def test_a_german_tenant_with_french_words_is_understood_in_the_callers_language(answer: str) -> None:
    played, booked = play_booking(
        {
            "model": [
                {"say": "Bonjour."},
                {"calls": [{"id": "c1", **BOOK}]},
                {"say": "Je réserve : book, slot 9:30. Oui ou non ?"},
                {"calls": [{"id": "c2", **BOOK}]},
                {"say": "C'est réservé."},
            ],
            "caller": [{"say": "Un rendez-vous."}, {"say": answer}, {"wait": "results"}],
        },
        locale="de",
        greeting="Bonjour.",
        instructions="Tu réponds en français.",
    )

    played.report.check()
    assert booked == ["9:30"]


def test_a_caller_who_says_nothing_is_told_goodbye_and_hung_up_on() -> None:
    played = play(
        {"model": [{"say": "Hello."}, {"say": "Goodbye."}], "caller": [{"sleep": 600}]},
        tenants=[acme(greeting="Hello.", limits={"idle_timeout": 20})],
    )

    assert (played.report.ended, played.report.transcript[-1].text) == ("agent", "Goodbye.")
    [ended] = played.of(PhoneCallEnded)
    assert ended.reason == "agent"


def test_a_caller_who_only_types_is_not_hung_up_on_while_typing_and_agrees_to_nothing() -> None:
    typing = [entry for _ in range(4) for entry in ({"dtmf": "1"}, {"sleep": 15})]
    played, booked = play_booking(
        {
            "model": [{"say": "Hello."}, {"calls": [{"id": "c1", **BOOK}]}, {"say": "book, slot: 9:30. Yes or no?"}],
            "otherwise": {"calls": [{"id": "c2", **BOOK}], "say": "One moment."},
            "caller": [{"say": "An appointment."}, {"wait": "results"}, *typing, {"sleep": 100}],
        },
        limits={"idle_timeout": 20},
    )

    assert booked == []
    assert played.report.ended == "agent"
    assert played.report.duration > 60  # Every key begins the silence anew.


def test_a_caller_who_says_yes_to_everything_agrees_only_to_what_was_read_back() -> None:
    played, booked = play_booking(
        {
            "model": [
                {"say": "Hello. May I help you?"},
                {"calls": [{"id": "c1", **BOOK}]},
                {"say": "Are you well today?"},  # In place of the read-back.
                {"say": "Shall we?", "calls": [{"id": "c2", **BOOK}]},
                {"say": "book: slot: 9:30. Please answer yes or no."},
                {"calls": [{"id": "c3", **BOOK}]},
                {"say": "It is booked."},
            ],
            "caller": [{"say": "Yes."}, {"say": "Yes."}, {"say": "Yes."}, {"say": "Yes."}, {"sleep": 20}],
        }
    )

    heard = [line.text for line in played.report.transcript]
    assert booked == ["9:30"], heard
    for call in played.report.calls:
        if call.error is None and call.name == "book":
            before = [line for line in played.report.transcript if line.at < call.at]
            assert any("9:30" in line.text and line.speaker == "agent" for line in before), heard


@pytest.mark.parametrize("state", STATES)
def test_a_caller_may_hang_up_in_every_state(state: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    played = play_faulty(state, "the caller hangs up")

    assert list(find_wrong(played)) == [], describe(played)
    assert played.report.ended in ("caller", "unanswered")


FOREIGN: list[dict[str, Any]] = [
    {
        "type": "response.created",
        "response": {"id": "resp_x", "conversation_id": "conv_other", "status": "in_progress"},
    },
    {
        "type": "response.done",
        "response": {"id": "resp_y", "status": "completed", "output": [], "metadata": {"a": "b"}},
    },
    {"type": "output_audio_buffer.started", "response_id": "resp_y"},
    {"type": "output_audio_buffer.stopped", "response_id": "resp_y"},
    {"type": "input_audio_buffer.speech_stopped", "item_id": "", "audio_end_ms": 1},
    {"type": "conversation.item.input_audio_transcription.completed", "item_id": "item_x", "transcript": "Yes."},
    {"type": "conversation.item.input_audio_transcription.completed", "item_id": None, "transcript": ["Yes."]},
    {"type": "conversation.item.added", "item": {"id": "out_x", "type": "function_call_output", "call_id": "other"}},
    {"type": "conversation.item.retrieved", "item": {"id": "item_y", "type": "message", "status": "completed"}},
    {"type": "error", "error": {"type": "server_error", "code": None, "event_id": "response_999"}},
    {
        "type": "response.done",
        "response": {"id": "resp_z", "usage": {"output_token_details": {"audio_tokens": 10**400}}, "output": []},
    },
]


@pytest.mark.parametrize("event", FOREIGN, ids=lambda event: event["type"])
def test_events_of_another_call_are_no_consent_and_end_nothing(event: dict[str, Any]) -> None:
    played, booked = play_booking(
        {
            "model": [
                {"say": "Hello."},
                {"calls": [{"id": "c1", **BOOK}]},
                {"say": "book, slot: 9:30. Please answer yes or no."},
                {"calls": [{"id": "c2", **BOOK}]},
            ],
            "otherwise": {"say": "All right."},
            "caller": [
                {"say": "An appointment."},
                {"wait": "results", "patience": 20},
                {"event": {**event, "event_id": "event_foreign"}},
                {"sleep": 1},
                {"say": "Hm."},
                {"sleep": 30},
            ],
        }
    )

    assert booked == []
    assert played.report.unanswered == played.report.duplicate_outputs == ()
    [ended] = played.of(PhoneCallEnded)
    assert ended.reason == "caller"


def test_a_store_that_is_away_for_a_minute_costs_what_was_asked_of_it_and_not_the_call(tmp_path: Path) -> None:
    booked: list[str] = []

    @tool
    async def book(slot: str) -> str:
        """Book an appointment."""
        booked.append(slot)
        return "booked"

    @tool(read_only=True)
    async def lose_database() -> str:
        """Lock the database for a minute."""
        other = sqlite3.connect(tmp_path / "phone.db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        asyncio.get_running_loop().call_later(60, other.close)
        return "locked"

    store = open_store(f"sqlite+aiosqlite:///{tmp_path}/phone.db", timeout=0.1)
    played = play(
        {
            "model": [
                {"say": "Hello."},
                {"calls": [{"id": "c0", "name": "lose_database"}]},
                {"calls": [{"id": "c1", **BOOK}]},
                {"say": "The calendar cannot be reached."},
                {"calls": [{"id": "c2", **BOOK}]},
                {"say": "It is booked."},
            ],
            "otherwise": {"say": "One moment."},
            "caller": [
                {"say": "An appointment."},
                {"wait": "results", "patience": 30},
                {"sleep": 70},
                {"say": "And now?"},
                {"wait": "results", "patience": 30},
            ],
            "expect": [{"result": "c1", "ok": False}, {"result": "c2"}, {"heard": "It is booked."}],
        },
        tenants=[acme(greeting="Hello.", policy=[{"allow": "book"}])],
        tools=[book, lose_database],
        store=store,
    )

    _, first, second = played.of(CallFinished)
    assert (first.result.error.code, second.result.ok) == ("unavailable", True)
    assert booked == ["9:30"]


class HangingApprovals(MemoryApprovals):
    """Approvals that never answer who gives one."""

    is_immediate: ClassVar[bool] = False

    async def approve(self, *args: Any, **options: Any) -> Approval:
        await asyncio.Event().wait()
        raise AssertionError


class CancelledApprovals(MemoryApprovals):
    """Approvals whose connection pool cancels whoever gives one."""

    is_immediate: ClassVar[bool] = False

    async def approve(self, *args: Any, **options: Any) -> Approval:
        raise asyncio.CancelledError


class StoreWithout:
    """A store whose approvals do not work."""

    def __init__(self, store: SqlStore, approvals: MemoryApprovals) -> None:
        self.approvals = approvals
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("approvals", [HangingApprovals, CancelledApprovals])
def test_a_yes_that_cannot_be_recorded_leaves_no_call_without_an_output(
    approvals: type[MemoryApprovals], tmp_path: Path
) -> None:
    booked: list[str] = []

    @tool
    async def book(slot: str) -> str:
        """Book an appointment."""
        booked.append(slot)
        return "booked"

    played = play(
        {
            "model": [
                {"say": "Hello."},
                {"calls": [{"id": "c1", **BOOK}]},
                {"say": "book: slot: 9:30, yes or no?"},
                {"calls": [{"id": "c2", **BOOK}]},
            ],
            "otherwise": {"say": "That did not work."},
            "caller": [{"say": "An appointment."}, {"say": "Yes."}, {"sleep": 60}],
            "expect": [{"result": "c2", "ok": False}, {"unanswered": 0}, {"never_voiced": 0}],
        },
        tenants=[acme(greeting="Hello.", transcription_model="gpt-4o-transcribe")],
        tools=[book],
        store=StoreWithout(open_store(f"sqlite+aiosqlite:///{tmp_path}/phone.db"), approvals()),
    )

    assert booked == []
    assert played.report.unanswered == ()
