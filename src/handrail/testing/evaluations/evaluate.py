"""Sends each of a fixed set of prompts to a provider once, with the tools of a bank, and scores the calls."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Struct

from handrail.core.tool import Tool
from handrail.core.values import ToolCall
from handrail.define.function import tool
from handrail.errors import ProviderError
from handrail.providers.messages import UserMessage
from handrail.providers.provider import ModelRequest, Provider

Account = Literal["current", "savings"]


@tool(read_only=True)
async def get_balance(account: Account) -> str:
    """Look up the balance of one of the customer's accounts: how much money is in it.

    Args:
        account: Which account.
    """
    return ""


@tool
async def transfer(to: str, amount: int) -> str:
    """Transfer or send money to a person.

    Args:
        to: The name of the person who gets the money.
        amount: How much, in whole euros.
    """
    return ""


@tool(read_only=True)
async def get_order_status(order_id: str) -> str:
    """Look up where an order or a parcel is.

    Args:
        order_id: The number of the order, such as A-17.
    """
    return ""


@tool
async def hand_over(reason: str) -> str:
    """Hand the conversation over to a human employee.

    Args:
        reason: Why, in a few words.
    """
    return ""


@tool
async def block_card(card: Literal["debit", "credit"]) -> str:
    """Block a bank card that was lost or stolen.

    Args:
        card: Which card.
    """
    return ""


@tool(read_only=True)
async def find_branch(city: str) -> str:
    """Find the nearest branch of the bank and its opening hours.

    Args:
        city: The city to look in.
    """
    return ""


@tool(read_only=True)
async def list_transactions(account: Account, days: int) -> str:
    """List the recent transactions and payments of an account.

    Args:
        account: Which account.
        days: How many days to look back.
    """
    return ""


@tool(read_only=True)
async def get_exchange_rate(currency: Literal["USD", "GBP", "CHF", "JPY"]) -> str:
    """Look up the exchange rate of the euro to another currency.

    Args:
        currency: The other currency.
    """
    return ""


TOOLS: Final[tuple[Tool[..., object], ...]] = (
    get_balance,
    transfer,
    get_order_status,
    hand_over,
    block_card,
    find_branch,
    list_transactions,
    get_exchange_rate,
)


INSTRUCTIONS: Final = (
    "You are the agent of a bank. Call a tool when the customer wants something that a tool does; else just answer."
)


class Prompt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A customer's message and the expected call."""

    message: str
    tool: str | None
    """The expected tool; None if no call is expected."""
    arguments: Mapping[str, Any]
    """The expected arguments; None matches any value."""
    held_out: bool
    """Whether it was written before the embedded provider, and not used to tune it."""


class Score(Struct, frozen=True, kw_only=True):
    """A provider's calls for one prompt, and whether they are right."""

    prompt: Prompt
    calls: tuple[ToolCall, ...]
    error: str = ""
    """Set if the provider failed; the prompt then counts as wrong."""

    @property
    def has_right_tool(self) -> bool:
        """Whether exactly the expected tool was called, or none if none is expected."""
        names = [call.name for call in self.calls]
        return not self.error and names == ([] if self.prompt.tool is None else [self.prompt.tool])

    @property
    def has_right_arguments(self) -> bool:
        """Whether the expected tool was called with the expected arguments."""
        return (
            self.has_right_tool
            and self.prompt.tool is not None
            and _has_arguments(self.calls[0], self.prompt.arguments)
        )

    @property
    def is_false_call(self) -> bool:
        """Whether a tool was called although none is expected."""
        return self.prompt.tool is None and bool(self.calls)


class Totals(Struct, frozen=True, kw_only=True):
    """The counts of a group of prompts."""

    prompts: int = 0
    to_call: int = 0
    """Prompts for which a call is expected."""
    right_tool: int = 0
    """Of all prompts: the expected tool was called, or none if none is expected."""
    right_arguments: int = 0
    """Of `to_call`: the expected tool was called with the expected arguments."""
    false_calls: int = 0
    """Of the prompts for which no call is expected: a tool was called."""
    errors: int = 0


class EvaluationReport(Struct, frozen=True, kw_only=True):
    """The scores of a provider; prompts that were held out are counted separately."""

    provider: str
    tuned: Totals
    held_out: Totals
    scores: tuple[Score, ...]


def load_prompts() -> tuple[Prompt, ...]:
    """Load all prompts, in the order of the file."""
    text = files("handrail.testing.evaluations").joinpath("prompts.jsonl").read_bytes()
    return tuple(msgspec.json.decode(line, type=Prompt) for line in text.splitlines() if line)


async def evaluate(
    provider: Provider,
    prompts: Sequence[Prompt],
    *,
    tools: Sequence[Tool[..., Any]] = TOOLS,
    progress: Callable[[Score], object] | None = None,
) -> EvaluationReport:
    """Score a provider. Each prompt is a conversation of its own; no tool is run."""
    scores: list[Score] = []
    for prompt in prompts:
        request = ModelRequest(messages=[UserMessage(text=prompt.message)], instructions=INSTRUCTIONS, tools=tools)
        try:
            score = Score(prompt=prompt, calls=(await provider.ask(request)).calls)
        except ProviderError as error:
            score = Score(prompt=prompt, calls=(), error=f"{error.code}: {error.message}")
        scores.append(score)
        if progress is not None:
            progress(score)
    return EvaluationReport(
        provider=provider.name,
        tuned=_sum_scores(score for score in scores if not score.prompt.held_out),
        held_out=_sum_scores(score for score in scores if score.prompt.held_out),
        scores=tuple(scores),
    )


def _sum_scores(scores: Iterable[Score]) -> Totals:
    group = list(scores)
    return Totals(
        prompts=len(group),
        to_call=sum(score.prompt.tool is not None for score in group),
        right_tool=sum(score.has_right_tool for score in group),
        right_arguments=sum(score.has_right_arguments for score in group),
        false_calls=sum(score.is_false_call for score in group),
        errors=sum(bool(score.error) for score in group),
    )


def _has_arguments(call: ToolCall, expected: Mapping[str, Any]) -> bool:
    try:
        parsed = json.loads(call.arguments_json or "{}")
    except ValueError:
        return False
    if not isinstance(parsed, dict):
        return False
    arguments = cast(dict[str, Any], parsed)
    return arguments.keys() == expected.keys() and all(
        value is None or _is_equal(arguments[name], value) for name, value in expected.items()
    )


def _is_equal(actual: Any, expected: Any) -> bool:
    if isinstance(actual, str) and isinstance(expected, str):
        return actual.strip().casefold() == expected.casefold()
    return type(actual) is type(expected) and actual == expected
