"""One operation of a document: what it takes, where each value goes, and to which server."""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, cast
from urllib.parse import urljoin, urlsplit

from msgspec import Struct, structs

from handrail.core.log import log
from handrail.errors import SourceError, shorten
from handrail.schema.json_schema_arguments import find_schema_problem
from handrail.sources.openapi import swagger
from handrail.sources.openapi.document import Documents, Node, UnusableError, as_node
from handrail.sources.openapi.operation_list import OperationEntry
from handrail.sources.openapi.schemas import References, Schema, SchemaCompiler, find_references

ParameterPlace = Literal["path", "query", "header", "cookie"]
BodyKind = Literal["json", "form", "multipart", "text", "binary"]

_STYLES: Final[dict[Any, tuple[str, ...]]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
"""The styles of each place; the first is the one that is meant where none is given."""
_SET_ELSEWHERE: Final = frozenset(
    {
        *("accept", "content-type", "authorization", "accept-encoding", "user-agent", "cookie", "host", "connection"),
        *("content-length", "transfer-encoding", "te", "trailer", "upgrade", "expect", "proxy-authorization"),
    }
)
"""Headers that are no arguments, whatever the document says."""
_IDEMPOTENCY: Final = frozenset({"idempotency-key", "x-idempotency-key"})
_MAX_DESCRIPTION: Final = 1_000
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")


class Parameter(Struct, frozen=True, kw_only=True):
    """One value of a request outside its body."""

    name: str
    argument: str
    place: ParameterPlace
    style: str
    explode: bool
    allow_reserved: bool = False
    as_json: bool = False
    multi_segment: bool = False
    """Whether slashes in the value are slashes of the path."""


class Body(Struct, frozen=True, kw_only=True):
    """The body of a request: one argument, or an argument for each of its fields."""

    kind: BodyKind
    media_type: str
    required: bool
    argument: str | None = None
    fields: Mapping[str, str] = {}
    """From the argument to the name of the field."""
    styles: Mapping[str, tuple[str, bool]] = {}
    """How a field of a form is written, where the document says so."""
    files: frozenset[str] = frozenset()
    """Fields of a multipart form that are files, given as Base64."""


class Operation(Struct, frozen=True, kw_only=True):
    """One operation, ready to be called."""

    method: str
    path: str
    description: str
    base_url: str
    parameters: tuple[Parameter, ...]
    body: Body | None
    input_schema: Schema
    security: tuple[tuple[str, ...], ...] | None
    """Alternatives, each with the names of its schemes; None where the document says nothing."""
    idempotency_header: str | None
    output_schema: Schema | None = None


class OperationCompiler:
    """Makes operations of a document's entries."""

    def __init__(self, documents: Documents, *, base_url: str | None, output_schemas: bool = False) -> None:
        self._documents = documents
        self._content = documents.content
        self.version = _check_version(self._content)
        self._is_swagger = self.version.startswith("2.")
        self._schemas = SchemaCompiler(documents, version=self.version)
        self._outputs = SchemaCompiler(documents, version=self.version, dropped="writeOnly") if output_schemas else None
        self._base_url = base_url

    def security_schemes(self) -> Node:
        """The security schemes of the document, by name."""
        if self._is_swagger:
            return swagger.convert_security_schemes(self._content)
        found: Node = {}
        for name, value in as_node(as_node(self._content.get("components")).get("securitySchemes")).items():
            try:
                found[name] = as_node(self._documents.resolve(value, self._documents.root)[0])
            except UnusableError as reason:
                log.warning("the security scheme %s cannot be used: %s", name, reason)
        return found

    def compile(self, entry: OperationEntry) -> Operation:
        """An operation, or `UnusableError`."""
        given = self._merge_parameters(entry)
        body_node, body_base = self._find_body(entry, [value for value, _ in given])
        found = References()
        slots: list[_Slot] = []
        idempotency: str | None = None
        for node, base in given:
            if str(node.get("in")) not in _STYLES:  # A body, or a field of one, in Swagger 2.0.
                continue
            name = str(node.get("name"))
            if node["in"] == "header" and name.lower() in _IDEMPOTENCY:
                idempotency = name
            elif node["in"] != "header" or name.lower() not in _SET_ELSEWHERE:
                slots.append(self._compile_slot(node, base, found))
        self._check_path(entry.path, slots)
        body, fields = (None, []) if body_node is None else self._compile_body(body_node, body_base, found)
        arguments = _assign_arguments(slots, fields)
        schema: Schema = {
            "type": "object",
            "properties": {argument: value.schema for argument, value in arguments.items()},
            "additionalProperties": False,
        }
        if required := [argument for argument, value in arguments.items() if value.required]:
            schema["required"] = required
        if problem := find_schema_problem(schema):
            raise UnusableError(f"its schema {problem}")
        if definitions := self._schemas.definitions(found):
            schema["$defs"] = definitions
        by_slot = {id(value): argument for argument, value in arguments.items()}
        return Operation(
            method=entry.method,
            path=entry.path,
            description=_build_description(entry),
            base_url=self._find_server(entry),
            parameters=tuple(slot.parameter(by_slot[id(slot)]) for slot in slots),
            body=None if body is None else _bind_body(body, fields, by_slot),
            input_schema=schema,
            security=self._find_security(entry),
            idempotency_header=idempotency,
            output_schema=None if self._outputs is None else self._compile_output(entry, self._outputs),
        )

    def _compile_output(self, entry: OperationEntry, schemas: SchemaCompiler) -> Schema | None:
        """The schema of the first successful response that is JSON; None if there is none, or it cannot be used."""
        responses = {str(code): value for code, value in as_node(entry.node.get("responses")).items()}
        for code in sorted(code for code in responses if re.fullmatch(r"2(\d\d|XX)", code)):
            try:
                node, base = self._documents.resolve(responses[code], entry.base)
                source = _find_json_schema(as_node(node), is_swagger=self._is_swagger)
                if source is None:
                    continue
                found = References()
                schema: object = schemas.convert(source, base, found)
                if isinstance(schema, dict) and set(cast(Schema, schema)) == {"$ref"}:
                    # Tools promise objects: a reference to one is written out, so that its type can be seen.
                    schema, inner = schemas.definition(str(cast(Schema, schema)["$ref"]).rpartition("/")[2])
                    found = References()
                    found.every |= inner.every
                if not isinstance(schema, dict) or find_schema_problem(cast(Schema, schema)):
                    return None
                definitions = schemas.definitions(found)
                return {**cast(Schema, schema), **({"$defs": definitions} if definitions else {})}
            except (UnusableError, RecursionError) as reason:
                log.debug("%s %s has no output schema: %s", entry.method, entry.path, reason)
                return None
        return None

    def _merge_parameters(self, entry: OperationEntry) -> list[tuple[Node, str]]:
        """The parameters of the path and of the operation, which win."""
        found: dict[tuple[str, str], tuple[Node, str]] = {}
        for holder in (entry.item, entry.node):
            listed: Any = holder.get("parameters") or []
            if not isinstance(listed, list):
                raise UnusableError("its `parameters` are not a list")
            for item in cast(list[Any], listed):
                node, base = self._documents.resolve(item, entry.base)
                node = as_node(node)
                if not isinstance(node.get("name"), str):
                    raise UnusableError(f"one of its parameters has no name: {shorten(repr(node))}")
                found[str(node.get("in")), node["name"]] = (node, base)
        return list(found.values())

    def _compile_slot(self, node: Node, base: str, found: References) -> "_Slot":
        name, place = cast(str, node["name"]), node["in"]
        if self._is_swagger:
            node = swagger.convert_parameter(node)
            if place != "query":
                node.pop("style", None)
        content = as_node(node.get("content"))
        as_json = "schema" not in node and bool(content)
        source = as_node(next(iter(content.values()))).get("schema", {}) if as_json else node.get("schema", {})
        if place == "header" and not _HEADER.fullmatch(name):
            raise UnusableError(f"{shorten(name)!r} cannot be the name of a header")
        style = str(node.get("style") or _STYLES[place][0])
        if style not in _STYLES[place]:
            raise UnusableError(f"the parameter {name!r} has the style {style!r}, which a {place} cannot have")
        schema = _add_description(self._schemas.convert(source, base, found), node.get("description"))
        return _Slot(
            name=name,
            place=place,
            schema=schema,
            required=place == "path" or node.get("required") is True,
            style=style,
            explode=bool(node.get("explode", style == "form")),
            allow_reserved=node.get("allowReserved") is True,
            as_json=as_json,
            multi_segment=node.get("x-multi-segment") is True,
        )

    @staticmethod
    def _check_path(path: str, slots: "list[_Slot]") -> None:
        wanted = set(re.findall(r"\{([^{}]*)\}", path))
        given = {slot.name for slot in slots if slot.place == "path"}
        if missing := sorted(wanted - given):
            raise UnusableError(f"its path has {{{missing[0]}}}, but there is no parameter of that name")
        if extra := sorted(given - wanted):
            raise UnusableError(f"its path parameter {extra[0]!r} is not in the path")

    # The body.

    def _find_body(self, entry: OperationEntry, parameters: list[Node]) -> tuple[Node | None, str]:
        if self._is_swagger:
            consumes: Any = entry.node.get("consumes", self._content.get("consumes")) or []
            return swagger.convert_body(parameters, [str(media_type) for media_type in consumes]), entry.base
        node: Any = entry.node.get("requestBody")
        if node is None:
            return None, entry.base
        node, base = self._documents.resolve(node, entry.base)
        if not isinstance(node, dict) or not isinstance(cast(Node, node).get("content"), dict):
            raise UnusableError("its request body has no content")
        return cast(Node, node), base

    def _compile_body(self, node: Node, base: str, found: References) -> tuple[Body | None, "list[_Slot]"]:
        """The body, and the arguments that it is made from."""
        content = cast(Node, node["content"])
        if not content:
            return None, []
        kind, media_type = _choose_media_type(content)
        media = as_node(content[media_type])
        required = node.get("required") is True
        sent_type = media_type if "*" not in media_type else _DEFAULT_TYPES[kind]
        body = Body(kind=kind, media_type=sent_type, required=required, styles=_parse_encoding(media.get("encoding")))
        if kind in ("binary", "text"):
            schema: Schema = {"type": "string"}
            if kind == "binary":
                schema |= {"contentEncoding": "base64", "description": "The body, as Base64."}
            return body, [_build_body_slot(schema, node)]
        inner = References()
        converted = self._schemas.convert(media.get("schema", {}), base, inner)
        plain = self._schemas.flatten_object(converted)
        if plain is None and kind == "multipart":
            raise UnusableError("its multipart body is not an object with properties")
        fields = as_node(None if plain is None else plain.get("properties"))
        demanded: list[str] = [] if plain is None else plain.get("required", [])
        if plain is not None and not fields and ("properties" in plain or kind != "json"):
            return (body if required else None), []  # An object that can only be empty.
        files = frozenset(name for name, field in fields.items() if kind == "multipart" and _is_file(field))
        fields = {name: _mark_base64(field) if name in files else field for name, field in fields.items()}
        body = structs.replace(body, files=files)
        if not fields or (demanded and not required) or not fields.keys() >= set(demanded):
            found.every |= inner.every
            return body, [_build_body_slot(converted, node)]
        found.every |= find_references(fields)
        return body, [
            _Slot(name=name, place="field", schema=field, required=name in demanded) for name, field in fields.items()
        ]

    # The server, and who may ask it.

    def _find_server(self, entry: OperationEntry) -> str:
        if self._base_url is not None:
            return self._base_url
        if self._is_swagger:
            listed: Any = swagger.convert_servers(self._content, entry.node.get("schemes"))
        else:
            listed = entry.node.get("servers") or entry.item.get("servers") or self._content.get("servers")
            listed = listed or [{"url": "/"}]
        if not isinstance(listed, list) or not listed or not isinstance(listed[0], dict):
            raise UnusableError("its `servers` are not a list of objects")
        url = urljoin(self._documents.root, _fill_variables(cast(Node, listed[0]))).rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UnusableError(f"its server {shorten(url, 200)!r} is no http or https URL; pass base_url=…")
        return url

    def _find_security(self, entry: OperationEntry) -> tuple[tuple[str, ...], ...] | None:
        listed: Any = entry.node.get("security", self._content.get("security"))
        if listed is None:
            return None
        if not isinstance(listed, list):
            raise UnusableError("its `security` is not a list")
        return tuple(tuple(cast(Node, item)) for item in cast(list[Any], listed) if isinstance(item, dict))


class _Slot(Struct, frozen=True, kw_only=True):
    """A value that a request needs, before its argument has a name."""

    name: str
    place: str
    schema: Any
    required: bool
    style: str = "simple"
    explode: bool = False
    allow_reserved: bool = False
    as_json: bool = False
    multi_segment: bool = False

    def parameter(self, argument: str) -> Parameter:
        return Parameter(
            name=self.name,
            argument=argument,
            place=cast(ParameterPlace, self.place),
            style=self.style,
            explode=self.explode,
            allow_reserved=self.allow_reserved,
            as_json=self.as_json,
            multi_segment=self.multi_segment,
        )


def _build_body_slot(schema: Any, node: Node) -> _Slot:
    """The body as one argument."""
    described = _add_description(schema, node.get("description"))
    return _Slot(name="body", place="body", schema=described, required=node.get("required") is True)


_DEFAULT_TYPES: Final[dict[BodyKind, str]] = {
    "json": "application/json",
    "form": "application/x-www-form-urlencoded",
    "multipart": "multipart/form-data",
    "text": "text/plain",
    "binary": "application/octet-stream",
}


def _classify_media_type(media_type: str) -> BodyKind:
    plain = media_type.partition(";")[0].strip().lower()
    if plain == "application/json" or plain.endswith("+json") or plain in ("*/*", "application/*"):
        return "json"
    for kind in ("form", "multipart"):
        if plain == _DEFAULT_TYPES[kind]:
            return kind
    return "text" if plain.startswith("text/") or plain.endswith(("/xml", "+xml")) else "binary"


def _choose_media_type(content: Node) -> tuple[BodyKind, str]:
    """The media type that says most about a body."""
    order: list[BodyKind] = ["json", "form", "multipart", "text", "binary"]
    return min(
        ((_classify_media_type(media_type), media_type) for media_type in content),
        key=lambda classified: order.index(classified[0]),
    )


def _assign_arguments(slots: list[_Slot], fields: list[_Slot]) -> dict[str, _Slot]:
    """A name for every argument: its own, made plain; where two places use one name, each says its place."""
    every = [*slots, *fields]
    plain = {id(item): re.sub(r"[^A-Za-z0-9_]+", "_", item.name).strip("_")[:64] or item.place for item in every}
    count: dict[str, int] = {}
    for name in plain.values():
        count[name] = count.get(name, 0) + 1
    named: dict[str, _Slot] = {}
    for slot in every:
        name = plain[id(slot)]
        if count[name] > 1:
            name = f"{name[:56]}_{'body' if slot.place == 'field' else slot.place}"
        base, number = name, 2
        while name in named or (name != plain[id(slot)] and name in count):
            name, number = f"{base}_{number}", number + 1
        named[name] = slot
    return named


def _bind_body(body: Body, fields: list[_Slot], by_slot: Mapping[int, str]) -> Body:
    if len(fields) == 1 and fields[0].place == "body":
        return structs.replace(body, argument=by_slot[id(fields[0])])
    return structs.replace(body, fields={by_slot[id(field)]: field.name for field in fields})


def _parse_encoding(encoding: Any) -> dict[str, tuple[str, bool]]:
    found: dict[str, tuple[str, bool]] = {}
    for name, value in cast(Node, encoding if isinstance(encoding, dict) else {}).items():
        if isinstance(value, dict) and cast(Node, value).keys() & {"style", "explode"}:
            style = str(cast(Node, value).get("style", "form"))
            if style in _STYLES["query"]:
                found[name] = (style, bool(cast(Node, value).get("explode", style == "form")))
    return found


def _is_file(schema: Any) -> bool:
    """Whether a field of a form is a file, or a list of files."""
    if not isinstance(schema, dict):
        return False
    node = cast(Node, schema)
    if node.get("format") in ("binary", "byte"):
        return True
    media_type = str(node.get("contentMediaType", ""))
    if media_type and "contentEncoding" not in node and _classify_media_type(media_type) == "binary":
        return True
    return any(_is_file(part) for part in _get_file_parts(node))


def _get_file_parts(node: Node) -> list[Any]:
    """The items of a list, and the alternatives of what may be null."""
    either: list[Any] = [part for key in ("anyOf", "oneOf") for part in cast(list[Any], node.get(key) or ())]
    others: list[Any] = [part for part in either if as_node(part).get("type") != "null"]
    return [node["items"]] if "items" in node else others if len(others) == 1 else []


def _mark_base64(schema: Any) -> Any:
    """The schema of a file, or of a list of files, as Base64 text."""
    node = {key: value for key, value in cast(Node, schema).items() if key != "contentMediaType"}
    if not _get_file_parts(node):
        return {**node, "contentEncoding": "base64"}
    for key in ("anyOf", "oneOf"):
        if key in node:
            node[key] = [_mark_base64(part) if _is_file(part) else part for part in node[key]]
    if "items" in node:
        node["items"] = _mark_base64(node["items"])
    return node


def _add_description(schema: Any, text: Any) -> Any:
    """A schema with the description of what has it, unless it says something itself."""
    if not isinstance(text, str) or not text or not isinstance(schema, dict) or "description" in schema:
        return cast(Any, schema)
    return {**cast(Node, schema), "description": text[:_MAX_DESCRIPTION]}


def _build_description(entry: OperationEntry) -> str:
    """The summary and the description, for the model."""
    said = [one.strip() for key in ("summary", "description") if isinstance(one := entry.node.get(key), str)]
    parts = [item for item in dict.fromkeys(said) if item] or [f"{entry.method} {entry.path}"]
    text = "\n".join(["Deprecated.", *parts] if entry.node.get("deprecated") is True else parts)
    return text if len(text) <= _MAX_DESCRIPTION else f"{text[:_MAX_DESCRIPTION]}…"


def _fill_variables(server: Node) -> str:
    """The URL of a server, with the defaults of its variables."""
    variables = as_node(server.get("variables"))

    def value(match: re.Match[str]) -> str:
        default = as_node(variables.get(match[1])).get("default")
        if default is None:
            raise UnusableError(f"its server has the variable {{{match[1]}}}, which has no default; pass base_url=…")
        return str(default)

    return re.sub(r"\{([^{}]*)\}", value, str(server.get("url", "/")))


def _check_version(content: Any) -> str:
    if not isinstance(content, dict):
        raise SourceError(f"An OpenAPI document is an object, got {type(content).__name__}.")
    version = str(cast(Node, content).get("openapi") or cast(Node, content).get("swagger") or "")
    if not version.startswith(("2.", "3.0", "3.1", "3.2")):
        raise SourceError(
            f"The document must say `openapi: 3.0`, `3.1` or `swagger: '2.0'`, got {shorten(version) or 'nothing'!r}."
        )
    return version


def _find_json_schema(response: Node, *, is_swagger: bool) -> Any:
    """The schema of a response's JSON, or None."""
    if is_swagger:
        return response.get("schema")
    content = as_node(response.get("content"))
    media_type = next((name for name in content if _classify_media_type(name) == "json"), None)
    return None if media_type is None else as_node(content[media_type]).get("schema")
