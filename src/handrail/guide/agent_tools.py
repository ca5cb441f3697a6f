"""The tools of one agent: its own, those of its sources, those that are only declared, and options of parameters."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from handrail.core.text import suggest
from handrail.core.tool import Tool
from handrail.define.build import as_tool, build_tool
from handrail.errors import ConfigError, ToolError, shorten
from handrail.guide.parameters import ParameterOptions, compile_tool
from handrail.registry.registry import ToolSource

_NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}


class AgentTools:
    """The tools of one agent, and the options of their parameters."""

    def __init__(self, tools: Iterable[object]) -> None:
        self._tools: dict[str, Tool[..., Any]] = {}
        self._options: dict[str, dict[str, ParameterOptions]] = {}
        self._sources: list[ToolSource] = []
        """Sources whose tools may change while the agent is used."""
        self._own: dict[str, None] = {}
        """The names of the agent's own tools, in order."""
        self._declared: set[str] = set()
        """The names of tools without a handler."""
        given: list[Tool[..., Any]] = []
        for tool in tools:
            if isinstance(tool, ToolSource):
                self._sources.append(tool)
                continue
            given.append(as_tool(tool))
        for made in _tell_apart(given):
            if made.name in self._tools:
                raise ConfigError(f"two tools are called {made.name!r}.")
            self._tools[made.name] = made
            self._own[made.name] = None

    @property
    def names(self) -> Collection[str]:
        """The names of all tools that are known."""
        return self._tools.keys()

    def get_executor_tools(self) -> list[Tool[..., Any] | ToolSource]:
        """Return the tools and sources to build an executor with."""
        return [*(self._tools[name] for name in self._own), *self._sources]

    def get(self, name: str) -> tuple[Tool[..., Any], Mapping[str, ParameterOptions] | None]:
        """Return a tool that is known, and the options of its parameters."""
        return self._tools[name], self._options.get(name)

    def refresh(self, pool: Iterable[Tool[..., Any]] | None) -> None:
        """Add the tools that the sources have now, or those of an executor. A tool that disappears stays known."""
        pools = [source.tools for source in self._sources] if pool is None else [pool]
        for tool in (tool for pool in pools for tool in pool):
            if tool.name not in self._own and tool.name not in self._declared:
                self._tools[tool.name] = tool

    def find(self, name: object, *, pool: Iterable[Tool[..., Any]] | None) -> str:
        """Return the name of a known tool, or raise `ConfigError`."""
        if isinstance(name, str) and name not in self._tools:
            self.refresh(pool)
        if isinstance(name, str) and name in self._tools:
            return name
        raise ConfigError(f"unknown tool {shorten(repr(name))}{suggest_name(name, self._tools)}")

    def add(self, tool: Tool[..., Any], *, is_fixed: bool) -> str:
        """Add a tool unless it is known; return its name."""
        if not isinstance(tool, Tool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"a tool must be a name or a Tool, got {shorten(repr(tool))}.")
        if tool.name not in self._tools:
            if is_fixed:
                raise ConfigError(f"the tool {tool.name!r} cannot be added: the agent's tools are fixed.")
            self._tools[tool.name] = tool
            self._own[tool.name] = None
        elif self._tools[tool.name] is not tool:
            raise ConfigError(f"two tools are called {tool.name!r}.")
        return tool.name

    def create(
        self,
        name: str,
        description: str,
        parameters: Any,
        handler: Callable[..., Any] | None,
        *,
        consequential: bool | None,
        options: Mapping[str, ParameterOptions] | None,
        fixed_because: str | None,
        more: Mapping[str, Any],
    ) -> Tool[..., Any]:
        """Build and add a tool; without a handler, declare one or add options to a known one."""
        schema = _build_schema(parameters)
        if handler is None and name in self._tools and name not in self._declared:
            found = self._tools[name]
            if consequential is not None and consequential != found.consequential:
                has = "consequential" if found.consequential else "read-only"
                raise ConfigError(f"consequential: the tool {name!r} is {has}, got {consequential!r}.")
        else:
            if name in self._tools:
                raise ConfigError(f"two tools are called {name!r}.")
            if handler is not None and fixed_because is not None:
                raise ConfigError(f"the tool {name!r} cannot be added: {fixed_because}.")
            found = build_tool(
                {
                    "name": name,
                    "description": description,
                    "input_schema": schema if schema is not None else _NO_PARAMETERS,
                    "read_only": consequential is False,
                    "handler": handler or _refuse_call,
                    **more,
                }
            )
            if handler is None:
                self._declared.add(name)
            else:
                self._own[name] = None
        compile_tool(found, options=options)  # Raises if the options are wrong: then the tool is not added.
        self._tools[name] = found
        self.add_options(name, options or {})
        return found

    def add_options(self, name: str, options: Mapping[str, ParameterOptions]) -> None:
        """Add options to the parameters of a tool that is known."""
        compile_tool(self._tools[name], options=options)  # Raises if they are wrong.
        self._options[name] = {**self._options.get(name, {}), **options}


def _tell_apart(tools: Sequence[Tool[..., Any]]) -> list[Tool[..., Any]]:
    """Put the source before the names of tools that are called alike and come from different sources."""
    sources: dict[str, set[str]] = {}
    for tool in tools:
        sources.setdefault(tool.name, set()).add(tool.source)
    return [
        replace(tool, name=f"{tool.source.rpartition(':')[2]}__{tool.name}") if len(sources[tool.name]) > 1 else tool
        for tool in tools
    ]


def _build_schema(parameters: Any) -> Any:
    """Build the JSON Schema of a tool's parameters from a schema, its properties, or `...` if they are left open."""
    if parameters is None or parameters is ... or parameters == {...}:
        return None
    if not isinstance(parameters, Mapping):
        return parameters
    given = cast(Mapping[str, Any], parameters)
    is_properties = given and "properties" not in given and all(isinstance(node, Mapping) for node in given.values())
    if not is_properties:
        return given
    return {"type": "object", "properties": dict(given), "required": list(given), "additionalProperties": False}


def _refuse_call(arguments: dict[str, Any]) -> Any:
    raise ToolError("This tool has no handler.")


def suggest_name(name: object, known: Collection[str]) -> str:
    """Build the end of an error about an unknown name: the closest known name, or the first of them."""
    listed = f"; there are: {', '.join(sorted(known)[:20])}." if known else "; there are none yet."
    return suggest(name, known, otherwise=listed)
