"""What callers and models are told, in the tenant's language."""

import json
import re
import string
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from handrail.core.lazy_loading import LazyModule
from handrail.errors import ConfigError

if TYPE_CHECKING:
    import pkgutil
else:
    pkgutil = LazyModule("pkgutil")  # 0.5 of the 77 ms that a gateway's import adds to Pydantic's.

DEFAULT_LOCALE: Final = "en"
_LANGUAGES: Final = ("de", "en", "es", "fr", "it", "nl", "pt")
"""The languages that there are texts for."""


class Texts:
    """The texts of one locale, with a tenant's own in their place."""

    __slots__ = ("_texts", "locale")

    def __init__(self, locale: str = DEFAULT_LOCALE, *, own: Mapping[str, str] | None = None) -> None:
        self.locale, texts = _find_locale(locale)
        unknown = sorted(set(own or ()) - set(texts))
        if unknown:
            raise ConfigError(f"unknown text {unknown[0]!r}; the texts of a locale are {', '.join(sorted(texts))}.")
        for key, text in (own or {}).items():
            wanted, given = _fields(texts[key]), _fields(text)
            if given - wanted:
                raise ConfigError(
                    f"text {key!r} may use {', '.join(f'{{{name}}}' for name in sorted(wanted)) or 'no fields'}, "
                    f"got {{{sorted(given - wanted)[0]}}}."
                )
        self._texts: Mapping[str, str] = {**texts, **(own or {})}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Texts) and self._texts == other._texts

    def __hash__(self) -> int:
        return hash(self.locale)

    def __call__(self, key: str, **values: Any) -> str:
        """One text, with its fields filled in."""
        text = self._texts[key]
        return text.format(**values) if values else text


@cache
def _load(language: str) -> Mapping[str, str] | None:
    if language not in _LANGUAGES:
        return None
    return json.loads(pkgutil.get_data(__name__, f"locales/{language}.json") or b"")


def _find_locale(locale: str) -> tuple[str, Mapping[str, str]]:
    """The texts of a locale or of its language."""
    for name in (locale.lower(), locale.lower().partition("-")[0]):
        found = _load(name) if re.fullmatch(r"[a-z0-9-]+", name) else None
        if found is not None:
            return name, found
    raise ConfigError(f"locale must be one of {', '.join(_LANGUAGES)}, got {locale!r}: there are no texts for it.")


def _fields(text: str) -> set[str]:
    try:
        fields = [(name, spec) for _, name, spec, _ in string.Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise ConfigError(f"a text must have balanced braces, got {text!r}.") from error
    if formats := [spec for _, spec in fields if spec]:  # A width of a billion is a text of a gigabyte.
        raise ConfigError(f"a text must have fields without a format, got {formats[0]!r}.")
    return {name for name, _ in fields}
