"""A test that did not run is said to have failed where it matters."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
CONFTEST = Path(__file__).parents[1] / "conftest.py"

SKIPPING = """
import pytest

@pytest.mark.model
def test_that_needs_a_model():
    pass

def test_that_skips_itself():
    pytest.skip("not today")

@pytest.mark.xfail(reason="known")
def test_that_is_known_to_fail():
    assert False

def test_that_runs():
    pass
"""


@pytest.mark.parametrize(
    ("ci", "outcomes"),
    [("", {"passed": 1, "skipped": 2, "xfailed": 1}), ("true", {"passed": 1, "failed": 1, "errors": 1, "xfailed": 1})],
)
def test_a_skip_is_a_failure_in_ci_only(
    ci: str, outcomes: dict[str, int], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.delenv("HANDRAIL_TEST_MODEL", raising=False)
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makeini("[pytest]\nmarkers = model: needs a model\nasyncio_default_fixture_loop_scope = function")
    pytester.makepyfile(SKIPPING)

    result = pytester.runpytest_subprocess("-rs", "-p", "no:cacheprovider")

    result.assert_outcomes(**outcomes)
    result.stdout.fnmatch_lines(["*needs a model file, named by HANDRAIL_TEST_MODEL*"])


def test_a_module_that_skips_itself_is_a_failure_in_ci(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile("import pytest\npytest.importorskip('no_such_module')")

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")

    result.assert_outcomes(errors=1)
