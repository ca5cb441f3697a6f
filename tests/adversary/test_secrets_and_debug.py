"""The value of a secret is in nothing that is written; the text of your own exceptions is, if you ask for it."""

import io
import logging
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolResult, tool
from handrail.core import Redactor
from handrail.core.redact import hide_value
from handrail.monitor import JsonFormatter, Log
from handrail.store import open_store

SECRET = "correct horse battery"
CONTEXT = ToolContext(session_id="s-1", customer_id="c-1", turn=1)


def call(name: str, id: str = "c-1") -> ToolCall:
    return ToolCall(id=id, name=name, arguments_json="{}")


@tool
async def leak(context: ToolContext[Any]) -> ToolResult:
    """Return a secret, in a field that has a harmless name."""
    context.progress(f"signing in with {context.secrets['phrase']}")
    return ToolResult(output={"note": f"used {context.secrets['phrase']} to sign in"})


@tool
async def crash(context: ToolContext[Any]) -> None:
    """Fail with a secret in the text of the exception."""
    raise RuntimeError(f"cannot sign in with {context.secrets['phrase']} for order {10 + 7}")


async def test_the_value_of_a_secret_is_in_nothing_that_is_written(tmp_path: Path) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("tests.secrets")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    async with open_store(f"sqlite+aiosqlite:///{tmp_path}/a.db", audit_values=True) as store:
        executor = Executor(
            [leak],
            policy=Policy([Rule.allow("*")]),
            secrets={"phrase": lambda: SECRET},
            ledger=store.ledger,
            listeners=[store.audit, Log(logger)],
        )
        result = await executor.run(call("leak"), CONTEXT)
        logger.info("a line of your own with %s in it", SECRET)
        await store.audit.flush()
        replayed = await executor.run(call("leak"), CONTEXT)

    assert SECRET in str(result.output)  # The caller gets what the handler returned.
    assert SECRET not in str(replayed.output)
    assert SECRET not in stream.getvalue()
    written = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert SECRET.encode() not in written
    assert b"[redacted]" in written


def test_short_values_hide_nothing() -> None:
    hide_value("a")
    hide_value("")
    assert Redactor().text("a banana") == "a banana"


@pytest.mark.parametrize("how", ["environment", "option", "neither"])
async def test_the_text_of_your_own_exception_is_logged_if_you_ask_for_it(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if how == "environment":
        monkeypatch.setenv("HANDRAIL_DEBUG", "1")
    caplog.set_level(logging.INFO, logger="handrail")
    options: Any = {"policy": Policy([Rule.allow("*")]), "secrets": {"phrase": lambda: SECRET}}
    executor = Executor([crash], debug=how == "option", **options)
    result = await executor.run(call("crash"), CONTEXT)

    assert ("for order 17" in caplog.text) is (how != "neither")
    assert ("HANDRAIL_DEBUG=1" in caplog.text) is (how == "neither")
    assert SECRET not in caplog.text
    assert "order 17" not in result.for_model()


async def test_the_value_of_a_secret_that_the_context_brings_is_not_logged_either(
    caplog: pytest.LogCaptureFixture,
) -> None:
    theirs = "the-customers-own-phrase"
    context = ToolContext(session_id="s-1", secrets={"phrase": theirs})

    with caplog.at_level(logging.DEBUG, logger="handrail"):
        await Executor([crash], policy=Policy([Rule.allow("*")])).run(call("crash"), context)

    assert "cannot sign in with" in caplog.text
    assert theirs not in caplog.text


async def test_the_secrets_of_many_callers_take_no_value_of_the_process_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handrail.core.redact._callers_values", {})  # Every text of later tests would be searched.

    @tool(read_only=True)
    async def sign_in(context: ToolContext[Any]) -> int:
        """Read a secret."""
        return len(context.secrets["phrase"])

    executor = Executor([sign_in], secrets={"phrase": lambda: "a phrase of the process"})
    assert (await executor.run(call("sign_in"), CONTEXT)).ok
    theirs = Executor([sign_in])
    for number in range(1_200):
        context = ToolContext(session_id=f"s-{number}", secrets={"phrase": f"a phrase of caller {number}"})
        assert (await theirs.run(call("sign_in"), context)).ok

    shown = Redactor().text("with a phrase of the process, and a phrase of caller 1199")
    assert shown == "with [redacted], and [redacted]"
