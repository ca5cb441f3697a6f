"""Outputs have a limit: they are cut at a sensible place, with a notice, and can be read on."""

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail import Executor, Policy, Rule, ToolFlags, ToolResult, tool
from handrail.execute import Limits
from handrail.execute.output_limit import MAX_PAGE_CHARS, find_cut
from tests.execute.helpers import at, call, code_of

NOTICE = re.compile(
    r"\n\[Cut: ([\d,]+) of ([\d,]+) characters are shown\."
    r"(?: Call read_more with handle='(\w[\w-]+)' and offset=(\d+) for the rest\.)?\]$"
)
MORE = re.compile(r"\n\[[\d,]+ more characters: offset=(\d+)\]$")


def says(output: Any, **options: Any) -> Executor:
    @tool(read_only=True, **options)
    async def say() -> Any:
        """Say it."""
        return output

    return Executor([say])


async def read_all(executor: Executor, limit: int, session: str = "s-1") -> str:
    """Read an output as a model would: the first part, and then on and on."""
    first: str = (await executor.run(call("say"), at(session))).output
    notice = NOTICE.search(first)
    if notice is None:
        return first
    handle, offset = notice[3], int(notice[4])
    text = first[: notice.start()]
    assert len(text) == offset
    number = 0
    while True:
        number += 1
        sent = call("read_more", f"m-{number}", handle=handle, offset=offset, limit=limit)
        page: str = (await executor.run(sent, at(session))).output
        more = MORE.search(page)
        if more is None:
            return text + page
        assert 0 < int(more[1]) - offset <= limit
        text += page[: int(more[1]) - offset]
        offset = int(more[1])


@pytest.mark.proves("PH-D14")
@given(st.text(st.sampled_from("ab \n,[ü🙂"), min_size=1, max_size=400), st.integers(1, 60), st.integers(1, 50))
def test_reading_on_gives_the_whole_text(text: str, most: int, limit: int) -> None:
    assert asyncio.run(read_all(says(text, max_output_chars=most), limit)) == text


async def test_a_value_that_is_too_long_is_cut_as_its_json() -> None:
    value = {"items": [f"item {n}" for n in range(100)]}
    executor = says(value, max_output_chars=100)
    whole = await read_all(executor, 40)

    assert whole.startswith('{"items":["item 0","item 1"')
    assert whole.endswith('"item 99"]}')


async def test_what_fits_is_left_alone() -> None:
    value = {"a": [1, 2]}
    assert (await says(value, max_output_chars=100).run(call("say"), at())).output is value
    assert (await says("x" * 100, max_output_chars=100).run(call("say"), at())).output == "x" * 100


@pytest.mark.parametrize("is_read_only", [True, False])
async def test_the_output_of_a_result_is_cut_as_any_other_and_the_rest_of_the_result_is_kept(
    is_read_only: bool,
) -> None:
    @tool(read_only=is_read_only, max_output_chars=100)
    async def say(length: int) -> ToolResult:
        """Say it."""
        return ToolResult(output="x" * length, metadata={"length": length}, context="mine")

    executor = Executor([say], policy=Policy([Rule.allow("*")]))
    short, long = [await executor.run(call("say", f"c-{length}", length=length), at()) for length in (100, 101)]

    assert (short.output, short.metadata["length"], short.context) == ("x" * 100, 100, "mine")
    assert NOTICE.search(long.output)
    assert (long.metadata["length"], long.context) == (101, "mine")


async def test_the_notice_says_how_much_is_shown() -> None:
    output = (await says("word " * 50, max_output_chars=52).run(call("say"), at())).output
    notice = NOTICE.search(output)

    assert notice is not None
    assert (notice[1], notice[2]) == ("50", "250")


async def test_a_handle_belongs_to_its_session() -> None:
    executor = says("x" * 500, max_output_chars=100)
    notice = NOTICE.search((await executor.run(call("say"), at("s-1"))).output)
    assert notice is not None
    theirs = await executor.run(call("read_more", "m-1", handle=notice[3]), at("s-2"))
    guessed = await executor.run(call("read_more", "m-2", handle="out_guess"), at("s-1"))

    assert [code_of(theirs), code_of(guessed)] == ["unavailable", "unavailable"]
    assert theirs.error is not None
    assert "x" * 5 not in theirs.for_model()


@pytest.mark.parametrize("wrong", [{"offset": -1}, {"limit": 0}, {"limit": -5}])
async def test_reading_on_from_nowhere_is_refused(wrong: dict[str, int]) -> None:
    executor = says("x" * 500, max_output_chars=100)
    notice = NOTICE.search((await executor.run(call("say"), at())).output)
    assert notice is not None

    assert code_of(await executor.run(call("read_more", "m-1", handle=notice[3], **wrong), at())) == "invalid_arguments"


async def test_a_handle_that_a_model_made_up_comes_back_shortened() -> None:
    executor = says("word " * 100, max_output_chars=100)
    await executor.run(call("say"), at())
    result = await executor.run(call("read_more", "m-1", handle="h" * 900_000), at())

    assert code_of(result) == "unavailable"
    assert len(result.for_model()) < 500


async def test_reading_past_the_end_says_so() -> None:
    executor = says("x" * 500, max_output_chars=100)
    notice = NOTICE.search((await executor.run(call("say"), at())).output)
    assert notice is not None

    assert (
        await executor.run(call("read_more", "m-1", handle=notice[3], offset=500), at())
    ).output == "[The output ends at 500.]"


async def test_a_page_has_a_limit_of_its_own() -> None:
    executor = says("x" * 100_000, max_output_chars=100)
    notice = NOTICE.search((await executor.run(call("say"), at())).output)
    assert notice is not None
    page = (await executor.run(call("read_more", "m-1", handle=notice[3], limit=10**9), at())).output

    assert len(page) < MAX_PAGE_CHARS + 500


@pytest.mark.proves("PH-D14")
async def test_an_executor_has_a_limit_by_default_and_offers_to_read_on_only_where_a_limit_is_set() -> None:
    executor = says("x" * 200_000)
    output = (await executor.run(call("say"), at())).output
    assert len(output) < 101_000
    assert "read_more" not in output
    assert "read_more" not in executor.registry

    @tool(read_only=True)
    async def say() -> str:
        """Say."""
        return "x" * 5_000

    executor = Executor([say], limits=Limits(max_output_chars=1_000))
    assert "read_more" in executor.registry
    assert "read_more" in (await executor.run(call("say"), at())).output


async def test_a_tool_of_the_same_name_is_left_alone() -> None:
    @tool(read_only=True)
    async def read_more() -> str:
        """Mine."""
        return "mine"

    @tool(read_only=True)
    async def say() -> str:
        """Say."""
        return "x" * 5_000

    executor = Executor([say, read_more], limits=Limits(max_output_chars=1_000))
    assert (await executor.run(call("read_more"), at())).output == "mine"
    assert "read_more" not in (await executor.run(call("say", "c-2"), at())).output


async def test_a_policy_speaks_of_read_more_too() -> None:
    executor = Executor(
        [*says("x" * 500, max_output_chars=100).registry.select("say")], policy=Policy([Rule.deny("read_more")])
    )
    assert code_of(await executor.run(call("read_more", "m-1", handle="x"), at())) == "permission_denied"


async def test_a_flood_of_output_is_bounded_and_so_is_what_is_kept_of_it() -> None:
    flood = "0123456789" * 5_000_000

    @tool
    async def pour(n: int) -> str:
        """Pour out 50 MB."""
        return flood

    executor = Executor([pour], policy=Policy([Rule.allow("*")]), limits=Limits(max_output_chars=1_000))
    for n in range(4):
        result = await executor.run(call("pour", f"c-{n}", n=n), at())
        assert len(result.for_model()) < 1_500
    outputs = executor._reads._handlers._output_limiter  # pyright: ignore[reportPrivateUsage]
    kept = outputs._texts.values()  # pyright: ignore[reportPrivateUsage]

    assert sum(len(text) for _, text in kept) <= 50_000_000
    assert len(kept) == 1


@given(st.text(st.sampled_from("ab \n,"), min_size=1, max_size=80), st.integers(1, 80))
def test_a_cut_is_never_empty_and_never_past_the_limit(text: str, most: int) -> None:
    end = find_cut(text, most)

    assert 0 < end <= most


def test_a_cut_is_after_a_line_or_a_word_that_ends_near_the_limit() -> None:
    assert find_cut("a" * 35 + "\nb c" + "d" * 20, 40) == 36
    assert find_cut("aaaa bbbb cccc", 11) == 10
    assert find_cut("a" * 30, 10) == 10
    assert find_cut("\n" + "a" * 30, 10) == 10


@pytest.mark.parametrize("way", ["replaced", "another pool", "guarded"])
async def test_only_a_model_that_has_read_more_is_told_of_it(way: str) -> None:
    @tool(name="say", read_only=True)
    async def unlimited() -> str:
        """Say it."""
        return "word " * 50_000

    executor = says("word", max_output_chars=100)
    if way == "another pool":
        executor = executor.with_tools([unlimited], policy=Policy())
    elif way == "replaced":
        executor.replace_tools([unlimited])
    else:
        await executor.guard(call("host", "c-0"), at(), lambda arguments: "word", flags=ToolFlags(read_only=True))
        executor.replace_tools([unlimited])

    if way == "guarded":
        flags = ToolFlags(read_only=True)
        result = await executor.guard(call("host"), at(), lambda arguments: "word " * 50_000, flags=flags)
    else:
        result = await executor.run(call("say"), at())

    assert not executor.has_tool("read_more")
    assert str(result.output).endswith("\n[Cut: 100,000 of 250,000 characters are shown.]")


async def test_tools_that_were_there_before_tell_of_read_more_once_it_is_there() -> None:
    @tool(read_only=True)
    async def long() -> str:
        """Say it."""
        return "word " * 50_000

    executor = Executor([long])
    executor.replace_tools([long, says("word", max_output_chars=100).registry.get("say")])

    assert "Call read_more with handle=" in str((await executor.run(call("long"), at())).output)
