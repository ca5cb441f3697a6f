"""One customer's configuration, validated where it comes in."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from handrail.authorize.policy import Rule
from handrail.authorize.policy_file import read_rules
from handrail.core.secrets import Secrets
from handrail.core.tool import check_name
from handrail.errors import ConfigError, ToolDefinitionError
from handrail.guide.values import Guideline
from handrail.tenants.guidelines import TenantGuideline
from handrail.tenants.opening_hours import OpeningHours, OutOfHours, Timezone
from handrail.tenants.phone_addresses import check_is_text, normalise_number, normalise_target
from handrail.tenants.section import Id, Section, Text
from handrail.tenants.texts import Texts
from handrail.tenants.tool_source_config import McpServerConfig, OpenApiConfig

Label = Annotated[str, Field(max_length=200)]
Name = Annotated[str, Field(min_length=1, max_length=128)]
Milliseconds = Annotated[int, Field(ge=0, le=60_000)]
Number = Annotated[str, BeforeValidator(check_is_text), AfterValidator(normalise_number)]


class Destination(Section):
    """Somewhere a call can be transferred to."""

    destination_id: Id
    label: Label = ""
    """What people call it; spoken to the caller."""
    description_for_model: Annotated[str, Field(max_length=1_000)] = ""
    target_uri: Annotated[str, BeforeValidator(check_is_text), AfterValidator(normalise_target)] = Field(repr=False)
    """Where the call goes; never sent to a model. A telephone number becomes a `tel:` address."""
    enabled: bool = True
    priority: int = 0
    """The highest comes first."""
    opening_hours: OpeningHours | None = None
    """The tenant's, unless this says others."""
    fallback: Id | None = None
    """The destination that is used while this one is closed."""

    @property
    def spoken_label(self) -> str:
        """What the caller hears."""
        return self.label.strip() or self.destination_id


class TransferFeature(Section):
    """Transfers: the tool `request_transfer`."""

    enabled: bool = False
    require_confirmation: bool = True
    """Ask the caller, and transfer only after they agreed in a later turn."""
    handoff_phrase: Annotated[str, Field(max_length=1_000)] = ""
    """Spoken before the call is transferred, with `{{label}}` replaced; nothing is said without it."""
    destinations: tuple[Destination, ...] = ()
    on_drain: Id | None = None
    """The destination that calls are transferred to when the gateway is drained; without it they end with a goodbye."""

    @field_validator("handoff_phrase")
    @classmethod
    def _check_phrase(cls, phrase: str) -> str:
        if set("{}") & set(replace_label(phrase, "")):  # The caller would hear them.
            raise ValueError("must have no braces but those of {{label}}")
        return phrase

    @model_validator(mode="after")
    def _check_ids(self) -> "TransferFeature":
        _refuse_twice((destination.destination_id for destination in self.destinations), name="destination_id ")
        known = {destination.destination_id for destination in self.destinations}
        if self.on_drain is not None and self.on_drain not in known:
            raise ValueError(f"on_drain must be one of the destinations, got {self.on_drain!r}")
        for destination in self.destinations:
            id, fallback = destination.destination_id, destination.fallback
            if fallback is not None and (fallback not in known or fallback == id):
                raise ValueError(f"the fallback of {id!r} must be another destination, got {fallback!r}")
        return self


class EndCallFeature(Section):
    """Hanging up: the tool `end_call`."""

    enabled: bool = False
    goodbye: Annotated[str, Field(max_length=1_000)] = ""
    """Spoken before the call ends; the locale's own words without it."""


class CollectDigitsFeature(Section):
    """Keys that the caller presses: the tool `collect_digits`."""

    enabled: bool = False
    max_digits: Annotated[int, Field(ge=1, le=64)] = 20
    timeout: Annotated[float, Field(gt=0, le=120)] = 15.0
    """Seconds without a key after which collecting ends."""
    terminator: Annotated[str, Field(pattern=r"^[0-9A-D*#]?$")] = "#"
    sensitive: bool = False
    """Keep the digits from the model and from every record: the result is an id, and `CallControl.digits` gives them
    to the tool that needs them."""


class Features(BaseModel):
    """What the agent can do, one section for each feature. Registered builders add typed sections."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True, defer_build=True)

    refer: TransferFeature = Field(default_factory=TransferFeature)
    end_call: EndCallFeature = Field(default_factory=EndCallFeature)
    collect_digits: CollectDigitsFeature = Field(default_factory=CollectDigitsFeature)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class TenantLimits(Section):
    """What one tenant may use at most."""

    max_calls: Annotated[int, Field(ge=1)] = 100
    """Phone calls at the same time; further callers hear that the line is busy."""
    max_duration: Annotated[float, Field(gt=0, le=3_500)] = 3_000.0
    """Seconds after which the agent brings a call to its end; the provider cuts it off after 3,600, farewell or not."""
    idle_timeout: Annotated[float, Field(gt=0)] | None = 300.0
    """Seconds in which nobody speaks, after which a call ends."""
    max_tool_calls: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Tool calls in one phone call."""
    max_consecutive_calls: Annotated[int, Field(ge=1)] = 8
    """Tool calls without a word of the caller, after which the agent has to speak first."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of one phone call, after which the agent brings it to its end."""
    max_concurrent_tools: Annotated[int, Field(ge=1)] = 8
    """Tool calls at the same time."""
    tool_timeout: Annotated[float, Field(gt=0, le=600)] = 15.0
    """Seconds that one tool call may take."""
    max_output_chars: Annotated[int, Field(ge=100)] | None = None
    """Characters of one output; what is longer is cut, and the tool `read_more` gives the rest."""


class Fillers(Section):
    """What the agent says while a tool takes long."""

    after: Annotated[float, Field(ge=0.5, le=60)] | None = None
    """Seconds of silence; unset, as the gateway says."""
    text: Annotated[str, Field(max_length=500)] = ""
    """The words; without them the model finds its own."""
    tools: dict[str, Annotated[str, Field(min_length=1, max_length=500)]] = Field(default_factory=dict)
    """The words for single tools, by name."""


class ServerVad(Section):
    """The caller's turn is over after some silence."""

    type: Literal["server_vad"]
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    prefix_padding_ms: Milliseconds | None = None
    silence_duration_ms: Milliseconds | None = None
    idle_timeout_ms: Annotated[int, Field(ge=5_000, le=30_000)] | None = None
    """After so much silence the model speaks by itself."""
    interrupt_response: bool | None = None
    """Whether the caller's voice interrupts the agent; the provider's default is yes."""


class SemanticVad(Section):
    """The caller's turn is over when they seem to have finished what they say."""

    type: Literal["semantic_vad"]
    eagerness: Literal["low", "medium", "high", "auto"] | None = None
    interrupt_response: bool | None = None
    """Whether the caller's voice interrupts the agent; the provider's default is yes."""


class Transcription(Section):
    """What the caller says, in writing."""

    model: Name
    language: Annotated[str, Field(pattern=r"^[a-z]{2,3}$")] | None = None
    """The language of the tenant's locale, unless this says another."""
    prompt: Annotated[str, Field(max_length=2_000)] | None = None
    """Words that callers are likely to use."""


class Audio(Section):
    """The audio of one tenant's calls; what is left out is the provider's default."""

    turn_detection: Annotated[ServerVad | SemanticVad, Field(discriminator="type")] = Field(
        default_factory=lambda: ServerVad(type="server_vad")
    )
    noise_reduction: Literal["near_field", "far_field"] | None = None
    transcription: Transcription | None = None
    voice: Name | None = None
    speed: Annotated[float, Field(ge=0.25, le=1.5)] | None = None

    def describe(self, *, language: str) -> dict[str, Any]:
        """The `audio` of a session, as the Realtime API takes it."""
        listening: dict[str, Any] = {"turn_detection": self.turn_detection.model_dump(exclude_none=True)}
        if self.noise_reduction is not None:
            listening["noise_reduction"] = {"type": self.noise_reduction}
        if self.transcription is not None:
            listening["transcription"] = {"language": language, **self.transcription.model_dump(exclude_none=True)}
        speaking = self.model_dump(include={"voice", "speed"}, exclude_none=True)
        return {"input": listening, **({"output": speaking} if speaking else {})}


class FunctionChoice(Section):
    """One tool that the model has to call."""

    type: Literal["function"]
    name: str


_MAX_SOURCES: Final = 50
"""MCP servers, and OpenAPI documents, of one tenant: all of them are opened at once."""
_MAX_SELECTORS: Final = 2_000
"""In the lists of a tenant's rules: each is compared with each tool, while no other tenant is served."""


class TenantConfig(BaseModel):
    """Everything that makes one customer's agent: what it says, what it can do, and how much it may use."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)

    tenant_id: Id
    """The name of the tenant in contexts, rules and logs."""
    enabled: bool = True
    """False turns the tenant off for new calls."""
    numbers: tuple[Number, ...] = ()
    """The numbers that callers dial."""
    instructions: Text = ""
    """What the model is told about its work."""
    greeting: Annotated[str, Field(max_length=2_000)] = ""
    """The first words; without them the agent waits for the caller to speak."""
    model: Annotated[str, Field(min_length=1, max_length=128)] = "gpt-realtime-2.1"
    """The model of the Realtime API."""
    voice: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Its voice; the API's own if unset."""
    locale: Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$")] = "en"
    """The language of texts that Handrail speaks by itself."""
    timezone: Timezone = "UTC"
    """The time zone of opening hours and of the time that the model is told."""
    opening_hours: OpeningHours | None = None
    """When destinations without hours of their own can be reached; None is always."""
    out_of_hours: OutOfHours = Field(default_factory=OutOfHours)
    """What a caller hears outside of the opening hours."""
    transcription_model: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Writes down what the caller says; a transcript that refuses withdraws a confirmation."""
    audio: Audio = Field(default_factory=Audio)
    """Turn detection, noise reduction, transcription, voice and speed; `voice` and `transcription_model` are short for
    two of them."""
    max_output_tokens: Annotated[int, Field(ge=1, le=4_096)] | Literal["inf"] | None = None
    """Tokens of one response."""
    truncation: Literal["auto", "disabled"] | None = None
    """What the API does when the conversation outgrows the model; its own default if unset."""
    reasoning_effort: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None
    """For models that reason; their own default if unset."""
    tell_time: bool = True
    """Whether the instructions say the date and the time in the tenant's time zone."""
    on_prepare_failure: Literal["accept", "reject"] = "accept"
    """What becomes of a call for which the gateway's `prepare` fails."""
    keys: Literal["keep", "model"] = "keep"
    """Keys that nobody collects: `keep` them for a while for `collect_digits`, or tell the `model`."""
    features: Features = Field(default_factory=Features)
    """The tools that come with Handrail: transfers, ending a call, digits …"""
    fillers: Fillers = Field(default_factory=Fillers)
    """What the agent says while a tool runs."""
    tool_choice: Literal["auto", "none", "required"] | FunctionChoice | str | None = None
    """`auto`, `none`, `required` or the name of one tool; unset, it is `auto` with tools and `none` without."""
    limits: TenantLimits = Field(default_factory=TenantLimits)
    """What the tenant may use at most."""
    secrets: dict[str, str] = Field(default_factory=dict, repr=False)
    """References, such as `env:CRM_KEY` or `file:/run/secrets/crm`; never the secrets themselves."""
    mcp_servers: Annotated[tuple[McpServerConfig, ...], Field(max_length=_MAX_SOURCES)] = ()
    """MCP servers whose tools the agent gets."""
    openapi: Annotated[tuple[OpenApiConfig, ...], Field(max_length=_MAX_SOURCES)] = ()
    """OpenAPI documents whose operations the agent gets as tools."""
    guidelines: tuple[TenantGuideline, ...] = ()
    """For guided chats: `condition`, `action`, `tools`, `criticality`, `always`, `id`."""
    policy: Annotated[tuple[dict[str, Any], ...], Field(max_length=1_000)] = ()
    """Rules as in a policy file."""
    texts: dict[str, Annotated[str, Field(max_length=2_000)]] = {}
    """Texts that replace those of the locale, by their keys."""
    retention_days: Annotated[int, Field(ge=1, le=36_500)] | None = None
    """After how many days calls, approvals, conversations and rows of the audit are deleted; None: as the host does."""

    _version: str = PrivateAttr(default="")
    _rules: tuple[Rule, ...] = PrivateAttr(default=())
    _locale_texts: Texts = PrivateAttr(default_factory=Texts)

    @field_validator("numbers")
    @classmethod
    def _check_numbers(cls, numbers: tuple[str, ...]) -> tuple[str, ...]:
        _refuse_twice(numbers)
        return numbers

    @field_validator("secrets")
    @classmethod
    def _check_secrets(cls, references: dict[str, str]) -> dict[str, str]:
        try:
            Secrets(references)
        except ConfigError as error:
            raise ValueError(error.message) from error
        return references

    @field_validator("tool_choice")
    @classmethod
    def _check_choice(cls, choice: Any) -> Any:
        if isinstance(choice, str):
            try:
                check_name(choice)
            except ToolDefinitionError as error:
                raise ValueError(error.message) from error
        return choice

    @field_validator("guidelines")
    @classmethod
    def _check_guidelines(cls, guidelines: tuple[Guideline, ...]) -> tuple[Guideline, ...]:
        _refuse_twice(guideline.id for guideline in guidelines if guideline.id)
        return guidelines

    @field_validator("mcp_servers", "openapi")
    @classmethod
    def _check_sources(cls, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        _refuse_twice(source.name for source in sources)
        return sources

    @model_validator(mode="after")
    def _check_audio(self) -> "TenantConfig":
        if self.voice is not None and self.audio.voice is not None:
            raise ValueError("must have either voice or audio.voice")
        if self.transcription_model is not None and self.audio.transcription is not None:
            raise ValueError("must have either transcription_model or audio.transcription")
        return self

    @model_validator(mode="after")
    def _check_policy_and_texts(self) -> "TenantConfig":
        lists: list[Any] = [value for rule in self.policy for value in rule.values() if type(value) in (list, tuple)]
        if (count := sum(map(len, lists))) > _MAX_SELECTORS:
            raise ValueError(f"policy must have at most {_MAX_SELECTORS:,} names and patterns in lists, got {count:,}")
        try:
            self._rules = tuple(read_rules(self.policy, source=self.source))
            self._locale_texts = Texts(self.locale, own=self.texts)
        except ConfigError as error:
            raise ValueError(error.message) from error
        written = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        self._version = hashlib.sha256(written.encode()).hexdigest()[:16]
        return self

    def rules(self) -> tuple[Rule, ...]:
        """The rules of `policy`, with the source `tenant:<id>`."""
        return self._rules

    def locale_texts(self) -> Texts:
        """The texts of the tenant's locale, with its own in their place."""
        return self._locale_texts

    @property
    def has_transcripts(self) -> bool:
        """Whether what callers say is written down."""
        return self.transcription_model is not None or self.audio.transcription is not None

    def describe_audio(self) -> dict[str, Any]:
        """The `audio` of a session, as the Realtime API takes it."""
        own: dict[str, Any] = {}
        if self.voice is not None:
            own["voice"] = self.voice
        if self.transcription_model is not None:
            own["transcription"] = Transcription(model=self.transcription_model)
        return self.audio.model_copy(update=own).describe(language=self.locale.partition("-")[0].lower())

    @property
    def source(self) -> str:
        """What decisions name as the source of a rule of this tenant."""
        return f"tenant:{self.tenant_id}"

    @property
    def version(self) -> str:
        """A digest of the whole configuration: equal configurations have equal versions, in every process."""
        return self._version

    def to_log_dict(self) -> dict[str, Any]:
        """What may be written to a log: which tenant, and which version of it."""
        return {"tenant_id": self.tenant_id, "version": self.version, "enabled": self.enabled}

    def __repr__(self) -> str:
        return f"TenantConfig(tenant_id={self.tenant_id!r}, version={self.version!r})"

    __str__ = __repr__


def replace_label(phrase: str, label: str) -> str:
    """A tenant's phrase with `{{label}}` replaced."""
    return re.sub(r"\{\{\s*label\s*\}\}", lambda _: label, phrase)


def _refuse_twice(ids: Iterable[str], *, name: str = "") -> None:
    twice = [id for id, count in Counter(ids).items() if count > 1]
    if twice:
        raise ValueError(f"{name}must be unique, got {twice[0]!r} more than once")
