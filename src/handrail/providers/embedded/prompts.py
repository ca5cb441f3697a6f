"""What the model is asked, word for word, and what is said without it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from handrail.core.tool import Tool
from handrail.core.values import ToolResult
from handrail.providers.embedded.constrain import listed, members, numbers

Turns = list[dict[str, str]]

REPLY: Final = "reply"
"""What the model chooses instead of a tool."""
NEEDED: Final = "For that I need"
"""How a question for a missing value begins; the answer to it is read together with what was said before."""
LONGEST_RESULT: Final = 2_000


def choosing(tools: Sequence[Tool[..., Any]], said: str, *, may_reply: bool) -> tuple[Turns, dict[str, Any]]:
    """Which of a few tools a message needs. The tools' own descriptions are the examples."""
    choices = [f"- {tool.name}: {tool.description}" for tool in tools]
    if may_reply:
        choices.append(f"- {REPLY}: None of these: greetings, thanks, small talk, questions about other things.")
    lines = "\n".join(choices)
    turns = [_turn("system", f"Which function does the message need?\n{lines}")]
    smalltalk = ("Hello, how are you?", "What is the tallest mountain?")
    for tool, chatter in zip(tools, smalltalk, strict=False):
        if may_reply:
            turns += [_turn("user", chatter), _turn("assistant", json.dumps(REPLY))]
        turns += [_turn("user", tool.description), _turn("assistant", json.dumps(tool.name))]
    names = [tool.name for tool in tools]
    return [*turns, _turn("user", said)], {"enum": [*names, REPLY] if may_reply else names}


def filling(tool: Tool[..., Any], said: str) -> Turns:
    """The arguments of a tool, from a message."""
    lines = [f"Function: {tool.name} - {tool.description}"]
    for name, node in _properties(tool).items():
        values = listed(members(node).get("enum"))
        choice = f" One of {', '.join(map(str, values))}." if values else ""
        lines.append(f"- {name}: {members(node).get('description', '')}{choice}")
    body = "\n".join([*lines, f"Message: {said}"])
    return [_turn("system", "Fill in the arguments of the function from the message, as JSON."), _turn("user", body)]


def shaping(turns: Turns, schema: Mapping[str, Any]) -> Turns:
    """A conversation whose next words are JSON; the model is told which, so that it means what the decoder allows."""
    text = json.dumps(schema, ensure_ascii=False)
    return [_turn("system", f"Answer with JSON alone, of this JSON Schema:\n{text}"), *turns]


def wording(turns: Turns, results: Sequence[ToolResult]) -> Turns:
    """An answer to the customer from what the tools said."""
    told = "\n".join(f"{result.tool_name}: {_clipped(result.for_model())}" for result in results)
    ask = f"This was found:\n{told}\nAnswer what I asked from that, in one or two sentences. Add nothing."
    return [*turns, _turn("user", ask)]


def missing(tool: Tool[..., Any], said: str) -> str:
    """The question for a number that the tool must have and that nobody said; empty if there is none."""
    properties = _properties(tool)
    for name in listed(tool.input_schema.get("required")):
        node = members(properties.get(name))
        if node.get("type") in ("integer", "number") and not numbers(said):
            described = str(node.get("description") or "")
            return f"{NEEDED} the {name.replace('_', ' ')}{': ' if described else '.'}{described}"
    return ""


def told(results: Sequence[ToolResult]) -> str:
    """What the tools said, without a model in between."""
    return "\n".join(_told(result) for result in results)


def offered(tools: Sequence[Tool[..., Any]]) -> str:
    """What can be done here, for a message that asks for none of it."""
    if not tools:
        return "I cannot help with that here."
    lines = "\n".join(f"- {(tool.description or tool.name).splitlines()[0]}" for tool in tools[:12])
    return f"I am a small demonstration model, and this is what I can do here:\n{lines}"


def _told(result: ToolResult) -> str:
    if result.error is not None:
        return f"That did not work. {_clipped(result.error.message) or result.error.code}"
    text = result.for_model()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _clipped(text) or "Done."
    if isinstance(value, dict) and value:
        members = cast(dict[str, Any], value)
        lines = [f"{name.replace('_', ' ')}: {_plain(one)}" for name, one in members.items()]
        return _clipped("\n".join(lines))
    return _clipped(_plain(value)) or "Done."


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _clipped(text: str) -> str:
    return text if len(text) <= LONGEST_RESULT else f"{text[:LONGEST_RESULT]}…"


def _properties(tool: Tool[..., Any]) -> Mapping[str, Any]:
    return members(tool.input_schema.get("properties"))


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
