"""Databases that can be taken away, and come back."""

import sqlite3
from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from tests.postgres import PostgresServer
from tests.store.proxy import Proxy, proxied


class Fragile(Protocol):
    """A database that cannot be written for a while."""

    url: str

    @abstractmethod
    async def go_away(self) -> None: ...
    @abstractmethod
    async def come_back(self) -> None: ...


class LockedFile:
    """Another process has SQLite's write lock, and keeps it."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite+aiosqlite:///{path}"
        self._other = sqlite3.connect(path, isolation_level=None)

    async def go_away(self) -> None:
        self._other.execute("BEGIN EXCLUSIVE")

    async def come_back(self) -> None:
        if self._other.in_transaction:
            self._other.execute("ROLLBACK")

    def close(self) -> None:
        self._other.close()


class CutWire:
    """The wire to Postgres is cut."""

    def __init__(self, proxy: Proxy, url: str) -> None:
        self.url = url
        self.proxy = proxy
        self._away = False

    async def go_away(self) -> None:
        self._away = True
        await self.proxy.stop()

    async def come_back(self) -> None:
        if self._away:
            self._away = False
            await self.proxy.start()


@asynccontextmanager
async def fragile_database(kind: str, folder: Path, request: pytest.FixtureRequest) -> AsyncGenerator[Fragile]:
    """A new, empty database of this kind that can be taken away."""
    if kind == "sqlite":
        locked = LockedFile(folder / "executor.db")
        try:
            yield locked
        finally:
            locked.close()
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name = server.new_database().rpartition("/")[2]
    async with proxied(server.port) as proxy:
        yield CutWire(proxy, server.url(name, port=proxy.port))
