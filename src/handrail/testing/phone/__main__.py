"""The simulator as a process of its own: `python -m handrail.testing.phone`, for load in real time.

It prints one line of JSON with its URL and its webhook secret, then reads commands from standard input, a line of JSON
each: `{"script": {…} or "file.yaml", "calls": 1000, "rate": 50, "webhook": "http://…"}`; instead of `script`, a list
`scripts` of which each call takes the next. When these calls have ended it prints one line of JSON with their summary,
and the `tag` of the command if it had one. Commands run at the same time. It ends with the input, after the last call.
"""

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from typing import Any

from .report import Summary, summarise
from .script import Script, ScriptError, load_script
from .simulator import PhoneSimulator


def main(arguments: list[str] | None = None) -> int:
    """Check scripts, or serve."""
    parser = argparse.ArgumentParser(prog="python -m handrail.testing.phone", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--check", nargs="+", metavar="SCRIPT", help="only check these scripts")
    options = parser.parse_args(arguments)
    if options.check:
        return _check(options.check)
    asyncio.run(_serve(options.port))
    return 0


def _check(files: list[str]) -> int:
    wrong = 0
    for file in files:
        try:
            load_script(file)
        except ScriptError as error:
            wrong += 1
            _write(str(error))
    return 1 if wrong else 0


async def _serve(port: int) -> None:
    async with PhoneSimulator(port=port) as simulator, asyncio.TaskGroup() as tasks:
        _write(json.dumps({"url": simulator.url, "webhook_secret": simulator.webhook_secret}))
        while line := await asyncio.to_thread(sys.stdin.readline):
            tasks.create_task(_answer(simulator, line))


async def _answer(simulator: PhoneSimulator, line: str) -> None:
    tag: object = None
    try:
        command = json.loads(line)
        tag = command.get("tag")
        answer = asdict(await _play(simulator, command))
    except (ScriptError, ValueError, KeyError, TypeError, AttributeError, TimeoutError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    _write(json.dumps({"tag": tag, **answer}))


async def _play(simulator: PhoneSimulator, command: dict[str, Any]) -> Summary:
    given: list[Any] = command.get("scripts") or [command["script"]]
    scripts = [load_script(script) if isinstance(script, str) else Script.parse(script) for script in given]
    count, rate = int(command.get("calls", 1)), float(command.get("rate", 100))
    playing: list[asyncio.Task[str]] = []

    async def play(script: Script) -> str:
        call = await simulator.ring(script, command["webhook"])
        await simulator.wait(call.id, timeout=float(command.get("timeout", 600)))
        return call.id

    for number in range(count):
        playing.append(asyncio.create_task(play(scripts[number % len(scripts)])))
        await asyncio.sleep(1 / rate)
    ids = await asyncio.gather(*playing)
    reports = [simulator.report(call_id) for call_id in ids]
    for call_id in ids:
        simulator.forget(call_id)
    return summarise(reports)


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
