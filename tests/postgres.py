"""A real Postgres for tests: a server of its own in a temporary directory, which can be stopped and started."""

import asyncio
import atexit
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Literal

import pytest
from sqlalchemy import make_url, text

from handrail.store.schema_version import ensure_newest


class PostgresServer:
    """One server on the loopback. Each test makes a database of its own in it."""

    def __init__(self, *, fsync: bool = False) -> None:
        self._fsync = "on" if fsync else "off"
        self._programs = _programs()
        self._home = Path(tempfile.mkdtemp(prefix="handrail-postgres-"))
        self._names = (f"test_{number}" for number in itertools.count())
        self._template: str | None = None
        self.port = 0
        if os.geteuid() == 0:  # Postgres refuses to run as root.
            shutil.chown(self._home, "postgres", "postgres")
        self._run("initdb", "-D", "data", "-U", "handrail", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    def start(self) -> None:
        """Start it, on the port that it had before or on a free one."""
        for attempt in range(5):
            port = self.port or _free_port()
            settings = {
                "port": port,
                "listen_addresses": "127.0.0.1",
                "unix_socket_directories": "",
                "fsync": self._fsync,
            }
            options = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
            try:
                self._run("pg_ctl", "-D", "data", "-o", options, "-l", "log", "-w", "-t", "30", "start")
            except subprocess.CalledProcessError:  # Somebody took the port.
                if attempt == 4:
                    raise
            else:
                self.port = port
                return

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop it: its clients lose their connections."""
        self._run("pg_ctl", "-D", "data", "-m", mode, "-w", "stop")

    def remove(self) -> None:
        """Stop it for good."""
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self._home)

    def new_database(self, *, is_empty: bool = False) -> str:
        """The address of a new database, empty or with the tables of the store."""
        name = next(self._names)
        template = [] if is_empty else ["-T", self._get_template()]
        self._run(
            "createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "handrail", *template, name, is_server=False
        )
        return self.url(name)

    def _get_template(self) -> str:
        """The database with the tables, which is made once: a copy of it takes a fraction of the migrations."""
        if self._template is None:
            url = self.new_database(is_empty=True)
            migrate(url)
            self._template = url.rpartition("/")[2]
        return self._template

    def url(self, name: str, *, port: int | None = None) -> str:
        """The address of a database."""
        return f"postgresql+asyncpg://handrail@127.0.0.1:{port or self.port}/{name}"

    def _run(self, program: str, *arguments: str, is_server: bool = True) -> None:
        user = ["runuser", "-u", "postgres", "--"] if is_server and os.geteuid() == 0 else []
        command = [*user, str(self._programs / program), *arguments]
        # Not through pipes: the server would inherit them, and reading them would never end.
        with tempfile.TemporaryFile() as output:
            finished = subprocess.run(command, cwd=self._home, stdout=output, stderr=output, check=False)
            if finished.returncode:
                output.seek(0)
                raise subprocess.CalledProcessError(finished.returncode, command, output.read())


def _programs() -> Path:
    found = shutil.which("postgres")
    if found:
        return Path(found).resolve().parent
    versions = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return max(versions, key=lambda path: int(path.parts[-3])).parent


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def postgres() -> Generator[PostgresServer]:
    """A running server, one for each worker of the test run."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


BLOCKED = text("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
"""Finds a row while a statement in this database waits for another transaction."""

DATABASES = [pytest.param("sqlite"), pytest.param("postgres", marks=pytest.mark.postgres)]
"""The kinds of database that a store can be in."""


def new_database(kind: str, folder: Path, request: pytest.FixtureRequest, *, is_empty: bool = False) -> str:
    """The address of a new database of this kind, empty or with the tables of the store."""
    if kind == "postgres":
        return request.getfixturevalue("postgres").new_database(is_empty=is_empty)
    file = folder / "executor.db"
    if not is_empty:
        shutil.copyfile(_make_file(), file)
    return f"sqlite+aiosqlite:///{file}"


@cache
def _make_file() -> Path:
    """A file of SQLite with the tables, which is made once."""
    folder = tempfile.mkdtemp(prefix="handrail-sqlite-")
    atexit.register(shutil.rmtree, folder)
    file = Path(folder) / "template.db"
    migrate(f"sqlite+aiosqlite:///{file}")
    return file


def migrate(url: str) -> None:
    """Make the tables in a database. In a thread, for a test that has a loop already."""

    def run() -> None:
        asyncio.run(ensure_newest(make_url(url), migrate=True))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
