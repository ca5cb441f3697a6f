"""JSON that two readers understand differently, which a tool with consequences must not act on."""

import json
import math
from typing import Any

from handrail.errors import ToolArgsParseError
from handrail.schema.faults import no_json


def refuse_ambiguous(text: str) -> None:
    """Refuse duplicate keys and numbers that are not finite, anywhere in the text.

    Parsers differ in what they make of both: what was authorised might not be what runs. Read-only tools take the last
    one of two keys.
    """
    try:
        json.loads(text, object_pairs_hook=_unique, parse_constant=_not_finite, parse_float=_finite)
    except ToolArgsParseError:
        raise
    except (ValueError, RecursionError) as error:
        raise no_json("nested too deeply" if isinstance(error, RecursionError) else str(error)) from error


def _unique(pairs: list[tuple[str, Any]]) -> None:
    keys = [key for key, _ in pairs]
    if len(keys) != len(set(keys)):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise no_json(f"the key {twice!r} appears twice")


def _not_finite(constant: str) -> None:
    raise no_json(f"{constant} is not a JSON number")


def _finite(text: str) -> None:
    if math.isinf(float(text)):
        raise no_json(f"the number {text} is out of range")
