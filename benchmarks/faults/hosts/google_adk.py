"""Google ADK: tools that require confirmation; the session in SQLite is the stored state."""

import json
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService
from google.adk.tools import FunctionTool
from google.genai import types

from benchmarks.faults.cells import TIMEOUT
from benchmarks.faults.hosts.guarding import Asked, Guard
from benchmarks.faults.world import World

CONFIRM = "adk_request_confirmation"
WHO: Any = {"user_id": "ann", "session_id": "s-1"}


class ScriptedModel(BaseLlm):
    """Its next response depends on the history alone, as after a restart."""

    world: Any
    find_pending: Any

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """The response that the script has for this point of the conversation."""
        contents = llm_request.contents
        responses = [
            part.function_response for content in contents for part in content.parts or () if part.function_response
        ]
        # A call is answered at once while somebody has to decide: its real result comes later, under the same id.
        waiting = {(approval.args or {})["originalFunctionCall"]["id"] for approval in await self.find_pending()}
        texts = {item.id: json.dumps(item.response, default=str) for item in responses if item.id not in waiting}
        told = [entry["text"] for entry in self.world.entries("told")]
        self.world.tell([*told, *(text for text in texts.values() if text not in told)])
        prompts = [n for n, one in enumerate(contents) if one.role == "user" and _has_text(one)]
        step = sum(content.role == "model" for content in contents[prompts[-1] :])
        script = self.world.turns[min(len(prompts), len(self.world.turns)) - 1]
        response = script[min(step, len(script) - 1)]
        parts = [types.Part(text=response.get("text", ""))] if "text" in response else []
        for call in response.get("calls", ()):
            wanted = types.FunctionCall(id=call["id"], name="pay", args=call["arguments"])
            parts.append(types.Part(function_call=wanted))
        yield LlmResponse(content=types.Content(role="model", parts=parts))


class Host:
    """An agent with `pay`, bare (`require_confirmation=True`) or under `HandrailPlugin`."""

    def __init__(self, world: World, *, guarded: bool) -> None:
        self.world = world
        self._guard = Guard(world, timeout=TIMEOUT) if guarded else None
        self._database = world.directory / "sessions.db"
        self._sessions = DatabaseSessionService(f"sqlite+aiosqlite:///{self._database}")
        self._decisions = world.directory / "decisions.json"

    async def send(self, turn: int) -> None:
        """Play a turn."""
        await self._run(types.Part(text=f"Pay R-7 ({turn})."))

    async def resume(self) -> None:
        """Answer the confirmations."""
        known = json.loads(self._decisions.read_text("utf-8")) if self._decisions.exists() else {}
        # Under Handrail the application's yes only wakes the run; alone it is all there is.
        answers = [
            types.FunctionResponse(
                id=approval.id,
                name=CONFIRM,
                response={"confirmed": self._guard is not None or known.get(approval.id, False)},
            )
            for approval in await self._pending()
        ]
        # ADK asks once about a call. One that is in doubt after that was told to the model: the person asks again.
        parts = [types.Part(function_response=answer) for answer in answers] or [types.Part(text="What became of it?")]
        await self._run(*parts)

    async def is_waiting(self) -> bool:
        """Whether confirmations have no result, or a call is in doubt."""
        in_doubt = self._guard is not None and await (await self._guard.executor()).doubts()
        return bool(await self._pending() or in_doubt)

    async def questions(self) -> list[Asked]:
        """The confirmations that wait."""
        pending = await self._pending()
        if self._guard is not None:
            return await self._guard.questions() if await self.is_waiting() else []
        originals = [(approval, (approval.args or {})["originalFunctionCall"]) for approval in pending]
        return [Asked(id=one.id or "", arguments=call["args"], text=f"pay {call['args']}") for one, call in originals]

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
        """Change the pending call in the stored session."""
        connection = sqlite3.connect(self._database)
        changed = 0
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for _, column, *_ in connection.execute(f'PRAGMA table_info("{table}")').fetchall():
                replaced = f'replace(CAST("{column}" AS TEXT), \'"amount": 100\', \'"amount": {amount}\')'
                where = f'CAST("{column}" AS TEXT) LIKE \'%"amount": 100%\''
                changed += connection.execute(f'UPDATE "{table}" SET "{column}" = {replaced} WHERE {where}').rowcount
        connection.commit()
        connection.close()
        assert changed

    async def aclose(self) -> None:
        """Close the store."""
        await self._sessions.close()
        if self._guard is not None:
            await self._guard.aclose()

    async def _events(self) -> list[Any]:
        session = await self._sessions.get_session(app_name="desk", **WHO)
        return [] if session is None else session.events

    async def _pending(self) -> list[types.FunctionCall]:
        """The confirmations after which their call has no result."""
        events = await self._events()
        pending: list[types.FunctionCall] = []
        for number, event in enumerate(events):
            for call in event.get_function_calls():
                if call.name != CONFIRM:
                    continue
                original = (call.args or {})["originalFunctionCall"]["id"]
                later = [response for after in events[number + 1 :] for response in after.get_function_responses()]
                if not any(item.id == original for item in later):
                    pending.append(call)
        return pending

    async def _run(self, *parts: types.Part) -> None:
        if await self._sessions.get_session(app_name="desk", **WHO) is None:
            await self._sessions.create_session(app_name="desk", **WHO)
        runner = Runner(app=await self._app(), session_service=self._sessions)
        message = types.Content(role="user", parts=list(parts))
        async for _ in runner.run_async(**WHO, new_message=message):
            pass

    async def _app(self) -> App:
        pay = self.world.pay if self.world.plan.is_sync else self.world.pay_async

        if self.world.plan.is_sync:

            def tool(invoice_id: str, amount: int) -> str:
                """Pay an invoice."""
                return pay(invoice_id, amount)  # type: ignore[return-value]
        else:

            async def tool(invoice_id: str, amount: int) -> str:  # type: ignore[misc]
                """Pay an invoice."""
                return await pay(invoice_id, amount)  # type: ignore[misc]

        tool.__name__ = "pay"
        plugins: list[Any] = []
        if self._guard is not None:
            from handrail.adapters.google_adk import HandrailPlugin

            plugins = [HandrailPlugin(await self._guard.executor(), context=self._guard.context(0))]
        tools: Sequence[Any] = [FunctionTool(tool, require_confirmation=self._guard is None)]
        agent = LlmAgent(
            name="desk",
            model=ScriptedModel(model="scripted", world=self.world, find_pending=self._pending),
            tools=list(tools),
        )
        return App(name="desk", root_agent=agent, plugins=plugins)


def _has_text(content: types.Content) -> bool:
    return any(part.text for part in content.parts or ())
