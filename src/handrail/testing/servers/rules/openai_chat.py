"""What OpenAI Chat Completions refuses."""

from .openai import (
    check_function,
    name_is_valid,
    names_are_unique,
    options_need_tools,
    output_format_is_valid,
    parts_are,
)
from .openai import stream_options_need_a_stream as stream_options_need_a_stream
from .reading import Field, RequestRefused, first_repeated, format_bracketed, words

FIELDS = words(
    """
    audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens messages
    metadata modalities model moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key
    prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed
    service_tier stop store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity
    web_search_options
    """
)
PARTS = {
    "developer": ("text",),
    "system": ("text",),
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
    "tool": ("text",),
    "function": ("text",),
}


def fields_are_known(body: Field) -> None:
    """SDK types: the fields of openai 3.49."""
    body.only(FIELDS)
    body.need("model").text()
    if stream := body.find("stream"):
        stream.flag()


def messages_are_there(body: Field) -> None:
    """Observed: the refusal of the API."""
    if not body.need("messages").items():
        raise RequestRefused("Invalid 'messages': empty array. Expected at least 1 message.", code="empty_array")


def roles_and_contents_fit(body: Field) -> None:
    """API reference: Chat Completions: "tool message content is text only"; the rest is openai 3.49's types."""
    for message in body.need("messages").items():
        role = message.need("role").one_of(PARTS)
        content = message.find("content")
        if content is not None:
            parts_are(content, PARTS[role])
        elif role != "assistant" or not any(map(message.find, ("tool_calls", "function_call", "refusal", "audio"))):
            at = format_bracketed(message.path)
            raise RequestRefused(
                f"Invalid value for '{at}.content': expected a string, got null.", param=f"{at}.content"
            )


def calls_are_complete(body: Field) -> None:
    """API reference: Chat Completions: `function` and `custom` tools; the fields are openai 3.49's."""
    for message in body.need("messages").items():
        if (calls := message.find("tool_calls")) is None:
            continue
        if message.need("role").text() != "assistant":
            raise calls.wording.unknown(calls.path)
        if not calls.items():
            raise RequestRefused(f"Invalid '{format_bracketed(calls.path)}': empty array. Expected at least 1 call.")
        for call in calls.items():
            call.need("id").text()
            kind = call.need("type").one_of(("function", "custom"))
            call.need(kind).need("name").text()
            call.need(kind).need("arguments" if kind == "function" else "input").text()


def every_call_is_answered(body: Field) -> None:
    """API reference: the order of messages, and one result with the id of every call."""
    asked: list[str] = []
    answered: list[str] = []
    for message in body.need("messages").items():
        if message.need("role").text() == "tool":
            _answer(message, asked, answered)
            continue
        _refuse_unanswered(asked, answered)
        calls = message.find("tool_calls")
        asked, answered = [call.need("id").text() for call in calls.items()] if calls else [], []
        if repeated := first_repeated(asked):
            raise RequestRefused(
                f"Duplicate value for 'tool_call_id' of '{repeated}' in '{format_bracketed(message.path)}'."
            )
    _refuse_unanswered(asked, answered)


def tools_are_valid(body: Field) -> None:
    """API reference: "max of 128 functions"; `function` and `custom` tools."""
    if not (tools := body.find("tools")):
        return
    if not (found := tools.items()):
        raise RequestRefused(
            "Invalid 'tools': empty array. Expected at least 1 tool.", code="empty_array", param="tools"
        )
    if len(found) > 128:
        message = f"Invalid 'tools': array too long. Expected at most 128 tools, but got {len(found)}."
        raise RequestRefused(message, code="array_above_max_length", param="tools")
    names_are_unique([_tool_name(tool) for tool in found])


def choice_names_a_tool(body: Field) -> None:
    """API reference: Chat Completions: `{type:"allowed_tools", allowed_tools:{mode, tools}}`."""
    options_need_tools(body, "tool_choice", "parallel_tool_calls")
    choice = body.find("tool_choice")
    if choice is None:
        return
    if isinstance(choice.value, str):
        choice.one_of(("none", "auto", "required"))
        return
    if choice.need("type").one_of(("function", "custom", "allowed_tools")) != "allowed_tools":
        _refuse_unknown(choice, body)
        return
    allowed = choice.need("allowed_tools")
    allowed.need("mode").one_of(("auto", "required"))
    for tool in allowed.need("tools").items():
        tool.need("type").one_of(("function", "custom"))
        _refuse_unknown(tool, body)


def answer_format_is_valid(body: Field) -> None:
    """API reference, strict mode, for `response_format`."""
    chosen = body.find("response_format")
    if chosen and chosen.need("type").one_of(("text", "json_object", "json_schema")) == "json_schema":
        output_format_is_valid(chosen.need("json_schema"))


RULES = (
    fields_are_known,
    messages_are_there,
    roles_and_contents_fit,
    calls_are_complete,
    every_call_is_answered,
    tools_are_valid,
    choice_names_a_tool,
    answer_format_is_valid,
    stream_options_need_a_stream,
)


def _answer(message: Field, asked: list[str], answered: list[str]) -> None:
    name, at = message.need("tool_call_id").text(), format_bracketed(message.path)
    if name in answered:
        raise RequestRefused(f"Duplicate value for 'tool_call_id' of '{name}' in '{at}'.", param=f"{at}.tool_call_id")
    if name not in asked:
        message_ = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'"
        raise RequestRefused(f"Invalid parameter: {message_}: '{name}'.", param=f"{at}.role")
    answered.append(name)


def _refuse_unanswered(asked: list[str], answered: list[str]) -> None:
    if missing := [name for name in asked if name not in answered]:
        raise RequestRefused(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(missing)}",
            param="messages",
        )


def _tool_name(tool: Field) -> str:
    kind = tool.need("type").one_of(("function", "custom"))
    tool.only(("type", kind))
    described = tool.need(kind)
    described.only(
        ("name", "description", "parameters", "strict") if kind == "function" else ("name", "description", "format")
    )
    name = name_is_valid(described.need("name"), max_chars=64)
    strict = described.find("strict")
    if parameters := described.find("parameters"):
        check_function(parameters, name=name, strict=strict is not None and strict.flag())
    return name


def _refuse_unknown(choice: Field, body: Field) -> None:
    kind = choice.need("type").text()
    name = choice.need(kind).need("name").text()
    if (kind, name) not in _tools(body):
        raise RequestRefused(f"Tool choice '{name}' not found in 'tools' parameter.", param="tool_choice")


def _tools(body: Field) -> set[tuple[str, str]]:
    kinds = [(tool, tool.need("type").text()) for tool in body.need("tools").items()]
    return {(kind, tool.need(kind).need("name").text()) for tool, kind in kinds}
