"""The scenarios of a phone call once more, with something going wrong on the way."""

import asyncio
import json
from typing import Any

import pytest

from handrail import tool
from tests.phone.calls import play
from tests.phone.test_calls import FREE, GREETING, HANDOFF, TO_SALES, french
from tests.tenants.samples import refer

SCENARIOS: dict[str, dict[str, Any]] = {
    "transfer": {
        "model": [{"say": GREETING}, {"calls": [{"id": "c1", **TO_SALES}]}, {"say": HANDOFF}],
        "caller": [{"say": "Le service commercial."}, {"sleep": 60}],
    },
    "confirmation": {
        "model": [
            {"say": GREETING},
            {"calls": [{"id": "c1", **TO_SALES}]},
            {"say": "Transférer l'appel vers Service Commercial, oui ou non ?"},
            {"calls": [{"id": "c2", **TO_SALES}]},
            {"say": HANDOFF},
        ],
        "caller": [{"say": "Le service commercial."}, {"say": "Oui.", "patience": 20}, {"sleep": 60}],
    },
    "parallel": {
        "model": [
            {"say": GREETING},
            {"calls": [{"id": f"c{n}", "name": "order", "args": {"what": f"tea {n}"}} for n in (1, 2, 3)]},
            {"say": "C'est commandé."},
        ],
        "caller": [{"say": "Trois thés."}, {"wait": "results", "patience": 60}],
    },
    "interruption": {
        "model": [
            {"say": GREETING},
            {"say": "Je commande, un instant.", "calls": [{"id": "c1", "name": "order", "args": {"what": "tea"}}]},
            {"say": "Oui ?"},
            {"say": "C'est commandé."},
        ],
        "caller": [{"say": "Du thé."}, {"barge": "Attendez !", "on": "playout"}, {"wait": "results", "patience": 60}],
    },
}

FAULTS: dict[str, dict[str, Any]] = {
    "twice": {"faults": [{"fault": "duplicate"}]},
    "late": {"faults": [{"fault": "delay", "event": "response.*", "probability": 0.3, "seconds": 0.4}]},
    "slow": {"faults": [{"fault": "slow", "seconds": 0.05}]},
    "noise": {"faults": [{"fault": "unknown"}, {"fault": "garbage", "probability": 0.3}]},
    "no sign of the start": {"faults": [{"fault": "drop", "event": "response.created"}]},
    "no sign of the playout": {"faults": [{"fault": "drop", "event": "output_audio_buffer.started"}]},
    "closed": {"faults": [{"fault": "close", "event": "response.output_item.done", "nth": 2}]},
    "closed twice": {
        "faults": [
            {"fault": "close", "event": "response.done", "nth": 2},
            {"fault": "close", "event": "response.done", "nth": 3, "code": 1006},
        ]
    },
    "a server error": {"http": [{"verb": "accept", "status": 500}]},
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_with_a_fault(scenario: str, fault: str) -> None:
    ran: list[str] = []

    @tool(concurrency_safe=True)
    async def order(what: str) -> str:
        """Order something."""
        ran.append(what)
        await asyncio.sleep(1)
        return f"{what} ordered"

    features = {"refer": refer()} if scenario == "confirmation" else FREE
    played = play(
        {**SCENARIOS[scenario], "otherwise": {"say": "D'accord."}, **FAULTS[fault]},
        tenants=[french(features=features, policy=[{"allow": "order"}])],
        tools=[order],
        check=False,
    )

    report = played.report
    assert report.unanswered == ()
    assert report.duplicate_outputs == ()
    assert report.never_voiced == ()
    assert len(ran) == len(set(ran))
    assert sum(request.verb == "refer" for request in report.http) <= 1
    if "closed" not in fault:  # Who begins to speak while there is no connection is not heard.
        assert not [item for item in report.timeline if item.type == "response.create" and item.caller_speaking]
    if scenario == "transfer":
        assert report.ended == "transferred"
    if scenario in ("parallel", "interruption"):
        assert len(ran) == len(report.calls)
        assert "acme.example" not in json.dumps(report.client_events(), default=str)
