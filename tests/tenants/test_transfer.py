"""`request_transfer` through the executor: what is refused, what is referred, and what the model reads."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from handrail import Executor, Policy, ToolCall, ToolContext, ToolResult
from handrail.core import Event, LogEvent
from handrail.tenants import Digits, TenantConfig, ToolBuilder
from handrail.tenants.call_control import HangUpOutcome, TransferOutcome
from tests.tenants.samples import SALES, SUPPORT, acme, refer

CLOSED = {"sun": [], "timezone": "UTC"}
FREE = {"require_confirmation": False}


class Line:
    """A phone call that answers as the test says, and keeps what was asked of it."""

    def __init__(self, outcome: TransferOutcome = "transferred", pressed: str = "1234") -> None:
        self.outcome: TransferOutcome = outcome
        self.pressed = pressed
        self.transfers: list[tuple[str, str]] = []
        self.goodbyes: list[str] = []

    async def transfer(self, target_uri: str, *, announcement: str = "", output: str = "") -> TransferOutcome:
        self.transfers.append((target_uri, announcement))
        return self.outcome

    async def hang_up(self, *, goodbye: str = "") -> HangUpOutcome:
        self.goodbyes.append(goodbye)
        return "ended"

    async def collect_digits(self, *, max_digits: int, timeout: float, terminator: str = "#") -> Digits | None:
        return Digits(digits_id="d-1", count=min(len(self.pressed), max_digits), complete=True)

    def digits(self, digits_id: str) -> str:
        return self.pressed


class Agent:
    def __init__(
        self, cfg: TenantConfig, line: Line | None = None, *, listener: Callable[[Event], object] | None = None
    ) -> None:
        built = ToolBuilder().build_tools(cfg)
        self.heard: list[Event] = []
        self.line = line or Line()
        self.cfg = built.config
        self.executor = Executor(built.tools, policy=Policy(built.rules), listeners=[listener or self.heard.append])
        self.turn = 1
        self.session_id = "rtc_1"

    async def call(self, name: str = "request_transfer", /, id: str = "c-1", **arguments: Any) -> ToolResult:
        context = ToolContext(
            session_id=self.session_id,
            tenant_id=self.cfg.tenant_id,
            customer_id="+33600000001",
            turn=self.turn,
            tenant=self.cfg,
            call_control=self.line,
        )
        text = json.dumps(arguments)
        call = ToolCall(id=id, name=name, arguments_json=text, response_id="r-1", item_id="i-1")
        return await self.executor.run(call, context)

    @property
    def notes(self) -> dict[str, dict[str, Any]]:
        return {event.name: dict(event.fields) for event in self.heard if isinstance(event, LogEvent)}


def code(result: ToolResult) -> str:
    assert result.error is not None
    assert json.loads(result.for_model())["tool"] == result.tool_name
    return result.error.code


@pytest.mark.proves("PH-23", "PH-60", "PH-62", "PH-65", "PH-66", "PH-68", "PH-D9")
async def test_a_transfer_is_announced_referred_once_and_reported_without_its_address() -> None:
    agent = Agent(acme(features={"refer": refer(**FREE)}))

    result = await agent.call(destination_id="support", reason="billing")

    assert agent.line.transfers == [("tel:+14155552000", "Je vous transfère vers Service Technique")]
    assert json.loads(result.for_model()) == {
        "message": "call_transfer_requested",
        "destination_id": "support",
        "reason": "billing",
    }
    assert list(agent.notes) == [
        "request_transfer_started",
        "request_transfer_destination_resolution_started",
        "request_transfer_destination_resolved",
        "request_transfer_destination_resolution_finished",
        "request_transfer_refer_call_started",
        "request_transfer_refer_call_succeeded",
    ]
    assert agent.notes["request_transfer_started"] == {"argument_keys": ["destination_id", "reason"]}
    started = agent.notes["request_transfer_refer_call_started"]
    assert (started["destination_id"], started["reason"]) == ("support", "billing")
    assert started["idempotency_key"]
    assert all(event.session_id == "rtc_1" and event.tenant_id == "acme-corp" for event in agent.heard)
    assert "14155552000" not in f"{result}{agent.notes}"


@pytest.mark.proves("PH-23", "PH-66")
async def test_without_a_phrase_and_a_reason_nothing_is_said_and_the_reason_is_empty() -> None:
    agent = Agent(acme(features={"refer": refer(handoff_phrase="", **FREE)}))

    result = await agent.call(destination_id="sales")

    assert agent.line.transfers == [("sip:sales@acme.example", "")]
    assert result.output["reason"] == agent.notes["request_transfer_refer_call_started"]["reason"] == ""


@pytest.mark.proves("PH-61", "PH-64", "PH-D6", "PH-D19")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"destination_id": 7},
        {"destination_id": None},
        {"destination_id": "nobody"},
        {"destination_id": "support"},
        {"destination_id": "sales", "target_uri": "sip:me@evil.example"},
    ],
)
async def test_what_is_not_an_enabled_destination_is_refused_with_those_that_are(arguments: dict[str, Any]) -> None:
    agent = Agent(acme(features={"refer": refer(destinations=[SALES, {**SUPPORT, "enabled": False}], **FREE)}))

    result = await agent.call(**arguments)

    assert code(result) == "invalid_arguments"
    assert agent.line.transfers == []
    if isinstance(arguments.get("destination_id"), str) and "target_uri" not in arguments:
        assert "sales" in result.for_model()
        assert "support" not in result.for_model().replace(str(arguments["destination_id"]), "", 1)


@pytest.mark.proves("PH-62", "PH-63", "PH-64", "PH-D6")
@pytest.mark.parametrize(
    ("now", "expected", "note"),
    [
        (refer(enabled=False), "transfer_unavailable", "request_transfer_refer_feature_disabled"),
        (refer(destinations=[SUPPORT]), "unknown_destination", "request_transfer_destination_not_found"),
        (
            refer(destinations=[{**SALES, "enabled": False}, SUPPORT]),
            "unknown_destination",
            "request_transfer_destination_not_found",
        ),
        (
            refer(destinations=[{**SALES, "opening_hours": CLOSED}, SUPPORT]),
            "destination_closed",
            "request_transfer_destination_not_found",
        ),
        (
            refer(destinations=[{**SALES, "opening_hours": CLOSED}]),
            "transfer_unavailable",
            "request_transfer_destination_not_found",
        ),
    ],
)
async def test_the_destination_is_looked_up_when_the_tool_runs(now: dict[str, Any], expected: str, note: str) -> None:
    agent = Agent(acme(features={"refer": refer(**FREE)}))
    agent.cfg = acme(features={"refer": now})  # The tool was built when sales could still be reached.

    result = await agent.call(destination_id="sales")

    assert code(result) == expected
    assert agent.line.transfers == []
    assert agent.notes[note]["destination_id"] == "sales"
    if expected in ("unknown_destination", "destination_closed"):
        assert "support" in result.for_model()


async def test_a_closed_destination_hands_over_to_its_fallback() -> None:
    closed = {**SALES, "opening_hours": CLOSED, "fallback": "support"}
    agent = Agent(acme(features={"refer": refer(destinations=[closed, SUPPORT], **FREE)}))

    result = await agent.call(destination_id="sales")

    assert result.output["destination_id"] == "support"
    assert agent.line.transfers == [("tel:+14155552000", "Je vous transfère vers Service Technique")]


@pytest.mark.proves("PH-67")
@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("failed", "call_transfer_failed"),
        ("not_taken", "call_transfer_failed"),
        ("unknown", "outcome_unknown"),
        ("ended", "call_transfer_failed"),
        ("interrupted", "call_transfer_interrupted"),
        ("in_progress", "transfer_in_progress"),
    ],
)
async def test_a_transfer_that_did_not_happen_says_so_and_can_be_tried_again(outcome: Any, expected: str) -> None:
    agent = Agent(acme(features={"refer": refer(**FREE)}), Line(outcome))

    first = await agent.call(id="c-1", destination_id="sales")
    agent.line.outcome = "transferred"
    agent.turn += 1
    second = await agent.call(id="c-2", destination_id="sales")

    assert code(first) == expected
    assert second.ok
    assert len(agent.line.transfers) == 2
    if outcome == "failed":
        assert "Continue the call without a transfer" in first.for_model()
        assert "tool_execution_error" in agent.notes


@pytest.mark.proves("PH-D8")
async def test_confirmation_is_the_customers_in_a_later_turn() -> None:
    agent = Agent(acme())

    asked = await agent.call(id="c-1", destination_id="sales")
    [question] = await agent.executor.approvals.pending()
    same_turn = await agent.call(id="c-2", destination_id="sales")
    agent.turn = 2
    unanswered = await agent.call(id="c-3", destination_id="sales")
    await agent.executor.approvals.approve(question.token, by="customer", who="+33600000001")
    other = await agent.call(id="c-4", destination_id="support")
    agent.turn = 3
    done = await agent.call(id="c-5", destination_id="sales")

    assert [code(item) for item in (asked, same_turn, unanswered, other)] == ["approval_required"] * 4
    assert done.ok
    assert agent.line.transfers == [("sip:sales@acme.example", "Je vous transfère vers Service Commercial")]


async def test_outside_a_phone_call_the_tools_refuse() -> None:
    features = {"refer": refer(**FREE), "end_call": {"enabled": True}, "collect_digits": {"enabled": True}}
    agent = Agent(acme(features=features))
    agent.line = None  # type: ignore[assignment]

    codes = [
        code(await agent.call(destination_id="sales")),
        code(await agent.call("end_call", id="c-2")),
        code(await agent.call("collect_digits", id="c-3", purpose="pin")),
    ]

    assert codes == ["transfer_unavailable", "call_unavailable", "call_unavailable"]


@pytest.mark.parametrize(("own", "goodbye"), [("", "Au revoir."), ("À bientôt !", "À bientôt !")])
async def test_end_call_says_goodbye_in_the_language_of_the_tenant(own: str, goodbye: str) -> None:
    agent = Agent(acme(locale="fr", features={"end_call": {"enabled": True, "goodbye": own}}))

    result = await agent.call("end_call")

    assert result.output == {"message": "call_ended"}
    assert agent.line.goodbyes == [goodbye]


@pytest.mark.parametrize("sensitive", [True, False])
async def test_digits_reach_the_model_unless_they_are_sensitive(sensitive: bool) -> None:
    features = {"collect_digits": {"enabled": True, "sensitive": sensitive}}
    agent = Agent(acme(features=features), Line(pressed="471108154711"))  # So long that no time contains them.

    result = await agent.call("collect_digits", purpose="customer number", max_digits=12)

    assert result.output["count"] == 12
    assert ("471108154711" in result.for_model()) is not sensitive
    assert ("471108154711" in f"{agent.heard}") is not sensitive


async def test_a_caller_who_calls_again_can_be_transferred_and_hung_up_on_again() -> None:
    features = {"refer": refer(**FREE), "end_call": {"enabled": True}, "collect_digits": {"enabled": True}}
    agent = Agent(acme(features=features))

    results: list[ToolResult] = []
    for number in range(2):  # The same number, twice in a day.
        agent.session_id = f"rtc_{number}"
        results.append(await agent.call("collect_digits", id=f"d-{number}", purpose="customer number"))
        results.append(await agent.call(id=f"t-{number}", destination_id="sales"))
        results.append(await agent.call("end_call", id=f"e-{number}"))

    assert all(result.ok for result in results)
    assert (len(agent.line.transfers), len(agent.line.goodbyes)) == (2, 2)


async def test_a_transfer_that_is_delivered_twice_happens_once() -> None:
    agent = Agent(acme(features={"refer": refer(**FREE)}))

    results = [await agent.call(id="c-1", destination_id="sales") for _ in range(2)]

    assert [result.ok for result in results] == [True, True]
    assert len(agent.line.transfers) == 1


async def test_a_closed_destination_is_refused_before_the_caller_is_asked() -> None:
    closed = {**SALES, "opening_hours": CLOSED}
    agent = Agent(acme(features={"refer": refer(destinations=[closed, SUPPORT])}))

    result = await agent.call(destination_id="sales")

    assert code(result) == "permission_denied"
    assert "support" in result.for_model()
    assert not await agent.executor.approvals.pending()


def test_the_question_names_the_destination_that_stands_in_for_a_closed_one() -> None:
    closed = {**SALES, "opening_hours": CLOSED, "fallback": "support"}
    built = ToolBuilder().build_tools(acme(features={"refer": refer(destinations=[closed, SUPPORT])}))

    question = built.read_backs["request_transfer"]({"destination_id": "sales"})

    assert question == "Transfer the call to Service Technique, because Service Commercial is closed"


@pytest.mark.parametrize("confirm", [True, False])
async def test_a_transfer_that_fails_tries_the_backup_only_where_nobody_has_to_agree(confirm: bool) -> None:
    sales = {**SALES, "fallback": "support"}
    agent = Agent(acme(features={"refer": refer(destinations=[sales, SUPPORT], require_confirmation=confirm)}))
    agent.line.outcome = "failed"
    if confirm:
        asked = await agent.call(destination_id="sales")
        assert asked.approval is not None
        await agent.executor.approvals.approve(asked.approval.token, by="customer", who="+33600000001")
        agent.turn = 2

    result = await agent.call(id="c-2", destination_id="sales")

    assert code(result) == "call_transfer_failed"
    tried = [target for target, _ in agent.line.transfers]
    assert tried == ["sip:sales@acme.example"] + ([] if confirm else ["tel:+14155552000"])
    assert ("'support'" in result.for_model()) is confirm
