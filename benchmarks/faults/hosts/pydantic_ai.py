"""pydantic-ai: deferred tools that require approval; the message history is the stored state."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, FunctionToolset
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import DynamicToolset

from benchmarks.faults.cells import TIMEOUT
from benchmarks.faults.hosts.guarding import Asked, Guard
from benchmarks.faults.world import World


class Host:
    """An agent with `pay`, bare (`requires_approval=True`) or under `HandrailToolset`."""

    def __init__(self, world: World, *, guarded: bool) -> None:
        self.world = world
        self._guard = Guard(world, timeout=TIMEOUT) if guarded else None
        self._history = world.directory / "messages.json"
        self._decisions = world.directory / "decisions.json"

    async def send(self, turn: int) -> None:
        """Play a turn."""
        await self._run(turn, prompt=f"Pay R-7 ({turn}).")

    async def resume(self) -> None:
        """Go on from the stored messages."""
        pending = _pending(self._messages())
        decisions: dict[str, bool] = _read(self._decisions, {})
        # Under Handrail the application's yes only wakes the run; alone it is all there is.
        approvals: dict[str, Any] = {
            approval.tool_call_id: bool(self._guard) or decisions.get(approval.tool_call_id, False)
            for approval in pending
        }
        await self._run(_turns(self._messages()) - 1, results=DeferredToolResults(approvals=approvals))

    async def is_waiting(self) -> bool:
        """Whether calls have no result."""
        return bool(_pending(self._messages()))

    async def questions(self) -> list[Asked]:
        """The calls that wait."""
        pending = _pending(self._messages())
        if self._guard is not None:
            return await self._guard.questions() if pending else []
        return [
            Asked(id=approval.tool_call_id, arguments=approval.args_as_dict(), text=f"pay {approval.args}")
            for approval in pending
        ]

    async def decide(self, question: Asked, *, yes: bool) -> None:
        """Record the decision."""
        if self._guard is not None:
            await self._guard.decide(question, yes=yes)
        else:
            self._decisions.write_text(json.dumps({**_read(self._decisions, {}), question.id: yes}), "utf-8")

    async def resolve(self, question: Asked, *, happened: bool) -> None:
        """An operator found out."""
        assert self._guard is not None
        await self._guard.resolve(question, happened=happened)

    async def tamper(self, amount: int) -> None:
        """Change the pending call in the stored history."""
        for part in _pending(messages := self._messages()):
            part.args = {"invoice_id": "R-7", "amount": amount}
        self._save(messages)

    async def aclose(self) -> None:
        """Close the store."""
        if self._guard is not None:
            await self._guard.aclose()

    async def _run(self, turn: int, *, prompt: str | None = None, results: DeferredToolResults | None = None) -> None:
        agent = await self._agent(turn)
        run = await agent.run(prompt, message_history=self._messages(), deferred_tool_results=results)
        self._save(run.all_messages())

    async def _agent(self, turn: int) -> Agent[None, Any]:
        pay = self.world.pay if self.world.plan.is_sync else self.world.pay_async
        toolset: Any = FunctionToolset[None]()
        toolset.add_function(pay, name="pay", requires_approval=self._guard is None, timeout=TIMEOUT)
        if self.world.plan.adds_tool:
            toolset = DynamicToolset(lambda run, made=toolset: made)
        if self._guard is not None:
            from handrail.adapters.pydantic_ai import HandrailToolset

            guard = self._guard
            executor = await guard.executor()
            toolset = HandrailToolset(toolset, executor, context=lambda run: guard.context(_turns(run.messages)))
        return Agent(
            FunctionModel(self._answer), output_type=[str, DeferredToolRequests], toolsets=[toolset], retries=3
        )

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        """The scripted model: its next response depends on the history alone, as after a restart."""
        texts = [
            str(part.content)
            for message in messages
            if isinstance(message, ModelRequest)
            for part in message.parts
            if isinstance(part, ToolReturnPart | RetryPromptPart)
        ]
        self.world.tell(texts)
        turn = _turns(messages) - 1
        start = max(n for n, one in enumerate(messages) if _is_prompt(one))
        step = sum(isinstance(item, ModelResponse) for item in messages[start:])
        script = self.world.turns[turn]
        response = script[min(step, len(script) - 1)]
        if "text" in response:
            return ModelResponse(parts=[TextPart(response["text"])])
        parts = [
            ToolCallPart("pay", call.get("text") or call["arguments"], tool_call_id=call["id"])
            for call in response["calls"]
        ]
        return ModelResponse(parts=parts, finish_reason="length" if response.get("cut") else "tool_call")

    def _messages(self) -> list[ModelMessage]:
        if not self._history.exists():
            return []
        return ModelMessagesTypeAdapter.validate_json(self._history.read_bytes())

    def _save(self, messages: Sequence[ModelMessage]) -> None:
        part = self._history.with_suffix(".part")
        part.write_bytes(ModelMessagesTypeAdapter.dump_json(list(messages)))
        part.replace(self._history)


def _is_prompt(message: ModelMessage) -> bool:
    return isinstance(message, ModelRequest) and any(isinstance(part, UserPromptPart) for part in message.parts)


def _turns(messages: Sequence[ModelMessage]) -> int:
    return sum(_is_prompt(message) for message in messages)


def _pending(messages: Sequence[ModelMessage]) -> list[ToolCallPart]:
    """The calls of the last response that have no result."""
    responses = [item for item in messages if isinstance(item, ModelResponse)]
    if not responses:
        return []
    after = messages[messages.index(responses[-1]) + 1 :]
    answered = {
        part.tool_call_id
        for message in after
        for part in message.parts
        if isinstance(part, ToolReturnPart | RetryPromptPart)
    }
    calls = [part for part in responses[-1].parts if isinstance(part, ToolCallPart)]
    return [part for part in calls if part.tool_call_id not in answered]


def _read(path: Path, default: Any) -> Any:
    return json.loads(path.read_text("utf-8")) if path.exists() else default
