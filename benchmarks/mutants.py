"""Do the tests notice mistakes? `python -m benchmarks.mutants [--sample N] [--seed N] [PART ...]`

Puts one realistic mistake at a time into the package (a condition inverted, `and` for `or`, a check dropped, a boundary
moved, a default turned) and runs the tests of the part's own folders that reach its line, until one fails: in a fork of
a process that has them collected, and, if none fails there, in a process of its own with a changed copy of the package.
What none notices is printed; what is known to change nothing is in `mutants.toml`, each with its reason. Exits with 1
below 95 %. The published figures, with sample, seed and date, are in docs/reliability.md.
"""

import argparse
import ast
import compileall
import copy
import itertools
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

from coverage import CoverageData

from benchmarks.mutant_forks import Case, Plan

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "handrail"
MACHINE = ("state_machine", "confirmation", "speech", "tool_outputs", "call_ending")
PARTS = {
    "execute": (["execute"], ["tests/execute", "tests/durable"]),
    "authorize": (["authorize"], ["tests/authorize"]),
    "store": (["store"], ["tests/store", "tests/durable", "tests/chat/test_session_store.py"]),
    "guide": (
        ["guide/verdicts.py", "guide/parameters.py", "guide/confirmation.py", "guide/reply_checks.py"],
        ["tests/guide"],
    ),
    "phone": ([f"phone/{name}.py" for name in MACHINE], ["tests/phone"]),
}
"""What is changed, and whose tests must notice it."""
MARKERS = "not slow and not model and not browser"
NEEDS_POSTGRES = ("store",)
"""Parts with code that only runs on Postgres."""
WANTED = 0.95
MAX_TESTS = 1_000
_SIZE = 200
"""Lines: how many a test reaches anyway."""
TIMEOUT = 600
TEST_TIMEOUT = 60
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_UNTOLD = ("log", "super", "warnings")
"""What is called for a reader of logs: tests need not notice that it is missing."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One mistake in one file."""

    path: str
    line: int
    places: tuple[tuple[int, int], ...]
    """First and last line of the mistake, of its statement, and of its function: where tests may reach it."""
    function: str
    is_cached: bool
    """Whether the function runs once for many tests: only the first of them reaches its lines."""
    mistake: str
    before: str
    """The text that is changed, and the first line of its statement."""
    source: str
    """The whole file with the mistake in it."""

    @property
    def name(self) -> str:
        """What it is called in `mutants.toml`: by its text, because lines move."""
        return f"{self.path} {self.function}: {self.mistake}: {self.before}"


def find_mutants(path: Path) -> Iterator[Mutant]:
    """Every mistake that can be put into a file."""
    tree = ast.parse(path.read_text("utf-8"))
    seen: Counter[str] = Counter()
    for place, (node, statement, function) in enumerate(_walk(tree)):
        for mistake, change in _find_mistakes(node):
            changed = copy.deepcopy(tree)
            change(next(itertools.islice(_walk(changed), place, None))[0])
            before = _quote(node) if node is statement else f"{_quote(node)} in {_quote(statement)}"
            seen[text := f"{function.name} {mistake} {before}"] += 1
            yield Mutant(
                path=str(path.relative_to(PACKAGE)),
                line=_find_lines(node)[0],
                places=tuple(_find_lines(item) for item in (node, statement, function)),
                function=function.name,
                is_cached=any("cache" in _quote(decorator) for decorator in function.decorator_list),
                mistake=mistake,
                before=before if seen[text] == 1 else f"{before} ({seen[text]})",
                source=ast.unparse(ast.fix_missing_locations(changed)),
            )


def _quote(node: ast.AST) -> str:
    return ast.unparse(node).strip().splitlines()[0][:120]


def _walk(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The nodes inside functions, each with its statement and its function.

    Without annotations, decorators, assertions and representations.
    """
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.name in ("__repr__", "__str__"):
            continue
        arguments = function.args
        waiting: list[tuple[ast.AST, ast.AST]] = [(part, part) for part in function.body]
        waiting += [(item, function) for item in (*arguments.defaults, *filter(None, arguments.kw_defaults))]
        while waiting:
            found, statement = waiting.pop()
            if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef | ast.Assert):
                continue
            if isinstance(found, ast.keyword) and found.arg == "strict":  # Of `zip`: an assertion.
                continue
            if isinstance(found, ast.AnnAssign):
                waiting += [(found.value, found)] if found.value else []
                continue
            if _is_for_logs(found):
                continue
            yield found, statement, function
            is_block = isinstance(found, ast.stmt) and hasattr(found, "body")
            waiting += [
                (child, child if is_block or isinstance(child, ast.stmt) else statement)
                for child in ast.iter_child_nodes(found)
            ]


def _find_lines(node: ast.AST) -> tuple[int, int]:
    if isinstance(node, ast.comprehension):
        node = node.target
    first = getattr(node, "lineno", 0)
    return first, getattr(node, "end_lineno", None) or first


def _find_mistakes(node: ast.AST) -> Iterator[tuple[str, "partial[None]"]]:
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) if not _is_name(test, "TYPE_CHECKING"):
            yield "condition inverted", partial(_invert)
        case ast.BoolOp(op=ast.And()):
            yield "`or` for `and`", partial(_set_operator, to=ast.Or())
        case ast.BoolOp(op=ast.Or()):
            yield "`and` for `or`", partial(_set_operator, to=ast.And())
        case ast.Compare(ops=[op]) if type(op) in _OPPOSITES:
            yield "comparison changed", partial(_compare, to=_OPPOSITES[type(op)]())
        case ast.Constant(value=bool(value)):
            yield "turned", partial(_set_value, to=not value)
        case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())) if not _is_untold(node):
            yield "left out", partial(_drop)
        case ast.Raise() if node.exc is not None:
            yield "not raised", partial(_drop)
        case ast.comprehension(ifs=[_, *_]):
            yield "filter dropped", partial(_drop_filter)
        case _:
            pass


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_for_logs(node: ast.AST) -> bool:
    """Whether nothing but a line in the log depends on it: the line itself, and what only guards such lines."""
    if isinstance(node, ast.Expr):
        return _is_untold(node)
    return isinstance(node, ast.If) and not node.orelse and all(map(_is_untold, node.body))


def _is_untold(node: ast.AST) -> bool:
    return ast.unparse(node).removeprefix("await ").startswith(tuple(f"{name}." for name in _UNTOLD))


def _invert(node: ast.AST) -> None:
    assert isinstance(node, ast.If | ast.IfExp)
    node.test = ast.UnaryOp(op=ast.Not(), operand=node.test)


def _set_operator(node: ast.AST, to: ast.boolop) -> None:
    assert isinstance(node, ast.BoolOp)
    node.op = to


def _compare(node: ast.AST, to: ast.cmpop) -> None:
    assert isinstance(node, ast.Compare)
    node.ops = [to]


def _set_value(node: ast.AST, to: bool) -> None:
    assert isinstance(node, ast.Constant)
    node.value = to


def _drop_filter(node: ast.AST) -> None:
    assert isinstance(node, ast.comprehension)
    node.ifs = []


def _drop(node: ast.AST) -> None:
    """Make a statement do nothing, in its place."""
    assert isinstance(node, ast.Expr | ast.Raise)
    if isinstance(node, ast.Expr):
        node.value = ast.Constant(value=None)
    else:
        node.__class__ = ast.Expr  # pyright: ignore[reportAttributeAccessIssue]
        node.value = ast.Constant(value=None)  # pyright: ignore[reportAttributeAccessIssue]


def find_markers(part: str) -> str:
    """Which tests of a part are run."""
    return MARKERS if part in NEEDS_POSTGRES else f"{MARKERS} and not postgres"


def map_tests(part: str, work: Path) -> "Reached":
    """Which tests reach which line of which file."""
    paths, folders = PARTS[part]
    data_file = work / "coverage"
    command = [sys.executable, "-m", "pytest", *folders, "-q", "-n", "0", "-m", find_markers(part)]
    command += ["-p", "no:cacheprovider"]
    command += [f"--cov={PACKAGE}", "--cov-context=test", "--cov-report="]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**_environment(), "COVERAGE_FILE": str(data_file)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"the tests must pass before they can notice anything:\n{done.stdout[-3000:]}")
    data = CoverageData(str(data_file))
    data.read()
    sizes: Counter[str] = Counter()
    by_file: dict[str, dict[int, set[str]]] = {}
    for file in data.measured_files():
        path = (ROOT / file).relative_to(PACKAGE).as_posix()
        lines = {
            line: {test.split("|")[0] for test in tests if test}
            for line, tests in data.contexts_by_lineno(file).items()
        }
        for tests in lines.values():
            sizes.update(tests)
        if path.startswith(tuple(paths)):
            by_file[path] = lines
    return Reached(by_file, sizes)


@dataclass(frozen=True)
class Reached:
    """Which tests reach which line."""

    by_file: dict[str, dict[int, set[str]]]
    sizes: Counter[str]
    """How many lines each test reaches."""
    _near: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])

    def find_tests(self, mutant: Mutant) -> list[str]:
        """The tests that reach the mistake, those that are most about its file first, those on Postgres last.

        An expression inside a statement of several lines may have no line of its own, and a default belongs to all of
        its function: then those that reach the statement, or the function. What runs once (when it is imported, or
        because it is cached) matters to every test that reaches the file.
        """
        lines = self.by_file.get(mutant.path, {})
        every = (1, max(lines, default=0))
        for first, last in (every,) if mutant.is_cached else (*mutant.places, every):
            found = set[str]().union(*(lines.get(line, ()) for line in range(first, last + 1)))
            if found:
                near = self._count_near(mutant.path)
                return sorted(
                    found, key=lambda test: ("postgres" in test, -near[test] / (_SIZE + self.sizes[test]), test)
                )[:MAX_TESTS]
        return []

    def _count_near(self, path: str) -> Counter[str]:
        """How many lines each test reaches of the file and of its neighbours, as `approval_statements.py` of
        `approvals.py`."""
        stem = _get_stem(path)
        if stem not in self._near:
            self._near[stem] = Counter(
                test
                for file, lines in self.by_file.items()
                if _get_stem(file) == stem
                for tests in lines.values()
                for test in tests
            )
        return self._near[stem]


def _get_stem(path: str) -> str:
    return path.removesuffix(".py").partition("_")[0].rstrip("s")


def _environment(**more: str) -> dict[str, str]:
    # Bytecode is what makes a start cheap: it is written while the tests are mapped, and read for each mistake.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "HYPOTHESIS_PROFILE": "quick", **more}


class Copy:
    """A copy of the package that has one mistake at a time."""

    def __init__(self, folder: Path, markers: str) -> None:
        self._markers = markers
        self._tree = folder / "src"
        self._chosen = folder / "tests.txt"
        self._number = 0
        shutil.copytree(PACKAGE, self._tree / "handrail", ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(self._tree, quiet=1)

    def judge(self, mutant: Mutant, tests: list[str]) -> Literal["noticed", "stopped", "not noticed"]:
        """Whether one of the tests fails with the mistake in place, or had to be stopped."""
        file = self._tree / "handrail" / mutant.path
        whole = file.read_bytes()
        times = file.stat()
        file.write_text(mutant.source, "utf-8")
        self._number += 1
        os.utime(file, (self._number, self._number))  # Never the time of a version whose bytecode is there.
        try:
            return self._run(tests)
        finally:
            file.write_bytes(whole)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _run(self, tests: list[str]) -> Literal["noticed", "stopped", "not noticed"]:
        self._chosen.write_text("\n".join(tests), "utf-8")
        command = [sys.executable, "-W", "ignore", "-m", "pytest", f"@{self._chosen}", "-x", "-q", "-n", "0"]
        command += ["-m", self._markers, "-p", "no:cacheprovider", "--timeout", str(TEST_TIMEOUT)]
        command += ["-o", f"pythonpath={ROOT} {self._tree}"]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=_environment(PYTHONPATH=str(self._tree), PYTHONDONTWRITEBYTECODE="1"),
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:  # All of them together: none of them failed.
            return "not noticed"
        if done.returncode == 0:
            return "not noticed"
        return "stopped" if "Timeout (>" in done.stdout else "noticed"


def main() -> None:
    """Print what was not noticed, and the score of each part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; all unless given")
    parser.add_argument("--sample", type=int, help="how many mistakes of each part, chosen by the seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--match", default="", help="only mistakes whose name contains this text")
    parser.add_argument("--quick", action="store_true", help="ask no new process about what no test noticed in a fork")
    parser.add_argument("--list", action="store_true", help="only print the mistakes")
    options = parser.parse_args()
    known: dict[str, str] = tomllib.loads((ROOT / "benchmarks" / "mutants.toml").read_text("utf-8"))["equivalent"]
    is_good = True
    for part in options.parts or PARTS:
        chosen, every = choose_mutants(part, sample=options.sample, seed=options.seed)
        counted = [mutant for mutant in chosen if mutant.name not in known and options.match in mutant.name]
        if options.list:
            print(*(f"{mutant.line:>4} {mutant.name}" for mutant in counted), sep="\n")
            continue
        verdicts = judge_mutants(part, counted, jobs=options.jobs, is_quick=options.quick)
        noticed = verdicts["noticed"] + verdicts["stopped"]
        score = noticed / len(counted) if counted else 1.0
        is_good = is_good and score >= WANTED
        print(
            f"{part}: {noticed} of {len(counted)} noticed, {score:.1%} ({verdicts['stopped']} of them because a test "
            f"did not end; {len(chosen) - len(counted)} others change nothing; {every} possible; seed {options.seed})",
            flush=True,
        )
    sys.exit(0 if is_good else 1)


def choose_mutants(part: str, *, sample: int | None, seed: int) -> tuple[list[Mutant], int]:
    """The mistakes of a part, or a sample of them, and how many there are."""
    files = sorted(
        file
        for path in PARTS[part][0]
        for file in ([PACKAGE / path] if path.endswith(".py") else (PACKAGE / path).rglob("*.py"))
        if "migrations" not in file.parts
    )
    every = [mutant for file in files for mutant in find_mutants(file)]
    if sample is None or sample >= len(every):
        return every, len(every)
    return random.Random(seed).sample(every, sample), len(every)


def judge_mutants(part: str, mutants: list[Mutant], *, jobs: int, is_quick: bool) -> Counter[str]:
    """How many of them were noticed; those that were not are printed."""
    markers = find_markers(part)
    with tempfile.TemporaryDirectory() as folder:
        reached = map_tests(part, Path(folder))
        tests = [reached.find_tests(mutant) for mutant in mutants]
        verdicts = _judge_in_forks(part, mutants, tests, folder=Path(folder), jobs=jobs)
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(Path(folder) / str(number), markers))

        def judge(place: int) -> str:
            verdict = verdicts.get(place, "not noticed")
            if verdict in ("not noticed", "not tried") and tests[place] and not is_quick:
                copied = copies.get()
                try:
                    verdict = copied.judge(mutants[place], tests[place])
                finally:
                    copies.put(copied)
            if verdict != "noticed":
                mutant = mutants[place]
                print(f"{verdict} ({len(tests[place])} tests), line {mutant.line}: {mutant.name}", flush=True)
            return verdict

        with ThreadPoolExecutor(jobs) as pool:
            return Counter(pool.map(judge, range(len(mutants))))


def _judge_in_forks(
    part: str, mutants: list[Mutant], tests: list[list[str]], *, folder: Path, jobs: int
) -> dict[int, str]:
    """The verdicts by place; what is missing was not judged."""
    cases = [
        Case(
            number=place,
            file=str(PACKAGE / mutant.path),
            line=mutant.places[2][0],
            source=mutant.source,
            tests=tests[place],
        )
        for place, mutant in enumerate(mutants)
        if tests[place]
    ]
    plan = Plan(
        folders=PARTS[part][1],
        markers=find_markers(part),
        jobs=jobs,
        timeout=TIMEOUT,
        test_timeout=TEST_TIMEOUT,
        cases=cases,
    )
    (file := folder / "plan").write_bytes(pickle.dumps(plan))
    command = [sys.executable, "-m", "benchmarks.mutant_forks", str(file)]
    verdicts: dict[int, str] = {}
    with subprocess.Popen(command, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, text=True) as forks:
        assert forks.stdout is not None
        for line in forks.stdout:
            number, *said = line.split("\t")
            if number.isdigit():
                verdicts[int(number)] = said[0]
    return verdicts


if __name__ == "__main__":
    main()
