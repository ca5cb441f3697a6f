"""Imports follow the layers that pyproject.toml declares."""

import logging
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]


@pytest.fixture
def _loggers_stay_on() -> Iterator[None]:
    """import-linter configures logging as a program does, which turns every other logger of the process off."""
    names = [name for name, logger in logging.root.manager.loggerDict.items() if not getattr(logger, "disabled", True)]
    yield
    for name in names:
        logging.getLogger(name).disabled = False


@pytest.mark.usefixtures("_loggers_stay_on")
def test_imports_follow_the_layers_of_the_design(capsys: pytest.CaptureFixture[str]) -> None:
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True)

    assert status == 0, capsys.readouterr().out


def test_the_test_servers_import_nothing_else_of_handrail() -> None:
    """They judge the product from outside: a mistake of ours must not be on both sides of the wire."""
    servers = "handrail.testing.servers"
    graph = grimp.build_graph("handrail", cache_dir=None)
    inside = {module for module in graph.modules if f"{module}.".startswith(f"{servers}.")}

    imported = {other for module in inside for other in graph.find_modules_directly_imported_by(module)}

    assert imported <= inside


def test_every_folder_is_a_package_so_that_the_contracts_see_it() -> None:
    folders = {path.parent for path in (ROOT / "src/handrail").rglob("*.py")}

    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []
