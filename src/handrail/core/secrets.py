"""References to secrets, which are resolved when a call needs them."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from handrail.core.lazy_loading import LazyModule
from handrail.core.redact import hide_value
from handrail.errors import ConfigError

if TYPE_CHECKING:
    import pathlib
else:
    pathlib = LazyModule("pathlib")

Reference = str | Callable[[], str]


class Secrets(Mapping[str, str]):
    """A mapping of secrets by name. A value is fetched on access, and never shown in a repr."""

    __slots__ = ("_references",)

    def __init__(self, references: Mapping[str, Reference]) -> None:
        for name, reference in references.items():
            if not callable(reference) and not _is_reference(reference):
                # The value itself is not in the message: it may be a secret.
                raise ConfigError(
                    f"The secret `{name}` must be a reference: 'env:NAME', 'file:/path' or a function. "
                    f"A literal secret does not belong into a configuration."
                )
        self._references = dict(references)

    def __getitem__(self, name: str) -> str:
        return resolve_reference(self._references[name], name=f"The secret `{name}`")

    def __contains__(self, name: object) -> bool:
        return name in self._references  # Does not fetch the value.

    def __iter__(self) -> Iterator[str]:
        return iter(self._references)

    def __len__(self) -> int:
        return len(self._references)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._references)})"


class LayeredSecrets(Mapping[str, str]):
    """The secrets of an executor, and for other names those of a call's own context; a value that is read is hidden
    from then on, as in `resolve_reference`."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Mapping[str, str], second: Mapping[str, str]) -> None:
        self._first = first
        self._second = second

    def __getitem__(self, name: str) -> str:
        if name in self._first:
            return self._first[name]
        value = self._second[name]
        if isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller's
            hide_value(value, is_callers=True)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._first or name in self._second

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._first, *self._second)))

    def __len__(self) -> int:
        return len(self._first.keys() | self._second.keys())  # `tuple(self)` would ask for the length.

    def __repr__(self) -> str:
        return f"LayeredSecrets({', '.join(self)})"


def check_reference(reference: object, *, name: str) -> None:
    """Refuse a value that is not a reference to a secret: `env:NAME`, `file:/path`, `secret:name`, or a function."""
    if not callable(reference) and not _is_reference(reference, ("env", "file", "secret")):
        # The value itself is not in the message: it may be a secret.
        raise ConfigError(
            f"{name} must be a reference: 'env:NAME', 'file:/path', 'secret:name' or a function. "
            f"A literal secret does not belong into a configuration."
        )


def resolve_reference(reference: Reference, *, name: str, secrets: Mapping[str, str] | None = None) -> str:
    """Fetch the value of a reference; `secret:name` is looked up in `secrets`, which come from a call's context.

    From now on the value is redacted in everything that this process logs.
    """
    value = _fetch_value(reference, name=name, secrets=secrets)
    hide_value(value, is_callers=isinstance(reference, str) and reference.startswith("secret:"))
    return value


def _fetch_value(reference: Reference, *, name: str, secrets: Mapping[str, str] | None) -> str:
    if callable(reference):
        return reference()
    kind, _, place = reference.partition(":")
    if kind == "env":
        if place not in os.environ:
            raise ConfigError(f"{name} refers to the environment variable {place}, which is not set.")
        return os.environ[place]
    if kind == "secret":
        if place not in (secrets or {}):
            raise ConfigError(f"{name} refers to the secret `{place}`, which is not among the secrets of this call.")
        return (secrets or {})[place]
    try:
        return pathlib.Path(place).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{name} refers to a file that cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        # Not chained: the original error contains the bytes.
        raise ConfigError(f"{name} refers to a file that is not text in UTF-8.") from None


def _is_reference(reference: Any, kinds: tuple[str, ...] = ("env", "file")) -> bool:
    if not isinstance(reference, str):
        return False
    kind, _, place = reference.partition(":")
    return kind in kinds and bool(place)
