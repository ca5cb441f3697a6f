"""Modules of the standard library that few programs need, imported with the first use of one of their names."""

from importlib import import_module
from typing import Any


class LazyModule:
    """Stands for a module.

    Write it in the `else` of `if TYPE_CHECKING: import …`, so that type checkers see the module itself.
    """

    def __init__(self, name: str) -> None:
        self._module_name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module_name), name)
