"""The words of each language: how people agree and refuse, and the questions that Handrail asks them."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from handrail.errors import ConfigError

__all__ = ["LANGUAGES", "load_locale"]

LANGUAGES: Final = ("en", "fr", "de", "es", "it", "nl", "pt", "pl", "ru", "zh", "ja")


def load_locale(locale: str) -> Mapping[str, str]:
    """Load the words of a locale such as `fr` or `pt-BR`; raises `ConfigError` if there are none for its language."""
    language = locale.lower().replace("_", "-").partition("-")[0]
    if language not in LANGUAGES:
        raise ConfigError(f"locale must be one of {', '.join(LANGUAGES)}, got {locale!r}.")
    return _load_language(language)


@cache
def _load_language(language: str) -> Mapping[str, str]:
    return json.loads(files("handrail.core.locales").joinpath(f"{language}.json").read_text("utf-8"))
