"""The pytest plugin: the fixtures `rail` and `cassette`, and the option `--cassette`."""

import re
from collections.abc import Generator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Every run of pytest where Handrail is installed imports this module: what a fixture needs is imported by the fixture.
if TYPE_CHECKING:
    from handrail.core.redact import Redactor
    from handrail.testing.cassette import Cassette
    from handrail.testing.recording import Rail

_CASSETTE: pytest.StashKey["Cassette"] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--cassette`."""
    parser.getgroup("handrail").addoption(
        "--cassette",
        choices=("replay", "strict", "record", "new"),
        default="replay",
        help="replay: answer from the recordings (the default); strict: and fail if one was not used; "
        "record: run everything for real and replace them; new: record only the tests that have none",
    )


@pytest.fixture
def rail() -> Generator["Rail"]:
    """Makes executors that record: `rail([pay], policy=…)`, then `rail.calls`, `rail.called("pay", amount=5)`."""
    from handrail.testing.recording import Rail  # noqa: PLC0415  # see above

    made = Rail()
    yield made
    made.close()


@pytest.fixture(scope="session")
def cassette_redactor() -> "Redactor":
    """What takes secrets out of cassettes; override it in a `conftest.py` to hide more."""
    from handrail.core.redact import Redactor  # noqa: PLC0415  # see above

    return Redactor()


@pytest.fixture
def cassette(request: pytest.FixtureRequest, cassette_redactor: "Redactor") -> "Cassette":
    """The recordings of this test: `cassette.tools([pay])`, `cassette.provider(openai)`."""
    from handrail.testing.cassette import Cassette  # noqa: PLC0415  # see above

    mode: Any = request.config.getoption("cassette")
    node: Any = request.node
    made = node.stash[_CASSETTE] = Cassette(cassette_path(node), mode=mode, redactor=cassette_redactor)
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Save or check the cassette as a part of the test: an executor may have answered for a call that it lacks."""
    __tracebackhide__ = True
    try:
        outcome = yield
    except (Exception, pytest.fail.Exception) as error:  # Not one who wants to stop.
        if _CASSETTE in item.stash:
            item.stash[_CASSETTE].close(error)
        raise
    if _CASSETTE in item.stash:
        item.stash[_CASSETTE].close()
    return outcome


def cassette_path(item: pytest.Item) -> Path:
    """Where the recordings of a test are: beside its file, in a file of its own."""
    name = item.nodeid.partition("::")[2].replace("::", ".")
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-")[:100]
    if plain != name:  # Two names that look the same now are still two.
        plain = f"{plain}-{sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"
    return item.path.parent / "cassettes" / item.path.stem / f"{plain}.json"
