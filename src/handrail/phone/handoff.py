"""A phone call that a person has taken over: the agent says nothing of its own until it is handed back."""

from collections.abc import Callable

from handrail.phone import signals as s
from handrail.phone.signals import Command


class Handoff:
    """Whether the agent may speak by itself, and the responses that began although it may not."""

    def __init__(self, do: Callable[[Command], None]) -> None:
        self._do = do
        self.is_active = False
        self._has_been_active = False
        self.cancelled: set[str] = set()
        """The responses that were stopped because the agent may not speak."""

    def begin(self, call_id: str, *, other_response: str | None) -> None:
        """A tool handed the call to a person. What the response that called it says is still heard."""
        if self.is_active:
            return
        self.is_active = self._has_been_active = True
        self._do(s.SetAutomaticTurns(is_automatic=False))
        self._do(s.Note(name="phone_call_handed_off", fields={"call_id": call_id}))
        if other_response is not None:
            self.cancel(other_response)

    def cancel(self, response_id: str) -> None:
        """A response began that nobody asked for: stop it."""
        self.cancelled.add(response_id)
        self._do(s.CancelResponse(response_id=response_id))

    def resume_connection(self) -> None:
        """The connection is new: what was asked of the provider may not have arrived."""
        if self._has_been_active:
            self._do(s.SetAutomaticTurns(is_automatic=not self.is_active))

    def end(self) -> None:
        """The agent may speak again."""
        if not self.is_active:
            return
        self.is_active = False
        self._do(s.SetAutomaticTurns(is_automatic=True))
        self._do(s.Note(name="phone_call_handed_back"))
