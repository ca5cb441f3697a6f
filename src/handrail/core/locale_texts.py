"""The words of each language: how people agree and refuse, and the questions that Handrail asks them."""

import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from handrail.core.lazy_loading import LazyModule
from handrail.errors import ConfigError

if TYPE_CHECKING:
    import pkgutil
else:
    pkgutil = LazyModule("pkgutil")  # importlib.resources: 3 of the 77 ms that a gateway's import adds to Pydantic's.

LANGUAGES: Final = ("en", "fr", "de", "es", "it", "nl", "pt", "pl", "ru", "zh", "ja")


def load_locale(locale: str) -> Mapping[str, str]:
    """Load the words of a locale such as `fr` or `pt-BR`; raises `ConfigError` if there are none for its language."""
    language = _get_language(locale)
    if language not in LANGUAGES:
        raise ConfigError(f"locale must be one of {', '.join(LANGUAGES)}, got {locale!r}.")
    return _load_language(language)


def select_locale(*locales: str | None) -> str:
    """Select the first of some locales that has words; `en` if none has."""
    return next((locale for locale in locales if locale and _get_language(locale) in LANGUAGES), "en")


def _get_language(locale: str) -> str:
    return locale.lower().replace("_", "-").partition("-")[0]


@cache
def _load_language(language: str) -> Mapping[str, str]:
    return json.loads(pkgutil.get_data(__name__, f"locales/{language}.json") or b"")
