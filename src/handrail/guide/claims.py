"""Finds sentences in a reply that claim an effect which did not happen, by English word patterns."""

import re
from collections.abc import Iterable, Sequence, Set
from typing import Final

from msgspec import Struct

from handrail.core.patterns import LazyPattern

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
_BASE: Final = LazyPattern(rf"(?:{_VERBS})\w*")
_CONDITIONAL: Final = LazyPattern(
    r"\b(if|once|when|whenever|as soon as|after you|before|until|unless|in case|assuming|provided|would you|do you"
    r"|shall|should)\b"
)
_OPEN: Final = LazyPattern(
    r"\b(not|never|no|nothing|none|neither|nor|cannot|can|could|will|would|may|might|must|need|needs|unable|without"
    r"|let me|yet|about to|going to|ready to|to be|like to|happy to|trying to|want|wants|try|please|fail|fails|failed"
    r"|pending|instead of|declined|refused|rejected|unsuccessful)\b|n't\b|'ll\b|'d\b"
)
_DONE: Final = LazyPattern(
    r"\b(done|completed?|all set|taken care of|(?:went|gone|going) through|success|successful|successfully|finali[sz]ed"
    r"|sorted|on (?:its|their|the) way|in place|good to go|has left your account|executed|processed|is through)\b"
)
_PERSON: Final = LazyPattern(
    r"\b(?:i|we)(?:'ve| have)?(?: (?:now|just|already|also|successfully|since|gone ahead and|went ahead and|gladly|both"
    r"|have))*"
    r" (\w+)(?: ahead and (\w+))?"
)
_MANAGED: Final = LazyPattern(r"\b(?:i|we)(?:'ve| have)?(?: now| just)? (?:managed|got|was able|were able) to (\w+)")
_PASSIVE: Final = LazyPattern(
    r"(?:\b(?:has|have|had|was|were|is|are|been|got|gets|being)|'s|'re|'ve)"
    r"(?: (?:now|just|already|been|also|successfully|all|both|fully|being|officially|safely))*"
    r" (\w+)"
)
_BARE: Final = LazyPattern(
    r"^(?:ok(?:ay)?|great|sure|perfect|alright|all right|yes|there)?[ ]?(?:successfully )?(\w+)\b"
)
_THING: Final = (
    r"(?:money|funds?|amount|payment|refund|transfer|receipt|confirmation|ticket|e-?mail|parcel|order|booking|card|it"
    r"|\d[\d.,]*)"
)
_INDIRECT: Final = LazyPattern(
    "|".join(
        (
            # What the other person has, or will see; "I will get it" is an intention.
            r"(?<!\bi)(?<!\bwe)(?<!\bi )(?<!\bwe )(?:\bwill|\bshould|'ll)(?: already| soon| now)*"
            rf" (?:see|find|receive|get|have) .*\b{_THING}\b",
            rf"\b{_THING} (?:is|are)(?: now| already)* (?:with|off to|en route|under ?way|in the (?:pipeline|post))\b",
            r"\b(?:in|to) your (?:inbox|mailbox|e-?mail)\b",
            # A state that only the effect brings about.
            r"\b(?:is|are|it's|that's)(?: now| already| all)* (?:history|no more|gone|dead|yours|settled|handled"
            r"|dealt with|out of the way|behind you|official|locked in)\b|\bawaits?\b|\bwaiting for you\b"
            r"|\boff your (?:plate|hands|list|mind|account)\b|\bon the books\b|\bfrom your account to\b|\bricher\b",
            r"\byou(?:'re| are)(?: now| all)* (?:set|covered|booked|registered|subscribed|unsubscribed|signed up)\b",
            r"\byou(?: now)? no longer owe\b|\bnobody can .*\b(?:any more|anymore|any longer)\b"
            r"|\b(?:stop|no need to) worry(?:ing)?\b|\bnothing (?:left|more|else)(?: \w+){0,3} to (?:do|worry|pay)\b",
            # What comes after the effect.
            r"\bhere(?:'s| is) your (?:\w+ )?(?:confirmation|reference|receipt|ticket|tracking|booking)\b",
            r"\b(?:confirmation|reference|booking)(?: (?:number|code))?(?: of [\w ]+)? is [a-z]*[-#]?\d",
            r"\b(?:thanks|thank you) for your (?:payment|order|purchase|booking|transfer|deposit|reservation)\b",
            r"\benjoy your (?:flight|trip|stay|meal|seat|show)\b|\bsee you (?:on|at|tomorrow)\b|\bbalance after\b",
        )
    )
)
"""Says that an effect has happened without a verb for it."""
_INDIRECT_OPEN: Final = LazyPattern(
    r"\b(not|never|cannot|unable|could|would|may|might|yet|until|fail\w*|declined|rejected|refused|please|let me|needs?"
    r"|usually|normally|typically|always|last|yesterday|previous|earlier|tell me|would like|want)\b|n't\b"
)
_INDIRECT_CONDITIONAL: Final = LazyPattern(
    r"\b(if|once|when|whenever|as soon as|after|before|unless|in case|assuming|provided|do you|shall i|should i)\b"
)
_UNDONE: Final = LazyPattern(
    r"\b(not|cannot|can|could|would|may|might|need|needs|unable|yet|let me|ready to|happy to|like to|want|please|fail"
    r"|fails|failed|declined|refused|rejected|unsuccessful)\b|(?<!wo)n't\b|'d\b"
)
"""Says that something is still open, or did not work."""
_ACKNOWLEDGEMENT: Final = LazyPattern(
    r"(?:(?:ok(?:ay)?|sure|of course|certainly|gladly|thanks|thank you|hello|hi|got it|i see|i understand|understood"
    r"|sorry|i'm sorry|no problem|my pleasure|well|right|all right|alright|yes|great)[,! ]*)+"
)
"""A sentence that only shows that the customer was heard."""
_SENTENCE: Final = LazyPattern(
    r"[^.!?\u3002\uff01\uff1f\n]+(?:\.(?=\d)[^.!?\u3002\uff01\uff1f\n]+)*[.!?\u3002\uff01\uff1f]*"
)
_CLAUSE: Final = LazyPattern(r"[,;:–—()]|\bbut\b|\bso\b|\bhowever\b")
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
    if lowered.rstrip(" \"'*)").endswith("?"):
        return False
    kinds = (
        [] if _CONDITIONAL.compiled.search(lowered) else list(map(_find_claim_kind, _CLAUSE.compiled.split(lowered)))
    )
    kinds.append(_find_indirect_kind(lowered))
    for how in filter(None, kinds):
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
    if not earlier or lowered.rstrip(" \"'*)").endswith("?") or _CONDITIONAL.compiled.search(lowered):
        return False
    if all(_find_claim_kind(clause) is None for clause in _CLAUSE.compiled.split(lowered)):
        return False
    stems = {_stem(word) for word in _split_words(lowered)}
    numbers = {word for word in extract_value_words(lowered) if word.isdigit()}
    return any(effect.stems & stems and numbers - effect.done_values for effect in earlier)


def _find_claim_kind(clause: str) -> str | None:
    """Find how a clause claims something: `person` (I sent it), `passive` (it was sent), `general` (it is done)."""
    clause = clause.strip()
    if not clause or _OPEN.compiled.search(clause):
        return None
    if any(_BASE.compiled.match(found[1]) for found in _MANAGED.compiled.finditer(clause)):
        return "person"
    if any(_is_past(word) for found in _PERSON.compiled.finditer(clause) for word in found.groups() if word):
        return "person"
    if any(_is_past(found[1]) for found in _PASSIVE.compiled.finditer(clause)):
        return "passive"
    if _DONE.compiled.search(clause):
        return "general"
    first = _BARE.compiled.match(clause)
    return "passive" if first and _is_past(first[1]) else None


def _find_indirect_kind(sentence: str) -> str | None:
    """Find whether a sentence says in other words that something has happened: `general` if it does."""
    for clause in _CLAUSE.compiled.split(sentence):
        found = None if _INDIRECT_OPEN.compiled.search(clause) else _INDIRECT.compiled.search(clause)
        # "After" belongs to a condition, unless it is part of the pattern: "the balance after the transfer".
        if found is not None and not _INDIRECT_CONDITIONAL.compiled.search(sentence.replace(found[0], "")):
            return "general"
    return None


def has_statements(text: str) -> bool:
    """Whether some sentence is neither a question nor a condition, and does not say what is open or did not work.

    Only such a sentence can claim an effect, in whatever words.
    """
    return any(
        not lowered.rstrip(" \"'*)").endswith(("?", "\uff1f"))
        and not _UNDONE.compiled.search(lowered)
        and not _CONDITIONAL.compiled.search(lowered)
        and not _ACKNOWLEDGEMENT.compiled.fullmatch(lowered.strip(" .!*\"'"))
        for lowered in (sentence.casefold().replace("’", "'") for sentence in _split_sentences(text))
    )


def _is_past(word: str) -> bool:
    """Whether a word is the past form of a verb for an effect."""
    if word in _IRREGULAR:
        return _BASE.compiled.match(_IRREGULAR[word]) is not None
    return word.endswith("ed") and _BASE.compiled.match(word) is not None


def extract_value_words(text: str) -> frozenset[str]:
    """Extract the words and numbers of a text, to compare values."""
    return frozenset(re.findall(r"\w+", re.sub(r"(?<=\d),(?=\d{3}\b)", "", text.casefold())))


def _split_sentences(text: str) -> Iterable[str]:
    return (sentence.strip() for sentence in _SENTENCE.compiled.findall(text) if sentence.strip())


def _split_words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", text.casefold())


def _stem(word: str) -> str:
    return _IRREGULAR.get(word, word)[:5]
