"""A store for the tests of the gateway."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from handrail.store import SqlStore, open_store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SqlStore]:
    """An open store in a file, which also keeps arguments and outputs."""
    async with open_store(f"sqlite:///{tmp_path}/desk.db", audit_values=True, audit_interval=0.01) as opened:
        yield opened
