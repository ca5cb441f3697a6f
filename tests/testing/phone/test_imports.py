"""The phone simulator imports nothing else of handrail."""

import ast
from pathlib import Path

import handrail.testing.phone


def test_the_simulator_imports_nothing_else_of_handrail() -> None:
    package = Path(handrail.testing.phone.__file__).parent
    files = sorted(package.glob("**/*.py"))
    assert len(files) > 10
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert not any(name.name.split(".")[0] == "handrail" for name in node.names), file
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 1 or (node.level == 0 and (node.module or "").split(".")[0] != "handrail"), file
