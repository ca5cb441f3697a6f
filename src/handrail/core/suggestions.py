"""Suggests the name that was meant."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from handrail.core.lazy_loading import LazyModule

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")


def suggest(name: object, known: Iterable[object], *, otherwise: str = ".") -> str:
    """The end of an error message about an unknown name: the known one that is most like it, or `otherwise`."""
    near = difflib.get_close_matches(str(name), [str(candidate) for candidate in known], n=1)
    return f"; did you mean {near[0]!r}?" if near else otherwise
