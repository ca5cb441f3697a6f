"""What the API would refuse in a client's events and in the configuration of a session."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

CLIENT_EVENTS = (
    "session.update",
    "conversation.item.create",
    "conversation.item.delete",
    "conversation.item.truncate",
    "conversation.item.retrieve",
    "response.create",
    "response.cancel",
    "output_audio_buffer.clear",
)

_SESSION_FIELDS = frozenset(
    [
        "type",
        "model",
        "instructions",
        "audio",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "reasoning",
        "output_modalities",
        "max_output_tokens",
        "prompt",
        "truncation",
        "tracing",
        "include",
    ]
)
_RESPONSE_FIELDS = frozenset(
    [
        "audio",
        "conversation",
        "input",
        "instructions",
        "max_output_tokens",
        "metadata",
        "output_modalities",
        "parallel_tool_calls",
        "prompt",
        "reasoning",
        "tool_choice",
        "tools",
    ]
)
_FUNCTION_FIELDS = frozenset({"type", "name", "description", "parameters"})
_ITEM_FIELDS: Mapping[str, frozenset[str]] = {
    "message": frozenset({"id", "type", "object", "status", "role", "content"}),
    "function_call": frozenset({"id", "type", "object", "status", "name", "arguments", "call_id"}),
    "function_call_output": frozenset({"id", "type", "object", "status", "call_id", "output"}),
    "mcp_approval_response": frozenset({"id", "type", "approval_request_id", "approve", "reason"}),
}
_CONTENT: Mapping[str, tuple[str, ...]] = {
    "system": ("input_text",),
    "user": ("input_text", "input_audio", "input_image"),
    "assistant": ("output_text", "output_audio"),
}
_EVENT_FIELDS: Mapping[str, frozenset[str]] = {
    "session.update": frozenset({"session"}),
    "conversation.item.create": frozenset({"item", "previous_item_id"}),
    "conversation.item.delete": frozenset({"item_id"}),
    "conversation.item.truncate": frozenset({"item_id", "content_index", "audio_end_ms"}),
    "conversation.item.retrieve": frozenset({"item_id"}),
    "response.create": frozenset({"response"}),
    "response.cancel": frozenset({"response_id"}),
    "output_audio_buffer.clear": frozenset(),
}
_TOOL_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,128}$")


class Refused(Exception):
    """What the API answers a client's mistake with."""

    def __init__(self, message: str, *, code: str | None = "invalid_value", param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param


def check_event(event: object) -> dict[str, Any]:
    """Check the form of a client event; what depends on the state of the call is checked where it is applied."""
    if not isinstance(event, dict):
        raise Refused("The event must be a JSON object.", code="invalid_json")
    event = cast(dict[str, Any], event)
    kind = event.get("type")
    if kind is None:
        raise _missing("type")
    if kind not in CLIENT_EVENTS:  # S5: audio is not among them
        raise Refused(
            f"Invalid value: '{kind}'. Supported values are: {', '.join(map(repr, CLIENT_EVENTS))}.", param="type"
        )
    _only(event, _EVENT_FIELDS[kind] | {"type", "event_id"}, "")
    if "event_id" in event:
        _check_type(event, "event_id", str, "")
        if len(event["event_id"]) > 512:
            raise Refused(
                "Invalid 'event_id': at most 512 characters.", code="string_above_max_length", param="event_id"
            )
    _FORMS[kind](event)
    return event


def check_session(session: object, *, prefix: str = "session.") -> dict[str, Any]:
    """Check the configuration of a session, of `accept` or `session.update`: `type` is required (S6)."""
    if not isinstance(session, dict):
        raise Refused(f"Invalid type for '{prefix[:-1] or 'body'}': expected an object.", code="invalid_type")
    session = cast(dict[str, Any], session)
    if "type" not in session:
        raise _missing(f"{prefix}type")
    if session["type"] != "realtime":
        raise Refused(f"Invalid value: {session['type']!r}. Supported values are: 'realtime'.", param=f"{prefix}type")
    _only(session, _SESSION_FIELDS, prefix)
    _check_common(session, prefix)
    _one_of(session, "truncation", ("auto", "disabled"), prefix, or_object=True)
    if "audio" in session:
        _check_audio(session["audio"], f"{prefix}audio.")
    return session


def _check_common(config: dict[str, Any], prefix: str) -> None:
    for name in ("instructions", "model"):
        if name in config:
            _check_type(config, name, str, prefix)
    if "parallel_tool_calls" in config:
        _check_type(config, "parallel_tool_calls", bool, prefix)
    if "output_modalities" in config and config["output_modalities"] not in (["audio"], ["text"]):
        raise Refused(
            f"Invalid modalities: {config['output_modalities']!r}. Supported combinations are: ['audio'] and ['text'].",
            param=f"{prefix}output_modalities",
        )
    limit = config.get("max_output_tokens", "inf")
    if limit != "inf" and (not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= 4096):
        raise Refused(
            f"Invalid value: {limit!r}. Expected 'inf' or an integer from 1 to 4096.",
            param=f"{prefix}max_output_tokens",
        )
    names = _check_tools(config["tools"], f"{prefix}tools") if "tools" in config else None
    if "tool_choice" in config:
        _check_tool_choice(config["tool_choice"], names, f"{prefix}tool_choice")


def _check_tools(tools: object, path: str) -> set[str]:
    if not isinstance(tools, list):
        raise Refused(f"Invalid type for '{path}': expected an array of objects.", code="invalid_type", param=path)
    names: set[str] = set()
    for index, tool in enumerate(cast(list[Any], tools)):
        where = f"{path}[{index}]"
        if not isinstance(tool, dict):
            raise Refused(f"Invalid type for '{where}': expected an object.", code="invalid_type", param=where)
        tool = cast(dict[str, Any], tool)
        if tool.get("type") == "mcp":
            if not isinstance(tool.get("server_label"), str):
                raise _missing(f"{where}.server_label")
            continue
        if tool.get("type") != "function":
            raise Refused(
                f"Invalid value: {tool.get('type')!r}. Supported values are: 'function' and 'mcp'.",
                param=f"{where}.type",
            )
        _only(tool, _FUNCTION_FIELDS, f"{where}.")  # no `strict`: Realtime does not have it
        name = tool.get("name")
        if name is None:
            raise _missing(f"{where}.name")
        if not isinstance(name, str) or not _TOOL_NAME.match(name):
            raise Refused(
                f"Invalid '{where}.name': {name!r} does not match {_TOOL_NAME.pattern}.", param=f"{where}.name"
            )
        if name in names:
            raise Refused(f"Invalid '{where}.name': there is another tool {name!r}.", param=f"{where}.name")
        names.add(name)
        parameters: object = tool.get("parameters", {"type": "object"})
        if not isinstance(parameters, dict) or cast(dict[str, Any], parameters).get("type") != "object":
            raise Refused(
                f"Invalid schema for function {name!r}: schema must be a JSON Schema of 'type: \"object\"'.",
                code="invalid_function_parameters",
                param=f"{where}.parameters",
            )
    return names


def _check_tool_choice(choice: object, names: Collection[str] | None, path: str) -> None:
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise Refused(
                f"Invalid value: {choice!r}. Supported values are: 'none', 'auto', and 'required'.", param=path
            )
        return
    if not isinstance(choice, dict):
        raise Refused(f"Invalid type for '{path}': expected a string or an object.", code="invalid_type", param=path)
    choice = cast(dict[str, Any], choice)
    if choice.get("type") == "function":
        _only(choice, frozenset({"type", "name"}), f"{path}.")
        if not isinstance(choice.get("name"), str):
            raise _missing(f"{path}.name")
        if names is not None and choice["name"] not in names:
            raise Refused(f"Tool choice {choice['name']!r} not found in 'tools' parameter.", param=path)
    elif choice.get("type") == "mcp":
        if not isinstance(choice.get("server_label"), str):
            raise _missing(f"{path}.server_label")
    else:
        raise Refused(
            f"Invalid value: {choice.get('type')!r}. Supported values are: 'function' and 'mcp'.", param=f"{path}.type"
        )


def _check_audio(audio: object, prefix: str) -> None:
    whole = _object(audio, prefix)
    _only(whole, frozenset({"input", "output"}), prefix)
    if whole.get("input") is not None:
        heard = _object(whole["input"], f"{prefix}input.")
        _only(heard, frozenset({"format", "noise_reduction", "transcription", "turn_detection"}), f"{prefix}input.")
        detection = heard.get("turn_detection")
        if detection is not None:
            where = f"{prefix}input.turn_detection."
            detection = _object(detection, where)
            kind = detection.get("type")
            fields = {"server_vad": _SERVER_VAD, "semantic_vad": _SEMANTIC_VAD}.get(str(kind))
            if fields is None:
                raise Refused(
                    f"Invalid value: {kind!r}. Supported values are: 'server_vad' and 'semantic_vad'.",
                    param=f"{where}type",
                )
            _only(detection, fields, where)
    if whole.get("output") is not None:
        _only(_object(whole["output"], f"{prefix}output."), frozenset({"format", "speed", "voice"}), f"{prefix}output.")


_SERVER_VAD = frozenset(
    [
        "type",
        "create_response",
        "idle_timeout_ms",
        "interrupt_response",
        "prefix_padding_ms",
        "silence_duration_ms",
        "threshold",
    ]
)
_SEMANTIC_VAD = frozenset({"type", "create_response", "eagerness", "interrupt_response"})


def _check_update(event: dict[str, Any]) -> None:
    if "session" not in event:
        raise _missing("session")
    check_session(event["session"])


def _check_item_create(event: dict[str, Any]) -> None:
    if "item" not in event:
        raise _missing("item")
    check_item(event["item"], "item.")
    if event.get("previous_item_id") is not None:
        _check_type(event, "previous_item_id", str, "")


def check_item(item: object, prefix: str) -> None:
    """Check the form of an item of the conversation."""
    item = _object(item, prefix)
    kind = item.get("type")
    if kind is None:
        raise _missing(f"{prefix}type")
    if kind not in _ITEM_FIELDS:
        raise Refused(
            f"Invalid value: {kind!r}. Supported values are: {', '.join(map(repr, _ITEM_FIELDS))}.",
            param=f"{prefix}type",
        )
    _only(item, _ITEM_FIELDS[kind], prefix)
    if item.get("id") is not None:
        _check_type(item, "id", str, prefix)
        if len(item["id"]) > 32:
            raise Refused(
                f"Invalid '{prefix}id': at most 32 characters.", code="string_above_max_length", param="item.id"
            )
    required = {
        "message": ("role", "content"),
        "function_call": ("name", "arguments"),
        "function_call_output": ("call_id", "output"),
        "mcp_approval_response": ("approval_request_id", "approve"),
    }[kind]
    for name in required:
        if name not in item:
            raise _missing(f"{prefix}{name}")
        if kind in ("function_call", "function_call_output"):
            _check_type(item, name, str, prefix)
    if kind == "message":
        _check_message(item, prefix)


def _check_message(item: dict[str, Any], prefix: str) -> None:
    role = item["role"]
    if role not in _CONTENT:
        raise Refused(
            f"Invalid value: {role!r}. Supported values are: 'system', 'user' and 'assistant'.", param=f"{prefix}role"
        )
    if not isinstance(item["content"], list) or not item["content"]:
        raise Refused(f"Invalid type for '{prefix}content': expected an array.", code="invalid_type")
    for index, part in enumerate(cast(list[Any], item["content"])):
        kind = _object(part, f"{prefix}content[{index}].").get("type")
        if kind not in _CONTENT[role]:
            raise Refused(
                f"Invalid value: {kind!r}. Supported values are: {', '.join(map(repr, _CONTENT[role]))}.",
                param=f"{prefix}content[{index}].type",
            )


def _check_item_id(event: dict[str, Any]) -> None:
    if "item_id" not in event:
        raise _missing("item_id")
    _check_type(event, "item_id", str, "")


def _check_truncate(event: dict[str, Any]) -> None:
    _check_item_id(event)
    for name in ("content_index", "audio_end_ms"):
        if name not in event:
            raise _missing(name)
        _check_type(event, name, int, "")


def _check_response_create(event: dict[str, Any]) -> None:
    if event.get("response") is None:
        return
    response = _object(event["response"], "response.")
    _only(response, _RESPONSE_FIELDS, "response.")
    _check_common(response, "response.")
    _one_of(response, "conversation", ("auto", "none"), "response.")
    metadata: object = response.get("metadata") or {}
    pairs = cast(dict[Any, Any], metadata).items() if isinstance(metadata, dict) else [(1, 1)]
    if len(pairs) > 16 or not all(
        isinstance(name, str) and isinstance(value, str) and len(name) <= 64 and len(value) <= 512
        for name, value in pairs
    ):
        raise Refused(
            "Invalid 'response.metadata': at most 16 pairs of strings, of at most 64 and 512 characters.",
            param="response.metadata",
        )
    for index, item in enumerate(cast(list[Any], response.get("input") or [])):
        if not (isinstance(item, dict) and cast(dict[str, Any], item).get("type") == "item_reference"):
            check_item(cast(object, item), f"response.input[{index}].")


def _check_cancel(event: dict[str, Any]) -> None:
    if event.get("response_id") is not None:
        _check_type(event, "response_id", str, "")


def _nothing_more(event: dict[str, Any]) -> None:
    pass


_FORMS: Mapping[str, Callable[[dict[str, Any]], None]] = {
    "session.update": _check_update,
    "conversation.item.create": _check_item_create,
    "conversation.item.delete": _check_item_id,
    "conversation.item.truncate": _check_truncate,
    "conversation.item.retrieve": _check_item_id,
    "response.create": _check_response_create,
    "response.cancel": _check_cancel,
    "output_audio_buffer.clear": _nothing_more,
}


def _missing(path: str) -> Refused:
    return Refused(f"Missing required parameter: '{path}'.", code="missing_required_parameter", param=path)


def _object(value: object, prefix: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        path = prefix.rstrip(".")
        raise Refused(f"Invalid type for '{path}': expected an object.", code="invalid_type", param=path)
    return cast(dict[str, Any], value)


def _only(value: Mapping[str, Any], allowed: Collection[str], prefix: str) -> None:
    for name in value:
        if name not in allowed:
            path = f"{prefix}{name}"
            raise Refused(f"Unknown parameter: '{path}'.", code="unknown_parameter", param=path)


def _check_type(value: Mapping[str, Any], name: str, kind: type, prefix: str) -> None:
    if not isinstance(value[name], kind) or (kind is int and isinstance(value[name], bool)):
        raise Refused(
            f"Invalid type for '{prefix}{name}': expected {kind.__name__}, got {type(value[name]).__name__}.",
            code="invalid_type",
            param=f"{prefix}{name}",
        )


def _one_of(
    value: Mapping[str, Any], name: str, allowed: tuple[str, ...], prefix: str, *, or_object: bool = False
) -> None:
    given = value.get(name)
    if given is None or given in allowed or (or_object and isinstance(given, dict)):
        return
    raise Refused(
        f"Invalid value: {given!r}. Supported values are: {', '.join(map(repr, allowed))}.", param=f"{prefix}{name}"
    )
