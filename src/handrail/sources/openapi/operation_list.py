"""Which operations a document has, what they are called, and which of them are wanted."""

import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, Final, cast

from msgspec import Struct, structs

from handrail.core.selectors import is_match
from handrail.errors import ConfigError, SourceError, shorten
from handrail.sources.openapi.document import METHODS, Documents, UnusableError

MAX_OPERATIONS: Final = 100_000
MAX_NAME: Final = 64
"""What every provider takes."""


class OperationEntry(Struct, frozen=True, kw_only=True):
    """Where in a document an operation stands, before anything of it was looked at closely."""

    name: str = ""
    operation_id: str
    method: str
    path: str
    tags: frozenset[str]
    node: dict[str, Any]
    """The operation itself."""
    item: dict[str, Any]
    """The path item that holds it."""
    base: str
    """The address of the document that holds both."""


Skip = Callable[[str, str], object]
"""Told the name of what is skipped, and why."""


def list_entries(documents: Documents, skipped: Skip) -> list[OperationEntry]:
    """The operations of a document, each with its name; what cannot even be listed goes to `skipped`."""
    paths: Any = documents.content.get("paths", {})
    if not isinstance(paths, dict):
        raise SourceError(f"The document's `paths` must be an object, got {shorten(repr(paths))}.")
    found: list[OperationEntry] = []
    for path, item in cast(dict[str, Any], paths).items():
        if path.startswith("x-"):
            continue
        try:
            found.extend(_list_path_entries(documents, path, item, skipped))
        except UnusableError as reason:
            skipped(path, str(reason))
        if len(found) > MAX_OPERATIONS:
            raise SourceError(f"The document has more than {MAX_OPERATIONS:,} operations.")
    return _assign_names(found)


def _list_path_entries(documents: Documents, path: str, item: Any, skipped: Skip) -> Iterator[OperationEntry]:
    item, base = documents.resolve(item, documents.root)
    if not isinstance(item, dict) or not path.startswith("/"):
        raise UnusableError("a path must start with `/` and hold an object")
    item = cast(dict[str, Any], item)
    for method in METHODS:
        if method not in item:
            continue
        node = item[method]
        if not isinstance(node, dict):
            skipped(f"{method.upper()} {path}", f"an operation must be an object, got {shorten(repr(node))}")
            continue
        node = cast(dict[str, Any], node)
        operation_id, tags = node.get("operationId"), node.get("tags")
        yield OperationEntry(
            operation_id=operation_id if isinstance(operation_id, str) else "",
            method=method.upper(),
            path=path,
            tags=frozenset(tag for tag in cast(list[Any], tags) if isinstance(tag, str))
            if isinstance(tags, list)
            else frozenset(),
            node=node,
            item=item,
            base=base,
        )


def _assign_names(entries: list[OperationEntry]) -> list[OperationEntry]:
    """Give each a name that is short, unique, and the same whatever else the document holds, unless two claim it."""
    by_name: dict[str, list[OperationEntry]] = {}
    for entry in entries:
        by_name.setdefault(_derive_name(entry), []).append(entry)
    names: dict[tuple[str, str], str] = {}
    for name, same in by_name.items():
        for index, entry in enumerate(sorted(same, key=lambda operation: (operation.path, operation.method))):
            key = (entry.path, entry.method)
            names[key] = name if index == 0 else _append_digest(name, f"{entry.method} {entry.path}")
    return [structs.replace(entry, name=names[entry.path, entry.method]) for entry in entries]


def _derive_name(entry: OperationEntry) -> str:
    full = entry.operation_id or f"{entry.method.lower()}_{entry.path}"
    plain = re.sub(r"[^A-Za-z0-9]+", "_", full).strip("_")
    if not plain or not plain[0].isalpha():
        plain = f"{entry.method.lower()}_{plain}".rstrip("_")
    return plain if len(plain) <= MAX_NAME else _append_digest(plain, full)


def _append_digest(name: str, full: str) -> str:
    """A name that is cut, or claimed twice, with a mark of the whole one."""
    mark = sha256(full.encode()).hexdigest()[:8]
    return f"{name[: MAX_NAME - len(mark) - 1].rstrip('_')}_{mark}"


def parse_selector(text: object) -> Callable[[OperationEntry], bool]:
    """The test that one selector stands for.

    list_*               operation ids or tool names    GET /orders/*    a method and a path
    tag:orders           tags                           path:/orders/*   paths
    method:POST          methods
    """
    if not isinstance(text, str) or not text.strip() or text != text.strip():
        raise ConfigError(
            f"A selector of operations is an operation id, 'tag:…', 'path:…', 'method:…' or 'GET /path', got {text!r}."
        )
    kind, _, pattern = text.partition(":")
    if kind == "tag" and pattern:
        return lambda entry: any(is_match(tag, pattern) for tag in entry.tags)
    if kind == "path" and pattern:
        return lambda entry: is_match(entry.path, pattern)
    if kind == "method" and pattern:
        return lambda entry: entry.method == pattern.upper()
    method, _, path = text.partition(" ")
    if path and method.lower() in METHODS:
        return lambda entry: entry.method == method.upper() and is_match(entry.path, path)
    return lambda entry: is_match(entry.operation_id, text) or is_match(entry.name, text)


def choose_entries(
    entries: list[OperationEntry], include: Iterable[str] | None, exclude: Iterable[str] | None
) -> list[OperationEntry]:
    """The operations that are wanted. A selector that selects nothing is a mistake, and is said to be one."""
    wanted = entries if include is None else _select_entries(entries, include, "include")
    unwanted = {id(entry) for entry in _select_entries(entries, exclude or (), "exclude")}
    return [entry for entry in wanted if id(entry) not in unwanted]


def _select_entries(entries: list[OperationEntry], texts: Iterable[str], option: str) -> list[OperationEntry]:
    if isinstance(texts, str):
        raise ConfigError(f"{option} must be a list of selectors, got one text: use [{texts!r}].")
    found: set[int] = set()
    for text in texts:
        test = parse_selector(text)
        matching = {id(entry) for entry in entries if test(entry)}
        if not matching:
            raise ConfigError(f"{option}: {text!r} selects none of the {len(entries)} operations of the document.")
        found |= matching
    return [entry for entry in entries if id(entry) in found]
