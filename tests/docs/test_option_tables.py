"""The tables of options in the docs are made from the types: one row for each field, with its default and its text."""

import ast
import inspect
import re
from pathlib import Path
from textwrap import dedent
from typing import Any, is_typeddict

import pytest

from handrail.define.options import ToolOptions
from handrail.execute import Limits, Timeouts

DOCS = Path(__file__).parents[2] / "docs"


def build_table(kind: type[Any]) -> str:
    """The table of a type: the name and the default of each field, and the string under it."""
    (definition,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    has_defaults = not is_typeddict(kind)
    head = (
        ["field of `" + kind.__name__ + "`", "default", "meaning"] if has_defaults else ["option of a tool", "meaning"]
    )
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(text, ast.Expr), f"{field.target.id} has no text under it"
            meaning = re.sub(r"\s+", " ", ast.literal_eval(text.value))
            cells = [f"`{field.target.id}`", *([render_default(field.value)] if has_defaults else []), meaning]
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def render_default(value: ast.expr | None) -> str:
    assert value is not None
    default = ast.literal_eval(value)
    return "–" if not default and default != 0 else f"{default:,.15g}"


@pytest.mark.parametrize(
    ("kind", "page"), [(Limits, "executor.md"), (Timeouts, "executor.md"), (ToolOptions, "tools.md")]
)
def test_the_table_of_a_type_has_its_fields_their_defaults_and_their_texts(kind: type[Any], page: str) -> None:
    table = build_table(kind)
    head, _, _ = table.partition("\n")
    found = re.search(rf"^{re.escape(head)}\n(\|.*\n)+", (DOCS / page).read_text(), re.MULTILINE)

    assert found is not None, f"docs/{page} must contain:\n{table}"
    assert found[0].strip() == table
