"""JSON text and model-safe text: the one way in which values become text here."""

import json
import math
from typing import Any, Final, cast

import msgspec
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


_CANONICAL: Final = msgspec.json.Encoder(order="deterministic")


def canonical_json(value: Any) -> str:
    """JSON text that is equal for equal values, and different for different ones: sorted keys, no spaces.

    The value is JSON-like already. `1` and `1.0` are different values; so are `None` and a number that is not finite.
    """
    try:
        text = _CANONICAL.encode(value).decode()
        if "null" not in text or not _has_not_finite(value):
            return text
    except (TypeError, UnicodeEncodeError):  # Keys that are no text, and lone surrogates.
        pass
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _has_not_finite(value: Any) -> bool:
    """The encoder writes numbers that JSON does not have as `null`."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_not_finite, cast(dict[Any, Any], value).values()))
    return isinstance(value, list | tuple) and any(map(_has_not_finite, cast(list[Any], value)))


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
