"""Media through the executor: what a handler may return, the limit, and what a replay has of it."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from handrail import ConfigError, Executor, MediaPart, Policy, Rule, ToolCall, ToolContext, ToolResult, tool
from handrail.execute import Limits
from handrail.execute import ledger as ledger_module
from handrail.monitor import Log
from handrail.store import open_store
from handrail.testing import Cassette

HERE = ToolContext(session_id="s", turn=1)
PICTURE = MediaPart(mime_type="image/png", data=b"canary-bytes")
ALLOW = Policy([Rule.allow("*")])


def call(name: str, id: str = "c-1") -> ToolCall:
    return ToolCall(id=id, name=name)


@pytest.fixture(params=["memory", "sqlite"])
async def options(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[dict[str, Any]]:
    """An executor's ledger and audit, of either form."""
    if request.param == "memory":
        yield {}
        return
    async with open_store(f"sqlite+aiosqlite:///{tmp_path / 'store.db'}") as store:
        yield {"ledger": store.ledger, "approvals": store.approvals}


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (PICTURE, ""),
        ([PICTURE], ""),
        (["Two of them:", PICTURE, "and"], "Two of them:\nand"),
        (ToolResult(output={"n": 1}, media=(PICTURE,)), '{"n":1}'),
        (ToolResult(output="Drawn.", media=[PICTURE]), "Drawn."),  # pyright: ignore[reportArgumentType]
    ],
)
async def test_a_handler_returns_media_in_any_of_these_forms(returned: Any, text: str) -> None:
    @tool(read_only=True)
    async def draw() -> Any:
        return returned

    result = await Executor([draw]).run(call("draw"), HERE)
    assert (result.error, result.text, result.media) == (None, text, (PICTURE,))
    assert draw.output_schema is None


def test_a_tool_may_say_that_it_returns_media() -> None:
    @tool(read_only=True)
    def draw() -> MediaPart:
        return PICTURE

    assert draw.output_schema is None


@pytest.mark.parametrize("media", ["aGVsbG8=", [b"bytes"], {"a": PICTURE}, 7])
async def test_media_that_are_none_are_a_failure_and_never_reach_a_model(media: Any) -> None:
    @tool(read_only=True)
    async def draw() -> ToolResult:
        return ToolResult(output="Drawn.", media=media)

    result = await Executor([draw]).run(call("draw"), HERE)
    assert result.error is not None
    assert result.error.code == "tool_execution_failed"
    assert result.media == ()


async def test_the_limit_is_the_tools_own_or_the_executors() -> None:
    @tool(read_only=True)
    async def draw() -> MediaPart:
        return PICTURE

    @tool(read_only=True, max_media_bytes=12)
    async def draw_more() -> MediaPart:
        return PICTURE

    executor = Executor([draw, draw_more], limits=Limits(max_media_bytes=11))
    (cut,) = (await executor.run(call("draw"), HERE)).media
    assert (cut.data, cut.omitted) == (None, "a result holds at most 11 bytes of media")
    assert (await executor.run(call("draw_more", "c-2"), HERE)).media == (PICTURE,)
    with pytest.raises(ConfigError, match="max_media_bytes must be 0 or more, got -1"):
        Executor([], limits=Limits(max_media_bytes=-1))


async def test_a_failure_has_no_media() -> None:
    @tool
    async def draw() -> ToolResult:
        return ToolResult(error="No ink.", media=(PICTURE,))

    result = await Executor([draw], policy=ALLOW).run(call("draw"), HERE)
    assert (result.ok, result.media) == (False, ())


async def test_a_replay_has_the_media_and_runs_nothing(options: dict[str, Any]) -> None:
    runs: list[int] = []

    @tool
    async def draw() -> ToolResult:
        runs.append(1)
        return ToolResult(output="Drawn.", media=(PICTURE,), metadata={"odd": object()})

    executor = Executor([draw], policy=ALLOW, **options)
    first = await executor.run(call("draw"), HERE)
    again = await executor.run(call("draw"), HERE)
    other = await executor.run(call("draw", "c-2"), HERE)
    assert (again.origin, again.media, again.text) == ("replayed", first.media, "Drawn.")
    assert (other.origin, other.media) == ("replayed", (PICTURE,))
    assert "Already done" in other.text
    assert len(runs) == 1


async def test_a_replay_says_what_was_too_large_to_be_recorded(options: dict[str, Any]) -> None:
    large = MediaPart(mime_type="application/pdf", data=b"x" * (ledger_module.MAX_RECORDED_MEDIA_BYTES + 1))

    @tool
    async def draw() -> MediaPart:
        return large

    executor = Executor([draw], policy=ALLOW, **options)
    assert (await executor.run(call("draw"), HERE)).media == (large,)
    again = await executor.run(call("draw"), HERE)
    assert again.media[0].data is None
    assert again.for_model() == (
        "[file: application/pdf, 1,000,001 bytes, left out: only 1,000,000 bytes of media are recorded for a replay]"
    )


async def test_a_ledger_in_memory_keeps_the_newest_media_only() -> None:
    @tool
    async def draw(number: int) -> MediaPart:
        return MediaPart(mime_type="image/png", data=b"x" * 2_000)

    executor = Executor([draw], policy=ALLOW, ledger=ledger_module.MemoryLedger(max_bytes=5_000))
    calls = [ToolCall(id=f"c-{n}", name="draw", arguments_json=f'{{"number": {n}}}') for n in range(5)]
    for item in calls:
        await executor.run(item, HERE)
    kept = [(await executor.run(item, HERE)).media[0] for item in calls]
    assert [part.data is not None for part in kept] == [False, False, False, True, True]
    assert "not kept any more" in kept[0].describe_for_model()


async def test_a_read_with_media_is_neither_remembered_nor_cached() -> None:
    runs: list[int] = []

    @tool(read_only=True, cache_for=60)
    async def draw() -> MediaPart:
        runs.append(1)
        return PICTURE

    executor = Executor([draw])
    results = [await executor.run(call("draw"), HERE) for _ in range(3)]
    assert [result.media for result in results] == [(PICTURE,)] * 3
    assert len(runs) == 3


async def test_neither_the_log_nor_the_audit_writes_the_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def draw() -> MediaPart:
        return PICTURE

    caplog.set_level("DEBUG")
    async with open_store(f"sqlite+aiosqlite:///{tmp_path / 'store.db'}", audit_values=True) as store:
        await Executor([draw], policy=ALLOW, listeners=[store.audit, Log()]).run(call("draw"), HERE)
        await store.audit.flush()
        facts = await store.audit.query()
    digest = PICTURE.describe()["sha256"]
    for written in (str(facts), caplog.text + str([vars(record) for record in caplog.records])):
        assert "canary" not in written
        assert PICTURE.base64 not in written
        assert digest in written


async def test_a_cassette_replays_media(tmp_path: Path) -> None:
    @tool(read_only=True)
    async def draw() -> list[object]:
        return ["Drawn.", PICTURE]

    for mode in ("record", "replay"):
        with Cassette(tmp_path / "tape.json", mode=mode) as cassette:
            result = await Executor(cassette.tools([draw])).run(call("draw"), HERE)
        assert (result.text, result.media) == ("Drawn.", (PICTURE,))


@pytest.mark.parametrize(("media", "kind"), [(None, "NoneType"), ("", "str"), (0, "int")])
async def test_media_that_is_none_is_a_failed_result(media: Any, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    @tool(read_only=True)
    async def look() -> ToolResult:
        """Look."""
        return ToolResult(output="x", media=media)

    result = await Executor([look]).run(call("look"), HERE)

    assert (result.ok, result.media) == (False, ())
    assert f"media must be a tuple of MediaPart, not a {kind}" in caplog.text
