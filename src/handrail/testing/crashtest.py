"""Kills a process at every step of the line, resumes, and counts double, lost and falsely reported effects.

    python -m handrail.testing.crashtest sqlite+aiosqlite:///crash.db

Each try is a process of its own that runs one call with consequences and is killed (`SIGKILL`, as by a machine that
goes away) before or after one step. Then the call arrives again, and a new call for the same effect, as they do when an
agent resumes. What the world saw is compared with what was answered.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from msgspec import Struct

from handrail.authorize.approvals import Approvals
from handrail.authorize.policy import Policy, Rule
from handrail.core.context import ToolContext
from handrail.core.values import ToolCall
from handrail.define.function import tool
from handrail.execute.executor import Executor
from handrail.execute.ledger import Entry, Ledger
from handrail.store import open_store

STEPS: Final = (
    "before recall",
    "after recall",
    "before claim",
    "after claim",
    "before effect",
    "after effect",
    "before settle",
    "after settle",
)
NEVER: Final = "never"
_TELLS: Final = ("outcome_unknown", "in_progress")
"""Answers that claim nothing: a person, or a later try, has to find out."""


class Try(Struct, frozen=True, kw_only=True):
    """One call that was killed at one step, and what came of it."""

    step: str
    verified: bool
    """Whether the tool can find out what became of an earlier call."""
    effects: int
    """How often the world saw the effect."""
    answers: tuple[tuple[str, int], ...]
    """What the call, and the one after it, were answered when they arrived again (`ok` or a code), and how often the
    world had seen the effect by then."""

    @property
    def double(self) -> bool:
        """The effect took place twice."""
        return self.effects > 1

    @property
    def lost(self) -> bool:
        """The effect is wanted, did not take place, and nobody is told that it may be missing."""
        return self.effects == 0 and self.answers[-1][0] not in ("ok", *_TELLS)

    @property
    def false(self) -> bool:
        """It was reported as done and was not, or as not done and was."""
        return any((said == "ok" and not seen) or (said not in ("ok", *_TELLS) and seen) for said, seen in self.answers)


class Report(Struct, frozen=True, kw_only=True):
    """What all tries came to. The three counts are 0, or something is broken."""

    tries: tuple[Try, ...]

    @property
    def double(self) -> int:
        """Effects that took place twice."""
        return sum(one.double for one in self.tries)

    @property
    def lost(self) -> int:
        """Effects that are missing without anybody being told."""
        return sum(one.lost for one in self.tries)

    @property
    def false(self) -> int:
        """Answers that are not true."""
        return sum(one.false for one in self.tries)

    def __str__(self) -> str:
        lines = [
            f"{one.step:14} {'verify' if one.verified else '':7} effects: {one.effects}  "
            f"then: {', '.join(said for said, _ in one.answers)}"
            for one in self.tries
        ]
        return "\n".join([*lines, f"double: {self.double}  lost: {self.lost}  falsely reported: {self.false}"])


async def crashtest(url: str, *, steps: Sequence[str] = STEPS) -> Report:
    """Kill a process at each step, with and without `verify`, on the database at `url`."""
    tries: list[Try] = []
    async with open_store(url):
        pass  # Brought up to date once, so that no child has to.
    with TemporaryDirectory() as folder:
        for verified in (False, True):
            for step in steps:
                tries.append(await _try(url, Path(folder), step, verified=verified))
    return Report(tries=tuple(tries))


async def _try(url: str, folder: Path, step: str, *, verified: bool) -> Try:
    name = f"{step.replace(' ', '-')}{'-verified' if verified else ''}-{os.getpid()}"
    world = folder / name
    world.touch()
    killed = await _child(url, world, name, call_id="first", step=step, verified=verified)
    if killed is not None:
        raise RuntimeError(f"the process was not killed at: {step}")
    answers: list[tuple[str, int]] = []
    for call_id in ("first", "second"):
        said = await _child(url, world, name, call_id=call_id, step=NEVER, verified=verified)
        answers.append((said or "killed", _seen(world)))
    return Try(step=step, verified=verified, effects=_seen(world), answers=tuple(answers))


def _seen(world: Path) -> int:
    return len(world.read_text(encoding="utf-8").splitlines())


async def _child(url: str, world: Path, name: str, *, call_id: str, step: str, verified: bool) -> str | None:
    """Run one call in a process of its own: what it was answered, or None if it was killed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "handrail.testing.crashtest", "--child", url, str(world), name, call_id, step),
        str(int(verified)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # The same packages as here.
    )
    output, _ = await process.communicate()
    if process.returncode == -signal.SIGKILL:
        return None
    if process.returncode != 0:
        raise RuntimeError(f"the process ended with {process.returncode}")
    return json.loads(output)


class _Fragile:
    """A ledger whose process is killed at one step."""

    def __init__(self, ledger: Ledger, step: str) -> None:
        self._ledger = ledger
        self._step = step
        self.digest_key = ledger.digest_key

    def at(self, step: str) -> None:
        if step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)

    async def recall(self, *, session_id: str, call_id: str, key: str) -> tuple[Entry | None, Entry | None]:
        self.at("before recall")
        found = await self._ledger.recall(session_id=session_id, call_id=call_id, key=key)
        self.at("after recall")
        return found

    async def claim(self, entry: Entry, *, approval: str | None, approvals: Approvals) -> bool:
        self.at("before claim")
        claimed = await self._ledger.claim(entry, approval=approval, approvals=approvals)
        self.at("after claim")
        return claimed

    async def settle(self, entry: Entry) -> None:
        self.at("before settle")
        await self._ledger.settle(entry)
        self.at("after settle")

    async def renew(self, entries: Sequence[Entry], *, lease_until: float) -> None:
        await self._ledger.renew(entries, lease_until=lease_until)

    async def find_doubts(self, *, now: float, session_id: str | None = None, limit: int = 100) -> list[Entry]:
        return await self._ledger.find_doubts(now=now, session_id=session_id, limit=limit)

    async def resolve(self, entry: Entry) -> bool:
        return await self._ledger.resolve(entry)


async def _run_child(url: str, world: str, name: str, call_id: str, step: str, verified: str) -> None:
    async with open_store(url, migrate=False) as store:
        fragile = _Fragile(store.ledger, step)

        def look(arguments: dict[str, Any], context: ToolContext[Any]) -> bool:
            return bool(Path(world).read_text(encoding="utf-8"))

        @tool(timeout=0.2, verify=look if verified == "1" else None)
        async def pay(invoice_id: str) -> str:
            """Pay an invoice."""
            fragile.at("before effect")
            with Path(world).open("a", encoding="utf-8") as file:  # noqa: ASYNC230  # on disk before the kill
                file.write(f"{invoice_id}\n")
                file.flush()
                os.fsync(file.fileno())
            fragile.at("after effect")
            return "paid"

        # The lease is as short as it can be: the claim of a process that was killed is over when the next one looks.
        rail = Executor([pay], policy=Policy([Rule.allow("pay")]), ledger=fragile, lease_grace=-0.2)
        call = ToolCall(id=call_id, name="pay", arguments_json=json.dumps({"invoice_id": name}))
        result = await rail.run(call, ToolContext(session_id=name, customer_id=name, turn=1))
        print(json.dumps(result.error.code if result.error else "ok"))  # noqa: T201  # to the parent


def main(arguments: Sequence[str]) -> int:
    """The command: exit code 0 only if nothing was double, lost or falsely reported."""
    if arguments[:1] == ["--child"]:
        asyncio.run(_run_child(*arguments[1:]))
        return 0
    if len(arguments) != 1:
        print(__doc__)  # noqa: T201
        return 2
    report = asyncio.run(crashtest(arguments[0]))
    print(report)  # noqa: T201
    return 0 if report.double == report.lost == report.false == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
