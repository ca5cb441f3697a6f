"""`edit_file`: the one text that is meant, and nothing else of the file."""

import os
import re
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from handrail.builtins import EditFileTool, ReadFileTool
from tests.builtins.conftest import Desk, everything_in


async def edited(desk: Desk, data: bytes, old: str, new: str, **options: Any) -> bytes:
    path = desk.work / "a.txt"
    path.write_bytes(data)
    await desk.answer(EditFileTool(), file_path=str(path), old_text=old, new_text=new, **options)
    return path.read_bytes()


async def test_the_old_text_is_replaced_and_the_line_is_named(desk: Desk) -> None:
    path = desk.work / "a.txt"
    path.write_text("one\ntwo\nthree\n")
    path.chmod(0o751)
    answer = await desk.answer(EditFileTool(), file_path=str(path), old_text="two\nth", new_text="2\n3 th")
    assert answer == f"Replaced 1 occurrence in `{path}`, on line 2."
    assert path.read_text() == "one\n2\n3 three\n"
    assert path.stat().st_mode & 0o777 == 0o751
    assert set(everything_in(desk.work)) == {"a.txt"}


async def test_a_text_that_occurs_more_than_once_is_refused_with_the_number_of_times(desk: Desk) -> None:
    path = desk.work / "a.txt"
    path.write_text("a\nb a\n\na\n")
    failure = await desk.failure(EditFileTool(), file_path=str(path), old_text="a", new_text="c")
    assert failure.message.startswith(f"`old_text` occurs 3 times in `{path}`, on line 1, 2, 4.")
    assert path.read_text() == "a\nb a\n\na\n"
    answer = await desk.answer(EditFileTool(), file_path=str(path), old_text="a", new_text="c", replace_all=True)
    assert answer == f"Replaced 3 occurrences in `{path}`, on line 1, 2, 4."
    assert path.read_text() == "c\nb c\n\nc\n"


async def test_occurrences_that_overlap_are_more_than_one(desk: Desk) -> None:
    path = desk.work / "a.txt"
    path.write_text("banana")
    failure = await desk.failure(EditFileTool(), file_path=str(path), old_text="ana", new_text="x")
    assert "occurs 2 times, overlapping" in failure.message
    assert await edited(desk, b"banana", "ana", "x", replace_all=True) == b"bxna"


async def test_each_occurrence_is_named_by_the_line_on_which_it_begins(desk: Desk) -> None:
    path = desk.work / "a.txt"
    path.write_text("x\na\nb\na\nb\n")
    answer = await desk.answer(EditFileTool(), file_path=str(path), old_text="a\nb", new_text="c", replace_all=True)
    assert answer == f"Replaced 2 occurrences in `{path}`, on line 2, 4."


async def test_many_occurrences_are_counted(desk: Desk) -> None:
    path = desk.work / "a.txt"
    path.write_text("a\n" * 12)
    failure = await desk.failure(EditFileTool(), file_path=str(path), old_text="a", new_text="x")
    assert "occurs 12 times" in failure.message
    assert "8, 9, 10 and 2 more" in failure.message


async def test_a_text_that_does_not_occur_is_refused(desk: Desk) -> None:
    path = desk.work / "a.txt"
    path.write_text("\ufeffone\n")
    for old in ("two", "1\tone", "One", "one\n\n", "\ufeffone"):  # the mark is not part of the text
        failure = await desk.failure(EditFileTool(), file_path=str(path), old_text=old, new_text="x")
        assert failure.message.startswith(f"`old_text` does not occur in `{path}`.")
    assert path.read_text() == "\ufeffone\n"


@pytest.mark.parametrize(("old", "new"), [("one", "one"), ("one\n", "one\r\n")])
async def test_a_change_that_changes_nothing_is_refused(desk: Desk, old: str, new: str) -> None:
    (desk.work / "a.txt").write_text("one\n")
    failure = await desk.failure(EditFileTool(), file_path=str(desk.work / "a.txt"), old_text=old, new_text=new)
    assert "nothing to change" in failure.message


async def test_an_empty_old_text_is_refused(desk: Desk) -> None:
    failure = await desk.failure(EditFileTool(), file_path=str(desk.work / "a.txt"), old_text="", new_text="x")
    assert failure.code == "invalid_arguments"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"one\r\ntwo\r\n", "one\ntwo", "1\n2\n3", b"1\r\n2\r\n3\r\n"),
        (b"one\r\ntwo\r\n", "one", "1\n", b"1\r\n\r\ntwo\r\n"),
        (b"one\r\ntwo\r\n", "one\r\ntwo", "x\r\ny", b"x\r\ny\r\n"),
        (b"one\ntwo\n", "one\r\ntwo", "x\r\ny", b"x\ny\n"),
        (b"one\ntwo\r\nthree\n", "one", "1\n1", b"1\n1\ntwo\r\nthree\n"),
        (b"one\ntwo\r\nthree\n", "two\nthree", "2\n3", b"one\n2\r\n3\n"),
        (b"one", "one", "1\n2", b"1\n2"),
        (b"one\r\r\ntwo\r\r\n", "one\r\ntwo", "1\n2", b"1\r\r\n2\r\r\n"),
        (b"a\rb\nc", "a\rb", "x\ry", b"x\ry\nc"),
        (b"\xef\xbb\xbfone\r\n", "one", "two\n", b"\xef\xbb\xbftwo\r\n\r\n"),
        (b"caf\xe9 one \xff", "one", "two", b"caf\xe9 two \xff"),
        ("é日😀".encode(), "日", "本", "é本😀".encode()),
    ],
)
async def test_newlines_the_mark_and_foreign_bytes_stay_as_they_are(
    desk: Desk, before: bytes, old: str, new: str, after: bytes
) -> None:
    assert await edited(desk, before, old, new) == after


SOME = st.text("ab\n", max_size=9)


@given(SOME, st.text("ab\n", min_size=1, max_size=3), SOME, st.text("xy\n", max_size=4), st.booleans())
async def test_an_edit_is_a_replacement_in_any_style_of_newlines(
    shared_desk: Desk, head: str, old: str, tail: str, new: str, replace_all: bool
) -> None:
    assume(old != new)
    text = head + old + tail
    replace_all |= sum(text.startswith(old, at) for at in range(len(text))) > 1
    for newline in ("\n", "\r\n"):
        for mark in (b"", b"\xef\xbb\xbf"):
            before = mark + text.replace("\n", newline).encode()
            expected = text.replace(old, new)
            # A file that has no newline yet gets LF.
            after = expected.replace("\n", newline if "\n" in text else "\n").encode()
            assert await edited(shared_desk, before, old, new, replace_all=replace_all) == mark + after


@given(
    st.lists(st.sampled_from([b"a", b"\r\n", b"\n", b"\r", b"\xff"]), max_size=12),
    st.lists(st.sampled_from([b"b", b"\r\n", b"\n", b"\r", b"\xff"]), max_size=12),
    st.text("xy\n", max_size=4),
)
@example([b"\r", b"\r\n"], [b"\r", b"\n"], "\n")
async def test_what_is_not_replaced_keeps_every_byte_and_the_way_back_exists(
    shared_desk: Desk, before: list[bytes], after: list[bytes], new: str
) -> None:
    head, tail = b"".join(before), b"".join(after)
    changed = await edited(shared_desk, head + b"OLD" + tail, "OLD", f"<{new}>")
    assert changed.startswith(head + b"<")
    assert changed.endswith(b">" + tail)
    assert await edited(shared_desk, changed, f"<{new}>", "OLD") == head + b"OLD" + tail


@given(st.text("ab\r\n", max_size=20), st.data())
async def test_whatever_read_file_shows_can_be_edited(shared_desk: Desk, text: str, data: st.DataObject) -> None:
    path = shared_desk.work / "shown.txt"
    path.write_bytes(f"{text}END".encode())
    shown = await shared_desk.answer(ReadFileTool(), file_path=str(path))
    lines = "\n".join(line.partition("\t")[2] for line in shown.split("\n"))
    begin = data.draw(st.integers(0, len(lines) - 1))
    old = lines[begin:]
    assume(not (lines[:begin].endswith("\r") and re.match("\r*\n", old)))  # nobody quotes half a newline
    await shared_desk.answer(EditFileTool(), file_path=str(path), old_text=old, new_text="NEW")
    assert re.sub("\r+\n", "\n", path.read_bytes().decode()) == re.sub("\r+\n", "\n", lines[:begin]) + "NEW"


async def test_a_file_changed_by_somebody_else_meanwhile_is_left_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = desk.work / "a.txt"
    path.write_text("one")
    real = os.fstat
    calls: list[int] = []

    def change_after_reading(fd: int) -> os.stat_result:
        seen = real(fd)
        calls.append(fd)
        if len(calls) == 2:  # the first look is for what it is, the second one for which version it is
            path.write_text("one, by somebody else")
        return seen

    monkeypatch.setattr(os, "fstat", change_after_reading)
    failure = await desk.failure(EditFileTool(), file_path=str(path), old_text="one", new_text="two")
    assert "changed by somebody else" in failure.message
    assert failure.retryable
    assert path.read_text() == "one, by somebody else"


async def test_a_file_that_is_not_there_is_not_created(desk: Desk) -> None:
    path = desk.work / "new" / "a.txt"
    failure = await desk.failure(EditFileTool(), file_path=str(path), old_text="a", new_text="b")
    assert failure.message.startswith(f"There is no `{path}`.")
    assert everything_in(desk.work) == {}


async def test_binary_files_and_large_ones_are_refused(desk: Desk) -> None:
    path = desk.work / "a.txt"
    path.write_bytes(b"old\0")
    assert "binary" in (await desk.failure(EditFileTool(), file_path=str(path), old_text="old", new_text="x")).message
    path.write_bytes(b"old " * 10)
    small = EditFileTool(max_bytes=39)
    assert "larger than 39" in (await desk.failure(small, file_path=str(path), old_text="old", new_text="x")).message
    grows = {"file_path": str(path), "old_text": "old", "new_text": "x" * 100_000, "replace_all": True}
    assert "grow beyond 500000" in (await desk.failure(EditFileTool(max_bytes=500_000), **grows)).message
    assert path.read_bytes() == b"old " * 10


async def test_repetitive_text_does_not_take_quadratic_time(desk: Desk) -> None:
    path = desk.work / "a.txt"
    path.write_text("a" * 3_000_000)
    old = "a" * 1_000_000
    failure = await desk.failure(EditFileTool(), file_path=str(path), old_text=old, new_text="b")
    assert "occurs 3 times" in failure.message
    path.write_text("\r" * 3_000_000)
    failure = await desk.failure(EditFileTool(), file_path=str(path), old_text="b", new_text="\r" * 1_000_000)
    assert "does not occur" in failure.message
