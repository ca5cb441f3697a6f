"""What a model may call: every mode in every format, and what no provider would accept."""

from typing import Any

import pytest

from handrail import ConfigError, tool
from tests.formats.apis import ALL, ANTHROPIC, CHAT, GEMINI, MCP, REALTIME, RESPONSES, Api

WITH_CHOICE = [api for api in ALL if api is not MCP]
with_choice = pytest.mark.parametrize("api", WITH_CHOICE, ids=lambda api: api.name)


@tool(name="größe")
def size() -> str:
    return ""


@tool
def weight() -> str:
    return ""


def gemini(mode: str, *names: str) -> Any:
    return {"function_calling_config": {"mode": mode, **({"allowed_function_names": [*names]} if names else {})}}


def chat_only(mode: str, *names: str) -> Any:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def responses_only(mode: str, *names: str) -> Any:
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name} for name in names]}


@pytest.mark.proves("PH-D12")
@pytest.mark.parametrize(
    ("api", "asked", "value"),
    [
        (CHAT, {}, "auto"),
        (CHAT, {"mode": "none"}, "none"),
        (CHAT, {"mode": "required"}, "required"),
        (CHAT, {"tool": "weight"}, {"type": "function", "function": {"name": "weight"}}),
        (CHAT, {"allowed": ["weight"]}, chat_only("auto", "weight")),
        (CHAT, {"mode": "required", "allowed": ["weight"]}, chat_only("required", "weight")),
        (CHAT, {"mode": "none", "allowed": ["weight"]}, "none"),
        (RESPONSES, {}, "auto"),
        (RESPONSES, {"mode": "none"}, "none"),
        (RESPONSES, {"mode": "required"}, "required"),
        (RESPONSES, {"tool": "weight"}, {"type": "function", "name": "weight"}),
        (RESPONSES, {"allowed": ["weight"]}, responses_only("auto", "weight")),
        (RESPONSES, {"mode": "required", "allowed": ["weight"]}, responses_only("required", "weight")),
        (RESPONSES, {"mode": "none", "allowed": ["weight"]}, "none"),
        (REALTIME, {}, "auto"),
        (REALTIME, {"mode": "none"}, "none"),
        (REALTIME, {"mode": "required"}, "required"),
        (REALTIME, {"tool": "weight"}, {"type": "function", "name": "weight"}),
        (ANTHROPIC, {}, {"type": "auto"}),
        (ANTHROPIC, {"mode": "none"}, {"type": "none"}),
        (ANTHROPIC, {"mode": "required"}, {"type": "any"}),
        (ANTHROPIC, {"tool": "weight"}, {"type": "tool", "name": "weight"}),
        (GEMINI, {}, gemini("AUTO")),
        (GEMINI, {"mode": "none"}, gemini("NONE")),
        (GEMINI, {"mode": "required"}, gemini("ANY")),
        (GEMINI, {"tool": "weight"}, gemini("ANY", "weight")),
        (GEMINI, {"allowed": ["weight"]}, gemini("VALIDATED", "weight")),
        (GEMINI, {"mode": "required", "allowed": ["weight"]}, gemini("ANY", "weight")),
        (GEMINI, {"mode": "none", "allowed": ["weight"]}, gemini("NONE")),
    ],
    ids=lambda given: given.name if isinstance(given, Api) else str(given)[:40],
)
def test_a_choice_is_said_as_the_api_wants_it(api: Api, asked: dict[str, Any], value: Any) -> None:
    assert api.wire.tool_choice(**asked) == value


@pytest.mark.proves("PH-D12")
@with_choice
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"mode": "weight"}, r"choice\(tool='weight'\)"),
        ({"mode": "any"}, "auto, none or required"),
        ({"mode": None}, "auto, none or required"),
        ({"mode": ["auto"]}, "auto, none or required"),
        ({"mode": "required", "tool": "weight"}, "leave mode and allowed out"),
        ({"tool": "weight", "allowed": ["weight"]}, "leave mode and allowed out"),
        ({"allowed": "weight"}, r"a list of names, not one text: \['weight'\]"),
        ({"tool": ""}, "by its name"),
        ({"tool": weight}, "by its name"),
        ({"mode": "required", "allowed": [3]}, "by its name"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_a_choice_that_no_api_takes_is_refused_with_what_would_be_right(api: Api, asked: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        api.wire.tool_choice(**asked)


@with_choice
def test_a_choice_has_the_names_that_went_out(api: Api) -> None:
    definitions = api.wire.tools([size, weight])
    sent = api.shown(definitions)[0].name

    value = str(api.wire.tool_choice(tool="größe", definitions=definitions))

    assert sent in value
    assert "größe" not in value


@with_choice
@pytest.mark.parametrize("asked", [{"tool": "ghost"}, {"allowed": ["weight", "ghost"]}], ids=str)
def test_a_choice_of_a_tool_that_does_not_go_out_is_refused(api: Api, asked: Any) -> None:
    with pytest.raises(ConfigError, match=r"unknown tool .ghost. in the tool choice; this request has: .*weight"):
        api.wire.tool_choice(**asked, definitions=api.wire.tools([size, weight]))


@with_choice
def test_a_choice_cannot_be_required_without_tools(api: Api) -> None:
    with pytest.raises(ConfigError, match="without tools"):
        api.wire.tool_choice("required", definitions=api.wire.tools([]))
    assert api.wire.tool_choice("none", definitions=api.wire.tools([]))


@pytest.mark.parametrize("api", [REALTIME, ANTHROPIC], ids=lambda api: api.name)
def test_an_api_that_cannot_limit_a_choice_says_what_to_do_instead(api: Api) -> None:
    with pytest.raises(ConfigError, match="send only those tools instead"):
        api.wire.tool_choice(allowed=["weight"])


def test_mcp_has_no_choice() -> None:
    with pytest.raises(ConfigError, match="the client decides"):
        MCP.wire.tool_choice()
