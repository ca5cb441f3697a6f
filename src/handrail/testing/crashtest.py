"""Kills a process at every step of a consequential call, resumes, and counts duplicate, lost and misreported effects.

    python -m handrail.testing.crashtest sqlite+aiosqlite:///crash.db

Each attempt is a process that runs one consequential call and is killed with `SIGKILL` before or after one step. Then
the call is repeated, and a new call for the same effect is made, as when an agent resumes. The effects that took place
are compared with the results.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final

from msgspec import Struct

from handrail.authorize.approvals import Approvals
from handrail.authorize.policy import Policy, Rule
from handrail.core.context import ToolContext
from handrail.core.events import CallStarted
from handrail.core.values import Approval, ToolCall
from handrail.define.function import tool
from handrail.errors import HandrailError
from handrail.execute.executor import Executor
from handrail.execute.ledger import Entry, Ledger, Recalled, VerifyAnswer
from handrail.execute.limits import Timeouts
from handrail.execute.stored_calls import Work, WorkItem
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
_INCONCLUSIVE: Final = ("outcome_unknown", "in_progress")
"""Results that claim nothing: a person, or a later attempt, has to find out."""


class Attempt(Struct, frozen=True, kw_only=True):
    """One call that was killed at one step, and its results afterwards."""

    step: str
    verified: bool
    """Whether the tool has a `verify`."""
    effects: int
    """How often the effect took place."""
    results: tuple[tuple[str, int], ...]
    """The results of the repeated call and of the new one (`ok` or a code), and how often the effect had taken place by
    then."""

    @property
    def double(self) -> bool:
        """Whether the effect took place twice."""
        return self.effects > 1

    @property
    def lost(self) -> bool:
        """Whether the effect did not take place, and no result says that it may be missing."""
        return self.effects == 0 and self.results[-1][0] not in ("ok", *_INCONCLUSIVE)

    @property
    def false(self) -> bool:
        """Whether it was reported as done and was not, or as not done and was."""
        return any(
            (code == "ok" and not effects) or (code not in ("ok", *_INCONCLUSIVE) and effects)
            for code, effects in self.results
        )


class CrashReport(Struct, frozen=True, kw_only=True):
    """The outcome of all attempts. Any count above 0 is a bug."""

    attempts: tuple[Attempt, ...]

    @property
    def double(self) -> int:
        """Effects that took place twice."""
        return sum(attempt.double for attempt in self.attempts)

    @property
    def lost(self) -> int:
        """Effects that are missing, and no result says so."""
        return sum(attempt.lost for attempt in self.attempts)

    @property
    def false(self) -> int:
        """Results that are wrong."""
        return sum(attempt.false for attempt in self.attempts)

    def __str__(self) -> str:
        lines = [
            f"{attempt.step:14} {'verify' if attempt.verified else '':7} effects: {attempt.effects}  "
            f"then: {', '.join(code for code, _ in attempt.results)}"
            for attempt in self.attempts
        ]
        return "\n".join([*lines, f"double: {self.double}  lost: {self.lost}  falsely reported: {self.false}"])


async def crashtest(url: str, *, steps: Sequence[str] = STEPS) -> CrashReport:
    """Kill a process at each step, with and without `verify`, on the database at `url`."""
    attempts: list[Attempt] = []
    async with open_store(url):
        pass  # Migrated once, so that no child has to.
    with TemporaryDirectory() as folder:
        for verified in (False, True):
            for step in steps:
                attempts.append(await _attempt(url, Path(folder), step, verified=verified))
    return CrashReport(attempts=tuple(attempts))


async def _attempt(url: str, folder: Path, step: str, *, verified: bool) -> Attempt:
    name = f"{step.replace(' ', '-')}{'-verified' if verified else ''}-{os.getpid()}"
    world = folder / name
    world.touch()
    killed = await _child(url, world, name, call_id="first", step=step, verified=verified)
    if killed is not None:
        raise RuntimeError(f"the process was not killed at: {step}")
    results: list[tuple[str, int]] = []
    for call_id in ("first", "second"):
        code = await _child(url, world, name, call_id=call_id, step=NEVER, verified=verified)
        results.append((code or "killed", _count_effects(world)))
    return Attempt(step=step, verified=verified, effects=_count_effects(world), results=tuple(results))


def _count_effects(world: Path) -> int:
    return len(world.read_text(encoding="utf-8").splitlines())


async def _child(url: str, world: Path, name: str, *, call_id: str, step: str, verified: bool) -> str | None:
    """Run one call in a new process; return its result, or None if it was killed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "handrail.testing.crashtest", "--child", url, str(world), name, call_id, step),
        str(int(verified)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # The packages of this process.
    )
    output, _ = await process.communicate()
    if process.returncode == -signal.SIGKILL:
        return None
    if process.returncode != 0:
        raise RuntimeError(f"the process ended with {process.returncode}")
    return json.loads(output)


class _Fragile:
    """A ledger whose process is killed at one step."""

    is_immediate: ClassVar[bool] = False
    needs_lease: ClassVar[bool] = True
    is_written: ClassVar[bool] = True

    def __init__(self, ledger: Ledger, step: str) -> None:
        self._ledger = ledger
        self._step = step
        self.can_claim_new = "recall" not in step
        """A call is looked up before it is claimed if it dies there."""
        self.digest_key = ledger.digest_key

    def at(self, step: str) -> None:
        if step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)

    async def recall(self, *, session_id: str, call_id: str, key: str = "", full_key: str = "") -> Recalled:
        self.at("before recall")
        found = await self._ledger.recall(session_id=session_id, call_id=call_id, key=key, full_key=full_key)
        self.at("after recall")
        return found

    async def claim(
        self,
        entry: Entry,
        *,
        approval: Approval | None,
        approvals: Approvals,
        started: CallStarted | None = None,
        item: WorkItem | None = None,
        work: Work | None = None,
        is_new: bool = False,
    ) -> bool:
        self.at("before claim")
        claimed = await self._ledger.claim(
            entry, approval=approval, approvals=approvals, started=started, item=item, work=work, is_new=is_new
        )
        self.at("after claim")
        return claimed

    async def settle(self, entry: Entry, *, work: Work | None = None) -> None:
        self.at("before settle")
        await self._ledger.settle(entry, work=work)
        self.at("after settle")

    async def take_over(
        self,
        entry: Entry,
        *,
        owner: str,
        lease_until: float,
        run_until: float,
        started: CallStarted | None = None,
    ) -> Entry | None:
        return await self._ledger.take_over(
            entry, owner=owner, lease_until=lease_until, run_until=run_until, started=started
        )

    async def renew(self, entries: Sequence[Entry], *, lease_until: float) -> None:
        await self._ledger.renew(entries, lease_until=lease_until)

    async def end_renewals(self) -> None:
        await self._ledger.end_renewals()

    async def find_doubts(
        self, *, now: float, session_id: str | None = None, tenant_id: str | None = None, limit: int = 100
    ) -> list[Entry]:
        return await self._ledger.find_doubts(now=now, session_id=session_id, tenant_id=tenant_id, limit=limit)

    async def record_answer(self, entry: Entry, answer: VerifyAnswer) -> None:
        await self._ledger.record_answer(entry, answer)

    async def resolve(self, entry: Entry, *, work: Work | None = None) -> bool:
        return await self._ledger.resolve(entry, work=work)


async def _run_child(url: str, world: str, name: str, call_id: str, step: str, verified: str) -> None:
    async with open_store(url, migrate=False) as store:
        fragile = _Fragile(store.ledger, step)

        def verify_payment(arguments: dict[str, Any], context: ToolContext[Any]) -> bool:
            return bool(Path(world).read_text(encoding="utf-8"))

        @tool(timeout=0.2, verify=verify_payment if verified == "1" else None)
        async def pay(invoice_id: str) -> str:
            """Pay an invoice."""
            fragile.at("before effect")
            with Path(world).open("a", encoding="utf-8") as file:  # noqa: ASYNC230  # on disk before the kill
                file.write(f"{invoice_id}\n")
                file.flush()
                os.fsync(file.fileno())
            fragile.at("after effect")
            return "paid"

        # The shortest lease: the next process waits a moment at most for the claim of a killed one to expire.
        timeouts = Timeouts(lease=1, lease_grace=0)
        rail = Executor([pay], policy=Policy([Rule.allow("pay")]), ledger=fragile, timeouts=timeouts)
        call = ToolCall(id=call_id, name="pay", arguments_json=json.dumps({"invoice_id": name}))
        result = await rail.run(call, ToolContext(session_id=name, customer_id=name, turn=1))
        print(json.dumps(result.error.code if result.error else "ok"))  # noqa: T201  # to the parent


def main(arguments: Sequence[str]) -> int:
    """Run the command; return 1 if an effect was duplicated, lost or misreported, and 2 if none could be looked at."""
    if arguments[:1] == ["--child"]:
        asyncio.run(_run_child(*arguments[1:]))
        return 0
    is_question = arguments[:1] in (["-h"], ["--help"])
    if is_question or len(arguments) != 1:
        print(__doc__)  # noqa: T201
        return 0 if is_question else 2
    try:
        report = asyncio.run(crashtest(arguments[0]))
    except HandrailError as error:  # Of the database: 1 is for what an attempt has shown.
        print(error.message, file=sys.stderr)  # noqa: T201
        return 2
    print(report)  # noqa: T201
    return 0 if report.double == report.lost == report.false == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
