"""The tree of exceptions is the one that its module draws, and nothing private gets into a log."""

import ast
import builtins
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from handrail import Failure, ToolContext, ToolResult, build_tool, errors, tool
from handrail.errors import (
    ConfigError,
    DuplicateToolError,
    HandrailError,
    InvalidArgumentsError,
    MissingExtraError,
    PermissionDeniedError,
    ToolArgsParseError,
    ToolBuildError,
    ToolDefinitionError,
    ToolError,
    ToolExecutionError,
    ToolNotFoundError,
    shorten,
)

SECRET = "4111-1111-1111-1111"

EXAMPLES = [
    HandrailError("text"),
    ToolError("text", code="no_stock", retryable=True),
    ToolNotFoundError("pai", similar=["pay"]),
    ToolArgsParseError("text"),
    InvalidArgumentsError("text", places=["items[0].price"]),
    PermissionDeniedError("text"),
    ToolExecutionError(),
    ConfigError("text"),
    ToolDefinitionError("text"),
    DuplicateToolError("text"),
    ToolBuildError("text", tenant_id="acme", details={"number": SECRET}),
    MissingExtraError("openai", extra="openai"),
]


def drawn() -> list[tuple[str, str, str]]:
    """The lines of the drawing: depth, name, and what is said about it."""
    found = re.findall(r"(?m)^ {4}([│├└─ ]*)(\w+)(.*)$", (errors.__doc__ or "").split("An error has")[0])
    return [(str(len(depth) // 4), name, rest) for depth, name, rest in found]


def test_the_drawing_is_the_tree() -> None:
    parents: dict[int, str] = {}
    drawing: dict[str, str] = {}
    for depth, name, _ in drawn():
        parents[int(depth)] = name
        drawing[name] = parents.get(int(depth) - 1, "Exception")

    real = {name: one.__bases__[0].__name__ for name, one in vars(errors).items() if inspect.isclass(one)}

    assert drawing == {name: base for name, base in real.items() if issubclass(getattr(errors, name), Exception)}


def test_an_exception_that_two_packages_know_is_in_the_tree() -> None:
    root = Path(errors.__file__).parent
    trees = {path.relative_to(root): ast.parse(path.read_text("utf-8")) for path in sorted(root.rglob("*.py"))}
    own = {
        node.name: path.parts[0]
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and path.parts[0] not in ("errors.py", "testing")
        and node.name.endswith("Error")
    }
    shared = [
        (alias.name, str(path))
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("handrail.")
        for alias in node.names
        if own.get(alias.name, path.parts[0]) != path.parts[0] and node.module != "handrail.errors"
    ]
    assert own, "nothing was found: the test is wrong"
    assert shared == []


def test_the_drawing_names_the_codes_and_the_second_bases() -> None:
    told = {name: rest for _, name, rest in drawn()}
    for name, rest in told.items():
        kind: Any = getattr(errors, name)
        second = [base.__name__ for base in kind.__bases__[1:]]
        assert re.findall(r"\(also an? (\w+)\)", rest) == second, name
        if issubclass(kind, ToolError) and kind is not ToolError:
            assert rest.split()[0] == kind.code


@pytest.mark.proves("PH-54")
def test_the_codes_that_the_model_reads_are_a_closed_set() -> None:
    assert {
        "tool_not_found",
        "tool_args_parse_error",
        "invalid_arguments",
        "permission_denied",
        "approval_required",
        "refused_by_hook",
        "rate_limited",
        "unavailable",
        "in_progress",
        "duplicate_call",
        "tool_timeout",
        "cancelled",
        "outcome_unknown",
        "tool_execution_failed",
    } == errors.CODES
    assert {
        var.code for var in vars(errors).values() if inspect.isclass(var) and issubclass(var, ToolError)
    } <= errors.CODES
    assert ToolNotFoundError("x").code == "tool_not_found"
    assert ToolArgsParseError("x").code == "tool_args_parse_error"
    assert ToolExecutionError().code == "tool_execution_failed"
    assert ToolBuildError("x").code == "tool_build_error"


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_a_trip_through_pickle(error: HandrailError) -> None:
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is type(error)
    assert (str(again), again.args, again.to_log_dict()) == (str(error), error.args, error.to_log_dict())


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.proves("PH-55")
def test_every_error_has_a_code_and_tells_a_log_its_type(error: HandrailError) -> None:
    told = error.to_log_dict()

    assert told["type"] == type(error).__name__
    assert told["code"] == error.code
    assert SECRET not in repr(told)


def test_an_unknown_tool_is_a_key_error_whose_text_can_be_read() -> None:
    error = ToolNotFoundError("pai", similar=["pay", "paint"])

    assert isinstance(error, KeyError)
    assert str(error) == "There is no tool named `pai`. Did you mean `pay` or `paint`?"
    assert error.tool_name == "pai"


def test_a_hostile_tool_name_is_shortened_for_the_model_and_for_the_log() -> None:
    error = ToolNotFoundError("\ud800\n" + "x" * 1_000_000)

    assert len(str(error).encode()) < 400
    assert len(str(error.to_log_dict()).encode()) < 400


def test_a_missing_extra_says_what_to_install() -> None:
    error = MissingExtraError("anthropic", extra="anthropic")

    assert isinstance(error, ImportError)
    assert str(error) == "`anthropic` is not installed. Install it with: pip install 'handrail[anthropic]'"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ToolArgsParseError(), ValueError),
        (InvalidArgumentsError(), ValueError),
        (PermissionDeniedError(), PermissionError),
        (ToolDefinitionError(), TypeError),
    ],
)
def test_what_is_also_a_builtin_error_is_caught_as_one(error: Exception, kind: type[Exception]) -> None:
    assert isinstance(error, kind)
    assert kind.__name__ in vars(builtins)


ARGUMENTS = {"type": "object", "properties": {"card": {"type": "integer"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    "text",
    [
        f'{{"card": "{SECRET}"}}',
        f'{{"card": 1, "note": "{SECRET}"}}',
        f'{{"card": [{{"a": "{SECRET}"}}]}}',
        f'{{"card": "{SECRET}"',
        f'{{"card": "{SECRET}", "card": "{SECRET}"}}',
        '{"card": 4111111111111111e999}',
        f'"{SECRET}"',
    ],
)
@pytest.mark.parametrize("kind", ["function", "raw"])
@pytest.mark.proves("PH-55")
def test_the_log_of_refused_arguments_holds_none_of_their_values(text: str, kind: str) -> None:
    @tool
    def pay(card: int) -> str:
        return ""

    raw = build_tool({"name": "pay", "input_schema": ARGUMENTS, "execute": lambda payload: ""})

    with pytest.raises(ToolError) as caught:
        (pay if kind == "function" else raw).parse(text)

    logged = repr(caught.value.to_log_dict())
    assert SECRET not in logged
    assert "4111111111111111" not in logged


def test_what_a_handler_tells_the_model_about_its_arguments_stays_out_of_the_log() -> None:
    error = ToolError(f"The card {SECRET} is blocked.")

    assert error.to_log_dict() == {"type": "ToolError", "code": "tool_execution_failed", "retryable": False}


@pytest.mark.proves("PH-55")
def test_the_cause_is_chained_and_not_printed() -> None:
    @tool
    def search(query: str) -> str:
        return ""

    with pytest.raises(ToolArgsParseError) as caught:
        search.parse("{" + "[" * 100_000)

    assert isinstance(caught.value.__cause__, Exception)
    assert "Traceback" not in str(caught.value)
    assert "RecursionError" not in str(caught.value)


@pytest.mark.proves("PH-56")
async def test_a_handler_fails_in_its_own_words_by_raising_or_by_returning() -> None:
    @tool(read_only=True)
    async def raises(stock: int) -> str:
        raise ToolError(f"Only {stock} left.", code="no_stock", retryable=True)

    @tool(read_only=True)
    async def returns(stock: int) -> ToolResult:
        return ToolResult(error=Failure(code="no_stock", message=f"Only {stock} left.", retryable=True))

    context = ToolContext(session_id="s-1")
    texts = [(await item.execute({"stock": 2}, context)).for_model() for item in (raises, returns)]

    assert texts == [
        '{"ok":false,"error":"no_stock","tool":"raises","message":"Only 2 left."}',
        '{"ok":false,"error":"no_stock","tool":"returns","message":"Only 2 left."}',
    ]


def test_shortened_text_is_printable_and_bounded() -> None:
    assert shorten("abc") == "abc"
    assert shorten("a\x00\n\ud800b") == "a���b"
    assert shorten("x" * 100, 10) == "x" * 10 + "…"
