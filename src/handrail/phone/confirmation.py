"""What a caller is asked to agree to, and whether they did: a read-back heard to its end, then words of the caller."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from handrail.core.log import log
from handrail.core.text import compact_json
from handrail.tenants.builder import ToolBuildResult
from handrail.tenants.texts import Texts

Answer = Literal["yes", "no", "unknown"]

_MAX_CHARS: Final = 2_000


class _Confirmation(Struct):
    is_heard: bool = False
    turn: int | None = None
    """The caller's turn that answers it."""
    items: tuple[str, ...] = ()
    """What the caller said since it was heard."""
    is_refused: bool = False


class Confirmations:
    """The approvals that the caller was asked for in this phone call.

    A "yes" is the model's reading of what the caller said: it calls the tool again. That only counts if the read-back
    was heard before the caller spoke; and a transcript that refuses withdraws it.
    """

    def __init__(self, texts: Texts, *, has_transcripts: bool) -> None:
        self._texts = texts
        self._has_transcripts = has_transcripts
        self._asked: dict[str, _Confirmation] = {}
        self.has_answers = False
        """Whether the caller has said something after some read-back."""
        self._transcripts: dict[str, str | None] = {}

    def add(self, token: str) -> None:
        """Somebody has to agree."""
        self._asked.setdefault(token, _Confirmation())

    def begin(self, token: str) -> None:
        """The read-back begins anew: what was said before does not answer it."""
        self._asked[token] = _Confirmation()

    def hear(self, token: str) -> None:
        """The read-back was heard to its end."""
        if token in self._asked:
            self._asked[token].is_heard = True

    def answer(self, item_id: str, *, turn: int) -> None:
        """The caller speaks: that answers what was heard."""
        for confirmation in self._asked.values():
            if confirmation.is_heard:
                confirmation.turn = confirmation.turn or turn
                self.has_answers = True
                confirmation.items = (*confirmation.items, item_id)

    def transcribe(self, item_id: str, transcript: str | None) -> list[str]:
        """What the caller said, in writing; the approvals that it refuses."""
        self._transcripts[item_id] = transcript
        if transcript is None or not self._texts.is_refusal(transcript):
            return []
        refused = [
            token
            for token, confirmation in self._asked.items()
            if item_id in confirmation.items and not confirmation.is_refused
        ]
        for token in refused:
            self._asked[token].is_refused = True
        return refused

    def state(self, token: str) -> Answer:
        """Whether the caller may be taken to have agreed; unknown while a transcript is still to come."""
        confirmation = self._asked.get(token)
        if confirmation is None or confirmation.turn is None or confirmation.is_refused:
            return "no"
        if not self._has_transcripts:
            return "yes"
        last = confirmation.items[-1]
        if last not in self._transcripts:
            return "unknown"
        return "no" if self._transcripts[last] is None else "yes"

    def forget(self, token: str) -> None:
        """The approval was used, or refused."""
        self._asked.pop(token, None)


def describe_call(built: ToolBuildResult, name: str, arguments: Mapping[str, Any], texts: Texts) -> str:
    """A call in the tenant's language: in the tool's own words, or as its name and its exact arguments."""
    own = built.read_backs.get(name)
    if own is not None:
        try:
            text = own(arguments)
            if isinstance(text, str) and text.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
                return text[:_MAX_CHARS]
        except Exception:  # user code: the arguments can still be listed
            log.exception("the read-back of %s failed", name)
    listed = ", ".join(
        texts("read_back.argument", name=_words(key), value=value if isinstance(value, str) else compact_json(value))
        for key, value in arguments.items()
        if value is not None
    )
    text = texts("read_back.call", tool=_words(name), arguments=listed) if listed else _words(name)
    return text[:_MAX_CHARS]


def _words(name: str) -> str:
    return name.replace("_", " ").strip()
