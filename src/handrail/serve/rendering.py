"""HTML of the console: templates that escape everything, and values made visible as they are."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from handrail.core.failure_results import format_time
from handrail.core.text import encodable, escape_invisible
from handrail.serve.call_report import format_seconds

_MAX_CHARS: Final = 4_000


def show_text(text: object, limit: int = _MAX_CHARS) -> str:
    """A text of any origin on one page: what cannot be seen is written as an escape, and what is too long is cut."""
    every = str(text)
    cut = every[:limit]
    shown = escape_invisible(cut)
    return shown if len(every) <= limit else f"{shown}… ({len(every):,} characters)"


def show_json(value: object, limit: int = _MAX_CHARS) -> str:
    """A value as indented JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return show_text(value, limit)
    plain = dict(value) if isinstance(value, Mapping) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return show_text(json.dumps(plain, indent=2, ensure_ascii=False, default=str), limit)


def show_age(at: float) -> str:
    """How long ago something was, or how far it is ahead."""
    seconds = time.time() - at
    return f"{format_seconds(seconds)} ago" if seconds >= 0 else f"in {format_seconds(-seconds)}"


def quote_part(text: str) -> str:
    """A text as one part of an address."""
    return quote(text, safe="", errors="replace")


def choose_badge(ok: bool | None, error: str | None) -> str:
    """How the end of a call is marked: a call that waits, or of which nobody knows, has not failed."""
    if ok:
        return "done"
    return "pending" if error in ("approval_required", "in_progress", "outcome_unknown") else "failed"


def build_environment() -> Environment:
    """The templates of this package."""
    environment = Environment(
        loader=PackageLoader("handrail.serve"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "text": show_text,
        "json": show_json,
        "age": show_age,
        "time": format_time,
        "quote": quote_part,
        "badge": choose_badge,
    }
    environment.filters |= filters
    return environment


class Renderer:
    """Renders templates; every link is below the path at which the app is mounted."""

    def __init__(self) -> None:
        self._environment = build_environment()

    def render(self, request: Request, template: str, **values: Any) -> str:
        """The HTML of a template."""
        root = request.scope.get("root_path", "").rstrip("/")
        html = self._environment.get_template(template).render(root=root, path=request.url.path, **values)
        return encodable(html)

    def respond(self, request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """A page."""
        return HTMLResponse(self.render(request, template, **values), status_code=status)
