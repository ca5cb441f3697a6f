"""How values show themselves in a console and in a notebook: redacted, shortened and escaped."""

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from handrail.core.lazy_loading import LazyModule
from handrail.core.redact import Redactor
from handrail.core.text import compact_json
from handrail.errors import shorten

if TYPE_CHECKING:
    import html
else:
    html = LazyModule("html")

_MAX_FIELD: Final = 200
"""Characters of one field of a `repr`."""
_MAX_CELL: Final = 2_000
"""Characters of one cell of a table, and of one line."""
_MAX_LINES: Final = 400
_TH: Final = '<th scope="row" style="text-align:left;vertical-align:top">'
_TD: Final = '<td style="text-align:left;white-space:pre-wrap;overflow-wrap:anywhere">'


@lru_cache(maxsize=1)
def _get_redactor() -> Redactor:
    return Redactor()


def to_shown_text(value: Any, *, max_chars: int) -> str:
    """A value as one text without secrets, on one line, of at most about `max_chars` characters."""
    redacted = _get_redactor().beginning(value, max_chars=max_chars)
    try:
        text = redacted if isinstance(redacted, str) else compact_json(redacted)
    except ValueError:
        text = type(value).__name__
    return shorten(text, max_chars)


def _is_empty(value: Any) -> bool:
    """Whether a field says nothing. Values of other types are not compared: their code is anybody's."""
    return value is None or (type(value) in (str, tuple, list, dict) and not value)


def format_repr(name: str, fields: Iterable[tuple[str, Any]]) -> str:
    """The `repr` of a value: its fields that say something."""
    shown: list[str] = []
    for field, value in fields:
        if _is_empty(value):
            continue
        text = to_shown_text(value, max_chars=_MAX_FIELD)
        shown.append(f"{field}={text!r}" if isinstance(value, str) else f"{field}={text}")
    return f"{name}({', '.join(shown)})"


def format_table(title: str, rows: Iterable[tuple[str, Any]]) -> str:
    """The HTML of a value: a table with a row for each field that says something."""
    cells = [
        f"<tr>{_TH}{html.escape(name)}</th>{_TD}{html.escape(to_shown_text(value, max_chars=_MAX_CELL))}</td></tr>"
        for name, value in rows
        if not _is_empty(value)
    ]
    caption = html.escape(to_shown_text(title, max_chars=_MAX_FIELD))
    return f'<table><caption style="text-align:left"><b>{caption}</b></caption>{"".join(cells)}</table>'


def format_lines(lines: Iterable[str]) -> str:
    """The HTML of lines of text, such as a trace."""
    every = list(lines)
    shown = [html.escape(to_shown_text(line, max_chars=_MAX_CELL)) for line in every[:_MAX_LINES]]
    if len(every) > _MAX_LINES:
        shown.append(f"… {len(every) - _MAX_LINES} more lines")
    return f'<pre style="white-space:pre-wrap">{"<br>".join(shown)}</pre>'
