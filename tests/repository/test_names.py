"""One name, one thing: a name says the same wherever it is read, and what nobody reads is gone."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/handrail"

SAME_CONCEPT = {
    "Fits": "the contexts of a tool class, sync and async",
    "HandrailMiddleware": "the middleware of two hosts that both call it so",
    "LLMFunctionTool": "the class of the toolcall document, and the one that the facade offers",
    "LLMFunctionToolGroup": "the same group, sync and async",
}
"""Names that two modules define on purpose."""

CALLED_BY_OTHERS = {
    "before_tool_callback": "Google ADK",
    "connect_tcp": "httpcore",
    "do_POST": "http.server",
    "downgrade": "Alembic",
    "flatten_mapping": "PyYAML",
    "generator_schema": "Pydantic",
    "get_mcp_tools": "OpenAI Agents SDK",
    "get_request": "socketserver",
    "handle_error": "socketserver",
    "handle_starttag": "html.parser",
    "is_subclass_schema": "Pydantic",
    "on_enter": "LiveKit",
    "parse_known_args": "argparse",
    "_repr_html_": "IPython",
    "redirect_request": "urllib",
    "shutdown_request": "socketserver",
    "pytest_addoption": "pytest",
}
"""What a library calls by its name, and which one."""

PLAIN_DECORATORS = {
    *("asynccontextmanager", "cache", "cached_property", "classmethod", "contextmanager", "dataclass", "final"),
    *("lru_cache", "overload", "override", "property", "runtime_checkable", "setter", "staticmethod"),
}
"""They change a function and register it nowhere."""


@cache
def modules() -> list[tuple[str, ast.Module]]:
    paths = sorted(SOURCE.rglob("*.py"))
    return [(str(path.relative_to(SOURCE)), ast.parse(path.read_text("utf-8"))) for path in paths]


def find_types(tree: ast.Module) -> Iterator[str]:
    """The classes and type aliases that a module defines for others; type variables are no types."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            is_variable = isinstance(node.value, ast.Call)
            if isinstance(target, ast.Name) and re.fullmatch("[A-Z]\\w*[a-z]\\w*", target.id) and not is_variable:
                yield target.id


def test_no_two_modules_define_types_with_the_same_name() -> None:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in modules():
        for name in find_types(tree):
            if not name.startswith("_"):
                found[name].append(path)
    shared = {name: paths for name, paths in found.items() if len(paths) > 1}

    assert {name: paths for name, paths in shared.items() if name not in SAME_CONCEPT} == {}
    assert sorted(SAME_CONCEPT.keys() - shared.keys()) == [], "is unique by now: take it off the list"


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def read_names(node: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[str]:
    """The names that are read. A text counts word by word, as names may be looked up by it.

    Docstrings, imports and `__all__` name a thing without using it, and so does its own body.
    """
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            inside = (*inside, node.name)
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
            if name not in inside:
                yield name
        case ast.Constant(value=str(text)):
            yield from re.findall(r"[A-Za-z_]\w*", text)
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        yield from read_names(child, inside)


def is_registered(node: Definition) -> bool:
    """Whether a decorator hands it to somebody who calls it: a validator, a command, a fixture."""
    names = [ast.unparse(item.func if isinstance(item, ast.Call) else item) for item in node.decorator_list]
    return any(name.rpartition(".")[2] not in PLAIN_DECORATORS for name in names)


def test_every_function_class_and_method_is_used_by_the_product_or_shown_to_its_users() -> None:
    """A test alone is no user: what only tests call is documented, or it goes."""
    used: set[str] = set()
    defined: dict[str, str] = {}
    for path, tree in modules():
        used.update(read_names(tree))
        for node in ast.walk(tree):
            if isinstance(node, Definition) and not is_registered(node) and not node.name.startswith("__"):
                defined[node.name] = path
    programs = [*(ROOT / "examples").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    for path in (path for path in programs if ".venv" not in path.parts):  # benchmarks/run makes an environment there.
        used.update(read_names(ast.parse(path.read_text("utf-8"))))
    for path in [ROOT / "pyproject.toml", ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        used.update(re.findall(r"[A-Za-z_]\w*", path.read_text("utf-8")))

    unused = {name: path for name, path in defined.items() if name not in used}
    assert {name: path for name, path in unused.items() if name not in CALLED_BY_OTHERS} == {}
    assert sorted(CALLED_BY_OTHERS.keys() - unused.keys()) == [], "is used by now: take it off the list"


def find_public_modules() -> list[str]:
    """Modules and packages that list what they offer to users."""
    return [
        ".".join(("handrail", *Path(path).with_suffix("").parts)).removesuffix(".__init__")
        for path, tree in modules()
        if "__all__" in {target.id for node in tree.body for target in find_targets(node)}
    ]


def find_targets(node: ast.stmt) -> Iterator[ast.Name]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return (target for target in targets if isinstance(target, ast.Name))


def find_public_names(public: list[str]) -> dict[str, str]:
    """Where each public type and function is defined, as `module.name`, and the package that offers it to users."""
    found: dict[str, str] = {}
    for package in (import_module(name) for name in public if (SOURCE.parent / name.replace(".", "/")).is_dir()):
        for name in package.__all__:
            found.setdefault(f"{getattr(getattr(package, name), '__module__', '')}.{name}", package.__name__)
    return found


def test_tests_and_benchmarks_import_what_is_public_from_where_users_import_it() -> None:
    offering = find_public_modules()
    public = find_public_names(offering)
    paths = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    private = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name.name} is in {public[f'{node.module}.{name.name}']}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module not in offering
        for name in node.names
        if f"{node.module}.{name.name}" in public
    ]

    assert len(public) > 200
    assert private == []


def test_types_and_names_that_are_read_are_found() -> None:
    types = "class One: ...\nTwo = int | str\nAnyT = TypeVar('AnyT')\nMAX = 3\nfour: int = 4\nFive: TypeAlias = int"
    assert list(find_types(ast.parse(types))) == ["One", "Two", "Five"]
    assert list(find_types(ast.parse("if True:\n    class One: ..."))) == []
    reading = "import one\n__all__ = ['two']\ndef three():\n    'four'\n    three(five.six, seven=getattr(x, 'eight'))"
    assert set(read_names(ast.parse(reading))) == {"five", "six", "seven", "getattr", "x", "eight"}
