"""The context of a tool call: session, customer, turn, and what its handler may use."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Generic

from msgspec import Struct
from typing_extensions import TypeVar

from handrail.core.events import Event, Progress
from handrail.core.provenance import Provenance
from handrail.core.text import is_storable
from handrail.core.values import ToolCall
from handrail.errors import ConfigError

DepsT = TypeVar("DepsT", default=Any, covariant=True)


class ToolContext(Struct, Generic[DepsT], frozen=True, kw_only=True):
    """The context of a tool call: session, customer, turn, and what its handler may use."""

    session_id: str
    """The conversation or the phone call. A new one needs an id of its own: in an old one, a call whose id was used
    before gets the result that it had then."""
    tenant_id: str | None = None
    """The company that is served; rules can name it, and effects of two tenants are never the same."""
    agent_id: str | None = None
    """The agent that speaks; rules can name it."""
    customer_id: str | None = None
    """The person in the conversation. Effects are recognised across a customer's sessions; without it, within one
    session."""
    turn: int = 0
    """The number of the customer's message that the conversation is at: raise it by 1 with each. A customer's approval
    counts only in a later turn than the one it was asked for in, so that a model cannot give it by itself."""
    wakes: int = 0
    """How often a framework was resumed after a pause within this turn; adapters count it. A customer's approval counts
    after a pause, too, and what was done in the turn is recognised as before."""
    working_directory: str | None = None
    """The directory that file tools may touch; without it they refuse."""
    deps: DepsT = None  # pyright: ignore[reportAssignmentType]  # None unless the caller passes one
    """The caller's own services, typed: `ToolContext[Bank]`."""
    secrets: Mapping[str, str] = {}
    """Values for handlers, by name; what a handler has read from here is never logged."""
    plugin_data: Mapping[str, Any] = {}
    """Anything else that a plugin or an adapter passes along."""
    call: ToolCall | None = None
    """The call that is running; set by the executor."""
    idempotency_key: str | None = None
    """Pass it to the services that the handler calls, so that they recognise a repeated request."""
    tenant: Any = None
    """The tenant's configuration, a `TenantConfig`: as it was when the phone call began, or as a chat was given it."""
    call_control: Any = None
    """What a tool can do with the call it runs in; `handrail.tenants.get_call_control(context)` is the typed way."""
    provenance: Provenance | None = None
    """Where the values of the conversation come from, for rules with `from`; without it they are in doubt."""
    listener: Callable[[Event], object] | None = None
    """Receives the events that the handler emits."""

    def __post_init__(self) -> None:
        # They are in the keys of the ledger, and a database cannot store half of a surrogate pair.
        tenant, customer, agent = self.tenant_id, self.customer_id, self.agent_id
        try:
            ids = self.session_id + ("" if tenant is None else tenant) + ("" if customer is None else customer)
            is_plain = (ids + ("" if agent is None else agent)).isprintable()
        except (AttributeError, TypeError):  # One is no text, such as a customer's number.
            is_plain = False
        if not (is_plain and isinstance(self.turn, int)):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller's
            self._check_values()

    def _check_values(self) -> None:
        for name in ("session_id", "tenant_id", "customer_id", "agent_id"):
            value = getattr(self, name)
            if value is None and name != "session_id":
                continue
            if not isinstance(value, str):
                raise ConfigError(f"{name} must be a str, got {type(value).__name__}.")
            if not is_storable(value):
                raise ConfigError(f"{name} must be valid Unicode text without a zero character, got {value!r}.")
        if not isinstance(self.turn, int):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller's
            raise ConfigError(f"turn must be an int, got {type(self.turn).__name__}.")

    def __repr__(self) -> str:
        # Secrets and deps are left out: contexts end up in logs and tracebacks.
        ids = ("session_id", "tenant_id", "agent_id", "customer_id", "turn")
        return f"ToolContext({', '.join(f'{name}={getattr(self, name)!r}' for name in ids)})"

    def __rich_repr__(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Make `rich` show what `repr` shows: by itself it would show every field, unredacted."""

    def emit(self, event: Event) -> None:
        """Send an event to the listener of this call."""
        if self.listener is not None:
            self.listener(event)

    def progress(self, message: str, *, fraction: float | None = None) -> None:
        """Emit a `Progress` event for a long call."""
        if self.listener is not None:
            call = self.call
            self.listener(
                Progress(
                    at=time.time(),
                    session_id=self.session_id,
                    tenant_id=self.tenant_id,
                    call_id=call.id if call else "",
                    tool_name=call.name if call else "",
                    message=message,
                    fraction=fraction,
                )
            )


def build_type_error(call: object, context: object) -> TypeError:
    """The error for something that is not a `ToolCall` or not a `ToolContext` where both are needed."""
    if not isinstance(call, ToolCall):
        kind = type(call).__name__
        return TypeError(f"call must be a ToolCall(id=…, name=…, arguments_json=…), got {kind}.")
    return TypeError(f"context must be a ToolContext(session_id=…), got {type(context).__name__}.")
