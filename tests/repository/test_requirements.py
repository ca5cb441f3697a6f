"""Promises and tests hold each other: every promise has its test, and every test that claims one claims a real one."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import get_args

import pytest

from tests.requirements import REQUIREMENTS, Requirement, Source, Subject

TESTS = Path(__file__).parents[1]

PREFIXES = {
    "HC": "harness",
    "PH": "phone",
    "GC": "guided",
    "TC": "toolcall",
    "GW": "gateway",
    "DU": "durable",
    "SV": "service",
}
DEFECTS = {"HC": 6, "PH": 22, "GC": 16, "TC": 6}
"""How many defects the project's list has for each document."""


# Markers are read from the source, not from collected tests, so that a part of the suite, or one worker of many, sees
# all of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One id, named by one marker."""

    id: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """What the `proves` markers of one file say."""

    claims: tuple[Claim, ...]
    lost: tuple[str, ...]
    """Places of markers that prove nothing: on no test, on a test that never runs, or with no plain ids."""


def read_markers(source: str, name: str) -> Markers:
    """The claims of the tests in a file, and the markers that claim nothing."""
    tree = ast.parse(source, filename=name)
    placed = list(markers_of_tests(tree.body))
    lost = [
        mark for mark in ast.walk(tree) if is_mark(mark, "proves") and not any(mark is call.func for call in placed)
    ]
    claims: list[Claim] = []
    for call in placed:
        ids = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        if not ids or call.keywords or len(ids) != len(call.args):
            lost.append(call)
        claims += [Claim(id=id_, place=f"{name}:{call.lineno}") for id_ in ids]
    places = sorted({node.lineno for node in lost if isinstance(node, ast.expr)})
    return Markers(claims=tuple(claims), lost=tuple(f"{name}:{line}" for line in places))


def markers_of_tests(body: Sequence[ast.stmt]) -> Iterator[ast.Call]:
    """The `proves` markers that some test carries: its own, its parameters', its class's, its module's."""
    shared = [value for statement in body if (value := shared_marks(statement)) is not None]
    if never_run(shared):
        return
    if has_tests(body):
        yield from proves(shared)
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if statement.name.startswith("test"):
                if not never_run(statement.decorator_list):
                    yield from proves(statement.decorator_list)
            case ast.ClassDef() if statement.name.startswith("Test") and has_tests(statement.body):
                if not never_run(statement.decorator_list):
                    yield from proves(statement.decorator_list)
                    yield from markers_of_tests(statement.body)
            case ast.If():
                yield from markers_of_tests(statement.body)
                yield from markers_of_tests(statement.orelse)
            case _:
                pass


def has_tests(body: Sequence[ast.stmt]) -> bool:
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
        for statement in body
        for node in ast.walk(statement)
    )


def shared_marks(statement: ast.stmt) -> ast.expr | None:
    match statement:
        case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
            return value
        case ast.AnnAssign(target=ast.Name(id="pytestmark"), value=value):
            return value
        case _:
            return None


def proves(expressions: Sequence[ast.expr]) -> Iterator[ast.Call]:
    for expression in expressions:
        for node in ast.walk(expression):
            if isinstance(node, ast.Call) and is_mark(node.func, "proves"):
                yield node


def never_run(expressions: Sequence[ast.expr]) -> bool:
    """A test that is always skipped, or expected to fail, is no proof."""
    heads = [
        head
        for expression in expressions
        for head in (expression.elts if isinstance(expression, ast.List | ast.Tuple) else [expression])
    ]
    marks = [head.func if isinstance(head, ast.Call) else head for head in heads]
    return any(is_mark(mark, "skip") or is_mark(mark, "xfail") for mark in marks)


def is_mark(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Attribute(attr=attr, value=ast.Attribute(attr="mark") | ast.Name(id="mark")):
            return attr == name
        case _:
            return False


def all_markers() -> list[Markers]:
    return [
        read_markers(path.read_text(encoding="utf-8"), path.relative_to(TESTS.parent).as_posix())
        for path in sorted(TESTS.rglob("test_*.py"))
    ]


def places_by_id() -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for markers in all_markers():
        for claim in markers.claims:
            places[claim.id].append(claim.place)
    return places


def listed(lines: Sequence[str]) -> str:
    return "".join(f"\n  {line}" for line in lines)


# The promises


def test_ids_are_unique_and_well_formed_and_in_order() -> None:
    repeated = [id_ for id_, times in Counter(r.id for r in REQUIREMENTS).items() if times > 1]
    assert not repeated, f"ids used more than once:{listed(repeated)}"
    malformed = [r.id for r in REQUIREMENTS if not re.fullmatch(r"(HC|PH|GC|TC|GW|DU|SV)-(\d\d|D[1-9]\d?)", r.id)]
    assert not malformed, f"an id is HC, PH, GC, TC, GW, DU or SV, then -01 or -D1:{listed(malformed)}"
    for prefix in PREFIXES:
        ordinary = [r.id for r in REQUIREMENTS if r.id.startswith(prefix) and "-D" not in r.id]
        assert ordinary == [f"{prefix}-{n:02}" for n in range(1, len(ordinary) + 1)], "numbers are not in order"


def test_every_known_defect_has_its_promise() -> None:
    for prefix, count in DEFECTS.items():
        have = [r.id for r in REQUIREMENTS if r.id.startswith(f"{prefix}-D")]
        assert have == [f"{prefix}-D{n}" for n in range(1, count + 1)]


def test_a_promise_says_its_source_its_subject_and_something_new() -> None:
    for r in REQUIREMENTS:
        assert r.source in get_args(Source), r
        assert r.source == ("defect" if "-D" in r.id else PREFIXES[r.id[:2]]), r
        assert r.open is None or r.open in get_args(Subject), r
        assert r.text.endswith("."), r
    repeated = [text for text, times in Counter(r.text for r in REQUIREMENTS).items() if times > 1]
    assert not repeated, f"promised twice:{listed(repeated)}"


# The tie


def test_every_marker_names_promises_that_exist() -> None:
    known = {r.id for r in REQUIREMENTS}
    unknown = [f"{id_}  {place}" for id_, places in places_by_id().items() if id_ not in known for place in places]
    assert not unknown, f"no such promise in tests/requirements.py:{listed(unknown)}"


def test_every_marker_is_on_a_test_that_runs() -> None:
    lost = [place for markers in all_markers() for place in markers.lost]
    assert not lost, (
        'put `@pytest.mark.proves("…")`, with its ids written out, on a test, a class of tests or `pytestmark`; '
        f"these prove nothing:{listed(lost)}"
    )


def test_every_requirement_is_proved() -> None:
    proved = places_by_id()
    missing = [f"{r.id}  {r.text}" for r in REQUIREMENTS if r.open is None and r.id not in proved]
    closed = sum(r.open is None for r in REQUIREMENTS)
    assert not missing, (
        f'{len(missing)} of {closed} promises have no test with `@pytest.mark.proves("<id>")`:{listed(missing)}'
    )


def test_no_open_requirement_is_claimed() -> None:
    proved = places_by_id()
    early = [f"{r.id}  {', '.join(proved[r.id])}" for r in REQUIREMENTS if r.open is not None and r.id in proved]
    assert not early, f"close it: remove open= from these in tests/requirements.py, or the marker:{listed(early)}"


# The reader of markers


def claimed(source: str) -> set[str]:
    return {claim.id for claim in read_markers(dedent(source), "test_x.py").claims}


def lost(source: str) -> tuple[str, ...]:
    return read_markers(dedent(source), "test_x.py").lost


def test_markers_are_read_from_functions_classes_modules_and_parameters() -> None:
    source = """
        pytestmark = [pytest.mark.slow, pytest.mark.proves("HC-01")]

        @pytest.mark.proves("HC-02", "HC-03")
        def test_one(): ...

        @mark.proves("HC-04")
        async def test_two(): ...

        @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.proves("HC-05"))])
        def test_three(x): ...

        @pytest.mark.proves("HC-06")
        class TestFour:
            pytestmark = pytest.mark.proves("HC-07")

            @pytest.mark.proves("HC-08")
            def test_five(self): ...

        if sys.version_info >= (3, 12):
            @pytest.mark.proves("HC-09")
            def test_six(): ...
    """
    assert claimed(source) == {f"HC-0{n}" for n in range(1, 10)}
    assert lost(source) == ()


@pytest.mark.parametrize(
    "source",
    [
        pytest.param('@pytest.mark.proves("HC-01")\ndef helper(): ...', id="a helper"),
        pytest.param('@pytest.mark.proves("HC-01")\nclass TestNothing: ...', id="a class without tests"),
        pytest.param('pytestmark = pytest.mark.proves("HC-01")', id="a module without tests"),
        pytest.param('@pytest.mark.skip\n@pytest.mark.proves("HC-01")\ndef test_x(): ...', id="always skipped"),
        pytest.param('@pytest.mark.xfail()\n@pytest.mark.proves("HC-01")\ndef test_x(): ...', id="expected to fail"),
    ],
)
def test_a_marker_on_no_running_test_claims_nothing_and_is_reported(source: str) -> None:
    assert claimed(source) == set()
    assert len(lost(source)) == 1


@pytest.mark.parametrize(
    "marker",
    ["@pytest.mark.proves", "@pytest.mark.proves()", "@pytest.mark.proves(*IDS)", '@pytest.mark.proves(ids=["HC-01"])'],
)
def test_a_marker_whose_ids_cannot_be_read_is_reported(marker: str) -> None:
    assert lost(f"{marker}\ndef test_x(): ...") == ("test_x.py:1",)


def test_an_alias_of_the_marker_is_reported() -> None:
    assert lost('proves = pytest.mark.proves\n\n@proves("HC-01")\ndef test_x(): ...') == ("test_x.py:1",)


def test_a_requirement_is_open_or_not() -> None:
    assert Requirement("HC-01", "harness", "A text.").open is None
    assert Requirement("HC-01", "harness", "A text.", open="phone").open == "phone"
