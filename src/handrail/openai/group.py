"""A dict of tool classes with their definitions, for the sync and the async group."""

from collections.abc import Sequence
from textwrap import indent
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, cast, overload

from typing_extensions import TypeVar

from handrail.core.text import encodable
from handrail.define.facade_results import StandardToolCall, ToolCallFailure, build_failure
from handrail.define.llm_function_tool import Api, FunctionToolModel

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionToolParam
    from openai.types.responses import FunctionToolParam

ModelT = TypeVar("ModelT", bound=FunctionToolModel[Any, Any])


class ToolClasses(dict[str, type[ModelT]], Generic[ModelT]):
    """Tool classes by their names."""

    @property
    def tool_names(self) -> list[str]:
        """The names, in the order in which the tools were added."""
        return [tool.model_tool_name() for tool in self.values()]

    @property
    def tool_classes(self) -> list[type[ModelT]]:
        """The classes, in the order in which they were added."""
        return list(self.values())

    @overload
    def tool_definitions(self, api: Literal["responses"]) -> "list[FunctionToolParam]": ...
    @overload
    def tool_definitions(self, api: Literal["chat.completions"]) -> "list[ChatCompletionToolParam]": ...
    def tool_definitions(self, api: Api) -> Any:
        """The definitions, for `tools=` of a request."""
        return [tool.model_tool_definition(cast(Any, api)) for tool in self.values()]

    @classmethod
    def from_list(cls, tools: Sequence[type[ModelT]]) -> Self:
        """Build a group from classes."""
        return cls({tool.model_tool_name(): tool for tool in tools})

    def __contains__(self, item: object) -> bool:
        if isinstance(item, type) and issubclass(item, FunctionToolModel):
            return super().__contains__(cast(type[ModelT], item).model_tool_name())
        return super().__contains__(cast(object, item))

    def pretty_definition(self, api: Api) -> str:
        """Format the definitions as text, for debugging."""
        definitions = [tool.model_tool_pretty_definition(api) for tool in self.values()]
        lines = indent(",\n".join(definitions), " " * 4)
        return f"{type(self).__name__}([\n{lines}\n])"


def build_not_found(call: StandardToolCall) -> ToolCallFailure:
    """Build the result of a call to a tool that is not in the group."""
    return build_failure(call, "invalid_name", encodable(f"Function `{call.name}` not found."))
