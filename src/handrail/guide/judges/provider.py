"""A judge over any provider: structured output for both questions; the provider's own tool calling is not used."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from pydantic_core import from_json

from handrail.guide.judges import prompts
from handrail.guide.values import (
    CandidateTool,
    Draft,
    GuidelineMatch,
    Plan,
    PlanRequest,
    ReplyRequest,
    ToolVerdict,
)
from handrail.providers.provider import ModelRequest, ModelResponse, Provider, Usage
from handrail.providers.structured import generate_structured

_REASON: Final = {"type": "string", "description": "One short sentence."}
_STATES: Final = ["needs_to_run", "data_already_in_context", "not_applicable", "cannot_run"]


class ProviderJudge:
    """Asks a language model. One model call per question."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    async def plan(self, request: PlanRequest) -> Plan:
        """Match guidelines and decide about tools, in one answer."""
        meter = _Metered(self.provider)
        answer = await generate_structured(
            meter, plan_schema(request), prompts.plan_text(request), instructions=prompts.PLAN, max_attempts=1
        )
        return read_plan(answer, request, usage=meter.usage, model_calls=meter.calls)

    async def reply(self, request: ReplyRequest) -> Draft:
        """Write the reply, and say what else applies, in one answer."""
        meter = _Metered(self.provider)
        answer: Any = await generate_structured(
            meter, REPLY_SCHEMA, prompts.reply_text(request), instructions=prompts.REPLY, max_attempts=1
        )
        return Draft(
            text=answer["text"],
            new_matches=tuple(answer["new_matches"]),
            claims=tuple(answer["claims"]),
            usage=meter.usage,
            model_calls=meter.calls,
        )


class CheckingJudge(ProviderJudge):
    """A `ProviderJudge` that also checks replies with a question of its own, where an effect is open: one model call
    more in such turns."""

    async def check(self, text: str, effects: tuple[str, ...]) -> tuple[str, ...]:
        """Which of these effects does a text say have happened?"""
        question = (
            f"Text to a customer:\n{text}\n\nNone of these has happened: {', '.join(effects)}.\n"
            "Which of them does the text say has been done, is done, or is certain? Future, questions and conditions "
            "do not count."
        )
        schema = {
            "type": "object",
            "properties": {"claimed": {"type": "array", "items": {"type": "string", "enum": list(effects)}}},
            "required": ["claimed"],
            "additionalProperties": False,
        }
        answer: Any = await generate_structured(self.provider, schema, question, max_attempts=1)
        return tuple(answer["claimed"])


class _Metered:
    """A provider that counts what one question takes."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.usage = Usage()
        self.calls = 0

    @property
    def name(self) -> str:
        return self._provider.name

    async def ask(self, request: ModelRequest) -> ModelResponse:
        self.calls += 1
        response = await self._provider.ask(request)
        self.usage += response.usage
        return response

    def stream(self, request: ModelRequest) -> Any:
        return self._provider.stream(request)


def plan_schema(request: PlanRequest) -> dict[str, Any]:
    """The schema of a plan: ids and names are those of the request, so that a model cannot invent others."""
    match = _object(
        guideline_id={"type": "string", "enum": [one.id for one in request.guidelines] or [""]},
        reason=_REASON,
    )
    properties: dict[str, Any] = {"matches": {"type": "array", "items": match}}
    if request.tools:
        argument = _object(
            name={"type": "string"},
            value={"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}]},
            evidence={"type": "string", "description": "The words that the value comes from."},
        )
        verdict = _object(
            tool={"type": "string", "enum": [one.name for one in request.tools]},
            reason=_REASON,
            arguments={"type": "array", "items": argument},
            state={"type": "string", "enum": _STATES},
        )
        if request.pending:
            verdict["properties"]["pending"] = {"enum": [*(one.call.id for one in request.pending), ""]}
            verdict["properties"]["confirmation"] = {"enum": ["yes", "no", "none"]}
            verdict["required"] += ["pending", "confirmation"]
        properties["verdicts"] = {"type": "array", "items": verdict}
    return _object(**properties)


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


REPLY_SCHEMA: Final = _object(
    text={"type": "string"},
    new_matches={"type": "array", "items": {"type": "string"}},
    claims={"type": "array", "items": {"type": "string"}},
)


def read_plan(answer: Any, request: PlanRequest, *, usage: Usage, model_calls: int) -> Plan:
    """What a model answered, as a plan. A guideline that it leaves out does not apply."""
    said = {one["guideline_id"]: one["reason"] for one in answer["matches"]}
    tools = {one.name: one for one in request.tools}
    return Plan(
        matches=tuple(GuidelineMatch(one.id, one.id in said, said.get(one.id, "")) for one in request.guidelines),
        verdicts=tuple(_verdict(one, tools, request) for one in answer.get("verdicts", ())),
        usage=usage,
        model_calls=model_calls,
    )


def _verdict(answer: Mapping[str, Any], tools: Mapping[str, CandidateTool], request: PlanRequest) -> ToolVerdict:
    name = answer["tool"]
    properties = cast(Mapping[str, Any], tools[name].schema.get("properties", {}))
    given = cast(Sequence[Mapping[str, Any]], answer["arguments"])
    arguments = {one["name"]: _value(one["value"], properties.get(one["name"])) for one in given}
    evidence = {one["name"]: one["evidence"] for one in given}
    confirmation = answer.get("confirmation")
    pending = next((one.call for one in request.pending if one.call.id == answer.get("pending")), None)
    state = answer["state"]
    if pending is not None and confirmation in ("yes", "no") and pending.name == name:
        # The model names the call; its arguments are copied here, so that they cannot be copied wrongly.
        arguments, state = from_json(pending.arguments_json or "{}"), "needs_to_run"
    else:
        confirmation = None
    return ToolVerdict(
        tool=name,
        state=state,
        arguments=arguments,
        evidence=evidence,
        reason=answer["reason"],
        confirmation=confirmation,
    )


def _value(value: Any, node: Any) -> Any:
    """A value as the parameter wants it: lists and objects come as JSON text, and numbers sometimes as text."""
    if not isinstance(value, str) or not isinstance(node, Mapping):
        return value
    kind = cast(Mapping[str, Any], node).get("type")
    if kind == "string" or (kind is None and not value.lstrip().startswith(("[", "{"))):
        return value
    try:
        return from_json(value)
    except ValueError:
        return value
