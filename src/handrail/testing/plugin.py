"""The pytest plugin: the fixtures `make_executor` and `cassette`, and the option `--cassette`."""

import re
from collections.abc import Generator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Every pytest run with Handrail installed imports this module, so each fixture imports what it needs.
if TYPE_CHECKING:
    from handrail.core.redact import Redactor
    from handrail.testing.cassette import Cassette
    from handrail.testing.executor_factory import ExecutorFactory

_CASSETTE: pytest.StashKey["Cassette"] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--cassette`."""
    parser.getgroup("handrail").addoption(
        "--cassette",
        choices=("replay", "strict", "record", "new"),
        default="replay",
        help="replay: return results from the recordings (default); strict: also fail if a recording is not used; "
        "record: run everything and replace the recordings; new: record only tests that have no recording",
    )


@pytest.fixture
def make_executor() -> Generator["ExecutorFactory"]:
    """Make executors that record: `make_executor([pay])`, then `make_executor.find_calls("pay", amount=5)`."""
    from handrail.testing.executor_factory import ExecutorFactory  # noqa: PLC0415  # see above

    factory = ExecutorFactory()
    yield factory
    factory.close()


@pytest.fixture(scope="session")
def cassette_redactor() -> "Redactor":
    """The redactor of cassettes; override it in a `conftest.py` to redact more."""
    from handrail.core.redact import Redactor  # noqa: PLC0415  # see above

    return Redactor()


@pytest.fixture
def cassette(request: pytest.FixtureRequest, cassette_redactor: "Redactor") -> "Cassette":
    """The recordings of this test: `cassette.tools([pay])`, `cassette.provider(openai)`."""
    from handrail.testing.cassette import Cassette  # noqa: PLC0415  # see above

    mode: Any = request.config.getoption("cassette")
    node: Any = request.node
    path = find_cassette_path(node)
    new = node.stash[_CASSETTE] = Cassette(path, mode=mode, redactor=cassette_redactor)
    return new


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Save or check the cassette as part of the test: the executor may have hidden that a recording is missing."""
    __tracebackhide__ = True
    try:
        outcome = yield
    except (Exception, pytest.fail.Exception) as error:  # Not KeyboardInterrupt.
        if _CASSETTE in item.stash:
            item.stash[_CASSETTE].close(error)
        raise
    if _CASSETTE in item.stash:
        item.stash[_CASSETTE].close()
    return outcome


def find_cassette_path(item: pytest.Item) -> Path:
    """The file of a test's recordings: in the directory `cassettes` beside the test file."""
    name = item.nodeid.partition("::")[2].replace("::", ".")
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-")[:100]
    if plain != name:  # Two different names can become equal.
        plain = f"{plain}-{sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"
    return item.path.parent / "cassettes" / item.path.stem / f"{plain}.json"
