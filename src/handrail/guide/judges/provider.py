"""A judge for any provider, with structured output; the provider's own tool calling is not used."""

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
    """Asks a language model; one model call per request."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    async def plan(self, request: PlanRequest) -> Plan:
        """Match guidelines and decide about tools, in one response."""
        meter = _MeteredProvider(self.provider)
        response = await generate_structured(
            meter,
            build_plan_schema(request),
            prompts.render_plan_request(request),
            instructions=prompts.PLAN,
            max_attempts=1,
        )
        return read_plan(response, request, usage=meter.usage, model_calls=meter.calls)

    async def reply(self, request: ReplyRequest) -> Draft:
        """Write the reply, and match further guidelines, in one response."""
        meter = _MeteredProvider(self.provider)
        response: Any = await generate_structured(
            meter, REPLY_SCHEMA, prompts.render_reply_request(request), instructions=prompts.REPLY, max_attempts=1
        )
        return Draft(
            text=response["text"],
            new_matches=tuple(response["new_matches"]),
            claims=tuple(response["claims"]),
            usage=meter.usage,
            model_calls=meter.calls,
        )


class CheckingJudge(ProviderJudge):
    """A `ProviderJudge` that also checks replies for false claims: one more model call in turns with open effects."""

    async def check(self, text: str, effects: tuple[str, ...]) -> tuple[str, ...]:
        """Return the tools, among these, whose effect a text claims."""
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
        response: Any = await generate_structured(self.provider, schema, question, max_attempts=1)
        return tuple(response["claimed"])


class _MeteredProvider:
    """A provider that counts model calls and usage."""

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


def build_plan_schema(request: PlanRequest) -> dict[str, Any]:
    """Build the schema of a plan: ids and names are enums, so that a model cannot invent others."""
    match = _build_object_schema(
        guideline_id={"type": "string", "enum": [one.id for one in request.guidelines] or [""]},
        reason=_REASON,
    )
    properties: dict[str, Any] = {"matches": {"type": "array", "items": match}}
    if request.tools:
        argument = _build_object_schema(
            name={"type": "string"},
            value={"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}]},
            evidence={"type": "string", "description": "The words that the value comes from."},
        )
        verdict = _build_object_schema(
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
    return _build_object_schema(**properties)


def _build_object_schema(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


REPLY_SCHEMA: Final = _build_object_schema(
    text={"type": "string"},
    new_matches={"type": "array", "items": {"type": "string"}},
    claims={"type": "array", "items": {"type": "string"}},
)


def read_plan(response: Any, request: PlanRequest, *, usage: Usage, model_calls: int) -> Plan:
    """Read a model's response as a plan. A guideline that is left out does not apply."""
    reasons = {one["guideline_id"]: one["reason"] for one in response["matches"]}
    tools = {one.name: one for one in request.tools}
    return Plan(
        matches=tuple(GuidelineMatch(one.id, one.id in reasons, reasons.get(one.id, "")) for one in request.guidelines),
        verdicts=tuple(_read_verdict(one, tools, request) for one in response.get("verdicts", ())),
        usage=usage,
        model_calls=model_calls,
    )


def _read_verdict(response: Mapping[str, Any], tools: Mapping[str, CandidateTool], request: PlanRequest) -> ToolVerdict:
    name = response["tool"]
    properties = cast(Mapping[str, Any], tools[name].schema.get("properties", {}))
    given = cast(Sequence[Mapping[str, Any]], response["arguments"])
    arguments = {one["name"]: _convert_value(one["value"], properties.get(one["name"])) for one in given}
    evidence = {one["name"]: one["evidence"] for one in given}
    confirmation = response.get("confirmation")
    pending = next((one.call for one in request.pending if one.call.id == response.get("pending")), None)
    state = response["state"]
    if pending is not None and confirmation in ("yes", "no") and pending.name == name:
        # The model only names the pending call; its arguments are copied here.
        arguments, state = from_json(pending.arguments_json or "{}"), "needs_to_run"
    else:
        confirmation = None
    return ToolVerdict(
        tool=name,
        state=state,
        arguments=arguments,
        evidence=evidence,
        reason=response["reason"],
        confirmation=confirmation,
    )


def _convert_value(value: Any, node: Any) -> Any:
    """Convert a value to the parameter's type: lists and objects are sent as JSON text, numbers sometimes as text."""
    if not isinstance(value, str) or not isinstance(node, Mapping):
        return value
    kind = cast(Mapping[str, Any], node).get("type")
    if kind == "string" or (kind is None and not value.lstrip().startswith(("[", "{"))):
        return value
    try:
        return from_json(value)
    except ValueError:
        return value
