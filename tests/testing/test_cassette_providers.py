"""Recorded answers of models: replies, streams, errors, and whole conversations without a model."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handrail import ConfigError, Executor, Tool, ToolCall, ToolContext, build_tool, tool
from handrail.chat import ChatSession
from handrail.core import Redactor
from handrail.core.redact import HIDDEN
from handrail.errors import ProviderDownError, ProviderError, ProviderLimitError
from handrail.providers import ModelRequest, ModelResponse, Native, Provider, TextDelta, ToolChoice, UserMessage
from handrail.testing import Cassette, ScriptedProvider
from handrail.testing.servers import text, text_and_calls, tool_calls
from tests.testing.kit import ASKED, CANARY, JSON, deadly, pay


async def pieces(provider: Provider, request: ModelRequest = ASKED) -> list[Any]:
    return [piece async for piece in provider.stream(request)]


async def test_a_stream_comes_again_in_its_chunks_and_needs_no_provider(tmp_path: Path) -> None:
    script = ScriptedProvider([text_and_calls("One moment, please.", ("pay", {"amount": 5}))])
    with Cassette(tmp_path / "a.json", mode="record") as cassette:
        real = await pieces(cassette.provider(script))
    with Cassette(tmp_path / "a.json") as cassette:
        provider = cassette.provider()
        again = await pieces(provider)

    assert again == real
    assert len(real) == 4
    assert provider.name == "scripted:model"


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_was_asked_can_be_streamed_and_the_other_way_round(streamed: bool, tmp_path: Path) -> None:
    with Cassette(tmp_path / "a.json", mode="record") as cassette:
        provider = cassette.provider(ScriptedProvider(["Hello there."]))
        real = (await pieces(provider))[-1] if streamed else await provider.ask(ASKED)
    with Cassette(tmp_path / "a.json") as cassette:
        provider = cassette.provider()
        again = [await provider.ask(ASKED)] if streamed else await pieces(provider)

    assert again[-1] == real
    assert [item for item in again if isinstance(item, TextDelta)] == (
        [] if streamed else [TextDelta(text="Hello there.")]
    )


async def test_a_whole_response_comes_again_with_what_the_api_said(tmp_path: Path) -> None:
    reply = ModelResponse(
        text="é",
        calls=(ToolCall(id="c", name="pay", arguments_json='{"amount": 5}', response_id="r", item_id="i"),),
        native=Native(format="anthropic", items=({"type": "thinking", "signature": "c2ln"},)),
        id="r",
    )
    with Cassette(tmp_path / "a.json", mode="record") as cassette:
        await cassette.provider(ScriptedProvider([reply])).ask(ASKED)
    with Cassette(tmp_path / "a.json") as cassette:
        assert await cassette.provider().ask(ASKED) == reply


class OwnError(ProviderLimitError):
    """One of a user's own."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ProviderLimitError("Slow down.", status=429, after=1.5), ProviderLimitError),
        (ProviderError("No.", code="bad_request"), ProviderError),
        (OwnError("Slower.", after=2.0), ProviderLimitError),
    ],
)
async def test_an_error_is_raised_again(error: ProviderError, kind: type[ProviderError], tmp_path: Path) -> None:
    with Cassette(tmp_path / "a.json", mode="record") as cassette, pytest.raises(kind):
        await cassette.provider(ScriptedProvider([error])).ask(ASKED)
    with Cassette(tmp_path / "a.json") as cassette, pytest.raises(kind) as caught:
        await cassette.provider().ask(ASKED)

    again = caught.value
    assert type(again) is kind
    assert (again.message, again.code, again.status, again.after) == (
        error.message,
        error.code,
        error.status,
        error.after,
    )


async def test_a_cut_stream_is_cut_again_at_the_same_place(tmp_path: Path) -> None:
    async def heard(provider: Provider) -> list[str]:
        said: list[str] = []
        try:
            async for piece in provider.stream(ASKED):
                said.append(piece.text)
        except ProviderDownError:
            return said
        raise AssertionError("it was not cut")

    with Cassette(tmp_path / "a.json", mode="record") as cassette:
        real = await heard(cassette.provider(ScriptedProvider([text("one two three", cut_after=2)])))
    with Cassette(tmp_path / "a.json") as cassette:
        assert await heard(cassette.provider()) == real == ["one ", "two "]


class Endless:
    """Says the same word for ever, and knows when nobody listens any more."""

    name = "endless"
    closed = False

    async def ask(self, request: ModelRequest) -> ModelResponse:
        raise NotImplementedError

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        try:
            while True:
                yield TextDelta(text="on ")
        finally:
            self.closed = True


async def test_who_broke_off_a_stream_can_do_so_again_but_not_read_on(tmp_path: Path) -> None:
    async def read(provider: Provider, most: int) -> int:
        count = 0
        async with aclosing(provider.stream(ASKED)) as stream:  # type: ignore[type-var]
            async for _ in stream:
                count += 1
                if count == most:
                    break
        return count

    real = Endless()
    with Cassette(tmp_path / "a.json", mode="record") as cassette:
        await read(cassette.provider(real), 3)
    assert real.closed
    with Cassette(tmp_path / "a.json") as cassette:
        assert await read(cassette.provider(), 3) == 3
    with pytest.raises(AssertionError, match="the whole response to"), Cassette(tmp_path / "a.json") as cassette:
        await read(cassette.provider(), 4)


@tool
def other(amount: str) -> None:
    """Another tool."""


@pytest.mark.parametrize(
    "request_",
    [
        ModelRequest(messages=[UserMessage(text="Hello.")]),
        ModelRequest(messages=[UserMessage(text="Hi."), UserMessage(text="Hi.")]),
        ModelRequest(messages=ASKED.messages, instructions="Be brief."),
        ModelRequest(messages=ASKED.messages, tools=[pay]),
        ModelRequest(messages=ASKED.messages, tools=[other]),
        ModelRequest(messages=ASKED.messages, tool_choice=ToolChoice(mode="none")),
        ModelRequest(messages=ASKED.messages, schema={"type": "object"}),
        ModelRequest(messages=ASKED.messages, max_tokens=5),
    ],
)
async def test_another_request_is_not_recorded(request_: ModelRequest, tmp_path: Path) -> None:
    with Cassette(tmp_path / "a.json", mode="record") as cassette:
        await cassette.provider(ScriptedProvider(["Hello."])).ask(ASKED)

    with pytest.raises(AssertionError, match="Recorded are: 'user Hi") as caught, Cassette(tmp_path / "a.json") as one:
        await one.provider().ask(request_)
    assert "--cassette=record" in str(caught.value)


async def test_an_equal_request_gets_the_next_response_and_none_when_they_are_used_up(tmp_path: Path) -> None:
    with Cassette(tmp_path / "a.json", mode="record") as cassette:
        provider = cassette.provider(ScriptedProvider(["One.", "Two."]))
        await provider.ask(ASKED)
        await provider.ask(ASKED)

    provider = Cassette(tmp_path / "a.json").provider()
    assert [(await provider.ask(ASKED)).text, (await provider.ask(ASKED)).text] == ["One.", "Two."]
    with pytest.raises(AssertionError, match="has only 2 recordings"):
        await provider.ask(ASKED)


def test_there_is_nothing_to_record_without_a_provider(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="provider is required"):
        Cassette(tmp_path / "a.json", mode="record").provider()


@pytest.mark.parametrize("cut", [None, 5])
async def test_a_secret_that_came_in_several_chunks_is_not_written(cut: int | None, tmp_path: Path) -> None:
    said = f"The card is 4111 1111 1111 1111 and the password: {CANARY} x"
    line = text(said, cut_after=7) if cut else text_and_calls(said, ("log_in", {"password": CANARY}))
    with Cassette(tmp_path / "a.json", mode="record") as cassette:
        try:
            await pieces(cassette.provider(ScriptedProvider([line])), ModelRequest(messages=[UserMessage(text=said)]))
        except ProviderDownError:
            assert cut
    written = (tmp_path / "a.json").read_text()

    assert CANARY not in written
    assert "1111" not in written
    with Cassette(tmp_path / "a.json") as cassette:
        stream = cassette.provider().stream(ModelRequest(messages=[UserMessage(text=said.replace(CANARY, "other"))]))
        async for first in stream:
            assert first.text.startswith(f"The card is {HIDDEN}")
            break


async def talk(cassette: Cassette, provider: Provider | None, one: Any, *said: str) -> list[str]:
    with cassette:
        session = ChatSession(
            cassette.provider(provider), Executor(cassette.tools([one])), context=ToolContext(session_id="s")
        )
        return [(await session.send(words)).text for words in said]


def finds(output: Any) -> Tool[..., Any]:
    schema = {"type": "object", "properties": {"v": {}, "token": {}}}
    return build_tool(
        {"name": "find", "read_only": True, "input_schema": schema, "execute": lambda payload, context: output}
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.text(), min_size=1, max_size=3), output=JSON, secret=st.text(min_size=1))
async def test_a_conversation_with_tools_is_replayed_without_either(
    words: list[str], output: Any, secret: str, tmp_path: Path
) -> None:
    search = finds({"found": output, "password": secret})
    lines = [tool_calls(("find", {"v": output, "token": secret})), *words]
    said = [f"Look for {secret}."] * len(words)
    real = await talk(Cassette(tmp_path / "a.json", mode="record"), ScriptedProvider(lines), search, *said)
    again = await talk(Cassette(tmp_path / "a.json", mode="strict"), None, deadly(search), *said)

    assert again == list(map(Redactor().text, real))


@pytest.mark.parametrize(
    "output",
    [
        [-2237552654521450, "https://ann:hunter2@bank"],  # A number that only looks like a card as a text.
        '{ "password" : "hunter2", "note": "{\\"pin\\": \\"1234\\"}" }',
        "password: two words\ntoken=abc; cookie: x=y",
        {"card": 4111111111111111, "pin": 1234, "tokens": 5},
    ],
)
async def test_what_is_redacted_already_is_still_the_same_conversation(output: Any, tmp_path: Path) -> None:
    lines = [text_and_calls(f"I look: {output}", ("find", {"v": output})), f"Found: {output}", "Bye."]
    said = [f"Find {output}.", "Thanks."]
    await talk(Cassette(tmp_path / "a.json", mode="record"), ScriptedProvider(lines), finds(output), *said)

    replies = await talk(Cassette(tmp_path / "a.json", mode="strict"), None, deadly(finds(output)), *said)
    assert replies[-1] == "Bye."
    assert "hunter2" not in (tmp_path / "a.json").read_text()


async def test_a_missing_response_that_ended_the_test_is_reported_once(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="there is no cassette") as caught, Cassette(tmp_path / "a.json") as one:
        await one.provider().ask(ASKED)
    assert caught.value.__cause__ is None
