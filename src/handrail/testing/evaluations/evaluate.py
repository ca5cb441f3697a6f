"""Ask a provider each prompt once, and count what it called."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from msgspec import Struct

from handrail.core.tool import Tool
from handrail.core.values import ToolCall
from handrail.errors import ProviderError
from handrail.providers.messages import UserMessage
from handrail.providers.provider import ModelRequest, Provider
from handrail.testing.evaluations.prompts import Prompt
from handrail.testing.evaluations.tools import TOOLS

INSTRUCTIONS: Final = (
    "You work at the desk of a bank. Call a tool when the customer wants something that a tool does; else just answer."
)


class Verdict(Struct, frozen=True, kw_only=True):
    """What a provider made of one prompt."""

    prompt: Prompt
    calls: tuple[ToolCall, ...]
    error: str = ""
    """Set where the provider failed; such a prompt counts as wrong."""

    @property
    def right_tool(self) -> bool:
        """Whether exactly the expected tool was called, or nothing where nothing should be."""
        called = [call.name for call in self.calls]
        return not self.error and called == ([] if self.prompt.tool is None else [self.prompt.tool])

    @property
    def right_arguments(self) -> bool:
        """Whether a call was right in its tool and in every argument."""
        return self.right_tool and self.prompt.tool is not None and _fits(self.calls[0], self.prompt.arguments)

    @property
    def false_call(self) -> bool:
        """Whether something was called where nothing should be."""
        return self.prompt.tool is None and bool(self.calls)


class Score(Struct, frozen=True, kw_only=True):
    """The figures of a group of prompts."""

    prompts: int = 0
    to_call: int = 0
    """Prompts that should lead to a call; the others should not."""
    right_tool: int = 0
    """Of all prompts: the right tool, or rightly none."""
    right_arguments: int = 0
    """Of `to_call`: the right tool with the right arguments."""
    false_calls: int = 0
    """Of the prompts that should not lead to a call."""
    errors: int = 0


class Scores(Struct, frozen=True, kw_only=True):
    """What a provider reached, apart for the prompts that were held out."""

    provider: str
    tuned: Score
    held_out: Score
    verdicts: tuple[Verdict, ...]


async def evaluate(
    provider: Provider,
    prompts: Sequence[Prompt],
    *,
    tools: Sequence[Tool[..., Any]] = TOOLS,
    progress: Callable[[Verdict], object] | None = None,
) -> Scores:
    """The scores of a provider. Each prompt is a conversation of its own; no tool is run."""
    verdicts: list[Verdict] = []
    for prompt in prompts:
        request = ModelRequest(messages=[UserMessage(text=prompt.say)], instructions=INSTRUCTIONS, tools=tools)
        try:
            verdict = Verdict(prompt=prompt, calls=(await provider.ask(request)).calls)
        except ProviderError as error:
            verdict = Verdict(prompt=prompt, calls=(), error=f"{error.code}: {error.message}")
        verdicts.append(verdict)
        if progress is not None:
            progress(verdict)
    return Scores(
        provider=provider.name,
        tuned=_score(one for one in verdicts if not one.prompt.held_out),
        held_out=_score(one for one in verdicts if one.prompt.held_out),
        verdicts=tuple(verdicts),
    )


def _score(verdicts: Iterable[Verdict]) -> Score:
    group = list(verdicts)
    return Score(
        prompts=len(group),
        to_call=sum(one.prompt.tool is not None for one in group),
        right_tool=sum(one.right_tool for one in group),
        right_arguments=sum(one.right_arguments for one in group),
        false_calls=sum(one.false_call for one in group),
        errors=sum(bool(one.error) for one in group),
    )


def _fits(call: ToolCall, expected: Mapping[str, Any]) -> bool:
    try:
        given = json.loads(call.arguments_json or "{}")
    except ValueError:
        return False
    if not isinstance(given, dict):
        return False
    arguments = cast(dict[str, Any], given)
    return arguments.keys() == expected.keys() and all(
        value is None or _same(arguments[name], value) for name, value in expected.items()
    )


def _same(given: Any, expected: Any) -> bool:
    if isinstance(given, str) and isinstance(expected, str):
        return given.strip().casefold() == expected.casefold()
    return type(given) is type(expected) and given == expected
