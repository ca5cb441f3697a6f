"""A judge for small models: an embedding selects the tool, the model fills in arguments, replies are templates."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal, cast

from pydantic_core import from_json

from handrail.core.consent import read_answer
from handrail.core.tool import Tool
from handrail.define.build import build_tool
from handrail.errors import ToolError
from handrail.guide.confirmation import format_read_back
from handrail.guide.reply import build_plain_reply
from handrail.guide.values import CandidateTool, Draft, GuidelineMatch, Plan, PlanRequest, ReplyRequest, ToolVerdict
from handrail.models.embedding import Embedding
from handrail.providers.embedded.tool_choice import SMALL_TALK, ToolRanker
from handrail.providers.messages import Message, UserMessage
from handrail.providers.provider import ModelRequest, Provider
from handrail.registry.text_similarity import Embedder, TextSimilarity


class EmbeddedJudge:
    """Asks the embedded provider for at most one call per turn, and replies with a template.

    It matches the guidelines of the selected tool; guidelines without tools apply only with `always=True`.
    """

    def __init__(self, provider: Provider, *, embedding: Embedder | None = None) -> None:
        self.provider = provider
        embedder = embedding or Embedding()
        self._ranker = ToolRanker(embedder)
        self._meaning = TextSimilarity(embedder)
        self._tools: dict[str, tuple[CandidateTool, Tool[..., Any]]] = {}

    async def plan(self, request: PlanRequest) -> Plan:
        """Select one tool, match its guidelines, and infer one call."""
        message = _read_last_message(request.messages)
        if request.iteration > 1 or not message:
            return Plan(model_calls=0)
        confirmation = self._read_confirmation(message, request)
        if confirmation is not None:
            return Plan(
                verdicts=tuple(
                    ToolVerdict(
                        pending_call.call.name,
                        "needs_to_run",
                        from_json(pending_call.call.arguments_json or "{}"),
                        confirmation=confirmation,
                    )
                    for pending_call in request.pending
                ),
                model_calls=0,
            )
        if not request.tools:
            return Plan(matches=await asyncio.to_thread(self._match, request, message), model_calls=0)
        tools = [self._build_tool(tool) for tool in request.tools]
        response = await self.provider.ask(ModelRequest(messages=[UserMessage(text=message)], tools=tools))
        verdict = self._build_verdict(response.calls[0], message) if response.calls else None
        if verdict is None:
            picked = await asyncio.to_thread(self._ranker.rank, tools, message)
            if picked.is_small_talk:
                return Plan(usage=response.usage)
            # The provider asked for a value instead of calling: all required values count as missing.
            verdict = ToolVerdict(picked.tools[0].name, "cannot_run", reason="a value was not found in the message")
        candidate = next(tool for tool in request.tools if tool.name == verdict.tool)
        if verdict.state == "cannot_run" and not candidate.consequential and not candidate.schema.get("required"):
            verdict = ToolVerdict(verdict.tool, "needs_to_run", reason="it needs no arguments")
        return Plan(
            matches=tuple(
                GuidelineMatch(guideline_id, True, "its tool fits the message")
                for guideline_id in candidate.guideline_ids
            ),
            verdicts=(verdict,),
            usage=response.usage,
        )

    def _read_confirmation(self, message: str, request: PlanRequest) -> Literal["yes", "no"] | None:
        """Read whether the message confirms or refuses the pending calls; None if it does neither."""
        shown = "\n".join(format_read_back(waiting, None) for waiting in request.pending)
        action = " ".join(waiting.call.name for waiting in request.pending)
        answer = read_answer(message, shown=shown, action=action) if request.pending else "unclear"
        return None if answer == "unclear" else answer

    def _build_verdict(self, call: Any, message: str) -> ToolVerdict | None:
        try:
            found = from_json(call.arguments_json or "{}")
        except ValueError:
            return None
        arguments = cast(dict[str, Any], found) if isinstance(found, dict) else {}
        return ToolVerdict(call.name, "needs_to_run", arguments, dict.fromkeys(arguments, message))

    def _match(self, request: PlanRequest, message: str) -> tuple[GuidelineMatch, ...]:
        """Match the guideline whose condition is most similar to the message, unless small talk is more similar."""
        conditions = [guideline.condition for guideline in request.guidelines]
        scores = self._meaning.measure([*conditions, *SMALL_TALK], message)
        best = max(range(len(conditions)), key=lambda place: scores[place])
        if max(scores[len(conditions) :]) > scores[best]:
            return ()
        return (GuidelineMatch(request.guidelines[best].id, True, "its condition is closest to the message"),)

    def _build_tool(self, candidate: CandidateTool) -> Tool[..., Any]:
        known = self._tools.get(candidate.name)
        if known is None or known[0] != candidate:
            definition = {
                "name": candidate.name,
                "description": candidate.description,
                "input_schema": candidate.schema,
                "handler": _refuse_call,
            }
            known = self._tools[candidate.name] = (candidate, build_tool(definition))
        return known[1]

    async def reply(self, request: ReplyRequest) -> Draft:
        """Reply with results and missing values. Pending calls are read back by the strategy."""
        text = build_plain_reply(results=request.results, insights=request.insights, pending=(), tools={})
        return Draft("I can do that." if request.pending and not request.results else text, model_calls=0)


def _refuse_call(arguments: dict[str, Any]) -> Any:
    raise ToolError("This tool is only described here.")


def _read_last_message(messages: Sequence[Message]) -> str:
    return next((message.text for message in reversed(messages) if isinstance(message, UserMessage)), "")
