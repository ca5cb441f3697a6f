"""Do the tests notice mistakes? `python -m benchmarks.mutants [--sample N] [--seed N] [PART ...]`

Puts one realistic mistake at a time into a copy of the package (a condition inverted, `and` for `or`, a check dropped,
a boundary moved, a default turned) and runs the tests of the part's own folder that reach its line. What none notices
is printed; what is known to change nothing is in `mutants.toml`, each with its reason. Exits with 1 below 95 %.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from coverage import CoverageData

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "handrail"
PARTS = {
    "execute": (["execute"], ["tests/execute"]),
    "authorize": (["authorize"], ["tests/authorize"]),
    "store": (["store"], ["tests/store"]),
    "guide": (["guide/verdicts.py", "guide/confirmation.py", "guide/claims.py"], ["tests/guide"]),
    "phone": (["phone/machine.py", "phone/confirmation.py"], ["tests/phone"]),
}
"""What is changed, and whose tests must notice it."""
MARKERS = "not slow and not model and not postgres and not browser"
WANTED = 0.95
MAX_TESTS = 300
TIMEOUT = 240
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
    mistake: str
    before: str
    source: str
    """The whole file with the mistake in it."""

    @property
    def name(self) -> str:
        """What it is called in `mutants.toml`: by its text, because lines move."""
        return f"{self.path}: {self.mistake}: {self.before}"


def find_mutants(path: Path) -> Iterator[Mutant]:
    """Every mistake that can be put into a file."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = list(_walk(tree))
    for place, node in enumerate(nodes):
        for mistake, change in _find_mistakes(node):
            changed = copy.deepcopy(tree)
            change(list(_walk(changed))[place])
            yield Mutant(
                path=str(path.relative_to(PACKAGE)),
                line=getattr(node, "lineno", 0),
                mistake=mistake,
                before=ast.unparse(node).splitlines()[0][:120],
                source=ast.unparse(ast.fix_missing_locations(changed)),
            )


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes inside functions, without annotations, decorators and representations."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in ("__repr__", "__str__"):
            waiting: list[ast.AST] = [*node.body, *node.args.defaults, *filter(None, node.args.kw_defaults)]
            while waiting:
                found = waiting.pop()
                if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef | ast.Assert | ast.AnnAssign):
                    waiting += [found.value] if isinstance(found, ast.AnnAssign) and found.value else []
                    continue
                yield found
                waiting += ast.iter_child_nodes(found)


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
        case _:
            pass


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


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


def _drop(node: ast.AST) -> None:
    """Make a statement do nothing, in its place."""
    assert isinstance(node, ast.Expr | ast.Raise)
    if isinstance(node, ast.Expr):
        node.value = ast.Constant(value=None)
    else:
        node.__class__ = ast.Expr  # pyright: ignore[reportAttributeAccessIssue]
        node.value = ast.Constant(value=None)  # pyright: ignore[reportAttributeAccessIssue]


def map_tests(folders: list[str], paths: list[str], work: Path) -> dict[str, dict[int, list[str]]]:
    """Which tests reach which line of which file; those that reach the fewest lines first."""
    data_file = work / "coverage"
    command = [sys.executable, "-m", "pytest", *folders, "-q", "-n", "2", "-m", MARKERS, "-p", "no:cacheprovider"]
    command += [f"--cov={PACKAGE}", "--cov-context=test", "--cov-report="]
    environment = {**os.environ, "COVERAGE_FILE": str(data_file), "HYPOTHESIS_PROFILE": "quick"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the tests must pass before they can notice anything:\n{done.stdout[-3000:]}")
    data = CoverageData(str(data_file))
    data.read()
    by_file: dict[str, dict[int, list[str]]] = {}
    sizes: dict[str, int] = {}
    for file in data.measured_files():
        for tests in data.contexts_by_lineno(file).values():
            for test in tests:
                sizes[test] = sizes.get(test, 0) + 1
    for file in data.measured_files():
        path = (ROOT / file).relative_to(PACKAGE).as_posix()
        if path.startswith(tuple(paths)):
            by_file[path] = {
                line: sorted(
                    {test.split("|")[0] for test in tests if test}, key=lambda test: sizes.get(f"{test}|run", 0)
                )
                for line, tests in data.contexts_by_lineno(file).items()
            }
    return by_file


def is_noticed(mutant: Mutant, tests: list[str], work: Path) -> bool:
    """Whether one of the tests fails, or does not end, with the mistake in place."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        tree = Path(folder) / "src"
        shutil.copytree(PACKAGE, tree / "handrail", ignore=shutil.ignore_patterns("__pycache__"))
        (tree / "handrail" / mutant.path).write_text(mutant.source, "utf-8")
        chosen = Path(folder) / "tests.txt"
        chosen.write_text("\n".join(tests[:MAX_TESTS]), "utf-8")
        command = [sys.executable, "-W", "ignore", "-m", "pytest", f"@{chosen}", "-x", "-q", "-n", "0", "-m", MARKERS]
        command += ["-p", "no:cacheprovider", "--timeout", "60", "-o", f"pythonpath={ROOT} {tree}"]
        environment = {**os.environ, "PYTHONPATH": str(tree), "HYPOTHESIS_PROFILE": "quick"}
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            return True
        return done.returncode != 0


def main() -> None:
    """Print what was not noticed, and the score of each part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; all unless given")
    parser.add_argument("--sample", type=int, help="how many mistakes of each part, chosen by the seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    known: dict[str, str] = tomllib.loads((ROOT / "benchmarks" / "mutants.toml").read_text("utf-8"))["equivalent"]
    is_good = True
    for part in options.parts or PARTS:
        paths, folders = PARTS[part]
        files = sorted(
            file
            for path in paths
            for file in ([PACKAGE / path] if path.endswith(".py") else (PACKAGE / path).rglob("*.py"))
        )
        mutants = [mutant for file in files if "migrations" not in file.parts for mutant in find_mutants(file)]
        every = len(mutants)
        if options.sample is not None and options.sample < every:
            mutants = random.Random(options.seed).sample(mutants, options.sample)
        counted = [mutant for mutant in mutants if mutant.name not in known]
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
            work = Path(folder)
            reached = map_tests(folders, paths, work)

            def judge(mutant: Mutant) -> bool:
                tests = reached.get(mutant.path, {}).get(mutant.line, [])  # noqa: B023  # used in this round only
                noticed = bool(tests) and is_noticed(mutant, tests, work)  # noqa: B023
                if not noticed:
                    where = f"src/handrail/{mutant.path}:{mutant.line}"
                    print(f"not noticed ({len(tests)} tests): {where}: {mutant.mistake}: {mutant.before}", flush=True)
                return noticed

            noticed = sum(pool.map(judge, counted))
        score = noticed / len(counted) if counted else 1.0
        is_good = is_good and score >= WANTED
        print(
            f"{part}: {noticed} of {len(counted)} noticed, {score:.1%} "
            f"({len(mutants) - len(counted)} that change nothing; {every} possible)",
            flush=True,
        )
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
