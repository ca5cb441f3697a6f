"""Programs that tests run as processes of their own."""

import asyncio
import os
import sys
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"


async def start_program(source: str, *arguments: str) -> asyncio.subprocess.Process:
    """Start a program with these arguments; it can be talked to through its pipes."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        source,
        *arguments,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def run_program(source: str, *arguments: str) -> str:
    """What a program prints."""
    program = await start_program(source, *arguments)
    output, _ = await program.communicate()
    assert program.returncode == 0
    return output.decode().strip()


OPEN_AT_ONCE = """
import asyncio, sys
from handrail.store import open_store

async def main():
    async with open_store(sys.argv[1]) as store:
        print(store.ledger.digest_key.hex())

asyncio.run(main())
"""


PAY = """
import asyncio, json, os, sys, time
from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.execute import Timeouts
from handrail.store import open_store

url, effects, how, turn = sys.argv[1:5]

def hang():
    print("running", flush=True)
    time.sleep(1000)  # Not even a timer can stop it.

@tool(key=("invoice",), timeout=0.5)
async def pay(invoice: str, context: ToolContext) -> str:
    "Pay an invoice."
    if how == "hang before":
        hang()
    with open(effects, "a") as file:
        file.write(context.idempotency_key + chr(10))
    if how == "hang after":
        hang()
    return "paid " + invoice

async def main():
    async with open_store(url) as store:
        executor = Executor([pay], policy=Policy([Rule.allow("pay")]), ledger=store.ledger, approvals=store.approvals,
            timeouts=Timeouts(lease_grace=2.0 if how.startswith("hang") else 60.0))
        context = ToolContext(session_id="s-1", customer_id="c-1", turn=int(turn))
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        call = ToolCall(id=f"call-{os.getpid()}", name="pay", arguments_json='{"invoice":"i-1"}')
        result = await executor.run(call, context)
        print(json.dumps([result.error.code if result.error else None, result.origin == "replayed"]))

asyncio.run(main())
"""

APPROVE = """
import asyncio, sys
from handrail.store import open_store

async def main():
    async with open_store(sys.argv[1]) as store:
        (asked,) = await store.approvals.pending()
        await store.approvals.approve(asked.token, by="operator", who="ann", reason="checked")

asyncio.run(main())
"""

KILLED_IN_ITS_HANDLER = """
import asyncio, os, signal, sys
from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.store import open_store

@tool
async def pay(invoice: str) -> str:
    "Pay an invoice."
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with open_store(sys.argv[1], audit_interval=600) as store:  # Nothing that waits in memory is written.
        executor = Executor([pay], policy=Policy([Rule.ask("pay", by="operator")]), store=store)
        context = ToolContext(session_id="s-1", customer_id="c-1", turn=1)
        call = ToolCall(id="call-1", name="pay", arguments_json='{"invoice":"i-1"}')
        asked = await executor.run(call, context)
        await store.approvals.approve(asked.approval.token, by="operator", who="ann")
        await executor.run(call, context)

asyncio.run(main())
"""

ROTATING = """
import asyncio, json, sys
from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.store import open_store

@tool(key=("iban",))
async def pay(iban: str) -> str:
    "Pay."
    return "paid " + iban

async def main():
    async with open_store(sys.argv[1], encryption_key=json.loads(sys.argv[2])) as store:
        executor = Executor([pay], policy=Policy([Rule.ask("pay", by="operator")]), store=store, scope="session")
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            what, iban = line.split()
            if what == "approve":
                open_ones = await store.approvals.pending()
                (asked,) = [approval for approval in open_ones if approval.arguments.get("iban") == iban]
                await store.approvals.approve(asked.token, by="operator", who="ann")
                said = "approved"
            else:
                call = ToolCall(id=iban, name="pay", arguments_json=json.dumps({"iban": iban}))
                result = await executor.run(call, ToolContext(session_id="s-1", turn=1))
                said = result.error.code if result.error else result.output
            print(said, flush=True)

asyncio.run(main())
"""
