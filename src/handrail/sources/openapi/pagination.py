"""Reading a list that an API gives page by page, as one result."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, cast

from msgspec import Struct

from handrail.core.log import log
from handrail.errors import ConfigError, ToolError

_LINK: Final = re.compile(r"<([^<>]*)>([^<]*)")
"""An address of a `Link` header, and its parameters."""
_REL: Final = re.compile(r"\s*rel\s*=([^,]*)", re.IGNORECASE)


class Pagination(Struct, frozen=True, kw_only=True):
    """How an operation gives a long list: `OpenApi(…, paginate={"listOrders": Pagination(by="link")})`.

    The tool reads the pages one after the other, and returns `{"items": […], "pages": n, "has_more": …}`.
    """

    by: Literal["link", "cursor", "page"]
    """`link`: the response's `Link` header has the next page. `cursor`: the body has the value for the next request.
    `page`: pages have numbers."""
    parameter: str | None = None
    """The query parameter that gets the cursor, or the number of the page."""
    cursor: str | None = None
    """Where the body has the cursor: `next_cursor`, `meta.next`, `data.-1.id` for the last item's id."""
    more: str | None = None
    """Where the body says whether there are more pages, such as `has_more`; without it, a missing cursor ends them."""
    items: str | None = None
    """Where the body has the list, such as `data`; None if the body is the list."""
    max_pages: int = 10
    """The most pages that one call reads."""
    max_items: int = 1_000
    """The most items that one call returns."""

    def __post_init__(self) -> None:
        if self.by not in ("link", "cursor", "page"):
            raise ConfigError(f"by must be 'link', 'cursor' or 'page', got {self.by!r}.")
        if self.by != "link" and not self.parameter:
            raise ConfigError(f"Pagination(by={self.by!r}) needs the query parameter: parameter='…'.")
        if self.by == "cursor" and not self.cursor:
            raise ConfigError("Pagination(by='cursor') needs where the body has it: cursor='…'.")
        for name in ("max_pages", "max_items"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)!r}.")


class Page(Struct, frozen=True, kw_only=True):
    """One response: its decoded body, where its header says that the next one is, and its size."""

    body: Any
    next_link: str | None
    size: int


class NextPage(Struct, frozen=True, kw_only=True):
    """What to ask for next: a link, or the query parameter with another value."""

    link: str | None = None
    value: Any = None


async def read_pages(
    pagination: Pagination,
    fetch: Callable[[NextPage | None], Awaitable[Page]],
    *,
    first_number: int,
    max_bytes: int,
) -> dict[str, Any]:
    """Every item, up to the limits. A page that comes a second time ends the list: the API does not get on."""
    found: list[Any] = []
    seen: set[Any] = set()
    pages, size = 0, 0
    following: NextPage | None = None
    while True:
        page = await fetch(following)
        pages, size = pages + 1, size + page.size
        listed = _get(page.body, pagination.items)
        if not isinstance(listed, list):
            where = "the body" if pagination.items is None else f"{pagination.items!r} of the body"
            raise ToolError(f"The API answered without a list of items: {where} is none.")
        items = cast(list[Any], listed)
        room = pagination.max_items - len(found)
        found += items[:room]
        following = _find_next(pagination, page, items, first_number + pages)
        if following is None:
            return {"items": found, "pages": pages, "has_more": len(items) > room}
        position = following.link or str(following.value)
        if position in seen:
            log.warning("an API gives the same page again and again: %s of Pagination ends it", pagination.by)
            return {"items": found, "pages": pages, "has_more": True}
        seen.add(position)
        if pages >= pagination.max_pages or len(found) >= pagination.max_items or size >= max_bytes:
            return {"items": found, "pages": pages, "has_more": True}


def _find_next(pagination: Pagination, page: Page, items: list[Any], number: int) -> NextPage | None:
    if pagination.more is not None and not _get(page.body, pagination.more):
        return None
    match pagination.by:
        case "link":
            return None if page.next_link is None else NextPage(link=page.next_link)
        case "cursor":
            value = _get(page.body, pagination.cursor)
            is_cursor = isinstance(value, str | int) and not isinstance(value, bool) and value != ""
            return NextPage(value=value) if is_cursor else None
        case "page":
            return NextPage(value=number) if items else None


def find_next_link(headers: Mapping[str, str]) -> str | None:
    """The address that a `Link` header gives for the next page."""
    for address, parameters in _LINK.findall(headers.get("link", "")[:8_000]):
        for parameter in parameters.split(";"):
            rel = _REL.match(parameter)
            if rel is not None and "next" in rel[1].replace('"', " ").lower().split():
                return address
    return None


def _get(body: Any, path: str | None) -> Any:
    """The value at a path of names and positions; None if there is none."""
    for part in (path or "").split(".") if path else ():
        if isinstance(body, dict):
            body = cast(dict[str, Any], body).get(part)
        elif isinstance(body, list) and re.fullmatch(r"-?\d{1,6}", part):
            listed = cast(list[Any], body)
            body = listed[int(part)] if -len(listed) <= int(part) < len(listed) else None
        else:
            return None
    return body
