"""Finds sentences in a reply that claim an effect which did not happen, by English word patterns."""

import re
from collections.abc import Iterable, Sequence, Set
from typing import Final

from msgspec import Struct

_IRREGULAR: Final = {
    "sent": "send", "paid": "pay", "bought": "buy", "made": "make", "withdrew": "withdraw", "withdrawn": "withdraw",
    "sold": "sell", "gave": "give", "given": "give", "took": "take", "taken": "take", "put": "put", "set": "set",
    "wrote": "write", "written": "write", "began": "begin", "begun": "begin", "got": "get", "let": "let",
    "froze": "freeze", "frozen": "freeze", "reset": "reset", "cut": "cut", "shut": "shut", "wired": "wire",
}  # fmt: skip
_VERBS: Final = (
    "activat|add|adjust|appl|approv|arrang|block|book|buy|cancel|chang|charg|clos|complet|confirm|creat|credit|cut"
    "|deactivat|debit|delet|deliver|deposit|disabl|dispatch|email|enabl|execut|extend|fil|finali|forward|freez|fulfil"
    "|give|grant|hand|initiat|issu|join|lock|mail|make|mov|notif|open|order|pass|pay|pin|plac|post|process|purchas|put"
    "|rais|rebook|record|redeem|refund|regist|releas|remov|renew|replac|request|reschedul|reserv|reset|return|revers"
    "|revok|save|schedul|sell|send|set|settl|ship|shut|sign|stop|submit|subscrib|suspend|switch|take|termin|transfer"
    "|unblock|unlock|unsubscrib|updat|upgrad|downgrad|upload|wir|withdraw|writ"
)
_BASE: Final = re.compile(rf"(?:{_VERBS})\w*")
_CONDITIONAL: Final = re.compile(
    r"\b(if|once|when|whenever|as soon as|after you|before|until|unless|in case|assuming|provided|would you|do you"
    r"|shall|should)\b"
)
_OPEN: Final = re.compile(
    r"\b(not|never|no|nothing|none|neither|nor|cannot|can|could|will|would|may|might|must|need|needs|unable|without"
    r"|let me|yet|about to|going to|ready to|to be|like to|happy to|trying to|want|wants|try|please|fail|fails|failed"
    r"|pending|instead of|declined|refused|rejected|unsuccessful)\b|n't\b|'ll\b|'d\b"
)
_DONE: Final = re.compile(
    r"\b(done|completed?|all set|taken care of|(?:went|gone|going) through|success|successful|successfully|finali[sz]ed"
    r"|sorted|on (?:its|their|the) way|in place|good to go|has left your account|executed|processed|is through)\b"
)
_PERSON: Final = re.compile(
    r"\b(?:i|we)(?:'ve| have)?(?: (?:now|just|already|also|successfully|since|gone ahead and|went ahead and|gladly|both"
    r"|have))*"
    r" (\w+)(?: ahead and (\w+))?"
)
_MANAGED: Final = re.compile(r"\b(?:i|we)(?:'ve| have)?(?: now| just)? (?:managed|got|was able|were able) to (\w+)")
_PASSIVE: Final = re.compile(
    r"(?:\b(?:has|have|had|was|were|is|are|been|got|gets|being)|'s|'re|'ve)"
    r"(?: (?:now|just|already|been|also|successfully|all|both|fully|being|officially|safely))*"
    r" (\w+)"
)
_BARE: Final = re.compile(
    r"^(?:ok(?:ay)?|great|sure|perfect|alright|all right|yes|there)?[ ]?(?:successfully )?(\w+)\b"
)
_CLAUSE: Final = re.compile(r"[,;:–—()]|\bbut\b|\bso\b|\bhowever\b")
_STOP: Final = frozenset(
    (
        "the", "and", "are", "can", "for", "from", "get", "has", "have", "into", "its", "one", "out", "their", "them",
        "this", "use", "with", "you", "your", "customer", "customers", "user", "account", "accounts", "between",
        "whole",
    )
)  # fmt: skip


class Effect(Struct, frozen=True, kw_only=True):
    """A consequential tool, and the word stems that refer to it."""

    tool: str
    stems: frozenset[str]
    open_values: frozenset[str] = frozenset()
    """Words of the arguments of calls that did not happen, if other calls of the tool did."""
    done_values: frozenset[str] = frozenset()
    """Words of the arguments of calls that happened."""

    def is_claimed_by(self, stems: Set[str], words: Set[str]) -> bool:
        """Whether a claim can be about this effect, with arguments with which it did not happen."""
        if not self.stems & stems:
            return False
        return not (self.done_values & words) or bool((self.open_values - self.done_values) & words)


def build_effect(name: str, description: str = "") -> Effect:
    """Build the effect of a tool from the words of its name and the first words of its description."""
    words = _split_words(f"{name.replace('_', ' ')} {' '.join(description.split()[:8])}")
    return Effect(tool=name, stems=frozenset(_stem(word) for word in words if word not in _STOP and len(word) > 2))


def find_false_claims(
    text: str,
    *,
    candidates: Sequence[Effect],
    others: Sequence[Effect] = (),
    committed: Sequence[Effect] = (),
    earlier: Sequence[Effect] = (),
) -> tuple[str, ...]:
    """Find the sentences that claim an effect which did not happen.

    `candidates` were considered in this turn and have no successful result: every claim that no committed effect
    explains counts for them. `others` were not considered: only a claim in the first person that names one counts.
    `earlier` happened in earlier turns, with their `done_values`: they do not excuse a claim with another number.
    """
    return tuple(
        sentence
        for sentence in _split_sentences(text)
        if _is_false_claim(sentence, candidates, others, tuple(committed)) or _is_other_effect(sentence, earlier)
    )


def _is_false_claim(
    sentence: str, candidates: Sequence[Effect], others: Sequence[Effect], committed: Sequence[Effect]
) -> bool:
    lowered = sentence.casefold().replace("’", "'")
    if lowered.rstrip(" \"'*)").endswith("?") or _CONDITIONAL.search(lowered):
        return False
    for clause in re.split(_CLAUSE, lowered):
        how = _find_claim_kind(clause.strip())
        if how is None:
            continue
        stems, words = {_stem(word) for word in _split_words(lowered)}, extract_value_words(lowered)
        done = any(effect.stems & stems for effect in committed)
        wrong = any(candidate.is_claimed_by(stems, words) for candidate in candidates)
        explained = done or any(candidate.stems & stems and candidate.done_values & words for candidate in candidates)
        if candidates and (wrong or not (explained or (committed and how == "general"))):
            return True
        if how == "person" and not done and any(effect.stems & stems for effect in others):
            return True
    return False


def _is_other_effect(sentence: str, earlier: Sequence[Effect]) -> bool:
    """Whether a sentence claims an effect of an earlier turn with a number that the effect did not have."""
    lowered = sentence.casefold().replace("’", "'")
    if not earlier or lowered.rstrip(" \"'*)").endswith("?") or _CONDITIONAL.search(lowered):
        return False
    if all(_find_claim_kind(clause.strip()) is None for clause in re.split(_CLAUSE, lowered)):
        return False
    stems = {_stem(word) for word in _split_words(lowered)}
    numbers = {word for word in extract_value_words(lowered) if word.isdigit()}
    return any(effect.stems & stems and numbers - effect.done_values for effect in earlier)


def _find_claim_kind(clause: str) -> str | None:
    """Find how a clause claims something: `person` (I sent it), `passive` (it was sent), `general` (it is done)."""
    if not clause or _OPEN.search(clause):
        return None
    if any(_BASE.match(found[1]) for found in _MANAGED.finditer(clause)):
        return "person"
    if any(_is_past(word) for found in _PERSON.finditer(clause) for word in found.groups() if word):
        return "person"
    if any(_is_past(found[1]) for found in _PASSIVE.finditer(clause)):
        return "passive"
    if _DONE.search(clause):
        return "general"
    first = _BARE.match(clause)
    return "passive" if first and _is_past(first[1]) else None


def _is_past(word: str) -> bool:
    """Whether a word is the past form of a verb for an effect."""
    if word in _IRREGULAR:
        return _BASE.match(_IRREGULAR[word]) is not None
    return word.endswith("ed") and _BASE.match(word) is not None


def extract_value_words(text: str) -> frozenset[str]:
    """Extract the words and numbers of a text, to compare values."""
    return frozenset(re.findall(r"\w+", re.sub(r"(?<=\d),(?=\d{3}\b)", "", text.casefold())))


def _split_sentences(text: str) -> Iterable[str]:
    return (
        sentence.strip() for sentence in re.findall(r"[^.!?\n]+(?:\.(?=\d)[^.!?\n]+)*[.!?]*", text) if sentence.strip()
    )


def _split_words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", text.casefold())


def _stem(word: str) -> str:
    return _IRREGULAR.get(word, word)[:5]
