"""Cassettes and recordings of phone calls: what tools returned, and everything that happened, again without them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from handrail import ToolContext, ToolError, tool
from handrail.core import Redactor
from handrail.errors import ConfigError
from handrail.phone import replay
from handrail.tenants import ToolBuilder
from handrail.testing import Cassette
from tests.phone.calls import Played, play
from tests.tenants.samples import acme, refer

SCRIPT = {
    "model": [
        {"say": "Hello."},
        {
            "calls": [
                {"id": "c1", "name": "find_order", "args": {"order_id": "A-1"}},
                {"id": "c2", "name": "refund", "args": {"order_id": "A-1", "amount": 5}},
            ]
        },
        {"say": "It is paid back."},
        {"calls": [{"id": "c3", "name": "refund", "args": {"order_id": "A-2", "amount": 7}}]},
        {"say": "That was not possible."},
        {"calls": [{"id": "c4", "name": "request_transfer", "args": {"destination_id": "sales"}}]},
        {"say": "Je vous transfère vers Service Commercial"},
    ],
    "caller": [
        {"say": "My money, please."},
        {"say": "And for the other one?"},
        {"say": "Then give me somebody else."},
        {"sleep": 30},
    ],
    "expect": [{"ended": "transferred"}],
}
RULES = [{"allow": "refund"}]


def play_shop(ran: list[str], cassette: Cassette | None = None, **options: Any) -> Played:
    @tool(read_only=True)
    async def find_order(order_id: str, context: ToolContext) -> dict[str, str]:
        """Find an order."""
        ran.append(f"find {order_id}")
        assert context.tenant is not None
        return {"order": order_id, "shop": context.tenant.tenant_id, "card": "4111 1111 1111 1111"}

    @tool
    def refund(order_id: str, amount: int) -> str:
        """Pay an order back."""
        ran.append(f"refund {order_id}")
        if order_id == "A-2":
            raise ToolError("This order was never paid.", code="not_paid")
        return f"Paid back {amount}."

    cfg = acme(greeting="Hello.", features={"refer": refer(require_confirmation=False)}, policy=RULES)
    wrap = None if cassette is None else cassette.tools
    return play(SCRIPT, tenants=[cfg], tools=[find_order, refund], wrap=wrap, **options)


def outputs(played: Played) -> dict[str, str]:
    sent = played.report.client_events("conversation.item.create", item__type="function_call_output")
    return {message["item"]["call_id"]: message["item"]["output"] for message in sent}


def test_a_call_is_replayed_from_a_cassette_without_running_its_tools(tmp_path: Path) -> None:
    ran: list[str] = []
    with Cassette(tmp_path / "call.json", mode="record", redactor=Redactor(patterns=[r"4111[\d ]+"])) as cassette:
        recorded = play_shop(ran, cassette)
    assert sorted(ran) == ["find A-1", "refund A-1", "refund A-2"]
    assert "4111" not in (tmp_path / "call.json").read_text()

    with Cassette(tmp_path / "call.json", mode="strict") as cassette:
        replayed = play_shop(ran, cassette)

    assert len(ran) == 3  # Nothing ran again; the transfer, which steers the call, did.
    assert outputs(replayed) == {**outputs(recorded), "c1": outputs(replayed)["c1"]}
    assert json.loads(outputs(replayed)["c1"])["shop"] == "acme-corp"
    assert [request.verb for request in replayed.report.http if request.verb == "refer"] == ["refer"]


def test_a_call_that_was_not_recorded_fails_the_test_although_the_phone_call_continues(tmp_path: Path) -> None:
    with Cassette(tmp_path / "call.json", mode="record"):
        pass

    cassette = Cassette(tmp_path / "call.json")
    played = play_shop([], cassette, check=False)
    assert set(outputs(played)) == {"c1", "c2", "c3", "c4"}
    with pytest.raises(AssertionError, match="'find_order' was called with"):
        cassette.close()


def test_what_wraps_tools_must_keep_their_names() -> None:
    @tool(read_only=True)
    def look() -> str:
        """Look."""
        return ""

    builder = ToolBuilder(wrap=lambda tools: [])
    builder.register(lambda cfg: look)

    with pytest.raises(ConfigError, match=r"wrap must return one tool for each .* got none for look"):
        builder.build_tools(acme())


def test_a_recorded_call_with_tools_refusals_and_a_transfer_leads_to_the_same_events_again(tmp_path: Path) -> None:
    played = play_shop([], recordings=tmp_path / "calls", redactor=Redactor(fields=["card"]))

    [path] = (tmp_path / "calls").iterdir()
    again = replay(path)
    assert len(again.recorded) == sum(entry.source == "client" for entry in played.report.timeline)
    assert again.differences == ()
    assert "acme.example" not in path.read_text()


def test_a_recording_shows_what_code_of_today_does_otherwise(tmp_path: Path) -> None:
    play_shop([], recordings=tmp_path)
    [path] = tmp_path.iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [line for line in lines if line.get("signal", {}).get("call_id", "").rpartition("/")[2] != "c2"]
    path.write_text("\n".join(map(json.dumps, kept)))

    assert replay(path).differences != ()


def test_a_call_whose_socket_was_lost_is_replayed_too(tmp_path: Path) -> None:
    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        await asyncio.sleep(1)
        return "seen"

    played = play(
        {
            "model": [{"say": "Hello."}, {"calls": [{"id": "c1", "name": "look"}]}],
            "otherwise": {"say": "All right."},
            "caller": [
                {"say": "Look, please."},
                {"wait": "response"},
                {"sleep": 1},
                {"drop": 1012},
                {"wait": "results", "patience": 20},
                {"say": "Thanks."},
                {"sleep": 5},
            ],
        },
        tenants=[acme(greeting="Hello.")],
        tools=[look],
        recordings=tmp_path,
    )

    assert played.notes.count("sideband_reconnecting") == 1
    [path] = tmp_path.iterdir()
    assert replay(path).differences == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: a recording begins with a line `call`"),
        ("{", ":1: this is not JSON"),
        ("[]", ":1: a line of a recording is an object"),
        ('{"call": {}}', ":1: call.options"),
        ('{"call": {"options": {}}}\n{"signal": {"kind": "Nothing"}}', ":2: .*Nothing"),
        ('{"call": {"options": {}}}\n{"signal": {"kind": "TimerFired"}}', ":2: .*name"),
        ('{"call": {"options": {}}}\n{"received": {}}', ":2: .*type"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_by_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "call.jsonl"
    path.write_text(text)

    with pytest.raises(ConfigError, match=message):
        replay(path)
