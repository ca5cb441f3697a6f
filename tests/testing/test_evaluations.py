"""The committed prompts, and how calls are counted."""

import json
from collections.abc import AsyncIterator

import pytest

from handrail import ToolCall
from handrail.errors import ProviderDownError
from handrail.providers import ModelRequest, ModelResponse, StreamEvent
from handrail.testing.evaluations import TOOLS, Prompt, Score, evaluate, load_prompts

PROMPTS = load_prompts()


def test_the_set_is_large_enough_has_a_held_out_part_and_says_nothing_twice() -> None:
    assert len(PROMPTS) >= 60
    assert sum(prompt.held_out for prompt in PROMPTS) >= 20
    assert len({prompt.message.casefold() for prompt in PROMPTS}) == len(PROMPTS)
    for part in (True, False):
        asked = {prompt.tool for prompt in PROMPTS if prompt.held_out is part}
        assert asked == {None, *(tool.name for tool in TOOLS)}


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.message)
def test_what_is_expected_is_a_call_that_the_tool_takes(prompt: Prompt) -> None:
    tools = {tool.name: tool for tool in TOOLS}
    if prompt.tool is None:
        assert prompt.arguments == {}
        return
    arguments = {name: "anything" if value is None else value for name, value in prompt.arguments.items()}
    tools[prompt.tool].parse(json.dumps(arguments))


class Answers:
    """A provider that answers each message as configured."""

    name = "test:answers"

    def __init__(self, answers: dict[str, ModelResponse | Exception]) -> None:
        self._answers = answers

    async def ask(self, request: ModelRequest) -> ModelResponse:
        answer = self._answers.get(request.messages[-1].text, ModelResponse())  # type: ignore[union-attr]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        yield await self.ask(request)


def calls(*named: tuple[str, str]) -> ModelResponse:
    return ModelResponse(calls=tuple(ToolCall(id="c", name=name, arguments_json=text) for name, text in named))


def right(prompt: Prompt) -> ModelResponse:
    if prompt.tool is None:
        return ModelResponse(text="Hello.")
    arguments = {name: "because" if value is None else value for name, value in prompt.arguments.items()}
    return calls((prompt.tool, json.dumps(arguments)))


async def test_a_provider_that_is_always_right_has_full_marks() -> None:
    scores: list[Score] = []

    report = await evaluate(
        Answers({prompt.message: right(prompt) for prompt in PROMPTS}), PROMPTS, progress=scores.append
    )

    assert len(scores) == len(PROMPTS)
    for totals in (report.tuned, report.held_out):
        assert (totals.right_tool, totals.right_arguments) == (totals.prompts, totals.to_call)
        assert (totals.false_calls, totals.errors) == (0, 0)
    assert report.tuned.prompts + report.held_out.prompts == len(PROMPTS)


async def test_a_provider_that_says_nothing_is_right_only_where_nothing_is_to_do() -> None:
    report = await evaluate(Answers({}), PROMPTS)

    assert report.tuned.right_tool == report.tuned.prompts - report.tuned.to_call
    assert report.tuned.right_arguments == 0


SEND = Prompt(message="s", tool="transfer", arguments={"to": "Anna", "amount": 50}, held_out=False)
HELLO = Prompt(message="s", tool=None, arguments={}, held_out=False)
GOOD = '{"to": " anna", "amount": 50}'


@pytest.mark.parametrize(
    ("prompt", "answer", "tool", "arguments", "false"),
    [
        (SEND, calls(("transfer", GOOD)), 1, 1, 0),
        (SEND, calls(("transfer", '{"to": "Anna", "amount": "50"}')), 1, 0, 0),
        (SEND, calls(("transfer", '{"to": "Anna", "amount": 50.0}')), 1, 0, 0),
        (SEND, calls(("transfer", '{"to": "Anna", "amount": 50, "note": ""}')), 1, 0, 0),
        (SEND, calls(("transfer", '{"to": "Anna"}')), 1, 0, 0),
        (SEND, calls(("transfer", '{"to": ')), 1, 0, 0),
        (SEND, calls(("transfer", "[]")), 1, 0, 0),
        (SEND, calls(("get_balance", GOOD)), 0, 0, 0),
        (SEND, calls(("transfer", GOOD), ("transfer", GOOD)), 0, 0, 0),
        (SEND, ProviderDownError("down"), 0, 0, 0),
        (HELLO, ModelResponse(), 1, 0, 0),
        (HELLO, calls(("transfer", GOOD)), 0, 0, 1),
        (HELLO, ProviderDownError("down"), 0, 0, 0),
    ],
)
async def test_a_call_is_counted_for_what_it_is(
    prompt: Prompt, answer: ModelResponse | Exception, tool: int, arguments: int, false: int
) -> None:
    totals = (await evaluate(Answers({"s": answer}), [prompt])).tuned

    assert (totals.right_tool, totals.right_arguments, totals.false_calls) == (tool, arguments, false)
    assert totals.errors == isinstance(answer, Exception)
