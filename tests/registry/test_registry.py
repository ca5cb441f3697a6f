"""An immutable set of tools, and their definitions for every provider."""

import difflib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail import LLMFunctionTool, Tool, ToolNotFoundError, ToolRegistry, build_tool, tool
from handrail.errors import DuplicateToolError, ToolDefinitionError
from tests.formats.apis import ALL, ANTHROPIC, CHAT, GEMINI, MCP, REALTIME, RESPONSES, Api, every_api
from tests.formats.hard import hard_tools

FORMATS: dict[Api, Callable[[ToolRegistry], Any]] = {
    CHAT: ToolRegistry.to_openai_chat_tools,
    RESPONSES: ToolRegistry.to_openai_tools,
    REALTIME: ToolRegistry.to_openai_realtime_tools,
    ANTHROPIC: ToolRegistry.to_anthropic_tools,
    GEMINI: ToolRegistry.to_gemini_tools,
    MCP: ToolRegistry.to_mcp_tools,
}


def named(name: str, **options: Any) -> Tool[..., Any]:
    given = {"name": name, "description": f"Does {name}.", "input_schema": {"properties": {"a": {"type": "string"}}}}
    return build_tool({**given, "execute": lambda payload: payload, **options})


class Shout(LLMFunctionTool):
    """Say it loudly."""

    text: str

    def model_tool_handler(self, context: Any) -> tuple[str, None]:
        return self.text.upper(), None


class Whisper:
    """An object with the members of the harness protocol."""

    name = "whisper"
    description = "Say it softly."
    input_schema = {"type": "object", "properties": {"text": {"type": "string"}}}  # noqa: RUF012

    async def execute(self, payload: dict[str, Any], context: Any) -> Any:
        return payload["text"].lower()

    async def check_permissions(self, payload: dict[str, Any], context: Any) -> None:
        return None

    def is_read_only(self) -> bool:
        return True

    def is_concurrency_safe(self) -> bool:
        return True


def hum(tune: str) -> str:
    """Hum."""
    return tune


# Finding tools.


@pytest.mark.proves("HC-09")
def test_a_registry_starts_empty() -> None:
    registry = ToolRegistry()

    assert (len(registry), list(registry), registry.names, "x" in registry) == (0, [], (), False)
    assert all(list(make(registry)) == [] for make in FORMATS.values())


@pytest.mark.proves("HC-09")
def test_a_registry_takes_anything_tool_shaped_and_finds_it_by_name() -> None:
    mapping = {"name": "sing", "input_schema": {"type": "object"}, "execute": lambda payload: ""}
    made = tool(name="talk")(hum)

    registry = ToolRegistry([made, hum, Shout, mapping, Whisper()])

    assert registry.names == ("talk", "hum", "Shout", "sing", "whisper")
    assert [registry.get(name).name for name in registry.names] == list(registry.names)
    assert registry.get("talk") is made
    assert all(name in registry for name in registry.names)
    assert [item.name for item in registry] == list(registry.names)
    assert len(registry) == 5
    assert repr(registry) == "ToolRegistry(talk, hum, Shout, sing, whisper)"


@pytest.mark.parametrize(
    "other",
    ["pay ", "PAY", "", None, 3, ["pay"], {"pay": 1}, named("pay")],
    ids=lambda one: type(one).__name__ if isinstance(one, Tool) else repr(one),
)
def test_only_a_name_that_is_registered_is_in_a_registry(other: object) -> None:
    registry = ToolRegistry([named("pay")])

    assert other not in registry
    assert "pay" in registry


@pytest.mark.proves("HC-11")
def test_a_name_that_is_unknown_is_a_key_error_that_says_what_was_asked_for() -> None:
    registry = ToolRegistry([named("get_balance"), named("get_balances"), named("pay")])

    with pytest.raises(ToolNotFoundError, match="no tool named `get_balanse`") as caught:
        registry.get("get_balanse")

    assert isinstance(caught.value, KeyError)
    assert caught.value.tool_name == "get_balanse"
    assert "Did you mean `get_balance` or `get_balances`?" in str(caught.value)
    assert caught.value.code == "tool_not_found"


@pytest.mark.parametrize("size", [200, 1_000])
def test_a_suggestion_compares_a_bounded_number_of_names(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = ToolRegistry(
        [*(named(f"get_invoice_{number}") for number in range(size)), named("refund_order"), named("get_weather")]
    )
    compared: list[int] = []
    matcher: Any = difflib.SequenceMatcher
    quick_ratio = matcher.real_quick_ratio

    def counted(self: Any) -> float:
        compared.append(1)
        return quick_ratio(self)

    monkeypatch.setattr(matcher, "real_quick_ratio", counted)
    for asked, meant in [("refnd_ordr", "refund_order"), ("getWeather", "get_weather"), ("get_invoise_7", None)]:
        compared.clear()
        with pytest.raises(ToolNotFoundError, match=f"Did you mean `{meant or 'get_invoice_7'}`"):
            registry.get(asked)
        assert 0 < len(compared) <= 50


@pytest.mark.parametrize("name", ["", "x" * 10_000, "\ud800", None, ["pay"], 3], ids=lambda name: repr(name)[:12])
def test_no_name_breaks_get(name: Any) -> None:
    with pytest.raises(ToolNotFoundError) as caught:
        ToolRegistry([named("pay")]).get(name)

    assert len(str(caught.value)) < 300


# Registering.


@pytest.mark.proves("HC-10")
def test_registering_returns_a_new_registry_and_leaves_the_old_one_as_it_was() -> None:
    old = ToolRegistry([named("a")])
    before = json.dumps(old.to_anthropic_tools())

    new = old.register(named("b"))

    assert new is not old
    assert (old.names, new.names) == (("a",), ("a", "b"))
    assert json.dumps(old.to_anthropic_tools()) == before
    assert [item["name"] for item in new.to_anthropic_tools()] == ["a", "b"]


def test_a_registry_does_not_follow_the_list_that_it_was_made_from() -> None:
    tools = [named("a")]
    registry = ToolRegistry(tools)
    tools.append(named("b"))

    assert registry.names == ("a",)


@pytest.mark.proves("HC-D4")
def test_a_second_tool_of_the_same_name_is_refused() -> None:
    registry = ToolRegistry([named("pay", source="mcp:bank")])

    with pytest.raises(DuplicateToolError, match=r"`pay`, from mcp:bank.*replace=True") as caught:
        registry.register(named("pay"))
    with pytest.raises(DuplicateToolError):
        ToolRegistry([named("a"), named("b"), named("a")])

    assert isinstance(caught.value, ToolDefinitionError)
    assert registry.get("pay").source == "mcp:bank"


def test_the_same_tool_twice_is_one_tool() -> None:
    pay = named("pay")

    assert ToolRegistry([pay, pay]).register(pay).names == ("pay",)


def test_replacing_keeps_the_place_and_the_old_registry() -> None:
    old = ToolRegistry([named("a"), named("b"), named("c")])
    better = named("b", description="Better.")

    new = old.register(better, replace=True)

    assert new.names == ("a", "b", "c")
    assert new.get("b") is better
    assert old.get("b") is not better
    assert new.register(named("d"), replace=True).names == ("a", "b", "c", "d")
    assert [item["description"] for item in new.to_openai_tools()] == ["Does a.", "Better.", "Does c."]  # pyright: ignore[reportTypedDictNotRequiredAccess]


@pytest.mark.parametrize("wrong", [3, "pay", None, Whisper, object()], ids=lambda one: type(one).__name__)
def test_what_is_not_tool_shaped_is_refused(wrong: object) -> None:
    with pytest.raises(ToolDefinitionError):
        ToolRegistry().register(wrong)
    with pytest.raises(ToolDefinitionError):
        ToolRegistry([wrong])


def test_a_registry_cannot_be_changed() -> None:
    registry: Any = ToolRegistry([named("a")])

    with pytest.raises(AttributeError):
        registry.names = ()
    with pytest.raises(AttributeError):
        registry.extra = 1
    with pytest.raises(TypeError):
        registry["b"] = named("b")


# Selecting.


@pytest.mark.parametrize(
    ("selectors", "names"),
    [
        (["get_a"], ["get_a"]),
        (["get_*"], ["get_a", "get_b"]),
        (["mcp:github"], ["get_b", "star"]),
        (["mcp:*"], ["get_b", "star", "mail"]),
        (["tag:money"], ["pay", "mail"]),
        (["tag:mon*"], ["pay", "mail"]),
        (["pay", "star"], ["star", "pay"]),
        (["*"], ["get_a", "get_b", "star", "pay", "mail"]),
        (["ghost"], []),
        ([], []),
    ],
    ids=str,
)
def test_a_part_of_a_registry_is_selected_by_name_glob_source_and_tag(selectors: list[str], names: list[str]) -> None:
    registry = ToolRegistry(
        [
            named("get_a"),
            named("get_b", source="mcp:github"),
            named("star", source="mcp:github"),
            named("pay", tags=["money"]),
            named("mail", source="mcp:mail", tags=["money"]),
        ]
    )

    part = registry.select(*selectors)

    assert isinstance(part, ToolRegistry)
    assert list(part.names) == names
    assert len(registry) == 5


# Definitions.


@pytest.mark.proves("HC-12", "GC-01")
@every_api
def test_the_definitions_of_a_registry_are_those_of_the_format(api: Api) -> None:
    registry = ToolRegistry([*hard_tools(strict=True), named("größe"), hum])

    definitions = FORMATS[api](registry)

    by_format = api.wire.tools(registry)
    assert json.dumps(definitions) == json.dumps(by_format)
    assert len(api.shown(definitions)) == 4
    assert (definitions.skipped, definitions.notes) == (by_format.skipped, by_format.notes)
    assert "größe" in definitions.names


@every_api
@given(names=st.lists(st.sampled_from("abcdefgh"), unique=True))
def test_definitions_are_equal_bytes_on_every_call_and_in_the_order_of_registration(api: Api, names: list[str]) -> None:
    registry = ToolRegistry(map(named, names))

    first, second = FORMATS[api](registry), FORMATS[api](registry)

    assert json.dumps(first) == json.dumps(second) == json.dumps(FORMATS[api](ToolRegistry(registry)))
    assert [item.name for item in api.shown(first)] == names
    assert all(name in first.names for name in names)


@every_api
def test_a_callers_change_to_definitions_never_reaches_another_caller(api: Api) -> None:
    registry = ToolRegistry([hum, named("pay")])
    mine, yours = FORMATS[api](registry), FORMATS[api](registry)
    before = json.dumps(yours)

    for definition in mine:
        for part in [definition, definition.get("function", {}), *definition.get("function_declarations", ())]:
            part["description"] = "Mine."
            part["cache_control"] = {"type": "ephemeral"}
    mine.append(dict(mine[0]))
    del mine[0]

    assert json.dumps(yours) == json.dumps(FORMATS[api](registry)) == json.dumps(api.wire.tools(registry)) == before


def test_every_format_is_offered() -> None:
    assert set(FORMATS) == set(ALL)
