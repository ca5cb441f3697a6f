"""What is loaded on first use, so that an import does not pay for it: exports, modules and regular expressions."""

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

from handrail.errors import MissingExtraError


def build_getattr(package: str, modules: Mapping[str, str], *, extra: str | None = None) -> Callable[[str], Any]:
    """Build the `__getattr__` of a package that imports each name from its module on first use.

    `extra` is what all of them need: if it is not installed, the error says how to install it.
    """

    def get_attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(modules[name]), name)
        except ModuleNotFoundError as error:
            if extra is None or error.name is None or error.name.startswith("handrail"):
                raise
            raise MissingExtraError(error.name.partition(".")[0], extra=extra) from error

    return get_attribute


class LazyModule:
    """Stands for a module that few programs need, and imports it with the first use of one of its names.

    Write it in the `else` of `if TYPE_CHECKING: import …`, so that type checkers see the module itself.
    """

    def __init__(self, name: str) -> None:
        self._module_name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module_name), name)


class LazyPattern:
    """A regular expression that is compiled on first use."""

    def __init__(self, source: str, flags: re.RegexFlag = re.NOFLAG) -> None:
        self._source = source
        self._flags = flags

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self._source, self._flags)
