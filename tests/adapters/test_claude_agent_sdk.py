"""An agent of the Claude Agent SDK whose tools run under an executor.

The real CLI needs a network. `Cli` stands for it behind the SDK's own transport: it speaks the control protocol, asks
the hooks before and after each tool, runs the tools of the application over the protocol's MCP messages, and takes a
hook that fails for a refusal, as `on_failure="block"` demands.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, HookMatcher, Transport, create_sdk_mcp_server, tool
from claude_agent_sdk.types import PermissionResultAllow, PermissionResultDeny
from msgspec import structs

from handrail import Executor, Policy, Rule, Tool, ToolCall, ToolContext, ToolFlags
from handrail.adapters.claude_agent_sdk import guard_options
from handrail.execute import Timeouts

PAY = {"invoice_id": "R-7", "amount": 100}
NAME = "mcp__bank__pay"
ASK = Policy([Rule.ask(NAME, by="customer"), Rule.allow("*")])
ALLOW = Policy([Rule.allow("*")])
DECLARED = {NAME: ToolFlags(key="invoice_id"), "Read": ToolFlags(read_only=True)}


class Cli(Transport):
    """Claude Code: for every prompt it calls the next tools of its script, and tells what it was answered."""

    def __init__(self, *steps: Sequence[tuple[str, dict[str, Any]]], transcript: Path, loses: str = "") -> None:
        self.steps = list(steps)
        self.told: dict[str, str] = {}
        self.transcript = transcript
        self.loses = loses
        """What happens to a tool instead of its end: `post` is never sent, or it `fails`."""
        self.asks_itself = False
        self.problem = ""
        self._out: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._hooks: dict[str, list[dict[str, Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._initialized: set[str] = set()
        self._calls = 0

    async def connect(self) -> None: ...

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None: ...

    async def close(self) -> None:
        await self._out.put(None)

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:  # type: ignore[override]
        while (message := await self._out.get()) is not None:
            yield message

    async def write(self, data: str) -> None:
        message = json.loads(data)
        if message["type"] == "control_response":
            response = message["response"]
            self._waiting.pop(response["request_id"]).set_result(response)
        elif message["type"] == "control_request":
            request = message["request"]
            if request["subtype"] == "initialize":
                self._hooks = request["hooks"] or {}
            answer = {"hook_on_failure_supported": True}
            response = {"subtype": "success", "request_id": message["request_id"], "response": answer}
            await self._out.put({"type": "control_response", "response": response})
        else:
            with self.transcript.open("a") as file:
                file.write(json.dumps({"type": "user", "message": message["message"]}) + "\n")
            task = asyncio.create_task(self._play())
            self._tasks.add(task)

    async def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        number = f"cli-{len(self._waiting)}-{id(request)}"
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._out.put({"type": "control_request", "request_id": number, "request": request})
        return await self._waiting[number]

    async def _run_hooks(self, event: str, given: dict[str, Any]) -> list[dict[str, Any]]:
        base = {"session_id": "cc", "transcript_path": str(self.transcript), "cwd": "/", "hook_event_name": event}
        outputs: list[dict[str, Any]] = []
        for matcher in self._hooks.get(event, []):
            for callback in matcher["hookCallbackIds"]:
                request = {"subtype": "hook_callback", "callback_id": callback, "tool_use_id": given["tool_use_id"]}
                response = await self._request({**request, "input": {**base, **given}})
                if response["subtype"] == "error" and matcher.get("onFailure") == "block":
                    outputs.append({"permissionDecision": "deny", "permissionDecisionReason": response["error"]})
                elif response["subtype"] == "success":
                    outputs.append(response["response"].get("hookSpecificOutput", {}))
        return outputs

    async def _play(self) -> None:
        try:
            for name, arguments in self.steps.pop(0):
                self._calls += 1
                call_id = f"toolu_{self._calls}"
                self.told[call_id] = await self._run_tool(call_id, name, arguments)
        except Exception as error:
            self.problem = repr(error)
        result = {"type": "result", "subtype": "success", "duration_ms": 1, "duration_api_ms": 1, "is_error": False}
        await self._out.put({**result, "num_turns": 1, "session_id": "cc", "result": "Done."})

    async def _ask_server(self, server: str, method: str, params: dict[str, Any]) -> Any:
        if method != "initialize" and server not in self._initialized:
            self._initialized.add(server)
            info = {"name": "cli", "version": "1"}
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
            await self._ask_server(server, "initialize", hello)
            note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await self._request({"subtype": "mcp_message", "server_name": server, "message": note})
        message = {"jsonrpc": "2.0", "id": len(self._initialized), "method": method, "params": params}
        response = await self._request({"subtype": "mcp_message", "server_name": server, "message": message})
        return response["response"]["mcp_response"]["result"]

    async def _run_tool(self, call_id: str, name: str, arguments: dict[str, Any]) -> str:
        given = {"tool_name": name, "tool_input": arguments, "tool_use_id": call_id}
        decisions = await self._run_hooks("PreToolUse", given)
        for decision in decisions:
            if decision.get("permissionDecision") == "deny":
                return str(decision["permissionDecisionReason"])
        assert any(decision.get("permissionDecision") == "allow" for decision in decisions)
        arguments = next((item["updatedInput"] for item in decisions if "updatedInput" in item), arguments)
        if self.asks_itself:
            asked = {"subtype": "can_use_tool", "tool_name": name, "input": arguments, "tool_use_id": call_id}
            answer = (await self._request(asked))["response"]
            if answer["behavior"] == "deny":
                return str(answer["message"])
            arguments = answer.get("updatedInput") or arguments
        given = {**given, "tool_input": arguments}
        _, server, tool_name = name.split("__")
        result = await self._ask_server(server, "tools/call", {"name": tool_name, "arguments": arguments})
        text = result["content"][0]["text"]
        if self.loses == "post":
            return text
        if result.get("isError") or self.loses == "fails":
            await self._run_hooks("PostToolUseFailure", {**given, "error": text})
        else:
            await self._run_hooks("PostToolUse", {**given, "tool_response": text})
        return text


class Desk:
    """An agent with `pay` under an executor, and what was paid."""

    def __init__(
        self,
        *steps: Sequence[tuple[str, dict[str, Any]]],
        tmp_path: Path,
        policy: Policy = ASK,
        loses: str = "",
        context: Any = None,
        timeouts: Timeouts | None = None,
        executor_hooks: Sequence[object] = (),
        **options: Any,
    ) -> None:
        self.paid: list[tuple[str, int]] = []
        self.cli = Cli(*steps, transcript=tmp_path / "transcript.jsonl", loses=loses)
        self.executor = Executor(
            policy=policy, declared=DECLARED, timeouts=timeouts or Timeouts(), hooks=executor_hooks
        )

        @tool("pay", "Pay an invoice.", {"invoice_id": str, "amount": int})
        async def pay(arguments: dict[str, Any]) -> dict[str, Any]:
            self.paid.append((arguments["invoice_id"], arguments["amount"]))
            return {"content": [{"type": "text", "text": f"paid {arguments['amount']}"}]}

        plain = ClaudeAgentOptions(mcp_servers={"bank": create_sdk_mcp_server("bank", tools=[pay])}, **options)
        context = context or ToolContext(session_id="s-1", customer_id="c-1")
        self.options = guard_options(plain, self.executor, context=context)

    async def talk(self, *prompts: str, before: Any = None) -> None:
        async with ClaudeSDKClient(options=self.options, transport=self.cli) as client:
            for number, prompt in enumerate(prompts):
                if before is not None:
                    await before(number)
                await client.query(prompt)
                async for _ in client.receive_response():
                    pass
        assert self.cli.problem == ""

    async def approve(self, number: int) -> None:
        if number:
            (question,) = await self.executor.approvals.pending(session_id="s-1")
            await self.executor.approvals.approve(question.token, by="customer", who="c-1")


async def test_two_calls_of_one_effect_are_one_and_both_are_told(tmp_path: Path) -> None:
    desk = Desk([(NAME, PAY), (NAME, PAY)], tmp_path=tmp_path, policy=ALLOW)

    await desk.talk("Pay R-7.")

    assert desk.paid == [("R-7", 100)]
    assert desk.cli.told["toolu_1"] == "paid 100"
    assert "Already done" in desk.cli.told["toolu_2"]
    assert "paid 100" in desk.cli.told["toolu_2"]


async def test_without_anybody_to_ask_the_model_is_told_and_calls_again_after_the_approval(tmp_path: Path) -> None:
    desk = Desk([(NAME, PAY)], [(NAME, PAY)], [(NAME, PAY)], tmp_path=tmp_path)
    paid: list[int] = []

    async def before(number: int) -> None:
        paid.append(len(desk.paid))
        await desk.approve(number if number < 2 else 0)

    await desk.talk("Pay R-7.", "Yes.", "Once more.", before=before)

    assert "approval_required" in desk.cli.told["toolu_1"]
    assert desk.cli.told["toolu_2"] == "paid 100"
    assert "approval_required" in desk.cli.told["toolu_3"]  # A wanted repeat, in a later turn, is a new question.
    assert paid == [0, 0, 1]


@pytest.mark.parametrize(
    ("decision", "paid", "told"),
    [
        (PermissionResultAllow(), [("R-7", 100)], "paid 100"),
        (PermissionResultAllow(updated_input={"invoice_id": "R-7", "amount": 5}), [("R-7", 5)], "paid 5"),
        (PermissionResultDeny(message="Too much."), [], "Too much."),
    ],
)
async def test_what_can_use_tool_decides_is_the_decision_of_the_customer(
    decision: Any, paid: list[Any], told: str, tmp_path: Path
) -> None:
    asked: list[tuple[str, dict[str, Any], str | None]] = []

    async def can_use_tool(name: str, arguments: dict[str, Any], context: Any) -> Any:
        asked.append((name, arguments, context.tool_use_id))
        return decision

    desk = Desk([(NAME, PAY)], tmp_path=tmp_path, can_use_tool=can_use_tool)
    await desk.talk("Pay R-7.")

    assert asked == [(NAME, PAY, "toolu_1")]
    assert desk.paid == paid
    assert told in desk.cli.told["toolu_1"]
    (recorded,) = await desk.executor.approvals.history(session_id="s-1")
    assert recorded.state == ("used" if paid else "denied")


async def test_can_use_tool_never_stands_for_the_operator(tmp_path: Path) -> None:
    async def can_use_tool(name: str, arguments: dict[str, Any], context: Any) -> Any:
        return PermissionResultAllow()

    policy = Policy([Rule.ask(NAME, by="operator")])
    desk = Desk([(NAME, PAY)], tmp_path=tmp_path, policy=policy, can_use_tool=can_use_tool)
    await desk.talk("Pay R-7.")

    assert desk.paid == []
    assert "approval_required" in desk.cli.told["toolu_1"]


async def test_a_tool_that_fails_is_in_doubt_and_is_not_run_again(tmp_path: Path) -> None:
    desk = Desk([(NAME, PAY), (NAME, PAY)], tmp_path=tmp_path, policy=ALLOW, loses="fails")

    await desk.talk("Pay R-7.")

    assert desk.paid == [("R-7", 100)]
    assert len(await desk.executor.doubts()) == 1
    assert "outcome_unknown" in desk.cli.told["toolu_2"]


async def test_a_call_whose_end_is_never_told_is_in_doubt(tmp_path: Path) -> None:
    desk = Desk(
        [(NAME, PAY)], [(NAME, PAY)], tmp_path=tmp_path, policy=ALLOW, loses="post", timeouts=Timeouts(call=0.2)
    )

    async def before(number: int) -> None:
        async with asyncio.timeout(30):
            while number and not await desk.executor.doubts():
                await asyncio.sleep(0.01)

    await desk.talk("Pay R-7.", "And?", before=before)

    assert desk.paid == [("R-7", 100)]
    assert "outcome_unknown" in desk.cli.told["toolu_2"]


async def test_a_call_that_claude_then_denies_by_itself_did_nothing(tmp_path: Path) -> None:
    async def can_use_tool(name: str, arguments: dict[str, Any], context: Any) -> Any:
        return PermissionResultDeny(message="Not now.")

    desk = Desk([(NAME, PAY)], tmp_path=tmp_path, policy=ALLOW, can_use_tool=can_use_tool)
    desk.cli.asks_itself = True
    await desk.talk("Pay R-7.")

    assert desk.paid == []
    assert await desk.executor.doubts() == []


@pytest.mark.parametrize(
    ("changed", "paid"),
    [(PAY, [("R-7", 100)]), ({**PAY, "amount": 90}, [("R-7", 90)]), ({**PAY, "amount": 5000}, [])],
)
async def test_arguments_that_are_changed_when_claude_asks_by_itself_are_authorised_too(
    changed: dict[str, Any], paid: list[Any], tmp_path: Path
) -> None:
    async def can_use_tool(name: str, arguments: dict[str, Any], context: Any) -> Any:
        return PermissionResultAllow(updated_input=changed)

    policy = Policy([Rule.deny(NAME, where={"amount": {"above": 1000}}), Rule.allow("*")])
    desk = Desk([(NAME, PAY)], tmp_path=tmp_path, policy=policy, can_use_tool=can_use_tool)
    desk.cli.asks_itself = True
    await desk.talk("Pay R-7.")

    assert desk.paid == paid
    assert ("permission_denied" in desk.cli.told["toolu_1"]) is not bool(paid)
    assert await desk.executor.doubts() == []


class AddTip:
    """A hook of the host that changes what runs."""

    def before(self, call: ToolCall, tool: Tool[..., Any], context: ToolContext[Any]) -> ToolCall:
        given = json.loads(call.arguments_json)
        return structs.replace(call, arguments_json=json.dumps({**given, "amount": given["amount"] + 5}))


async def test_a_person_sees_the_arguments_that_will_run(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def can_use_tool(name: str, arguments: dict[str, Any], context: Any) -> Any:
        asked.append(arguments)
        return PermissionResultAllow(updated_input=arguments)

    desk = Desk([(NAME, PAY)], tmp_path=tmp_path, can_use_tool=can_use_tool, executor_hooks=[AddTip()])
    await desk.talk("Pay R-7.")

    assert asked == [{**PAY, "amount": 105}]
    assert desk.paid == [("R-7", 105)]


async def test_a_hook_that_fails_blocks_the_tool(tmp_path: Path) -> None:
    def context(given: Any) -> ToolContext[None]:
        raise RuntimeError("no session")

    desk = Desk([(NAME, PAY)], tmp_path=tmp_path, policy=ALLOW, context=context)
    await desk.talk("Pay R-7.")

    assert desk.paid == []
    assert "no session" in desk.cli.told["toolu_1"]


async def test_the_hooks_of_the_application_still_run(tmp_path: Path) -> None:
    seen: list[str] = []

    async def note(given: Any, tool_use_id: str | None, context: Any) -> Any:
        seen.append(given["tool_name"])
        return {}

    desk = Desk([(NAME, PAY)], tmp_path=tmp_path, policy=ALLOW, hooks={"PreToolUse": [HookMatcher(hooks=[note])]})
    await desk.talk("Pay R-7.")

    assert seen == [NAME]
    assert desk.paid == [("R-7", 100)]


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_hook_of_the_application_cannot_change_what_was_authorised(is_first: bool, tmp_path: Path) -> None:
    async def change(given: Any, tool_use_id: str | None, context: Any) -> Any:
        output = {"permissionDecision": "allow", "updatedInput": {**PAY, "amount": 5000}}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **output}}

    policy = Policy([Rule.deny(NAME, where={"amount": {"above": 1000}}), Rule.allow("*")])
    hooks: Any = {"PreToolUse": [HookMatcher(hooks=[change])]}
    desk = Desk([(NAME, PAY)], tmp_path=tmp_path, policy=policy, hooks=hooks)
    if not is_first:  # Claude Code runs them beside each other.
        desk.options.hooks["PreToolUse"].reverse()  # pyright: ignore[reportOptionalSubscript]
    await desk.talk("Pay R-7.")

    assert desk.paid == []
    assert "another hook changed its arguments" in desk.cli.told["toolu_1"]
    assert await desk.executor.doubts() == []


async def test_lines_of_a_transcript_that_cannot_be_read_are_no_messages_of_the_person(tmp_path: Path) -> None:
    turns: list[int] = []

    class Note:
        def before(self, call: ToolCall, tool: Tool[..., Any], context: ToolContext[Any]) -> None:
            turns.append(context.turn)

    desk = Desk([(NAME, PAY)], [(NAME, PAY)], tmp_path=tmp_path, policy=ALLOW, executor_hooks=[Note()])
    lines = ['["user"]', '{"type": "user', "[" * 100_000 + '"user"', '"user"']
    desk.cli.transcript.write_text("\n".join(lines) + "\n")
    await desk.talk("Pay R-7.", "And?")

    assert turns == [1, 2]
