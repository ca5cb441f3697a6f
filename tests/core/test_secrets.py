"""Secrets are references, fetched when a call needs them, and shown nowhere."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from handrail import ConfigError, Executor, ToolContext, tool
from handrail.core.secrets import Secrets
from tests.execute.helpers import ALLOWED, at, call, code_of


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("THE_KEY", "from the environment")
    file = tmp_path / "key"
    file.write_text("from a file\n", encoding="utf-8")
    return file


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_gets_secrets_by_name(place: Path, read_only: bool, is_async: bool) -> None:
    def fetch(context: ToolContext[Any]) -> list[str]:
        return [context.secrets[name] for name in ("env", "file", "function")]

    async def later(context: ToolContext[Any]) -> list[str]:
        """Use them."""
        return fetch(context)

    def now(context: ToolContext[Any]) -> list[str]:
        """Use them."""
        return fetch(context)

    use = tool(name="use", read_only=read_only)(later if is_async else now)
    executor = Executor(
        [use],
        policy=ALLOWED,
        secrets={"env": "env:THE_KEY", "file": f"file:{place}", "function": lambda: "from a function"},
    )

    assert (await executor.run(call("use"), at())).output == ["from the environment", "from a file", "from a function"]


async def test_a_secret_is_fetched_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    @tool(read_only=True)
    async def use(context: ToolContext[Any]) -> str:
        """Use it."""
        return context.secrets["key"]

    executor = Executor([use], secrets={"key": "env:ROTATED"})
    outputs: list[Any] = []
    for n, value in enumerate(("old", "new")):
        monkeypatch.setenv("ROTATED", value)
        outputs.append((await executor.run(call("use", f"c-{n}"), at())).output)

    assert outputs == ["old", "new"]


@pytest.mark.parametrize("literal", ["sk-123456", "", "env:", "file:", "vault:key", "env", 7, None, b"env:KEY"])
def test_a_literal_secret_in_a_configuration_is_refused_and_not_repeated(literal: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Executor(secrets={"key": literal})

    assert "`key` must be a reference" in str(caught.value)
    assert "sk-123456" not in str(caught.value)


def test_a_secret_is_never_shown(place: Path) -> None:
    secrets = Secrets({"env": "env:THE_KEY", "file": f"file:{place}", "function": lambda: "from a function"})
    context = at(secrets=secrets)

    for shown in (repr(secrets), str(secrets), f"{secrets}", repr(context), str(context)):
        assert "from" not in shown
    assert repr(secrets) == "Secrets(env, file, function)"
    assert sorted(secrets) == ["env", "file", "function"]
    assert len(secrets) == 3


def test_asking_whether_there_is_a_secret_does_not_fetch_it() -> None:
    def never() -> str:
        raise AssertionError("fetched")

    secrets = Secrets({"function": never, "env": "env:NOT_SET_AT_ALL"})

    assert "function" in secrets
    assert "env" in secrets
    assert "other" not in secrets
    with pytest.raises(KeyError):
        secrets["other"]


@pytest.mark.parametrize(
    ("content", "says"), [(None, "cannot be read"), (b"\xff\xfe", "not text in UTF-8")], ids=["missing", "binary"]
)
def test_a_file_that_cannot_be_read_is_reported_without_what_is_in_it(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=says) as caught:
        Secrets({"key": f"file:{file}"})["key"]

    assert caught.value.__cause__ is None or isinstance(caught.value.__cause__, OSError)


async def test_a_missing_secret_fails_the_call_and_names_the_variable_to_the_developer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool(read_only=True)
    async def use(context: ToolContext[Any]) -> str:
        """Use it."""
        return context.secrets["key"]

    result = await Executor([use], secrets={"key": "env:NOT_SET_AT_ALL"}).run(call("use"), at())

    assert code_of(result) == "tool_execution_failed"
    assert "NOT_SET_AT_ALL" not in result.for_model()
    assert "ConfigError" in caplog.text
    with pytest.raises(ConfigError, match="NOT_SET_AT_ALL"):
        Secrets({"key": "env:NOT_SET_AT_ALL"})["key"]


async def test_without_secrets_of_its_own_an_executor_passes_on_those_of_the_context() -> None:
    @tool(read_only=True)
    async def use(context: ToolContext[Any]) -> str:
        """Use it."""
        return context.secrets["key"]

    assert (await Executor([use]).run(call("use"), at(secrets={"key": "theirs"}))).output == "theirs"


class _Vault(Mapping[str, str]):
    """Secrets of a caller, of which nobody can say how many there are."""

    def __getitem__(self, name: str) -> str:
        return "theirs"

    def __iter__(self) -> Iterator[str]:
        raise ConnectionError

    def __len__(self) -> int:
        raise ConnectionError


@pytest.mark.parametrize("read_only", [True, False])
async def test_the_secrets_of_a_caller_are_asked_for_by_the_handler_only(read_only: bool) -> None:
    @tool(read_only=read_only)
    async def use(context: ToolContext[Any]) -> str:
        """Use it."""
        return context.secrets["key"]

    executor = Executor([use], policy=ALLOWED)
    assert (await executor.run(call("use"), at(secrets=_Vault()))).output == "theirs"
    assert (await executor.run(call("use"), at(secrets=_Vault()))).output == "theirs"
