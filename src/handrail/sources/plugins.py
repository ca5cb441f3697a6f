"""`load_plugins`: the tools of installed packages, and of objects that are named."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final, cast

from handrail.core.log import log
from handrail.core.tool import Tool
from handrail.define.build import as_tool
from handrail.errors import ConfigError, HandrailError, shorten
from handrail.sources.source import SkippedTool

GROUP: Final = "handrail.tools"
"""The entry points that an installed package offers its tools under."""


class Plugins:
    """The tools of plugins, and what could not be loaded."""

    __slots__ = ("skipped", "tools")

    def __init__(self, tools: Iterable[Tool[..., Any]], skipped: Iterable[SkippedTool]) -> None:
        self.tools = tuple(tools)
        self.skipped = tuple(skipped)
        """What is not among the tools, by the name of its plugin, each with the reason."""

    def __iter__(self) -> Iterator[Tool[..., Any]]:
        return iter(self.tools)

    def __len__(self) -> int:
        return len(self.tools)

    def __repr__(self) -> str:
        return f"Plugins({', '.join(tool.name for tool in self.tools)})"


def load_plugins(*objects: str) -> Plugins:
    """Load tools: of the named objects (`package.module:object`, `package.module`), or of every installed package.

    An installed package offers its tools as entry points of the group `handrail.tools`. An object is a tool, anything
    tool-shaped, or several of them; of a module, every tool in it. What fails to load is in `skipped`, and the rest
    works.
    """
    for text in objects:
        if not isinstance(text, str) or not text.partition(":")[0].strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"a plugin is named 'package.module:object', got {text!r}.")
    # Sorted, so that of two plugins with one name for a tool it is always the same that has it.
    named = [(text, text) for text in objects] or sorted(
        (entry.name, entry.value) for entry in entry_points(group=GROUP)
    )
    tools: dict[str, Tool[..., Any]] = {}
    skipped: list[SkippedTool] = []
    for name, value in named:
        for tool in _load(name, value, skipped):
            if tool.name in tools:
                reason = f"`{tool.name}` is there already, from {tools[tool.name].source}"
                skipped.append(SkippedTool(name=name, reason=reason))
            else:
                tools[tool.name] = tool
    return Plugins(tools.values(), skipped)


def _load(name: str, value: str, skipped: list[SkippedTool]) -> Iterator[Tool[..., Any]]:
    try:
        found = list(_several(_import(value)))
    except BaseException as error:  # somebody else's code, which may fail in any way
        if isinstance(error, KeyboardInterrupt):
            raise
        log.warning("the plugin %s cannot be loaded", name, exc_info=error)
        skipped.append(SkippedTool(name=name, reason=_reason(error)))
        return
    for item in found:
        try:
            tool = as_tool(item)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            skipped.append(SkippedTool(name=name, reason=_reason(error)))
        else:
            yield replace(tool, source=f"plugin:{name.replace(':', '.')}") if tool.source == "local" else tool


def _reason(error: BaseException) -> str:
    try:
        said = shorten(str(error), 300)
    except Exception:  # noqa: BLE001  # an exception that cannot be printed
        said = "(it cannot be printed)"
    return said if isinstance(error, HandrailError) else f"{type(error).__name__}: {said}"


def _import(value: str) -> Any:
    module, _, attributes = value.partition(":")
    found: Any = import_module(module.strip())
    for attribute in filter(None, attributes.strip().split(".")):
        found = getattr(found, attribute)
    return found


def _several(found: Any) -> Iterable[Any]:
    """What a plugin names, as one or more things that may be tools."""
    if inspect.ismodule(found):
        return [value for value in vars(found).values() if isinstance(value, Tool)]
    is_one = isinstance(found, Tool | Mapping | type | str) or not isinstance(found, Iterable)
    return [found] if is_one else list(cast(Iterable[Any], found))
