"""Model files: the catalogue, downloads, the cache, and text embedding."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from handrail.models.catalogue import CATALOGUE

__all__ = ["CATALOGUE"]

# Loaded on first use, so that importing one module of this package does not import the others.
_ON_FIRST_USE = {
    "CATALOGUE": "handrail.models.catalogue",
}


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return getattr(import_module(_ON_FIRST_USE[name]), name)
    raise AttributeError(f"module 'handrail.models' has no attribute {name!r}")
