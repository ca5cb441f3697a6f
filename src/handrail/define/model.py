"""`LLMFunctionTool`: a Pydantic model whose fields are the arguments of a tool."""

import inspect
import json
import warnings
from collections.abc import Callable
from textwrap import dedent
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, cast, overload

import pydantic
from typing_extensions import TypeVar

from handrail.core.context import ToolContext
from handrail.core.tool import Tool
from handrail.core.values import ToolResult
from handrail.define.toolcall import (
    AnyToolCall,
    StandardToolCall,
    ToolCallFailure,
    ToolCallResult,
    ToolCallSuccess,
    ToolHandlerResult,
    standardize_tool_call,
)
from handrail.errors import ToolDefinitionError, ToolError
from handrail.schema import strict
from handrail.schema.arguments import Arguments, parser
from handrail.schema.tidy import tidy

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from openai.types.chat import ChatCompletionFunctionToolParam
    from openai.types.responses import FunctionToolParam

ContextIn = TypeVar("ContextIn", infer_variance=True, default=Any)
ContextOut = TypeVar("ContextOut", infer_variance=True, default=Any)
Api = Literal["chat.completions", "responses"]


class FunctionToolModel(pydantic.BaseModel, Generic[ContextIn, ContextOut]):
    """What every class whose fields are arguments has in common: its name, its definition, its validation."""

    model_config = pydantic.ConfigDict(populate_by_name=True, coerce_numbers_to_str=True, use_attribute_docstrings=True)

    model_tool_strict: ClassVar[bool] = False
    model_tool_custom_name: ClassVar[str | None] = None
    model_tool_name_generator: ClassVar[Callable[[str], str] | None] = None
    """Makes the tool's name from the name of the class."""
    model_tool_custom_description: ClassVar[str | None] = None
    model_tool_custom_json_schema: ClassVar[dict[str, Any] | None] = None
    model_tool_read_only: ClassVar[bool] = False
    model_tool_concurrency_safe: ClassVar[bool] = False
    model_tool_timeout: ClassVar[float | None] = None
    _schemas: ClassVar[dict[type[Any], dict[str, Any]]] = {}
    _decoders: ClassVar[dict[type[Any], Callable[[str], str] | None]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name in cls.model_fields:
            if name.startswith("model_tool_"):
                raise ToolDefinitionError(
                    f"{cls.__name__}.{name} has a type annotation, which would make it an argument for the model. "
                    f"Write `{name} = …` without the annotation."
                )

    # For subclasses to override.

    @classmethod
    def model_tool_format_invalid_arguments_error(cls, err: pydantic.ValidationError) -> str:
        """What the model reads when its arguments are not valid."""
        return str(err)

    @classmethod
    def model_tool_format_explicit_error(cls, err: ToolError) -> str:
        """What the model reads when the handler raised an error for it."""
        return str(err)

    @classmethod
    def model_tool_validate_tool_call(cls, name: str, arguments: str) -> Self:
        """Arguments, as JSON text, to an instance."""
        if name != cls.model_tool_name():
            raise AssertionError(f"A call of `{name}` was given to `{cls.model_tool_name()}`.")
        return cls.model_validate_json(arguments)

    @classmethod
    def model_tool_generate_json_schema(cls) -> dict[str, Any]:
        """The JSON Schema, where none is written by hand."""
        return cls.model_json_schema()

    # For callers to use.

    @classmethod
    def model_tool_name(cls) -> str:
        """The custom name, else the generated one, else the name of the class."""
        custom, generate = cls.model_tool_custom_name, cls.model_tool_name_generator
        return custom or (generate(cls.__name__) if generate else "") or cls.__name__

    @classmethod
    def model_tool_json_schema(cls) -> dict[str, Any]:
        """The JSON Schema of the arguments; a generated one is made once."""
        if cls.model_tool_custom_json_schema:
            return cls.model_tool_custom_json_schema
        if cls not in cls._schemas:
            cls._schemas[cls] = cls.model_tool_generate_json_schema()
        return cls._schemas[cls]

    @classmethod
    def model_tool_description(cls) -> str:
        """The custom description, else the docstring of the class."""
        text = cls.model_tool_custom_description or cls.model_tool_json_schema().get("description", "")
        return dedent(text.strip())

    @overload
    @classmethod
    def model_tool_definition(cls, api: Literal["responses"]) -> "FunctionToolParam": ...
    @overload
    @classmethod
    def model_tool_definition(cls, api: Literal["chat.completions"]) -> "ChatCompletionFunctionToolParam": ...
    @classmethod
    def model_tool_definition(cls, api: Api) -> Any:
        """The definition, for `tools=` of a request."""
        make: Any = tool_def_for_responses_api if api == "responses" else tool_def_for_chat_completions_api
        return make(
            cls.model_tool_name(), cls.model_tool_description(), cls.model_tool_strict, cls.model_tool_json_schema()
        )

    @classmethod
    def model_tool_pretty_definition(cls, api: Api) -> str:
        """The definition as text, to look at while developing."""
        return f"{cls.__name__}({json.dumps(cls.model_tool_definition(api), indent=4)})"

    @classmethod
    def model_tool_validate_handler_result(cls, result: Any) -> ToolHandlerResult[ContextOut]:
        """What a handler returned, as a `ToolHandlerResult`."""
        if type(result) is ToolHandlerResult:
            return cast(ToolHandlerResult[ContextOut], result)
        if not isinstance(result, tuple) or len(cast(tuple[Any, ...], result)) != 2:
            raise TypeError(f"{cls.__name__} handler must return ToolHandlerResult or a tuple of (str, ContextOut)")
        return ToolHandlerResult(*cast(tuple[str, ContextOut], result))

    @classmethod
    def model_tool_prepare(cls, call: AnyToolCall) -> tuple[StandardToolCall, Self | ToolCallFailure]:
        """The first half of running a call: an instance with valid arguments, or the failure to answer with."""
        standard = standardize_tool_call(call)
        arguments = standard.arguments
        if cls.model_tool_strict:
            arguments = cls._decoded(arguments)
        try:
            return standard, cls.model_tool_validate_tool_call(standard.name, arguments)
        except pydantic.ValidationError as error:
            text = cls.model_tool_format_invalid_arguments_error(error)
            return standard, ToolCallFailure(call_id=standard.id, result_content=text, fail_reason="invalid_arguments")

    @classmethod
    def _decoded(cls, arguments: str) -> str:
        """In strict mode every argument is sent: turn null back into "left out"."""
        if cls not in cls._decoders:
            lowered = lowered_or_none(cls.model_tool_json_schema())
            cls._decoders[cls] = lowered.decode if lowered else None
        decode = cls._decoders[cls]
        return decode(arguments) if decode else arguments

    @classmethod
    def model_tool_explicit_failure(cls, call_id: str, error: ToolError) -> ToolCallFailure:
        """The failure to answer with when the handler raised an error for the model."""
        text = cls.model_tool_format_explicit_error(error)
        return ToolCallFailure(call_id=call_id, result_content=text, fail_reason="explicit_handler_error")

    @classmethod
    def model_tool_as_tool(cls) -> Tool[..., Any]:
        """The `Tool` that this class stands for; `as_tool()` calls it."""
        return from_model(cls)

    @classmethod
    def model_tool_success(cls, call_id: str, result: Any) -> ToolCallSuccess[ContextOut]:
        """The success to answer with."""
        content, context = cls.model_tool_validate_handler_result(result)
        return ToolCallSuccess(call_id=call_id, result_content=content, context=context)


class LLMFunctionTool(FunctionToolModel[ContextIn, ContextOut], Generic[ContextIn, ContextOut]):
    """A tool as a class: its fields are the arguments, its `model_tool_handler` does the work.

    `ContextIn` is what the caller hands in, `ContextOut` what the handler hands back beside the text for the model. Run
    by an `Executor` the handler gets `context.deps`, and its context comes back as `ToolResult.context`.
    """

    def model_tool_handler(
        self, context: ContextIn
    ) -> """ToolHandlerResult[ContextOut] | tuple[str, ContextOut]
            | Awaitable[ToolHandlerResult[ContextOut] | tuple[str, ContextOut]]""":
        """Override it, sync or async."""
        raise NotImplementedError(f"{type(self).__name__}.model_tool_handler()")

    @classmethod
    async def model_tool_run_tool_call(cls, call: AnyToolCall, context: ContextIn) -> ToolCallResult[ContextOut]:
        """Validate a call and run it. What is not meant for the model reaches the caller."""
        standard, ready = cls.model_tool_prepare(call)
        if isinstance(ready, ToolCallFailure):
            return ready
        try:
            result = ready.model_tool_handler(context)
            if inspect.isawaitable(result):
                result = await result
        except ToolError as error:
            return cls.model_tool_explicit_failure(standard.id, error)
        return cls.model_tool_success(standard.id, result)


def from_model(model: type[FunctionToolModel[Any, Any]]) -> Tool[..., Any]:
    """The tool that a class stands for."""
    name = model.model_tool_name()
    run = cast(Any, model).model_tool_handler
    if run in (LLMFunctionTool.model_tool_handler, getattr(FunctionToolModel, "model_tool_handler", None)):
        raise ToolDefinitionError(f"{model.__name__} cannot be run: it has no model_tool_handler.")
    is_async = inspect.iscoroutinefunction(run)
    schema = model.model_tool_json_schema()
    arguments = Arguments(
        input_schema={key: value for key, value in tidy(schema).items() if key != "description"},
        parse=parser(
            lambda text: model.model_tool_validate_tool_call(name, text), names=tuple(schema.get("properties", {}))
        ),
        dump=lambda instance: instance.model_dump(mode="json", by_alias=True, warnings=False),
    )

    def result_of(returned: Any) -> ToolResult:
        content, context = model.model_tool_validate_handler_result(returned)
        return ToolResult(output=content, context=context)

    def handle(instance: Any, context: ToolContext[Any]) -> ToolResult:
        return result_of(instance.model_tool_handler(context.deps))

    async def handle_async(instance: Any, context: ToolContext[Any]) -> ToolResult:
        return result_of(await instance.model_tool_handler(context.deps))

    def call(context: Any = None, **fields: Any) -> Any:
        return cast(Any, model(**fields)).model_tool_handler(context)

    return Tool(
        name=name,
        description=model.model_tool_description(),
        input_schema=arguments.input_schema,
        function=call,
        handler=handle_async if is_async else handle,
        parse=arguments.parse if model.model_tool_read_only else arguments.careful(),
        dump=arguments.dump,
        is_async=is_async,
        read_only=model.model_tool_read_only,
        concurrency_safe=model.model_tool_concurrency_safe,
        timeout=model.model_tool_timeout,
        strict=model.model_tool_strict,
    )


def tool_def_for_chat_completions_api(
    name: str, description: str | None, strict: bool, schema: dict[str, Any]
) -> "ChatCompletionFunctionToolParam":
    """A definition for Chat Completions."""
    parameters, strict = _parameters(name, strict, schema)
    function: dict[str, Any] = {"name": name}
    if strict:
        function["strict"] = True
    if description:
        function["description"] = description
    if parameters["properties"]:
        function["parameters"] = parameters
    return cast(Any, {"type": "function", "function": function})


def tool_def_for_responses_api(
    name: str, description: str | None, strict: bool, schema: dict[str, Any]
) -> "FunctionToolParam":
    """A definition for Responses."""
    parameters, strict = _parameters(name, strict, schema)
    definition: dict[str, Any] = {"type": "function", "name": name, "parameters": parameters, "strict": strict}
    if description:
        definition["description"] = description
    return cast(Any, definition)


def _parameters(name: str, wants_strict: bool, schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    if wants_strict and (lowered := lowered_or_none(schema, name=name)):
        return lowered.schema, True
    kept = {key: value for key, value in schema.items() if key not in ("title", "description")}
    return {
        **kept,
        "type": "object",
        "properties": kept.get("properties", {}),
        "required": kept.get("required", []),
    }, False


def lowered_or_none(schema: dict[str, Any], *, name: str | None = None) -> strict.Lowered | None:
    """The schema for strict mode; None, with a warning, where strict mode cannot say it."""
    try:
        return strict.lower({**schema, "type": "object"}, strict.OPENAI)
    except strict.NotRepresentable as reason:
        if name is not None:
            warnings.warn(f"`{name}` goes out non-strict: {reason}.", stacklevel=4)
        return None
