"""JSON text and model-safe text: the one way in which values become text here."""

import json
from typing import Any, cast

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python


def compact_json(value: Any) -> str:
    """Any JSON-like value as compact JSON text; raises `ValueError` for what cannot be written as JSON.

    Pydantic models, dataclasses, dates, UUIDs, Decimals, enums and sets are written as Pydantic writes them. Numbers
    that JSON does not have become the strings "NaN", "Infinity" and "-Infinity"; lone surrogates, which no wire can
    carry, are replaced.
    """
    try:
        return to_json(value, inf_nan_mode="strings").decode()
    except PydanticSerializationError as error:
        if "UnicodeEncodeError" not in str(error):
            raise ValueError(str(error)) from error
    try:
        mended = _without_surrogates(value)
        return to_json(_without_surrogates(to_jsonable_python(mended)), inf_nan_mode="strings").decode()
    except (PydanticSerializationError, RecursionError) as error:
        raise ValueError(str(error)) from error


def faithful_json(value: Any) -> str:
    """Arguments that arrived as values, as the JSON text that they came from; raises `ValueError` where there is none.

    Nothing is mended: what a parser must refuse (NaN, a lone surrogate as an escape) is still there to be refused.
    """
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except PydanticSerializationError as error:
        if "UnicodeEncodeError" not in str(error):
            raise ValueError(str(error)) from error
    try:
        return json.dumps(value, default=to_jsonable_python, separators=(",", ":"))
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def canonical_json(value: Any) -> str:
    """JSON text that is equal for equal values: sorted keys, no spaces. The value is JSON-like already."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def encodable(text: str) -> str:
    """The text itself, or a copy in which lone surrogates are replaced, so that it can be sent as UTF-8."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return encodable(value)
        case dict():
            items = cast(dict[Any, Any], value).items()
            return {encodable(key) if isinstance(key, str) else key: _without_surrogates(one) for key, one in items}
        case list() | tuple() | set() | frozenset():
            return [_without_surrogates(one) for one in cast(list[Any], value)]
        case _:
            return value
