"""Asks the judge: reads what its requests contain, sends them with a timeout, and again if a response is malformed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct, structs

from handrail.chat.turn import TurnState
from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.text import compact_json
from handrail.core.time_budget import TimeBudget
from handrail.core.value_mentions import contains_words
from handrail.errors import BadResponseError, ConfigError, ProviderError, RefusalError, must_propagate, shorten
from handrail.execute.executor import Executor
from handrail.guide.compiled_agent import Guide, Retriever, Variable
from handrail.guide.parameters import EvidenceSources, GuidedTool, add_choices, call_function, resolve_choices
from handrail.guide.values import CandidateTool, Draft, Guideline, GuidelineMatch, Judge, Plan, PlanRequest, ToolVerdict
from handrail.guide.verdicts import MalformedResponse, check_plan
from handrail.providers.messages import Message, ToolMessage, UserMessage
from handrail.providers.provider import Usage

T = TypeVar("T")

_NO_USAGE: Final = Usage()

MAX_ATTEMPTS: Final = 3
"""The most attempts of one request whose responses are malformed."""
NO_USABLE_RESPONSE: Final = "the judge gave no usable response"


class NoResponse(Struct, frozen=True):
    """A request has no usable response; `interrupted` if the turn ended before there was one."""

    reason: str
    interrupted: bool = False


class _Outcome(Struct, Generic[T], frozen=True):
    response: T | None = None
    error: str = ""
    final: bool = False


class JudgeClient:
    """Sends the requests of one turn to the judge, and counts its model calls."""

    def __init__(self, state: TurnState, judge: Judge, *, timeout: float) -> None:
        self._state = state
        self._timeout = timeout
        provider: object = getattr(getattr(judge, "provider", None), "name", None)
        self._provider = provider if isinstance(provider, str) else f"judge:{type(judge).__name__}"
        self.model_calls = 0
        """Model calls of this turn, as the judge counts them; a request without a usable response counts as one."""
        self.has_planned = False
        """Whether the judge has responded with a plan in this turn."""
        self.is_refused = False
        """Whether the model, or a filter of its provider, refused a request of this turn."""

    async def ask(self, send: Callable[[str], Awaitable[Any]], check: Callable[[object], T]) -> T | NoResponse:
        """Send a request and check the response; if it is malformed, send it again with the error.

        A `ProviderError` or `ConfigError` is raised, and the turn can be resumed. After any other failure of the judge
        there is no usable response.
        """
        error = ""
        for _ in range(MAX_ATTEMPTS):
            if self._state.progress.check() is not None:
                return NoResponse("the turn ended", interrupted=True)
            outcome = await self._state.wait(self._ask_once(send, error, check))
            if outcome is None:
                return NoResponse("the turn was interrupted", interrupted=True)
            if outcome.response is not None:
                return outcome.response
            self.model_calls += 1
            error = outcome.error
            if outcome.final:
                break
        return NoResponse(f"{NO_USABLE_RESPONSE}: {error}")

    def count(self, response: Plan | Draft) -> None:
        """Add the model calls of a response."""
        self.model_calls += _count_model_calls(response)

    async def _ask_once(
        self, send: Callable[[str], Awaitable[Any]], error: str, check: Callable[[object], T]
    ) -> _Outcome[T]:
        """Send the request, and emit a `ModelCalled` about it."""
        started = time.monotonic()
        response: Any = None
        failed: str | None = "interrupted"
        try:
            response = await TimeBudget(self._timeout).run(send(error))
            failed = "bad_response"
            outcome = _Outcome(check(response))
            failed = None
            return outcome
        except TimeoutError:
            failed = "timeout"
            log.error("the judge did not respond within %s seconds", self._timeout)
            return _Outcome(error=f"no response within {self._timeout:g} seconds", final=True)
        except (MalformedResponse, BadResponseError) as problem:
            failed = "bad_response"
            return _Outcome(error=shorten(str(problem), 1_000))
        except (ProviderError, ConfigError) as problem:
            failed = problem.code
            self.is_refused = self.is_refused or isinstance(problem, RefusalError)
            raise
        except asyncio.CancelledError as problem:
            if must_propagate(problem):
                raise
            return _Outcome(error="the judge cancelled itself", final=True)
        except Exception as problem:  # a judge is the developer's code: the turn continues without it
            log.error("the judge failed", exc_info=problem)
            failed = "judge_failed"
            return _Outcome(error=f"the judge failed with {type(problem).__name__}")
        finally:
            if not isinstance(response, Plan | Draft):
                self._state.report_model_call(started, provider=self._provider, error=failed)
            elif _count_model_calls(response):  # Otherwise no model was asked.
                usage = _read_usage(response.usage)
                self._state.report_model_call(started, provider=self._provider, usage=usage, error=failed)


def _count_model_calls(response: Plan | Draft) -> int:
    return response.model_calls if type(response.model_calls) is int and 0 <= response.model_calls < 100 else 1


def _read_usage(given: object) -> Usage | None:
    """What a judge says that a response has used; None if it says nothing, or nothing that can be added up."""
    if not isinstance(given, Usage):
        return None
    counts: tuple[object, ...] = (given.input, given.output, given.cached)
    if any(type(count) is not int or count < 0 for count in counts) or type(given.cost) not in (int, float, type(None)):
        return None
    return given if given != _NO_USAGE else None


def read_local_time() -> datetime:
    """Read the clock, with the time zone of this machine."""
    return datetime.now().astimezone()


_MAX_RETRIEVED: Final = 10_000
"""The most characters of what one retriever found."""


class VariableReader:
    """Reads the variables of one session, and caches each for its `fresh_for`."""

    def __init__(self) -> None:
        self._cache: dict[str, tuple[float, Any]] = {}

    async def read(
        self, variables: Sequence[Variable], context: ToolContext[Any], executor: Executor
    ) -> dict[str, Any]:
        """Return the values by name; a variable that cannot be read is logged and left out."""
        found: dict[str, Any] = {}
        for variable in variables:
            if variable.read is None:
                found[variable.name] = variable.value
                continue
            until, value = self._cache.get(variable.name, (0.0, None))
            if time.monotonic() >= until:
                try:
                    value = await _read_variable(variable, context, executor)
                except Exception as error:  # the developer's code; the turn continues without the value
                    log.error("the variable %s could not be read", variable.name, exc_info=error)
                    continue
                self._cache[variable.name] = (time.monotonic() + variable.fresh_for, value)
            found[variable.name] = value
        return found


async def _read_variable(variable: Variable, context: ToolContext[Any], executor: Executor) -> Any:
    assert variable.read is not None
    value = await call_function(executor, variable.read, context)
    compact_json(value)  # Raises unless it is JSON: it becomes part of a prompt.
    return value


class TurnInputs(Struct, frozen=True, kw_only=True):
    """What a turn reads once, before it plans."""

    variables: Mapping[str, Any]
    choices: Mapping[str, Mapping[str, Sequence[Any]] | None]
    """The choices of parameters, by tool; None if they could not be read."""
    matched: frozenset[str]
    """The guidelines whose condition in code applies."""
    now: datetime

    def find_sources(self, guide: Guide, messages: Sequence[Message]) -> EvidenceSources:
        """Find the texts that the judge can quote for a value."""
        others = [f"{name}: {_render(value)}" for name, value in self.variables.items()]
        others += [f"{name}: {text}" for name, text in guide.terms.items()]
        for message in messages:
            if isinstance(message, ToolMessage):
                others += [result.for_model() for result in message.results]
            elif isinstance(message, UserMessage):
                others += message.quoted
            elif message.text:
                others.append(message.text)
        return EvidenceSources(
            customer=tuple(message.own_words for message in messages if isinstance(message, UserMessage)),
            others=tuple(others),
            variables=self.variables,
            today=self.now.date(),
        )


def _render(value: Any) -> str:
    return value if isinstance(value, str) else compact_json(value)


async def read_inputs(guide: Guide, state: TurnState, variables: VariableReader) -> TurnInputs:
    """Read the variables and choices of a turn, and match the conditions in code."""
    context, executor = state.context, state.executor
    matched = await asyncio.gather(*(_matches(guideline, context, executor) for guideline in guide.in_code))
    return TurnInputs(
        now=guide.clock(),
        choices={
            name: await _read_choices(tool, context, executor) for name, tool in guide.tools.items() if tool.options
        },
        variables=await variables.read(guide.variables, context, executor),
        matched=frozenset(guideline.id for guideline, applies in zip(guide.in_code, matched, strict=True) if applies),
    )


async def _matches(guideline: Guideline, context: ToolContext[Any], executor: Executor) -> bool:
    assert guideline.matches is not None
    try:
        return await call_function(executor, guideline.matches, context) is True
    except Exception as error:  # the developer's code; a guideline whose condition fails does not apply
        log.error("the condition of the guideline %s failed", guideline.id, exc_info=error)
        return False


async def retrieve(retrievers: Sequence[Retriever], state: TurnState) -> dict[str, str]:
    """Ask all retrievers at once; return what they found, by their names. One that fails is logged and left out."""
    texts = await asyncio.gather(*(_find_text(retriever, state) for retriever in retrievers))
    return {retriever.name: text for retriever, text in zip(retrievers, texts, strict=True) if text is not None}


async def _find_text(retriever: Retriever, state: TurnState) -> str | None:
    try:
        text = await call_function(state.executor, retriever.find, state.context)
        if not isinstance(text, str):
            raise TypeError(f"a retriever must return a text, got {type(text).__name__}")
    except Exception as error:  # the developer's code; the reply is written without it
        log.error("the retriever %s failed", retriever.name, exc_info=error)
        return None
    return text[:_MAX_RETRIEVED]


async def _read_choices(
    tool: GuidedTool, context: ToolContext[Any], executor: Executor
) -> dict[str, tuple[Any, ...]] | None:
    try:
        return await resolve_choices(tool, context, executor)
    except ConfigError:  # Already logged; without its choices the tool cannot run.
        return None


_MAX_CUSTOMER_MESSAGES = 3
"""The number of the customer's last messages that the pre-filter reads."""


class PlanningResult(Struct, frozen=True, kw_only=True):
    """The responses of the judge in one iteration."""

    matches: tuple[GuidelineMatch, ...] = ()
    verdicts: tuple[ToolVerdict, ...] = ()
    shown: frozenset[str] = frozenset()
    """The tools that the judge saw, or that need no inference."""
    failed: Mapping[str, str] = {}
    """Tools without a usable response, and why."""
    error: str = ""
    """Why there is no usable response at all."""


class Planner:
    """Requests the plans of one turn from the judge."""

    def __init__(self, guide: Guide, judge: Judge, client: JudgeClient) -> None:
        self._guide = guide
        self._judge = judge
        self._client = client

    async def select_guidelines(self, request: PlanRequest, matched: Set[str]) -> tuple[Guideline, ...]:
        """Select the guidelines that the judge is asked about."""
        guide, settings = self._guide, self._guide.settings
        if guide.prefilter is None or len(guide.guidelines) <= settings.prefilter_above:
            return guide.guidelines
        try:
            text = _read_recent_text(request, guide.synonyms)
            selecting = guide.prefilter.select(guide.guidelines, text, settings.prefilter_limit)
            found = frozenset(await TimeBudget(settings.judge_timeout).run(selecting))
        except (Exception, asyncio.CancelledError) as error:  # then the judge is asked about all of them
            if must_propagate(error):
                raise
            log.error("the pre-filter failed", exc_info=error)
            return guide.guidelines
        if not found:
            return guide.guidelines
        waiting = {guideline_id for pending in request.pending for guideline_id in pending.call.guideline_ids}
        wanted = guide.relationships.find_linked({*found, *matched, *waiting, *guide.always})
        return tuple(guideline for guideline in guide.guidelines if guideline.id in wanted)

    async def plan(self, request: PlanRequest, matched: Set[str], inputs: TurnInputs) -> PlanningResult | None:
        """Plan one iteration; None if the turn was interrupted or its budget is used up.

        `request` has what every request of the iteration contains; its guidelines and tools are selected here.
        """
        guide = self._guide
        scope = [
            guideline
            for guideline in await self.select_guidelines(request, matched)
            if guideline.matches is None or guideline.id in inputs.matched
        ]
        tools = list(dict.fromkeys(tool for guideline in scope for tool in guideline.tools))
        first = guide.settings.match_first
        has_conditions = any(not guideline.always and guideline.matches is None for guideline in scope)
        if not has_conditions and all(guide.tools[name].needs_no_inference for name in tools):
            return PlanningResult(shown=frozenset(tools))  # Nothing to match or infer.
        if first != "always" and len(tools) <= first:
            response = await self._ask(request, scope, tools, inputs)
            if isinstance(response, NoResponse):
                return None if response.interrupted else PlanningResult(error=response.reason, shown=frozenset(tools))
            return PlanningResult(matches=response.matches, verdicts=response.verdicts, shown=frozenset(tools))
        return await self._match_first(request, scope, matched, inputs)

    async def _match_first(
        self, request: PlanRequest, scope: Sequence[Guideline], matched: Set[str], inputs: TurnInputs
    ) -> PlanningResult | None:
        guide = self._guide
        response = await self._ask(request, scope, [], inputs)
        if isinstance(response, NoResponse):
            return None if response.interrupted else PlanningResult(error=response.reason)
        ids = {guideline.id for guideline in scope}
        found_matches = {match.guideline_id: match for match in response.matches if match.guideline_id in ids}
        applied = {guideline_id for guideline_id in matched if guideline_id not in found_matches} | {
            match.guideline_id for match in found_matches.values() if match.applies
        }
        active = guide.relationships.resolve(applied | guide.always).active
        pending_tools = {pending_call.call.name for pending_call in request.pending}
        names = [
            name
            for name in guide.tools
            if name in pending_tools
            or any(guideline_id in active for guideline_id in guide.candidates[name].guideline_ids)
        ]
        if all(guide.tools[name].needs_no_inference for name in names):
            return PlanningResult(matches=response.matches, shown=frozenset(names))
        batches = guide.relationships.split_into_batches(names, size=guide.settings.max_tools_per_plan)
        responses = await asyncio.gather(*(self._ask_batch(request, scope, batch, inputs) for batch in batches))
        if any(isinstance(response, NoResponse) and response.interrupted for response in responses):
            return None
        verdicts: list[ToolVerdict] = []
        failed: dict[str, str] = {}
        for batch, answer in zip(batches, responses, strict=True):
            if isinstance(answer, NoResponse):
                failed |= dict.fromkeys(batch, answer.reason)
                continue
            # A batch decides only about its own tools, and can reject guidelines, but not add them.
            verdicts += [verdict for verdict in answer.verdicts if verdict.tool in batch or verdict.tool not in names]
            found_matches |= {
                match.guideline_id: match
                for match in answer.matches
                if match.guideline_id in found_matches and not match.applies
            }
        unknown = [match for match in response.matches if match.guideline_id not in found_matches]
        return PlanningResult(
            matches=(*found_matches.values(), *unknown), verdicts=tuple(verdicts), shown=frozenset(names), failed=failed
        )

    async def _ask_batch(
        self, request: PlanRequest, scope: Sequence[Guideline], names: Sequence[str], inputs: TurnInputs
    ) -> Plan | NoResponse:
        wanted = {guideline_id for name in names for guideline_id in self._guide.candidates[name].guideline_ids}
        return await self._ask(request, [guideline for guideline in scope if guideline.id in wanted], names, inputs)

    async def _ask(
        self, request: PlanRequest, scope: Sequence[Guideline], names: Sequence[str], inputs: TurnInputs
    ) -> Plan | NoResponse:
        ids = {guideline.id for guideline in scope}
        candidates = tuple(self._build_candidate(name, ids, inputs) for name in names)
        request = structs.replace(
            request,
            guidelines=tuple(scope),
            tools=candidates,
            now=inputs.now,
        )
        response = await self._client.ask(
            lambda error: self._judge.plan(structs.replace(request, error=error) if error else request), check_plan
        )
        if isinstance(response, Plan):
            self._client.count(response)
            self._client.has_planned = True
        return response

    def _build_candidate(self, name: str, ids: Set[str], inputs: TurnInputs) -> CandidateTool:
        candidate = self._guide.candidates[name]
        asked_by = tuple(guideline_id for guideline_id in candidate.guideline_ids if guideline_id in ids)
        if len(asked_by) < len(candidate.guideline_ids):
            candidate = structs.replace(candidate, guideline_ids=asked_by)
        if (choices := inputs.choices.get(name)) and self._guide.tools[name].has_dynamic_choices:
            candidate = structs.replace(candidate, schema=add_choices(candidate.schema, choices))
        return candidate


def _read_recent_text(request: PlanRequest, synonyms: Mapping[str, str]) -> str:
    """Read what the pre-filter compares: the last messages and results, with the terms for the synonyms in them."""
    spoken = [message.text for message in request.messages[-20:] if isinstance(message, UserMessage)][
        -_MAX_CUSTOMER_MESSAGES:
    ]
    results = [result.for_model()[:2_000] for result in request.results]
    text = "\n".join([*spoken, *results])
    terms = {term for synonym, term in synonyms.items() if contains_words(text, synonym)}
    return "\n".join([text, *sorted(terms)])
