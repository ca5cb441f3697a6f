"""A provider that answers from a script, and is as strict about a history as the real ones are."""

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TypeAlias

from msgspec import structs

from handrail.core.values import ToolCall
from handrail.errors import ProviderDownError, ProviderError
from handrail.formats.incoming import unfinished
from handrail.providers.messages import AssistantMessage, Message, ToolMessage, UserMessage
from handrail.providers.provider import FinishReason, ModelRequest, ModelResponse, StreamEvent, TextDelta, Usage
from handrail.testing.servers import script

Line: TypeAlias = str | script.Reply | ModelResponse | BaseException
Scripted: TypeAlias = Line | Callable[[ModelRequest], Line]


class ScriptedProvider:
    """Answers each request with the next line of a script, and keeps the requests.

    A line is a text, a reply of `handrail.testing.servers` (`tool_calls(…)`, `truncated(…)`), a
    `ModelResponse`, an exception to raise, or a function of the request that gives one of these.
    """

    name = "scripted:model"

    def __init__(self, lines: Iterable[Scripted]) -> None:
        self._lines = list(lines)
        self._used = 0
        self.requests: list[ModelRequest] = []

    async def ask(self, request: ModelRequest) -> ModelResponse:
        """The next line, whole."""
        *_, reply = [piece async for piece in self.stream(request)]
        assert isinstance(reply, ModelResponse)
        return reply

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        """The next line, word by word."""
        check(request)
        self.requests.append(request)
        if self._used == len(self._lines):
            raise AssertionError(f"The script has {len(self._lines)} lines, and this is request {self._used + 1}.")
        line = self._lines[self._used]
        self._used += 1
        if not isinstance(line, str | script.Reply | ModelResponse | BaseException):
            line = line(request)
        if isinstance(line, BaseException):
            raise line
        reply, cut = self._reply(line)
        words = _words(reply.text)
        for word in words[:cut]:
            yield TextDelta(text=word)
        if cut is not None:
            raise ProviderDownError("The stream was cut, as the script says.")
        yield reply

    def finish(self) -> None:
        """Raise if something of the script was not asked for."""
        if left := self._lines[self._used :]:
            raise AssertionError(f"{len(left)} of {len(self._lines)} scripted replies were not asked for: {left!r}")

    def _reply(self, line: str | script.Reply | ModelResponse) -> tuple[ModelResponse, int | None]:
        if isinstance(line, ModelResponse):
            return line, None
        said = script.text(line) if isinstance(line, str) else line
        response_id = said.id or f"resp_{self._used}"
        made = tuple(
            ToolCall(
                id=call.id or f"call_{self._used}_{number}",
                name=call.name,
                arguments_json=call.arguments,
                response_id=response_id,
            )
            for number, call in enumerate(said.calls, start=1)
        )
        if said.truncated and made:
            made = (*made[:-1], structs.replace(made[-1], arguments_json=unfinished(made[-1].arguments_json)))
        usage = Usage(input=said.usage.input, output=said.usage.output, cached=said.usage.cached)
        text = said.text if said.refusal is None else said.refusal
        reply = ModelResponse(
            text=text, calls=made, finish_reason=_finish_reason(said), usage=usage, id=response_id, model="model"
        )
        return reply, said.cut_after


def _finish_reason(said: script.Reply) -> FinishReason:
    if said.refusal is not None:
        return "refusal"
    if said.truncated:
        return "length"
    return "tool_calls" if said.calls else "stop"


def _words(text: str) -> list[str]:
    return [f"{word} " for word in text.split(" ")[:-1]] + [text.split(" ")[-1]] if text else []


def check(request: ModelRequest) -> None:
    """Raise unless every provider would take this history: it ends with something to answer, and every call, under an
    id of its own, is answered in the message after it, in order."""
    messages = list(request.messages)
    if not messages or isinstance(messages[-1], AssistantMessage):
        raise ProviderError("A request ends with what a person or a tool said.", code="bad_request")
    seen: set[str] = set()
    before: Message | None = None
    for message in [*messages, None]:
        asked = [call.id for call in before.calls] if isinstance(before, AssistantMessage) else []
        given = [one.call_id for one in message.results] if isinstance(message, ToolMessage) else []
        if asked != given:
            raise ProviderError(f"The calls {asked} have the answers {given}.", code="bad_request")
        if len(set(asked)) < len(asked) or seen & set(asked):
            raise ProviderError(f"The ids of calls are not unique: {asked}.", code="bad_request")
        if isinstance(message, UserMessage) and not message.text:
            raise ProviderError("A message has a text.", code="bad_request")
        seen |= set(asked)
        before = message
