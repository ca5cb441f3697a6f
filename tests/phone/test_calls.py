"""Whole phone calls through the official SDK and the simulator."""

import pytest

from tests.phone.calls import play
from tests.tenants.samples import acme, refer

GREETING = "Bonjour, que puis-je faire pour vous ?"


@pytest.mark.proves("PH-01", "PH-03")
def test_a_transfer_without_confirmation() -> None:
    cfg = acme(
        locale="fr", greeting=GREETING, instructions="Sois bref.", features={"refer": refer(require_confirmation=False)}
    )
    played = play(
        {
            "model": [
                {"say": GREETING},
                {"calls": [{"id": "c1", "name": "request_transfer", "args": {"destination_id": "sales"}}]},
                {"say": "Je vous transfère vers Service Commercial"},
            ],
            "caller": [{"say": "Le service commercial, s'il vous plaît."}, {"sleep": 30}],
            "expect": [
                {"never": "response.create", "while": "response_active"},
                {"http": "refer", "times": 1},
                {"ended": "transferred"},
            ],
        },
        tenants=[cfg],
    )

    session = next(entry.data["body"] for entry in played.report.timeline if entry.type == "accept")
    assert session["instructions"] == "Sois bref."
    assert [tool["name"] for tool in session["tools"]] == ["request_transfer"]
    assert session["tool_choice"] == "auto"
    [refers] = [one for one in played.report.http if one.verb == "refer"]
    assert refers.body == {"target_uri": "sip:sales@acme.example"}
    spoken = [line.text for line in played.report.transcript if line.speaker == "agent"]
    assert spoken == [GREETING, "Je vous transfère vers Service Commercial"]
    assert {"ws_tool_call_received", "request_transfer_refer_call_succeeded"} <= set(played.notes)
    assert all(one.sip_call_id == "sip-rtc_1@carrier.example" for one in played.events)
