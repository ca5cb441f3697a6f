"""No text holds the event loop while it is redacted, wherever it goes: ledger, audit, log, approvals, doubts."""

import asyncio
import io
import json
import logging
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolResult, tool
from handrail.core import secret_patterns
from handrail.core.secret_patterns import MAX_PIECE
from handrail.execute import Timeouts
from handrail.monitor import JsonFormatter, Log
from handrail.store import open_store

LONG = "password=hunter22, 4111 1111 1111 1111; DE89 ://a:" * 2_000
"""A hundred thousand characters with something to look at everywhere."""


@tool(key=("reference",), timeout=0.2)
async def write_letter(reference: str, text: str, mode: str = "", context: ToolContext[Any] | None = None) -> Any:
    """Write a letter."""
    if mode == "hang":
        await asyncio.sleep(60)
    return ToolResult(output=text, metadata={"copy": text})


class LoopWatch:
    """Counts the characters that are searched in the event loop between two of its steps."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.step = 0
        self.in_loop: Counter[int] = Counter()
        self.elsewhere = 0
        self.longest = 0

    def note(self, text: str) -> None:
        self.longest = max(self.longest, len(text))
        if threading.get_ident() == self.thread:
            self.in_loop[self.step] += len(text)
        else:
            self.elsewhere += len(text)

    def count_steps(self) -> None:
        self.step += 1
        asyncio.get_running_loop().call_soon(self.count_steps)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> LoopWatch:
    watch = LoopWatch()
    search = secret_patterns._remove_secrets

    def remove(text: str, instead: str) -> str:
        watch.note(text)
        return search(text, instead)

    monkeypatch.setattr(secret_patterns, "_remove_secrets", remove)
    return watch


def letter(number: int, **values: Any) -> ToolCall:
    arguments = {"reference": f"r-{number}", "text": LONG} | values
    return ToolCall(id=f"c-{number}", name="write_letter", arguments_json=json.dumps(arguments))


async def test_no_step_of_the_event_loop_redacts_more_than_a_piece(tmp_path: Path, watch: LoopWatch) -> None:
    watch.count_steps()
    policy = Policy([Rule.ask("write_letter", by="operator", where={"mode": ""}), Rule.allow("write_letter")])
    at = ToolContext(session_id="s-1", customer_id="c-1", turn=1)
    log = Log()
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(JsonFormatter())
    async with open_store(f"sqlite:///{tmp_path}/long.db", audit_values=True, audit_interval=0.01) as store:
        executor = Executor([write_letter], policy=policy, store=store, listeners=[log], timeouts=Timeouts(lease=1.0))
        asked = await executor.run(letter(1), at)
        assert asked.approval is not None
        changed = {"reference": "r-1", "text": f"dear, {LONG}"}
        await executor.approvals.approve(asked.approval.token, by="operator", who="ann", reason=LONG, arguments=changed)
        done = await executor.run(letter(1), at)
        assert done.ok
        assert "changed its arguments" in done.for_model()
        other = await executor.run(ToolCall(id="c-2", name="write_letter", arguments_json=letter(1).arguments_json), at)
        assert other.error is not None or other.origin == "replayed"
        hung = await executor.run(letter(3, mode="hang"), at)
        assert hung.error is not None
        assert hung.error.code == "outcome_unknown"
        (doubt,) = await executor.doubts()
        await executor.resolve(session_id="s-1", call_id=doubt.call_id, happened=True, who="ann", reason=LONG)
        again = await executor.run(
            letter(4, reference="r-1", text=LONG + "!"), ToolContext(session_id="s-2", customer_id="c-1")
        )
        assert again.approval is not None
        await executor.approvals.deny(again.approval.token, by="operator", who="ann", reason=LONG)
        handler.handle(logging.LogRecord("other", logging.INFO, "", 0, LONG, (), None))
        await store.audit.flush()
        rows = await store.audit.query(kind="call_started")
        await executor.aclose()

    assert watch.longest <= 2 * MAX_PIECE, "a search looks at a piece"
    assert max(watch.in_loop.values()) <= 3 * MAX_PIECE, watch.in_loop.most_common(3)
    assert watch.elsewhere > 5 * len(LONG), "the long texts were redacted, in a thread"
    assert rows
    assert all("hunter22" not in json.dumps(row.arguments) for row in rows)
