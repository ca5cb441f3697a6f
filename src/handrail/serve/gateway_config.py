"""The configuration file of a gateway: its store, its sources, its policy, and who is notified."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import httpx2
from pydantic import BaseModel, ConfigDict, Discriminator, Field, PrivateAttr, Tag, ValidationError

from handrail.core.secrets import resolve_reference
from handrail.core.text import suggest
from handrail.core.yaml_reader import YamlPath, YamlReader, read_config_file
from handrail.errors import ConfigError, MissingExtraError
from handrail.serve.mcp_calls import MAX_APPROVAL_WAIT
from handrail.sources.mcp.server_options import McpServer
from handrail.sources.openapi.source import OpenApi
from handrail.sources.source import Source
from handrail.store import DEFAULT_STORE, place_store

_MAX_VALUES: Final = 10_000


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class McpSource(_Section):
    """The fields of `McpServer`."""

    url: str | None = None
    command: list[str] | None = None
    env: dict[str, str] | None = None
    cwd: str | None = None
    bearer: str | None = None
    headers: dict[str, str] | None = None
    protocol: str | None = None
    trusted: bool = False
    errors: Literal["nothing_happened", "unknown"] | None = None
    include: list[str] | None = None
    exclude: list[str] | None = None
    pins: str | None = None
    timeout: float | None = None
    connect_timeout: float | None = None
    max_message_bytes: int | None = None
    max_tools: int | None = None
    max_definition_bytes: int | None = None

    def build(self, name: str, directory: Path) -> Source:
        """The source."""
        values = self.model_dump(exclude_none=True)
        for field in ("pins", "cwd"):
            if field in values:
                values[field] = str(directory / values[field])
        return McpServer(name, **values)


class OpenApiSource(_Section):
    """The fields of `OpenApi`, with the document as `openapi`."""

    openapi: str | dict[str, Any]
    base_url: str | None = None
    bearer: str | None = None
    basic: str | None = None
    api_key: str | dict[str, str] | None = None
    hosts: list[str] | None = None
    include: list[str] | None = None
    exclude: list[str] | None = None
    overrides: dict[str, dict[str, Any]] | None = None
    allow_private: bool = False
    timeout: float | None = None
    max_response_bytes: int | None = None

    def build(self, name: str, directory: Path) -> Source:
        """The source."""
        values = self.model_dump(exclude_none=True, exclude={"openapi"})
        document: Any = self.openapi
        if isinstance(document, str) and "://" not in document:
            document = directory / document
        return OpenApi(document, name=name, **values)


class Notification(_Section):
    """Who hears of what waits: an address that takes a JSON POST."""

    url: str = Field(repr=False)
    """http or https, or a reference: `env:SLACK_WEBHOOK`."""
    on: list[Literal["approval_requested", "doubt"]] = Field(default=["approval_requested", "doubt"], min_length=1)
    whose: Literal["operator", "customer"] | None = Field(default=None, alias="for")
    """Only what this one has to decide; everything if it is left out."""
    include: Literal["arguments"] | None = None
    secret: str | None = Field(default=None, repr=False)
    """A reference to the secret that signs the body, in the header `Handrail-Signature`."""
    tenant: str | None = None

    def read_url(self) -> str:
        """The address, resolved if it is a reference."""
        url = resolve_reference(self.url, name="notify.url") if _is_reference(self.url) else self.url
        if not url.startswith(("http://", "https://")):
            raise ConfigError("url of a notification must be an http or https address, or a reference to one.")
        try:
            httpx2.URL(url)
        except httpx2.InvalidURL as error:  # Without its text: the address may be a secret.
            raise ConfigError("url of a notification must be an address that can be asked.") from error
        return url


def _choose_source(value: Any) -> str:
    return "openapi" if isinstance(value, dict) and "openapi" in value else "mcp"


AnySource = Annotated[
    Annotated[McpSource, Tag("mcp")] | Annotated[OpenApiSource, Tag("openapi")], Discriminator(_choose_source)
]


class GatewayConfig(_Section):
    """What `gateway.yaml` has."""

    store: str = Field(default=DEFAULT_STORE, repr=False)
    """`sqlite:///…` or `postgresql://…`, or a reference such as `env:DATABASE_URL`."""
    sources: dict[str, AnySource] = Field(min_length=1)
    policy: str | None = None
    """The file with the rules; without it the operator is asked for everything that is not read-only."""
    notify: list[Notification] = []
    approval_wait: float = Field(default=25.0, ge=0, le=MAX_APPROVAL_WAIT)
    """Seconds that a call is held for an operator before its result says that it waits."""
    approval_timeout: float = Field(default=3_600.0, gt=0)
    """Seconds within which a question can be answered and the answer be used."""
    call_timeout: float = Field(default=30.0, gt=0)
    audit_values: bool = False
    """Whether arguments and outputs are stored for the console, redacted."""
    url: str = ""
    """Where people reach the console, for links; the address that is served if it is left out."""

    _file: Path | None = PrivateAttr(default=None)
    _lines: Mapping[YamlPath, int] = PrivateAttr(default_factory=dict[YamlPath, int])

    @contextmanager
    def naming(self, *field: str) -> Generator[None]:
        """Put the file, the line and the field before what is found wrong only where a value is used."""
        try:
            yield
        except MissingExtraError:
            raise
        except ConfigError as error:
            place = "" if self._file is None else f"{self._file}:{self._lines.get(field, 1)}: "
            raise ConfigError(f"{place}{'.'.join(field)}: {error}") from error

    def read_store_url(self, directory: Path) -> str:
        """The URL of the database, resolved if it is a reference; a relative path is one from the directory."""
        return place_store(self.store, directory)

    def build_sources(self, directory: Path) -> list[Source]:
        """The sources, with paths that are relative to the directory of the file."""
        sources: list[Source] = []
        for name, source in self.sources.items():
            with self.naming("sources", name):
                sources.append(source.build(name, directory))
        return sources


def load_gateway_config(path: str | Path) -> GatewayConfig:
    """Read a configuration file; every error names the file, the line and the field."""
    file = Path(path)
    lines: dict[YamlPath, int] = {}
    reader = YamlReader(read_config_file(file), source=str(file), max_values=_MAX_VALUES)
    if reader.root is None:
        raise reader.build_error(None, "the file is empty")
    values = reader.read_value(reader.root, lines)
    if not isinstance(values, dict):
        raise reader.build_error(reader.root, "a gateway is a mapping with `sources:`")
    try:
        config = GatewayConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_list_problems(error, file, lines))) from error
    config._file, config._lines = file, lines  # pyright: ignore[reportPrivateUsage]
    return config


def _list_problems(error: ValidationError, file: Path, lines: Mapping[YamlPath, int]) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_input=False):
        loc = problem["loc"]
        if len(loc) > 2 and loc[0] == "sources":
            loc = (*loc[:2], *loc[3:])  # Without the kind of the source, which is not in the file.
        place: YamlPath = ()
        for part in loc:
            if (*place, part) not in lines:
                break
            place = (*place, part)
        message = problem["msg"]
        if problem["type"] == "extra_forbidden":
            models: tuple[type[_Section], ...] = (GatewayConfig, Notification, McpSource, OpenApiSource)
            fields = {field for model in models for field in model.model_fields}
            message = f"unknown field{suggest(str(problem['loc'][-1]), fields, otherwise='')}"
        yield f"{file}:{lines.get(place, 1)}: {'.'.join(map(str, loc)) or 'gateway'}: {message}"


def _is_reference(text: str) -> bool:
    return text.partition(":")[0] in ("env", "file")
