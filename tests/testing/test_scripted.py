"""A provider that answers from a script: every kind of line, and how strict it is about a history."""

import json
from typing import Any

import pytest

from handrail import ToolCall, ToolResult, tool
from handrail.errors import ConfigError, ProviderDownError, ProviderError, ProviderLimitError
from handrail.providers import AssistantMessage, ModelRequest, ModelResponse, TextDelta, ToolMessage, Usage, UserMessage
from handrail.testing import ScriptedProvider
from handrail.testing.servers import ScriptedUsage, refusal, text, text_and_calls, tool_calls, truncated

HI = UserMessage(text="Hi.")
ASKED = ModelRequest(messages=[HI])


def call(call_id: str) -> ToolCall:
    return ToolCall(id=call_id, name="pay", arguments_json="{}")


def answer(*call_ids: str) -> ToolMessage:
    return ToolMessage(results=tuple(ToolResult(output="paid", call_id=item, tool_name="pay") for item in call_ids))


def calling(*call_ids: str) -> AssistantMessage:
    return AssistantMessage(calls=tuple(map(call, call_ids)))


async def pieces(provider: ScriptedProvider, request: ModelRequest = ASKED) -> list[Any]:
    return [piece async for piece in provider.stream(request)]


async def test_a_text_is_said_word_by_word_and_then_as_a_whole() -> None:
    *words, reply = await pieces(ScriptedProvider(["Good  morning, Ann."]))

    assert words == [TextDelta(text=item) for item in ("Good ", " ", "morning, ", "Ann.")]
    assert reply == ModelResponse(
        text="Good  morning, Ann.", finish_reason="stop", usage=Usage(input=10, output=5), id="resp_1", model="model"
    )


async def test_asking_gives_the_whole_of_what_a_stream_gives() -> None:
    assert await ScriptedProvider(["Hello."]).ask(ASKED) == (await pieces(ScriptedProvider(["Hello."])))[-1]


async def test_an_empty_text_has_no_words() -> None:
    (reply,) = await pieces(ScriptedProvider([""]))

    assert (reply.text, reply.finish_reason) == ("", "stop")


async def test_calls_get_ids_of_their_own_and_the_id_of_their_response() -> None:
    provider = ScriptedProvider(["Hello.", tool_calls(("pay", {"amount": 5}), ("pay", '{"amount":', "mine"))])
    await provider.ask(ASKED)
    reply = await provider.ask(ASKED)

    assert reply.finish_reason == "tool_calls"
    assert [(item.id, item.arguments_json, item.response_id) for item in reply.calls] == [
        ("call_2_1", '{"amount":5}', "resp_2"),
        ("mine", '{"amount":', "resp_2"),
    ]


async def test_words_and_calls_come_together() -> None:
    *words, reply = await pieces(ScriptedProvider([text_and_calls("One moment.", ("pay", {}))]))

    assert "".join(word.text for word in words) == reply.text == "One moment."
    assert [item.name for item in reply.calls] == ["pay"]


async def test_a_refusal_is_said_and_is_the_reason_to_stop() -> None:
    reply = await ScriptedProvider([refusal("I will not.")]).ask(ASKED)

    assert (reply.text, reply.finish_reason) == ("I will not.", "refusal")


async def test_a_call_that_the_limit_broke_off_cannot_be_parsed() -> None:
    reply = await ScriptedProvider([truncated("Well", ("pay", {"amount": 1}), ("pay", {"amount": 2}))]).ask(ASKED)

    assert reply.finish_reason == "length"
    assert reply.calls[0].arguments_json == '{"amount":1}'
    with pytest.raises(ValueError, match=r"delimiter|Unterminated|Expecting|JSON|EOF|control"):
        json.loads(reply.calls[1].arguments_json)


async def test_usage_and_id_can_be_said() -> None:
    reply = await ScriptedProvider([text("Hi.", id="r", usage=ScriptedUsage(input=7, output=8, cached=3))]).ask(ASKED)

    assert (reply.id, reply.usage) == ("r", Usage(input=7, output=8, cached=3))


async def test_a_reply_is_given_as_it_is() -> None:
    said = ModelResponse(text="As is.", finish_reason="other", id="x", model="mine")

    assert await ScriptedProvider([said]).ask(ASKED) is said


async def test_an_exception_is_raised_and_uses_up_its_line() -> None:
    provider = ScriptedProvider([ProviderLimitError("Slow down.", after=3), "Hello."])

    with pytest.raises(ProviderLimitError, match="Slow down"):
        await provider.ask(ASKED)
    assert (await provider.ask(ASKED)).text == "Hello."
    provider.finish()


@pytest.mark.parametrize("words", [0, 1, 2])
async def test_a_cut_stream_says_so_many_words_and_breaks_off(words: int) -> None:
    heard: list[str] = []
    provider = ScriptedProvider([text("one two three", cut_after=words)])

    async def hear() -> None:
        async for piece in provider.stream(ASKED):
            assert isinstance(piece, TextDelta)
            heard.append(piece.text)

    with pytest.raises(ProviderDownError, match="cut"):
        await hear()

    assert heard == ["one ", "two "][:words]


async def test_a_function_sees_the_request_and_gives_any_line() -> None:
    provider = ScriptedProvider(
        [lambda request: f"You said {request.messages[-1].text}", lambda _: ProviderError("No")]
    )

    assert (await provider.ask(ASKED)).text == "You said Hi."
    with pytest.raises(ProviderError, match="No"):
        await provider.ask(ASKED)


async def test_requests_are_kept_as_they_came() -> None:
    @tool
    def pay() -> None:
        """Pay."""

    request = ModelRequest(messages=[HI], instructions="Be brief.", tools=[pay])
    provider = ScriptedProvider(["Hello."])
    await provider.ask(request)

    assert provider.requests == [request]


async def test_more_requests_than_lines_fail_and_say_how_many() -> None:
    provider = ScriptedProvider(["Hello."])
    await provider.ask(ASKED)

    with pytest.raises(AssertionError, match="the script has 1 lines, but this is request 2"):
        await provider.ask(ASKED)


async def test_lines_that_nobody_asked_for_fail_at_the_end() -> None:
    provider = ScriptedProvider(["Hello.", "Is anybody there?"])
    await provider.ask(ASKED)

    with pytest.raises(AssertionError, match=r"1 of 2 scripted lines were not used: \['Is anybody there\?'\]"):
        provider.finish()
    await provider.ask(ASKED)
    provider.finish()


RIGHT = {
    "a question": [HI],
    "answered calls": [HI, calling("a", "b"), answer("a", "b")],
    "two rounds": [HI, calling("a"), answer("a"), calling("b"), answer("b")],
    "two people in a row": [HI, HI],
}
WRONG = {
    "nothing": ([], "last message must be"),
    "the model spoke last": ([HI, AssistantMessage(text="Hello.")], "last message must be"),
    "unanswered calls": ([HI, calling("a"), HI], r"got \[\]"),
    "a missing answer": ([HI, calling("a", "b"), answer("a")], r"got \['a'\]"),
    "another order": ([HI, calling("a", "b"), answer("b", "a")], r"got \['b', 'a'\]"),
    "the answer to another call": ([HI, calling("a"), answer("c")], r"got \['c'\]"),
    "an answer to nothing": ([HI, answer("a")], r"got \['a'\]"),
    "an answer that is not next": ([HI, calling("a"), HI, answer("a")], "must follow them in order"),
    "answers in two messages": ([HI, calling("a", "b"), answer("a"), answer("b")], "must follow them in order"),
    "one id twice in a message": ([HI, calling("a", "a"), answer("a", "a")], "must be unique"),
    "one id twice in a history": ([HI, calling("a"), answer("a"), calling("a"), answer("a")], "must be unique"),
    "an empty question": ([UserMessage(text="")], "must have a text"),
}


@pytest.mark.parametrize("history", RIGHT.values(), ids=list(RIGHT))
async def test_a_history_that_every_provider_takes_gets_a_response(history: list[Any]) -> None:
    assert (await ScriptedProvider(["Hello."]).ask(ModelRequest(messages=history))).text == "Hello."


@pytest.mark.parametrize(("history", "why"), WRONG.values(), ids=list(WRONG))
async def test_a_history_that_a_provider_would_refuse_is_refused_and_uses_up_nothing(
    history: list[Any], why: str
) -> None:
    provider = ScriptedProvider(["Hello."])

    with pytest.raises(ProviderError, match=why) as caught:
        await provider.ask(ModelRequest(messages=history))
    assert caught.value.code == "bad_request"
    assert provider.requests == []
    assert (await provider.ask(ASKED)).text == "Hello."


def test_one_text_in_the_place_of_a_script_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lines must be a list of lines, such as \['Hello.'\], got one text"):
        ScriptedProvider("Hello.")
