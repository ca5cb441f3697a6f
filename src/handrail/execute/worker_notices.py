"""What workers tell other processes about stored calls: at most once, and only if somebody listens."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable
from weakref import WeakSet

from msgspec import Struct


class CallNotice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened to a stored call; neither arguments nor results are in it."""

    session_id: str
    call_id: str
    worker: str
    """The `owner` of the executor that runs it."""
    kind: Literal["started", "progress", "taken_over", "finished"]
    at: float
    message: str = ""
    """Of `progress`; redacted and cut."""
    fraction: float | None = None
    previous_owner: str = ""
    """Of `taken_over`."""


OnNotice = Callable[[CallNotice], None]


@runtime_checkable
class NotifyingWork(Protocol):
    """What `Work` also is, where the store can notify other processes."""

    async def publish(self, notices: Sequence[CallNotice]) -> None:
        """Tell every process that follows calls; what is not heard is lost."""
        ...

    async def subscribe(self, receiver: OnNotice) -> None:
        """Hand every notice of any process to an object, which is held weakly; again with the same one is the same."""
        ...


class NoticeBoard:
    """Who gets every notice in one process; they are held weakly."""

    def __init__(self) -> None:
        self._receivers: WeakSet[OnNotice] = WeakSet()

    def __bool__(self) -> bool:
        return bool(self._receivers)

    def add(self, receiver: OnNotice) -> None:
        """Add a receiver, once."""
        self._receivers.add(receiver)

    def show(self, notice: CallNotice) -> None:
        """Hand a notice to all of them."""
        for receiver in tuple(self._receivers):
            receiver(notice)
