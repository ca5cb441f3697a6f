"""The simulator as a process of its own, in real time."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from handrail.testing.phone.__main__ import main

from .wrong import TOOLS

FAST = {"think": 0.01, "delta": 0.001, "speech_rate": 2000, "linger": 0.1, "patience": 1}
SCRIPT = {
    "model": [{"say": "Bonjour."}, {"calls": [{"name": "lookup"}]}, {"say": "42."}],
    "caller": [{"say": "Combien ?"}, {"wait": "results"}],
    "timing": FAST,
}


async def test_calls_in_real_time_between_two_processes() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "handrail.testing.phone", stdin=-1, stdout=-1, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    about = json.loads(await process.stdout.readline())
    client = AsyncOpenAI(base_url=about["url"], api_key="sk-test", webhook_secret=about["webhook_secret"])
    async with client, asyncio.timeout(200), asyncio.TaskGroup() as tasks:

        async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.split(": ", 1) for line in head[1:] if line)
            body = await reader.readexactly(int(headers["content-length"]))
            event: Any = client.webhooks.unwrap(body, headers)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            writer.close()
            tasks.create_task(converse(client, event.data.call_id))

        async with await asyncio.start_server(receive, "127.0.0.1", 0) as server:
            webhook = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            process.stdin.write(json.dumps({"script": SCRIPT, "calls": 3, "webhook": webhook}).encode() + b"\n")
            summary = json.loads(await process.stdout.readline())
    process.stdin.write(b'{"script": {"modell": []}, "webhook": ""}\n')
    refused = json.loads(await process.stdout.readline())
    process.stdin.close()
    assert await process.wait() == 0
    assert (summary["calls"], summary["tool_calls"], summary["ended"]) == (3, 3, {"caller": 3})
    assert (summary["unanswered"], summary["never_voiced"], summary["errors"]) == (0, 0, {})
    assert "modell: unknown key" in refused["error"]


async def converse(client: AsyncOpenAI, call_id: str) -> None:
    await client.realtime.calls.accept(call_id, type="realtime", tools=TOOLS)
    async with client.realtime.connect(call_id=call_id) as connection:
        await connection.response.create()
        async for event in connection:
            if event.type == "response.done":
                calls = [item for item in event.response.output or [] if item.type == "function_call"]
                for call in calls:
                    item: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
                    await connection.conversation.item.create(item=item)
                if calls:
                    await connection.response.create()


def test_scripts_are_checked_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("caller: [{say: hello}]\n")
    bad.write_text("caller: [{shout: hello}]\n")
    assert main(["--check", str(good)]) == 0
    assert main(["--check", str(good), str(bad)]) == 1
    assert "bad.yaml:1: caller[0]: has none of the keys" in capsys.readouterr().out
