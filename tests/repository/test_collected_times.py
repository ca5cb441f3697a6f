"""No test depends on how long the suite takes: nothing reads a clock when tests are collected."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLOCKS = frozenset({"time", "monotonic", "perf_counter", "process_time", "now", "utcnow", "today", "time_ns"})
MODULES = frozenset({"time", "datetime", "date"})
FILES = sorted((ROOT / "tests").rglob("*.py"))


def find_clocks(node: ast.AST) -> Iterator[str]:
    """The clocks that are read when a module is imported: outside of functions, in decorators and in defaults."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        for part in (*node.decorator_list, *arguments.defaults, *filter(None, arguments.kw_defaults)):
            yield from find_clocks(part)
        return
    if isinstance(node, ast.Lambda):
        return
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) if module in MODULES and name in CLOCKS:
            yield f"line {node.lineno}: {ast.unparse(node)}"
        case ast.Call(func=ast.Name(id=name)) if name in CLOCKS:
            yield f"line {node.lineno}: {ast.unparse(node)}"
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        yield from find_clocks(child)


def test_no_test_reads_a_clock_when_it_is_collected() -> None:
    found = {
        str(file.relative_to(ROOT)): clocks
        for file in FILES
        if (clocks := [*find_clocks(ast.parse(file.read_text("utf-8")))])
    }

    assert found == {}


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("SOON = time.time() + 600", True),
        ("@pytest.mark.parametrize('at', [time.time() + 600])\ndef test_a(at): ...", True),
        ("def wait(until=monotonic()): ...", True),
        ("class A:\n    made = datetime.now(UTC)", True),
        ("def test_a():\n    assert time.time()", False),
        ("later = lambda: time.time() + 600", False),
    ],
)
def test_a_clock_that_is_read_at_import_would_be_noticed(source: str, is_found: bool) -> None:
    assert bool([*find_clocks(ast.parse(source))]) is is_found
