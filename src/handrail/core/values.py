"""The frozen values that are passed between the packages.

They are `msgspec.Struct`s: frozen for real, slotted, and built in a tenth of the time that a frozen dataclass takes,
which is what makes one tool call cheap (see `docs/speed.md`).
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from msgspec import UNSET, Struct, UnsetType, structs
from msgspec.structs import force_setattr

from handrail.core.media import MediaPart
from handrail.core.text import compact_json, encodable
from handrail.errors import shorten


def _load_display() -> Any:
    from handrail.core import display  # noqa: PLC0415  # redaction is slow to import, and only a person needs it

    return display


class Failure(Struct, frozen=True, kw_only=True, gc=False):
    """Why a call failed: a code, and a message for the model."""

    code: str = "tool_execution_failed"
    message: str = ""
    retryable: bool = False
    """Whether the same call may succeed later, or with other arguments."""

    def __post_init__(self) -> None:
        # A handler can write anything here (`ToolError(code=404)`), and a ledger must be able to read it again.
        if type(self.code) is not str or not self.code:
            force_setattr(self, "code", _to_text(self.code) or "tool_execution_failed")
        if type(self.message) is not str:
            force_setattr(self, "message", _to_text(self.message))
        if type(self.retryable) is not bool:
            force_setattr(self, "retryable", bool(self.retryable))


def _to_text(value: object) -> str:
    try:
        return "" if value is None else str.__str__(value) if isinstance(value, str) else shorten(str(value), 1_000)
    except Exception:  # noqa: BLE001  # a value with code of its own
        return type(value).__name__


SessionMode = Literal["auto", "manual"]
Lifespan = Literal["response", "session"]


class Control(Struct, frozen=True, kw_only=True, gc=False):
    """How a result changes the conversation that it belongs to."""

    mode: SessionMode | None = None
    """`manual` hands the conversation to a person, and the agent no longer responds."""
    lifespan: Lifespan = "session"
    """`response` keeps the result out of the session's history."""


class ToolCall(Struct, frozen=True, kw_only=True, gc=False, repr_omit_defaults=True):
    """A model's request to run one tool."""

    id: str
    """The id of this one call, unique in its session."""
    name: str
    arguments_json: str = ""
    """JSON text stays text until it is validated; empty text means `{}`."""
    response_id: str | None = None
    item_id: str | None = None
    guideline_ids: tuple[str, ...] = ()
    """The guidelines that led to this call."""
    ask_operator: str = ""
    """Why an operator has to agree to this call, even if the policy allows it or asks the customer. It is set by the
    program that made the call, never by a model."""
    provider_id: str | None = None
    """The id that the provider gave, if `id` had to be made unique; it goes back to the provider. None: `id` is it."""
    arguments: UnsetType = UNSET
    """Never set: `ToolCall(arguments={…})` raises an error that names `arguments_json`."""
    # A metaclass could say the same without a field, and makes every call 0.5 µs slower.

    def __post_init__(self) -> None:
        if not isinstance(self.arguments_json, str) or self.arguments is not UNSET:  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller's
            raise _build_arguments_error(self)

    @property
    def wire_id(self) -> str:
        """The id that the provider knows this call by; empty if it gave none."""
        return self.id if self.provider_id is None else self.provider_id


def _build_arguments_error(call: ToolCall) -> TypeError:
    if call.arguments is not UNSET:
        return TypeError("ToolCall has no `arguments`; pass them as JSON text: arguments_json='{\"amount\": 5}'.")
    kind = type(call.arguments_json).__name__
    return TypeError(f"arguments_json must be a str with JSON, such as '{{\"amount\": 5}}', got {kind}.")


class Decision(Struct, frozen=True, kw_only=True, gc=False):
    """What the policy decided about a call: the action, the rule, and the source of the rule."""

    action: Literal["allow", "ask", "deny"]
    by: Literal["customer", "operator"] | None = None
    """Who is asked."""
    rule: str = ""
    source: str = ""
    reason: str = ""

    def __repr__(self) -> str:
        return _load_display().format_repr("Decision", [(name, getattr(self, name)) for name in self.__struct_fields__])

    def __rich_repr__(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Make `rich` show what `repr` shows: by itself it would show every field, unredacted."""

    def _repr_html_(self) -> str:
        asks = f" the {self.by}" if self.by else ""
        rows = [("rule", self.rule), ("source", self.source), ("reason", self.reason)]
        return _load_display().format_table(f"{self.action}{asks}", rows)


ApprovalState = Literal["pending", "approved", "denied", "used", "withdrawn"]


class Approval(Struct, frozen=True, kw_only=True):
    """A request to approve one exact call, and the decision about it."""

    token: str
    tool: str
    digest: str
    """The digest of the tool's name and its canonical arguments; only a call with the same digest may run."""
    session_id: str
    tenant_id: str | None = None
    customer_id: str | None = None
    by: Literal["customer", "operator"]
    turn: int
    """The turn in which it was requested; a customer's decision counts from a later one on."""
    arguments: Mapping[str, Any]
    """The complete arguments, for the person who decides; `repr` shows only their names."""
    question: str = ""
    repeat: int = 0
    """The number of the repetition of the same effect; 0 is the first time."""
    created_at: float
    expires_at: float
    state: ApprovalState = "pending"
    who: str | None = None
    reason: str = ""
    changed_arguments: Mapping[str, Any] | None = None
    """The arguments that the approver wants to run instead."""
    decided_at: float | None = None
    call_id: str | None = None
    """The id of the call that it was first asked for."""
    wakes: int = 0
    """How often a framework had been resumed within that turn."""
    seen: Mapping[str, str] = {}
    """Where values come from that a rule with `from` asks about: a sentence for each path into the arguments."""
    unsaid: tuple[str, ...] = ()
    """The arguments that a rule wants from the customer's own words, and that are not, or nobody knows it."""

    def __repr__(self) -> str:
        # Approvals end up in logs and tracebacks, and arguments may be secret.
        names = ("token", "tool", "session_id", "customer_id", "by", "turn", "question", "repeat", "state", "who")
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"Approval({values}, arguments=({', '.join(self.arguments)}))"

    def __rich_repr__(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Make `rich` show what `repr` shows: by itself it would show every field, unredacted."""

    def _repr_html_(self) -> str:
        """For a notebook. The arguments are redacted: who decides gets them from `arguments`."""
        display = _load_display()
        rows = [
            ("arguments", self.arguments),
            ("changed to", self.changed_arguments),
            ("question", self.question),
            ("customer", self.customer_id),
            ("session", self.session_id),
            ("decided by", self.who),
            ("reason", self.reason),
        ]
        return display.format_table(f"{self.tool}: {self.state}, for the {self.by} to decide", rows)

    def is_expired(self, now: float) -> bool:
        """Whether it can no longer be decided or used."""
        return now >= self.expires_at

    def is_open(self, now: float) -> bool:
        """Whether it still waits for a decision."""
        return self.state == "pending" and now < self.expires_at


Origin = Literal["run", "replayed", "joined", "verified", "cached"]


MAX_NAME_CHARS: Final = 200
"""Of the name of a tool in a message: a model can make up one of any length."""


class ToolResult(Struct, frozen=True, kw_only=True):
    """The result of one call.

    The last seven fields are set by the executor. What a handler writes into them is dropped.
    """

    output: Any = None
    """For the model: a str, sent unchanged, or any JSON value."""
    error: Failure | None = None
    media: tuple[MediaPart, ...] = ()
    """Images, sounds and files for the model, beside the output; a failure has none."""
    metadata: Mapping[str, Any] = {}
    """For people and user interfaces; it is never sent to a model, and the executor does not read it."""
    context: Any = None
    """For the caller's own code; it is never sent and never stored."""
    control: Control | None = None
    guidelines: tuple[Any, ...] = ()
    """For the reply of a guided turn, and for that turn only: texts, or `Guideline` values without tools. Those of
    tools from other sources, such as MCP servers, are not read. They are never sent as part of the result or stored."""
    call_id: str = ""
    tool_name: str = ""
    duration_ms: float = 0.0
    decision: Decision | None = None
    """What the policy or a person decided about the call."""
    approval: Approval | None = None
    """The pending approval, if the call needs one."""
    origin: Origin = "run"
    """`run`: its handler ran, or the call was refused. `replayed`: the recorded result of the same call or effect.
    `joined`: the result of another call with the same effect that was running. `verified`: the result that the tool's
    `verify` returned. `cached`: the result of an equal read-only call."""
    recorded: bool = True
    """False if the call took effect, but its result could not be written to the ledger."""
    notice: str = ""
    """Sent to the model before the output: when the effect was already done, or which arguments an approver changed."""
    silent: bool = False
    """True if the conversation was interrupted and the tool has `on_interrupt="finish_silently"`."""
    provider_id: str | None = None
    """`ToolCall.provider_id` of the call, which the provider wants back; None: `call_id` is it."""
    form: Literal["text", "data"] | None = None
    """In a history, where every output is text: whether the tool returned a text, or data that was written as one. None
    if that is not known, or the text is not the tool's alone; then it is the source of no value."""

    if TYPE_CHECKING:  # `error` also accepts a str, which the type of the field does not show.

        def __init__(
            self,
            *,
            output: Any = None,
            error: Failure | str | None = None,
            media: tuple[MediaPart, ...] = (),
            metadata: Mapping[str, Any] = ...,
            context: Any = None,
            control: Control | None = None,
            guidelines: tuple[Any, ...] = (),
            call_id: str = "",
            tool_name: str = "",
            duration_ms: float = 0.0,
            decision: Decision | None = None,
            approval: Approval | None = None,
            origin: Origin = "run",
            recorded: bool = True,
            notice: str = "",
            silent: bool = False,
            provider_id: str | None = None,
            form: Literal["text", "data"] | None = None,
        ) -> None: ...

    else:

        def __post_init__(self) -> None:
            error = self.error
            if error is not None and type(error) is not Failure:
                if not isinstance(error, str):
                    raise TypeError(f"ToolResult.error is a Failure or a str, not {type(error).__name__}.")
                force_setattr(self, "error", Failure(message=error))

    def __repr__(self) -> str:
        # Results end up in logs and tracebacks: redacted and short, and without `context` and the values of `metadata`.
        error = self.error
        fields: list[tuple[str, Any]] = [
            ("output", self.output),
            ("error", None if error is None else f"{error.code}: {error.message}"),
            ("media", [part.describe() for part in self.media]),
            ("metadata", list(self.metadata) if isinstance(self.metadata, Mapping) else None),  # pyright: ignore[reportUnnecessaryIsInstance]
            ("control", self.control),
            ("tool_name", self.tool_name),
            ("call_id", self.call_id),
            ("origin", "" if self.origin == "run" else self.origin),
            ("notice", self.notice),
            ("decision", None if self.decision is None else self.decision.action),
            ("approval", None if self.approval is None else self.approval.token),
        ]
        return _load_display().format_repr("ToolResult", fields)

    def __rich_repr__(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Make `rich` show what `repr` shows: by itself it would show every field, unredacted."""

    def _repr_html_(self) -> str:
        error, decision = self.error, self.decision
        rows: list[tuple[str, Any]] = [
            ("output", self.output),
            ("message", None if error is None else error.message),
            ("notice", self.notice),
            ("origin", self.origin),
            ("decision", None if decision is None else f"{decision.action}, by {decision.rule} ({decision.source})"),
            ("approval", None if self.approval is None else f"{self.approval.state}, by the {self.approval.by}"),
            ("media", [part.describe() for part in self.media]),
        ]
        title = f"{self.tool_name or 'ToolResult'}: {'ok' if error is None else error.code}"
        return _load_display().format_table(title, rows)

    @property
    def ok(self) -> bool:
        """Whether the call succeeded."""
        return self.error is None

    @property
    def wire_id(self) -> str:
        """The id that the provider knows the call by; empty if it gave none."""
        return self.call_id if self.provider_id is None else self.provider_id

    def for_model(self, *, attached: Collection[MediaPart] = ()) -> str:
        """The only text of this result that a model ever sees.

        Media are described in it, but for those that are `attached`: the model gets these as they are.
        """
        error = self.error
        if self.notice:
            return self._add_notice(attached)
        if error is None:
            output = self.output
            if self.media:
                return self._describe_media(attached)
            if type(output) is str and output.isascii():  # As in `encodable`, without a call of it for every read.
                return output
            if isinstance(output, str):  # Also one of a subclass, as it was written.
                return encodable(str.__str__(output))
            try:
                return compact_json(output)
            except ValueError:
                error = Failure(message="The tool returned a value that cannot be written as JSON.")
        name = self.tool_name
        name = name if len(name) <= MAX_NAME_CHARS else f"{name[:MAX_NAME_CHARS]}…"
        failed: dict[str, Any] = {
            "ok": False,
            "error": error.code,
            "tool": name,
            "message": error.message,
        }
        if self.error is not None and self.output is not None:
            failed["output"] = self.output
        try:
            return compact_json(failed)
        except ValueError:
            del failed["output"]
            return compact_json(failed)

    def _add_notice(self, attached: Collection[MediaPart]) -> str:
        plain = structs.replace(self, notice="")
        if (error := self.error) is not None:
            noted = structs.replace(error, message=f"{self.notice}\n{error.message}")
            return structs.replace(plain, error=noted).for_model(attached=attached)
        if self.output is None and not self.media:
            return self.notice
        return f"{self.notice}\n{plain.for_model(attached=attached)}"

    def _describe_media(self, attached: Collection[MediaPart]) -> str:
        hidden = (part for part in self.media if not any(part is other for other in attached))
        return "\n".join(filter(None, (self.text, *(part.describe_for_model() for part in hidden))))

    @property
    def text(self) -> str:
        """The output as text for the model, without a word about media; empty if there is nothing but media."""
        if not self.media:
            return self.for_model()
        return self.notice if self.output is None else structs.replace(self, media=()).for_model()


def find_media_result(output: object) -> ToolResult | None:
    """The result of a handler that returned a `MediaPart`, or a list of them and of texts; else None."""
    parts = cast(list[object], output) if isinstance(output, list | tuple) else [output]
    media = tuple(part for part in parts if isinstance(part, MediaPart))
    texts = [part for part in parts if isinstance(part, str)]
    if not media or len(media) + len(texts) != len(parts):
        return None
    return ToolResult(output="\n".join(texts) or None, media=media)
