"""The world outside the agent: payments in a file, and a journal of questions and of what the model was told.

Both are appended and synced line by line, so that they survive `kill -9`.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DONE = "already"
"""A question or a result that contains this word says that the effect has happened before."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What goes wrong inside `pay`, the first time it runs."""

    kill: str = ""
    """`before` or `after` the effect."""
    raise_after: bool = False
    blocks: float = 0.0
    """Seconds that a sync handler blocks before its effect."""
    is_cut: bool = False
    """The arguments are cut: the person who is asked cannot know what was meant, and says yes to what they see."""
    takes: float = 0.0
    """Seconds that a payment takes, every time."""
    hang_after: bool = False
    """The handler never returns after its effect, until it is cancelled."""

    retries: bool = False
    """The framework's own retry stands right before the tool, inside of what asks for approval."""
    adds_tool: bool = False
    """The agent is built without the tool: the framework adds it at run time."""

    @property
    def is_sync(self) -> bool:
        """Whether the handler has to be a plain function."""
        return self.blocks > 0


class World:
    """One directory per cell of the matrix."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    # The script of the model and the plan of the fault.

    def prepare(self, turns: Sequence[Sequence[Mapping[str, Any]]], plan: Plan) -> None:
        """Write down what the model says in each turn, and what goes wrong."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._path("script.json").write_text(json.dumps(turns), "utf-8")
        self._path("plan.json").write_text(json.dumps(vars(plan)), "utf-8")

    @property
    def turns(self) -> list[list[dict[str, Any]]]:
        """The model's responses, turn by turn: `{"text": …}` or `{"calls": [{"id", "arguments"}], "cut": bool}`."""
        return json.loads(self._path("script.json").read_text("utf-8"))

    @property
    def plan(self) -> Plan:
        """What goes wrong."""
        return Plan(**json.loads(self._path("plan.json").read_text("utf-8")))

    # The effect.

    def pay(self, invoice_id: str, amount: int) -> str:
        """Pay, as a plain function."""
        plan, first = self.plan, self._is_first()
        if first and plan.blocks:
            time.sleep(plan.blocks)
        if first and plan.kill == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        self.note("effect", invoice_id=invoice_id, amount=amount)
        if first and plan.kill == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        if first and plan.raise_after:
            raise RuntimeError("the connection broke")
        return f"Paid {amount} for {invoice_id}."

    async def pay_async(self, invoice_id: str, amount: int) -> str:
        """Pay, as a coroutine."""
        hangs = self.plan.hang_after and not self._path("first").exists()
        await asyncio.sleep(self.plan.takes)
        text = self.pay(invoice_id, amount)
        if hangs:
            self._path("hanging").touch()
            await asyncio.Event().wait()
        return text

    @property
    def is_hanging(self) -> bool:
        """Whether a handler waits after its effect."""
        return self._path("hanging").exists()

    def _is_first(self) -> bool:
        try:
            self._path("first").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    # The journal.

    def note(self, kind: str, **data: Any) -> None:
        """Append one line, synced."""
        line = json.dumps({"kind": kind, **data}, default=str) + "\n"
        with self._path("journal.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def entries(self, kind: str) -> list[dict[str, Any]]:
        """All lines of one kind: `effect`, `asked` (arguments, yes, text), `told` (text), `paused` (text), `raised`."""
        path = self._path("journal.jsonl")
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [item for item in map(json.loads, lines) if item["kind"] == kind]

    def tell(self, texts: Sequence[str]) -> None:
        """The model reads these results; each result is noted once, however often the history is sent."""
        for text in texts[len(self.entries("told")) :]:
            self.note("told", text=text)

    def _path(self, name: str) -> Path:
        return self.directory / name
