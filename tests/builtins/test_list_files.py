"""`list_files`: sorted absolute paths that match, and what was left out."""

import fnmatch
import os
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.builtins import ListFilesTool, glob
from tests.builtins.conftest import Desk


@pytest.fixture
def tree(desk: Desk) -> Path:
    for name in ("b.py", "a.txt", "a/x.py", "a/deep/y.py", "a.d/z.txt", ".git/config", "a/.hidden.py"):
        (desk.work / name).parent.mkdir(parents=True, exist_ok=True)
        (desk.work / name).write_text("text")
    return desk.work


async def listed(desk: Desk, **payload: object) -> list[str]:
    """Relative to the working directory, to be short here; the answer has absolute paths."""
    lines = (await desk.answer(ListFilesTool(), **payload)).split("\n")
    assert all(line.startswith((f"{desk.work}/", "[")) for line in lines)
    return [line.removeprefix(f"{desk.work}/") for line in lines]


async def test_without_arguments_it_lists_the_working_directory(desk: Desk, tree: Path) -> None:
    assert await listed(desk) == ["a/", "a.d/", "a.txt", "b.py"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.py", ["b.py"]),
        ("**/*.py", ["a/deep/y.py", "a/x.py", "b.py"]),
        ("./a/*", ["a/deep/", "a/x.py"]),
        ("a/**", ["a/deep/", "a/deep/y.py", "a/x.py"]),
        ("**", ["a/", "a/deep/", "a/deep/y.py", "a/x.py", "a.d/", "a.d/z.txt", "a.txt", "b.py"]),
        ("**/deep/**/*.py", ["a/deep/y.py"]),
        ("*.{py,txt}", ["a.txt", "b.py"]),
        ("a{,.d}/*.{py,t{x,}t}", ["a/x.py", "a.d/z.txt"]),
        ("[ab].*", ["a.d/", "a.txt", "b.py"]),
        ("?.py", ["b.py"]),
        (".git/*", [".git/config"]),
        ("**/.*", [".git/", "a/.hidden.py"]),
        ("a.txt", ["a.txt"]),
    ],
)
async def test_a_pattern_picks_from_the_tree(desk: Desk, tree: Path, pattern: str, names: list[str]) -> None:
    assert await listed(desk, pattern=pattern) == names


async def test_it_lists_a_directory_further_down(desk: Desk, tree: Path) -> None:
    assert await listed(desk, directory=str(tree / "a"), pattern="**/*.py") == ["a/deep/y.py", "a/x.py"]


async def test_what_matches_nothing_is_said(desk: Desk, tree: Path) -> None:
    assert await listed(desk, pattern="*.rs") == [f"[Nothing in `{tree}` matches `*.rs`.]"]


async def test_a_list_stops_at_its_limit_and_says_so(desk: Desk, tree: Path) -> None:
    assert await listed(desk, limit=2) == [
        "a/",
        "a.d/",
        "[There are more than these 2. Narrow the pattern or the directory.]",
    ]
    assert await listed(desk, limit=4) == ["a/", "a.d/", "a.txt", "b.py"]


async def test_a_result_is_limited_in_size(desk: Desk, tree: Path) -> None:
    tool = ListFilesTool(max_bytes=2 * len(f"{tree}/a.d/") + 2)
    text = await desk.answer(tool)
    assert text == f"{tree}/a/\n{tree}/a.d/\n[There are more than these 2. Narrow the pattern or the directory.]"


async def test_a_walk_gives_up_after_so_many_entries_and_says_so(desk: Desk, tree: Path) -> None:
    for number in range(20):
        (tree / "a" / f"{number:02}.txt").touch()
    notice = "[Stopped after 10 entries. Start from a directory further down.]"
    assert notice in await desk.answer(ListFilesTool(max_entries=10), pattern="**/*.txt")
    everything = sum(1 for _ in tree.rglob("*")) - 1  # .git is not entered, so its one file is not seen
    assert "Stopped" not in await desk.answer(ListFilesTool(max_entries=everything), pattern="**/*.txt")
    assert "Stopped" in await desk.answer(ListFilesTool(max_entries=everything - 1), pattern="**/*.txt")


async def test_directories_that_cannot_be_read_are_counted(
    desk: Desk, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def forbid(path: str, *args: int, **options: int) -> int:
        if path == "deep":
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", forbid)
    assert await listed(desk, pattern="**/*.py") == ["a/x.py", "b.py", "[Directories that could not be read: 1.]"]


async def test_a_tree_without_a_bottom_is_left_where_it_is_too_deep(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glob, "_MAX_DEPTH", 3)
    (desk.work / "1/2/3/4/5").mkdir(parents=True)
    assert await listed(desk, pattern="**") == [
        "1/",
        "1/2/",
        "1/2/3/",
        "[Directories left out because they are more than 3 deep: 1.]",
    ]


@pytest.mark.proves("HC-D3")
async def test_links_are_listed_but_not_followed_and_those_that_lead_out_are_left_out(desk: Desk, tree: Path) -> None:
    (tree / "to-file").symlink_to("a.txt")
    (tree / "to-folder").symlink_to("a")
    (tree / "to-nothing").symlink_to("gone")
    (tree / "to-top").symlink_to(".")
    (tree / "to-itself").symlink_to("to-itself")
    (tree / "out").symlink_to("../outside")
    (tree / "out.txt").symlink_to("../outside/secret.txt")
    assert await listed(desk, pattern="{to-,out}*") == ["to-file", "to-folder/", "to-nothing", "to-top/"]
    assert await listed(desk, pattern="{out,to-*}/**") == [f"[Nothing in `{tree}` matches `{{out,to-*}}/**`.]"]


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "a/../../*", "", "x" * 1_001, "{a,b}" * 7])
async def test_a_pattern_that_makes_no_sense_is_refused(desk: Desk, pattern: str) -> None:
    failure = await desk.failure(ListFilesTool(), pattern=pattern)
    assert "`pattern`" in failure.message


@pytest.mark.timeout(20)
async def test_a_pattern_cannot_make_the_walk_slow(desk: Desk) -> None:
    for number in range(300):
        (desk.work / f"{number}{'a' * 200}").touch()
    (desk.work / "/".join("b" * 40)).mkdir(parents=True)
    every = ("*a" * 300 + "c", "**/" * 300 + "c", "**/b/" * 100 + "c", "{" + "," * 62 + "}" + "**/" * 290 + "c")
    for pattern in every:
        assert "Nothing in" in await desk.answer(ListFilesTool(), pattern=pattern)


async def test_a_file_is_not_a_directory(desk: Desk, tree: Path) -> None:
    failure = await desk.failure(ListFilesTool(), directory=str(tree / "a.txt"))
    assert failure.message == f"`{tree}/a.txt` is not a directory. read_file reads a file."


async def test_a_name_cannot_pass_for_another_line(desk: Desk) -> None:
    (desk.work / "a\n[Nothing here.]").touch()
    (desk.work / os.fsdecode(b"b\xff")).touch()
    assert await desk.answer(ListFilesTool()) == f'"{desk.work}/a\\n[Nothing here.]"\n{desk.work}/b�'


def plainly(path: PurePosixPath, pattern: tuple[str, ...]) -> bool:
    """What a pattern means, written as plainly as possible."""
    if not pattern:
        return not path.parts
    if pattern[0] == "**":
        return plainly(path, pattern[1:]) or (
            bool(path.parts) and path.parts[0][0] != "." and plainly(PurePosixPath(*path.parts[1:]), pattern)
        )
    if not path.parts or (path.parts[0][0] == "." and pattern[0][0] != "."):
        return False
    return fnmatch.fnmatchcase(path.parts[0], pattern[0]) and plainly(PurePosixPath(*path.parts[1:]), pattern[1:])


STEPS = st.sampled_from(["**", "*", "a", "b*", "?", ".*", "[ab]", "*a*"])


@given(st.lists(STEPS, min_size=1, max_size=5))
async def test_it_lists_exactly_what_the_pattern_means_in_order(shared_desk: Desk, steps: list[str]) -> None:
    for name in ("a/a/b", "a/b/.a/a", "b/ba/a", ".a/b", "bb", "ab/a/a/a"):
        (shared_desk.work / name).mkdir(parents=True, exist_ok=True)
    text = await shared_desk.answer(ListFilesTool(), pattern="/".join(steps))
    meant = tuple(steps) if steps[-1] != "**" else (*steps, "*")
    paths = (path.relative_to(shared_desk.work) for path in shared_desk.work.rglob("*"))
    expected = sorted(path.parts for path in map(PurePosixPath, paths) if plainly(path, meant))
    lines = [] if text.startswith("[") else text.split("\n")
    assert [Path(line).relative_to(shared_desk.work).parts for line in lines] == expected
