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
