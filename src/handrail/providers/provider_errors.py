"""Converting the errors of SDKs and HTTP libraries to `ProviderError`s that do not contain the key."""

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
    BadResponseError,
    ContextTooLongError,
    ProviderDownError,
    ProviderError,
    ProviderKeyError,
    ProviderLimitError,
    RefusalError,
    UnknownModelError,
    shorten,
)
from handrail.providers.endpoints import NO_KEY, Endpoint

_CONTEXT_TOO_LONG: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|prompt is too long|input is too long"
    r"|exceed(s|ed)? (the )?(maximum number of tokens|available context|context)|request_too_large",
    re.IGNORECASE,
)
_BAD_KEY: Final = re.compile(r"API_KEY_INVALID|API key (not valid|expired)|invalid_api_key", re.IGNORECASE)
_FILTERED: Final = re.compile(r"^(content_filter|content_policy_violation|invalid_prompt)$")
_UNKNOWN_MODEL: Final = re.compile(r"model_not_found|not_found_error|NOT_FOUND|\bmodels?\b", re.IGNORECASE)
_DELAY: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_KEY_MARK: Final = "[key]"


class ErrorDetails(Struct, frozen=True, kw_only=True):
    """What an error response says."""

    status: int | None = None
    code: str = ""
    message: str = ""
    retry_after: float | None = None


def get_transport_errors() -> tuple[type[BaseException], ...]:
    """The exceptions of the HTTP libraries that are loaded; not every SDK wraps them."""
    found: list[type[BaseException]] = [OSError, TimeoutError]
    for module, names in (("httpx", ("HTTPError", "StreamError")), ("httpx2", ("HTTPError", "StreamError"))):
        found += [getattr(sys.modules[module], name) for name in names if module in sys.modules]
    if "aiohttp" in sys.modules:
        found.append(sys.modules["aiohttp"].ClientError)
    return tuple(found)


def read_stainless_error(package: Any, error: Any) -> ErrorDetails | None:
    """Read an exception of the SDKs of OpenAI and Anthropic, which share their structure; None without a response."""
    if isinstance(error, package.APIConnectionError):
        return None
    body = _read_body(getattr(error, "body", None))
    status = getattr(error, "status_code", None)
    kind, code = str(body.get("type") or ""), str(body.get("code") or "")
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", None) or {}
    text = body.get("message")
    return ErrorDetails(
        # An error inside a stream has the status of the stream, 200.
        status=status if isinstance(status, int) and status >= 400 else None,
        code=code or kind,
        message=text if isinstance(text, str) else "",
        retry_after=_read_retry_after(headers),
    )


def read_google_error(error: Any) -> ErrorDetails:
    """Read an exception of Google's SDK."""
    status = getattr(error, "code", None)
    details = _read_body(getattr(error, "details", None))
    text = getattr(error, "message", None)
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", None) or {}
    reasons = [str(detail.get("reason") or "") for detail in _read_details(details)]
    waits = [str(detail.get("retryDelay") or "") for detail in _read_details(details)]
    wait = next((found for item in waits if (found := _DELAY.fullmatch(item))), None)
    return ErrorDetails(
        status=status if isinstance(status, int) and status >= 400 else None,
        code=" ".join([str(getattr(error, "status", None) or ""), *reasons]).strip(),
        message=text if isinstance(text, str) else "",
        retry_after=_read_retry_after(headers) if wait is None else _limit_wait(float(wait[1])),
    )


def _read_details(details: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found: Any = details.get("details")
    if not isinstance(found, list):
        return []
    return [cast(Mapping[str, Any], item) for item in cast(list[Any], found) if isinstance(item, Mapping)]


def _read_body(body: Any) -> Mapping[str, Any]:
    """The error object in a body: OpenAI's SDK has unwrapped it, Anthropic's has not."""
    if not isinstance(body, Mapping):
        return {}
    inner = cast(Mapping[str, Any], body).get("error")
    return cast(Mapping[str, Any], inner) if isinstance(inner, Mapping) else cast(Mapping[str, Any], body)


def _read_retry_after(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 1_000.0), ("retry-after", 1.0)):
        value = headers.get(name)
        if not value:
            continue
        try:
            return _limit_wait(float(value) / unit)
        except ValueError:
            pass
        try:
            return _limit_wait(parsedate_to_datetime(value).timestamp() - time())
        except (OverflowError, TypeError, ValueError):
            pass
    return None


def _limit_wait(seconds: float) -> float | None:
    """A delay of at least 0 seconds; None if the server's value is absurdly long."""
    return max(0.0, seconds) if seconds < 1e9 else None


def build_error(details: ErrorDetails, *, endpoint: Endpoint, model: str) -> ProviderError:
    """Build the `ProviderError` for an error response."""
    title, status = endpoint.title, details.status
    number = f" ({status})" if status else ""
    quote = quote_provider_text(details.message, endpoint)
    searchable = f"{details.code} {details.message}"
    if (
        _BAD_KEY.search(searchable)
        or status in (401, 403)
        or details.code in ("authentication_error", "permission_error")
    ):
        # The provider's text is left out: it may contain the key.
        hint = f"Check {endpoint.provider.key_variables[0]}, or the api_key that was passed."
        return ProviderKeyError(f"{title} refused the key{number}. {hint}", code="key_refused", status=status)
    if status == 413 or _CONTEXT_TOO_LONG.search(searchable):
        return ContextTooLongError(f"The conversation is too long for `{shorten(model)}`{number}{quote}", status=status)
    if _FILTERED.search(details.code):
        return RefusalError(f"{title} would not take the request{number}{quote}", status=status)
    if details.code == "model_not_found" or (status == 404 and _UNKNOWN_MODEL.search(searchable)):
        text = f"{title} has no model `{shorten(model)}`, or this key may not use it{number}{quote}"
        return UnknownModelError(text, status=status)
    if status == 404:
        text = f"{endpoint.host} has no such API{number}; is base_url right? It ends before the name of a method{quote}"
        return ProviderError(text, code="bad_request", status=status)
    if status in (402, 429) or details.code in ("rate_limit_exceeded", "rate_limit_error", "insufficient_quota"):
        wait = f" Retry in {details.retry_after:g} s." if details.retry_after else ""
        text = f"{title} accepts no more requests for now{number}{quote}{wait}"
        return ProviderLimitError(text, status=status, after=details.retry_after)
    if status is None or status >= 500 or status in (408, 409):
        return ProviderDownError(f"{title} failed{number}{quote}", status=status, after=details.retry_after)
    return ProviderError(f"{title} did not take the request{number}{quote}", code="bad_request", status=status)


def build_unreachable_error(error: BaseException, *, endpoint: Endpoint) -> ProviderDownError:
    """The provider did not respond. The HTTP library's text is left out, because it may contain an address."""
    slow = "timeout" in type(error).__name__.lower()
    how = "did not respond in time" if slow else f"could not be reached, or broke off ({type(error).__name__})"
    return ProviderDownError(f"{endpoint.title} {how}.")


def build_cut_stream_error(endpoint: Endpoint) -> ProviderDownError:
    """A stream ended before its last event; what has arrived is discarded, its calls included."""
    return ProviderDownError(f"{endpoint.title} ended the connection in the middle of a response.")


def build_bad_response_error(endpoint: Endpoint, response_noun: str) -> BadResponseError:
    """The response is not one of this API."""
    hint = "Is base_url a server for this API?"
    return BadResponseError(f"{endpoint.host} sent a response that is not {response_noun}. {hint}")


def quote_provider_text(text: str, endpoint: Endpoint) -> str:
    """The provider's text for the end of a sentence: short, printable, and without the key."""
    key = endpoint.api_key
    if key != NO_KEY:
        spellings = {key, quote(key, safe=""), json.dumps(key)[1:-1], base64.b64encode(key.encode()).decode()}
        for spelling in sorted(spellings, key=len, reverse=True):
            text = re.sub(re.escape(spelling), _KEY_MARK, text, flags=re.IGNORECASE)
    short = shorten(" ".join(text.split()), 300)
    return f": {short}" if short else "."
