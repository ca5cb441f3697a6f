"""Reading an OpenAPI document, in JSON or YAML, together with the documents that it refers to."""

import math
import os
import re
import select
import stat
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypedDict, cast
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import msgspec

from handrail.core.lazy_loading import LazyModule
from handrail.core.text import encodable
from handrail.errors import MissingExtraError, SourceError, shorten

if TYPE_CHECKING:
    from urllib import request
else:
    request = LazyModule("urllib.request")

Node = dict[str, Any]
"""An object of a document."""

METHODS: Final = ("get", "head", "post", "put", "patch", "delete", "options", "trace")
MAX_BYTES: Final = 64 * 1024 * 1024
"""The size of one document."""
MAX_DOCUMENTS: Final = 500
_MAX_NODES: Final = 5_000_000
_MAX_DEPTH: Final = 150
_MAX_HOPS: Final = 20
"""How many references may follow each other before there is something else."""
_EXTERNAL: Final = re.compile(rb'"\$ref"\s*:\s*"[^#"]')


def _build_typed_dict(name: str, keys: str, **more: Any) -> Any:
    return TypedDict(name, {**dict.fromkeys(keys.split(), Any), **more}, total=False)  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues, reportUnknownVariableType]


_OPERATION: Final = _build_typed_dict(
    "Operation",
    "operationId tags summary description deprecated parameters requestBody security servers consumes schemes",
)
_PATH_ITEM: Final = _build_typed_dict("PathItem", "$ref parameters servers", **dict.fromkeys(METHODS, _OPERATION))
_COMPONENTS: Final = _build_typed_dict(
    "Components", "parameters requestBodies securitySchemes pathItems", schemas=dict[str, msgspec.Raw]
)
_NEEDED: Final = msgspec.json.Decoder(
    _build_typed_dict(
        "Document",
        "openapi swagger info servers security definitions parameters securityDefinitions host basePath schemes "
        "consumes",
        paths=dict[str, _PATH_ITEM],
        components=_COMPONENTS,
    )
)
"""Decodes what calling an operation needs, and leaves schemas as text until they are referred to. Most of a large
document describes responses: GitHub's is read in half the time and the memory."""


class UnusableError(Exception):
    """A part of the document cannot be used; the text is the reason, for the developer."""


class Documents:
    """A document and those that it refers to, by their addresses."""

    def __init__(self, root: str, content: Any, *, has_external: bool, data: bytes | None = None) -> None:
        self.root = root
        """The address of the document: a `file:` or `https:` URL, or "" for a mapping."""
        self._data = data
        """The text of the document, while only a part of it was decoded."""
        self._contents: dict[str, Any] = {root: content}
        self._failures: dict[str, str] = {}
        self._unread: list[str] = []
        if has_external:
            self._collect(content, root)

    @property
    def content(self) -> dict[str, Any]:
        """The document itself."""
        return self._contents[self.root]

    def next_unread(self) -> str | None:
        """The address of a document that is referred to and was not read yet."""
        while self._unread:
            address = self._unread.pop()
            if address in self._contents or address in self._failures:
                continue
            if problem := self._problem_with(address):
                self._failures[address] = problem
                continue
            return address
        return None

    def add(self, address: str, data: bytes) -> None:
        """Take in a document that is referred to; one that cannot be read fails what refers to it, nothing else."""
        try:
            content, has_external = parse(data, address)
        except (SourceError, UnusableError) as error:
            self._failures[address] = str(error)
            return
        self._contents[address] = content
        if has_external:
            self._collect(content, address)

    def add_failure(self, address: str, reason: str) -> None:
        """Remember why a document could not be read."""
        self._failures[address] = reason

    def _collect(self, content: Any, base: str) -> None:
        for ref in _find_external_references(content):
            address = urldefrag(urljoin(base, ref)).url
            if address != base:
                self._unread.append(address)

    def _problem_with(self, address: str) -> str | None:
        """Why a document may not be read because another one says so."""
        if len(self._contents) >= MAX_DOCUMENTS:
            return f"the document refers to more than {MAX_DOCUMENTS} others"
        root, target = urlsplit(self.root), urlsplit(address)
        if root.scheme == "file":
            # Nothing outside its own directory: a document must not bring other files of this machine into a schema.
            inside = target.scheme == "file" and get_file_path(address).resolve().is_relative_to(
                get_file_path(self.root).resolve().parent
            )
            return None if inside else f"{shorten(address, 200)} is outside the directory of the document"
        if root.scheme in ("http", "https"):
            same = (root.scheme, root.netloc) == (target.scheme, target.netloc)
            return None if same else f"{shorten(address, 200)} is not on the host of the document"
        return "a document that was given as a mapping cannot refer to other documents"

    def resolve(self, node: Any, base: str) -> tuple[Any, str]:
        """A node, or what it refers to, and the address of the document that holds it."""
        for _ in range(_MAX_HOPS):
            if not isinstance(node, dict) or "$ref" not in node:
                return cast(Any, node), base
            node, base, _ = self.target(cast(dict[str, Any], node)["$ref"], base)
        raise UnusableError("its references lead in a circle")

    def target(self, ref: object, base: str) -> tuple[Any, str, str]:
        """What a reference points at: the node, the address of its document, and the pointer inside that."""
        if not isinstance(ref, str):
            raise UnusableError(f"$ref must be a text, got {shorten(repr(ref))}")
        address, fragment = urldefrag(urljoin(base, ref)) if not ref.startswith("#") else (base, ref[1:])
        if address not in self._contents:
            reason = self._failures.get(address) or self._problem_with(address) or "it was not read"
            raise UnusableError(f"$ref {shorten(ref, 200)!r} cannot be followed: {reason}")
        if fragment and not fragment.startswith("/"):
            raise UnusableError(f"$ref {shorten(ref, 200)!r} is not a JSON pointer")
        try:
            return _follow_pointer(self._contents[address], fragment), address, fragment
        except LookupError:
            if address != self.root or self._data is None:
                raise UnusableError(f"$ref {shorten(ref, 200)!r} leads nowhere") from None
        # Into a part that was left out.
        self._contents[address], self._data = msgspec.json.decode(self._data), None
        return self.target(ref, base)


def _follow_pointer(node: Any, fragment: str) -> Any:
    """The node that a JSON pointer leads to, or `LookupError`."""
    for part in fragment.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        holder, key = node, int(name) if isinstance(node, list) and name.isdecimal() else name
        if not isinstance(holder, dict | list) or (isinstance(holder, list) and not isinstance(key, int)):
            raise LookupError(name)
        node = cast(Any, holder)[key]
        if isinstance(node, msgspec.Raw):
            node = cast(Any, holder)[key] = msgspec.json.decode(node)
    return node


def as_node(value: Any) -> Node:
    """A value that should be an object; empty where it is none."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def get_file_path(address: str) -> Path:
    """The path of a `file:` URL."""
    return Path(request.url2pathname(urlsplit(address).path))


def read_file(path: Path, *, timeout: float) -> Documents:
    """Read a document from a file, with those that it refers to; each of them within a timeout."""
    documents = open_document(path.resolve().as_uri(), _read(path, timeout), where=str(path))
    while (other := documents.next_unread()) is not None:
        try:
            documents.add(other, _read(get_file_path(other), timeout))
        except SourceError as error:
            documents.add_failure(other, str(error))
    return documents


def _read(path: Path, timeout: float) -> bytes:
    try:
        if stat.S_ISREG(path.stat().st_mode) or not hasattr(os, "O_NONBLOCK"):
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        else:
            data = _read_pipe(path, timeout)
    except OSError as error:
        raise SourceError(f"The OpenAPI document {path} cannot be read: {error.strerror}.") from error
    if len(data) > MAX_BYTES:
        raise SourceError(f"The OpenAPI document {path} is larger than {MAX_BYTES // 1024**2} MB.")
    return data


def _read_pipe(path: Path, timeout: float) -> bytes:
    """What another program writes, such as `<(curl …)`; one that writes nothing ends the waiting with the timeout."""
    ends, data = time.monotonic() + timeout, bytearray()
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while len(data) <= MAX_BYTES:
            left = ends - time.monotonic()
            if left <= 0:
                raise SourceError(f"The OpenAPI document {path} was not there within {timeout:g} seconds.")
            select.select([descriptor], [], [], left)
            try:
                piece = os.read(descriptor, 1024 * 1024)
            except BlockingIOError:
                continue
            data += piece
            if not piece and data:
                break
            if not piece:  # Nobody has opened it to write yet.
                time.sleep(min(left, 0.01))
    finally:
        os.close(descriptor)
    return bytes(data)


def from_mapping(mapping: Mapping[str, Any]) -> Documents:
    """Take a document that is a mapping already."""
    return Documents("", as_json(mapping, "the mapping"), has_external=False)


def open_document(address: str, data: bytes, *, where: str) -> Documents:
    """A document, as far as it is needed."""
    if data[:1] == b"{" and not _EXTERNAL.search(data):
        try:
            return Documents(address, _NEEDED.decode(data), has_external=False, data=data)
        except (msgspec.DecodeError, RecursionError):
            pass  # Something in it is not what it should be, and is looked at one by one.
    content, has_external = parse(data, where)
    return Documents(address, content, has_external=has_external)


def parse(data: bytes, where: str) -> tuple[Any, bool]:
    """The content of a document, and whether it may refer to others."""
    if data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{":
        try:
            content = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
            return content, _EXTERNAL.search(data) is not None
        except (msgspec.DecodeError, RecursionError) as error:
            if where.endswith(".json"):
                raise SourceError(f"{where} is not JSON: {shorten(str(error), 200)}.") from error
    # Aliases may repeat parts of it, but not without measure.
    limit = min(_MAX_NODES, 100_000 + 10 * len(data))
    return as_json(_parse_yaml(data, where, max_nodes=limit), where, max_nodes=limit), True


def _parse_yaml(data: bytes, where: str, *, max_nodes: int) -> Any:
    try:
        import yaml  # noqa: PLC0415  # optional
    except ImportError as error:
        raise MissingExtraError("pyyaml", extra="openapi") from error
    try:
        _check_depth(yaml, data, where)
        loader = _yaml_loader()(data)
        loader.merges_left = max_nodes
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise SourceError(f"{where} is neither JSON nor YAML: {shorten(str(error), 300)}.") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise SourceError(f"{where} cannot be read as YAML: {shorten(str(error), 200)}.") from error


def _check_depth(yaml: Any, data: bytes, where: str) -> None:
    """Refuse what is nested too deeply before libyaml loads it: it recurses in C, and would end the process."""
    depth = 0
    for event in yaml.parse(data, Loader=_yaml_loader()):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise SourceError(f"{where} is nested more than {_MAX_DEPTH} levels deep.")


@cache
def _yaml_loader() -> Any:
    """PyYAML, with the plain values of YAML 1.2, as OpenAPI wants them: `no` is a text, and so is a date."""
    import yaml  # noqa: PLC0415  # optional

    parent: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(parent):
        yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}
        merges_left = 0
        """How many keys may still be merged into others: a few lines of `<<` can ask for billions."""

        def flatten_mapping(self, node: Any) -> None:
            constructor: Any = super()
            constructor.flatten_mapping(node)
            self.merges_left -= len(node.value)
            if self.merges_left < 0:
                raise yaml.constructor.ConstructorError(None, None, "its merges have too many keys", node.start_mark)

    loader: Any = Loader
    for tag, pattern, first in (
        ("null", r"~|null|", ["~", "n", ""]),
        ("bool", r"true|false", list("tf")),
        ("int", r"-?(?:0|[1-9][0-9]*)", list("-0123456789")),
        ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?", list("-0123456789")),
        ("merge", r"<<", ["<"]),
    ):
        loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"^(?:{pattern})$"), first)
    return loader


def as_json(value: Any, where: str, *, max_nodes: int = _MAX_NODES) -> Any:
    """A value as plain JSON values, with texts as keys; refused where it has too many parts, or goes in a circle."""
    count = 0

    def copy(node: Any, depth: int) -> Any:
        nonlocal count
        count += 1
        if count > max_nodes:
            raise SourceError(f"{where} has more than {max_nodes:,} values.")
        if depth > _MAX_DEPTH:
            raise SourceError(f"{where} is nested more than {_MAX_DEPTH} levels deep.")
        if isinstance(node, str):
            return encodable(node)
        if node is None or isinstance(node, bool | int) or (isinstance(node, float) and math.isfinite(node)):
            return node
        if isinstance(node, Mapping):
            return {_format_key(key): copy(value, depth + 1) for key, value in cast(Mapping[Any, Any], node).items()}
        if isinstance(node, list | tuple):
            return [copy(item, depth + 1) for item in cast(list[Any], node)]
        raise SourceError(f"{where} holds a {type(node).__name__}, which JSON does not have.")

    return copy(value, 0)


def _format_key(key: Any) -> str:
    return key if isinstance(key, str) else msgspec.json.encode(key, enc_hook=repr).decode()


def _find_external_references(content: Any) -> Iterator[str]:
    """Every `$ref` that leads to another document."""
    stack = [content]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            ref = cast(dict[str, Any], node).get("$ref")
            if isinstance(ref, str) and not ref.startswith("#"):
                yield ref
            stack.extend(cast(dict[str, Any], node).values())
        elif isinstance(node, list):
            stack.extend(cast(list[Any], node))
