"""What of an event is in its row: by whom, about which call, decided how; and what is remembered between two rows."""

from typing import Any

import msgspec
import pytest

from handrail import Decision, ToolCall, ToolResult
from handrail.core import CallFinished, CallStarted, Event, Progress, Redactor
from handrail.core.redact import hide_value
from handrail.core.secret_patterns import MAX_PIECE
from handrail.store import audit_rows
from handrail.store.audit_rows import AuditRowBuilder, fill_row

CALL = ToolCall(id="c-1", name="pay", arguments_json='{"note": "hello"}')


def a_builder(*, values: bool = False) -> AuditRowBuilder:
    return AuditRowBuilder(redactor=Redactor(), values=values)


def a_row(event: Event, *, values: bool = False) -> dict[str, Any]:
    return fill_row(a_builder(values=values).build(event))


def a_start(**values: Any) -> CallStarted:
    return CallStarted(**{"at": 1.0, "session_id": "s", "call": CALL, **values})


def an_end(**values: Any) -> CallFinished:
    return CallFinished(**{"at": 1.0, "session_id": "s", "call": CALL, "result": ToolResult(output="paid"), **values})


@pytest.mark.parametrize(
    ("event", "detail"),
    [
        (a_start(), {"dependencies": ()}),
        (a_start(agent_id="bot"), {"agent_id": "bot", "dependencies": []}),
        (a_start(dependencies=("bank",)), {"dependencies": ["bank"]}),
        (a_start(sip_call_id="sip-1"), {"sip_call_id": "sip-1", "dependencies": []}),
        (an_end(), {"slow": False}),
        (an_end(slow=True), {"slow": True}),
        (an_end(sip_call_id="sip-1"), {"sip_call_id": "sip-1", "slow": False}),
    ],
)
def test_a_row_has_the_details_that_its_event_has(event: Event, detail: dict[str, Any]) -> None:
    assert a_row(event)["detail"] == detail


@pytest.mark.parametrize("name", ["tenant_id", "customer_id"])
def test_whose_event_it_is_stands_in_the_row_if_it_is_anybodys(name: str) -> None:
    assert a_row(an_end(**{name: "x-1"}))[name] == "x-1"
    assert a_row(an_end())[name] is None


@pytest.mark.parametrize(("number", "written"), [(2.0**63, None), (-(2.0**63), None), (2.0**62, 2.0**62), (0.0, 0.0)])
def test_a_number_is_written_if_both_databases_can_store_it(number: float, written: float | None) -> None:
    row = a_row(Progress(at=number, session_id="s", call_id="c", tool_name="pay", message="", fraction=number))

    assert (row["at"], row["detail"]["fraction"]) == (written or 0.0, written)


@pytest.mark.parametrize(
    ("rule", "reason", "values", "written"),
    [
        ("r", "because", False, "because"),
        ("r", "", False, None),
        ("permission_check", "because of 4711", False, None),
        ("permission_check", "because of 4711", True, "because of 4711"),
    ],
)
def test_the_reason_of_a_permission_check_may_quote_and_is_written_with_values_only(
    rule: str, reason: str, values: bool, written: str | None
) -> None:
    decision = Decision(action="deny", rule=rule, reason=reason)

    row = a_row(an_end(decision=decision), values=values)

    assert (row["action"], row["rule"], row["reason"]) == ("deny", rule, written)


class Noted(Event, frozen=True, kw_only=True):
    """An event of somebody's own, with texts that may say anything."""

    seen: dict[str, str] = msgspec.field(default_factory=dict)
    heard: dict[str, str] = msgspec.field(default_factory=dict)
    guideline_ids: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


def test_where_values_were_seen_is_written_and_other_mappings_and_tuples_are_not() -> None:
    full = Noted(at=1.0, session_id="s", seen={"a": "b"}, heard={"c": "d"}, guideline_ids=("g",), words=("w",))
    row, empty = a_row(full), a_row(Noted(at=1.0, session_id="s"))

    assert (row["detail"], row["guideline_ids"]) == ({"seen": {"a": "b"}}, ["g"])
    assert (empty["detail"], empty["guideline_ids"]) == (None, None)
    assert a_row(full, values=True)["detail"].keys() == {"seen", "heard", "words"}


@pytest.mark.parametrize(("length", "is_text"), [(100_000, False), (100_001, True)])
async def test_arguments_longer_than_a_row_has_room_for_are_cut(length: int, is_text: bool) -> None:
    text = '{"note": "' + "x" * (length - 12) + '"}'
    assert len(text) == length
    builder = a_builder(values=True)
    row = fill_row(builder.build(a_start(call=ToolCall(id="c", name="pay", arguments_json=text))))
    await builder.redact_long_values([row])

    assert isinstance(row["arguments"], str) == is_text


async def test_a_long_text_in_the_details_is_redacted_before_it_is_written() -> None:
    builder = a_builder(values=True)
    message = "password=hunter2 " + "x " * MAX_PIECE
    event = Progress(at=1.0, session_id="s", call_id="c", tool_name="pay", message=message)
    row = fill_row(builder.build(event))
    await builder.redact_long_values([row])

    assert "x x x" in row["detail"]["message"]
    assert "hunter2" not in row["detail"]["message"]


def test_a_value_that_becomes_secret_is_not_written_any_more() -> None:
    builder = a_builder(values=True)
    event = a_start(call=ToolCall(id="c", name="pay", arguments_json='{"note": "kestrel-4711-kestrel"}'))
    assert "kestrel" in str(fill_row(builder.build(event))["arguments"])
    hide_value("kestrel-4711-kestrel")

    assert "kestrel" not in str(fill_row(builder.build(event))["arguments"])


def test_the_columns_of_a_call_are_made_once_for_its_rows() -> None:
    builder = a_builder()

    start, end, other = (
        builder.build(event)[0] for event in (a_start(), an_end(), a_start(call=ToolCall(id="c-2", name="pay")))
    )

    assert start is end
    assert (end["call_id"], other["call_id"]) == ("c-1", "c-2")


def test_decisions_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_rows, "_MAX_DECISIONS", 2)
    builder = a_builder()
    kept: list[int] = []
    for number in (1, 2, 2, 3, 4, 5):
        decision = DECISIONS[number]
        assert fill_row(builder.build(an_end(decision=decision)))["rule"] == f"r-{number}"
        kept.append(len(builder._decisions))

    assert kept == [1, 2, 2, 1, 2, 1]


DECISIONS = [Decision(action="allow", rule=f"r-{number}") for number in range(6)]


def test_names_are_remembered_unless_they_are_cut() -> None:
    builder = a_builder()
    for length, kept in ((256, 1), (257, 1), (5_000, 1)):
        assert builder._redact_name("x" * length) == "x" * 256
        assert len(builder._cache) == kept
