"""One cell of the matrix: a fault, played against one host."""

import asyncio
import importlib
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from benchmarks.faults.world import DONE, Plan, World

ROOT = Path(__file__).parents[2]
ARGUMENTS = {"invoice_id": "R-7", "amount": 100}
TIMEOUT = 0.4
"""Seconds that the host gives its tool."""


RESTART = 1.2
"""Seconds until a killed process is started again."""


class Question(Protocol):
    """Something that a person has to decide before the host goes on."""

    id: str
    arguments: Mapping[str, Any]
    text: str
    """All that the person is shown."""
    is_doubt: bool
    """Not a question: the outcome of a call is not known, and an operator has to find out."""


class Host(Protocol):
    """An agent with one tool, `pay`, that asks a person first, and keeps its state in the world's directory."""

    world: World

    async def send(self, turn: int) -> None:
        """Play a turn until it ends or pauses."""
        ...

    async def is_waiting(self) -> bool:
        """Whether the last turn is not over."""
        ...

    async def questions(self) -> list[Question]:
        """What the paused turn waits for."""
        ...

    async def decide(self, question: Question, *, yes: bool) -> None:
        """Record a person's decision, as an application would."""
        ...

    async def resolve(self, question: Question, *, happened: bool) -> None:
        """Record what an operator found out about a call in doubt."""
        ...

    async def resume(self) -> None:
        """Go on from the stored state with the decisions that were recorded."""
        ...

    async def tamper(self, amount: int) -> None:
        """Change the arguments of the pending call in the stored state."""
        ...

    async def aclose(self) -> None:
        """Close what is open; the state stays."""
        ...


def call(call_id: str, **changes: Any) -> dict[str, Any]:
    """A call of `pay`, as the scripted model makes it."""
    return {"id": call_id, "arguments": {**ARGUMENTS, **changes}}


TEXT: dict[str, Any] = {"text": "Done."}
ONE = [{"calls": [call("c1")]}, TEXT]

SCRIPTS: dict[str, tuple[list[list[dict[str, Any]]], Plan]] = {
    "F1": ([[{"calls": [call("c1")]}, {"calls": [call("c1")]}, TEXT]], Plan()),
    "F2": ([[{"calls": [call("c1")]}, {"calls": [call("c2")]}, TEXT]], Plan()),
    "F3": ([ONE, [{"calls": [call("c2")]}, TEXT]], Plan()),
    "F4": ([ONE], Plan(kill="before")),
    "F5": ([ONE], Plan(kill="after")),
    "F6": ([[{"calls": [call("c1")]}, {"calls": [call("c2")]}, TEXT]], Plan(blocks=1.2)),
    "F7": ([ONE], Plan(hang_after=True)),
    "F8": ([ONE], Plan()),
    "F9": ([ONE], Plan(takes=0.2)),
    "F10": ([[{"calls": [call("c1")]}, {"calls": [call("c2")]}, TEXT]], Plan(raise_after=True)),
    "F11": ([[{"calls": [call("c1"), call("c2")]}, TEXT]], Plan()),
    "F12": (
        [[{"calls": [{"id": "c1", "text": '{"invoice_id": "R-7", "amount": 10'}], "cut": True}, TEXT]],
        Plan(is_cut=True),
    ),
    "F13": ([ONE], Plan(raise_after=True, retries=True)),
    "F14": ([[{"calls": [call("c1")]}, {"calls": [call("c2")]}, TEXT]], Plan(adds_tool=True)),
}
NAMES = {
    "F1": "one call id delivered twice",
    "F2": "the same call again in one turn",
    "F3": "the same call again in a later turn",
    "F4": "kill -9 before the effect, then resume",
    "F5": "kill -9 after the effect, then resume",
    "F6": "a sync handler whose effect comes after its timeout",
    "F7": "the caller is cancelled in the handler",
    "F8": "arguments changed after the approval",
    "F9": "one approval, two processes",
    "F10": "the handler raises after its effect",
    "F11": "two equal calls in one response",
    "F12": "arguments cut off by the token limit",
    "F13": "the framework retries the tool, which raised after its effect",
    "F14": "the same call again, of a tool that the framework adds at run time",
}


def load_host(name: str, world: World, *, guarded: bool) -> Host:
    """A host by the name of its module."""
    module = importlib.import_module(f"benchmarks.faults.hosts.{name}")
    return module.Host(world, guarded=guarded)


async def play(name: str, fault: str, directory: Path, *, guarded: bool) -> World:
    """Play one fault against one host, and give back the world with its journal."""
    world = World(directory)
    turns, plan = SCRIPTS[fault]
    world.prepare(turns, plan)
    steps = _FAULTS.get(fault, _play_through)
    await steps(_Cell(name, world, guarded))
    return world


class _Cell:
    def __init__(self, name: str, world: World, guarded: bool) -> None:
        self.name, self.world, self.guarded = name, world, guarded

    async def run(self, step: Callable[[Host], Awaitable[None]]) -> None:
        """One step with a host of its own: only what is stored passes from one to the next."""
        host = load_host(self.name, self.world, guarded=self.guarded)
        try:
            await step(host)
        finally:
            await host.aclose()

    def spawn(self, step: str) -> "subprocess.Popen[bytes]":
        """One step in a process of its own, which may be killed."""
        spec = {"name": self.name, "directory": str(self.world.directory), "guarded": self.guarded, "step": step}
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.faults.cells", json.dumps(spec)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    async def spawn_and_wait(self, *steps: str) -> None:
        """Steps in processes of their own, which start at the same moment."""
        processes = [self.spawn(step) for step in steps]
        for process in processes:
            assert process.stdout is not None
            await asyncio.to_thread(process.stdout.readline)
        await asyncio.gather(*(asyncio.to_thread(process.communicate, b"go\n", 60) for process in processes))


def _turn(number: int) -> Callable[[Host], Awaitable[None]]:
    return lambda host: host.send(number)


async def _decide(host: Host) -> None:
    """A person who reads what is shown: yes to what they want, no to what is said to have happened already.

    An operator who is shown a doubt looks whether the payment is there, and says so, once nothing can run any more.
    """
    world = host.world
    if world.plan.blocks:
        await asyncio.sleep(world.plan.blocks)
    for question in await host.questions():
        if question.is_doubt:
            world.note("paused", id=question.id, text=question.text)
            await host.resolve(question, happened=bool(world.entries("effect")))
            continue
        wanted = dict(question.arguments) == ARGUMENTS or world.plan.is_cut
        yes = wanted and DONE not in question.text.lower()
        world.note("asked", id=question.id, arguments=dict(question.arguments), yes=yes, text=question.text)
        await host.decide(question, yes=yes)


async def _resume(host: Host) -> None:
    await host.resume()


async def _finish(cell: _Cell, rounds: int = 4, *, is_decided: bool = False) -> None:
    """Decide and resume until nothing waits. An application resumes a run that broke."""
    is_over, is_broken = False, is_decided

    async def step(host: Host) -> None:
        nonlocal is_over, is_broken
        if not is_broken:
            is_over = not await host.is_waiting()
            await _decide(host)
        if not is_over:
            try:
                await host.resume()
            except Exception as error:
                is_broken = True
                cell.world.note("raised", text=repr(error))
            else:
                is_broken = False

    for _ in range(rounds):
        await cell.run(step)
        if is_over:
            return


async def _play_through(cell: _Cell) -> None:
    for number in range(len(cell.world.turns)):
        await cell.run(_turn(number))
        await _finish(cell)


async def _killed(cell: _Cell) -> None:
    await cell.run(_turn(0))
    await cell.run(_decide)
    await cell.spawn_and_wait("resume")  # It is killed inside the handler.
    await asyncio.sleep(RESTART)
    await _finish(cell, is_decided=True)


async def _cancelled(cell: _Cell) -> None:
    await cell.run(_turn(0))
    await cell.run(_decide)

    async def cancel(host: Host) -> None:
        task = asyncio.ensure_future(host.resume())
        while not cell.world.is_hanging and not task.done():  # noqa: ASYNC110 (the handler may be in any thread)
            await asyncio.sleep(0.01)
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task

    await cell.run(cancel)
    await _finish(cell, is_decided=True)


async def _tampered(cell: _Cell) -> None:
    await cell.run(_turn(0))
    await cell.run(_decide)
    await cell.run(lambda host: host.tamper(999))
    await _finish(cell, is_decided=True)


async def _raced(cell: _Cell) -> None:
    await cell.run(_turn(0))
    await cell.run(_decide)
    await cell.spawn_and_wait("resume", "resume")


_FAULTS: dict[str, Callable[[_Cell], Awaitable[None]]] = {
    "F4": _killed,
    "F5": _killed,
    "F7": _cancelled,
    "F8": _tampered,
    "F9": _raced,
}


def main() -> None:
    """One step in a process of its own."""
    spec = json.loads(sys.argv[1])
    host = load_host(spec["name"], World(Path(spec["directory"])), guarded=spec["guarded"])

    async def run() -> None:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        try:
            await {"resume": _resume}[spec["step"]](host)
        finally:
            await host.aclose()

    asyncio.run(run())


if __name__ == "__main__":
    main()
