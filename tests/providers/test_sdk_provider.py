"""Every adapter through its real SDK against its strict server: words, calls, endings, choices, whole and streamed."""

import json
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from handrail import ConfigError, ToolCall, ToolResult
from handrail.providers import AssistantMessage, ModelRequest, Prices, ToolChoice, ToolMessage, UserMessage
from handrail.testing.servers import ScriptedUsage, raw, refusal, text, text_and_calls, tool_calls, truncated
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
    odd,
    streamed,
    weather,
    whole,
)


@every_adapter
@both_ways
async def test_a_model_responds_with_text(subject: Subject, way: Way) -> None:
    with subject.server([text("Good morning. ☀️", id="r-1")]) as server:
        async with subject.at(server) as provider:
            reply = await way(provider, ModelRequest(messages=hello(), instructions="Be polite."))

    assert (reply.text, reply.calls, reply.finish_reason) == ("Good morning. ☀️", (), "stop")
    assert (reply.id, reply.model) == ("r-1", "test-model")
    assert "Be polite." in json.dumps(server.requests[0].body)


@every_adapter
@both_ways
async def test_a_call_gets_a_result_and_the_model_continues(subject: Subject, way: Way) -> None:
    script = [text_and_calls("Let me look.", ("weather", {"city": "Ulm"})), text("It is sunny.")]
    with subject.server(script) as server:
        async with subject.at(server) as provider:
            first = await way(provider, ModelRequest(messages=hello(), tools=TOOLS))
            history = [*hello(), first.message(), answered(first.calls)]
            last = await way(provider, ModelRequest(messages=history, tools=TOOLS))

    (call,) = first.calls
    assert (first.text, first.finish_reason) == ("Let me look.", "tool_calls")
    assert (call.name, json.loads(call.arguments_json)) == ("weather", {"city": "Ulm"})
    assert (last.text, last.finish_reason) == ("It is sunny.", "stop")


@every_adapter
@both_ways
async def test_parallel_calls_come_in_their_order_in_the_terms_of_the_tools(subject: Subject, way: Way) -> None:
    with subject.server([text("x")]) as server:
        async with subject.at(server) as provider:
            await provider.ask(ModelRequest(messages=hello(), tools=TOOLS))
    sent_as = next(name for name in _names(server.requests[0].body) if name != "weather")
    arguments = {"city": "Bern", "days": None} if subject in (CHAT, RESPONSES) else {"city": "Bern"}

    script = [
        tool_calls(("weather", {"city": "Ulm"}), (sent_as, arguments), ("weather", {"city": "Rom"})),
        text("Done."),
    ]
    with subject.server(script) as server:
        async with subject.at(server) as provider:
            reply = await way(provider, ModelRequest(messages=hello(), tools=TOOLS))
            history = [*hello(), reply.message(), answered(reply.calls)]
            await way(provider, ModelRequest(messages=history, tools=TOOLS))

    assert [call.name for call in reply.calls] == ["weather", "wetter größe", "weather"]
    assert [json.loads(call.arguments_json)["city"] for call in reply.calls] == ["Ulm", "Bern", "Rom"]
    assert json.loads(reply.calls[1].arguments_json) == {"city": "Bern"}
    assert len({call.id for call in reply.calls}) == 3


def _names(body: dict[str, Any]) -> list[str]:
    tools = body["tools"]
    if "functionDeclarations" in tools[0]:
        tools = tools[0]["functionDeclarations"]
    return [tool.get("function", tool)["name"] for tool in tools]


@every_adapter
async def test_a_stream_says_what_the_whole_reply_says(subject: Subject) -> None:
    for answer in (
        text("One, two, three."),
        text_and_calls("Let me look.", ("weather", {"city": "Ulm"}, "a_1"), ("weather", {"city": "Bern"}, "a_2")),
        truncated("I would"),
        refusal("I must not."),
        text(""),
        tool_calls(("weather", {}, "a_1")),
    ):
        with subject.server([_numbered(answer)] * 2) as server:
            async with subject.at(server) as provider:
                request = ModelRequest(messages=hello(), tools=TOOLS)
                one, other = await whole(provider, request), await streamed(provider, request)

        assert _alike(one) == _alike(other)


def _numbered(answer: Any) -> Any:
    return replace(answer, id="r-1", usage=ScriptedUsage(input=12, output=7, cached=3))


def _alike(reply: Any) -> Any:
    """Without the API's own words, whose items have an id of their own in every reply."""
    return structs.replace(reply, native=None, calls=tuple(structs.replace(call, item_id=None) for call in reply.calls))


STOPS = [(subject, theirs, ours) for subject in ALL for theirs, ours in subject.stops.items()]


@pytest.mark.parametrize(("subject", "theirs", "ours"), STOPS, ids=lambda one: getattr(one, "name", one))
@both_ways
async def test_every_stop_reason_has_its_name(subject: Subject, theirs: str, ours: str, way: Way) -> None:
    with subject.server([text("Some words", stop=theirs)]) as server:
        async with subject.at(server) as provider:
            reply = await way(provider, ModelRequest(messages=hello()))

    assert (reply.finish_reason, reply.text) == (ours, "Some words")


@every_adapter
@both_ways
async def test_a_refusal_is_reported_with_its_words_and_the_conversation_continues(subject: Subject, way: Way) -> None:
    with subject.server([refusal("I must not say that."), text("Gladly.")]) as server:
        async with subject.at(server) as provider:
            reply = await way(provider, ModelRequest(messages=hello()))
            history = [*hello(), reply.message(), UserMessage(text="Something else, then.")]
            after = await way(provider, ModelRequest(messages=history))

    # Google's SDK keeps the reason to itself.
    words = "" if subject is GEMINI else "I must not say that."
    assert (reply.finish_reason, reply.text, after.text) == ("refusal", words, "Gladly.")


async def test_a_prompt_that_gemini_blocks_is_a_refusal() -> None:
    blocked = {"promptFeedback": {"blockReason": "SAFETY", "blockReasonMessage": "No."}, "usageMetadata": {}}
    with GEMINI.server([raw(blocked)]) as server:
        async with GEMINI.at(server) as provider:
            reply = await provider.ask(ModelRequest(messages=hello()))

    assert (reply.finish_reason, reply.text, reply.native) == ("refusal", "No.", None)


@every_adapter
@both_ways
async def test_a_call_that_was_cut_off_never_parses_and_can_still_get_a_result(subject: Subject, way: Way) -> None:
    half = '{"city": "Ul' if subject.sends_text else '{"city":"Ulm"}'
    with subject.server([truncated("Let me", ("weather", half)), text("Sorry.")]) as server:
        async with subject.at(server) as provider:
            reply = await way(provider, ModelRequest(messages=hello(), tools=TOOLS))
            history = [*hello(), reply.message(), answered(reply.calls)]
            await way(provider, ModelRequest(messages=history, tools=TOOLS))

    assert reply.finish_reason == "length"
    for call in reply.calls:
        with pytest.raises(json.JSONDecodeError):
            json.loads(call.arguments_json)


@every_adapter
@both_ways
async def test_usage_and_cost_are_counted_with_the_cache(subject: Subject, way: Way) -> None:
    prices = Prices(input=2.0, output=10.0, cached=0.5)
    with subject.server([text("Hi.", usage=ScriptedUsage(input=1_000, output=500, cached=400))]) as server:
        async with subject.at(server, prices=prices) as provider:
            reply = await way(provider, ModelRequest(messages=hello()))

    assert (reply.usage.input, reply.usage.output, reply.usage.cached) == (1_000, 500, 400)
    assert reply.usage.cost == pytest.approx((600 * 2 + 400 * 0.5 + 500 * 10) / 1e6)


@every_adapter
@both_ways
async def test_a_number_of_tokens_that_no_response_can_have_used_is_not_counted(subject: Subject, way: Way) -> None:
    prices = Prices(input=2, output=10)
    with subject.server([text("Hi.", usage=ScriptedUsage(input=10**400, output=500))]) as server:
        async with subject.at(server, prices=prices) as provider:
            reply = await way(provider, ModelRequest(messages=hello()))

    assert (reply.usage.output, reply.usage.cost) == (500, pytest.approx(500 * 10 / 1e6))


async def test_thoughts_are_output() -> None:
    usage = {"promptTokenCount": 5, "candidatesTokenCount": 3, "thoughtsTokenCount": 20}
    body = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}, "finishReason": "STOP"}]}
    with GEMINI.server([raw({**body, "usageMetadata": usage})]) as server:
        async with GEMINI.at(server) as provider:
            reply = await provider.ask(ModelRequest(messages=hello()))

    assert reply.usage.output == 23
    assert reply.usage.cost is None


CHOICES = {
    "auto": ToolChoice(),
    "none": ToolChoice(mode="none"),
    "required": ToolChoice(mode="required"),
    "one": ToolChoice(tool="wetter größe"),
    "some": ToolChoice(allowed=("wetter größe",)),
    "one of some": ToolChoice(mode="required", allowed=("weather",)),
}


@every_adapter
@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
async def test_a_choice_reaches_the_api_in_its_own_words(subject: Subject, choice: ToolChoice) -> None:
    with subject.server([text("Fine.")]) as server:
        async with subject.at(server) as provider:
            await provider.ask(ModelRequest(messages=hello(), tools=TOOLS, tool_choice=choice))

    body = server.requests[0].body
    said = body.get("tool_choice", body.get("toolConfig"))
    leaves_out = subject in (ANTHROPIC, CHAT)
    assert (said is None) == (choice == ToolChoice() or (leaves_out and choice == CHOICES["some"]))
    assert len(_names(body)) == (1 if leaves_out and choice.allowed else 2)


def test_openais_own_servers_get_all_tools_and_the_limit() -> None:
    provider = CHAT.adapter("m", api_key="test")

    body = provider.adapter.build_request(
        ModelRequest(messages=hello(), tools=TOOLS, tool_choice=CHOICES["one of some"], max_tokens=7)
    ).body

    assert len(body["tools"]) == 2
    assert body["tool_choice"]["allowed_tools"]["tools"] == [{"type": "function", "function": {"name": "weather"}}]
    assert body["max_completion_tokens"] == 7


@every_adapter
@pytest.mark.parametrize("choice", [ToolChoice(tool="nobody"), ToolChoice(allowed=("nobody",))], ids=["one", "some"])
async def test_a_choice_of_a_tool_that_is_not_there_is_the_callers_mistake(
    subject: Subject, choice: ToolChoice
) -> None:
    with subject.server() as server:
        async with subject.at(server) as provider:
            with pytest.raises(ConfigError, match="nobody"):
                await provider.ask(ModelRequest(messages=hello(), tools=TOOLS, tool_choice=choice))

    assert server.requests == []


@every_adapter
async def test_a_choice_without_tools_is_left_out_unless_it_must_be_obeyed(subject: Subject) -> None:
    with subject.server([text("Fine.")]) as server:
        async with subject.at(server) as provider:
            await provider.ask(ModelRequest(messages=hello(), tool_choice=ToolChoice(mode="none")))
            with pytest.raises(ConfigError, match="without tools"):
                await provider.ask(ModelRequest(messages=hello(), tool_choice=ToolChoice(mode="required")))


@every_adapter
async def test_the_same_tools_give_the_same_bytes(subject: Subject) -> None:
    with subject.server([text("One."), text("Two."), text("Three.")]) as server:
        async with subject.at(server) as provider, subject.at(server) as another:
            await provider.ask(ModelRequest(messages=hello(), tools=TOOLS))
            await provider.ask(
                ModelRequest(messages=hello("Another question."), tools=tuple(TOOLS), instructions="Be.")
            )
            await another.ask(ModelRequest(messages=hello(), tools=[*TOOLS], tool_choice=ToolChoice(mode="none")))

    first, *others = [json.dumps(request.body["tools"]) for request in server.requests]
    assert others == [first, first]


@every_adapter
async def test_other_tools_give_other_definitions(subject: Subject) -> None:
    with subject.server([text("One."), text("Two."), text("Three.")]) as server:
        async with subject.at(server) as provider:
            for tools in ([weather], [odd], []):
                await provider.ask(ModelRequest(messages=hello(), tools=tools))

    sent = [request.body.get("tools") for request in server.requests]
    assert sent[0] != sent[1]
    assert not sent[2]


@every_adapter
async def test_the_length_of_a_reply_is_limited_by_the_request_or_by_the_adapter(subject: Subject) -> None:
    with subject.server([text("One."), text("Two.")]) as server:
        async with subject.at(server, max_tokens=77) as provider:
            await provider.ask(ModelRequest(messages=hello()))
            await provider.ask(ModelRequest(messages=hello(), max_tokens=33))

    sent = [json.dumps(request.body) for request in server.requests]
    assert "77" in sent[0]
    assert "33" in sent[1]


@every_adapter
async def test_options_of_the_api_go_with_every_request(subject: Subject) -> None:
    with subject.server([text("One.")]) as server:
        option = {"stop_sequences": ["-42-"]} if subject in (ANTHROPIC, GEMINI) else {"service_tier": "-42-"}
        async with subject.at(server, options=option) as provider:
            await provider.ask(ModelRequest(messages=hello()))

    assert "-42-" in json.dumps(server.requests[0].body)


@every_adapter
async def test_a_name_says_the_api_and_the_model(subject: Subject) -> None:
    with subject.server() as server:
        async with subject.at(server) as provider:
            assert provider.name == f"{subject.label}:test-model"


@every_adapter
@pytest.mark.parametrize(
    "wrong", ["no answer", "nothing after", "another's answer", "answer to nothing", "no messages"]
)
async def test_a_conversation_that_no_api_takes_is_not_sent(subject: Subject, wrong: str) -> None:
    call = ToolCall(id="c1", name="weather", arguments_json="{}")
    asked = AssistantMessage(calls=(call,))
    other = ToolMessage(results=(ToolResult(output="x", call_id="c2", tool_name="weather"),))
    histories: dict[str, list[Any]] = {
        "no answer": [*hello(), asked, UserMessage(text="And?")],
        "nothing after": [*hello(), asked],
        "another's answer": [*hello(), asked, other],
        "answer to nothing": [*hello(), other],
        "no messages": [],
    }
    with subject.server() as server:
        async with subject.at(server) as provider:
            with pytest.raises(ConfigError, match=r"[Mm]essage"):
                await provider.ask(ModelRequest(messages=histories[wrong]))

    assert server.requests == []
