"""Tools for the tests of `define`, written as classes."""

import json
from datetime import date
from enum import Enum
from typing import Any, Literal, get_args

import pydantic

from handrail.define.llm_function_tool import Api
from handrail.openai import core

APIS = get_args(Api)


class book_table(core.LLMFunctionTool[None, None]):
    """Book a table.

    At a place of ours.
    """

    guests: int
    """How many come."""

    place: Literal["hall", "garden"] = "hall"

    def model_tool_handler(self, context: None) -> tuple[str, None]:
        return f"{self.guests} in the {self.place}", None


class Kind(Enum):
    """A kind."""

    RED = "red"
    BLUE = "blue"


class Place(pydantic.BaseModel):
    name: str
    kind: Kind | None = None


class tree(core.LLMFunctionTool):
    """A tree."""

    label: str
    weight: int = 1
    branches: "list[tree]" = []  # noqa: RUF012

    def model_tool_handler(self, context: None) -> tuple[str, None]:
        return self.label, None


class nested(core.LLMFunctionTool):
    model_config = pydantic.ConfigDict(extra="forbid")

    place: Place
    others: list[Place] = []  # noqa: RUF012
    day: date | None = None


def flat(tool: Any, api: Api) -> dict[str, Any]:
    """What a definition says of the function."""
    definition = tool.model_tool_definition(api)
    return definition if api == "responses" else definition["function"]


def parameters(tool: Any, api: Api = "responses") -> dict[str, Any]:
    """The schema of the arguments, as it is sent."""
    return flat(tool, api)["parameters"]


def strict_of(tool: Any) -> Any:
    """The same tool in strict mode."""
    return type(tool.__name__, (tool,), {"__module__": __name__, "model_tool_strict": True})


def sent(tool: Any, arguments: Any) -> Any:
    """The instance that a handler gets for what a model sends."""
    seen: list[Any] = []

    class spy(tool):
        model_tool_custom_name = tool.model_tool_name()

        def model_tool_handler(self, context: None) -> tuple[str, None]:
            seen.append(self)
            return "", None

    call = core.StandardToolCall(id="c", name=tool.model_tool_name(), arguments=json.dumps(arguments))
    answer = spy.model_tool_run_tool_call(call, None)
    assert answer.fail_reason is None, answer.result_content
    return seen[0]
