"""An agent whose tool is on an MCP server; its conversation is in a file. It repeats a call whose connection broke."""

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import mcp_types
from mcp import StdioServerParameters
from mcp.client import Client

from benchmarks.faults.cells import ROOT, TIMEOUT
from benchmarks.faults.hosts.guarding import APPROVE, Asked, Guard
from benchmarks.faults.world import World


class McpHost:
    """The agent; `kind` says what its server is made of."""

    kind: str

    def __init__(self, world: World, *, guarded: bool) -> None:
        self.world = world
        self._guarded = guarded
        self._guard = Guard(world, timeout=TIMEOUT) if guarded else None
        self._file = world.directory / "agent.json"
        self._connection: asyncio.Task[None] | None = None
        self._connected: asyncio.Future[Client] | None = None
        self._is_over = asyncio.Event()

    async def send(self, turn: int) -> None:
        """Play a turn."""
        self._save({"turns": turn + 1, "steps": 0, "told": self._load()["told"], "calls": [], "waiting": {}})
        await self._run()

    async def resume(self) -> None:
        """Go on from the stored conversation."""
        await self._run()

    async def is_waiting(self) -> bool:
        """Whether calls have no result."""
        return bool(self._load()["calls"])

    async def questions(self) -> list[Asked]:
        """What the paused calls wait for."""
        waiting = self._load()["waiting"]
        if self._guard is not None:
            return await self._guard.questions() if waiting else []
        return [
            Asked(id=call_id, arguments=one["arguments"], text=one["question"])
            for call_id, one in waiting.items()
            if "answer" not in one
        ]

    async def decide(self, question: Asked, *, yes: bool) -> None:
        """Record the decision."""
        if self._guard is not None:
            return await self._guard.decide(question, yes=yes)
        state = self._load()
        state["waiting"][question.id]["answer"] = "accept" if yes else "decline"
        self._save(state)

    async def resolve(self, question: Asked, *, happened: bool) -> None:
        """An operator found out."""
        assert self._guard is not None
        await self._guard.resolve(question, happened=happened)

    async def tamper(self, amount: int) -> None:
        """Change the pending call in the stored conversation."""
        state = self._load()
        for call in state["calls"]:
            call["arguments"]["amount"] = amount
        self._save(state)

    async def aclose(self) -> None:
        """Close the connection and the store."""
        self._is_over.set()
        if self._connection is not None:
            with suppress(Exception):  # It may have broken before.
                await self._connection
        if self._guard is not None:
            await self._guard.aclose()

    async def _run(self) -> None:
        """Call and ask the model in turn, until it has no more calls or one of them has to wait."""
        while True:
            state = self._load()
            if not state["calls"]:
                self.world.tell(state["told"])
                script = self.world.turns[state["turns"] - 1]
                response = script[min(state["steps"], len(script) - 1)]
                self._save({**state, "steps": state["steps"] + 1, "calls": response.get("calls", [])})
                if "text" in response:
                    return
                continue
            for call in state["calls"]:
                await self._call(state, call)
            still = [item for item in state["calls"] if item["id"] in state["waiting"]]
            self._save({**state, "calls": still})
            if still:
                return

    async def _call(self, state: dict[str, Any], call: dict[str, Any]) -> None:
        known = state["waiting"].get(call["id"], {})
        answers: Any = {APPROVE: mcp_types.ElicitResult(action=known["answer"])} if "answer" in known else None
        session = (await self._connect()).session
        result = await session.call_tool(
            name="pay",
            arguments=call["arguments"],
            input_responses=answers,
            request_state=known.get("state"),
            allow_input_required=True,
            read_timeout_seconds=None if self._guarded or not self.world.plan.blocks else TIMEOUT,
        )
        if isinstance(result, mcp_types.InputRequiredResult):
            question: Any = next(iter((result.input_requests or {}).values()), None)
            state["waiting"][call["id"]] = {
                "state": result.request_state,
                "arguments": call["arguments"],
                "question": question.params.message if question is not None else "",
            }
            return
        state["waiting"].pop(call["id"], None)
        text = "\n".join(getattr(item, "text", "") for item in result.content)
        state["told"].append(f"Error: {text}" if result.is_error and "permission_denied" not in text else text)

    async def _connect(self) -> Client:
        if self._connected is None:
            self._connected = asyncio.get_running_loop().create_future()
            self._connection = asyncio.create_task(self._stay_connected(self._connected))
        return await asyncio.shield(self._connected)

    async def _stay_connected(self, connected: "asyncio.Future[Client]") -> None:
        """Hold the connection in a task of its own: a step of a fault may be cancelled."""
        try:
            server = StdioServerParameters(
                command=sys.executable,
                args=self._list_arguments(),
                cwd=str(ROOT),
                env={"FASTMCP_CHECK_FOR_UPDATES": "off", **({"PATH": os.environ["PATH"]})},
            )
            callback = None if self._guarded else _never_ask
            async with Client(server, elicitation_callback=callback) as client:
                connected.set_result(client)
                await self._is_over.wait()
        except Exception as error:
            if not connected.done():
                connected.set_exception(error)
            raise

    def _list_arguments(self) -> list[str]:
        """What Python is started with, to be the server."""
        command = ["-m", "benchmarks.faults.hosts.mcp_server", self.kind, str(self.world.directory)]
        return [*command, str(self._guarded)]

    def _load(self) -> dict[str, Any]:
        if not self._file.exists():
            return {"turns": 0, "steps": 0, "told": [], "calls": [], "waiting": {}}
        return json.loads(self._file.read_text("utf-8"))

    def _save(self, state: dict[str, Any]) -> None:
        part = Path(f"{self._file}.{os.getpid()}")
        part.write_text(json.dumps(state), "utf-8")
        part.replace(self._file)


async def _never_ask(*_: Any) -> Any:
    """The agent says that it can ask its user, and does so by itself, between two legs of a call."""
    raise AssertionError
