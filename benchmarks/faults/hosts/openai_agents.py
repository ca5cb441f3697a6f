"""The OpenAI Agents SDK: tools that need approval; the serialised `RunState` is the stored state."""

import json
from collections.abc import AsyncIterator
from typing import Any

from agents import (
    Agent,
    AgentsException,
    FunctionTool,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    RunState,
    Usage,
    function_tool,
)
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from benchmarks.faults.cells import TIMEOUT
from benchmarks.faults.hosts.guarding import Asked, Guard
from benchmarks.faults.world import World


class ScriptedModel(Model):
    """Its next response depends on the history alone, as after a restart."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last: Any = None
        self._repeats = 0

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        """The response that the script has for this point of the conversation."""
        items: list[Any] = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        self._world.tell([str(item["output"]) for item in items if item.get("type") == "function_call_output"])
        prompts = [n for n, one in enumerate(items) if one.get("role") == "user"]
        after = items[prompts[-1] :]
        script = self._world.turns[len(prompts) - 1]
        # A step is one response: its calls stand together, before their results.
        kinds = ["" if number == 0 else after[number - 1].get("type", "") for number in range(len(after))]
        step = sum(
            one.get("type") == "function_call" and before != "function_call"
            for one, before in zip(after, kinds, strict=True)
        )
        # The SDK leaves out a call that it has seen: then the history is the same, and the script goes on.
        self._repeats = self._repeats + 1 if items == self._last else 0
        self._last = items
        step += self._repeats
        response = script[min(step, len(script) - 1)]
        if "text" in response:
            text = ResponseOutputText(text=response["text"], type="output_text", annotations=[])
            message = ResponseOutputMessage(
                id=f"m{step}", content=[text], role="assistant", status="completed", type="message"
            )
            return ModelResponse(output=[message], usage=Usage(), response_id=None)
        calls = [
            ResponseFunctionToolCall(
                call_id=call["id"],
                name="pay",
                arguments=call.get("text") or json.dumps(call["arguments"]),
                type="function_call",
            )
            for call in response["calls"]
        ]
        return ModelResponse(output=list(calls), usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """Not used."""
        raise NotImplementedError


class Host:
    """An agent with `pay`, bare (`needs_approval=True`) or with `guard_tools`."""

    def __init__(self, world: World, *, guarded: bool) -> None:
        self.world = world
        self._guard = Guard(world, timeout=TIMEOUT) if guarded else None
        self._state = world.directory / "state.json"
        self._input = world.directory / "input.json"
        self._decisions = world.directory / "decisions.json"

    async def send(self, turn: int) -> None:
        """Play a turn."""
        before = json.loads(self._input.read_text("utf-8")) if self._input.exists() else []
        await self._run([*before, {"role": "user", "content": f"Pay R-7 ({turn})."}])

    async def resume(self) -> None:
        """Go on from the stored state."""
        try:
            await self._resume()
        except AgentsException as error:
            if not hasattr(error, "pause"):
                raise
            self.world.note("pause", **error.pause)  # The state stays as it was stored.

    async def _resume(self) -> None:
        state = await self._load()
        known = json.loads(self._decisions.read_text("utf-8")) if self._decisions.exists() else {}
        for item in state.get_interruptions() if state is not None else ():
            # Under Handrail the application's yes only wakes the run; alone it is all there is.
            if self._guard is not None or known.get(item.call_id):
                state.approve(item)
            else:
                state.reject(item)
        await self._run(state)

    async def is_waiting(self) -> bool:
        """Whether a state was stored, and is not used up."""
        return self._state.exists()

    async def questions(self) -> list[Asked]:
        """What the run waits for."""
        state = await self._load()
        if state is None:
            return []
        if self._guard is not None:
            return await self._guard.questions()
        return [
            Asked(
                id=str(interruption.call_id),
                arguments=_parse(interruption.arguments),
                text=f"pay {interruption.arguments}",
            )
            for interruption in state.get_interruptions()
        ]

    async def decide(self, question: Asked, *, yes: bool) -> None:
        """Record the decision."""
        if self._guard is not None:
            return await self._guard.decide(question, yes=yes)
        known = json.loads(self._decisions.read_text("utf-8")) if self._decisions.exists() else {}
        self._decisions.write_text(json.dumps({**known, question.id: yes}), "utf-8")

    async def resolve(self, question: Asked, *, happened: bool) -> None:
        """An operator found out."""
        assert self._guard is not None
        await self._guard.resolve(question, happened=happened)

    async def tamper(self, amount: int) -> None:
        """Change the pending call in the stored state."""
        text = self._state.read_text("utf-8")
        changed = text.replace('\\"amount\\": 100', f'\\"amount\\": {amount}')
        assert changed != text
        self._state.write_text(changed, "utf-8")

    async def aclose(self) -> None:
        """Close the store."""
        if self._guard is not None:
            await self._guard.aclose()

    async def _load(self) -> Any:
        if not self._state.exists():
            return None
        return await RunState.from_string(await self._agent(), self._state.read_text("utf-8"))

    async def _run(self, given: Any) -> None:
        result = await Runner.run(await self._agent(), given, run_config=RunConfig(tracing_disabled=True))
        if result.interruptions:
            self._state.write_text(result.to_state().to_string(), "utf-8")
        else:
            self._input.write_text(json.dumps(result.to_input_list()), "utf-8")
            self._state.unlink(missing_ok=True)

    async def _agent(self) -> Agent[Any]:
        plan, world = self.world.plan, self.world
        pay: FunctionTool
        if plan.is_sync:

            @function_tool(name_override="pay", needs_approval=self._guard is None)
            def pay_sync(invoice_id: str, amount: int) -> str:
                return world.pay(invoice_id, amount)

            pay = pay_sync
        else:

            @function_tool(name_override="pay", needs_approval=self._guard is None)
            async def pay_async(invoice_id: str, amount: int) -> str:
                return await world.pay_async(invoice_id, amount)

            pay = pay_async
        tools: list[Any] = [pay]
        if self._guard is not None:
            from handrail.adapters.openai_agents import guard_tools

            guard = self._guard
            turn = len([item for item in self._stored() if item.get("role") == "user"])
            tools = guard_tools(tools, await guard.executor(), context=lambda run: guard.context(turn))
        return Agent(name="payer", model=ScriptedModel(world), tools=tools)

    def _stored(self) -> list[dict[str, Any]]:
        return json.loads(self._input.read_text("utf-8")) if self._input.exists() else []


def _parse(arguments: str | None) -> dict[str, Any]:
    try:
        return json.loads(arguments or "")
    except ValueError:
        return {}
