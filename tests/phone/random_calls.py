"""Random phone calls with tools, barge-ins, hang-ups and faults, for load and soak."""

from random import Random
from typing import Any

FAULTS = ("delay", "duplicate", "reorder", "garbage", "unknown", "slow")
OF_PROVIDER: tuple[dict[str, Any], ...] = (
    {"fault": "no_metadata"},
    {"fault": "no_playback"},
    {"fault": "failed_reply", "probability": 0.1},
    {"fault": "late_transcript", "seconds": 2.5, "probability": 0.5},
    {"fault": "failed_transcript", "probability": 0.3},
)
CONTROL: tuple[dict[str, Any], ...] = (
    {"verb": "connect", "status": 404, "times": 2},
    {"verb": "accept", "status": 500},
    {"verb": "hangup", "status": 500},
)


def random_script(random: Random, *, faults: bool, lost_events: bool = False, is_chaos: bool = False) -> dict[str, Any]:
    """A call of a caller who talks, interrupts, presses keys and may hang up, with a model that calls tools."""
    numbers = iter(range(1_000))

    def entry() -> dict[str, Any]:
        names = [
            random.choice(("look_up", "book", "broken", "slow", "unknown"))
            for _ in range(random.choice((0, 1, 1, 2, 3)))
        ]
        calls = [
            {"id": f"c{next(numbers)}", "name": name, "args": {"key": f"k{random.randrange(10**9)}"}} for name in names
        ]
        if calls and random.random() < 0.05:
            calls[0]["args"] = '{"key":'
        status = random.choices(("completed", "failed", "incomplete"), (18, 1, 1))[0]
        return {"say": random.choice(("", "One moment.", "I am looking that up.")), "calls": calls, "status": status}

    def action() -> dict[str, Any]:
        return random.choice(
            (
                {"say": random.choice(("Hello?", "How much is it?")), "patience": 6},
                {"say": "Yes, please.", "patience": 6},
                {"barge": "No, wait.", "on": random.choice(("audio", "args", "response", "playout")), "patience": 3},
                {"dtmf": random.choice(("1", "42#"))},
                {"sleep": random.choice((0.1, 0.5, 2.0))},
                {"drop": random.choice((1006, 1011, 1012))},
            )
        )

    caller = [action() for _ in range(random.randint(1, 6))]
    if random.random() < 0.3:
        caller.append({"hangup": random.choice((0.0, 0.3, 1.0))})
    kinds = (*FAULTS, "close", "drop") if lost_events else FAULTS
    plan = [
        {"fault": random.choice(kinds), "probability": random.choice((0.02, 0.1)), "seconds": 0.2} for _ in range(2)
    ]
    http: list[dict[str, Any]] = [{"verb": "refer", "status": 503}] if random.random() < 0.2 else []
    if is_chaos:
        plan += random.sample(OF_PROVIDER, random.choice((0, 1, 2)))
        http += random.sample(CONTROL, random.choice((0, 0, 1)))
    return {
        "model": [{"say": "Hello."}, *(entry() for _ in range(random.randint(1, 5)))],
        "otherwise": {"say": "All right."},
        "caller": caller,
        "faults": plan if faults else [],
        "http": http,
        "webhook": {"copies": random.choice((1, 1, 2)), "live": random.choice((None, None, "before", "after"))},
        "seed": random.randrange(1_000_000),
    }
