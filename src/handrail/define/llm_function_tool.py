"""`LLMFunctionTool`: a Pydantic model whose fields are the arguments of a tool."""

import inspect
import json
import warnings
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from textwrap import dedent
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, cast, overload

import pydantic
from typing_extensions import TypeVar, Unpack

from handrail.core.context import ToolContext
from handrail.core.tool import Tool, find_hidden_field, find_unwritable_default
from handrail.core.values import ToolResult
from handrail.define.facade_results import (
    AnyToolCall,
    StandardToolCall,
    ToolCallFailure,
    ToolCallResult,
    ToolCallSuccess,
    ToolHandlerResult,
    build_failure,
    build_success,
    standardize_tool_call,
)
from handrail.define.options import NamedToolOptions, ToolFlags, normalize_options
from handrail.errors import InvalidArgumentsError, ToolDefinitionError, ToolError
from handrail.schema import strict_schema
from handrail.schema.arguments import Arguments, build_forms, build_parser, sort_sets_of, validate_strictly
from handrail.schema.subschemas import remove_titles

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionToolParam
    from openai.types.responses import FunctionToolParam

ContextIn = TypeVar("ContextIn", infer_variance=True, default=Any)
ContextOut = TypeVar("ContextOut", infer_variance=True, default=Any)
Api = Literal["chat.completions", "responses"]


class FunctionToolModel(pydantic.BaseModel, Generic[ContextIn, ContextOut]):
    """The base of the tool classes: name, definition and validation."""

    model_config = pydantic.ConfigDict(populate_by_name=True, coerce_numbers_to_str=True, use_attribute_docstrings=True)

    model_tool_strict: ClassVar[bool] = False
    model_tool_custom_name: ClassVar[str | None] = None
    model_tool_name_generator: ClassVar[Callable[[str], str] | None] = None
    """Derives the tool's name from the name of the class."""
    model_tool_custom_description: ClassVar[str | None] = None
    model_tool_custom_json_schema: ClassVar[dict[str, Any] | None] = None
    model_tool_flags: ClassVar[ToolFlags] = ToolFlags()
    """The options of the tool, when an executor runs it: `ToolFlags(read_only=True, timeout=5)`."""

    # Computed once, and looked up in `__dict__`: a subclass must not inherit them.
    _validated_name: ClassVar[str | None] = None
    _generated_schema: ClassVar[dict[str, Any] | None] = None
    _decode: ClassVar[Callable[[str], str] | None] = None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name in cls.model_fields:
            if name.startswith("model_tool_"):
                raise ToolDefinitionError(
                    f"{cls.__name__}.{name} has a type annotation, which would make it an argument for the model. "
                    f"Write `{name} = …` without the annotation."
                )
        flags = cast(object, cls.model_tool_flags)
        if not isinstance(flags, ToolFlags):
            raise ToolDefinitionError(f"{cls.__name__}.model_tool_flags must be ToolFlags(…), not {flags!r}.")
        if "strict" in flags.to_options():
            raise ToolDefinitionError(f"{cls.__name__}: set model_tool_strict, not strict in model_tool_flags.")

    # For subclasses to override.

    def model_tool_handler(self, context: ContextIn) -> Any:
        """Run the tool with `self` as its arguments: return a text for the model and a context for the caller."""
        raise NotImplementedError(f"{type(self).__name__}.model_tool_handler()")

    @classmethod
    def model_tool_format_invalid_arguments_error(cls, err: pydantic.ValidationError) -> str:
        """Format the result for arguments that are not valid."""
        return str(err)

    @classmethod
    def model_tool_format_explicit_error(cls, err: ToolError) -> str:
        """Format the result for an error that the handler raised for the model."""
        return str(err)

    @classmethod
    def model_tool_validate_tool_call(cls, name: str, arguments: str) -> Self:
        """Validate JSON arguments and return an instance."""
        if cls.__dict__.get("_validated_name") != name:
            if name != cls.model_tool_name():
                raise AssertionError(f"A call of `{name}` was given to `{cls.model_tool_name()}`.")
            cls._validated_name = name
        # Same as `model_validate_json`, without its checks of options, which take as long as the validation.
        return cls.__pydantic_validator__.validate_json(arguments)

    @classmethod
    def model_tool_generate_json_schema(cls) -> dict[str, Any]:
        """Generate the JSON Schema of the arguments."""
        return cls.model_json_schema()

    # For callers to use.

    @classmethod
    def model_tool_name(cls) -> str:
        """The custom name, else the generated one, else the name of the class."""
        custom, generate = cls.model_tool_custom_name, cls.model_tool_name_generator
        return custom or (generate(cls.__name__) if generate else "") or cls.__name__

    @classmethod
    def model_tool_json_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema of the arguments, which is generated once."""
        if cls.model_tool_custom_json_schema:
            return cls.model_tool_custom_json_schema
        if "_generated_schema" not in cls.__dict__:
            cls._generated_schema = inline_root_reference(cls.model_tool_generate_json_schema())
        return cls.__dict__["_generated_schema"]

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
    def model_tool_definition(cls, api: Literal["chat.completions"]) -> "ChatCompletionToolParam": ...
    @classmethod
    def model_tool_definition(cls, api: Api) -> Any:
        """The definition, for `tools=` of a request."""
        make = tool_def_for_chat_completions_api if api == "chat.completions" else tool_def_for_responses_api
        return make(
            cls.model_tool_name(), cls.model_tool_description(), cls.model_tool_strict, cls.model_tool_json_schema()
        )

    @classmethod
    def model_tool_pretty_definition(cls, api: Api) -> str:
        """The definition as text, to look at while developing."""
        return f"{cls.__name__}({json.dumps(cls.model_tool_definition(api), indent=4)})"

    @classmethod
    def model_tool_validate_handler_result(cls, result: Any) -> ToolHandlerResult[ContextOut]:
        """Validate what a handler returned, as a `ToolHandlerResult`."""
        if type(result) is ToolHandlerResult:
            return cast(ToolHandlerResult[ContextOut], result)
        if not isinstance(result, tuple) or len(cast(tuple[Any, ...], result)) != 2:
            raise TypeError(f"{cls.__name__} handler must return ToolHandlerResult or a tuple of (str, ContextOut)")
        return ToolHandlerResult(*cast(tuple[str, ContextOut], result))

    @classmethod
    def model_tool_decode_arguments(cls, arguments: Any) -> Any:
        """Decode arguments that were sent in strict mode, where null means "omitted"."""
        if "_decode" not in cls.__dict__:
            lowered = lower_or_none(cls.model_tool_json_schema())
            cls._decode = lowered.decode if lowered else None
        decode = cls.__dict__["_decode"]
        return decode(arguments) if decode and isinstance(arguments, str) else arguments

    @classmethod
    def model_tool_as_tool(cls, **options: Unpack[NamedToolOptions]) -> Tool[..., Any]:
        """Build the `Tool` of this class; `as_tool()` calls it. The options come before those of the class."""
        return build_from_model(cls, cast(Any, options))


class LLMFunctionTool(FunctionToolModel[ContextIn, ContextOut], Generic[ContextIn, ContextOut]):
    """A tool as a class: its fields are the arguments, and `model_tool_handler`, sync or async, runs it.

    `ContextIn` is what the caller passes in; `ContextOut` is what the handler returns beside the text for the model. In
    an `Executor`, the handler gets `context.deps`, and the context that it returns is `ToolResult.context`.
    """

    if TYPE_CHECKING:

        def model_tool_handler(
            self, context: ContextIn
        ) -> """ToolHandlerResult[ContextOut] | tuple[str, ContextOut]
                | Awaitable[ToolHandlerResult[ContextOut] | tuple[str, ContextOut]]""": ...

    else:

        async def model_tool_handler(self, context: ContextIn) -> Any:
            """Run the tool, sync or async: return a text for the model and a context for the caller."""
            raise NotImplementedError(f"{type(self).__name__}.model_tool_handler()")

    @classmethod
    async def model_tool_run_tool_call(cls, call: AnyToolCall, context: ContextIn) -> ToolCallResult[ContextOut]:
        """Validate a call and run it. Exceptions that are not for the model are raised."""
        call = standardize_tool_call(call)
        ready = validate_call(cls, call)
        if isinstance(ready, ToolCallFailure):
            return ready
        try:
            result = ready.model_tool_handler(context)
            if inspect.isawaitable(result):
                result = await result
        except ToolError as error:
            return build_failure(call, "explicit_handler_error", cls.model_tool_format_explicit_error(error))
        return build_success_result(cls, call, result)


ModelT = TypeVar("ModelT", bound=FunctionToolModel[Any, Any])


def validate_call(model: type[ModelT], call: StandardToolCall) -> ModelT | ToolCallFailure:
    """Validate a call: return an instance with its arguments, or the failure."""
    arguments = model.model_tool_decode_arguments(call.arguments) if model.model_tool_strict else call.arguments
    try:
        return model.model_tool_validate_tool_call(call.name, arguments)
    except pydantic.ValidationError as error:
        return build_failure(call, "invalid_arguments", model.model_tool_format_invalid_arguments_error(error))


def build_success_result(
    model: type[FunctionToolModel[Any, Any]], call: StandardToolCall, result: Any
) -> ToolCallSuccess[Any]:
    """Build the result of a call from what its handler returned."""
    if result.__class__ is tuple and len(result) == 2:
        content, context = result
    else:
        content, context = model.model_tool_validate_handler_result(result)
    return build_success(call, content, context)


def build_from_model(
    model: type[FunctionToolModel[Any, Any]], options: Mapping[str, Any] | None = None
) -> Tool[..., Any]:
    """Build the tool of a class; the options are those of `@tool`."""
    name = model.model_tool_name()
    if model.model_tool_handler in (FunctionToolModel.model_tool_handler, LLMFunctionTool.model_tool_handler):
        raise ToolDefinitionError(f"{model.__name__} cannot be run: it has no model_tool_handler.")
    is_async = inspect.iscoroutinefunction(model.model_tool_handler)
    format_error = model.model_tool_format_invalid_arguments_error
    has_own_format = format_error.__func__ is not FunctionToolModel.model_tool_format_invalid_arguments_error.__func__
    own_validation = model.model_tool_validate_tool_call.__func__
    has_own_validation = own_validation is not FunctionToolModel.model_tool_validate_tool_call.__func__
    schema = model.model_tool_json_schema()

    form = {"mode": "json", "by_alias": True, "warnings": False}

    def dump_all(instance: Any) -> dict[str, Any]:
        return instance.model_dump(**form)

    dump = sort_sets_of(dump_all, model.__pydantic_core_schema__)

    def validate(text: str, *, strictly: bool = False) -> Any:
        try:
            if strictly and not has_own_validation:
                return validate_strictly(model.__pydantic_validator__.validate_json, dump, text)
            return model.model_tool_validate_tool_call(name, text)
        except pydantic.ValidationError as error:
            if not has_own_format:
                raise
            raise InvalidArgumentsError(format_error(error)) from None

    arguments = Arguments(
        input_schema={key: value for key, value in remove_titles(schema).items() if key != "description"},
        parse=build_parser(validate, names=tuple(schema.get("properties", {}))),
        parse_strict=build_parser(partial(validate, strictly=True), names=tuple(schema.get("properties", {}))),
        dump=dump,
        dump_sent=lambda instance: instance.model_dump(**form, exclude_defaults=True),
        write_forms=build_forms(
            model.__pydantic_serializer__.to_python,
            model.__pydantic_core_schema__,
            uses_dump=model.model_dump is pydantic.BaseModel.model_dump,
        ),
    )

    def build_result(returned: Any) -> ToolResult:
        content, context = model.model_tool_validate_handler_result(returned)
        return ToolResult(output=content, context=context)

    def handle(instance: Any, context: ToolContext[Any]) -> Any:
        try:
            returned = instance.model_tool_handler(context.deps)
            # A plain method may return a coroutine, that of a decorator for one: the executor awaits it.
            return wait(returned) if inspect.isawaitable(returned) else build_result(returned)
        except ToolError as error:
            error.message = model.model_tool_format_explicit_error(error)
            raise

    async def handle_async(instance: Any, context: ToolContext[Any]) -> ToolResult:
        return await wait(instance.model_tool_handler(context.deps))

    async def wait(returned: Awaitable[Any]) -> ToolResult:
        try:
            return build_result(await returned)
        except ToolError as error:
            error.message = model.model_tool_format_explicit_error(error)
            raise

    def call(context: Any = None, **fields: Any) -> Any:
        return model(**fields).model_tool_handler(context)

    described: dict[str, Any] = {
        "name": name,
        "description": model.model_tool_description(),
        "strict": model.model_tool_strict,
        **model.model_tool_flags.to_options(),
        **normalize_options(options or {}),
    }
    return Tool(
        input_schema=arguments.input_schema,
        function=call,
        handler=handle_async if is_async else handle,
        parse=arguments.parse,
        parsers=arguments.build_parsers(),
        dump=arguments.dump,
        write_forms=arguments.write_forms,
        is_async=is_async,
        unwritable_argument=find_unwritable_default({name: field.default for name, field in model.model_fields.items()})
        or find_hidden_field(model.__pydantic_core_schema__),
        parameter_metadata={
            field.alias or name: tuple(field.metadata) for name, field in model.model_fields.items() if field.metadata
        },
        **described,
    )


def tool_def_for_chat_completions_api(
    name: str, description: str | None, strict: bool, schema: dict[str, Any]
) -> "ChatCompletionToolParam":
    """Build a definition for Chat Completions."""
    parameters, strict = _build_parameters(name, strict, schema)
    function: dict[str, Any] = {"name": name}
    if strict:
        function["strict"] = True
    if description:
        function["description"] = description
    if parameters["properties"] or parameters.keys() - {"type", "properties", "required"}:
        function["parameters"] = parameters
    return cast(Any, {"type": "function", "function": function})


def tool_def_for_responses_api(
    name: str, description: str | None, strict: bool, schema: dict[str, Any]
) -> "FunctionToolParam":
    """Build a definition for Responses."""
    parameters, strict = _build_parameters(name, strict, schema)
    definition: dict[str, Any] = {"type": "function", "name": name, "parameters": parameters, "strict": strict}
    if description:
        definition["description"] = description
    return cast(Any, definition)


def _build_parameters(name: str, wants_strict: bool, schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    if wants_strict and (lowered := lower_or_none(schema, name=name)):
        return lowered.schema, True
    return _build_object_schema(schema), False


def _build_object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Build the schema of the arguments, without the title and description of the tool itself."""
    rest = {
        key: value
        for key, value in inline_root_reference(schema).items()
        if key not in ("title", "description", "type")
    }
    return {"type": "object", "properties": {}, "required": [], **rest}


def inline_root_reference(schema: dict[str, Any]) -> dict[str, Any]:
    """Inline the root of a recursive model's schema, which Pydantic writes as a reference to a definition."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    target = schema.get("$defs", {}).get(name)
    return {**target, "$defs": schema["$defs"]} if target else schema


def lower_or_none(schema: dict[str, Any], *, name: str | None = None) -> strict_schema.Lowered | None:
    """Lower a schema to strict mode; None, with a warning, if strict mode cannot represent it."""
    try:
        return strict_schema.lower(_build_object_schema(schema), strict_schema.OPENAI)
    except strict_schema.NotRepresentable as reason:
        if name is not None:
            warnings.warn(f"`{name}` is sent without strict mode: {reason}.", stacklevel=4)
        return None
