"""Parsing responses: fields of SDK objects and dicts, and calls from whatever a server has sent, under unique ids.

A server, or a proxy before it, can send anything: an object instead of text, null, a number as an id. Nothing here
raises for it and no call is dropped: every call needs a result, and one that cannot be parsed never runs.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from msgspec import structs
from pydantic_core import from_json

from handrail.core.lazy_loading import LazyPattern
from handrail.core.text import faithful_json
from handrail.core.values import ToolCall
from handrail.formats.names import ToolNames


def get_field(source: Any, name: str, default: Any = None) -> Any:
    """A field of an SDK's object or of a plain dict."""
    if isinstance(source, Mapping):
        return cast(Mapping[str, Any], source).get(name, default)
    try:
        return getattr(source, name, default)
    except Exception:  # noqa: BLE001  # A property of the caller's object.
        return default


def get_items(source: Any, name: str) -> Sequence[Any]:
    """The items of a list field; a single object counts as a list of one, anything else as an empty list."""
    value = get_field(source, name)
    if isinstance(value, list | tuple):
        return cast(Sequence[Any], value)
    return (cast(Any, value),) if isinstance(value, Mapping) else ()


def get_text(source: Any, name: str) -> str:
    """A field as text: null is empty, and any other value is written as JSON."""
    value = get_field(source, name)
    if isinstance(value, str):
        return value
    return "" if value is None else to_json_text(value)


def get_index(source: Any, name: str, default: int = 0) -> int:
    """A field that is the position of something; the default if it is no whole number."""
    value = get_field(source, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def build_call(
    *, id: Any, name: Any, arguments: Any, response_id: Any = None, item_id: Any = None, is_complete: bool = True
) -> ToolCall:
    """A call from fields of any type; arguments that are not text are written as JSON."""
    text = arguments if isinstance(arguments, str) else "" if arguments is None else to_json_text(arguments)
    return ToolCall(
        id=_to_text(id) or "",
        name=_to_text(name) or "",
        arguments_json=text if is_complete else make_unparsable(text),
        response_id=_to_text(response_id),
        item_id=_to_text(item_id),
    )


def _to_text(value: Any) -> str | None:
    return value if isinstance(value, str) or value is None else to_json_text(value)


def to_json_text(arguments: Any) -> str:
    """Arguments that arrived as a value, as JSON text; what a parser must refuse is not corrected."""
    if arguments is None:
        return "{}"
    try:
        return faithful_json(arguments)
    except (
        TypeError,
        ValueError,
        RecursionError,
    ):  # Nested deeper than the tool's parser accepts, or no JSON value at all.
        try:
            return json.dumps(arguments)
        except (TypeError, ValueError, RecursionError):
            return make_unparsable("{}")


def make_unparsable(arguments: str) -> str:
    """Arguments of a call that the provider cut off, as text that no parser accepts as complete.

    The call still needs a result; it must never run.
    """
    try:
        from_json(arguments or "{}")
    except (TypeError, ValueError):
        return arguments
    return arguments.rstrip()[:-1] or "{"


def decode_calls(calls: Iterable[ToolCall], definitions: Sequence[Any] | None) -> list[ToolCall]:
    """The calls of one response under unique ids, decoded with the definitions that were sent, if they are given."""
    unique = make_ids_unique(calls)
    names = getattr(definitions, "names", None)
    return [names.decode(call) for call in unique] if isinstance(names, ToolNames) else unique


# Ids of calls that are unique in a conversation, also from servers that number the calls of every response anew.

_UUID: Final = r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}"
_RANDOM_FORMS: Final = LazyPattern(
    rf"""
    (?:[A-Za-z][A-Za-z0-9_.:-]*[_-])?{_UUID}                # vLLM, DeepSeek, Ollama and many others
    | (?:call|fc|ctc)_(?:\d+_)?(?:[A-Za-z0-9]{{24}}|[A-Za-z0-9]{{16}})   # OpenAI, in Realtime the shorter one
    | toolu_(?:bdrk_|vrtx_)?[A-Za-z0-9]{{24}}               # Anthropic, also through Bedrock and Vertex
    | tooluse_[A-Za-z0-9_-]{{22}}                           # Bedrock
    | chatcmpl-tool-[0-9a-f]{{16}}                          # vLLM
    | function-call-\d{{16,20}}                             # Gemini Live
    """,
    re.VERBOSE | re.IGNORECASE,
)
_MIN_DISTINCT_CHARS: Final = 8
"""A random id has at least this many different characters; `call_0000000000000001` is a counter in disguise."""


def is_random_id(call_id: str) -> bool:
    """Whether an id has a form that a provider is known to draw at random, and so does not repeat."""
    if _RANDOM_FORMS.compiled.fullmatch(call_id) is None:
        return False
    tail = re.split(r"[_-]", call_id, maxsplit=1)[-1]
    return len(set(tail)) >= _MIN_DISTINCT_CHARS and any(character.isdigit() for character in tail)


def make_ids_unique(calls: Iterable[ToolCall]) -> list[ToolCall]:
    """Put the id of the response before the id of a call, `{response_id}/{id}`, unless that id is random.

    Many servers begin at `call_0` in every response. An id that comes twice would be taken for the same call: the
    second payment that a customer wants would get the result of the first. The same response gives the same ids every
    time. Without an id of the response the ids stay as they are.
    """
    seen: Counter[tuple[str, str]] = Counter()
    return [_make_id_unique(call, position, seen) for position, call in enumerate(calls)]


def _make_id_unique(call: ToolCall, position: int, seen: Counter[tuple[str, str]]) -> ToolCall:
    if not call.response_id or is_random_id(call.id):
        return call
    # Calls of one response without an id, or with equal ones, are told apart by their order.
    unique = f"{call.response_id}/{call.id or f'#{position}'}"
    seen[call.response_id, call.id] += 1
    if call.id and (count := seen[call.response_id, call.id]) > 1:
        unique += f"#{count}"
    return structs.replace(call, id=unique, provider_id=call.wire_id)


# Messages that are sent back.


def to_plain(source: Any) -> Any:
    """An SDK's object as the dict that can be sent back; a dict unchanged."""
    dump = getattr(source, "model_dump", None)
    return source if dump is None else dump(exclude_none=True, warnings=False)


def parse_object(arguments: str) -> dict[str, Any]:
    """Arguments as a value, to be sent back to the model; anything but a complete object becomes an empty one."""
    try:
        value = from_json(arguments or "{}")
    except (TypeError, ValueError):  # Half of a surrogate pair is a TypeError.
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}
