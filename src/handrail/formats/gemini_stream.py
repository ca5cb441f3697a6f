"""Gemini's function calls that arrive in pieces: values for paths into the arguments, as Vertex streams them."""

import re
from typing import Any, Final, cast

from handrail.formats.incoming import read, text_of, unfinished

_STEP: Final = re.compile(r"""\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
_KINDS: Final = ("string_value", "number_value", "bool_value", "null_value")


class Pieces:
    """One call, whose arguments arrive at once or in pieces."""

    def __init__(self, response_id: str | None) -> None:
        self.response_id = response_id
        self.id: str | None = None
        self.name = ""
        self.whole = False
        """Whether the last piece has arrived."""
        self._arguments: Any = {}
        self._open: set[str] = set()
        """The paths whose text goes on."""
        self._broken = False

    def is_meant(self, call: Any) -> bool:
        """Whether this is a piece of the same call: it has the id, or no id and no other name."""
        if self.whole:
            return False
        if id_ := read(call, "id"):
            return id_ == self.id
        return read(call, "name") in (None, "", self.name)

    def add(self, call: Any) -> None:
        """Take a piece."""
        self.id = self.id or read(call, "id")
        self.name = self.name or read(call, "name") or ""
        if (given := read(call, "args")) is not None:
            known = self._arguments
            both = isinstance(known, dict) and isinstance(given, dict)
            self._arguments = cast(dict[str, Any], known) | cast(dict[str, Any], given) if both else given
        for piece in field(call, "partial_args") or ():
            self._put(piece)
        self.whole = not field(call, "will_continue")

    def text(self) -> str:
        """The arguments. A call that was cut off, or whose pieces make no sense, must not run."""
        text = text_of(self._arguments)
        return text if self.whole and not self._open and not self._broken else unfinished(text)

    def _put(self, piece: Any) -> None:
        path: str = field(piece, "json_path") or ""
        steps = [_step(match) for match in _STEP.finditer(path)]
        if not steps or "$" + "".join(match[0] for match in _STEP.finditer(path)) != path:
            self._broken = True
            return
        value = next((value for kind in _KINDS if (value := field(piece, kind)) is not None), None)
        value = None if value == "NULL_VALUE" and field(piece, "null_value") is not None else value
        try:
            _place(self._arguments, steps, value, goes_on=path in self._open)
        except (KeyError, IndexError, TypeError):
            self._broken = True
        if field(piece, "will_continue"):
            self._open.add(path)
        else:
            self._open.discard(path)


def field(source: Any, name: str) -> Any:
    """A field under its name in Python or in JSON."""
    value = read(source, name)
    if value is None:
        head, *rest = name.split("_")
        value = read(source, head + "".join(word.title() for word in rest))
    return value


def _step(match: re.Match[str]) -> str | int:
    plain, index, single, double = match.groups()
    if index is not None:
        return int(index)
    return plain if plain is not None else re.sub(r"\\(.)", r"\1", single if single is not None else double)


def _place(arguments: Any, steps: list[str | int], value: Any, *, goes_on: bool) -> None:
    """Put a value where the path leads; a list only grows at its end."""
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        holds: Any = value if following is None else [] if isinstance(following, int) else {}
        if isinstance(arguments, list) != isinstance(step, int):
            raise TypeError("the path leads into something else")
        if isinstance(step, int) and step == len(arguments):
            arguments.append(holds)
        elif following is None:
            arguments[step] = arguments[step] + value if goes_on else value
        elif isinstance(step, str):
            arguments.setdefault(step, holds)
        arguments = arguments[step]
