"""`search_text`: the lines of files that contain a text or match a regular expression."""

import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import pydantic
from pydantic_core import SchemaError, SchemaValidator, core_schema

from handrail.builtins import workspace
from handrail.builtins.glob import DirectoryWalk, parse_glob
from handrail.builtins.workspace import BOM, ToolOutput, WorkspacePath, check_positive, format_path
from handrail.core.context import ToolContext
from handrail.core.tool import Tool
from handrail.define.function import tool
from handrail.errors import ToolError, shorten

_MAX_SHOWN_CHARS: Final = 300
"""The most characters of a line in the output."""
_CONTEXT_CHARS: Final = 60
"""The characters before a match that is far to the right."""
_MAX_REGEX_CHARS: Final = 2_000
"""The part of a line that a regular expression is matched against: the slowest then takes under half a second."""

Find = Callable[[str], int]
"""From a text to where the first match begins, or -1."""


def SearchTextTool(
    *, max_bytes: int = 100_000, max_file_bytes: int = 5_000_000, max_entries: int = 100_000, timeout: float = 10
) -> Tool[..., str]:
    """The tool `search_text`.

    The output has about `max_bytes`; files larger than `max_file_bytes` are skipped; the search stops after
    `max_entries` names or `timeout` seconds. A notice reports each of these. Paths are absolute, so that each can be
    passed to another tool unchanged.
    """
    check_positive(
        "search_text",
        max_bytes=max_bytes,
        max_file_bytes=max_file_bytes,
        max_entries=max_entries,
        max_seconds=timeout,
    )

    @tool(
        name="search_text",
        read_only=True,
        concurrency_safe=True,
        permission_check=workspace.build_permission_check("path"),
    )
    def search_text(
        pattern: Annotated[str, pydantic.Field(min_length=1, max_length=1_000)],
        context: ToolContext[Any],
        path: workspace.AbsolutePath | None = None,
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
        find = _build_regex_find(pattern, ignore_case) if regex else _build_literal_find(pattern, ignore_case)
        target = workspace.resolve_argument("path", path, context)
        if target.get_kind() == "other":
            raise ToolError(f"`{target.display_path}` is a device, a pipe or a socket; search a file or a directory.")
        walk = DirectoryWalk(
            target, parse_glob(glob if "/" in glob else f"**/{glob}", argument="glob"), max_entries=max_entries
        )
        search = _Search(find, whole=not regex, max_file_bytes=max_file_bytes, deadline=time.monotonic() + timeout)
        output = ToolOutput(max_bytes=max_bytes)
        for line in search.find_matches(walk):
            if len(output) == limit or not output.add_line(line):
                output.add_notice(
                    f"There are more matches than these {len(output)}. Narrow the pattern, the path or the glob."
                )
                break
        if not output:
            output.add_notice("No line matches.")
        search.add_notices(output)
        walk.add_notices(output)
        return output.render()

    return search_text


class _Search:
    """One search, and what it skipped."""

    def __init__(self, find: Find, *, whole: bool, max_file_bytes: int, deadline: float) -> None:
        self._find = find
        self._whole = whole
        """Whether a file, or a line of any length, may be searched at once."""
        self._max_file_bytes = max_file_bytes
        self._deadline = deadline
        self._left_out = dict.fromkeys(("binary files", "files that are too large", "files that cannot be read"), 0)
        self._long_lines = 0
        self._late = False

    def find_matches(self, walk: DirectoryWalk) -> Iterator[str]:
        """The lines that match, formatted for the output."""
        for target, kind in walk:
            if kind == "file" and (text := self._read_text(target)) is not None:
                for number, line in self._find_lines(text):
                    yield f"{format_path(target.path)}:{number}: {line}"
            if self._late or self._is_late():
                return

    def add_notices(self, output: ToolOutput) -> None:
        """Add a notice for what was not searched."""
        if left_out := ", ".join(f"{count} {what}" for what, count in self._left_out.items() if count):
            output.add_notice(f"Not searched: {left_out}.")
        if self._long_lines:
            output.add_notice(f"Lines searched only in their first {_MAX_REGEX_CHARS} characters: {self._long_lines}.")
        if self._late:
            output.add_notice("Stopped because it took too long. Narrow the path or the glob.")

    def _read_text(self, target: WorkspacePath) -> str | None:
        try:
            with target.translate_errors(), target.open() as file:
                data = file.read(self._max_file_bytes + 1)
        except ToolError:  # not readable, deleted, or replaced by a link since it was listed
            self._left_out["files that cannot be read"] += 1
            return None
        if len(data) > self._max_file_bytes:
            self._left_out["files that are too large"] += 1
            return None
        if b"\0" in data:
            self._left_out["binary files"] += 1
            return None
        return data.removeprefix(BOM).decode("utf-8", "replace")

    def _find_lines(self, text: str) -> Iterator[tuple[int, str]]:
        if self._whole and self._find(text) < 0:
            return
        for number, line in enumerate(text.replace("\r\n", "\n").removesuffix("\n").split("\n"), 1):
            if self._is_late():
                return
            if not self._whole and len(line) > _MAX_REGEX_CHARS:
                self._long_lines += 1
                line = (
                    f"{line[:_MAX_REGEX_CHARS]}…"  # so that `$` does not take the window's edge for the end of the line
                )
            if (at := self._find(line)) >= 0:
                yield number, _excerpt_line(line, at)

    def _is_late(self) -> bool:
        self._late = self._late or time.monotonic() > self._deadline
        return self._late


def _build_literal_find(pattern: str, ignore_case: bool) -> Find:
    if "\n" in pattern:
        raise ToolError("`pattern` must be the text of one line, because files are searched line by line.")
    if ignore_case:
        folded = pattern.casefold()
        return lambda text: text.casefold().find(folded)
    return lambda text: text.find(pattern)


def _build_regex_find(pattern: str, ignore_case: bool) -> Find:
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


def _excerpt_line(line: str, at: int) -> str:
    """The part of a line that contains the start of the match."""
    begin = at - _CONTEXT_CHARS if at > _MAX_SHOWN_CHARS - _CONTEXT_CHARS else 0
    end = begin + _MAX_SHOWN_CHARS
    return f"{'…' if begin else ''}{line[begin:end]}{'…' if end < len(line) else ''}"
