"""A conversation on its way to a provider: who spoke, with ids and names that this API takes, every call answered."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias
from uuid import uuid4

from msgspec import Struct, structs
from pydantic_core import from_json

from handrail.core.text import compact_json, encodable
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError
from handrail.formats.definitions import Definitions, fitted_name
from handrail.formats.incoming import object_of
from handrail.providers.messages import AssistantMessage, Message, ToolMessage, UserMessage

NOTHING: Final = "(nothing was said)"
"""What stands for an empty text, where an API takes none."""
BEGINNING: Final = "(the conversation begins)"
"""What stands before a model that speaks first, where an API wants the person to."""
GO_ON: Final = "(go on)"
"""What stands after a model that spoke last, where an API wants the person to."""

Items: TypeAlias = tuple[Mapping[str, Any], ...]
Known: TypeAlias = Sequence[tuple[str | None, str]]
"""The calls of a native message: the id, where there is one, and the name."""


class Rules(Struct, frozen=True, kw_only=True):
    """What one API takes."""

    form: str
    """The format whose native messages go back as they are."""
    ids: re.Pattern[str]
    longest_id: int
    names: re.Pattern[str]
    longest_name: int
    known: Callable[[Items], Known | None]
    """The calls in a native message; None if the message cannot go back."""


class Heard(Struct, frozen=True, kw_only=True):
    """What the person said."""

    text: str


class Said(Struct, frozen=True, kw_only=True):
    """What the model said, to be put into this API's words."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    """With ids and names as they go out."""


class Repeated(Struct, frozen=True, kw_only=True):
    """What the model said, in this API's words as they came."""

    items: Items
    calls: tuple[ToolCall, ...]


class Answered(Struct, frozen=True, kw_only=True):
    """What came of the calls before."""

    results: tuple[ToolResult, ...]
    """With the ids as they went out."""
    names: tuple[str, ...]
    """The names of the tools, as they went out."""


Step: TypeAlias = Heard | Said | Repeated | Answered


def steps(messages: Sequence[Message], *, rules: Rules, definitions: Definitions[Any]) -> list[Step]:
    """The conversation in this API's ids and names; raises `ConfigError` where a call has no answer."""
    found: list[Step] = []
    used: set[str] = set()
    open_: Said | Repeated | None = None
    asked: tuple[ToolCall, ...] = ()
    for position, message in enumerate(messages, start=1):
        match message:
            case ToolMessage():
                _match(message, asked, position)
                if open_ is not None:
                    found.append(_answered(message, open_))
                open_, asked = None, ()
            case _ if asked:
                raise _unanswered(asked, position)
            case UserMessage():
                found.append(Heard(text=encodable(message.text)))
            case AssistantMessage():
                asked = message.calls
                open_ = _said(message, rules, definitions, used) if message.text.strip() or asked else None
                found += [open_] if open_ is not None else []
    if asked:
        raise _unanswered(asked, len(messages) + 1)
    if not found:
        raise ConfigError("A request has at least one message.")
    return found


def _said(message: AssistantMessage, rules: Rules, definitions: Definitions[Any], used: set[str]) -> Said | Repeated:
    native = message.native
    if native is not None and native.format == rules.form:
        known = rules.known(native.items)
        if known is not None and _fits(known, message.calls, rules, used):
            used.update(id_ for id_, _ in known if id_ is not None)
            calls = (structs.replace(call, name=name) for call, (_, name) in zip(message.calls, known, strict=True))
            return Repeated(items=native.items, calls=tuple(calls))
    rebuilt: list[ToolCall] = []
    for call in message.calls:
        own = definitions.wire_name(call.name) if call.name else "unnamed"
        name, _ = fitted_name(encodable(own), allowed=rules.names, limit=rules.longest_name)
        rebuilt.append(structs.replace(call, id=_new_id(call.id, rules, used), name=name))
    return Said(text=encodable(message.text), calls=tuple(rebuilt))


def _fits(known: Known, calls: Sequence[ToolCall], rules: Rules, used: set[str]) -> bool:
    """Whether a native message still says what the message says, in ids and names that the API takes."""
    ids = [id_ for id_, _ in known if id_ is not None]
    return (
        len(known) == len(calls)
        and all(id_ in (None, call.id) for (id_, _), call in zip(known, calls, strict=True))
        and all(_takes(id_, rules) and id_ not in used for id_ in ids)
        and len(set(ids)) == len(ids)
        and all(rules.names.fullmatch(name) and len(name) <= rules.longest_name for _, name in known)
    )


def _takes(id_: str, rules: Rules) -> bool:
    return len(id_) <= rules.longest_id and rules.ids.fullmatch(id_) is not None


def _new_id(id_: str, rules: Rules, used: set[str]) -> str:
    """The id, or one that the API takes; the same conversation gets the same ids every time."""
    fitted, _ = fitted_name(encodable(id_) or "call", allowed=rules.ids, limit=rules.longest_id - 8)
    found, count = fitted, 1
    while found in used:
        count += 1
        found = f"{fitted}-{count}"
    used.add(found)
    return found


def _answered(message: ToolMessage, said: Said | Repeated) -> Answered:
    both = zip(message.results, said.calls, strict=True)
    return Answered(
        results=tuple(structs.replace(result, call_id=call.id) for result, call in both),
        names=tuple(call.name for call in said.calls),
    )


def _match(message: ToolMessage, asked: tuple[ToolCall, ...], position: int) -> None:
    if [one.call_id for one in message.results] != [call.id for call in asked]:
        answers = ", ".join(one.call_id for one in message.results) or "nothing"
        calls = ", ".join(call.id for call in asked) or "none"
        raise ConfigError(
            f"Message {position} has results for {answers}; the calls of the message before it are: {calls}. "
            "A ToolMessage has one result for each of them, in their order."
        )


def _unanswered(asked: tuple[ToolCall, ...], position: int) -> ConfigError:
    calls = ", ".join(call.id for call in asked)
    return ConfigError(f"Message {position} has to be a ToolMessage with the results of the calls before it: {calls}.")


def is_object(call: ToolCall) -> bool:
    """Whether the arguments are a JSON object; numbers that JSON does not have are none of it."""
    try:
        return isinstance(from_json(call.arguments_json, allow_inf_nan=False), dict)
    except (TypeError, ValueError):
        return False


def argument_text(call: ToolCall) -> str:
    """Arguments as JSON text that every server takes: what is no object, or was cut off, as an empty one."""
    return call.arguments_json if is_object(call) else compact_json(object_of(call.arguments_json))


def argument_value(call: ToolCall) -> dict[str, Any]:
    """Arguments as a value, for the APIs that want one."""
    return object_of(argument_text(call))


def distinct(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls of one reply as they can be stored and told apart: some servers give no id, or the same one twice."""
    found: dict[str, ToolCall] = {}
    for call in calls:
        id_ = encodable(call.id)
        if not id_ or id_ in found:
            id_ = f"call_{uuid4().hex[:24]}"
        # A lone surrogate stays one, as an escape: the tool's parser refuses it.
        text = call.arguments_json.encode(errors="backslashreplace").decode()
        found[id_] = structs.replace(call, id=id_, name=encodable(call.name), arguments_json=text)
    return tuple(found.values())
