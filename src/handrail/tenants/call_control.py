"""What a tool can do with the phone call that it is called in."""

from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from handrail.core.context import ToolContext

TransferOutcome = Literal["transferred", "failed", "not_taken", "interrupted", "in_progress", "ended", "unknown"]
"""`transferred`: the call left the agent. `failed`: the provider refused. `not_taken`: the provider agreed, and the
caller is still there. `interrupted`: the caller spoke before it began, and nothing happened. `in_progress`: another
transfer was requested before. `ended`: the call was over before. `unknown`: the call was ended here while the provider
was at it."""

HangUpOutcome = Literal["ended", "failed", "interrupted", "too_early", "results_pending"]
"""`ended`: the goodbye was heard. `interrupted`: the caller spoke before that. `too_early`: the caller never spoke.
`results_pending`: the caller has not heard of other results. `failed`: the call is about to end anyway."""


class Digits(Struct, frozen=True, kw_only=True):
    """Keys that a caller pressed."""

    digits_id: str
    """Names them to `CallControl.digits`."""
    count: int
    complete: bool
    """Whether the terminator, or as many keys as expected, were pressed."""


@runtime_checkable
class CallControl(Protocol):
    """One phone call, for the tools that are called in it: `get_call_control(context)`."""

    async def transfer(self, target_uri: str, *, announcement: str = "", output: str = "") -> TransferOutcome:
        """Say the announcement, wait until it was heard, and transfer the call, once and without a retry.

        It returns when the call has left or, after a while, is still there. `output` is what the model is told
        meanwhile.
        """
        ...

    async def hang_up(self, *, goodbye: str = "") -> HangUpOutcome:
        """Say goodbye, wait until it was heard, and end the call."""
        ...

    async def collect_digits(self, *, max_digits: int, timeout: float, terminator: str = "#") -> Digits | None:
        """Collect the keys that the caller presses; None while others are being collected already."""
        ...

    def digits(self, digits_id: str) -> str:
        """The keys themselves; `KeyError` if this call has none of this id."""
        ...


@runtime_checkable
class PhoneCall(Protocol):
    """A phone call, which each tool call in it sees in its own way."""

    def control_for(self, call_id: str) -> CallControl:
        """What a tool call can do with it."""
        ...


def get_call_control(context: ToolContext[Any]) -> CallControl | None:
    """The phone call that a tool is called in; None outside a phone call."""
    control = context.call_control
    if isinstance(control, PhoneCall):
        control = control.control_for(context.call.id if context.call is not None else "")
    return control if isinstance(control, CallControl) else None
