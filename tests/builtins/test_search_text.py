"""`search_text`: lines that match, never a hang, and no silence about what was not searched."""

import os
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.builtins import SearchTextTool, search_text
from tests.builtins.conftest import Desk


@pytest.fixture
def tree(desk: Desk) -> Path:
    for name, text in {
        "b.py": "import os\nprint(os.name)\n",
        "a/x.py": "import re\r\n# a.b\r\n",
        "a/deep/y.txt": "No Import here",
        ".git/config": "import nothing",
    }.items():
        (desk.work / name).parent.mkdir(parents=True, exist_ok=True)
        (desk.work / name).write_bytes(text.encode())
    return desk.work


async def found(desk: Desk, pattern: str, **payload: object) -> list[str]:
    """Relative to the working directory, to be short here; the answer has absolute paths."""
    lines = (await desk.answer(SearchTextTool(), pattern=pattern, **payload)).split("\n")
    assert all(line.startswith((f"{desk.work}/", "[")) for line in lines)
    return [line.removeprefix(f"{desk.work}/") for line in lines]


async def test_a_match_is_its_path_its_line_and_its_text(desk: Desk, tree: Path) -> None:
    assert await found(desk, "import") == ["a/x.py:1: import re", "b.py:1: import os"]
    assert await found(desk, "os.name") == ["b.py:2: print(os.name)"]


async def test_a_pattern_is_taken_literally_unless_it_is_said_to_be_a_regular_expression(
    desk: Desk, tree: Path
) -> None:
    assert await found(desk, "a.b") == ["a/x.py:2: # a.b"]
    assert await found(desk, "(") == ["b.py:2: print(os.name)"]
    assert await found(desk, "^imp.*[rs]e?$", regex=True) == ["a/x.py:1: import re", "b.py:1: import os"]


async def test_case_counts_by_default(desk: Desk, tree: Path) -> None:
    assert await found(desk, "IMPORT") == ["[No line matches.]"]
    every = ["a/deep/y.txt:1: No Import here", "a/x.py:1: import re", "b.py:1: import os"]
    assert await found(desk, "IMPORT", ignore_case=True) == every
    assert await found(desk, "IM+PORT", ignore_case=True, regex=True) == every


async def test_a_search_is_narrowed_by_path_and_glob(desk: Desk, tree: Path) -> None:
    assert await found(desk, "import", path=str(tree / "a")) == ["a/x.py:1: import re"]
    assert await found(desk, "import", path=str(tree / "b.py")) == ["b.py:1: import os"]
    assert await found(desk, "mport", glob="*.txt") == ["a/deep/y.txt:1: No Import here"]
    assert await found(desk, "mport", glob="a/*.{py,txt}") == ["a/x.py:1: import re"]
    assert await found(desk, "import", glob=".git/*") == [".git/config:1: import nothing"]


async def test_a_search_stops_at_its_limit_and_says_so(desk: Desk) -> None:
    (desk.work / "a.txt").write_text("x\n" * 5)
    more = "[There are more matches than these 3. Narrow the pattern, the path or the glob.]"
    assert await found(desk, "x", limit=3) == ["a.txt:1: x", "a.txt:2: x", "a.txt:3: x", more]
    assert len(await found(desk, "x", limit=5)) == 5
    text = await desk.answer(SearchTextTool(max_bytes=3 * len(f"{desk.work}/a.txt:1: x\n")), pattern="x")
    assert text.endswith(f"a.txt:3: x\n{more}")


async def test_what_is_not_searched_is_said(desk: Desk) -> None:
    (desk.work / "binary").write_bytes(b"needle\0")
    (desk.work / "large").write_bytes(b"needle" * 1_000)
    (desk.work / "latin").write_bytes(b"needle \xe9")
    os.mkfifo(desk.work / "pipe")
    text = await desk.answer(SearchTextTool(max_file_bytes=5_000), pattern="needle")
    assert text == f"{desk.work}/latin:1: needle �\n[Not searched: 1 binary files, 1 files that are too large.]"


async def test_files_that_cannot_be_read_are_counted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    (desk.work / "a.txt").write_text("needle")
    real = os.open

    def forbid(path: str, *args: int, **options: int) -> int:
        if path == "a.txt":
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", forbid)
    assert await found(desk, "needle") == ["[No line matches.]", "[Not searched: 1 files that cannot be read.]"]


@pytest.mark.proves("HC-D3")
async def test_links_are_passed_over(desk: Desk) -> None:
    (desk.work / "out").symlink_to("../outside")
    (desk.work / "out.txt").symlink_to("../outside/secret.txt")
    (desk.work / "top").symlink_to(".")
    assert await found(desk, "secret") == ["[No line matches.]"]


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(a*)*c", "(?:a?){900}[^a]{40}z", "((a{1,30}){1,30})x"])
async def test_a_regular_expression_cannot_hang(desk: Desk, pattern: str) -> None:
    """`re` would not come back from some of these, and no other thread would run meanwhile."""
    (desk.work / "a.txt").write_text(("a" * 2_000 + "!\n") * 3)
    assert "[No line matches.]" in await desk.answer(SearchTextTool(), pattern=pattern, regex=True)


async def test_a_search_that_takes_too_long_stops_and_says_so(desk: Desk) -> None:
    for name in "abc":
        (desk.work / name).write_text("x\n" * 3)
    late = "[Stopped because it took too long. Narrow the path or the glob.]"
    assert late in await desk.answer(SearchTextTool(timeout=1e-9), pattern="x")
    assert late not in await desk.answer(SearchTextTool(), pattern="x")


async def test_a_search_stops_in_the_middle_of_a_file_when_its_time_is_over(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (desk.work / "a.txt").write_text("x\n" * 100)
    seconds = count()
    monkeypatch.setattr(search_text, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    text = await desk.answer(SearchTextTool(timeout=20), pattern="x")
    assert text.count("a.txt:") == 20
    assert text.endswith("[Stopped because it took too long. Narrow the path or the glob.]")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", "unclosed group"),
        (r"(?=a)", "look-around"),
        (r"(a)\1", "backreferences are not supported"),
        (r"(?:\w{1000}){1000}", "size limit"),
    ],
)
async def test_an_expression_that_cannot_be_used_is_explained(desk: Desk, pattern: str, words: str) -> None:
    failure = await desk.failure(SearchTextTool(), pattern=pattern, regex=True)
    assert words in failure.message
    assert "RE2" in failure.message


async def test_a_text_of_two_lines_cannot_be_searched_for(desk: Desk) -> None:
    assert "one line" in (await desk.failure(SearchTextTool(), pattern="a\nb")).message


async def test_long_lines_are_shown_around_the_match(desk: Desk) -> None:
    (desk.work / "a.txt").write_text("x" * 10_000 + "needle" + "y" * 10_000)
    line, *notices = await found(desk, "needle")
    assert "needle" in line
    assert len(line) < 400
    assert line.endswith("…")
    assert not notices
    none, notice = await found(desk, "needle", regex=True)
    assert none == "[No line matches.]"
    assert notice == "[Lines searched only in their first 2000 characters: 1.]"


async def test_a_path_that_is_no_file_and_no_directory_is_explained(desk: Desk) -> None:
    os.mkfifo(desk.work / "pipe")
    failure = await desk.failure(SearchTextTool(), pattern="x", path=str(desk.work / "pipe"))
    assert "search a file or a directory" in failure.message
    assert "There is no" in (await desk.failure(SearchTextTool(), pattern="x", path=str(desk.work / "gone"))).message


@given(st.text("ab\n\r", max_size=30), st.text("ab", min_size=1, max_size=3), st.booleans())
async def test_it_finds_exactly_the_lines_that_hold_the_text(
    shared_desk: Desk, text: str, pattern: str, regex: bool
) -> None:
    (shared_desk.work / "a.txt").write_bytes(text.encode())
    lines = text.replace("\r\n", "\n").split("\n")
    expected = [f"{shared_desk.work}/a.txt:{n}: {line}" for n, line in enumerate(lines, 1) if pattern in line]
    answer = await shared_desk.answer(SearchTextTool(), pattern=pattern, regex=regex)
    assert answer == "\n".join(expected or ["[No line matches.]"])
