"""What a caller is asked to agree to, and whether they did: a read-back heard to its end, then words of the caller.

One question is open at a time. What the agent said has to contain the values of the call; what the caller said since
then, all of it, has to be a yes.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct, structs

from handrail.core.consent import Answer as Reading
from handrail.core.consent import read_answer
from handrail.core.context import ToolContext
from handrail.core.locale_texts import LANGUAGES, load_locale
from handrail.core.log import log
from handrail.core.text import compact_json, copy_json
from handrail.core.value_mentions import mentions_value, split_words
from handrail.core.values import Approval, ToolCall
from handrail.errors import ApprovalError
from handrail.execute.executor import Executor
from handrail.tenants.texts import Texts
from handrail.tenants.tool_builder import ToolBuildResult

ConfirmationState = Literal["yes", "no", "unknown"]

_TRANSCRIPT_TIMEOUT: Final = 3.0
"""Seconds to wait for the transcript of an answer before it counts as not understood."""
_MIN_WORD: Final = 3
"""The shortest word of a tool's own read-back that has to be spoken."""
_MAX_READ_BACKS: Final = 3
"""How often one question is asked before the agent has to find another way."""


class ReadBack(Struct, frozen=True, kw_only=True):
    """What the caller is asked to agree to."""

    text: str
    values: tuple[Any, ...] = ()
    """What the agent has to have said."""
    action: str = ""
    """What would be done, in words: only they may sound like a refusal in a yes."""
    notice: str = ""
    """That it was done before, if it was: said first, and no part of what a yes may repeat."""

    @property
    def spoken(self) -> str:
        """What is read to the caller."""
        return f"{self.notice}. {self.text}" if self.notice else self.text


class _Confirmation(Struct):
    read_back: ReadBack
    asked: int = 0
    """How often it was read back."""
    is_heard: bool = False
    items: tuple[str, ...] = ()
    """What the caller said since it was heard."""
    reading: Reading | None = None
    """What that means; None while a transcript is still to come."""


class Confirmations:
    """The approvals that the caller was asked for in this phone call.

    A "yes" is the model's reading of what the caller said: it calls the tool again. That only counts if the read-back
    was heard before the caller spoke; and with transcripts, if all that the caller said since then is a yes.
    """

    def __init__(self, *, has_transcripts: bool) -> None:
        self._has_transcripts = has_transcripts
        self._confirmations: dict[str, _Confirmation] = {}
        self._transcripts: dict[str, str | None] = {}
        self.open: str | None = None
        """The question that was heard last: what the caller says answers it, and no other."""
        self._are_words_known = False
        """Whether the provider tells what the agent said."""
        self.has_answers = False
        """Whether the caller has said something after some read-back."""

    @property
    def is_open(self) -> bool:
        """Whether the caller was asked something, and has not answered it."""
        confirmation = self._confirmations.get(self.open or "")
        return confirmation is not None and not confirmation.items

    def add(self, token: str, read_back: ReadBack) -> None:
        """Somebody has to agree."""
        known = self._confirmations.get(token)
        if known is None:
            self._confirmations[token] = _Confirmation(read_back)
        else:
            known.read_back = read_back

    def close(self, token: str) -> None:
        """The call was made again, and nobody heard an answer: the question has to be asked again."""
        if self.open == token and self.is_open:
            self.open = None

    def begin(self, token: str) -> None:
        """The read-back begins anew: what was said before does not answer it."""
        confirmation = self._confirmations.get(token)
        if confirmation is not None:
            confirmation.asked += 1
            confirmation.is_heard, confirmation.items, confirmation.reading = False, (), None

    def hear(self, token: str, words: str) -> bool:
        """The read-back was played to its end, in these words; whether they contain what has to be agreed to."""
        self._are_words_known = self._are_words_known or bool(words)
        confirmation = self._confirmations.get(token)
        if confirmation is None:
            return True
        if self._are_words_known and not all(mentions_value(words, value) for value in confirmation.read_back.values):
            return False
        confirmation.is_heard = True
        self.open = token
        return True

    def learn_words(self, words: str) -> None:
        """The provider told what the agent said."""
        self._are_words_known = self._are_words_known or bool(words)

    def answer(self, item_id: str) -> None:
        """The caller speaks: that answers what was heard last."""
        confirmation = self._confirmations.get(self.open or "")
        if confirmation is not None and confirmation.is_heard:
            confirmation.items = (*confirmation.items, item_id)
            confirmation.reading = None
            self.has_answers = True

    def transcribe(self, item_id: str, transcript: str | None) -> tuple[str, Reading] | None:
        """What the caller said, in writing; the question that it answers, and how. None if it answers none yet."""
        self._transcripts[item_id] = transcript
        if not self._has_transcripts:
            return None
        for token, confirmation in self._confirmations.items():
            if item_id in confirmation.items and all(item in self._transcripts for item in confirmation.items):
                confirmation.reading = self._read(confirmation)
                return token, confirmation.reading
        return None

    def _read(self, confirmation: _Confirmation) -> Reading:
        said = [self._transcripts[item] for item in confirmation.items]
        words = ". ".join(text for text in said if text)
        asked = confirmation.read_back
        reading = read_answer(words, shown=asked.text, action=asked.action, repeats=bool(asked.notice))
        return "unclear" if reading == "yes" and None in said else reading

    def refuses(self, transcript: str | None) -> bool:
        """Whether some words are a refusal, whatever was asked."""
        return transcript is not None and read_answer(transcript) == "no"

    def get_read_back(self, token: str) -> ReadBack | None:
        """What the caller is asked about, if it may be asked again."""
        confirmation = self._confirmations.get(token)
        return confirmation.read_back if confirmation is not None and confirmation.asked < _MAX_READ_BACKS else None

    def state(self, token: str) -> ConfirmationState:
        """Whether the caller may be taken to have agreed; unknown while a transcript is still to come."""
        confirmation = self._confirmations.get(token)
        if confirmation is None or not confirmation.items:
            return "no"
        if not self._has_transcripts:
            return "yes"
        return "unknown" if confirmation.reading is None else "yes" if confirmation.reading == "yes" else "no"

    def has_agreed_to(self, token: str, spoken: str) -> bool:
        """Whether this is what the caller was asked about: hours and destinations may have changed since then."""
        confirmation = self._confirmations.get(token)
        return confirmation is not None and confirmation.read_back.spoken == spoken

    def forget(self, token: str) -> None:
        """The approval was used, refused or given up."""
        self._confirmations.pop(token, None)
        if self.open == token:
            self.open = None


class CallerApprovals:
    """Gives and denies approvals as the caller of one phone call has answered."""

    def __init__(
        self,
        executor: Executor,
        confirmations: Confirmations,
        *,
        customer_id: str | None,
        describe: Callable[[Approval], ReadBack],
    ) -> None:
        self._executor = executor
        self._who = customer_id or "caller"
        self._confirmations = confirmations
        self._describe = describe
        self._transcribed = asyncio.Event()
        self.refused: dict[str, int] = {}
        """Approvals that the caller has refused, and in which turn."""

    def transcribe(self) -> None:
        """Something that the caller said was written down, or could not be."""
        self._transcribed.set()
        self._transcribed = asyncio.Event()

    async def decide(self, call: ToolCall, context: ToolContext[Any]) -> None:
        """Give the caller's approval to this exact call, if they heard what it does and then agreed."""
        for token in [token for token, turn in self.refused.items() if turn < context.turn]:
            del self.refused[token]  # They have spoken since: the same may be asked again.
            await self._executor.approvals.withdraw(token)
        if not self._confirmations.has_answers:
            return
        approval = await self._executor.request_approval(call, context)
        if approval is None:
            return
        token = approval.token
        try:
            async with asyncio.timeout(_TRANSCRIPT_TIMEOUT):
                while self._confirmations.state(token) == "unknown":
                    await self._transcribed.wait()
        except TimeoutError:
            pass
        if self._confirmations.state(token) != "yes":
            return
        if not self._confirmations.has_agreed_to(token, self._describe(approval).spoken):
            return
        self._confirmations.forget(token)
        try:
            await self._executor.approvals.approve(
                token, by="customer", who=self._who, reason="the caller agreed on the phone"
            )
        except ApprovalError as error:
            log.warning("the approval of %s could not be given: %s", call.name, error.message)

    async def deny(self, token: str, *, turn: int) -> None:
        """The caller refused; in a later turn they may be asked again."""
        self.refused[token] = turn
        try:
            await self._executor.approvals.deny(
                token, by="customer", who=self._who, reason="the caller refused on the phone"
            )
        except ApprovalError as error:
            log.warning("an approval could not be denied: %s", error.message)


def is_listening_sound(transcript: str | None) -> bool:
    """Whether words only say that somebody listens ("mm-hm", "okay, thanks"), and ask for nothing."""
    # A no of one language may be a filler of another ("no" in Polish): who may have refused is not only listening.
    if transcript is None or read_answer(transcript) == "no":
        return False
    # With a yes before them they are a yes in some language: then they are nothing else.
    agreements = ((language, load_locale(language)["consent.yes"].partition("|")[0]) for language in LANGUAGES)
    return any(read_answer(f"{yes}. {transcript}", locales=(language,)) == "yes" for language, yes in agreements)


def describe_call(
    built: ToolBuildResult, name: str, arguments: Mapping[str, Any], texts: Texts, *, repeats: bool = False
) -> ReadBack:
    """A call in the tenant's language: in the tool's own words, or as its name and its exact arguments.

    With `repeats`, it was done before, and the caller has to hear that first.
    """
    read_back = _describe_once(built, name, arguments, texts)
    if not repeats:
        return read_back
    notice = texts("read_back.repeat")
    said = tuple(filter(_has_to_be_said, split_words(notice)))
    return structs.replace(read_back, notice=notice, values=(*said, *read_back.values))


def _describe_once(built: ToolBuildResult, name: str, arguments: Mapping[str, Any], texts: Texts) -> ReadBack:
    own = built.read_backs.get(name)
    if own is not None:
        try:
            text = own(copy_json(dict(arguments)))  # Whatever it does to them, they are listed as they will run.
            if isinstance(text, str) and text.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
                return ReadBack(
                    text=text, values=tuple(filter(_has_to_be_said, split_words(text))), action=_words(name)
                )
        except (Exception, asyncio.CancelledError):  # user code: the arguments can still be listed
            log.exception("the read-back of %s failed", name)
    given = {key: value for key, value in arguments.items() if value is not None}
    lines = {key: _describe_argument(key, value, texts) for key, value in given.items()}
    text = texts("read_back.call", tool=_words(name), arguments=", ".join(lines.values())) if lines else _words(name)
    # A truth value has no word of its own: what it is of has to be said with it.
    values = tuple(lines[key] if isinstance(value, bool) else value for key, value in given.items())
    return ReadBack(text=text, values=values or (_words(name),), action=_words(name))


def _describe_argument(key: str, value: Any, texts: Texts) -> str:
    if isinstance(value, bool):
        value = load_locale(texts.locale)["value.true" if value else "value.false"]
    text = value if isinstance(value, str) else compact_json(value)
    return texts("read_back.argument", name=_words(key), value=text)


def _has_to_be_said(word: str) -> bool:
    """Whether a word of a read-back is more than an article: long, a number, or of another script."""
    return len(word) >= _MIN_WORD or not word.isascii() or any(char.isdigit() for char in word)


def _words(name: str) -> str:
    return name.replace("_", " ").strip()
