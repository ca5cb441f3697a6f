"""What went wrong with a provider, as one of our own errors, without a key in it."""

import base64
import json
import re
import sys
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, Final, cast
from urllib.parse import quote

from msgspec import Struct

from handrail.errors import (
    BadAnswerError,
    ContextTooLongError,
    ProviderDownError,
    ProviderError,
    ProviderKeyError,
    ProviderLimitError,
    RefusalError,
    UnknownModelError,
    shorten,
)
from handrail.providers.connect import NO_KEY, Access

_TOO_LONG: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|prompt is too long|input is too long"
    r"|exceed(s|ed)? (the )?(maximum number of tokens|available context|context)|request_too_large",
    re.IGNORECASE,
)
_BAD_KEY: Final = re.compile(r"API_KEY_INVALID|API key (not valid|expired)|invalid_api_key", re.IGNORECASE)
_FILTERED: Final = re.compile(r"^(content_filter|content_policy_violation|invalid_prompt)$")
_UNKNOWN_MODEL: Final = re.compile(r"model_not_found|not_found_error|NOT_FOUND|\bmodels?\b", re.IGNORECASE)
_DELAY: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_HIDDEN: Final = "[key]"


class Told(Struct, frozen=True, kw_only=True):
    """What a provider said of its own failure."""

    status: int | None = None
    code: str = ""
    text: str = ""
    after: float | None = None


def transport_errors() -> tuple[type[BaseException], ...]:
    """What the HTTP libraries under the SDKs raise, of those that are loaded; not every SDK hides them."""
    found: list[type[BaseException]] = [OSError, TimeoutError]
    for module, names in (("httpx", ("HTTPError", "StreamError")), ("httpx2", ("HTTPError", "StreamError"))):
        found += [getattr(sys.modules[module], name) for name in names if module in sys.modules]
    if "aiohttp" in sys.modules:
        found.append(sys.modules["aiohttp"].ClientError)
    return tuple(found)


def from_stainless(error: Any) -> Told:
    """What the SDKs of OpenAI and Anthropic, which are made alike, say of an answer with an error."""
    body = _inner(getattr(error, "body", None))
    status = getattr(error, "status_code", None)
    kind, code = str(body.get("type") or ""), str(body.get("code") or "")
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", None) or {}
    text = body.get("message")
    return Told(
        # An error inside of a stream comes with the status of the stream.
        status=status if isinstance(status, int) and status >= 400 else None,
        code=code or kind,
        text=text if isinstance(text, str) else "",
        after=_after(headers),
    )


def from_google(error: Any) -> Told:
    """What Google's SDK says of an answer with an error."""
    status = getattr(error, "code", None)
    details = _inner(getattr(error, "details", None))
    text = getattr(error, "message", None)
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", None) or {}
    reasons = [str(one.get("reason") or "") for one in _listed(details)]
    waits = [str(one.get("retryDelay") or "") for one in _listed(details)]
    wait = next((found for one in waits if (found := _DELAY.fullmatch(one))), None)
    return Told(
        status=status if isinstance(status, int) and status >= 400 else None,
        code=" ".join([str(getattr(error, "status", None) or ""), *reasons]).strip(),
        text=text if isinstance(text, str) else "",
        after=_after(headers) if wait is None else _waited(float(wait[1])),
    )


def _listed(details: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found: Any = details.get("details")
    if not isinstance(found, list):
        return []
    return [cast(Mapping[str, Any], one) for one in cast(list[Any], found) if isinstance(one, Mapping)]


def _inner(body: Any) -> Mapping[str, Any]:
    """The part of an error's body that says something: OpenAI's SDK has taken it out, Anthropic's has not."""
    if not isinstance(body, Mapping):
        return {}
    inner = cast(Mapping[str, Any], body).get("error")
    return cast(Mapping[str, Any], inner) if isinstance(inner, Mapping) else cast(Mapping[str, Any], body)


def _after(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 1_000.0), ("retry-after", 1.0)):
        value = headers.get(name)
        if not value:
            continue
        try:
            return _waited(float(value) / unit)
        except ValueError:
            pass
        try:
            return _waited(parsedate_to_datetime(value).timestamp() - time())
        except (TypeError, ValueError):
            pass
    return None


def _waited(seconds: float) -> float | None:
    """A time that one can wait; the header is whatever the server sent."""
    return max(0.0, seconds) if seconds < 1e9 else None


def as_error(told: Told, *, access: Access, model: str) -> ProviderError:
    """Our error for what a provider said."""
    title, status = access.title, told.status
    number = f" ({status})" if status else ""
    said = quoted(told.text, access)
    known = f"{told.code} {told.text}"
    if _BAD_KEY.search(known) or status in (401, 403) or told.code in ("authentication_error", "permission_error"):
        # What it says of a key may hold the key, or enough of it.
        hint = f"Check {access.place.key[0]}, or the api_key that was passed."
        return ProviderKeyError(f"{title} refused the key{number}. {hint}", code="key_refused", status=status)
    if status == 413 or _TOO_LONG.search(known):
        return ContextTooLongError(f"The conversation is too long for `{shorten(model)}`{number}{said}", status=status)
    if _FILTERED.search(told.code):
        return RefusalError(f"{title} would not take the request{number}{said}", status=status)
    if told.code == "model_not_found" or (status == 404 and _UNKNOWN_MODEL.search(known)):
        text = f"{title} has no model `{shorten(model)}`, or this key may not use it{number}{said}"
        return UnknownModelError(text, status=status)
    if status == 404:
        text = f"{access.host} has no such API{number}; is base_url right? It ends before the name of a method{said}"
        return ProviderError(text, code="bad_request", status=status)
    if status in (402, 429) or told.code in ("rate_limit_exceeded", "rate_limit_error", "insufficient_quota"):
        wait = f" Ask again in {told.after:g} s." if told.after else ""
        text = f"{title} takes no more requests for now{number}{said}{wait}"
        return ProviderLimitError(text, status=status, after=told.after)
    if status is None or status >= 500 or status in (408, 409):
        return ProviderDownError(f"{title} failed{number}{said}", status=status, after=told.after)
    return ProviderError(f"{title} did not take the request{number}{said}", code="bad_request", status=status)


def unreachable(error: BaseException, *, access: Access) -> ProviderDownError:
    """The provider did not answer; what the HTTP library says of it stays behind, because an address may be in it."""
    slow = "timeout" in type(error).__name__.lower()
    how = "did not answer in time" if slow else f"could not be reached, or broke off ({type(error).__name__})"
    return ProviderDownError(f"{access.title} {how}.")


def cut(access: Access) -> ProviderDownError:
    """A stream that ended before its last event; what has arrived of it is dropped, calls above all."""
    return ProviderDownError(f"{access.title} broke off in the middle of its answer.")


def not_understood(access: Access, what: str) -> BadAnswerError:
    """What came back is not what this API sends."""
    hint = "Does base_url lead to a server that speaks this API?"
    return BadAnswerError(f"{access.host} answered with something that is not {what}. {hint}")


def quoted(text: str, access: Access) -> str:
    """What a provider said, to be put behind a sentence: short, printable, and without the key."""
    key = access.key
    if key != NO_KEY:
        spellings = {key, quote(key, safe=""), json.dumps(key)[1:-1], base64.b64encode(key.encode()).decode()}
        for one in sorted(spellings, key=len, reverse=True):
            text = re.sub(re.escape(one), _HIDDEN, text, flags=re.IGNORECASE)
    short = shorten(" ".join(text.split()), 300)
    return f": {short}" if short else "."
