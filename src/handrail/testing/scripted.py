"""A provider with scripted responses, which checks the history as strictly as real APIs do."""

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TypeAlias

from msgspec import structs

from handrail.core.values import ToolCall
from handrail.errors import ConfigError, ProviderDownError, ProviderError
from handrail.formats.call_parsing import make_unparsable
from handrail.providers.messages import AssistantMessage, Message, ToolMessage, UserMessage
from handrail.providers.provider import FinishReason, ModelRequest, ModelResponse, StreamEvent, TextDelta, Usage
from handrail.testing.servers import script

Line: TypeAlias = str | script.Reply | ModelResponse | BaseException
ScriptedLine: TypeAlias = Line | Callable[[ModelRequest], Line]


class ScriptedProvider:
    """Responds to each request with the next line of a script, and records the requests.

    A line is a text, a reply from `handrail.testing.servers` (`tool_calls(…)`, `truncated(…)`), a `ModelResponse`, an
    exception to raise, or a function that takes the request and returns one of these.
    """

    name = "scripted:model"

    def __init__(self, lines: Iterable[ScriptedLine]) -> None:
        if isinstance(lines, str):
            raise ConfigError("lines must be a list of lines, such as ['Hello.'], got one text.")
        self._lines = list(lines)
        self._used = 0
        self.requests: list[ModelRequest] = []

    async def ask(self, request: ModelRequest) -> ModelResponse:
        """Return the next line as a whole response."""
        *_, response = [event async for event in self.stream(request)]
        assert isinstance(response, ModelResponse)
        return response

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        """Stream the next line word by word."""
        check_history(request)
        self.requests.append(request)
        if self._used == len(self._lines):
            raise AssertionError(f"the script has {len(self._lines)} lines, but this is request {self._used + 1}.")
        line = self._lines[self._used]
        self._used += 1
        if not isinstance(line, str | script.Reply | ModelResponse | BaseException):
            line = line(request)
        if isinstance(line, BaseException):
            raise line
        response, cut = self._build_response(line)
        words = _split_words(response.text)
        for word in words[:cut]:
            yield TextDelta(text=word)
        if cut is not None:
            raise ProviderDownError("the stream was cut off, as scripted.")
        yield response

    def finish(self) -> None:
        """Raise `AssertionError` if lines of the script are unused."""
        if left := self._lines[self._used :]:
            raise AssertionError(f"{len(left)} of {len(self._lines)} scripted lines were not used: {left!r}")

    def _build_response(self, line: str | script.Reply | ModelResponse) -> tuple[ModelResponse, int | None]:
        if isinstance(line, ModelResponse):
            return line, None
        reply = script.text(line) if isinstance(line, str) else line
        response_id = reply.id or f"resp_{self._used}"
        calls = tuple(
            ToolCall(
                id=call.id or f"call_{self._used}_{number}",
                name=call.name,
                arguments_json=call.arguments,
                response_id=response_id,
            )
            for number, call in enumerate(reply.calls, start=1)
        )
        if reply.truncated and calls:
            last = structs.replace(calls[-1], arguments_json=make_unparsable(calls[-1].arguments_json))
            calls = (*calls[:-1], last)
        usage = Usage(input=reply.usage.input, output=reply.usage.output, cached=reply.usage.cached)
        text = reply.text if reply.refusal is None else reply.refusal
        reason = _find_finish_reason(reply)
        response = ModelResponse(
            text=text, calls=calls, finish_reason=reason, usage=usage, id=response_id, model="model"
        )
        return response, reply.cut_after


def _find_finish_reason(reply: script.Reply) -> FinishReason:
    if reply.refusal is not None:
        return "refusal"
    if reply.truncated:
        return "length"
    return "tool_calls" if reply.calls else "stop"


def _split_words(text: str) -> list[str]:
    return [f"{word} " for word in text.split(" ")[:-1]] + [text.split(" ")[-1]] if text else []


def check_history(request: ModelRequest) -> None:
    """Raise `ProviderError` unless every API would accept these messages.

    The last one must not be the model's, and every call must have a unique id and a result in the next message.
    """
    messages = list(request.messages)
    if not messages or isinstance(messages[-1], AssistantMessage):
        raise ProviderError("the last message must be a user or a tool message.", code="bad_request")
    seen: set[str] = set()
    before: Message | None = None
    for message in [*messages, None]:
        asked = [call.id for call in before.calls] if isinstance(before, AssistantMessage) else []
        given = [result.call_id for result in message.results] if isinstance(message, ToolMessage) else []
        if asked != given:
            raise ProviderError(
                f"the results of the calls {asked} must follow them in order, got {given}.", code="bad_request"
            )
        if len(set(asked)) < len(asked) or seen & set(asked):
            raise ProviderError(f"call ids must be unique, got {asked}.", code="bad_request")
        if isinstance(message, UserMessage) and not message.text:
            raise ProviderError("a user message must have a text.", code="bad_request")
        seen |= set(asked)
        before = message
