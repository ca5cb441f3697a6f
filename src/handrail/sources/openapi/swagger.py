"""Swagger 2.0 in the words of OpenAPI 3: parameters, bodies, servers and security schemes."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from handrail.sources.openapi.document import Node, UnusableError, as_node

_OF_A_SCHEMA: Final = frozenset(
    {
        *("type", "format", "items", "default", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("multipleOf", "minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems"),
    }
)
_STYLES: Final = {
    "csv": {"style": "form", "explode": False},
    "ssv": {"style": "spaceDelimited", "explode": False},
    "pipes": {"style": "pipeDelimited", "explode": False},
    "multi": {"style": "form", "explode": True},
}


def convert_parameter(parameter: Node) -> Node:
    """A parameter with its schema apart from it, and a style in place of a collection format."""
    made = {key: value for key, value in parameter.items() if key not in _OF_A_SCHEMA}
    made["schema"] = {key: value for key, value in parameter.items() if key in _OF_A_SCHEMA}
    if parameter.get("type") == "array":
        form = str(parameter.get("collectionFormat", "csv"))
        if form not in _STYLES:
            raise UnusableError(f"the parameter {parameter.get('name')!r} has the collection format {form!r}")
        if parameter.get("in") in ("query", "formData"):
            made |= _STYLES[form]
    return made


def convert_body(parameters: Sequence[Node], consumes: Sequence[str]) -> Node | None:
    """The body that the parameters `in: body` and `in: formData` describe."""
    bodies = [parameter for parameter in parameters if parameter.get("in") == "body"]
    if bodies:
        types = list(consumes) or ["application/json"]
        content = {kind: {"schema": bodies[0].get("schema", {})} for kind in types}
        said = {key: bodies[0][key] for key in ("description", "required") if key in bodies[0]}
        return {"content": content, **said}
    fields = [convert_parameter(parameter) for parameter in parameters if parameter.get("in") == "formData"]
    if not fields:
        return None
    described = {
        str(field.get("name")): {
            **field["schema"],
            **({"description": field["description"]} if "description" in field else {}),
        }
        for field in fields
    }
    required = [str(field.get("name")) for field in fields if field.get("required") is True]
    schema = {"type": "object", "properties": described, "required": required}
    has_file = any(field["schema"].get("type") == "file" for field in fields)
    kind = "multipart/form-data" if has_file else "application/x-www-form-urlencoded"
    if list(consumes) == ["multipart/form-data"]:
        kind = "multipart/form-data"
    encoding = {
        str(field.get("name")): {k: field[k] for k in ("style", "explode")} for field in fields if "style" in field
    }
    return {"content": {kind: {"schema": schema, "encoding": encoding}}, "required": bool(required)}


def convert_servers(document: Mapping[str, Any], schemes: Any = None) -> list[Node]:
    """The servers that `schemes`, `host` and `basePath` stand for; https first."""
    host: Any = document.get("host")
    path = str(document.get("basePath") or "/")
    if not isinstance(host, str) or not host:
        return [{"url": path}]
    given: Any = schemes or document.get("schemes") or ["https"]
    offered = [str(item) for item in cast(list[Any], given)] if isinstance(given, list) else ["https"]
    usable = sorted((scheme for scheme in offered if scheme in ("http", "https")), reverse=True)
    return [{"url": f"{scheme}://{host}{path}"} for scheme in usable]


def convert_security_schemes(document: Mapping[str, Any]) -> Node:
    """The security definitions as security schemes."""
    given = {name: as_node(value) for name, value in as_node(document.get("securityDefinitions")).items()}
    return {
        name: {"type": "http", "scheme": "basic"} if value.get("type") == "basic" else value
        for name, value in given.items()
    }
