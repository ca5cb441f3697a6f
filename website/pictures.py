"""Draws the pictures of the docs: `python -m website.pictures` writes docs/overview.svg and docs/call-states.svg.

Each is one file for light and dark: its colours follow the reader's scheme, and it has a background of its own, so that
it can be read wherever it is shown.
"""

from collections.abc import Iterable
from html import escape
from typing import Literal

from handrail.execute.ledger import Entry, Recalled, State, decide_from_ledger
from website.pages import DOCS

STYLE = """
svg { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
.back { fill: #ffffff; } .frame { fill: #f3f7f7; stroke: #9bb7b5; } .box { fill: #ffffff; stroke: #5b6b6a; }
.step { fill: #e2f1ef; stroke: #1f6f6b; } .good { fill: #dff3e4; stroke: #2c7a43; }
.bad { fill: #fde5e3; stroke: #b3382c; } .warn { fill: #fff1d6; stroke: #9a6a00; }
.plain { fill: #eef0f3; stroke: #6b7480; }
text { fill: #14201f; } .small { fill: #43514f; } .line { stroke: #43514f; fill: none; } .tip { fill: #43514f; }
@media (prefers-color-scheme: dark) {
.back { fill: #14191c; } .frame { fill: #1a2426; stroke: #47605e; } .box { fill: #1f2629; stroke: #8b9a99; }
.step { fill: #173b39; stroke: #59b3ac; } .good { fill: #163823; stroke: #5fbd7c; }
.bad { fill: #46201d; stroke: #e58177; } .warn { fill: #40310f; stroke: #d9a83c; }
.plain { fill: #262d33; stroke: #93a0ac; }
text { fill: #eef4f3; } .small { fill: #b9c6c4; } .line { stroke: #b9c6c4; } .tip { fill: #b9c6c4; }
}
"""
MARKER = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto-start-reverse"><path class="tip" d="M0 0 8 4 0 8Z"/></marker></defs>'
)


def draw(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """A picture of this size; the title is for readers who do not see it."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
    back = f'<rect class="back" width="{width}" height="{height}" rx="12"/>'
    return "\n".join([head, f"<title>{escape(title)}</title><style>{STYLE}</style>{MARKER}", back, *parts, "</svg>\n"])


def draw_box(kind: str, x: float, y: float, width: float, height: float, *lines: str, title: str = "") -> str:
    """A box with a title and small lines, all in its middle."""
    middle, count = x + width / 2, len(lines) + bool(title)
    top = y + height / 2 - (count * 17) / 2 + 13
    parts = [f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8" stroke-width="1.5"/>']
    if title:
        parts.append(
            f'<text x="{middle}" y="{top:g}" font-size="16" font-weight="600" text-anchor="middle">'
            f"{escape(title)}</text>"
        )
    for number, line in enumerate(lines, start=bool(title)):
        parts.append(
            f'<text class="small" x="{middle}" y="{top + number * 17:g}" font-size="12.5" text-anchor="middle">'
            f"{escape(line)}</text>"
        )
    return "".join(parts)


def draw_arrow(path: str, *, label: str = "", at: tuple[float, float] = (0, 0), both: bool = False) -> str:
    """An arrow along a path, with a label."""
    start = ' marker-start="url(#tip)"' if both else ""
    arrow = f'<path class="line" d="{path}" stroke-width="1.6" marker-end="url(#tip)"{start}/>'
    if not label:
        return arrow
    x, y = at
    return f'{arrow}<text class="small" x="{x}" y="{y}" font-size="12.5" text-anchor="middle">{escape(label)}</text>'


def draw_overview() -> str:
    """What happens to a call: from the model, through Handrail, to the tool and back."""
    left, middle, right, top, low = 200, 326, 452, 78, 198
    steps = [
        draw_box("step", left, top, 108, 78, "the arguments", "fit the schema", title="validate"),
        draw_box("step", middle, top, 108, 78, "was it done", "before?", title="recall"),
        draw_box("step", right, top, 108, 78, "allow, ask", "or deny", title="authorise"),
        draw_box("step", right, low, 108, 78, "recorded", "before it runs", title="claim"),
        draw_box("step", middle, low, 108, 78, "once, with", "a deadline", title="run"),
        draw_box("step", left, low, 108, 78, "the outcome", "is recorded", title="settle"),
    ]
    callers = ("OpenAI, Anthropic,", "Gemini, local,", "an MCP client,", "a phone call,", "your framework")
    arrows = [
        draw_arrow(f"M148 {top + 39}H{left - 3}", label="call", at=(165, top + 31)),
        draw_arrow(f"M{left} {low + 39}H151", label="result", at=(166, low + 31)),
        draw_arrow(f"M{left + 108} {top + 39}H{middle - 3}"),
        draw_arrow(f"M{middle + 108} {top + 39}H{right - 3}"),
        draw_arrow(f"M{right + 54} {top + 78}V{low - 3}"),
        draw_arrow(f"M{right} {low + 39}H{middle + 111}"),
        draw_arrow(f"M{middle} {low + 39}H{left + 111}"),
        draw_arrow(f"M{right + 111} {top + 39}H621", both=True),
        draw_arrow(f"M{right + 111} {low + 39}H621", both=True),
        draw_arrow(f"M{middle + 54} {low + 81}V335", both=True),
        draw_arrow(f"M{left + 54} {low + 81}V335"),
    ]
    return draw(
        776,
        428,
        "A model sends a call to Handrail, which validates it, recalls whether it was done, authorises it, claims it, "
        "runs the tool and settles the outcome. An approver is asked, a ledger records, listeners get every event.",
        [
            draw_box("box", 16, top, 132, 198, *callers, title="Model"),
            '<rect class="frame" x="182" y="22" width="396" height="274" rx="12" stroke-width="1.5"/>',
            '<text x="380" y="54" font-size="19" font-weight="700" text-anchor="middle">Handrail</text>',
            *steps,
            draw_box("box", 624, top, 136, 78, "the customer", "or an operator", title="Approver"),
            draw_box("box", 624, low, 136, 78, "memory, SQLite", "or Postgres", title="Ledger"),
            draw_box("box", 310, 338, 140, 74, "a function, an API,", "an MCP server", title="Tool"),
            draw_box("box", 150, 338, 144, 74, "log, metrics,", "traces, audit", title="Listeners"),
            *arrows,
        ],
    )


STATES: dict[State, tuple[str, str, str]] = {
    "running": ("plain", "running", "claimed by a process"),
    "committed": ("good", "done", "the result is recorded"),
    "failed": ("plain", "failed", "nothing happened"),
    "unknown": ("warn", "unknown", "a doubt"),
}
"""How each state of an entry is shown: kind of box, name, and what it means."""
ANSWERS = {
    "run": ("step", "it runs"),
    "replay": ("good", "the recorded result"),
    "in_progress": ("plain", "in_progress"),
    "duplicate_id": ("bad", "duplicate_call"),
    "duplicate_effect": ("bad", "duplicate_call"),
    "unknown": ("warn", "verify, take over,\nor outcome_unknown"),
    "unknown, not the same": ("warn", "outcome_unknown"),
    "ask_again": ("warn", "approval_required"),
}
"""How each step of the ledger's table is shown."""
Case = Literal["same", "same id", "same effect", "same key", "later turn"]
CASES: dict[Case, tuple[str, str]] = {
    "same": ("The same call again", "same id and arguments"),
    "same id": ("The id is used again", "with other arguments"),
    "same effect": ("A new id, in this turn", "the same effect"),
    "same key": ("A new id, in this turn", "same key, other arguments"),
    "later turn": ("A new id, in a later turn", "the same effect"),
}


def decide(state: State, case: Case) -> str:
    """What the ledger's table says about a call, if it has an entry in this state."""
    entry = Entry(
        session_id="s", call_id="c", tool="pay", identity="sent", key="key", full_key="key", arguments_digest="digest",
        number=0, full_number=0, repeat=0, turn=1, owner="o", claimed_at=0, lease_until=60, state=state, settled_at=0,
    )  # fmt: skip
    is_known = case in ("same", "same id")
    is_changed = case in ("same id", "same key")
    decision = decide_from_ledger(
        Recalled(entry) if is_known else Recalled(None, entry, entry, None),
        identity="other" if is_changed else "sent",
        arguments_digest="other" if is_changed else "digest",
        session_id="s",
        turn=2 if case == "later turn" else 1,
        now=1,
        repeat_window=86_400,
    )
    # What is in doubt with other arguments cannot be verified for this call.
    return decision.step + (", not the same" if decision.step == "unknown" and not decision.is_same else "")


def draw_call_states() -> str:
    """The life of a consequential call, and what a repetition gets in each of its states."""
    label_width, column, top, row = 190, 176, 128, 48
    places = {state: 16 + label_width + number * column for number, state in enumerate(STATES)}
    middle = {state: x + (column - 12) / 2 for state, x in places.items()}
    parts = [
        draw_box(kind, places[state], top, column - 12, 58, text, title=name)
        for state, (kind, name, text) in STATES.items()
    ]
    parts += [
        draw_arrow(f"M{label_width - 16} {top + 29}H{places['running'] - 3}"),
        '<text x="16" y="152" font-size="14" font-weight="600">a call that may run</text>',
        '<text class="small" x="16" y="170" font-size="12.5">is claimed first</text>',
        draw_arrow(f"M{places['running'] + column - 12} {top + 29}H{places['committed'] - 3}"),
        draw_arrow(
            f"M{middle['running']} {top}V{top - 30}H{middle['failed']}V{top - 3}",
            label="ToolError",
            at=(middle["failed"] - 44, top - 36),
        ),
        draw_arrow(
            f"M{middle['running'] - 30} {top}V{top - 66}H{middle['unknown'] - 20}V{top - 3}",
            label="timeout, lost answer, the process died",
            at=(middle["committed"] + 20, top - 72),
        ),
        draw_arrow(
            f"M{middle['unknown'] + 20} {top}V{top - 102}H{middle['running'] - 60}V{top - 3}",
            label="taken over: idempotent, or verify says that nothing happened. Or verify, or a person, settles it",
            at=(middle["committed"] + 90, top - 108),
        ),
        f'<text x="16" y="{top + 96}" font-size="14" font-weight="600">What a repetition gets</text>',
    ]
    for number, (case, (name, text)) in enumerate(CASES.items()):
        y = top + 110 + number * row
        parts.append(
            f'<text x="16" y="{y + 18}" font-size="13.5">{name}</text>'
            f'<text class="small" x="16" y="{y + 34}" font-size="12.5">{text}</text>'
        )
        for state, x in places.items():
            kind, answer = ANSWERS[decide(state, case)]
            parts.append(draw_box(kind, x, y, column - 12, row - 8, *answer.split("\n")))
    height = top + 110 + len(CASES) * row + 12
    title = (
        "The states of a consequential call (running, done, failed, unknown), and what a repeated call gets in each."
    )
    return draw(16 + label_width + 4 * column + 4, height, title, parts)


PICTURES = {"overview.svg": draw_overview, "call-states.svg": draw_call_states}

if __name__ == "__main__":
    for name, draw_picture in PICTURES.items():
        (DOCS / name).write_text(draw_picture(), "utf-8")
