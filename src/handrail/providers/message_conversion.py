"""Converting the messages of a request for one API: valid ids and names, and a result for every call."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias
from uuid import uuid4

from msgspec import Struct, structs
from pydantic_core import from_json

from handrail.core.text import compact_json, encodable
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError
from handrail.formats.call_parsing import parse_object
from handrail.formats.definitions import Definitions
from handrail.formats.names import NameRule, fit_name
from handrail.providers.messages import AssistantMessage, Message, ToolMessage, UserMessage

EMPTY_TEXT: Final = "(nothing was said)"
"""Sent instead of an empty text to an API that refuses one."""
CONVERSATION_START: Final = "(the conversation begins)"
"""The first user message, for an API that requires one, when the conversation begins with the model."""
CONTINUE: Final = "(go on)"
"""The last user message, for an API that requires one, when the conversation ends with the model."""

NativeItems: TypeAlias = tuple[Mapping[str, Any], ...]
NativeCalls: TypeAlias = Sequence[tuple[str | None, str]]
"""The calls of a native message: the id, if it has one, and the name."""


class TranscriptRules(Struct, frozen=True, kw_only=True):
    """What one API accepts."""

    format: str
    """The format whose native messages are sent back unchanged."""
    ids: NameRule
    names: NameRule
    read_native_calls: Callable[[NativeItems], NativeCalls | None]
    """Reads the calls of a native message; None if the message cannot be sent back."""
    needs_ids: bool = True
    """Whether every call has an id; else one that came without an id goes back without."""


class UserStep(Struct, frozen=True, kw_only=True):
    """A message of the user."""

    text: str


class AssistantStep(Struct, frozen=True, kw_only=True):
    """A message of the model, to be rendered for this API."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    """With the ids and names that are sent."""


class NativeStep(Struct, frozen=True, kw_only=True):
    """A message of the model in this API's own format, to be sent back unchanged."""

    items: NativeItems
    calls: tuple[ToolCall, ...]


class ResultsStep(Struct, frozen=True, kw_only=True):
    """The results of the calls in the message before."""

    results: tuple[ToolResult, ...]
    """With the ids that are sent."""
    names: tuple[str, ...]
    """The names of the tools that are sent."""


TranscriptStep: TypeAlias = UserStep | AssistantStep | NativeStep | ResultsStep


def build_steps(
    messages: Sequence[Message], *, rules: TranscriptRules, definitions: Definitions[Any]
) -> list[TranscriptStep]:
    """Convert the messages to steps with this API's ids and names; raises `ConfigError` if a call has no result."""
    steps: list[TranscriptStep] = []
    used_ids: dict[str, int] = {}  # To the number that an equal one counts on from.
    last: AssistantStep | NativeStep | None = None
    pending: tuple[ToolCall, ...] = ()
    for position, message in enumerate(messages, start=1):
        match message:
            case ToolMessage():
                _check_results(message, pending, position)
                if last is not None:
                    steps.append(_build_results_step(message, last))
                last, pending = None, ()
            case _ if pending:
                raise _build_unanswered_error(pending, position)
            case UserMessage():
                steps.append(UserStep(text=encodable(message.text)))
            case AssistantMessage():
                pending = message.calls
                has_content = bool(message.text.strip() or pending)
                last = _build_assistant_step(message, rules, definitions, used_ids) if has_content else None
                steps += [last] if last is not None else []
    if pending:
        raise _build_unanswered_error(pending, len(messages) + 1)
    if not steps:
        raise ConfigError("messages must contain at least one message, got none.")
    return steps


def _build_assistant_step(
    message: AssistantMessage, rules: TranscriptRules, definitions: Definitions[Any], used_ids: dict[str, int]
) -> AssistantStep | NativeStep:
    native = message.native
    if native is not None and native.format == rules.format:
        native_calls = rules.read_native_calls(native.items)
        if native_calls is not None and _can_send_native(native_calls, message.calls, rules, used_ids):
            used_ids.update((id_, 1) for id_, _ in native_calls if id_ is not None)
            pairs = zip(message.calls, native_calls, strict=True)
            calls = (structs.replace(call, name=name) for call, (_, name) in pairs)
            return NativeStep(items=native.items, calls=tuple(calls))
    rebuilt: list[ToolCall] = []
    for call in message.calls:
        wire_name = definitions.wire_name(call.name) if call.name else "unnamed"
        name, _ = fit_name(encodable(wire_name), rules.names)
        fitted = _fit_id(call.wire_id or call.id, rules.ids, used_ids)
        provider_id = None if call.wire_id or rules.needs_ids else ""
        rebuilt.append(structs.replace(call, id=fitted, provider_id=provider_id, name=name))
    return AssistantStep(text=encodable(message.text), calls=tuple(rebuilt))


def _can_send_native(
    native_calls: NativeCalls, calls: Sequence[ToolCall], rules: TranscriptRules, used_ids: Collection[str]
) -> bool:
    """Whether a native message has the calls of the neutral one, with ids and names that the API accepts."""
    ids = [id_ for id_, _ in native_calls if id_ is not None]
    return (
        len(native_calls) == len(calls)
        and all(id_ in (None, call.wire_id) for (id_, _), call in zip(native_calls, calls, strict=True))
        and all(rules.ids.is_valid(id_) and id_ not in used_ids for id_ in ids)
        and len(set(ids)) == len(ids)
        and all(rules.names.is_valid(name) for _, name in native_calls)
    )


def _fit_id(id_: str, rule: NameRule, used_ids: dict[str, int]) -> str:
    """An id that the API accepts and that is not used yet. The same conversation gets the same ids every time."""
    # Room for a counter.
    fitted, _ = fit_name(encodable(id_) or "call", structs.replace(rule, max_chars=rule.max_chars - 8))
    unique, count = fitted, used_ids.get(fitted, 1)
    while unique in used_ids:
        count += 1
        unique = f"{fitted}-{count}"
    used_ids[unique] = 1
    used_ids[fitted] = count
    return unique


def _build_results_step(message: ToolMessage, step: AssistantStep | NativeStep) -> ResultsStep:
    both = zip(message.results, step.calls, strict=True)
    return ResultsStep(
        results=tuple(structs.replace(result, call_id=call.id, provider_id=call.provider_id) for result, call in both),
        names=tuple(call.name for call in step.calls),
    )


def _check_results(message: ToolMessage, pending: tuple[ToolCall, ...], position: int) -> None:
    if [result.call_id for result in message.results] != [call.id for call in pending]:
        result_ids = ", ".join(result.call_id for result in message.results) or "nothing"
        calls = ", ".join(call.id for call in pending) or "none"
        raise ConfigError(
            f"messages[{position - 1}] has results for {result_ids}, but the message before it has the calls: {calls}. "
            "A ToolMessage needs one result for each of them, in their order."
        )


def _build_unanswered_error(pending: tuple[ToolCall, ...], position: int) -> ConfigError:
    calls = ", ".join(call.id for call in pending)
    return ConfigError(f"messages[{position - 1}] must be a ToolMessage with the results of the calls {calls}.")


def has_object_arguments(call: ToolCall) -> bool:
    """Whether the arguments are a JSON object, without NaN or infinity."""
    try:
        return isinstance(from_json(call.arguments_json, allow_inf_nan=False), dict)
    except (TypeError, ValueError):
        return False


def render_arguments(call: ToolCall) -> str:
    """Arguments as JSON text that every server accepts; anything but a complete object becomes an empty one."""
    return call.arguments_json if has_object_arguments(call) else compact_json(parse_object(call.arguments_json))


def read_arguments(call: ToolCall) -> dict[str, Any]:
    """Arguments as a value, for the APIs that take one."""
    return parse_object(render_arguments(call))


def assign_unique_ids(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls of one response with unique ids and valid text: some servers send no id, or equal ones."""
    unique: dict[str, ToolCall] = {}
    for call in calls:
        id_ = encodable(call.id)
        if not id_ or id_ in unique:
            id_ = f"call_{uuid4().hex[:24]}"
        provider_id = None if call.wire_id == id_ else encodable(call.wire_id)
        # A lone surrogate becomes an escape, which the tool's parser refuses.
        text = call.arguments_json.encode(errors="backslashreplace").decode()
        unique[id_] = structs.replace(
            call, id=id_, provider_id=provider_id, name=encodable(call.name), arguments_json=text
        )
    return tuple(unique.values())
