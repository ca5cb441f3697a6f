"""Checks a reply before it is sent: for claims of effects that did not happen, hidden values, and what is not done."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Final

from msgspec import Struct, structs

from handrail.core.lazy_loading import LazyPattern
from handrail.core.locale_texts import load_locale
from handrail.core.text import compact_json
from handrail.core.value_mentions import contains_words, mentions_value
from handrail.core.values import ToolCall, ToolResult
from handrail.formats.call_parsing import parse_object
from handrail.guide.parameters import GuidedTool
from handrail.guide.values import Claim, Draft, ReplyRequest
from handrail.providers.messages import AssistantMessage, Message, ToolMessage, UserMessage

_MIN_HIDDEN: Final = 4
"""The fewest characters of a hidden value that is looked for in texts."""


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


async def find_problem(
    text: str,
    draft: Draft,
    request: ReplyRequest,
    considered: Set[str],
    *,
    effects: Mapping[str, Effect],
    tools: Mapping[str, GuidedTool],
    ask_judge: Callable[[str, tuple[str, ...]], Awaitable[Sequence[str]]],
) -> str | None:
    """Find a false claim or a hidden name in a draft.

    `considered` has the tools that were candidates in this turn; `ask_judge` returns which of some tools' effects a
    text claims.
    """
    if not effects and not any(tool.hidden for tool in tools.values()):
        return None
    calls = [call for message in request.messages if isinstance(message, AssistantMessage) for call in message.calls]
    calls += [waiting.call for waiting in request.pending]
    said = [message.text for message in request.messages if isinstance(message, UserMessage)]
    if (name := _find_hidden_name(text, tools, calls, said)) is not None:
        return f"it names {name}, which the customer must not hear of"
    committed = _find_committed(request.messages, request.results, effects)
    in_turn = list_committed(request.results, effects)
    open_effects = _find_open_effects(effects, request, considered, in_turn)
    in_turn -= {effect.tool for effect in open_effects}
    others = [effect for name, effect in effects.items() if name not in considered and name not in committed]
    done = [effects[name] for name in (in_turn if open_effects else committed)]
    names = {effect.tool for effect in open_effects}
    if (claimed_tool := _find_reported_claim(draft, calls, request, effects, names)) is not None:
        return f"it claims an effect that did not happen: {claimed_tool}"
    earlier = _find_earlier_effects(effects, calls, request)
    if found := find_false_claims(
        text, candidates=open_effects, others=others, committed=done, earlier=() if open_effects else earlier
    ):
        return f"it claims an effect that did not happen: {found[0]}"
    if names:
        claimed = await ask_judge(text, tuple(sorted(names)))
        if wrong := [name for name in claimed if name in names]:
            return f"it claims an effect that did not happen: {wrong[0]}"
    return None


def add_not_done(text: str, request: ReplyRequest, effects: Mapping[str, Effect], get_locale: Callable[[], str]) -> str:
    """Add the line "Not done so far: …" if a wanted call did not happen and the text has a statement."""
    if (unmet := _find_unmet(request, effects)) and has_statements(text):
        # Whatever the text says or seems to say: what the customer wanted has not happened.
        names = ", ".join(name.replace("_", " ") for name in unmet)
        return f"{text.strip()}\n\n{load_locale(get_locale())['reply.not_done'].format(calls=names)}"
    return text


def _find_unmet(request: ReplyRequest, effects: Mapping[str, Effect]) -> list[str]:
    """Find the effects that were wanted in this turn and did not happen, without those that are read back anyway."""
    if not effects:
        return []
    wanted = {
        evaluation.tool
        for evaluation in request.insights.evaluations
        if evaluation.state == "cannot_run" and evaluation.guideline_ids
    }
    wanted |= {result.tool_name for result in request.results if result.error is not None}
    wanted |= {waiting.call.name for waiting in request.pending if waiting.approval.by != "customer"}
    happened = {result.tool_name for result in request.results if result.error is None}
    read_back = {waiting.call.name for waiting in request.pending if waiting.approval.by == "customer"}
    return [name for name in effects if name in wanted - happened - read_back]


def _find_reported_claim(
    draft: Draft, calls: Sequence[ToolCall], request: ReplyRequest, effects: Mapping[str, Effect], open_tools: Set[str]
) -> str | None:
    """Find a claim that the judge itself reports, and that no successful call of this conversation bears out."""
    ok = _list_successes(request)
    for claim in draft.claims:
        effect = Claim(claim) if isinstance(claim, str) else claim
        tool, claimed = effect.tool, effect.arguments
        if tool not in effects:
            continue
        made = [parse_object(call.arguments_json) for call in calls if call.name == tool and call.id in ok]
        if tool in open_tools and not claimed:
            return tool
        if not any(all(_is_equal(given.get(name), value) for name, value in claimed.items()) for given in made):
            return f"{tool}({compact_json(dict(claimed))})" if claimed else tool
    return None


def _is_equal(given: Any, claimed: Any) -> bool:
    return given == claimed or (isinstance(claimed, str | int | float) and mentions_value(str(claimed), given))


def _list_successes(request: ReplyRequest) -> set[str]:
    """List the calls of this conversation that succeeded."""
    history = (message.results for message in request.messages if isinstance(message, ToolMessage))
    return {result.call_id for results in (*history, request.results) for result in results if result.error is None}


def _find_earlier_effects(
    effects: Mapping[str, Effect], calls: Sequence[ToolCall], request: ReplyRequest
) -> list[Effect]:
    """Find the effects that happened in this conversation, with the words of their arguments and outputs."""
    ok = _list_successes(request)
    said = [
        result.for_model()
        for message in request.messages
        if isinstance(message, ToolMessage)
        for result in message.results
    ]
    shared = _extract_value_words(" ".join([*said, *(result.for_model() for result in request.results)]))
    return [
        structs.replace(
            effect,
            done_values=shared.union(*(_extract_value_words(call.arguments_json) for call in made)),
        )
        for name, effect in effects.items()
        if (made := [call for call in calls if call.name == name and call.id in ok])
    ]


def _find_open_effects(
    effects: Mapping[str, Effect], request: ReplyRequest, considered: Set[str], in_turn: Set[str]
) -> list[Effect]:
    """Find the effects that were considered in this turn and did not happen, or not with all arguments."""
    results = {result.call_id: result.error is None for result in request.results}
    made = [call for message in request.messages if isinstance(message, AssistantMessage) for call in message.calls]
    calls = [(call, results[call.id]) for call in made if call.id in results]
    calls += [(pending_call.call, False) for pending_call in request.pending]
    found: list[Effect] = []
    for name, effect in effects.items():
        failed = [_extract_value_words(call.arguments_json) for call, ok in calls if call.name == name and not ok]
        done = [_extract_value_words(call.arguments_json) for call, ok in calls if call.name == name and ok]
        if name in in_turn and not failed:
            continue
        if name in considered:
            values = {"open_values": frozenset[str]().union(*failed), "done_values": frozenset[str]().union(*done)}
            found.append(structs.replace(effect, **values) if done else effect)
    return found


def _find_hidden_name(
    text: str, tools: Mapping[str, GuidedTool], hidden: Sequence[ToolCall], said: Sequence[str]
) -> str | None:
    """Find a hidden parameter that a text names, or whose value it contains although the customer has not said it."""
    for tool in tools.values():
        if not tool.hidden:
            continue
        calls = [parse_object(call.arguments_json) for call in hidden if call.name == tool.name]
        values = [given[name] for given in calls for name in tool.hidden if name in given]
        values = [value for value in values if not any(contains_words(words, str(value)) for words in said)]
        if (found := names_hidden(tool, text, values)) is not None:
            return found
    return None


def names_hidden(tool: GuidedTool, text: str, values: Iterable[Any]) -> str | None:
    """Find a hidden parameter of a tool that a text names, or whose value it contains; return its name, or `a value`.

    A value of few characters stands in too many texts to tell anything.
    """
    for parameter in sorted(tool.hidden):
        forms = (parameter, tool.get_options(parameter).display_name)
        if any(form and contains_words(text, form) for form in forms):
            return parameter
    texts = (str(value) for value in values if not isinstance(value, bool) and value is not None)
    return (
        "a value"
        if any(len(value_text) >= _MIN_HIDDEN and contains_words(text, value_text) for value_text in texts)
        else None
    )


def list_committed(results: Sequence[ToolResult], effects: Mapping[str, Effect]) -> set[str]:
    """List the tools of results that are effects which happened."""
    return {result.tool_name for result in results if result.error is None and result.tool_name in effects}


def _find_committed(
    messages: Sequence[Message], results: Sequence[ToolResult], effects: Mapping[str, Effect]
) -> set[str]:
    """Find the effects that happened in this conversation."""
    found = list_committed(results, effects)
    if len(found) < len(effects):
        for message in messages:
            if isinstance(message, ToolMessage):
                found |= list_committed(message.results, effects)
    return found


# Claims in English sentences.

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
    r"|\d[\d.,]{0,50})"
)
_INDIRECT: Final = LazyPattern(
    "|".join(
        (
            # What the other person has, or will see; "I will get it" is an intention.
            r"(?<!\bi)(?<!\bwe)(?<!\bi )(?<!\bwe )(?:\bwill|\bshould|'ll)(?: already| soon| now)*"
            rf" (?:see|find|receive|get|have) .{{0,1000}}\b{_THING}\b",
            rf"\b{_THING} (?:is|are)(?: now| already)* (?:with|off to|en route|under ?way|in the (?:pipeline|post))\b",
            r"\b(?:in|to) your (?:inbox|mailbox|e-?mail)\b",
            # A state that only the effect brings about.
            r"\b(?:is|are|it's|that's)(?: now| already| all)* (?:history|no more|gone|dead|yours|settled|handled"
            r"|dealt with|out of the way|behind you|official|locked in)\b|\bawaits?\b|\bwaiting for you\b"
            r"|\boff your (?:plate|hands|list|mind|account)\b|\bon the books\b|\bfrom your account to\b|\bricher\b",
            r"\byou(?:'re| are)(?: now| all)* (?:set|covered|booked|registered|subscribed|unsubscribed|signed up)\b",
            r"\byou(?: now)? no longer owe\b|\bnobody can .{0,1000}\b(?:any more|anymore|any longer)\b"
            r"|\b(?:stop|no need to) worry(?:ing)?\b|\bnothing (?:left|more|else)(?: \w+){0,3} to (?:do|worry|pay)\b",
            # What comes after the effect.
            r"\bhere(?:'s| is) your (?:\w+ )?(?:confirmation|reference|receipt|ticket|tracking|booking)\b",
            r"\b(?:confirmation|reference|booking)(?: (?:number|code))?(?: of [\w ]{1,1000})? is [a-z]*[-#]?\d",
            r"\b(?:thanks|thank you) for your (?:payment|order|purchase|booking|transfer|deposit|reservation)\b",
            r"\benjoy your (?:flight|trip|stay|meal|seat|show)\b|\bsee you (?:on|at|tomorrow)\b|\bbalance after\b",
        )
    )
)
"""Says that an effect has happened without a verb for it; without limits, a draft that repeats itself takes seconds."""
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
        stems, words = {_stem(word) for word in _split_words(lowered)}, _extract_value_words(lowered)
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
    numbers = {word for word in _extract_value_words(lowered) if word.isdigit()}
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


def _extract_value_words(text: str) -> frozenset[str]:
    """Extract the words and numbers of a text, to compare values."""
    return frozenset(re.findall(r"\w+", re.sub(r"(?<=\d),(?=\d{3}\b)", "", text.casefold())))


def _split_sentences(text: str) -> Iterable[str]:
    return (sentence.strip() for sentence in _SENTENCE.compiled.findall(text) if sentence.strip())


def _split_words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", text.casefold())


def _stem(word: str) -> str:
    return _IRREGULAR.get(word, word)[:5]
