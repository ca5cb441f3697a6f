"""Gemini's function calls that arrive in pieces: values for paths into the arguments, as Vertex streams them."""

import re
from typing import Any, Final, cast

from handrail.formats.call_parsing import get_field, get_text, make_unparsable, to_json_text

_STEP: Final = re.compile(r"""\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
_KINDS: Final = ("string_value", "number_value", "bool_value", "null_value")


class PartialCall:
    """One call, whose arguments arrive at once or in pieces."""

    def __init__(self, response_id: str | None) -> None:
        self.response_id = response_id
        self.id: str | None = None
        self.name = ""
        self.is_complete = False
        """Whether the last piece has arrived."""
        self._arguments: Any = {}
        self._open_paths: dict[str, tuple[list[str | int], list[str]]] = {}
        """The paths whose text goes on, with their steps and the pieces so far: they are joined once."""
        self._is_broken = False

    def add(self, call: Any) -> None:
        """Take a piece."""
        self.id = self.id or get_text(call, "id") or None
        self.name = self.name or get_text(call, "name")
        if (given := get_field(call, "args")) is not None:
            known = self._arguments
            both = isinstance(known, dict) and isinstance(given, dict)
            self._arguments = cast(dict[str, Any], known) | cast(dict[str, Any], given) if both else given
        partial = get_camel_field(call, "partial_args")
        for piece in cast(list[Any], partial) if isinstance(partial, list | tuple) else ():
            self._add_partial(piece)
        self.is_complete = not get_camel_field(call, "will_continue")

    def render_arguments(self) -> str:
        """The arguments. A call that was cut off, or whose pieces make no sense, must not run."""
        for steps, pieces in self._open_paths.values():
            self._set(steps, "".join(pieces))
        text = to_json_text(self._arguments)
        return text if self.is_complete and not self._open_paths and not self._is_broken else make_unparsable(text)

    def _add_partial(self, piece: Any) -> None:
        path: Any = get_camel_field(piece, "json_path") or ""
        if not isinstance(path, str):
            self._is_broken = True
            return
        steps = [_parse_step(match) for match in _STEP.finditer(path)]
        if not steps or "$" + "".join(match[0] for match in _STEP.finditer(path)) != path:
            self._is_broken = True
            return
        value = next((value for kind in _KINDS if (value := get_camel_field(piece, kind)) is not None), None)
        value = None if value == "NULL_VALUE" and get_camel_field(piece, "null_value") is not None else value
        will_continue = get_camel_field(piece, "will_continue")
        if path in self._open_paths or will_continue:
            if not isinstance(value, str):
                self._is_broken = True
                return
            _, pieces = self._open_paths.setdefault(path, (steps, []))
            pieces.append(value)
            if will_continue and len(pieces) > 1:
                return
            value = "".join(pieces)
        self._set(steps, value)
        if not will_continue:
            self._open_paths.pop(path, None)

    def _set(self, steps: list[str | int], value: Any) -> None:
        try:
            _set_path(self._arguments, steps, value)
        except (KeyError, IndexError, TypeError, AttributeError, RecursionError):
            self._is_broken = True


class CallAssembler:
    """Assigns the pieces of a stream to calls: by id, else to the last open call of the name, or of any name."""

    def __init__(self) -> None:
        self.calls: list[PartialCall] = []
        self._open: dict[int, PartialCall] = {}
        self._by_id: dict[str, PartialCall] = {}
        self._by_name: dict[str, list[PartialCall]] = {}

    def find(self, call: Any) -> PartialCall | None:
        """The open call that a piece continues."""
        if id_ := get_text(call, "id"):
            found = self._by_id.get(id_)
            return None if found is None or found.is_complete else found
        if name := get_text(call, "name"):
            named = self._by_name.get(name, [])
            while named and named[-1].is_complete:
                named.pop()
            return named[-1] if named else None
        return next(reversed(self._open.values()), None)

    def add(self, call: Any, response_id: str | None = None) -> PartialCall:
        """Add a piece to its call, or start a new call."""
        found = self.find(call)
        if found is None:
            found = PartialCall(response_id)
            self.calls.append(found)
        found.add(call)
        if found.is_complete:
            self._open.pop(id(found), None)
        else:
            self._open[id(found)] = found
            if found.id:
                self._by_id[found.id] = found
            self._by_name.setdefault(found.name, []).append(found)
        return found


def get_camel_field(source: Any, name: str) -> Any:
    """A field under its name in Python or in JSON."""
    value = get_field(source, name)
    if value is None:
        head, *rest = name.split("_")
        value = get_field(source, head + "".join(word.title() for word in rest))
    return value


def _parse_step(match: re.Match[str]) -> str | int:
    plain, index, single, double = match.groups()
    if index is not None:
        return int(index)
    return plain if plain is not None else re.sub(r"\\(.)", r"\1", single if single is not None else double)


def _set_path(arguments: Any, steps: list[str | int], value: Any) -> None:
    """Put a value where the path leads; a list only grows at its end."""
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        holds: Any = value if following is None else [] if isinstance(following, int) else {}
        if isinstance(arguments, list) != isinstance(step, int):
            raise TypeError("the path leads into something else")
        if isinstance(step, int) and step == len(arguments):
            arguments.append(holds)
        elif following is None:
            arguments[step] = value
        elif isinstance(step, str):
            arguments.setdefault(step, holds)
        arguments = arguments[step]
