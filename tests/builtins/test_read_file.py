"""`read_file`: numbered lines, no more read than returned, and a clear answer for everything that is not text."""

import os
from io import FileIO
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from handrail import Tool, ToolRegistry
from handrail.builtins import ReadFileTool, workspace
from tests.builtins.conftest import Desk


@pytest.mark.proves("HC-22")
def test_it_is_a_tool_named_read_file() -> None:
    tool = ReadFileTool()
    assert isinstance(tool, Tool)
    assert tool.name == "read_file"
    assert tool.description.startswith("Read lines of a text file")
    assert ToolRegistry().register(tool).get("read_file") is tool


@pytest.mark.proves("HC-23")
def test_its_schema_has_the_path_and_where_to_start_and_how_much() -> None:
    schema = ReadFileTool().input_schema
    assert schema["required"] == ["file_path"]
    assert {name: one["type"] for name, one in schema["properties"].items()} == {
        "file_path": "string",
        "offset": "integer",
        "limit": "integer",
    }
    assert all(item["description"] for item in schema["properties"].values())
    assert "counted from 1" in schema["properties"]["offset"]["description"]
    assert schema["properties"]["offset"]["minimum"] == 1
    assert schema["properties"]["limit"]["minimum"] == 1


@pytest.mark.proves("HC-24")
async def test_it_starts_at_line_1_and_returns_2000_lines_by_default(desk: Desk) -> None:
    (desk.work / "a.txt").write_text("".join(f"line {number}\n" for number in range(1, 2_502)))
    text = await desk.answer(ReadFileTool(), file_path=str(desk.work / "a.txt"))
    *lines, notice = text.split("\n")
    assert lines == [f"{number}\tline {number}" for number in range(1, 2_001)]
    assert notice == "[The file goes on after line 2000. Read on with offset=2001.]"
    rest = await desk.answer(ReadFileTool(), file_path=str(desk.work / "a.txt"), offset=2_001)
    assert rest.split("\n") == [f"{number}\tline {number}" for number in range(2_001, 2_502)]


@pytest.mark.proves("HC-25")
async def test_a_line_is_its_number_a_tab_and_its_text(desk: Desk) -> None:
    (desk.work / "a.txt").write_text("one\n\ttwo\n\nfour")
    path = str(desk.work / "a.txt")
    assert await desk.answer(ReadFileTool(), file_path=path) == "1\tone\n2\t\ttwo\n3\t\n4\tfour"
    assert await desk.answer(ReadFileTool(), file_path=path, offset=3, limit=2) == "3\t\n4\tfour"


TEXT = st.text(
    alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from("\n\r\u2028")
)


@pytest.mark.proves("HC-25")
@given(TEXT, st.integers(1, 8), st.integers(1, 8))
@example("a\r\n\r\nb\r", 1, 8)
@example("\ufeffa\nb", 1, 1)
@example("\ufeff", 1, 1)
@example("a\x0bb\x0cc\x1cd\x85e\u2028f", 1, 8)
async def test_what_it_returns_is_a_slice_of_the_lines(shared_desk: Desk, text: str, offset: int, limit: int) -> None:
    (shared_desk.work / "a.txt").write_bytes(text.encode())
    # Only LF and CRLF end a line; str.splitlines() knows many more.
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    result = await ReadFileTool().execute(
        {"file_path": str(shared_desk.work / "a.txt"), "offset": offset, "limit": limit}, shared_desk.context
    )
    if not lines:
        assert result.output == "[The file is empty.]"
    elif offset > len(lines):
        assert result.error is not None
        assert f"has {len(lines)} line" in result.error.message
    else:
        numbered = [f"{number}\t{line}" for number, line in enumerate(lines, 1)][offset - 1 : offset - 1 + limit]
        if offset - 1 + limit < len(lines):
            end = offset + limit
            numbered.append(f"[The file goes on after line {end - 1}. Read on with offset={end}.]")
        assert result.output == "\n".join(numbered)


class Counting(FileIO):
    """Counts the bytes that really come from the file."""

    count = 0

    def readinto(self, buffer: Any, /) -> int:
        read = super().readinto(buffer) or 0
        Counting.count += read
        return read

    def readall(self) -> bytes:
        data = super().readall()
        Counting.count += len(data)
        return data


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Counting]:
    monkeypatch.setattr(workspace, "FileIO", Counting)
    Counting.count = 0
    return Counting


@pytest.mark.proves("HC-D6")
async def test_it_reads_no_more_than_it_returns(desk: Desk, counted: type[Counting]) -> None:
    head = "".join(f"line {number}\n" for number in range(1, 3_001))
    path = desk.work / "huge.txt"
    path.write_text(head)
    os.truncate(path, 2**36)  # 64 GiB, most of it a hole
    assert (await desk.answer(ReadFileTool(), file_path=str(path), limit=2)).startswith("1\tline 1\n2\tline 2\n[")
    assert 0 < counted.count <= 2 * workspace.CHUNK
    counted.count = 0
    assert (await desk.answer(ReadFileTool(), file_path=str(path), offset=2_000, limit=1)).startswith("2000\tline 2000")
    assert counted.count <= len("".join(f"line {number}\n" for number in range(1, 2_001))) + 2 * workspace.CHUNK


@pytest.mark.proves("HC-D6")
async def test_a_line_without_an_end_is_cut_and_not_read_to_its_end(desk: Desk, counted: type[Counting]) -> None:
    (desk.work / "a.txt").write_text("é" * 1_000_000)
    text = await desk.answer(ReadFileTool(max_line_chars=100), file_path=str(desk.work / "a.txt"), limit=1)
    line, *notices = text.split("\n")
    assert line == "1\t" + "é" * 100
    assert notices == [
        "[Cut after 100 characters: line 1.]",
        "[The file goes on after line 1. Read on with offset=2.]",
    ]
    assert counted.count <= 2 * workspace.CHUNK
    failure = await desk.failure(ReadFileTool(max_line_chars=100), file_path=str(desk.work / "a.txt"), offset=2)
    assert "has 1 line, so there is no line 2" in failure.message


async def test_lines_after_one_that_is_cut_keep_their_numbers(desk: Desk) -> None:
    (desk.work / "a.txt").write_bytes(b"one\r\n" + b"x" * 50_000 + b"\r\nthree\n" + "😀".encode() * 11 + b"\nfive")
    text = await desk.answer(ReadFileTool(max_line_chars=10), file_path=str(desk.work / "a.txt"))
    assert text == f"1\tone\n2\t{'x' * 10}\n3\tthree\n4\t{'😀' * 10}\n5\tfive\n[Cut after 10 characters: line 2, 4.]"


@given(st.text("aé😀\ufffd", max_size=14), st.sampled_from([b"", b"\n", b"\r\n", b"\nz"]), st.integers(1, 12))
async def test_a_line_is_cut_between_characters(shared_desk: Desk, line: str, end: bytes, most: int) -> None:
    (shared_desk.work / "a.txt").write_bytes(b"-\n" + line.encode() + end)
    result = await ReadFileTool(max_line_chars=most).execute(
        {"file_path": str(shared_desk.work / "a.txt")}, shared_desk.context
    )
    lines = result.output.split("\n")
    if line or end:
        assert lines[1] == f"2\t{line[:most]}"
    assert (f"[Cut after {most} characters: line 2.]" in lines) == (len(line) > most)
    assert not any("UTF-8" in item for item in lines)


@pytest.mark.proves("HC-D6")
async def test_a_result_is_limited_in_size_and_says_where_to_continue(desk: Desk) -> None:
    path = desk.work / "a.txt"
    path.write_text("".join(f"{'é' * 40}{number}\n" for number in range(1, 1_001)))
    tool = ReadFileTool(max_bytes=2_000)
    seen: list[str] = []
    offset = 1
    while True:
        *lines, last = (await desk.answer(tool, file_path=str(path), offset=offset)).split("\n")
        assert len("\n".join(lines).encode()) <= 2_000
        if not last.startswith("["):
            seen += [*lines, last]
            break
        seen += lines
        offset = int(last.rpartition("=")[2].removesuffix(".]"))
        assert offset == len(seen) + 1
    assert seen == [f"{number}\t{'é' * 40}{number}" for number in range(1, 1_001)]


async def test_a_line_larger_than_a_result_does_not_stop_the_reader(desk: Desk) -> None:
    (desk.work / "a.txt").write_text("x" * 100 + "\ny\n")
    text = await desk.answer(ReadFileTool(max_bytes=10), file_path=str(desk.work / "a.txt"))
    assert text == f"1\t{'x' * 100}\n[The file goes on after line 1. Read on with offset=2.]"


async def test_many_cut_lines_are_counted(desk: Desk) -> None:
    (desk.work / "a.txt").write_text("xx\n" * 25)
    text = await desk.answer(ReadFileTool(max_line_chars=1), file_path=str(desk.work / "a.txt"))
    assert text.endswith("18, 19, 20 and 5 more.]")


async def test_a_line_too_far_into_a_huge_file_is_not_looked_for(desk: Desk, counted: type[Counting]) -> None:
    path = desk.work / "huge.txt"
    path.write_text("one\n" + "x" * 20_000)
    os.truncate(path, 2**36)
    failure = await desk.failure(ReadFileTool(max_skipped_bytes=1_000_000), file_path=str(path), offset=3)
    assert "too large to get to this line" in failure.message
    assert counted.count <= 1_000_000 + 2 * workspace.CHUNK


@pytest.mark.proves("HC-D6")
async def test_bytes_that_are_not_utf_8_are_replaced_with_a_notice(desk: Desk) -> None:
    (desk.work / "latin.txt").write_bytes("café\nplain\n".encode("latin-1"))
    text = await desk.answer(ReadFileTool(), file_path=str(desk.work / "latin.txt"))
    assert text == "1\tcaf�\n2\tplain\n[Bytes that are not UTF-8 are shown as �.]"
    (desk.work / "real.txt").write_text("a real � is text")
    assert await desk.answer(ReadFileTool(), file_path=str(desk.work / "real.txt")) == "1\ta real � is text"


async def test_a_byte_order_mark_is_not_part_of_the_text(desk: Desk) -> None:
    (desk.work / "a.txt").write_bytes(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo")
    assert await desk.answer(ReadFileTool(), file_path=str(desk.work / "a.txt")) == "1\tone\n2\t\ufefftwo"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x7fELF\0\0", "binary file"),
        (b"text\n" * 10_000 + b"\0", "binary file"),
        ("text".encode("utf-16"), "UTF-16"),
    ],
)
async def test_binary_files_are_refused(desk: Desk, data: bytes, words: str) -> None:
    (desk.work / "a.bin").write_bytes(data)
    failure = await desk.failure(ReadFileTool(), file_path=str(desk.work / "a.bin"), limit=100_000)
    assert words in failure.message
    assert str(desk.work / "a.bin") in failure.message


async def test_a_file_that_begins_like_text_is_still_binary(desk: Desk) -> None:
    (desk.work / "a.bin").write_bytes(b"%PDF\n" + b"x" * 1_000 + b"\n\0")
    assert "binary" in (await desk.failure(ReadFileTool(), file_path=str(desk.work / "a.bin"), limit=1)).message


async def test_an_empty_file_and_a_line_past_the_end_have_clear_results(desk: Desk) -> None:
    (desk.work / "empty.txt").touch()
    (desk.work / "two.txt").write_text("one\ntwo\n")
    assert await desk.answer(ReadFileTool(), file_path=str(desk.work / "empty.txt")) == "[The file is empty.]"
    for offset in (3, 4, 10**30):
        failure = await desk.failure(ReadFileTool(), file_path=str(desk.work / "two.txt"), offset=offset)
        assert failure.message == f"`{desk.work}/two.txt` has 2 lines, so there is no line {offset}."


async def test_a_file_that_is_not_there_is_named(desk: Desk) -> None:
    failure = await desk.failure(ReadFileTool(), file_path=str(desk.work / "not" / "there.txt"))
    assert failure.message == f"There is no `{desk.work}/not/there.txt`. list_files shows what there is."


@pytest.mark.parametrize("wrong", [{"offset": 0}, {"limit": 0}, {"offset": -3}, {"limit": "many"}, {"lines": 3}])
async def test_arguments_that_make_no_sense_are_refused_before_anything_is_read(
    desk: Desk, wrong: dict[str, Any]
) -> None:
    failure = await desk.failure(ReadFileTool(), file_path=str(desk.work / "a.txt"), **wrong)
    assert failure.code == "invalid_arguments"
