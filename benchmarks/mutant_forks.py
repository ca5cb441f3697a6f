"""Judges mistakes in forks of one process that has collected the tests: nothing is imported again for a mistake.

The code of the function that has the mistake is exchanged in the fork. What ran before (when a module was imported) and
what runs in programs that a test starts does not see it: `benchmarks.mutants` asks a new process about all that no test
noticed here.
"""

import ast
import contextlib
import gc
import os
import pickle
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Literal, cast

import pytest

from tests import postgres as databases

Functions = dict[tuple[str, int, str], list[FunctionType]]
"""The functions of the process, by the file and the line of their code, and its name."""
Verdict = Literal["noticed", "stopped", "not noticed", "not tried"]
_VERDICTS: dict[int, Verdict] = {0: "not noticed", 1: "noticed", 2: "stopped", 3: "not tried"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One mistake, and the tests that reach it."""

    number: int
    file: str
    line: int
    """Of the definition of the function that has the mistake."""
    source: str
    tests: list[str]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be judged, and how."""

    folders: list[str]
    markers: str
    jobs: int
    timeout: float
    test_timeout: float
    cases: list[Case]


class KeptServer(databases.PostgresServer):
    """A server that outlives the forks that use it, one after the other."""

    def start(self) -> None:
        """Start it unless it runs: a fork may have ended between stop and start."""
        if not self.port or not _is_listening(self.port):
            super().start()

    def keep(self) -> None:
        """From here on, in a fork: it is not removed, and its databases have the names of those of the fork before."""
        vars(self)["remove"] = lambda: None
        vars(self)["new_database"] = self._renew_database

    def _renew_database(self, *, is_empty: bool = False) -> str:
        name = next(self._names)
        address = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "handrail")
        self._run("dropdb", *address, "--if-exists", "--force", name, is_server=False)
        template = [] if is_empty else ["-T", self._get_template()]
        self._run("createdb", *address, *template, name, is_server=False)
        return self.url(name)


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Forks:
    """A plugin of pytest that judges mistakes in the place of running the tests."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._waiting = list(reversed(plan.cases))
        self._running: dict[int, tuple[Case, int, float]] = {}
        self._servers: list[KeptServer] = []
        self._items: dict[str, pytest.Item] = {}
        self._functions: Functions = defaultdict(list)
        self._sound: dict[str, bool] = {}
        """Whether a test passes here when there is no mistake."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge everything."""
        self._items = {item.nodeid: item for item in session.items}
        factory: Any = vars(session.config)["_tmp_path_factory"]
        factory.getbasetemp()
        cast(Any, databases)._make_file()
        if any(item.get_closest_marker("postgres") for item in session.items):
            self._servers = [KeptServer() for _ in range(self._plan.jobs)]
        try:
            for server in self._servers:
                server.start()
                server.new_database()
            for found in gc.get_objects():
                if isinstance(found, FunctionType):
                    code = found.__code__
                    self._functions[code.co_filename, code.co_firstlineno, code.co_name].append(found)
            gc.freeze()
            self._judge_all()
        finally:
            for pid in self._running:
                os.killpg(pid, signal.SIGKILL)
            for server in self._servers:
                server.start()
                server.remove()
        return True

    def _judge_all(self) -> None:
        slots = list(range(self._plan.jobs))
        while self._waiting or self._running:
            while self._waiting and slots:
                case, slot = self._waiting.pop(), slots.pop()
                self._running[self._fork(case, slot)] = case, slot, time.monotonic() + self._plan.timeout
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                time.sleep(0.01)
                for late in [pid for pid, (_, _, end) in self._running.items() if time.monotonic() > end]:
                    os.killpg(late, signal.SIGKILL)
                continue
            case, slot, _ = self._running.pop(pid)
            _kill_group(pid)
            slots.append(slot)
            if self._servers:
                self._servers[slot].start()
            code = os.waitstatus_to_exitcode(status)
            self._tell(
                case, _VERDICTS.get(code, "not tried"), self._read_failed(pid), slot
            )  # Killed: it took too long.

    def _tell(self, case: Case, verdict: Verdict, failed: str, slot: int) -> None:
        if verdict == "noticed" and not self._is_sound(failed, slot):
            self._waiting.append(
                Case(
                    number=case.number,
                    file=case.file,
                    line=case.line,
                    source=case.source,
                    tests=[test for test in case.tests if test != failed],
                )
            )
            return
        print(case.number, verdict, failed, sep="\t", file=sys.__stdout__, flush=True)

    def _is_sound(self, test: str, slot: int) -> bool:
        if test not in self._sound:
            pid = self._fork(Case(number=0, file="", line=0, source="", tests=[test]), slot)
            self._sound[test] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            _kill_group(pid)
            self._read_failed(pid)
        return self._sound[test]

    # In a fork.

    def _fork(self, case: Case, slot: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 3
        try:
            os.setsid()
            silent = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(silent, stream)
            if self._servers:
                self._servers[slot].keep()
                databases.PostgresServer = lambda: self._servers[slot]  # type: ignore[assignment]
            if not case.source or _put_mistake(case, self._functions):
                code = self._run([self._items[test] for test in case.tests if test in self._items])
        finally:
            os._exit(code)

    def _run(self, items: list[pytest.Item]) -> int:
        if not items:
            return 0
        session = items[0].session
        reports: list[pytest.TestReport] = []

        class Reports:
            def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                if report.failed:
                    reports.append(report)

        session.config.pluginmanager.register(Reports())
        for item, after in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if reports:
                _failed_file(os.getpid()).write_text(item.nodeid, "utf-8")
                return 2 if "Timeout (>" in reports[0].longreprtext else 1
        return 0

    def _read_failed(self, pid: int) -> str:
        file = _failed_file(pid)
        failed = file.read_text("utf-8") if file.exists() else ""
        file.unlink(missing_ok=True)
        return failed


def _failed_file(pid: int) -> Path:
    return Path(sys.argv[1]).parent / f"failed-{pid}"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _put_mistake(case: Case, functions: Functions) -> bool:
    """Exchange the code of a function; False where there is none, or where its defaults are what is changed."""
    before = list(_find_functions(ast.parse(Path(case.file).read_text("utf-8"))))
    after = list(_find_functions(ast.parse(case.source)))
    places = [place for place, node in enumerate(before) if node.lineno <= case.line <= (node.end_lineno or 0)]
    if len(before) != len(after) or len(places) != 1:
        return False
    (place,) = places
    if ast.dump(before[place].args) != ast.dump(after[place].args):
        return False
    new = list(_find_code(compile(case.source, case.file, "exec")))[place]
    found = functions.get((case.file, _first_line(before[place]), new.co_name), [])
    if not found or any(item.__code__.co_freevars != new.co_freevars for item in found):
        return False
    for item in found:
        item.__code__ = new
    return True


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _find_functions(tree: ast.AST) -> Iterator[Function]:
    """The functions that are in no other function, in the order of the file."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from _find_functions(child)


def _find_code(code: CodeType) -> Iterator[CodeType]:
    """The code of the functions that are in no other function, in the order of the file."""
    for constant in code.co_consts:
        if not isinstance(constant, CodeType) or constant.co_name.startswith("<"):
            continue
        if constant.co_flags & 0x2:  # Of a function: a class has a namespace.
            yield constant
        else:
            yield from _find_code(constant)


def _first_line(function: Function) -> int:
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def main() -> None:
    """Judge the plan in the file that is named."""
    plan: Plan = pickle.loads(Path(sys.argv[1]).read_bytes())
    command = [*plan.folders, "-q", "-n", "0", "-s", "-m", plan.markers, "-p", "no:cacheprovider"]
    command += ["--timeout", str(plan.test_timeout), "--basetemp", str(Path(sys.argv[1]).parent / "tmp")]
    sys.exit(pytest.main([*command, "-W", "ignore"], plugins=[Forks(plan)]))


if __name__ == "__main__":
    main()
