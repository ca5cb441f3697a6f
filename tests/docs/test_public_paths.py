"""Everything that the README and the docs import is public: in the `__all__` of the module that they import it from."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.test_snippets import find_snippets

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def find_private_names(page: Path) -> list[str]:
    """The names that a page imports from Handrail and that no `__all__` lists."""
    private: list[str] = []
    for snippet in find_snippets(page):
        for node in ast.walk(ast.parse(snippet.source)):
            if isinstance(node, ast.Import):
                private += [alias.name for alias in node.names if alias.name.partition(".")[0] == "handrail"]
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "handrail":
                public = getattr(import_module(node.module or ""), "__all__", ())
                private += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in public]
    return private


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_imports_only_public_names(page: Path) -> None:
    assert find_private_names(page) == []


@pytest.mark.parametrize(
    ("source", "private"),
    [
        ("from handrail import Executor, tool", []),
        ("from handrail.core.redact import Redactor", ["handrail.core.redact.Redactor"]),
        ("from handrail.chat.turn import TurnState", ["handrail.chat.turn.TurnState"]),
        ("import handrail.core.redact", ["handrail.core.redact"]),
    ],
)
def test_a_private_name_is_noticed(source: str, private: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```python\n{source}\n```\n")
    assert find_private_names(page) == private


def test_every_public_name_of_a_package_exists() -> None:
    for package in ("handrail", "core", "authorize", "execute", "models", "providers", "chat", "registry", "monitor"):
        module = import_module(package if package == "handrail" else f"handrail.{package}")
        for name in module.__all__:
            assert getattr(module, name) is not None, f"{package}.{name}"
