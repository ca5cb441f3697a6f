"""The script of a simulated call, also from a YAML or JSON file: what each side does, what fails, what is expected."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError

Verb: TypeAlias = Literal["accept", "reject", "refer", "hangup"]
Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(ge=0)]


class ScriptError(ValueError):
    """A script that cannot be played: which file, where in it, and what would be right."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class CallInfo(_Part):
    """The phone call as the webhook announces it."""

    id: str | None = Field(default=None, min_length=1)
    """None: the simulator makes one."""
    from_: str = Field(default="+33600000001", alias="from")
    to: str = "+33100000000"
    headers: tuple[tuple[str, str], ...] = ()
    """Further SIP headers, in order; names may repeat."""
    media_security: str | None = None


class FunctionCall(_Part):
    """A call that the model makes."""

    name: str
    args: dict[str, Any] | str = Field(default_factory=dict[str, Any])
    """A string is sent as it is, so that it may be malformed."""
    id: str | None = None
    omit_name: bool = False
    """Leave the name out of `response.function_call_arguments.done`, as older servers do."""


class ModelEntry(_Part):
    """One response of the model."""

    say: str = ""
    calls: tuple[FunctionCall, ...] = ()
    delay: Seconds | None = None
    """How long the model thinks first."""
    status: Literal["completed", "failed", "incomplete"] = "completed"
    reason: Literal["max_output_tokens", "content_filter"] = "max_output_tokens"
    """Why it is incomplete; the last call of an incomplete response breaks off half-way."""
    error: str = "server_error"
    """The code of a failed response."""


class Say(_Part):
    """The caller speaks when it is the caller's turn: after the agent answered, and when nobody speaks."""

    say: str
    patience: Seconds | None = None
    """How long the caller waits for an answer of the agent first."""
    transcript: str | None = None
    """What speech recognition understood, where that is something else; empty: it failed."""


class Barge(_Part):
    """The caller speaks over the agent."""

    barge: str
    on: Literal["audio", "args", "response", "playout"] = "audio"
    """When: a word is heard, arguments of a call begin, a response begins, or is done but still played."""
    after: Seconds = 0
    patience: Seconds | None = None
    transcript: str | None = None


class Dtmf(_Part):
    """The caller presses keys."""

    dtmf: str = Field(pattern=r"^[0-9*#A-D]+$")
    gap: Seconds = 0.2


class Sleep(_Part):
    sleep: Seconds


class Idle(_Part):
    """Wait until nobody has talked for so long."""

    idle: Seconds


class Wait(_Part):
    """Wait for: a response, the agent's voice, silence, or until every tool result was sent and spoken."""

    wait: Literal["response", "speech", "silence", "results"]
    patience: Seconds | None = None


class Drop(_Part):
    """Close every sideband with this code; 1006 breaks the connection off."""

    drop: int = Field(ge=1000, le=4999)


class Hangup(_Part):
    """The caller hangs up after so many seconds."""

    hangup: Annotated[Seconds, BeforeValidator(lambda value: 0.0 if value is True else value)]
    """`true` means at once."""


class Send(_Part):
    """The server sends this event, whatever it is."""

    event: dict[str, Any]


class Garbage(_Part):
    """The server sends this text, which need not be JSON."""

    garbage: str


class Expire(_Part):
    """The session reaches its maximum duration now."""

    expire: Literal[True]


CALLER_ENTRIES: Mapping[str, type[_Part]] = {
    "say": Say,
    "barge": Barge,
    "dtmf": Dtmf,
    "sleep": Sleep,
    "idle": Idle,
    "wait": Wait,
    "drop": Drop,
    "hangup": Hangup,
    "event": Send,
    "garbage": Garbage,
    "expire": Expire,
}


def _key_of(value: Any, keys: Mapping[str, type[_Part]]) -> str | None:
    if isinstance(value, _Part):
        return next((key for key, kind in keys.items() if type(value) is kind), None)
    if isinstance(value, Mapping):
        return next((key for key in keys if key in value), None)
    return None


def _caller_key(value: Any) -> str | None:
    return _key_of(value, CALLER_ENTRIES)


CallerEntry: TypeAlias = Annotated[
    Annotated[Say, Tag("say")]
    | Annotated[Barge, Tag("barge")]
    | Annotated[Dtmf, Tag("dtmf")]
    | Annotated[Sleep, Tag("sleep")]
    | Annotated[Idle, Tag("idle")]
    | Annotated[Wait, Tag("wait")]
    | Annotated[Drop, Tag("drop")]
    | Annotated[Hangup, Tag("hangup")]
    | Annotated[Send, Tag("event")]
    | Annotated[Garbage, Tag("garbage")]
    | Annotated[Expire, Tag("expire")],
    Discriminator(
        _caller_key,
        custom_error_type="caller_entry",
        custom_error_message="has none of the keys " + ", ".join(CALLER_ENTRIES),
    ),
]


class HttpEntry(_Part):
    """How the next attempts of one verb of call control go; what is not listed succeeds."""

    verb: Literal["accept", "reject", "refer", "hangup", "connect"]
    """`connect` is the handshake of a sideband: it is refused with this status."""
    times: int = Field(default=1, ge=1)
    status: int = Field(default=200, ge=200, le=699)
    outcome: Literal["ok", "refused"] = "ok"
    """Refused: a transfer answers 200, and the target does not take the call."""
    delay: Seconds = 0
    """The answer takes so long; the effect happens first."""
    drop: Literal["before", "after"] | None = None
    """The connection is lost before or after the effect, and nothing is answered."""


class WebhookPlan(_Part):
    """How the webhook of the call is delivered."""

    copies: int = Field(default=1, ge=0)
    """How often it is delivered, always under the same id."""
    live: Literal["before", "after"] | None = None
    """Also announce the call for the Live API, before or after."""
    age: float = 0
    """How many seconds old the timestamp is."""
    signature: Literal["valid", "wrong", "missing", "rotated"] = "valid"
    """Rotated: a list, in which the second signature is the valid one."""
    padding: Count = 0
    """Add so many bytes to the body."""
    repeat_headers: bool = False
    """Send each of the three headers twice, first with another value."""
    gap: Seconds = 0.05


class Fault(_Part):
    """Something that goes wrong with events on their way to the client, or with what the provider does."""

    fault: Literal[
        "drop",
        "delay",
        "duplicate",
        "reorder",
        "garbage",
        "unknown",
        "close",
        "slow",
        "no_metadata",
        "no_playback",
        "failed_reply",
        "late_transcript",
        "failed_transcript",
    ]
    """The last five: responses do not name their request, nobody tells what is played, a response fails, and a
    transcript comes `seconds` later or not at all."""
    event: str = "*"
    """The type of event that it happens to; `*` stands for any text."""
    nth: int | None = Field(default=None, ge=1)
    """Only the nth event of that type, the nth response, or the nth transcript."""
    since: Seconds = 0
    """Only from this moment of the call on."""
    probability: float = Field(default=1.0, ge=0, le=1)
    """By chance, from the seed of the call."""
    seconds: Seconds = 0.5
    """How long `delay` holds the event and all that follow, `slow` each event, and `late_transcript` a transcript."""
    code: int = Field(default=1012, ge=1000, le=4999)
    """The code that `close` closes with."""


class Timing(_Part):
    """How long things take, in seconds."""

    think: Seconds = 0.3
    """From the start of a response to its first output."""
    delta: Seconds = 0.04
    """Between two pieces of a response."""
    piece: int = Field(default=12, ge=1)
    """Characters in one piece."""
    speech_rate: float = Field(default=15.0, gt=0)
    """Characters per second, of the voice and of the caller."""
    transcription: Seconds = 0.4
    """From the end of the caller's turn to its transcript."""
    refer: Seconds = 1.0
    """From the answer to a transfer to the end of the call."""
    ring: Seconds = 60.0
    """How long the caller lets it ring."""
    patience: Seconds = 8.0
    """How long the caller waits for an answer before saying the next thing."""
    linger: Seconds = 5.0
    """How long it is silent after the last entry before the caller hangs up."""
    maximum: Seconds = 3600.0
    """How long a session may be (R11)."""


class ExpectClient(_Part):
    """The client sends such an event."""

    client: str
    where: dict[str, Any] = Field(default_factory=dict[str, Any])
    within: Seconds | None = None
    """Seconds since the call in `where` was completed, or since the call was accepted."""
    times: Count | None = None


class ExpectNever(_Part):
    """The client never sends such an event, or not in this state."""

    never: str
    where: dict[str, Any] = Field(default_factory=dict[str, Any])
    while_: Literal["response_active", "caller_speaking", "playing", "ended"] | None = Field(
        default=None, alias="while"
    )


class ExpectHttp(_Part):
    """The client makes such a request of call control so many times."""

    http: Verb
    times: Count = 1
    where: dict[str, Any] = Field(default_factory=dict[str, Any])


class ExpectUnanswered(_Part):
    unanswered: Count


class ExpectNeverVoiced(_Part):
    never_voiced: Count


class ExpectDuplicates(_Part):
    duplicate_outputs: Count


class ExpectErrors(_Part):
    """The number of errors that the server sent, or their codes in order."""

    errors: Count | tuple[str, ...]


class ExpectEnded(_Part):
    ended: str


class ExpectHeard(_Part):
    """The caller hears this from the agent, as a part of something that was said."""

    heard: str


class ExpectResult(_Part):
    """A tool call has a result, and it is a success or not."""

    result: str
    """The id of the call."""
    ok: bool = True
    error: str | None = None
    """The code of the failure."""


class ExpectSaid(_Part):
    """The agent says this, in any case of its letters, heard to the end or not."""

    said: str


class ExpectRan(_Part):
    """A tool ran successfully so many times."""

    ran: str
    times: int = 1


class ExpectSilence(_Part):
    """Nobody speaks for at most so many seconds at a time."""

    max_silence: Seconds


EXPECTATIONS: Mapping[str, type[_Part]] = {
    "client": ExpectClient,
    "never": ExpectNever,
    "http": ExpectHttp,
    "unanswered": ExpectUnanswered,
    "never_voiced": ExpectNeverVoiced,
    "duplicate_outputs": ExpectDuplicates,
    "errors": ExpectErrors,
    "ended": ExpectEnded,
    "heard": ExpectHeard,
    "result": ExpectResult,
    "said": ExpectSaid,
    "ran": ExpectRan,
    "max_silence": ExpectSilence,
}


def _expectation_key(value: Any) -> str | None:
    return _key_of(value, EXPECTATIONS)


Expectation: TypeAlias = Annotated[
    Annotated[ExpectClient, Tag("client")]
    | Annotated[ExpectNever, Tag("never")]
    | Annotated[ExpectHttp, Tag("http")]
    | Annotated[ExpectUnanswered, Tag("unanswered")]
    | Annotated[ExpectNeverVoiced, Tag("never_voiced")]
    | Annotated[ExpectDuplicates, Tag("duplicate_outputs")]
    | Annotated[ExpectErrors, Tag("errors")]
    | Annotated[ExpectEnded, Tag("ended")]
    | Annotated[ExpectHeard, Tag("heard")]
    | Annotated[ExpectResult, Tag("result")]
    | Annotated[ExpectSaid, Tag("said")]
    | Annotated[ExpectRan, Tag("ran")]
    | Annotated[ExpectSilence, Tag("max_silence")],
    Discriminator(
        _expectation_key,
        custom_error_type="expectation",
        custom_error_message="has none of the keys " + ", ".join(EXPECTATIONS),
    ),
]


class Script(_Part):
    """A whole call. Every part may be left out."""

    name: str = ""
    call: CallInfo = CallInfo()
    model: tuple[ModelEntry, ...] = ()
    """One entry per response, whoever created it."""
    otherwise: ModelEntry = ModelEntry(say="Anything else?")
    """What the model does when the list is used up."""
    caller: tuple[CallerEntry, ...] = ()
    http: tuple[HttpEntry, ...] = ()
    webhook: WebhookPlan = WebhookPlan()
    faults: tuple[Fault, ...] = ()
    timing: Timing = Timing()
    expect: tuple[Expectation, ...] = ()
    seed: int = 0
    """For the faults that happen by chance."""

    @classmethod
    def parse(
        cls, data: object, *, source: str = "script", lines: "Mapping[tuple[str | int, ...], int] | None" = None
    ) -> Self:
        """Make a script of plain data; `source` names it in errors."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ScriptError(_describe(error, source, lines or {})) from error


def _describe(error: ValidationError, source: str, lines: Mapping[tuple[str | int, ...], int]) -> str:
    described: list[str] = []
    for fault in error.errors(include_url=False):
        # The tag of a union is no part of the path that the author wrote.
        path = tuple(part for index, part in enumerate(fault["loc"]) if not _is_tag(fault["loc"], index))
        line = next((lines[path[:size]] for size in range(len(path), -1, -1) if path[:size] in lines), None)
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
        got = "" if fault["type"] in ("missing", "extra_forbidden") else f", got {_shorten(fault['input'])}"
        position = f"{source}:{line}" if line else source
        message = fault["msg"][:1].lower() + fault["msg"][1:]
        if fault["type"] == "extra_forbidden":
            message = f"unknown key; allowed are {', '.join(_allowed_keys(fault['loc'][:-1]))}"
        described.append(f"{position}: {where or 'script'}: {message}{got}.")
    return "\n".join(described)


def _is_tag(location: tuple[str | int, ...], index: int) -> bool:
    return index == 2 and location[0] in ("caller", "expect") and isinstance(location[1], int)


def _allowed_keys(location: tuple[str | int, ...]) -> list[str]:
    """The keys of the mapping at a place in a script."""
    parts = {
        "call": CallInfo,
        "model": ModelEntry,
        "otherwise": ModelEntry,
        "http": HttpEntry,
        "webhook": WebhookPlan,
        "faults": Fault,
        "timing": Timing,
    }
    kind: type[_Part] = Script
    if location:
        tagged = {"caller": CALLER_ENTRIES, "expect": EXPECTATIONS}.get(str(location[0]))
        kind = tagged[str(location[2])] if tagged is not None else parts[str(location[0])]
        if "calls" in location:
            kind = FunctionCall
    return [field.alias or name for name, field in kind.model_fields.items()]


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def load_script(path: str | Path) -> Script:
    """Read a script from a YAML or JSON file."""
    file = Path(path)
    yaml = _import_yaml()
    try:
        text = file.read_text(encoding="utf-8")
        loader = _new_loader(yaml)
        node = yaml.compose(text, Loader=loader)
        data: object = yaml.load(text, Loader=loader)
    except OSError as error:
        raise ScriptError(f"{file}: cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise ScriptError(f"{file}: is not UTF-8 text: {error}.") from error
    except yaml.YAMLError as error:
        raise ScriptError(f"{file}: is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ScriptError(
            f"{file}: a script is a mapping with the keys {', '.join(Script.model_fields)}, got {type(data).__name__}."
        )
    return Script.parse(cast(object, data), source=str(file), lines=_lines_of(node))


def _import_yaml() -> Any:
    try:
        import yaml  # noqa: PLC0415  # optional
    except ImportError as error:
        raise ImportError("Scripts in YAML need PyYAML: pip install 'handrail[yaml]'.") from error
    return yaml


def _new_loader(yaml: Any) -> Any:
    """A safe loader for which only `true` and `false` are truth values: `on` is a key of scripts."""

    class Loader(yaml.SafeLoader):
        pass

    resolvers = {
        first: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:bool"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.yaml_implicit_resolvers = resolvers
    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|True|false|False)$"), list("tTfF"))
    return Loader


def _lines_of(node: Any, path: tuple[str | int, ...] = ()) -> dict[tuple[str | int, ...], int]:
    lines: dict[tuple[str | int, ...], int] = {path: node.start_mark.line + 1}
    if node.id == "mapping":
        for key, value in node.value:
            lines |= _lines_of(value, (*path, str(key.value)))
    elif node.id == "sequence":
        for index, value in enumerate(node.value):
            lines |= _lines_of(value, (*path, index))
    return lines
