"""Databases for the tests of the store: a file of SQLite, and a real Postgres."""

from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from handrail.authorize import MemoryApprovals
from handrail.execute import MemoryLedger, MemoryWork
from handrail.store import SqlStore, open_store
from tests.postgres import DATABASES, new_database
from tests.postgres import postgres as postgres
from tests.store.fragile import Fragile, fragile_database


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database with the tables, of each kind."""
    return new_database(request.param, tmp_path, request)


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database without tables, of each kind."""
    return new_database(request.param, tmp_path, request, is_empty=True)


@pytest.fixture
async def store(url: str) -> AsyncGenerator[SqlStore]:
    """An open store, in a database of each kind."""
    async with open_store(url, audit_interval=0.01) as opened:
        yield opened


@pytest.fixture(params=["memory", *DATABASES])
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Any]:
    """A ledger, approvals and stored calls of every form: what is promised of one holds for all."""
    if request.param == "memory":
        yield SimpleNamespace(ledger=MemoryLedger(), approvals=MemoryApprovals(), work=MemoryWork())
        return
    async with open_store(new_database(request.param, tmp_path, request)) as opened:
        yield opened


@pytest.fixture(params=DATABASES)
async def fragile(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Fragile]:
    """A database that can be taken away and comes back, of each kind."""
    async with fragile_database(request.param, tmp_path, request) as database:
        yield database
