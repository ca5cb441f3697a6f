"""A conversation can go on with any provider, from any other, out of a file, and with anything in it."""

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handrail import Failure, ToolCall, ToolResult
from handrail.providers import AssistantMessage, Message, ModelRequest, Native, ToolMessage, UserMessage
from handrail.testing.servers import GeminiServer, raw, text, text_and_calls, tool_calls
from tests.providers.kit import (
    ALL,
    ANTHROPIC,
    CHAT,
    GEMINI,
    RESPONSES,
    TOOLS,
    Subject,
    Way,
    answered,
    both_ways,
    every_adapter,
    hello,
    streamed,
    weather,
    whole,
)

HISTORY = msgspec.json.Decoder(list[Message])


def saved(history: list[Message]) -> list[Message]:
    """The conversation out of a file."""
    loaded = HISTORY.decode(msgspec.json.encode(history))
    assert loaded == history
    return loaded


async def _made_by(subject: Subject, way: Way, *, turns: int = 1) -> list[Message]:
    """A conversation with words, parallel calls and their answers, as this adapter tells it."""
    calls = (("weather", {"city": "Ulm"}), ("weather", {"city": "Bern", "days": 2}))
    script = [answer for _ in range(turns) for answer in (text_and_calls("Let me look.", *calls), text("It is sunny."))]
    history: list[Message] = []
    with subject.server(script, piece=100) as server:
        async with subject.at(server) as provider:
            for _ in range(turns):
                history += hello()
                reply = await way(provider, ModelRequest(messages=history, tools=TOOLS))
                history += [reply.message(), answered(reply.calls)]
                reply = await way(provider, ModelRequest(messages=history, tools=TOOLS))
                history.append(reply.message())
    return history


async def _sent(subject: Subject, history: list[Message], *, tools: Any = TOOLS, way: Way = whole) -> dict[str, Any]:
    """What this adapter makes of a conversation, which its server has accepted."""
    with subject.server([text("Very well.")]) as server:
        async with subject.at(server) as provider:
            await way(provider, ModelRequest(messages=history, tools=tools))
    return server.requests[0].body


@pytest.mark.parametrize("maker", ALL, ids=lambda one: f"from {one.name}")
@every_adapter
@both_ways
async def test_a_conversation_continues_with_another_provider(maker: Subject, subject: Subject, way: Way) -> None:
    history = await _made_by(maker, way, turns=2)
    history.append(UserMessage(text="And tomorrow?"))

    body = await _sent(subject, saved(history), way=way)

    said = json.dumps(body)
    assert said.count("Let me look.") == 2
    assert said.count("Ulm") == 2
    assert said.count("It is sunny.") == 2
    assert json.dumps(await _sent(subject, history, way=way)) == said


async def test_a_conversation_passes_through_every_provider_in_turn() -> None:
    history: list[Message] = []
    for subject in (*ALL, *reversed(ALL)):
        with subject.server([tool_calls(("weather", {"city": "Ulm"})), text("Sunny.")]) as server:
            async with subject.at(server) as provider:
                history += hello()
                reply = await streamed(provider, ModelRequest(messages=history, tools=TOOLS))
                history += [reply.message(), answered(reply.calls)]
                history.append((await whole(provider, ModelRequest(messages=history, tools=TOOLS))).message())
        history = saved(history)

    assert len(history) == 4 * 2 * len(ALL)


@pytest.mark.parametrize("maker", ALL, ids=lambda one: f"from {one.name}")
@every_adapter
async def test_a_longer_conversation_begins_with_the_bytes_of_the_shorter_one(maker: Subject, subject: Subject) -> None:
    """A prompt cache holds as long as what was sent before is sent again as it was."""
    history = await _made_by(maker, streamed, turns=3)
    turns = [place for place, message in enumerate(history) if isinstance(message, UserMessage | ToolMessage)]

    sent = [await _sent(subject, history[: place + 1]) for place in turns]

    key = next(key for key in ("messages", "input", "contents") if key in sent[0])
    texts = [json.dumps(body.pop(key)).removesuffix("]") for body in sent]
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(texts))
    assert all(body == sent[0] for body in sent)


THOUGHT = {
    "openai_responses": {
        "id": "resp_1",
        "status": "completed",
        "model": "m",
        "output": [
            {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA=="},
            {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        ],
    },
    "anthropic": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "tool_use",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "c2ln+/=="},
            {"type": "tool_use", "id": "c1", "name": "weather", "input": {}},
        ],
    },
    "gemini": {
        "responseId": "resp_1",
        "candidates": [
            {
                "finishReason": "STOP",
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "Hm.", "thought": True},
                        {"functionCall": {"name": "weather", "args": {}}, "thoughtSignature": "c2ln+/8="},
                    ],
                },
            }
        ],
    },
}


@pytest.mark.parametrize("subject", [RESPONSES, ANTHROPIC, GEMINI], ids=lambda one: one.name)
async def test_thoughts_and_their_signatures_go_back_as_they_came(subject: Subject) -> None:
    with subject.server([raw(THOUGHT[subject.name]), text("Sunny.")]) as server:
        async with subject.at(server) as provider:
            reply = await provider.ask(ModelRequest(messages=hello(), tools=TOOLS))
            history = saved([*hello(), reply.message(), answered(reply.calls)])
            await provider.ask(ModelRequest(messages=history, tools=TOOLS))

    assert reply.text == ""
    back = json.dumps(server.requests[1].body)
    for piece in ("gAAAA==", "c2ln+/==", "c2ln+/8="):
        assert (piece in back or piece.replace("+", "-").replace("/", "_") in back) == (
            piece in json.dumps(THOUGHT[subject.name])
        )


@every_adapter
async def test_the_name_of_a_tool_that_is_gone_still_goes_out_as_the_api_takes_it(subject: Subject) -> None:
    calls = (ToolCall(id="c1", name="wetter größe", arguments_json="{}"),)
    history = [*hello(), AssistantMessage(calls=calls), answered(calls)]

    with_it = await _sent(subject, history)
    without = await _sent(subject, history, tools=[weather])

    assert json.dumps(with_it).count("wetter_gr") == json.dumps(without).count("wetter_gr") + 1


@every_adapter
@both_ways
async def test_calls_that_came_without_an_id_continue_anywhere_and_go_back_without_one(
    subject: Subject, way: Way
) -> None:
    calls = (("weather", {"city": "Ulm"}), ("weather", {"city": "Bern"}))
    with GeminiServer([tool_calls(*calls), tool_calls(*calls), text("Sunny.")], call_ids=False) as server:
        async with GEMINI.at(server) as provider:
            history: list[Message] = hello()
            for _ in range(2):
                reply = await way(provider, ModelRequest(messages=history, tools=TOOLS))
                history += [reply.message(), answered(reply.calls)]
            history.append((await way(provider, ModelRequest(messages=history, tools=TOOLS))).message())

    body = await _sent(subject, saved([*history, *hello("And now?")]))

    assert json.dumps(server.requests[2].body).count('"id"') == 0
    assert json.dumps(body).count("Bern") == 2


@every_adapter
@pytest.mark.parametrize("items", [(), ({"role": "assistant"}, {"role": "assistant"})], ids=["none", "two"])
async def test_a_native_message_that_is_none_is_rendered_as_text(subject: Subject, items: Any) -> None:
    native = Native(format=subject.name, items=items)
    call = ToolCall(id="c1", name="weather", arguments_json="{}")
    history = [*hello(), AssistantMessage(text="My words.", calls=(call,), native=native), answered([call])]

    assert "My words." in json.dumps(await _sent(subject, history))


@every_adapter
async def test_a_message_in_which_nothing_was_said_is_left_out(subject: Subject) -> None:
    body = await _sent(subject, [*hello("One."), AssistantMessage(text=" "), *hello("Two.")])

    assert "assistant" not in json.dumps(body)
    assert '"model"' not in json.dumps(body.get("contents"))


async def test_anthropic_gets_a_definition_of_every_tool_that_was_called_and_is_gone() -> None:
    history = await _made_by(ANTHROPIC, whole)

    body = await _sent(ANTHROPIC, [*history, *hello("And now?")], tools=[])

    assert [tool["name"] for tool in body["tools"]] == ["weather"]
    assert body["tool_choice"] == {"type": "none"}


async def test_anthropic_continues_with_a_turn_that_it_paused_and_with_no_other() -> None:
    searched = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    message = {"id": "msg_1", "role": "assistant", "model": "m", "type": "message"}
    paused = {**message, "stop_reason": "pause_turn", "content": [{"type": "text", "text": "Hm."}, searched]}
    done = {**message, "stop_reason": "end_turn", "content": [{"type": "text", "text": "Well."}]}
    with ANTHROPIC.server([raw(paused), raw(done), text("Very well.")]) as server:
        async with ANTHROPIC.at(server) as provider:
            first = await provider.ask(ModelRequest(messages=hello()))
            second = await provider.ask(ModelRequest(messages=[*hello(), first.message()]))
            await provider.ask(ModelRequest(messages=[*hello(), second.message()]))

    last = [request.body["messages"][-1]["role"] for request in server.requests]
    assert last == ["user", "assistant", "user"]


ODD_CALLS = {
    "cut off": ToolCall(id="c1", name="weather", arguments_json='{"city": "Ul'),
    "not an object": ToolCall(id="c1", name="weather", arguments_json="[1, 2]"),
    "nothing": ToolCall(id="c1", name="weather", arguments_json=""),
    "no number": ToolCall(id="c1", name="weather", arguments_json='{"days": NaN, "x": 1e999}'),
    "half a character": ToolCall(id="c1", name="weather", arguments_json='{"city": "\\ud800"}'),
    "deep": ToolCall(id="c1", name="weather", arguments_json='{"a":' * 500 + "1" + "}" * 500),
    "long id": ToolCall(id="call_" + "x" * 500, name="weather", arguments_json="{}"),
    "odd id": ToolCall(id="call 1/ä:\ud800\x00", name="weather", arguments_json="{}"),
    "no id": ToolCall(id="", name="weather", arguments_json="{}"),
    "no name": ToolCall(id="c1", name="", arguments_json="{}"),
    "odd name": ToolCall(id="c1", name="no such\ntool " + "x" * 300, arguments_json="{}"),
}


@every_adapter
@pytest.mark.parametrize("call", ODD_CALLS.values(), ids=ODD_CALLS)
async def test_a_call_with_anything_in_it_can_be_sent_again(subject: Subject, call: ToolCall) -> None:
    history = [*hello(), AssistantMessage(calls=(call,)), answered([call], "It did not work.")]

    body = await _sent(subject, history)

    assert "It did not work." in json.dumps(body)


@every_adapter
async def test_ids_that_come_twice_go_out_once(subject: Subject) -> None:
    call = ToolCall(id="call_0", name="weather", arguments_json="{}")
    turn: list[Message] = [AssistantMessage(calls=(call, call)), answered([call, call])]

    body = json.dumps(await _sent(subject, [*hello(), *turn, *turn, *hello("And?")]))

    assert body.count('"weather"') >= 4  # Four calls, and a definition of their tool.


@every_adapter
async def test_what_a_model_said_elsewhere_is_not_taken_for_this_apis_words(subject: Subject) -> None:
    other = Native(format="something_else", items=({"role": "assistant", "content": "Other words."},))
    history = [*hello(), AssistantMessage(text="My words.", native=other), *hello("Go on.")]

    said = json.dumps(await _sent(subject, history))

    assert "My words." in said
    assert "Other words." not in said


@every_adapter
@pytest.mark.parametrize("first", [True, False], ids=["speaks first", "speaks last"])
async def test_a_model_may_have_spoken_first_or_last(subject: Subject, first: bool) -> None:
    said = AssistantMessage(text="Good morning.")

    body = await _sent(subject, [said, *hello()] if first else [*hello(), said])

    assert "Good morning." in json.dumps(body)


@every_adapter
@pytest.mark.parametrize("words", ["", " \n", "\x00", "half \ud83d of it", "\udfff", "x" * 2_000_000, "\u202e\u200b"])
async def test_words_of_any_kind_arrive(subject: Subject, words: str) -> None:
    call = ToolCall(id="c1", name="weather", arguments_json="{}")
    history: list[Message] = [
        UserMessage(text=words),
        AssistantMessage(text=words, calls=(call,)),
        answered([call], words),
        AssistantMessage(text=words),
        UserMessage(text=words),
        UserMessage(text=f"{words} And the last of them."),
    ]

    body = json.dumps(await _sent(subject, history))

    assert "And the last of them." in body
    assert "weather" in body


@every_adapter
@both_ways
async def test_half_a_character_in_a_result_can_be_stored_and_sent_again(subject: Subject, way: Way) -> None:
    answer = text_and_calls("Half \ud83d of it. \x00", ("weather", '{"city": "\\ud83d"}', "a_1"))
    with subject.server([answer, text("Fine.")]) as server:
        async with subject.at(server) as provider:
            reply = await way(provider, ModelRequest(messages=hello(), tools=TOOLS))
            history = saved([*hello(), reply.message(), answered(reply.calls)])
            await way(provider, ModelRequest(messages=history, tools=TOOLS))

    assert reply.text == "Half ? of it. \x00"


texts = st.text(alphabet=st.characters(exclude_categories=()), max_size=20)
ids = st.one_of(st.sampled_from(["call_0", "call_1", "handrail-x-0"]), texts)
arguments = st.one_of(
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3).map(json.dumps), texts
)
calls = st.lists(
    st.builds(
        ToolCall,
        id=ids,
        name=st.sampled_from(["weather", "wetter größe", "gone.tool", ""]) | texts,
        arguments_json=arguments,
    ),
    max_size=3,
).map(tuple)
outputs = st.one_of(texts, st.none(), st.builds(lambda one: Failure(code="x", message=one), texts))


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Any conversation in which every call is answered."""
    history: list[Message] = []
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            history.append(UserMessage(text=draw(texts)))
            continue
        made = draw(calls)
        history.append(AssistantMessage(text=draw(texts), calls=made))
        if made:
            results = [draw(outputs) for _ in made]
            history.append(
                ToolMessage(
                    results=tuple(
                        ToolResult(error=one, call_id=call.id, tool_name=call.name)
                        if isinstance(one, Failure)
                        else ToolResult(output=one, call_id=call.id, tool_name=call.name)
                        for one, call in zip(results, made, strict=True)
                    )
                )
            )
    return [*history, UserMessage(text=draw(texts))]


@every_adapter
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(history=histories())
async def test_any_conversation_is_one_that_the_strict_server_takes(subject: Subject, history: list[Message]) -> None:
    await _sent(subject, history)


async def test_a_native_message_of_a_server_that_writes_no_json_is_rendered_as_text() -> None:
    with CHAT.server([tool_calls(("weather", '{"city": ', "c1")), text("Sorry.")]) as server:
        async with CHAT.at(server) as provider:
            reply = await provider.ask(ModelRequest(messages=hello(), tools=TOOLS))
            await provider.ask(ModelRequest(messages=[*hello(), reply.message(), answered(reply.calls)], tools=TOOLS))

    (call,) = server.requests[1].body["messages"][1]["tool_calls"]
    assert reply.calls[0].arguments_json == '{"city": '
    assert call["function"]["arguments"] == "{}"


@pytest.mark.timeout(20)
async def test_thousands_of_equal_ids_take_no_time() -> None:
    calls = (ToolCall(id="call_0", name="weather", arguments_json='{"city": "Ulm"}'),) * 40_000
    messages = (*hello(), AssistantMessage(calls=calls), answered(calls))
    with CHAT.server([]) as server:
        async with CHAT.at(server) as provider:
            assert provider.adapter.build_request(ModelRequest(messages=messages, tools=TOOLS))
