"""`search_text`: the lines of files that hold a text or match a regular expression."""

import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import pydantic
from pydantic_core import SchemaError, SchemaValidator, core_schema

from handrail.builtins import inside
from handrail.builtins.answer import Answer, printable, require_positive
from handrail.builtins.glob import parse_glob
from handrail.builtins.inside import Place
from handrail.builtins.text import BOM
from handrail.builtins.walk import Walk
from handrail.core.context import ToolContext
from handrail.core.tool import Tool
from handrail.define.function import tool
from handrail.errors import ToolError, shorten

_SHOWN: Final = 300
"""How many characters of a line are shown."""
_BEFORE: Final = 60
"""How many of them stand before a match that is far to the right."""
_WINDOW: Final = 2_000
"""How much of a line a regular expression sees: the worst one then takes less than half a second per line."""

Find = Callable[[str], int]
"""From a text to where the first match begins, or -1."""


def SearchTextTool(
    *, max_bytes: int = 100_000, max_file_bytes: int = 5_000_000, max_entries: int = 100_000, max_seconds: float = 10
) -> Tool[..., str]:
    """The tool `search_text`.

    An answer holds about `max_bytes`; files larger than `max_file_bytes` are left out; after `max_entries` names or
    `max_seconds` the tool gives up. The answer says so each time. Paths are absolute, so that each can be handed to
    another tool as it is.
    """
    require_positive(
        "search_text",
        max_bytes=max_bytes,
        max_file_bytes=max_file_bytes,
        max_entries=max_entries,
        max_seconds=max_seconds,
    )

    @tool(name="search_text", read_only=True, concurrency_safe=True, permission_check=inside.check("path"))
    def search_text(
        pattern: Annotated[str, pydantic.Field(min_length=1, max_length=1_000)],
        context: ToolContext[Any],
        path: str | None = None,
        glob: str = "**/*",
        regex: bool = False,
        ignore_case: bool = False,
        limit: Annotated[int, pydantic.Field(ge=1)] = 100,
    ) -> str:
        """Search the text files inside the working directory, line by line; a match comes as `path:line: text`.

        Binary and very large files and links are passed over; notices in brackets say what was not searched.

        Args:
            pattern: The text to find, or with `regex` a regular expression (RE2: no look-around, no backreferences).
            path: Absolute path of a file or directory to search; the working directory if left out.
            glob: Which files to search, relative to the directory: "*.py" at any depth, "src/**/*.py" below src,
                "{a,b}" means either. Names that begin with a dot are only searched where the glob has the dot.
            regex: Whether the pattern is a regular expression; if not, it is searched for as it is.
            ignore_case: Whether upper and lower case are the same.
            limit: How many matches to return at most.
        """
        find = _regex(pattern, ignore_case) if regex else _literal(pattern, ignore_case)
        place = inside.locate(path, context)
        if place.kind() == "other":
            raise ToolError(f"`{place.shown}` is a device, a pipe or a socket; search a file or a directory.")
        walk = Walk(place, parse_glob(glob if "/" in glob else f"**/{glob}", argument="glob"), max_entries=max_entries)
        search = _Search(find, whole=not regex, max_file_bytes=max_file_bytes, deadline=time.monotonic() + max_seconds)
        answer = Answer(max_bytes=max_bytes)
        for line in search.matches(walk):
            if len(answer) == limit or not answer.add(line):
                answer.note(
                    f"There are more matches than these {len(answer)}. Narrow the pattern, the path or the glob."
                )
                break
        if not answer:
            answer.note("No line matches.")
        search.explain(answer)
        walk.explain(answer)
        return answer.text()

    return search_text


class _Search:
    """One search, and what it had to leave out."""

    def __init__(self, find: Find, *, whole: bool, max_file_bytes: int, deadline: float) -> None:
        self._find = find
        self._whole = whole
        """Whether a whole file, or a line of any length, may be searched at once."""
        self._max_file_bytes = max_file_bytes
        self._deadline = deadline
        self._left_out = dict.fromkeys(("binary files", "files that are too large", "files that cannot be read"), 0)
        self._long_lines = 0
        self._late = False

    def matches(self, walk: Walk) -> Iterator[str]:
        """The lines that match, ready to be shown."""
        for place, kind in walk:
            if kind == "file" and (text := self._text(place)) is not None:
                for number, line in self._lines(text):
                    yield f"{printable(place.path)}:{number}: {line}"
            if self._late or self._is_late():
                return

    def explain(self, answer: Answer) -> None:
        """Say what was not searched, so that nobody takes silence for an answer."""
        if left_out := ", ".join(f"{count} {what}" for what, count in self._left_out.items() if count):
            answer.note(f"Not searched: {left_out}.")
        if self._long_lines:
            answer.note(f"Lines searched only in their first {_WINDOW} characters: {self._long_lines}.")
        if self._late:
            answer.note("Stopped because it took too long. Narrow the path or the glob.")

    def _text(self, place: Place) -> str | None:
        try:
            with place.explained(), place.open() as file:
                data = file.read(self._max_file_bytes + 1)
        except ToolError:  # no right to read it, gone, or swapped for a link since it was seen
            self._left_out["files that cannot be read"] += 1
            return None
        if len(data) > self._max_file_bytes:
            self._left_out["files that are too large"] += 1
            return None
        if b"\0" in data:
            self._left_out["binary files"] += 1
            return None
        return data.removeprefix(BOM).decode("utf-8", "replace")

    def _lines(self, text: str) -> Iterator[tuple[int, str]]:
        if self._whole and self._find(text) < 0:
            return
        for number, line in enumerate(text.replace("\r\n", "\n").removesuffix("\n").split("\n"), 1):
            if self._is_late():
                return
            if not self._whole and len(line) > _WINDOW:
                self._long_lines += 1
                line = f"{line[:_WINDOW]}…"  # so that `$` does not take the window's edge for the end of the line
            if (at := self._find(line)) >= 0:
                yield number, _shown(line, at)

    def _is_late(self) -> bool:
        self._late = self._late or time.monotonic() > self._deadline
        return self._late


def _literal(pattern: str, ignore_case: bool) -> Find:
    if "\n" in pattern:
        raise ToolError("`pattern` must be the text of one line, because files are searched line by line.")
    if ignore_case:
        folded = pattern.casefold()
        return lambda text: text.casefold().find(folded)
    return lambda text: text.find(pattern)


def _regex(pattern: str, ignore_case: bool) -> Find:
    # Pydantic's own engine is Rust's `regex`: it takes linear time, where `re` can hang on one line and hold the
    # interpreter's lock while it does.
    schema = core_schema.str_schema(pattern=f"(?i){pattern}" if ignore_case else pattern, regex_engine="rust-regex")
    try:
        matches = SchemaValidator(schema).isinstance_python
    except SchemaError as error:
        reason = str(error).rpartition("SchemaError: ")[2].rpartition("error: ")[2].strip()
        raise ToolError(
            f"`pattern` is not a regular expression that can be used here: {shorten(reason, 200)}. "
            "The syntax is that of RE2; with regex=false the pattern is searched for as it is."
        ) from error
    return lambda text: 0 if matches(text) else -1


def _shown(line: str, at: int) -> str:
    """A part of the line that has the beginning of the match in it."""
    begin = at - _BEFORE if at > _SHOWN - _BEFORE else 0
    end = begin + _SHOWN
    return f"{'…' if begin else ''}{line[begin:end]}{'…' if end < len(line) else ''}"
