"""The parts of a definition that its readers share: JSON values that cannot be changed."""

import math
from collections.abc import Mapping
from typing import Any, NoReturn, cast


def _refuse(self: object, *args: object, **options: object) -> NoReturn:
    raise TypeError("This part of a definition is shared. Take copy.deepcopy() of the definition, and change that.")


class FrozenDict(dict[str, Any]):
    """A dict that refuses to change; its copies are plain dicts, which do not."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class FrozenList(list[Any]):
    """A list that refuses to change; its copies are plain lists, which do not."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = insert = pop = remove = _refuse  # pyright: ignore[reportAssignmentType]
    reverse = sort = _refuse  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def freeze(value: Any) -> Any:
    """A copy of a JSON value that cannot be changed; raises `ValueError` for what JSON cannot hold."""
    match value:
        case None | bool() | int():
            return value
        case str():
            value.encode()  # A UnicodeEncodeError is a ValueError.
            return value
        case float() if math.isfinite(value):
            return value
        case Mapping():
            members = cast(Mapping[Any, Any], value).items()
            return FrozenDict({_check_key(name): freeze(one) for name, one in members})
        case list() | tuple():
            return FrozenList(freeze(one) for one in cast(list[Any], value))
        case _:
            raise ValueError(f"{value!r} is not JSON")


def _check_key(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"the key {name!r} is not a text")
    name.encode()
    return name
