"""Exports of a package that are imported on first use, so that importing one module does not import the others."""

from collections.abc import Callable, Mapping
from typing import Any


def build_getattr(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Build the `__getattr__` of a package that imports each name from its module on first use."""

    def get_attribute(name: str) -> Any:
        from importlib import import_module  # noqa: PLC0415  # `import handrail` does not need it

        if name in modules:
            return getattr(import_module(modules[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get_attribute
