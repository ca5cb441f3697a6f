"""A thousand phone calls at once through one gateway, with the simulator in a process of its own.

Beside them runs an echo: calls that are answered by the SDK alone, as soon as they arrive. What Handrail adds is the
difference between the two, in the same process and at the same time.
"""

import argparse
import asyncio
import gc
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from handrail import ToolContext, tool
from handrail.phone import PhoneGateway
from handrail.tenants import TenantConfig, TenantDirectory, ToolBuilder

NUMBER, ECHO_NUMBER = "+33100000000", "+33100000001"
TIMING = {"piece": 60, "delta": 0.1, "think": 0.3, "linger": 2.0}
BOOK = {"say": "One moment.", "calls": [{"name": "book", "args": {"day": "Monday"}}]}
LOOK_UP = {"calls": [{"name": "look_up", "args": {"item": "lamp"}}, {"name": "look_up", "args": {"item": "desk"}}]}
OPENING: list[dict[str, Any]] = [{"say": "How many lamps are there?"}, {"wait": "results", "patience": 30}]


def scripts(number: str, count: int, seconds: float) -> list[dict[str, Any]]:
    """Calls with tools, each of another caller; every third has a barge-in or a caller who hangs up in the middle."""
    base: dict[str, Any] = {"timing": TIMING, "otherwise": {"say": "Anything else?"}}
    told = {"say": "There are forty-two of them, and all of them are in the shop that is nearest to you."}
    model = [{"say": "Hello, this is the shop."}, LOOK_UP, told, BOOK, {"say": "Monday is booked."}]
    book = [{"say": "Then book Monday, please."}, {"wait": "results", "patience": 30}]
    barge = [book[0], {"barge": "Wait, one question.", "on": "audio", "patience": 30}, book[1]]
    hangs_up = [{"sleep": seconds}, {"say": "Then book Monday, please."}, {"sleep": 0.4}, {"hangup": True}]
    callers = [
        [*OPENING, {"sleep": seconds}, *book, {"hangup": 1}],
        [*OPENING, {"sleep": seconds}, *barge, {"hangup": 1}],
        [*OPENING, *hangs_up],
    ]
    return [
        {
            **base,
            "call": {"to": number, "from": f"+336{item:08}"},
            "model": model,
            "caller": callers[item % len(callers)],
        }
        for item in range(count)
    ]


class Shop:
    """The tools, and how often each call of theirs was run."""

    def __init__(self) -> None:
        self.runs: Counter[tuple[str, str]] = Counter()

    def builder(self) -> ToolBuilder:
        @tool(read_only=True, concurrency_safe=True)
        async def look_up(item: str, context: ToolContext[None]) -> str:
            """Look an item up."""
            self.count(context)
            return f"42 of {item}"

        @tool
        async def book(day: str, context: ToolContext[None]) -> str:
            """Book a day."""
            self.count(context)
            return f"{day} is booked"

        def build_look_up(cfg: TenantConfig) -> Any:
            return look_up

        def build_book(cfg: TenantConfig) -> Any:
            return book

        builder = ToolBuilder()
        builder.register(build_look_up)
        builder.register(build_book)
        return builder

    def count(self, context: ToolContext[None]) -> None:
        self.runs[context.session_id, context.call.id if context.call else ""] += 1


async def echo(client: AsyncOpenAI, call_id: str, tools: list[Any]) -> None:
    """The least that a correct client can do."""
    await client.realtime.calls.accept(call_id, type="realtime", tools=tools)
    async with client.realtime.connect(call_id=call_id) as connection:
        await connection.response.create()
        async for event in connection:
            if event.type == "response.output_item.done" and event.item.type == "function_call":
                item: Any = {"type": "function_call_output", "call_id": event.item.call_id, "output": "42"}
                await connection.conversation.item.create(item=item)
            elif event.type == "response.done" and any(
                item.type == "function_call" for item in event.response.output or []
            ):
                await connection.response.create()


async def measure(calls: int, echoes: int, rate: float) -> dict[str, Any]:
    """Play everything, and say what came of it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "handrail.testing.phone", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    about = json.loads(await process.stdout.readline())
    client = AsyncOpenAI(base_url=about["url"], api_key="sk-test", webhook_secret=about["webhook_secret"])
    shop = Shop()
    cfg = TenantConfig.model_validate(
        {
            "tenant_id": "shop",
            "numbers": [NUMBER],
            "greeting": "Hello, this is the shop.",
            "limits": {"max_calls": calls},
            "policy": [{"allow": "book"}],
        }
    )
    gateway = PhoneGateway(client=client, tenants=TenantDirectory([cfg]), tools=shop.builder(), max_calls=calls)
    tools: list[Any] = [{"type": "function", "name": name} for name in ("look_up", "book")]
    echoing: set[asyncio.Task[None]] = set()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        status = 200
        if ECHO_NUMBER.encode() in body:
            event: Any = client.webhooks.unwrap(body, headers)
            task = asyncio.create_task(echo(client, event.data.call_id, tools))
            echoing.add(task)
            task.add_done_callback(echoing.discard)
        else:
            status = (await gateway.handle_webhook(headers, body)).status
        writer.write(f"HTTP/1.1 {status} OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        writer.close()

    peak = {"calls": 0, "bytes": 0}

    async def watch(before: int) -> None:
        while True:
            if len(gateway.calls) > peak["calls"]:
                peak["calls"], peak["bytes"] = len(gateway.calls), resident_bytes() - before
            await asyncio.sleep(0.5)

    async with client, gateway, await asyncio.start_server(receive, "127.0.0.1", 0, backlog=1024) as server:
        gc.collect()
        watching = asyncio.create_task(watch(resident_bytes()))
        webhook = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        seconds = calls / rate + 5  # every call lasts until all have begun
        for tag, number, count in (("handrail", NUMBER, calls), ("echo", ECHO_NUMBER, echoes)):
            pace = rate * count / calls
            command = {
                "scripts": scripts(number, count, seconds),
                "calls": count,
                "rate": pace,
                "webhook": webhook,
                "tag": tag,
            }
            process.stdin.write(json.dumps(command).encode() + b"\n")
        answers = [json.loads(await process.stdout.readline()) for _ in range(2)]
        watching.cancel()
        process.stdin.close()
        await gateway.drain(grace=10)
        await asyncio.gather(*echoing, return_exceptions=True)
    await process.wait()
    found: dict[str, Any] = {answer.pop("tag"): answer for answer in answers}
    twice = sum(count > 1 for count in shop.runs.values())
    return {**found, "peak": peak, "double_runs": twice, "runs": sum(shop.runs.values())}


def resident_bytes() -> int:
    """The memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def judge(found: Mapping[str, Any]) -> list[tuple[bool, str]]:
    """What was promised, and whether it was kept."""
    ours, echo, peak = found["handrail"], found["echo"], found["peak"]
    if "error" in ours or "error" in echo:
        return [(False, f"the simulator failed: {ours.get('error')} {echo.get('error')}")]
    ratio = ours["call_to_output"]["p50"] / max(echo["call_to_output"]["p50"], 1e-9)
    return [
        (ours["unanswered"] == 0, f"{ours['unanswered']} unanswered of {ours['tool_calls']} tool calls"),
        (ours["never_voiced"] == 0, f"{ours['never_voiced']} results never spoken"),
        (found["double_runs"] == 0, f"{found['double_runs']} double runs of {found['runs']}"),
        (ours["duplicate_outputs"] == 0, f"{ours['duplicate_outputs']} outputs sent twice"),
        (ours["problems"] == 0, f"{ours['problems']} scripts that did not come about, ended {ours['ended']}"),
        (True, f"{peak['calls']} calls at once, {peak['bytes'] / max(peak['calls'], 1) / 1024:.0f} KB of memory each"),
        (
            ratio <= 2,
            f"call to output: {ours['call_to_output']['p50'] * 1000:.1f} ms in the middle "
            f"({ours['call_to_output']['p95'] * 1000:.1f} ms for 95 %), {ratio:.2f} times an echo through the same SDK",
        ),
    ]


def main() -> int:
    """Measure, print, and fail if a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.phone_load", description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000)
    parser.add_argument("--echoes", type=int, default=100)
    parser.add_argument("--rate", type=float, default=40.0, help="new calls per second")
    options = parser.parse_args()
    found = asyncio.run(measure(options.calls, options.echoes, options.rate))
    verdicts = judge(found)
    for kept, text in verdicts:
        print(f"{'kept' if kept else 'MISSED':6}  {text}")
    return 0 if all(kept for kept, _ in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
