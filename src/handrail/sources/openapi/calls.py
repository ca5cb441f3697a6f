"""Calling one operation: from the arguments to a request, and from the answer to a result."""

import base64
import binascii
import re
import secrets as randomness
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.media import MediaPart, to_mime_type
from handrail.core.text import compact_json
from handrail.core.values import ToolResult
from handrail.errors import ConfigError, InvalidArgumentsError, ToolError
from handrail.sources.addresses import RequestNotSentError
from handrail.sources.openapi.credentials import Credentials, RequestCredentials
from handrail.sources.openapi.network import ConnectionLostError, HttpClient, HttpRequest, HttpResponse
from handrail.sources.openapi.operations import Body, Operation
from handrail.sources.openapi.pagination import NextPage, Page, Pagination, find_next_link, read_pages

_MAX_REDIRECTS: Final = 5
_MAX_QUOTED: Final = 2_000
"""How much of an error's body the model reads."""
_MIN_SECRET_CHARS: Final = 6
_REDACTED: Final = "[redacted]"
_NEVER_RAN: Final = frozenset({501, 505})
"""Errors of a server that say that it did not even try."""
_CHARSET: Final = re.compile(
    r"charset=[\"']?(utf-?8|utf-16|us-ascii|iso-8859-1[0135]?|iso-8859-[2-9]|windows-125[0-8])\b"
)
"""Other encodings that Python knows are none of a text on the web."""
_SHOWN_OF_HEAD: Final = ("content-type", "content-length", "last-modified", "etag", "location")


class OperationCall:
    """The handler of one operation's tool."""

    def __init__(
        self,
        operation: Operation,
        *,
        client: HttpClient,
        credentials: Credentials,
        timeout: float,
        read_only: bool,
        name: str,
        pagination: Pagination | None = None,
        max_bytes: int = 0,
    ) -> None:
        self._operation = operation
        self._client = client
        self._credentials = credentials
        self._timeout = timeout
        self._read_only = read_only
        self._name = name
        self._pagination = pagination
        self._max_bytes = max_bytes
        """How much the pages of one list may have together."""

    async def __call__(self, arguments: dict[str, Any], context: ToolContext[Any]) -> Any:
        """Send the request. A `ToolError` means that nothing happened; any other error, that nobody knows."""
        try:
            signature = self._credentials.sign(self._operation.security, context.secrets)
        except ConfigError as error:
            log.error("%s cannot be called: %s", self._name, error)
            raise ToolError("The credentials for this API are not configured.", code="unavailable") from error
        redaction = _Redaction(signature)
        if self._pagination is not None:
            return await self._read_pages(self._pagination, arguments, signature, redaction)
        request = build_request(self._operation, arguments, signature, idempotency_key=context.idempotency_key)
        return self._result(await self._ask(request), redaction)

    async def _read_pages(
        self,
        pagination: Pagination,
        arguments: dict[str, Any],
        signature: RequestCredentials,
        redaction: "_Redaction",
    ) -> Any:
        first = build_request(self._operation, arguments, signature)
        argument = next(
            (parameter.argument for parameter in self._operation.parameters if parameter.name == pagination.parameter),
            "",
        )

        async def fetch(following: NextPage | None) -> Page:
            request = first
            if following is not None and following.link is not None:
                # The credentials go with it: a link to another host is the end of the list.
                target = _resolve_same_host(first.url, following.link)
                if target is None:
                    raise ToolError("The API's link to the next page leads to another host, which is not followed.")
                request = msgspec.structs.replace(first, url=target)
            elif following is not None:
                request = build_request(self._operation, {**arguments, argument: following.value}, signature)
            response = await self._ask(request)
            body = self._result(response, redaction)
            return Page(body=body, next_link=find_next_link(response.headers), size=len(response.content))

        number = arguments.get(argument, 1)
        first_number = number if isinstance(number, int) else 1
        return await read_pages(pagination, fetch, first_number=first_number, max_bytes=self._max_bytes)

    async def _ask(self, request: HttpRequest) -> HttpResponse:
        try:
            return await self._send(request)
        except RequestNotSentError as error:
            log.warning("%s was not sent: %s", self._name, error)
            raise ToolError(f"The API cannot be reached: {error}.", code="unavailable", retryable=True) from error
        except ConnectionLostError as error:
            if not self._read_only:
                raise ConnectionError(f"{self._name}: {error}") from error
            raise ToolError(f"The API did not answer: {error}.", code="unavailable", retryable=True) from error

    async def _send(self, request: HttpRequest) -> HttpResponse:
        """Send, and follow redirects as long as they stay on the same host and nothing was done yet."""
        for _ in range(_MAX_REDIRECTS):
            response = await self._client.send(request, timeout=self._timeout)
            location = response.headers.get("location")
            if response.status not in (301, 302, 303, 307, 308) or location is None:
                return response
            if not self._read_only and response.status == 303:
                return response  # It was done; only its description is elsewhere.
            if not self._read_only and response.status in (301, 302):
                raise ConnectionLostError(
                    f"the server answered {response.status}, and did not say whether it did anything"
                )
            target = _resolve_same_host(request.url, location)
            if target is None:
                raise RequestNotSentError("the server redirects to another host, which is not followed")
            request = msgspec.structs.replace(request, url=target)
        raise RequestNotSentError(f"the server redirects more than {_MAX_REDIRECTS} times")

    def _result(self, response: HttpResponse, redaction: "_Redaction") -> Any:
        status = response.status
        if status < 400:
            return redaction.clean(self._output(redaction.clean_bytes(response)))
        said = f"{self._operation.method} {self._operation.path} answered {status}{_get_phrase(status)}"
        if body := redaction.clean_text(_decode_text(response)).strip():
            said = f"{said}: {body[:_MAX_QUOTED]}"
        after = _read_retry_after(response)
        if after is not None:
            said = f"{said} Try again in {after:g} seconds."
        if status >= 500 and not self._read_only and status not in _NEVER_RAN:
            # Nobody knows how far the server came.
            raise ConnectionError(f"{self._name}: the server answered {status}")
        if status == 429:
            raise ToolError(said, code="rate_limited", retryable=True, after=after)
        if status >= 500:
            raise ToolError(said, code="unavailable", retryable=True, after=after)
        raise ToolError(said, retryable=status in (408, 425), after=after)

    def _output(self, response: HttpResponse) -> Any:
        if self._operation.method == "HEAD":
            shown = {name: response.headers[name] for name in _SHOWN_OF_HEAD if name in response.headers}
            return {"status": response.status, "headers": shown}
        if response.is_cut:
            if self._read_only:
                raise ToolError(f"The answer is larger than {len(response.content):,} bytes. Ask for less.")
            return f"Done, with an answer of more than {len(response.content):,} bytes, which is left out."
        if not response.content:
            return {"status": response.status}
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in ("application/json", "") or kind.endswith("+json"):
            try:
                return msgspec.json.decode(response.content)
            except (msgspec.DecodeError, RecursionError):
                return _decode_text(response)
        if _is_text(kind):
            return _decode_text(response)
        media = MediaPart(mime_type=to_mime_type(kind), data=response.content)
        return ToolResult(output={"status": response.status}, media=(media,))


def build_request(
    operation: Operation,
    arguments: Mapping[str, Any],
    signature: RequestCredentials,
    *,
    idempotency_key: str | None = None,
) -> HttpRequest:
    """The request that these arguments stand for."""
    path = operation.path
    query: list[str] = []
    headers: dict[str, str] = {"Accept": "application/json, text/*;q=0.9, */*;q=0.5"}
    cookies: dict[str, str] = {}
    written: dict[str, str] = {}
    for parameter in operation.parameters:
        if parameter.argument not in arguments:
            continue
        value = arguments[parameter.argument]
        if value is None and parameter.place != "path":
            continue
        if parameter.as_json:
            value = compact_json(value)
        match parameter.place:
            case "path":
                written[parameter.name] = format_path_value(
                    parameter.argument,
                    value,
                    parameter.style,
                    explode=parameter.explode,
                    multi_segment=parameter.multi_segment,
                    name=parameter.name,
                )
            case "query":
                pairs = format_query_pairs(
                    parameter.name,
                    value,
                    parameter.style,
                    explode=parameter.explode,
                    allow_reserved=parameter.allow_reserved,
                )
                query += [f"{name}={text}" for name, text in pairs]
            case "header":
                headers[parameter.name] = format_header_value(parameter.argument, value, explode=parameter.explode)
            case "cookie":
                cookies |= dict(format_query_pairs(parameter.name, value, "form", explode=parameter.explode))
    path = re.sub(r"\{([^{}]*)\}", lambda match: written[match[1]], path)
    content, content_type = _encode_body(operation.body, arguments)
    if content_type:
        headers["Content-Type"] = content_type
    if operation.idempotency_header and idempotency_key:
        headers[operation.idempotency_header] = idempotency_key
    # Last, so that no argument takes their place.
    headers = {name: value for name, value in headers.items() if name.lower() not in _lower(signature.headers)}
    headers |= signature.headers
    if cookies or signature.cookies:
        headers["Cookie"] = "; ".join(f"{name}={text}" for name, text in {**cookies, **signature.cookies}.items())
    asked = "&".join([*query, *signature.query])
    # What stands in the template itself may not be legal in a URL; what stands in a value is encoded already.
    url = operation.base_url + quote(path, safe="/%?:@!$&'()*+,;=~-._")
    separator = "&" if "?" in url else "?"
    return HttpRequest(
        method=operation.method, url=f"{url}{separator}{asked}" if asked else url, headers=headers, content=content
    )


def _lower(headers: Mapping[str, str]) -> set[str]:
    return {name.lower() for name in headers}


def _encode_body(body: Body | None, arguments: Mapping[str, Any]) -> tuple[bytes, str | None]:
    """The body, and its media type; none where no argument is for it, unless it is required."""
    if body is None:
        return b"", None
    if body.argument is not None:
        if body.argument not in arguments:
            return b"", None
        value: Any = arguments[body.argument]
    else:
        value = {name: arguments[argument] for argument, name in body.fields.items() if argument in arguments}
        if not value and not body.required:
            return b"", None
    if body.kind in ("form", "multipart") and not isinstance(value, dict):
        raise InvalidArgumentsError(f"`{body.argument}` is sent as a form: it must be an object.")
    match body.kind:
        case "json":
            return compact_json(value).encode(), body.media_type
        case "form":
            return format_form(cast(dict[str, Any], value), body.styles).encode(), body.media_type
        case "multipart":
            return _encode_multipart(cast(dict[str, Any], value), body.files)
        case "text":
            return format_value(value).encode(), f"{body.media_type}; charset=utf-8"
        case "binary":
            return _decode_base64(body.argument or "body", value), body.media_type


def _encode_multipart(fields: Mapping[str, Any], files: frozenset[str]) -> tuple[bytes, str]:
    boundary = randomness.token_hex(16)
    lines: list[bytes] = []
    for name, value in fields.items():
        plain = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
        values: list[Any] = cast(Any, value) if isinstance(value, list) else [value]
        for item in values:
            if item is None and name in files:
                continue
            head = f'--{boundary}\r\nContent-Disposition: form-data; name="{plain}"'
            if name in files:
                head += '; filename="file"\r\nContent-Type: application/octet-stream'
                data = _decode_base64(name, item)
            elif isinstance(item, dict):
                head += "\r\nContent-Type: application/json"
                data = compact_json(item).encode()
            else:
                data = format_value(item).encode()
            lines += [head.encode(), b"", data]
    return b"\r\n".join([*lines, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"


def _decode_base64(name: str, value: Any) -> bytes:
    try:
        return base64.b64decode(str(value), validate=True)
    except binascii.Error as error:
        raise InvalidArgumentsError(f"`{name}` must be Base64.", places=[name]) from error


def _resolve_same_host(url: str, location: str) -> str | None:
    """Where a redirect leads, if it stays: on the same origin, or from http to https on the usual ports."""
    try:
        target = urljoin(url, location)
        here, there = urlsplit(url), urlsplit(target)
        same = (here.scheme, here.port) == (there.scheme, there.port)
        safer = (
            (here.scheme, there.scheme) == ("http", "https") and here.port in (None, 80) and there.port in (None, 443)
        )
    except ValueError:
        return None
    return target if here.hostname == there.hostname and (same or safer) else None


class _Redaction:
    """Removes the credentials of a request from what the server answers, where it repeats them."""

    def __init__(self, signature: RequestCredentials) -> None:
        self._secrets = [secret for secret in signature.secrets if len(secret) >= _MIN_SECRET_CHARS]

    def clean(self, value: Any) -> Any:
        """A decoded value without the credentials, however they were escaped or encoded."""
        if not self._secrets:
            return value
        match value:
            case str():
                for secret in self._secrets:
                    value = value.replace(secret, _REDACTED)
                return value
            case dict():
                members = cast(dict[str, Any], value).items()
                return {self.clean(name): self.clean(member) for name, member in members}
            case list():
                return [self.clean(item) for item in cast(list[Any], value)]
            case _:
                return value

    def clean_text(self, text: str) -> str:
        """A text without the credentials; one that is JSON may have them in escaped form."""
        if not self._secrets:
            return text
        try:
            decoded = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return self.clean(text)
        cleaned = self.clean(decoded)
        return self.clean(text) if cleaned == decoded else compact_json(cleaned)

    def clean_bytes(self, response: HttpResponse) -> HttpResponse:
        """An answer without the credentials in its bytes, for what is not decoded here."""
        content = response.content
        for secret in self._secrets:
            for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
                content = content.replace(secret.encode(encoding), _REDACTED.encode(encoding))
        return response if content is response.content else msgspec.structs.replace(response, content=content)


def _read_retry_after(response: HttpResponse) -> float | None:
    """The seconds of a `Retry-After` header, which has a number of them or a date."""
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, round(parsedate_to_datetime(text).timestamp() - time.time()))
    except (ValueError, TypeError, OverflowError):
        return None


def _is_text(kind: str) -> bool:
    return (
        kind.startswith("text/")
        or kind in ("application/xml", "application/yaml", "application/javascript")
        or kind.endswith("+xml")
    )


def _decode_text(response: HttpResponse) -> str:
    found = _CHARSET.search(response.headers.get("content-type", "").lower())
    return response.content.decode(found[1] if found else "utf-8", errors="replace")


def _get_phrase(status: int) -> str:
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""


_RESERVED: Final = ":/?[]@!$'()*,;"
"""What `allowReserved` lets through: not `#`, `&`, `=` and `+`, which would change the query itself."""
_SEPARATORS: Final = {"spaceDelimited": "%20", "pipeDelimited": "%7C", "form": ","}


def format_value(value: Any) -> str:
    """One value as text."""
    return value if isinstance(value, str) else compact_json(value)


def format_path_value(
    argument: str, value: Any, style: str, *, name: str, explode: bool, multi_segment: bool = False
) -> str:
    """A value for a path template."""

    def encode(one: Any) -> str:
        return quote(format_value(one), safe="/" if multi_segment else "")

    prefix, joint = {"label": (".", "." if explode else ","), "matrix": (";", ";" if explode else ",")}.get(
        style, ("", ",")
    )
    label = f"{quote(name, safe='')}=" if style == "matrix" else ""
    if isinstance(value, dict):
        pairs = [(encode(key), encode(member)) for key, member in cast(dict[str, Any], value).items()]
        if explode:
            written = prefix + joint.join(f"{key}={pair}" for key, pair in pairs)
        else:
            written = prefix + label + joint.join(part for pair in pairs for part in pair)
    elif isinstance(value, list):
        parts = [encode(item) for item in cast(list[Any], value)]
        each = label if explode else ""
        written = prefix + (label if not explode else "") + joint.join(each + part for part in parts)
    else:
        written = prefix + label + encode(value)
    segments = written.split("/") if multi_segment else [written]
    if any(segment in ("", ".", "..") for segment in segments):
        # Nothing, or a step upwards, would make this another operation's path.
        raise InvalidArgumentsError(
            f"`{argument}` is part of a path: it cannot be empty, `.` or `..`.", places=[argument]
        )
    return written


def format_query_pairs(
    name: str, value: Any, style: str, *, explode: bool, allow_reserved: bool = False
) -> Iterator[tuple[str, str]]:
    """A value for a query or a form, as names and values that are encoded already."""

    def encode(one: Any) -> str:
        return quote(format_value(one), safe=_RESERVED if allow_reserved else "")

    if style == "deepObject":
        for path, leaf in _iterate_leaves(name, value):
            yield quote(path, safe=""), encode(leaf)
    elif isinstance(value, dict):
        pairs = [(encode(key), encode(member)) for key, member in cast(dict[str, Any], value).items()]
        if explode and style == "form":
            yield from pairs
        elif pairs:
            yield quote(name, safe=""), _SEPARATORS.get(style, ",").join(part for pair in pairs for part in pair)
    elif isinstance(value, list):
        parts = [encode(item) for item in cast(list[Any], value)]
        if explode:
            yield from ((quote(name, safe=""), part) for part in parts)
        elif parts:
            yield quote(name, safe=""), _SEPARATORS.get(style, ",").join(parts)
    else:
        yield quote(name, safe=""), encode(value)


def format_header_value(name: str, value: Any, *, explode: bool) -> str:
    """A value for a header, which a line break must never end."""
    if isinstance(value, dict):
        pairs = cast(dict[str, Any], value).items()
        text = ",".join(
            f"{key}={format_value(pair)}" if explode else f"{key},{format_value(pair)}" for key, pair in pairs
        )
    elif isinstance(value, list):
        text = ",".join(format_value(item) for item in cast(list[Any], value))
    else:
        text = format_value(value)
    if not text.isascii() or not text.isprintable():
        raise InvalidArgumentsError(f"`{name}` is sent as a header: only printable ASCII fits.", places=[name])
    return text


def format_form(fields: Mapping[str, Any], styles: Mapping[str, tuple[str, bool]]) -> str:
    """An `application/x-www-form-urlencoded` body; each field has its style, and whether it is exploded."""
    pairs: list[tuple[str, str]] = []
    for name, value in fields.items():
        style, explode = styles.get(name, ("form", True))
        if name not in styles and isinstance(value, dict):
            value = compact_json(value)  # What OpenAPI says of an object that has no style.
        pairs += format_query_pairs(name, value, style, explode=explode)
    return "&".join(f"{name}={value}" for name, value in pairs)


def _iterate_leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every value inside a value, each with its path in brackets: `filter[price][min]`, `items[0]`."""
    if isinstance(value, dict):
        for key, member in cast(dict[str, Any], value).items():
            yield from _iterate_leaves(f"{path}[{key}]", member)
    elif isinstance(value, list):
        for index, item in enumerate(cast(list[Any], value)):
            yield from _iterate_leaves(f"{path}[{index}]", item)
    else:
        yield path, "" if value is None else value
