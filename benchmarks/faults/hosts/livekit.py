"""LiveKit: no run pauses; the model is told what it has to ask, and the customer's next words let it call again."""

import json
from typing import Any

from livekit.agents import Agent, AgentSession, APIConnectOptions, function_tool
from livekit.agents.llm import LLM, ChatChunk, ChatContext, ChoiceDelta, FunctionToolCall, LLMStream

from benchmarks.faults.cells import TIMEOUT
from benchmarks.faults.hosts.guarding import Asked, Guard
from benchmarks.faults.world import World
from handrail.adapters.livekit import guard_agent

OPEN = ("approval_required", "outcome_unknown", "in_progress")
"""What is no last word about a call: the model says so, and calls again after the customer's next message."""


class ScriptedStream(LLMStream):
    """One response: of the script, or what somebody has to say who waits for the customer."""

    async def _run(self) -> None:
        model = self._llm
        assert isinstance(model, ScriptedModel)
        delta = model.answer(self._chat_ctx.items)
        self._event_ch.send_nowait(ChatChunk(id="r", delta=delta))


class ScriptedModel(LLM):
    """Its next response depends on the history alone, as after a restart."""

    def __init__(self, host: "Host") -> None:
        super().__init__()
        self._host = host

    def chat(self, *, chat_ctx: Any, tools: Any = None, conn_options: Any = None, **options: Any) -> LLMStream:
        """Ask the script."""
        options_or_default = conn_options or APIConnectOptions()
        return ScriptedStream(self, chat_ctx=chat_ctx, tools=tools or [], conn_options=options_or_default)

    def answer(self, items: list[Any]) -> ChoiceDelta:
        """The response that the script has for this point of the conversation."""
        world = self._host.world
        outputs = {item.call_id: item.output for item in items if item.type == "function_call_output"}
        # "It needs an approval, nothing was done" was true when it was told. It is the last word only where the model
        # goes on calling with what nobody approved.
        world.tell([text for text in outputs.values() if self._host.is_changed or "approval_required" not in text])
        prompts = [n for n, item in enumerate(items) if _is_prompt(item)]
        since = items[prompts[-1] :]
        script = world.turns[len(prompts) - 1]
        # A response is done when each of its calls has a last word; else it is made again, after the customer spoke.
        step = 0
        for response in script:
            wanted = [item["id"] for item in response.get("calls", ())]
            made = [item.call_id for item in since if item.type == "function_call"]
            if not wanted or not all(self._is_over(item, made, outputs, step) for item in wanted):
                break
            step += 1
        response = script[min(step, len(script) - 1)]
        last = since[-1]
        if last.type == "function_call_output" and any(code in last.output for code in OPEN):
            return ChoiceDelta(role="assistant", content="May I?")
        if "text" in response:
            return ChoiceDelta(role="assistant", content=response["text"])
        number = sum(item.type == "function_call" for item in items)
        calls = [
            FunctionToolCall(name="pay", arguments=self._host.write_arguments(call), call_id=f"{call['id']}-{number}")
            for call in response["calls"]
        ]
        return ChoiceDelta(role="assistant", tool_calls=calls)

    def _is_over(self, call_id: str, made: list[str], outputs: dict[str, str], step: int) -> bool:
        texts = [outputs[item] for item in made if item.startswith(f"{call_id}-") and item in outputs]
        return sum(not any(code in text for code in OPEN) for text in texts) > (step if self._host.repeats_id else 0)


class Host:
    """An agent with `pay` under `guard_agent`. LiveKit stores nothing: the application keeps the history."""

    def __init__(self, world: World, *, guarded: bool) -> None:
        assert guarded
        self.world = world
        self._guard = Guard(world, timeout=TIMEOUT)
        self._history = world.directory / "history.json"
        self._changed = world.directory / "changed"
        ids = [item["id"] for response in world.turns[0] for item in response.get("calls", ())]
        self.repeats_id = len(ids) > len(set(ids))

    @property
    def is_changed(self) -> bool:
        """Whether the model calls with other arguments than those that were approved."""
        return self._changed.exists()

    def write_arguments(self, call: dict[str, Any]) -> str:
        """The arguments of a call, as the model sends them."""
        arguments = dict(call.get("arguments", {}))
        if self.is_changed:
            arguments["amount"] = int(self._changed.read_text("utf-8"))
        return call.get("text") or json.dumps(arguments)

    async def send(self, turn: int) -> None:
        """Play a turn."""
        await self._say(f"Pay R-7 ({turn}).")

    async def resume(self) -> None:
        """The customer's next words."""
        await self._say("Yes.")

    async def is_waiting(self) -> bool:
        """Whether the last call has no last word."""
        outputs = [item.output for item in self._load().items if item.type == "function_call_output"]
        return bool(outputs) and any(code in outputs[-1] for code in OPEN)

    async def questions(self) -> list[Asked]:
        """What the executor waits for."""
        return await self._guard.questions()

    async def decide(self, question: Asked, *, yes: bool) -> None:
        """Record the decision."""
        await self._guard.decide(question, yes=yes)

    async def resolve(self, question: Asked, *, happened: bool) -> None:
        """An operator found out."""
        await self._guard.resolve(question, happened=happened)

    async def tamper(self, amount: int) -> None:
        """Nothing is stored that could be changed: the model calls again with something else."""
        self._changed.write_text(str(amount), "utf-8")

    async def aclose(self) -> None:
        """Close the store."""
        await self._guard.aclose()

    async def _say(self, text: str) -> None:
        before = self._load()
        turn = 1 + sum(getattr(item, "role", None) == "user" for item in before.items)
        plain = self.world.pay_async

        @function_tool(name="pay", description="Pay an invoice.")
        async def pay(invoice_id: str, amount: int) -> str:
            return await plain(invoice_id, amount)

        agent = Agent(instructions="Pay.", tools=[pay], chat_ctx=before)
        await guard_agent(agent, await self._guard.executor(), context=lambda run: self._guard.context(turn))
        async with AgentSession(llm=ScriptedModel(self)) as session:
            await session.start(agent)
            await session.run(user_input=text)
            items = agent.chat_ctx.to_dict(exclude_timestamp=False)
        part = self._history.with_suffix(f".{id(self)}")
        part.write_text(json.dumps(items), "utf-8")
        part.replace(self._history)

    def _load(self) -> ChatContext:
        if not self._history.exists():
            return ChatContext.empty()
        return ChatContext.from_dict(json.loads(self._history.read_text("utf-8")))


def _is_prompt(item: Any) -> bool:
    return getattr(item, "role", None) == "user" and (item.text_content or "").startswith("Pay")
