"""The boundary for what a handler returns: everything is checked here once, before it is recorded or shown."""

import dataclasses
import inspect
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, cast, get_args

import msgspec
import pydantic
from msgspec import structs
from pydantic_core import from_json

from handrail.core import failure_results
from handrail.core.log import log
from handrail.core.media import MediaPart
from handrail.core.text import compact_json
from handrail.core.values import Control, Lifespan, SessionMode, ToolResult
from handrail.errors import UnusableOutputError

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_ENCODER: Final = msgspec.json.Encoder()
_MAX_DEPTH: Final = 200
_ONLY_OURS: Final = frozenset(
    {
        *("tool_not_found", "approval_required", "refused_by_hook", "in_progress", "duplicate_call", "cancelled"),
        "outcome_unknown",
    }
)
"""Codes that say what the executor did with a call: in the failure of a handler they would be taken for that."""


def is_plain(output: Any) -> bool:
    """Whether an output has nothing in it that must be iterated over or awaited.

    The encoder never iterates over an iterator: it raises. A dict costs 0.5 µs, a third of a check in Python.
    """
    value = output.output if isinstance(output, ToolResult) else output
    kind = type(cast(object, value))
    if kind in _SCALARS:
        return True
    if kind is not dict and kind is not list:
        return False
    try:
        _ENCODER.encode(value)
    except Exception:  # noqa: BLE001  # whatever is in there, it is looked at one by one
        return False
    return True


def to_replayable(output: Any) -> Any:
    """A date, a NaN and what else JSON has as a string, as that string: a replay could not tell them apart."""
    text = compact_json(output)
    return from_json(text) if text.startswith('"') else output


async def collect_output(output: Any, *, max_items: int) -> Any:
    """The output with its iterators as lists, and its awaitables awaited, in a `ToolResult` too.

    Raises `UnusableOutputError` for more than `max_items` items.
    """
    while inspect.isawaitable(output):
        output = await output
    return await _Collector(max_items=max_items, can_await=True).collect_result(output)


def collect_iterators(output: Any, *, max_items: int) -> tuple[Any, bool]:
    """The output with its iterators as lists, and whether that is all: awaitables are left as they are."""
    if is_plain(output):
        return output, True
    collector = _Collector(max_items=max_items, can_await=False)
    try:
        collector.collect_result(output).send(None)  # It awaits nothing.
    except StopIteration as returned:
        return returned.value, not collector.has_awaitables
    raise AssertionError("collecting without awaiting has waited")


class _Collector:
    def __init__(self, *, max_items: int, can_await: bool) -> None:
        self._max_items = max_items
        self._items = 0
        self._can_await = can_await
        self.has_awaitables = False
        """Whether something was left that must be awaited."""

    async def collect_result(self, output: Any) -> Any:
        if not isinstance(output, ToolResult):
            return await self.collect(output, 0)
        value = await self.collect(output.output, 0)
        return output if value is output.output else structs.replace(output, output=value)

    async def collect(self, value: Any, depth: int) -> Any:
        if type(value) in _SCALARS or isinstance(value, str | bytes | int | float | MediaPart):
            return value
        if depth > _MAX_DEPTH:
            kind = type(value).__name__
            raise UnusableOutputError(f"it returned a {kind} that is nested more than {_MAX_DEPTH} levels deep")
        if not self._can_await and (inspect.isawaitable(value) or isinstance(value, AsyncIterator)):
            self.has_awaitables = True
            return cast(Any, value)
        if inspect.isawaitable(value):
            return await self.collect(await value, depth + 1)
        if isinstance(value, AsyncIterator):
            return [await self._count(item, depth) async for item in cast(AsyncIterator[Any], value)]
        if isinstance(value, Iterator):
            return [await self._count(item, depth) for item in cast(Iterator[Any], value)]
        if isinstance(value, dict):
            members = cast(dict[Any, Any], value)
            found = {key: await self.collect(item, depth + 1) for key, item in members.items()}
            return members if all(found[key] is item for key, item in members.items()) else found
        if isinstance(value, list | tuple | set | frozenset):
            every = list(cast(list[Any], value))
            collected = [await self.collect(item, depth + 1) for item in every]
            is_same = all(item is other for item, other in zip(every, collected, strict=True))
            return cast(Any, value) if is_same else collected
        return await self._collect_fields(value, depth)

    async def _collect_fields(self, value: Any, depth: int) -> Any:
        """A value with fields, as a dict if there is something to collect in it."""
        if isinstance(value, pydantic.BaseModel):
            fields = dict(value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        else:
            return value
        found = await self.collect(fields, depth + 1)
        return value if found is fields else found

    async def _count(self, value: Any, depth: int) -> Any:
        self._items += 1
        if self._items > self._max_items:
            raise UnusableOutputError(f"it returned an iterator with more than {self._max_items:,} items")
        return await self.collect(value, depth + 1)


def clean_result(result: ToolResult, *, tool: str) -> ToolResult:
    """A result that a handler returned, without what only the executor may set, and with fields of the right types.

    What has another type is left out and logged: the call has run, and its output must not be lost.
    """
    metadata: object = result.metadata
    control = result.control
    if (
        type(result) is ToolResult  # One of a class of the handler's own could say something else each time.
        and result.decision is None
        and result.approval is None
        and result.origin == "run"
        and result.recorded is True
        and result.silent is False
        and result.notice == ""
        and type(metadata) is dict
        and (not metadata or all(type(name) is str for name in cast(dict[Any, Any], metadata)))
        and (control is None or _is_control(control))
    ):
        return result
    if control is not None and not _is_control(control):
        log.error("%s returned an invalid control, which is ignored: %r", tool, _describe_control(control))
        control = None
    return ToolResult(
        output=result.output,
        error=result.error,
        media=result.media,
        metadata=_clean_metadata(cast(object, metadata), tool),
        context=result.context,
        control=control,
        guidelines=result.guidelines,
    )


def clean_failure(result: ToolResult, *, tool: str, read_only: bool) -> ToolResult:
    """A failure that a handler returned or raised, without a code that only the executor may use.

    A code that leaves open what happened becomes `outcome_unknown`; a read may use these for something else.
    """
    error = result.error
    assert error is not None
    is_open = error.code in ("in_progress", "outcome_unknown")
    if error.code not in _ONLY_OURS or (is_open and read_only):
        return result
    log.error("%s failed with the code %s, which only the executor may use", tool, error.code)
    if is_open:
        return failure_results.outcome_unknown(tool)
    return structs.replace(result, error=structs.replace(error, code="tool_execution_failed"))


def _is_control(control: object) -> bool:
    # A list is not hashable, so that `in` compares with a tuple.
    return (
        isinstance(control, Control)
        and control.mode in (None, *get_args(SessionMode))
        and control.lifespan in get_args(Lifespan)
    )


def _describe_control(control: object) -> str:
    if not isinstance(control, Control):
        return type(control).__name__
    return f"mode={control.mode!s:.50}, lifespan={control.lifespan!s:.50}"


def _clean_metadata(metadata: object, tool: str) -> dict[str, Any]:
    if isinstance(metadata, Mapping):
        try:
            return {str(name): value for name, value in cast(Mapping[Any, Any], metadata).items()}
        except Exception:
            log.exception("%s returned metadata that cannot be read, which are ignored", tool)
            return {}
    log.error("%s returned metadata that are no mapping, but a %s; they are ignored", tool, type(metadata).__name__)
    return {}
