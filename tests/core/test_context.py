"""Where a call happens: only the session is needed, and what a handler tells reaches who listens."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from handrail import ConfigError, ToolCall, ToolContext, tool
from handrail.core import Event, Progress


@dataclass(frozen=True)
class Bank:
    balance: int


@pytest.mark.proves("HC-03", "PH-26", "GC-26")
def test_only_the_session_is_needed() -> None:
    context: ToolContext[Any] = ToolContext(session_id="s-1")

    assert context.session_id == "s-1"
    assert (context.tenant_id, context.agent_id, context.customer_id, context.turn) == (None, None, None, 0)
    assert (context.working_directory, context.deps, context.secrets, context.plugin_data) == (None, None, {}, {})
    assert (context.call, context.idempotency_key, context.listener) == (None, None, None)
    with pytest.raises(TypeError, match="session_id"):
        ToolContext()


@pytest.mark.proves("HC-03", "PH-26", "GC-26")
def test_it_carries_whose_conversation_it_is_and_what_may_be_used() -> None:
    context = ToolContext(
        session_id="call-7",
        tenant_id="acme",
        agent_id="a-1",
        customer_id="c-1",
        turn=3,
        working_directory="/srv/desk",
        plugin_data={"theme": "dark"},
    )

    assert (context.session_id, context.tenant_id, context.agent_id) == ("call-7", "acme", "a-1")
    assert (context.customer_id, context.turn, context.working_directory) == ("c-1", 3, "/srv/desk")
    assert context.plugin_data == {"theme": "dark"}


@pytest.mark.proves("PH-46", "GC-26")
async def test_a_handler_that_asks_for_the_context_gets_it_with_its_dependencies() -> None:
    @tool(read_only=True)
    def balance(context: ToolContext[Bank]) -> int:
        assert context is given
        return context.deps.balance

    given = ToolContext(session_id="s-1", deps=Bank(balance=12))
    result = await balance.execute({}, given)

    assert result.output == 12
    assert "context" not in balance.input_schema["properties"]


def test_its_picture_shows_neither_secrets_nor_services() -> None:
    context = ToolContext(session_id="s-1", secrets={"key": "sk-secret"}, deps=Bank(balance=7), tenant_id="acme")

    assert "secret" not in repr(context)
    assert "balance" not in repr(context)
    assert repr(context).startswith("ToolContext(session_id='s-1', tenant_id='acme'")


def test_progress_is_reported_with_the_ids_of_the_call() -> None:
    heard: list[Event] = []
    call = ToolCall(id="call_1", name="report")
    context: ToolContext[Any] = ToolContext(session_id="s-1", tenant_id="acme", call=call, listener=heard.append)

    context.progress("half way", fraction=0.5)

    (event,) = heard
    assert isinstance(event, Progress)
    assert event.at > 1_700_000_000
    assert (event.session_id, event.tenant_id, event.call_id) == ("s-1", "acme", "call_1")
    assert (event.tool_name, event.message, event.fraction) == ("report", "half way", 0.5)


def test_an_event_is_handed_on_as_it_is() -> None:
    heard: list[Event] = []
    event = Event(at=1.0, session_id="s-1")

    ToolContext(session_id="s-1", listener=heard.append).emit(event)

    assert heard == [event]
    assert heard[0] is event


def test_without_a_listener_telling_is_silent() -> None:
    context: ToolContext[Any] = ToolContext(session_id="s-1")

    context.emit(Event(at=1.0, session_id="s-1"))
    context.progress("nobody hears this")

    assert context.listener is None


@pytest.mark.parametrize("name", ["session_id", "tenant_id", "customer_id", "agent_id"])
@pytest.mark.parametrize("value", [7, 0, UUID(int=7), b"c-7", ["c-7"]])
def test_an_id_that_is_no_text_is_refused_when_the_context_is_built(name: str, value: Any) -> None:
    kind = type(value).__name__
    with pytest.raises(ConfigError, match=rf"{name} must be a str, got {kind}\."):
        ToolContext(**{"session_id": "s-1", name: value})


def test_a_session_is_never_none_and_a_turn_is_a_number() -> None:
    none: Any = None
    with pytest.raises(ConfigError, match="session_id must be a str, got NoneType"):
        ToolContext(session_id=none)
    text: Any = "2"
    with pytest.raises(ConfigError, match="turn must be an int, got str"):
        ToolContext(session_id="s-1", turn=text)


@pytest.mark.parametrize("name", ["session_id", "tenant_id", "customer_id", "agent_id"])
@pytest.mark.parametrize("value", ["s-\ud800", "s-\0"])
def test_an_id_that_no_database_can_store_is_refused_when_the_context_is_built(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be valid Unicode text"):
        ToolContext(**{"session_id": "s-1", name: value})
    assert ToolContext(session_id="two\nlines").session_id == "two\nlines"
    assert ToolContext(session_id="s-ä").session_id == "s-ä"
