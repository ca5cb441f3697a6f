"""The prompts of the embedded model, and the replies that need no model."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from handrail.core.tool import Tool
from handrail.core.values import ToolResult
from handrail.providers.embedded.schema_reduction import as_list, as_mapping
from handrail.providers.embedded.spans import extract, extract_numbers, find_kind

PromptTurns = list[dict[str, str]]

REPLY: Final = "reply"
"""The name that the model chooses if no tool fits."""
QUESTION_START: Final = "For that I need"
"""The beginning of a question for a missing value; the reply to it is read together with the earlier message."""
MAX_RESULT_CHARS: Final = 2_000


def build_choice_prompt(
    tools: Sequence[Tool[..., Any]], message: str, *, can_reply: bool
) -> tuple[PromptTurns, dict[str, Any]]:
    """Build the prompt that chooses one of a few tools; their descriptions are the examples."""
    choices = [f"- {tool.name}: {tool.description}" for tool in tools]
    if can_reply:
        choices.append(f"- {REPLY}: None of these: greetings, thanks, small talk, questions about other things.")
    lines = "\n".join(choices)
    turns = [_build_turn("system", f"Which function does the message need?\n{lines}")]
    smalltalk = ("Hello, how are you?", "What is the tallest mountain?")
    for tool, chatter in zip(tools, smalltalk, strict=False):
        if can_reply:
            turns += [_build_turn("user", chatter), _build_turn("assistant", json.dumps(REPLY))]
        turns += [_build_turn("user", tool.description), _build_turn("assistant", json.dumps(tool.name))]
    names = [tool.name for tool in tools]
    return [*turns, _build_turn("user", message)], {"enum": [*names, REPLY] if can_reply else names}


def build_arguments_prompt(tool: Tool[..., Any], message: str) -> PromptTurns:
    """Build the prompt that extracts the arguments of a tool from a message."""
    lines = [f"Function: {tool.name} - {tool.description}"]
    for name, node in _get_properties(tool).items():
        values = as_list(as_mapping(node).get("enum"))
        choice = f" One of {', '.join(map(str, values))}." if values else ""
        lines.append(f"- {name}: {as_mapping(node).get('description', '')}{choice}")
    body = "\n".join([*lines, f"Message: {message}"])
    return [
        _build_turn("system", "Fill in the arguments of the function from the message, as JSON."),
        _build_turn("user", body),
    ]


def build_json_prompt(turns: PromptTurns, schema: Mapping[str, Any]) -> PromptTurns:
    """Build the prompt for a response in JSON, with the schema that the decoder enforces."""
    text = json.dumps(schema, ensure_ascii=False)
    return [_build_turn("system", f"Answer with JSON alone, of this JSON Schema:\n{text}"), *turns]


def build_reply_prompt(turns: PromptTurns, results: Sequence[ToolResult]) -> PromptTurns:
    """Build the prompt for a reply to the customer from the results of tools."""
    lines = "\n".join(f"{result.tool_name}: {_truncate(result.for_model())}" for result in results)
    ask = f"This was found:\n{lines}\nAnswer what I asked from that, in one or two sentences. Add nothing."
    return [*turns, _build_turn("user", ask)]


def ask_for_missing_value(tool: Tool[..., Any], message: str, *, is_order: bool) -> str:
    """Build the question for a required number, address or date that the message does not contain; empty if all are
    there. A model would make one up.
    """
    properties = _get_properties(tool)
    for name in as_list(tool.input_schema.get("required")):
        node = as_mapping(properties.get(name))
        if node.get("type") in ("integer", "number"):
            is_missing = not extract_numbers(message)
        else:
            kind = find_kind(str(name), node)
            # In a request an id may be any word: "restart atlas".
            is_missing = kind is not None and not (kind == "id" and is_order) and not extract(kind, message)
        if is_missing:
            described = str(node.get("description") or "")
            return f"{QUESTION_START} the {name.replace('_', ' ')}{': ' if described else '.'}{described}"
    return ""


def describe_results(results: Sequence[ToolResult]) -> str:
    """Describe the results of tools without a model."""
    return "\n".join(_describe_result(result) for result in results)


def describe_tools(tools: Sequence[Tool[..., Any]]) -> str:
    """Describe the tools, for a message that asks for none of them."""
    if not tools:
        return "I cannot help with that here."
    lines = "\n".join(f"- {(tool.description or tool.name).splitlines()[0]}" for tool in tools[:12])
    return f"I am a small demonstration model, and this is what I can do here:\n{lines}"


def _describe_result(result: ToolResult) -> str:
    if result.error is not None:
        return f"That did not work. {_truncate(result.error.message) or result.error.code}"
    text = result.for_model()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _truncate(text) or "Done."
    if isinstance(value, dict) and value:
        members = cast(dict[str, Any], value)
        lines = [f"{name.replace('_', ' ')}: {_render_value(member)}" for name, member in members.items()]
        return _truncate("\n".join(lines))
    return _truncate(_render_value(value)) or "Done."


def _render_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_RESULT_CHARS else f"{text[:MAX_RESULT_CHARS]}…"


def _get_properties(tool: Tool[..., Any]) -> Mapping[str, Any]:
    return as_mapping(tool.input_schema.get("properties"))


def _build_turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
