"""The options of a tool's parameters in guided calling, what the judge sees of them, and evidence for values."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Final, Literal, cast

from msgspec import Struct

from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.text import canonical_json, compact_json, normalize_canonical
from handrail.core.time_budget import TimeBudget
from handrail.core.tool import Tool
from handrail.core.value_mentions import contains_words, mentions_value
from handrail.errors import ConfigError, ToolError, must_propagate, shorten
from handrail.execute.executor import Executor
from handrail.guide.values import ToolVerdict
from handrail.schema.schema_nodes import NotRepresentable, can_be_null, get_branches, get_types, resolve

Choices = Sequence[Any] | Callable[[ToolContext[Any]], Awaitable[Sequence[Any]] | Sequence[Any]]
ParameterAdapter = Callable[[Any, ToolContext[Any]], Awaitable[Any] | Any]

_MAX_CHOICES: Final = 1_000
_TIMEOUT: Final = 10.0
"""Seconds that a function of the developer may take."""


class ParameterOptions(Struct, frozen=True, kw_only=True):
    """Options of a parameter in guided calling: `Annotated[str, ParameterOptions(…)]`."""

    display_name: str = ""
    """The name to use with the customer."""
    hidden: bool = False
    """Whether it must never be mentioned to the customer."""
    display: Literal["whole", "masked"] = "whole"
    """How its value is shown to the customer before they confirm a call: whole, or only its last characters."""
    description: str = ""
    """What it means, for the judge; it replaces the description in the tool's schema."""
    significance: str = ""
    """Why it is needed, for the customer."""
    source: Literal["customer", "context", "any", "model"] = "any"
    """Who supplies it. For a consequential call, the judge quotes words that contain the value: of the customer's
    messages for `customer`, of the conversation, results and variables for `any` and `context`. A value of the
    `context` is never asked for. A text that the `model` composes, such as a summary, needs no quote."""
    precedence: int | None = None
    """Only the missing and invalid values with the lowest number are reported; those without one come last."""
    examples: Sequence[Any] = ()
    """Values for the judge, to show the form."""
    choices: Choices | None = None
    """The values that it may have: a list, or a function of the context, sync or async, that returns one."""
    adapter: ParameterAdapter | None = None
    """A function of the value and the context, sync or async, that returns the value to run with, such as the id of a
    name. The customer is shown what they said. It raises `ToolError` if it cannot use the value."""

    def __post_init__(self) -> None:
        if self.source not in ("customer", "context", "any", "model"):
            raise ConfigError(f"source must be 'customer', 'context', 'any' or 'model', got {self.source!r}.")
        if self.display not in ("whole", "masked"):
            raise ConfigError(f"display must be 'whole' or 'masked', got {self.display!r}.")
        if self.adapter is not None and not callable(self.adapter):
            raise ConfigError("adapter must be a function of a value and the context.")
        if self.choices is not None and not callable(self.choices):
            _check_choices(self.choices)


class GuidedTool(Struct, frozen=True, kw_only=True):
    """A tool, compiled for guided calling."""

    tool: Tool[..., Any]
    name: str
    options: Mapping[str, ParameterOptions]
    schema: Mapping[str, Any]
    """The input schema, with choices and examples."""
    properties: Mapping[str, Any]
    required: tuple[str, ...]
    nullable: frozenset[str]
    """The parameters that accept null."""
    hidden: frozenset[str]
    """The parameters that must never be mentioned to the customer."""
    coded: frozenset[str]
    """The parameters whose values are codes: choices, or the fixed values of the schema."""
    adapters: Mapping[str, ParameterAdapter]
    """The functions that turn what the customer says into the values to run with, by parameter."""
    runnable: bool = True
    """Whether the executor has it; a tool that was only declared cannot run."""

    @property
    def needs_no_inference(self) -> bool:
        """Whether it is a read-only tool without parameters, which runs as soon as it is a candidate."""
        return self.tool.read_only and not self.properties and self.runnable

    @property
    def has_dynamic_choices(self) -> bool:
        """Whether some parameter's choices depend on the context."""
        return any(callable(option.choices) for option in self.options.values())

    def get_default(self, parameter: str) -> Any:
        """Return the default of a parameter, by the schema; `...` if it has none."""
        node: Any = self.properties.get(parameter)
        return cast(Mapping[str, Any], node).get("default", ...) if isinstance(node, Mapping) else ...

    def get_options(self, parameter: str) -> ParameterOptions:
        """Return the options of a parameter."""
        return self.options.get(parameter, _NO_OPTIONS)


_NO_OPTIONS: Final = ParameterOptions()


def compile_tool(
    tool: Tool[..., Any], *, options: Mapping[str, ParameterOptions] | None = None, runnable: bool = True
) -> GuidedTool:
    """Compile a tool with the options in its annotations, and further ones."""
    properties = cast(Mapping[str, Any], tool.input_schema.get("properties", {}))
    annotated = {
        name: option
        for name, metadata in tool.parameter_metadata.items()
        for option in metadata
        if isinstance(option, ParameterOptions)
    }
    every = {**annotated, **(options or {})}
    for name in every:
        if name not in properties:
            listed = ", ".join(properties) or "none"
            raise ConfigError(f"options of {tool.name!r}: unknown parameter {name!r}; its parameters are: {listed}.")
    static = {
        name: tuple(option.choices) for name, option in every.items() if option.choices and not callable(option.choices)
    }
    adapters = {name: option.adapter for name, option in every.items() if option.adapter is not None}
    said = {
        **tool.input_schema,
        "properties": {**properties, **{name: _open_node(properties[name]) for name in adapters}},
    }
    shown = said if adapters else tool.input_schema
    return GuidedTool(
        tool=tool,
        name=tool.name,
        options=every,
        schema=_add_descriptions(
            add_choices(shown, static, {name: option.examples for name, option in every.items()}), every
        ),
        properties=properties,
        required=tuple(cast(Iterable[str], tool.input_schema.get("required", ()))),
        hidden=frozenset(name for name, option in every.items() if option.hidden),
        coded=frozenset(
            name
            for name, node in properties.items()
            if (name in every and every[name].choices is not None)
            or (name not in adapters and read_enum(node, tool.input_schema))
        ),
        adapters=adapters,
        nullable=frozenset(name for name, node in properties.items() if _can_be_null(node, tool.input_schema)),
        runnable=runnable,
    )


def _open_node(node: Any) -> dict[str, Any]:
    """The schema of what the customer may say for a parameter with an adapter: a value of any type."""
    found: Mapping[str, Any] = cast(Mapping[str, Any], node) if isinstance(node, Mapping) else {}
    return {key: value for key, value in found.items() if key == "description"}


async def call_function(executor: Executor, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the developer as the executor calls hooks; whatever goes wrong in it is an `Exception`.

    An async one, and one that is marked with `@blocking`, has a timeout; one that ignores it is left behind.
    """
    try:
        owner = getattr(function, "__qualname__", type(function).__name__)
        return await TimeBudget(_TIMEOUT).run(executor.call_function(function, *arguments, owner=owner))
    except Exception:
        raise
    except BaseException as error:
        if must_propagate(error):
            raise
        raise RuntimeError(f"it raised {type(error).__name__}") from error


async def adapt_value(
    adapter: ParameterAdapter, value: Any, context: ToolContext[Any], *, executor: Executor, where: str
) -> Any:
    """Turn what the customer said into the value to run with; raises `ToolError` if that is not possible."""
    try:
        found = await call_function(executor, adapter, value, context)
        compact_json(found)  # Raises unless it is JSON: it is an argument.
    except ToolError:
        raise
    except Exception as error:  # the developer's code; the tool cannot run without the value
        log.error("the adapter of %s failed", where, exc_info=error)
        raise ToolError("it could not be looked up") from error
    return found


def _add_descriptions(schema: Mapping[str, Any], options: Mapping[str, ParameterOptions]) -> Mapping[str, Any]:
    described = {name: option.description for name, option in options.items() if option.description}
    if not described:
        return schema
    properties = cast(Mapping[str, Mapping[str, Any]], schema.get("properties", {}))
    changed = {name: {**properties[name], "description": text} for name, text in described.items()}
    return {**schema, "properties": {**properties, **changed}}


def _can_be_null(node: Any, root: Mapping[str, Any]) -> bool:
    try:
        return can_be_null(node, dict(root))
    except NotRepresentable:  # Its references lead nowhere: the tool's own validation decides.
        return True


def add_choices(
    schema: Mapping[str, Any],
    choices: Mapping[str, Sequence[Any]],
    examples: Mapping[str, Sequence[Any]] | None = None,
) -> Mapping[str, Any]:
    """Return a copy of a schema with choices and examples for some parameters."""
    properties = dict(cast(Mapping[str, Any], schema.get("properties", {})))
    changed = False
    for name, node in properties.items():
        if not isinstance(node, Mapping):
            continue
        known = cast(Mapping[str, Any], node)
        if name in choices:
            properties[name] = known = _restrict(known, choices[name])
            changed = True
        if examples and examples.get(name):
            properties[name] = {**known, "examples": list(examples[name])}
            changed = True
    return {**schema, "properties": properties} if changed else schema


async def resolve_choices(
    tool: GuidedTool, context: ToolContext[Any], executor: Executor
) -> dict[str, tuple[Any, ...]]:
    """Read the choices of every parameter that has some; functions are called with the context.

    Raises `ConfigError` if a function fails, times out or does not return a list.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for name, option in tool.options.items():
        choices = option.choices
        if choices is None:
            continue
        if callable(choices):
            choices = await _read_choices(choices, f"{tool.name}.{name}", context, executor)
        found[name] = tuple(choices)
    return found


async def _read_choices(
    choices: Callable[..., Any], where: str, context: ToolContext[Any], executor: Executor
) -> Sequence[Any]:
    try:
        given = await call_function(executor, choices, context)
        _check_choices(given)
    except Exception as error:  # the developer's code; the tool cannot run without its choices
        log.error("the choices of %s could not be read", where, exc_info=error)
        raise ConfigError(f"the choices of {where} could not be read") from error
    return cast(Sequence[Any], given)


def _check_choices(choices: Any) -> None:
    if isinstance(choices, str | bytes) or not isinstance(choices, Sequence):
        raise ConfigError(f"choices must be a list of values, got {shorten(repr(choices))}.")
    if len(cast(Sequence[Any], choices)) > _MAX_CHOICES:
        raise ConfigError(f"choices must be at most {_MAX_CHOICES} values.")
    try:
        compact_json(list(cast(Sequence[Any], choices)))
    except ValueError as error:
        raise ConfigError(f"choices must be JSON values: {error}") from error


def read_enum(node: Any, root: Mapping[str, Any]) -> Sequence[Any]:
    if not isinstance(node, Mapping):
        return ()
    schema = cast(Mapping[str, Any], node)
    if "enum" in schema:
        return cast(Sequence[Any], schema["enum"])
    if "const" in schema:
        return (schema["const"],)
    if isinstance(target := schema.get("$ref"), str):
        return read_enum(cast(Mapping[str, Any], root.get("$defs", {})).get(target.rpartition("/")[2]), {})
    branches = cast(Sequence[Any], schema.get("anyOf", schema.get("oneOf", ())))
    return [value for branch in branches for value in read_enum(branch, root)] or read_enum(schema.get("items"), root)


def _restrict(node: Mapping[str, Any], choices: Sequence[Any]) -> dict[str, Any]:
    """Restrict a node to some values: the items of a list, and every branch but null. An enum always has a type."""
    if node.get("type") == "array":
        items: Any = node.get("items")
        return {
            **node,
            "items": _restrict(cast(Mapping[str, Any], items) if isinstance(items, Mapping) else {}, choices),
        }
    for keyword in ("anyOf", "oneOf"):
        if keyword in node:
            branches = [cast(Mapping[str, Any], branch) for branch in cast(Sequence[Any], node[keyword])]
            return {
                **node,
                keyword: [
                    branch if branch.get("type") == "null" else _restrict(branch, choices) for branch in branches
                ],
            }
    plain = {key: value for key, value in node.items() if key != "$ref"}
    values = [choice for choice in choices if choice != ""]  # Some providers refuse an empty text in an enum.
    kinds = {next((name for kind, name in _TYPES if isinstance(value, kind)), "string") for value in values}
    return {"type": sorted(kinds)[0] if len(kinds) == 1 else "string", **plain, "enum": values}


_TYPES: Final = ((str, "string"), (bool, "boolean"), (int, "integer"), (float, "number"))


def list_types(node: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """List the types that a node of a schema accepts, in all of its branches; none if it accepts any."""
    if not isinstance(node, Mapping):
        return frozenset()
    try:
        found = resolve(dict(cast(Mapping[str, Any], node)), dict(root))
    except NotRepresentable:
        return frozenset()
    if (branches := get_branches(found)) is not None:
        return frozenset(kind for branch in branches for kind in list_types(branch, root))
    return frozenset(get_types(found) or ())


class EvidenceSources(Struct, frozen=True, kw_only=True):
    """The texts that evidence for a value may be quoted from."""

    customer: tuple[str, ...]
    """What the customer wrote."""
    others: tuple[str, ...] = ()
    """What the agent wrote, and what tools, variables and terms say."""
    variables: Mapping[str, Any] = {}
    today: date | None = None


def is_known(value: Any, known: Iterable[Any]) -> bool:
    """Whether a value is one of several, as JSON: 1.0 is 1, and 1 is not true."""
    text = _to_text(value)
    return text is not None and any(text == _to_text(other) for other in known)


def _to_text(value: Any) -> str | None:
    try:
        return normalize_canonical(canonical_json(value))
    except (TypeError, ValueError):  # A variable can be anything.
        return None


def find_missing_evidence(
    tool: GuidedTool, name: str, value: Any, verdict: ToolVerdict, sources: EvidenceSources
) -> str | None:
    """Find why the evidence for a value does not support it: the words must be quoted, and contain the value."""
    options = tool.get_options(name)
    if options.source == "model" or options.hidden or is_known(value, [tool.get_default(name)]):
        return None
    if options.source != "customer" and is_known(value, sources.variables.values()):
        return None
    evidence = verdict.evidence.get(name)
    if not isinstance(evidence, str) or not evidence.strip():
        return "nothing in the conversation supports a value for it"
    if not any(contains_words(text, evidence) for text in sources.customer):
        if options.source == "customer":
            return "the customer has not said it"
        if not any(contains_words(text, evidence) for text in sources.others):
            return "the words that were quoted for it are not in the conversation"
    # A value of a list of choices is a code: the words that stand for it are others.
    if name in tool.coded or mentions_value(evidence, value, today=sources.today):
        return None
    return "the words that were quoted for it do not contain the value"
