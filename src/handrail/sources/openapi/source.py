"""`OpenApi`: the operations of an OpenAPI document as tools."""

import asyncio
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast
from urllib.parse import urljoin, urlsplit

from handrail.core.log import log
from handrail.core.secrets import Reference
from handrail.core.tool import Tool
from handrail.define.options import NamedToolOptions, normalize_options
from handrail.errors import ConfigError, SourceError, ToolDefinitionError, shorten
from handrail.schema.json_schema_arguments import MAX_CHECKS, build_from_checked_schema, is_explosive
from handrail.sources.addresses import AddressRefusedError, RequestNotSentError, find_address_problem
from handrail.sources.openapi.calls import OperationCall
from handrail.sources.openapi.credentials import Credentials
from handrail.sources.openapi.document import (
    MAX_BYTES,
    Documents,
    UnusableError,
    from_mapping,
    open_document,
    read_file,
)
from handrail.sources.openapi.network import ConnectionLostError, HttpClient, HttpRequest, check_url
from handrail.sources.openapi.operation_list import OperationEntry, choose_entries, list_entries, parse_selector
from handrail.sources.openapi.operations import Operation, OperationCompiler
from handrail.sources.openapi.pagination import Pagination
from handrail.sources.source import SkippedTool, SourceState, SourceStatus, run_in_thread

_FIRST_PAUSE: Final = 0.5
_MAX_PAUSE: Final = 30.0
"""Seconds between two attempts to load a document whose server is away."""
_LATER_STATUSES: Final = (408, 425, 429, 500, 502, 503, 504)
_OPTIONS: Final = NamedToolOptions.__annotations__.keys() - {"source", "metadata", "inline"}
"""What an override may say of a tool."""

ValueT = TypeVar("ValueT")


class _DocumentAwayError(SourceError):
    """A document that cannot be read now, and perhaps later."""


class OpenApi:
    """The operations of an OpenAPI document, one tool for each.

    Secrets are references (`env:NAME`, `file:/path`, `secret:name` for one of the call's own), never values. They are
    sent to the hosts that you name and to no other one of the document: that of `base_url`, `hosts`, and that of the
    URL where the document is.

    Args:
        source: A path, an http or https URL, or the document as a mapping.
        name: The name of the source, to select its tools by; by default that of the file or host.
        bearer: The bearer token.
        basic: Name and password, as `name:password` or as a pair.
        api_key: The key of the document's `apiKey` scheme; or several, by the names of their schemes.
        base_url: The server to call instead of the document's.
        hosts: Further hosts that may get the secrets.
        include: Only these operations, by id, tag, path or method.
        exclude: None of these.
        overrides: Options of the tool for each selector, such as `{"getOrder": {"read_only": True}}`.
        paginate: A `Pagination` for each selector of lists that come in pages.
        output_schemas: Tools have the schema of a successful response, for clients that want one; APIs often do not
            follow it exactly.
        allow_private: Servers in a private network may be called.
        timeout: Seconds that one request may take.
        max_response_bytes: The size of a response; a longer one is an error.
        max_document_bytes: The size of a document at a URL, with those that it refers to: further ones are not read.
        max_tools: How many operations are taken, in the order of the document; further ones are skipped. All of them
            without a number.
    """

    def __init__(
        self,
        source: str | Path | Mapping[str, Any],
        *,
        name: str | None = None,
        bearer: Reference | None = None,
        basic: Reference | tuple[str, Reference] | None = None,
        api_key: Reference | Mapping[str, Reference] | None = None,
        base_url: str | None = None,
        hosts: Iterable[str] = (),
        include: Iterable[str] | None = None,
        exclude: Iterable[str] | None = None,
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        paginate: Mapping[str, Pagination] | None = None,
        output_schemas: bool = False,
        allow_private: bool = False,
        timeout: float = 30.0,
        max_response_bytes: int = 4 * 1024 * 1024,
        max_document_bytes: int = MAX_BYTES,
        max_tools: int | None = None,
    ) -> None:
        if not timeout > 0:
            raise ConfigError(f"timeout must be more than 0 seconds, got {timeout!r}.")
        for option, limit in (("max_response_bytes", max_response_bytes), ("max_document_bytes", max_document_bytes)):
            if limit < 1:
                raise ConfigError(f"{option} must be at least 1, got {limit!r}.")
        if max_tools is not None and max_tools < 1:
            raise ConfigError(f"max_tools must be at least 1, got {max_tools!r}.")
        if _is_url(source):
            try:
                _ = urlsplit(cast(str, source)).port
            except ValueError as error:
                raise ConfigError(
                    f"source must be a valid URL, got {shorten(cast(str, source))!r}: {error}."
                ) from error
        self._source = source
        self.name = name or _name_of(source)
        self._credentials = Credentials(bearer=bearer, basic=basic, api_key=api_key)
        self._base_url = None if base_url is None else _check_base_url(base_url)
        self._hosts = frozenset(_list_hosts(source, self._base_url, hosts))
        """The hosts that the developer has named."""
        self._include = include
        self._exclude = exclude
        self._overrides = _check_overrides(overrides or {})
        self._paginate = _check_paginate(paginate or {})
        self._output_schemas = output_schemas
        self._allow_private = allow_private
        self._timeout = timeout
        self._max_response_bytes = max_response_bytes
        self._max_document_bytes = max_document_bytes
        self._max_tools = max_tools
        self._client = HttpClient(allow_private=allow_private, max_bytes=max_response_bytes)
        self._checked: set[str] = set()
        """The servers that may be asked, as far as that is known before their names are looked up."""
        self._tools: tuple[Tool[..., Any], ...] | None = None
        self._skipped: tuple[SkippedTool, ...] = ()
        self.away: frozenset[str] = frozenset()
        """The documents that it refers to which could not be read yet: operations are skipped for want of them."""

    def tools(self) -> tuple[Tool[..., Any], ...]:
        """The tools, in the order of the document. A document at a URL has to be loaded first."""
        if self._tools is None:
            if _is_url(self._source):
                raise ConfigError(
                    f"The document at {self._source} is not loaded yet: use `async with connect([OpenApi(…)])`, "
                    f"or `await source.load()` before `source.tools()`."
                )
            if isinstance(self._source, Mapping):
                self._build(from_mapping(self._source))
            else:
                self._build(read_file(Path(cast(str, self._source)), timeout=self._timeout))
        return self._tools or ()

    @property
    def skipped(self) -> tuple[SkippedTool, ...]:
        """The operations that are no tools, each with the reason."""
        self.tools()
        return self._skipped

    async def load(self) -> Self:
        """Read the document, over the network if it is at a URL: once, or again while a part of it is `away`."""
        if self._tools is None or self.away:
            if _is_url(self._source):
                documents, away = await self._fetch(cast(str, self._source))
                if self._tools is None or away != self.away:
                    await run_in_thread(self.name, self._build, documents)  # Thousands of schemas are compiled here.
                    self.away = away
            else:
                await run_in_thread(self.name, self.tools)
        return self

    async def aclose(self) -> None:
        """Close the HTTP connections; another call opens them again."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return await self.load()

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def open(
        self, *, on_change: Callable[[], None] | None = None, secrets: Mapping[str, str] | None = None
    ) -> "_OpenDocument":
        """Load the document, for `connect`. Its tools do not change once it is loaded; while it or a document that it
        refers to is away, it is loaded again and again."""
        return await _OpenDocument(self, on_change).start()

    def __repr__(self) -> str:
        return f"OpenApi({self.name!r})"

    # Reading.

    async def _fetch(self, url: str) -> tuple[Documents, frozenset[str]]:
        """The document with those that it refers to, and the addresses of those that are away."""
        client = HttpClient(allow_private=self._allow_private, max_bytes=self._max_document_bytes)
        documents: Documents | None = None
        asked, away = url, set[str]()
        try:
            async with asyncio.timeout(self._timeout):
                data, address = await self._read(client, url)
                asked = ""
                documents = await run_in_thread(self.name, open_document, address, data, where=url)
                left = self._max_document_bytes - len(data)
                while (other := documents.next_unread()) is not None:
                    try:
                        if left <= 0:
                            most = f"{self._max_document_bytes:,} bytes"
                            raise SourceError(f"The document at {url} has more than {most} with those it refers to.")
                        asked = other
                        content, _ = await self._read(client, other)
                        asked = ""
                        left -= len(content)
                        await run_in_thread(self.name, documents.add, other, content)
                    except SourceError as error:
                        documents.add_failure(other, str(error))
                        if isinstance(error, _DocumentAwayError):
                            away.add(other)
        except TimeoutError as error:
            message = f"The document at {asked or url} was not there within {self._timeout:g} seconds."
            if documents is None or not asked:
                raise (_DocumentAwayError if asked else SourceError)(message) from error
            documents.add_failure(asked, message)
            away.add(asked)
        finally:
            await client.aclose()
        return documents, frozenset(away)

    async def _read(self, client: HttpClient, url: str) -> tuple[bytes, str]:
        """A document, and the address where it was in the end: on the host that was asked."""
        here = url
        accept = {"Accept": "application/json, application/yaml, text/yaml;q=0.9, */*;q=0.5"}
        for _ in range(5):
            try:
                response = await client.send(HttpRequest(method="GET", url=here, headers=accept), timeout=self._timeout)
            except AddressRefusedError as error:
                raise SourceError(f"The document at {url} cannot be read: {error}.") from error
            except (RequestNotSentError, ConnectionLostError) as error:
                raise _DocumentAwayError(f"The document at {url} cannot be read: {error}.") from error
            location = response.headers.get("location")
            if response.status in (301, 302, 303, 307, 308) and location:
                here = urljoin(here, location)
                if urlsplit(here).hostname != urlsplit(url).hostname:
                    raise SourceError(f"The document at {url} is redirected to another host, which is not followed.")
                continue
            if response.status != 200:
                kind = _DocumentAwayError if response.status in _LATER_STATUSES else SourceError
                raise kind(f"The document at {url} cannot be read: the server answered {response.status}.")
            if response.is_cut:
                raise SourceError(f"The document at {url} is larger than {self._max_document_bytes:,} bytes.")
            return response.content, here
        raise SourceError(f"The document at {url} is redirected too often.")

    # Building.

    def _build(self, documents: Documents) -> None:
        skipped: list[SkippedTool] = []

        def skip(name: str, reason: str) -> None:
            skipped.append(SkippedTool(name=name, reason=reason))

        compiler = OperationCompiler(documents, base_url=self._base_url, output_schemas=self._output_schemas)
        self._credentials.use_schemes(compiler.security_schemes())
        listed = list_entries(documents, skip)
        overrides = _match(self._overrides, listed, "overrides")
        paginate = _match(self._paginate, listed, "paginate")
        tools: dict[str, Tool[..., Any]] = {}
        chosen = choose_entries(listed, self._include, self._exclude)
        if self._max_tools is not None and len(chosen) > self._max_tools:
            skip(
                "further operations",
                f"only the first {self._max_tools:,} of {len(chosen):,} are taken: name some with include",
            )
            chosen = chosen[: self._max_tools]
        for entry in chosen:
            try:
                options = {key: value for override in overrides.get(id(entry), ()) for key, value in override.items()}
                pagination = paginate.get(id(entry), [None])[-1]
                tool = self._build_tool(entry, compiler.compile(entry), options, pagination)
            except (UnusableError, ToolDefinitionError) as reason:
                skip(entry.name, f"{entry.method} {entry.path}: {shorten(str(reason), 500)}")
            except RecursionError:
                skip(entry.name, f"{entry.method} {entry.path}: its schema is nested too deeply")
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                # The document has a value of another kind where OpenAPI wants a text, a list or an object.
                reason = f"it is not as OpenAPI wants it ({type(error).__name__}: {shorten(str(error), 200)})"
                skip(entry.name, f"{entry.method} {entry.path}: {reason}")
            else:
                if tool.name in tools:
                    raise ConfigError(f"overrides give the name {tool.name!r} to two operations.")
                tools[tool.name] = tool
        self._tools, self._skipped = tuple(tools.values()), tuple(skipped)

    def _build_tool(
        self,
        entry: OperationEntry,
        operation: Operation,
        overrides: Mapping[str, Any],
        pagination: Pagination | None,
    ) -> Tool[..., Any]:
        if operation.base_url not in self._checked:
            self._check_server(operation.base_url)
            self._checked.add(operation.base_url)
        host = (urlsplit(operation.base_url).hostname or "").lower()
        if self._credentials and operation.security != () and host not in self._hosts:
            raise UnusableError(
                f"credentials are not sent to {host}, which only the document names; "
                f"pass hosts=[{host!r}] if they are meant for it, or base_url='https://…'"
            )
        read_only = entry.method in ("GET", "HEAD")
        options: dict[str, Any] = {
            "name": entry.name,
            "description": operation.description,
            "read_only": read_only,
            "concurrency_safe": read_only,
            "idempotent": operation.idempotency_header is not None,
            "timeout": self._timeout,
            "tags": entry.tags,
            **overrides,
        }
        options["tags"] = frozenset(options["tags"]) | entry.tags
        if pagination is not None:
            _check_pages(entry, operation, pagination)
        call = OperationCall(
            operation,
            client=self._client,
            credentials=self._credentials,
            timeout=options["timeout"],
            read_only=options["read_only"] is True,
            name=options["name"],
            pagination=pagination,
            max_bytes=self._max_response_bytes,
        )
        if "$defs" in operation.input_schema and is_explosive(operation.input_schema):
            raise UnusableError(f"its schema means more than {MAX_CHECKS:,} checks of one value")
        arguments = build_from_checked_schema(operation.input_schema, name=options["name"])
        return Tool(
            input_schema=arguments.input_schema,
            output_schema=operation.output_schema if pagination is None else None,
            function=call,
            handler=call,
            parse=arguments.parse,
            parsers=arguments.build_parsers(),
            dump=arguments.dump,
            source=f"openapi:{self.name}",
            metadata={"method": entry.method, "path": entry.path, "operation_id": entry.operation_id, "host": host},
            aclose=self.aclose,
            **normalize_options(options),
        )

    def _check_server(self, url: str) -> None:
        """Refuse at once what every call would be refused for."""
        try:
            parts = check_url(url)
        except AddressRefusedError as reason:
            raise UnusableError(str(reason)) from reason
        host = parts.hostname or ""
        try:
            problem = find_address_problem(host, allow_private=self._allow_private)
        except ValueError:  # A name; its addresses are checked when it is connected to.
            problem = None
            if host == "localhost" and not self._allow_private:
                problem = "localhost is in a private network; allow_private=True allows that"
        if problem:
            raise UnusableError(f"its server {host} is refused: {problem}")
        if parts.scheme == "http" and self._credentials and not self._allow_private:
            raise UnusableError(f"credentials are not sent to {host} without encryption; pass base_url='https://…'")


class _OpenDocument:
    """A document while it is open."""

    def __init__(self, source: OpenApi, on_change: Callable[[], None] | None) -> None:
        self._source = source
        self._on_change = on_change
        self._state: SourceState = "connected"
        self._reason = ""
        self._loading: asyncio.Task[None] | None = None

    async def start(self) -> Self:
        """Load the document, or begin to try again."""
        try:
            await self._source.load()
        except _DocumentAwayError as error:
            self._note_failure("reconnecting", error.message)
        if self._state != "connected" or self._source.away:
            self._loading = asyncio.create_task(self._load_later(), name=f"handrail:openapi:{self._source.name}")
        return self

    async def _load_later(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            await asyncio.sleep(pause * (0.5 + random.random() / 2))
            pause = min(pause * 2, _MAX_PAUSE)
            away = self._source.away  # What was loaded without these serves until they are there.
            try:
                await self._source.load()
            except _DocumentAwayError as error:
                if not away:
                    self._note_failure("reconnecting", error.message)
            except Exception as error:  # It answers, and not with a document that can be used.
                log.exception("the source %s cannot be opened", self._source.name)
                if not away:
                    self._note_failure("failed", f"{type(error).__name__}: {shorten(str(error), 300)}")
                return
            else:
                is_new = self._state != "connected" or away != self._source.away
                self._state, self._reason = "connected", ""
                if is_new and self._on_change is not None:
                    self._on_change()
                if not self._source.away:
                    return

    def _note_failure(self, state: SourceState, reason: str) -> None:
        log.warning("the source %s is %s: %s", self._source.name, state, reason)
        self._state, self._reason = state, reason

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        return self._source.tools() if self._state == "connected" else ()

    @property
    def status(self) -> SourceStatus:
        skipped = self._source.skipped if self._state == "connected" else ()
        return SourceStatus(
            name=self._source.name, state=self._state, reason=self._reason, tools=len(self.tools), skipped=skipped
        )

    async def aclose(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        await self._source.aclose()


def _is_url(source: object) -> bool:
    return isinstance(source, str) and re.match(r"https?://", source, re.IGNORECASE) is not None


def _name_of(source: object) -> str:
    """A name for the source: the host, the stem of the file, or the title."""
    if isinstance(source, Mapping):
        info: Any = cast(Mapping[str, Any], source).get("info")
        title: Any = cast(Mapping[str, Any], info).get("title") if isinstance(info, Mapping) else None
        text = title if isinstance(title, str) else "openapi"
    elif isinstance(source, str) and _is_url(source):
        text = urlsplit(source).hostname or "openapi"
    elif isinstance(source, str | Path):
        text = Path(source).stem
    else:
        raise ConfigError(f"OpenApi takes a path, a URL or a mapping, got {type(source).__name__}.")
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-") or "openapi"


def _list_hosts(source: object, base_url: str | None, hosts: Iterable[str]) -> Iterator[str]:
    if isinstance(hosts, str):
        raise ConfigError(f"hosts must be a list of host names, got one text: [{hosts!r}].")
    for host in hosts:
        if not isinstance(host, str) or not re.fullmatch(r"[A-Za-z0-9._:\[\]-]+", host):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"hosts must have names such as 'api.example.com', got {host!r}.")
        yield host.strip("[]").lower()
    for url in (source if _is_url(source) else None, base_url):
        if isinstance(url, str) and (named := urlsplit(url).hostname):
            yield named.lower()


def _check_base_url(url: str) -> str:
    try:
        check_url(url)
    except AddressRefusedError as error:
        raise ConfigError(
            f"base_url must be an http or https URL without credentials, got {shorten(url)!r}."
        ) from error
    return url.rstrip("/")


def _check_overrides(overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    for text, options in overrides.items():
        parse_selector(text)
        for option in options:
            if option not in _OPTIONS:
                raise ConfigError(
                    f"overrides[{text!r}]: unknown option {option!r}; it takes {', '.join(sorted(_OPTIONS))}."
                )
    return {text: dict(options) for text, options in overrides.items()}


def _check_paginate(paginate: Mapping[str, Pagination]) -> dict[str, Pagination]:
    for text, pagination in paginate.items():
        parse_selector(text)
        if not isinstance(pagination, Pagination):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"paginate[{text!r}] must be a Pagination(by=…), got {type(pagination).__name__}.")
    return dict(paginate)


def _check_pages(entry: OperationEntry, operation: Operation, pagination: Pagination) -> None:
    name = entry.operation_id or entry.name
    if entry.method != "GET":
        raise ConfigError(f"paginate: {name!r} is a {entry.method}, and only a GET is read page by page.")
    queries = [parameter.name for parameter in operation.parameters if parameter.place == "query"]
    if pagination.parameter is not None and pagination.parameter not in queries:
        listed = ", ".join(queries) or "none"
        raise ConfigError(f"paginate: {name!r} has no query parameter {pagination.parameter!r}; it has {listed}.")


def _match(by_selector: Mapping[str, ValueT], entries: list[OperationEntry], option: str) -> dict[int, list[ValueT]]:
    """What an option says of each entry, in the order of its selectors; one that selects nothing is an error."""
    found: dict[int, list[ValueT]] = {}
    for text, value in by_selector.items():
        test = parse_selector(text)
        matching = [entry for entry in entries if test(entry)]
        if not matching:
            raise ConfigError(f"{option}: {text!r} selects none of the {len(entries)} operations of the document.")
        for entry in matching:
            found.setdefault(id(entry), []).append(value)
    return found
