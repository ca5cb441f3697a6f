"""The faults that are played against a tool's flags, the policy and the store: in processes, with a stand-in handler.

No function of the tool runs but its validation, its key and its lock key: its handler, its `verify` and its permission
check are replaced, and the hooks and limits of the executor are left out.
"""

import asyncio
import json
import os
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from msgspec import Struct

from handrail.authorize.approvals import MemoryApprovals
from handrail.cli.processes import KILLED, die, run_processes, wait_for_both
from handrail.cli.verify.guarantee import Guarantee, GuaranteeStatus
from handrail.core.context import ToolContext
from handrail.core.tool import Tool
from handrail.core.values import ToolCall
from handrail.errors import ToolError
from handrail.execute.executor import Executor
from handrail.execute.ledger import MemoryLedger
from handrail.execute.limits import Timeouts

if TYPE_CHECKING:
    from handrail.store.store import ScratchStore  # It needs the extra `sql`, and a ledger in memory does not.

SCRATCH_PREFIX: Final = "handrail-verify-"
"""What the ids of all sessions begin with that are played here; their rows are removed."""
_TIMEOUTS: Final = Timeouts(call=1.5, lease=0.3, lease_grace=0.1, in_progress=2.0)
"""Shorter than anybody's, so that a process that died is noticed soon."""
_LONG: Final = 0.8
"""Seconds that a handler takes that outlives its first lease."""
_INCONCLUSIVE: Final = ("outcome_unknown", "in_progress", "approval_required")
"""Results that say neither that the effect took place nor that it did not."""

HandlerFault = Literal["none", "die before", "die after", "raise after", "take long"]


class VerifiedTool(Struct, frozen=True, kw_only=True):
    """What is verified: one tool of an executor, in one store."""

    executor: Executor
    tool: Tool[..., Any]
    run: str
    """The name of this run: the rows of its sessions are removed."""
    build_store: "Callable[[], ScratchStore] | None"
    """None if the executor keeps everything in memory."""


class Told(Struct, frozen=True, kw_only=True):
    """The result of one call: `ok` or its error code, and how often the effect had taken place by then."""

    code: str
    effects: int

    @property
    def is_false(self) -> bool:
        """Whether it says that the effect took place and it did not, or the other way round."""
        return (self.code == "ok") != bool(self.effects) and self.code not in _INCONCLUSIVE


def play_cells(subject: VerifiedTool) -> Generator[Guarantee]:
    """Play every fault that the policy lets this tool come to."""
    tool = subject.tool
    arguments = make_arguments(tool)
    if arguments is None:
        text = "no valid arguments were found for it: give it some with examples=[…]"
        yield Guarantee(name="faults", title="the faults", tool=tool.name, status="not tried", text=text)
        return
    explained = subject.executor.explain(_build_call(tool, "c1", arguments), _build_context(subject, "0", turn=1))
    decision = explained.decision
    if decision is None or decision.action == "deny":
        shown = "; ".join(line.strip() for line in explained.lines[:2])
        text = f"{shown} With examples=[…] other arguments are tried than {json.dumps(arguments)}."
        yield Guarantee(name="faults", title="the faults", tool=tool.name, status="not tried", text=text)
        return
    with TemporaryDirectory(prefix=SCRATCH_PREFIX) as folder:
        cells = [Cell(subject, name, Path(folder) / name, arguments) for name, _, _ in _FAULTS]
        # Each in a process of its own, at the same time: they wait most of the time.
        outcomes = run_processes(*(_start(play, cell) for cell, (_, _, play) in zip(cells, _FAULTS, strict=True)))
    for (name, title, _), (status, text) in zip(_FAULTS, outcomes, strict=True):
        yield Guarantee(name=name, title=title, tool=tool.name, status=status, text=text)


def _start(play: "Callable[[Cell], CellOutcome]", cell: "Cell") -> "Callable[[], CellOutcome]":
    return lambda: play(cell)


class Cell:
    """One fault: a session and a customer of its own, and the file in which the stand-in notes its effects."""

    def __init__(self, subject: VerifiedTool, name: str, directory: Path, arguments: Mapping[str, Any]) -> None:
        self.tool = subject.tool
        self.arguments = arguments
        self._subject = subject
        self._name = f"{name}-{subject.tool.name}"
        self._directory = directory
        directory.mkdir()

    def approve(self) -> tuple[int, bool]:
        """Let everybody agree who has to: the turn in which the call can be sent, and whether somebody was asked."""

        async def ask() -> tuple[int, bool]:
            async with self._open("none") as executor:
                question = await executor.request_approval(
                    _build_call(self.tool, "c1", self.arguments), self._build_context(turn=1)
                )
                if question is None:
                    return 1, False
                who = question.customer_id if question.by == "customer" else "handrail verify"
                await executor.approvals.approve(question.token, by=question.by, who=who or "handrail verify")
                return 2, True

        [found] = run_processes(lambda: asyncio.run(ask()))
        return found

    def explain(self, arguments: Mapping[str, Any]) -> str | None:
        """What the policy decides about these arguments: allow, ask or deny."""
        call = _build_call(self.tool, "c1", arguments)
        decision = self._subject.executor.explain(call, self._build_context(turn=2)).decision
        return None if decision is None else decision.action

    def send(
        self, call_id: str, turn: int, *, fault: HandlerFault = "none", arguments: Mapping[str, Any] | None = None
    ) -> Told:
        """Send a call in a process of its own."""
        return self.send_together((call_id, turn, fault), arguments=arguments)[0]

    def send_together(
        self, *calls: tuple[str, int, HandlerFault], arguments: Mapping[str, Any] | None = None
    ) -> list[Told]:
        """Send calls in processes that start at the same moment."""

        async def run(call_id: str, turn: int, fault: HandlerFault) -> str:
            async with self._open(fault) as executor:
                if len(calls) > 1:
                    wait_for_both(self._directory)
                call = _build_call(self.tool, call_id, arguments or self.arguments)
                result = await executor.run(call, self._build_context(turn=turn))
                return "ok" if result.error is None else result.error.code

        def start(call: tuple[str, int, HandlerFault]) -> Callable[[], str]:
            return lambda: asyncio.run(run(*call))

        codes = run_processes(*map(start, calls))
        return [Told(code=code, effects=self.count_effects()) for code in codes]

    def count_effects(self) -> int:
        """How often the effect took place. A service that knows idempotency keys does nothing for a known one."""
        path = self._directory / "effects"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return len(set(lines) if self.tool.idempotent else lines)

    def _build_context(self, *, turn: int) -> ToolContext[None]:
        return _build_context(self._subject, self._name, turn=turn)

    def _open(self, fault: HandlerFault) -> "_ScratchExecutor":
        return _ScratchExecutor(self._subject, lambda tool: self._stand_in(tool, fault))

    def _stand_in(self, tool: Tool[..., Any], fault: HandlerFault) -> Tool[..., Any]:
        """The tool with its flags, and functions that only note what happens."""
        effects = self._directory / "effects"

        async def handle(_: Any, context: ToolContext[Any]) -> str:
            if fault == "die before":
                die()
            if fault == "take long":
                await asyncio.sleep(_LONG)
            with effects.open("a", encoding="utf-8") as file:  # on disk before the kill
                file.write(f"{context.idempotency_key}\n")
                file.flush()
                os.fsync(file.fileno())
            if fault == "die after":
                die()
            if fault == "raise after":
                raise ConnectionError("the answer is lost")
            return "done"

        async def find_effect(_: Any, __: ToolContext[Any]) -> bool:
            return effects.exists()

        return replace(
            tool,
            handler=handle,
            is_async=True,
            takes_context=True,
            inline=False,
            output_schema=None,
            permission_check=None,
            verify=None if tool.verify is None else find_effect,
            timeout=None,
            aclose=None,
        )


class _ScratchExecutor:
    """An executor with the tools, the policy and the store of another; only its stand-ins run."""

    def __init__(self, subject: VerifiedTool, stand_in: Callable[[Tool[..., Any]], Tool[..., Any]]) -> None:
        self._subject = subject
        self._stand_in = stand_in
        self._store: ScratchStore | None = None

    async def __aenter__(self) -> Executor:
        original = self._subject.executor
        if self._subject.build_store is not None:
            self._store = self._subject.build_store()
            await self._store.open()
        return Executor(
            [self._stand_in(tool) for tool in original.known_tools],
            policy=original.policy,
            ledger=MemoryLedger() if self._store is None else self._store.ledger,
            approvals=MemoryApprovals() if self._store is None else self._store.approvals,
            mode="observe" if original.is_observed(self._subject.tool) else "enforce",
            timeouts=_TIMEOUTS,
            # Rules about tools that are not known yet are no mistake where the original allows them.
            fallback=_refuse if original.is_open else None,
        )

    async def __aexit__(self, *_: object) -> None:
        if self._store is not None:
            await self._store.aclose()


def _refuse(call: ToolCall, _: ToolContext[Any]) -> str:
    raise AssertionError(f"{call.name} is not verified")


def _build_call(tool: Tool[..., Any], call_id: str, arguments: Mapping[str, Any]) -> ToolCall:
    return ToolCall(id=call_id, name=tool.name, arguments_json=json.dumps(arguments))


def _build_context(subject: VerifiedTool, name: str, *, turn: int) -> ToolContext[None]:
    scratch = f"{SCRATCH_PREFIX}{subject.run}-{name}"
    return ToolContext(session_id=scratch, customer_id=scratch, turn=turn)


# The faults.

CellOutcome = tuple[GuaranteeStatus, str]


def _judge(cell: Cell, told: list[Told], *, effects: int = 1) -> CellOutcome:
    """Whether the effect took place as often as it should, and every result says so."""
    codes = ", ".join(answer.code for answer in told)
    if (count := cell.count_effects()) > effects:
        return "fails", f"it took place {count} times; the results were {codes}"
    if any(answer.is_false for answer in told):
        return "fails", f"it took place {count} times, and the results were {codes}"
    if count < effects and all(answer.code == "approval_required" for answer in told):
        return "fails", "it did not take place: the approval that one process stored is not known to another"
    if count < effects and all(answer.code not in _INCONCLUSIVE for answer in told):
        return "fails", f"it did not take place; the results: {codes}"
    return "holds", ""


def _deliver_twice(cell: Cell) -> CellOutcome:
    turn, _ = cell.approve()
    return _judge(cell, [cell.send("c1", turn), cell.send("c1", turn)])


def _repeat(cell: Cell) -> CellOutcome:
    if cell.tool.repeatable:
        return "not tried", "the tool is repeatable: each call with an id of its own runs"
    turn, _ = cell.approve()
    return _judge(cell, [cell.send("c1", turn), cell.send("c2", turn)])


def _repeat_later(cell: Cell) -> CellOutcome:
    if cell.tool.repeatable:
        return "not tried", "the tool is repeatable: each call with an id of its own runs"
    turn, _ = cell.approve()
    return _judge(cell, [cell.send("c1", turn), cell.send("c2", turn + 1)])


def _change_arguments(cell: Cell) -> CellOutcome:
    changed = change_arguments(cell.tool, cell.arguments)
    if changed is None:
        return "not tried", "no other valid arguments were found"
    if cell.explain(cell.arguments) != "ask" or cell.explain(changed) != "ask":
        return "not tried", "the policy asks nobody about these calls"
    turn, _ = cell.approve()
    told = cell.send("c1", turn, arguments=changed)
    if told.effects:
        return "fails", f"it ran with arguments that nobody agreed to: {json.dumps(changed)}"
    return "holds", ""


def _race(cell: Cell) -> CellOutcome:
    turn, _ = cell.approve()
    return _judge(cell, cell.send_together(("c1", turn, "none"), ("c1", turn, "none")))


def _outlive_lease(cell: Cell) -> CellOutcome:
    turn, _ = cell.approve()
    return _judge(cell, cell.send_together(("c1", turn, "take long"), ("c1", turn, "take long")))


def _play_fault(fault: HandlerFault) -> Callable[[Cell], CellOutcome]:
    def play(cell: Cell) -> CellOutcome:
        turn, _ = cell.approve()
        first = cell.send("c1", turn, fault=fault)
        told = [cell.send("c1", turn)]
        if not cell.tool.repeatable:
            told.append(cell.send("c2", turn))
        return _judge(cell, told if first.code == KILLED else [first, *told])

    return play


_FAULTS: Final[tuple[tuple[str, str, Callable[[Cell], CellOutcome]], ...]] = (
    ("delivered_twice", "a call that is delivered twice takes effect once", _deliver_twice),
    ("repeated", "a call that the model repeats in its turn takes effect once", _repeat),
    ("repeated_later", "a call that the model repeats in a later turn takes effect once", _repeat_later),
    ("changed", "arguments that change after the approval do not run", _change_arguments),
    ("two_processes", "two processes with one call take effect once", _race),
    ("killed_before", "kill -9 before the effect: not lost, and never reported as done", _play_fault("die before")),
    (
        "killed_after",
        "kill -9 after the effect: it is not done again, and never reported as not done",
        _play_fault("die after"),
    ),
    ("answer_lost", "a handler that fails after its effect does not take effect again", _play_fault("raise after")),
    ("long", "a handler that takes longer than the lease is not run by another process", _outlive_lease),
)
"""The name, the guarantee, and what is played."""
FAULT_NAMES: Final = tuple(name for name, _, _ in _FAULTS)


_TEXTS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "email": "verify@example.com",
    "uri": "https://example.com/",
    "uuid": "5f1b2c3d-0000-4000-8000-000000000000",
}


def make_arguments(tool: Tool[..., Any]) -> dict[str, Any] | None:
    """Arguments that the tool's own validation accepts; None if none were found."""
    for candidate in (*tool.examples, _make_value(tool.input_schema, tool.input_schema, 0)):
        if isinstance(candidate, Mapping) and _is_valid(tool, cast(Mapping[str, Any], candidate)):
            return dict(cast(Mapping[str, Any], candidate))
    return None


def change_arguments(tool: Tool[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same arguments with one other value; None if the tool accepts none."""
    for name, value in arguments.items():
        for other in _list_others(value):
            changed = {**arguments, name: other}
            if _is_valid(tool, changed):
                return changed
    return None


def _list_others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value - 1]
    return [f"{value}0", f"{value}x"] if isinstance(value, str) else []


def _is_valid(tool: Tool[..., Any], arguments: Mapping[str, Any]) -> bool:
    try:
        tool.parse(json.dumps(arguments))
    except (ToolError, TypeError, ValueError):
        return False
    return True


def _make_value(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    """A small value for a JSON Schema: not every schema has one that is found here."""
    if depth > 20 or not isinstance(schema, Mapping):
        return None
    node = cast(Mapping[str, Any], schema)
    if isinstance(reference := node.get("$ref"), str):
        return _make_value(_follow(reference, root), root, depth + 1)
    if "const" in node:
        return node["const"]
    for name in ("enum", "examples"):
        if values := node.get(name):
            return values[0]
    if "default" in node:
        return node["default"]
    for name in ("anyOf", "oneOf", "allOf"):
        if options := node.get(name):
            return _make_value(options[0], root, depth + 1)
    match _get_type(node):
        case "integer" | "number":
            least = node.get("minimum", node.get("exclusiveMinimum", 0))
            return max(least + (1 if "exclusiveMinimum" in node else 0), min(1, node.get("maximum", 1)))
        case "boolean":
            return False
        case "array":
            count = node.get("minItems", 0)
            return [_make_value(node.get("items", {}), root, depth + 1) for _ in range(count)]
        case "string":
            text = _TEXTS.get(node.get("format", ""), "verify")
            return text.ljust(node.get("minLength", 0), "x")[: node.get("maxLength", 1_000)]
        case "null":
            return None
        case _:
            properties = cast(Mapping[str, Any], node.get("properties", {}))
            required = cast(list[str], node.get("required", []))
            return {name: _make_value(properties.get(name, {}), root, depth + 1) for name in required}


def _get_type(node: Mapping[str, Any]) -> str | None:
    kind = node.get("type")
    first = cast(list[object], kind)[0] if isinstance(kind, list) and kind else cast(object, kind)
    return first if isinstance(first, str) else None


def _follow(reference: str, root: Mapping[str, Any]) -> Any:
    node: Any = root
    for part in reference.removeprefix("#/").split("/"):
        node = cast(Mapping[str, Any], node).get(part) if isinstance(node, Mapping) else None
    return node
