"""The delivery with pgqueuer that docs/durable.md shows."""

import asyncio
from pathlib import Path

import asyncpg
import pytest
from pgqueuer import AsyncpgDriver, Queries

from tests.adapters.delivery_contract import *  # noqa: F403
from tests.postgres import new_database
from tests.postgres import postgres as postgres


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url = new_database("postgres", tmp_path, request)
    asyncio.run(install(url))
    return f"pgqueuer {url}"


async def install(url: str) -> None:
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        await Queries(AsyncpgDriver(connection)).install()
    finally:
        await connection.close()
