"""Model files: the catalogue, downloads, the cache, and text embedding."""

from typing import TYPE_CHECKING

from handrail.core.lazy_loading import build_getattr

if TYPE_CHECKING:
    from handrail.models.catalogue import CATALOGUE

__all__ = ["CATALOGUE"]

# Loaded on first use, so that importing one module of this package does not import the others.
_ON_FIRST_USE = {
    "CATALOGUE": "handrail.models.catalogue",
}

__getattr__ = build_getattr(__name__, _ON_FIRST_USE)
