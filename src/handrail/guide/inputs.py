"""What a turn reads before it plans: variables, choices of parameters, earlier results, and the customer's messages."""

import asyncio
import inspect
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from handrail.chat.turn import DROPPED_OUTPUT, TurnState
from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.text import compact_json
from handrail.errors import ConfigError
from handrail.guide.checking import normalize_text
from handrail.guide.definition import Guide, Variable
from handrail.guide.parameters import GuidedTool, resolve_choices
from handrail.providers.messages import ToolMessage, UserMessage

_READ_TIMEOUT: Final = 10.0


class VariableReader:
    """Reads the variables of one session, and caches each for its `fresh_for`."""

    def __init__(self) -> None:
        self._cache: dict[str, tuple[float, Any]] = {}

    async def read(self, variables: Sequence[Variable], context: ToolContext[Any]) -> dict[str, Any]:
        """Return the values by name; a variable that cannot be read is logged and left out."""
        found: dict[str, Any] = {}
        for one in variables:
            if one.read is None:
                found[one.name] = one.value
                continue
            until, value = self._cache.get(one.name, (0.0, None))
            if time.monotonic() >= until:
                try:
                    value = await _read_variable(one, context)
                except Exception as error:  # the developer's code; the turn continues without the value
                    log.error("the variable %s could not be read", one.name, exc_info=error)
                    continue
                self._cache[one.name] = (time.monotonic() + one.fresh_for, value)
            found[one.name] = value
        return found


async def _read_variable(variable: Variable, context: ToolContext[Any]) -> Any:
    assert variable.read is not None
    async with asyncio.timeout(_READ_TIMEOUT):
        value: Any = variable.read(context)
        if inspect.isawaitable(value):
            value = await value
    compact_json(value)  # Raises unless it is JSON: it becomes part of a prompt.
    return value


class JudgeInputs(Struct, frozen=True, kw_only=True):
    """What every request to the judge in a turn contains."""

    variables: Mapping[str, Any]
    choices: Mapping[str, Mapping[str, Sequence[Any]] | None]
    """The choices of parameters, by tool; None if they could not be read."""


class TurnInputs:
    """Reads the inputs of one turn, each at most once."""

    def __init__(self, guide: Guide, state: TurnState, variables: VariableReader) -> None:
        self._guide = guide
        self._state = state
        self._variables = variables
        self._judge_inputs: JudgeInputs | None = None
        self._known_tools: frozenset[str] | None = None
        self._customer_texts: tuple[str, ...] | None = None

    async def read(self) -> JudgeInputs:
        """Read the variables and the choices."""
        if self._judge_inputs is None:
            context = self._state.context
            choices: dict[str, Any] = {}
            for name, tool in self._guide.tools.items():
                if tool.options:
                    choices[name] = await _read_choices(tool, context)
            self._judge_inputs = JudgeInputs(
                variables=await self._variables.read(self._guide.variables, context), choices=choices
            )
        return self._judge_inputs

    def list_known_tools(self) -> frozenset[str]:
        """List the tools whose result was in the conversation before this turn planned anything."""
        if self._known_tools is None:
            self._known_tools = frozenset(
                one.tool_name
                for message in self._state.conversation.messages
                if isinstance(message, ToolMessage)
                for one in message.results
                if one.ok and one.output != DROPPED_OUTPUT
            )
        return self._known_tools

    def is_customers_word(self, text: str) -> bool:
        """Whether the customer wrote this text, apart from case and punctuation."""
        if self._customer_texts is None:
            messages = self._state.conversation.messages
            self._customer_texts = tuple(normalize_text(one.text) for one in messages if isinstance(one, UserMessage))
        words = normalize_text(text)
        return any(words in one for one in self._customer_texts)


async def _read_choices(tool: GuidedTool, context: ToolContext[Any]) -> dict[str, tuple[Any, ...]] | None:
    try:
        return await resolve_choices(tool, context)
    except ConfigError:  # Already logged; without its choices the tool cannot run.
        return None
