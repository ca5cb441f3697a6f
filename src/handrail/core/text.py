"""JSON text and model-safe text: the one way in which values become text here."""

import json
from typing import Any

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
    plain = to_jsonable_python(value, inf_nan_mode="strings")
    return encodable(json.dumps(plain, ensure_ascii=False, separators=(",", ":")))


def canonical_json(value: Any) -> str:
    """JSON text that is equal for equal values: sorted keys, no spaces. The value is JSON-like already."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def encodable(text: str) -> str:
    """The text itself, or a copy in which lone surrogates are replaced, so that it can be sent as UTF-8."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")
