"""The built-in file tools: policy sees where a path leads, and a write that comes again is written again."""

from pathlib import Path
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolContext, ToolFlags, ToolResult, tool
from handrail.builtins import EditFileTool, ReadFileTool, WriteFileTool
from tests.execute.helpers import ALLOWED, at, call, code_of


def session(folder: Path, turn: int = 1) -> ToolContext[Any]:
    return ToolContext(session_id="s-1", working_directory=str(folder), turn=turn)


def write(executor: Executor, folder: Path, path: str, text: str = "x", id: str = "c-1", turn: int = 1) -> Any:
    return executor.run(call("write_file", id, file_path=path, content=text), session(folder, turn))


@pytest.mark.parametrize("path", ["src/../secrets.env", "src/link", "./src/./../secrets.env", "other/secrets.env"])
@pytest.mark.parametrize("operator", ["equals", "matches", "search", "one_of"])
async def test_policy_sees_where_a_path_leads(tmp_path: Path, path: str, operator: str) -> None:
    folder = tmp_path.resolve()
    (folder / "src").mkdir()
    (folder / "src" / "link").symlink_to("../secrets.env")
    (folder / "other").symlink_to(".")
    secret = str(folder / "secrets.env")
    operand = [secret] if operator == "one_of" else secret
    deny = Rule.deny("write_file", where={"file_path": {operator: operand}})
    executor = Executor([WriteFileTool()], policy=Policy([Rule.allow("*"), deny]))

    result = await write(executor, folder, f"{folder}/{path}")

    assert code_of(result) == "permission_denied"
    assert not (folder / "secrets.env").exists()


async def test_an_approver_sees_where_a_path_leads_and_a_link_that_is_swapped_meanwhile_is_asked_about_again(
    tmp_path: Path,
) -> None:
    folder = tmp_path.resolve()
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    (folder / "link").symlink_to("a")
    executor = Executor([WriteFileTool()], policy=Policy([Rule.ask("write_file", by="operator")]))
    asked = await write(executor, folder, f"{folder}/link/x.txt")
    assert asked.approval.arguments["file_path"] == f"{folder}/a/x.txt"
    await executor.approvals.approve(asked.approval.token, by="operator", who="ann")
    (folder / "link").unlink()
    (folder / "link").symlink_to("b")

    assert code_of(await write(executor, folder, f"{folder}/link/x.txt")) == "approval_required"
    assert not list(folder.glob("*/x.txt"))


async def test_a_directory_that_becomes_a_link_after_the_decision_is_refused(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    (folder / "src").mkdir()
    (folder / "secrets").mkdir()

    class Swap:
        def authorised(self, call: Any, tool: Any, decision: Any, context: Any) -> None:
            (folder / "src").rmdir()
            (folder / "src").symlink_to("secrets")

    policy = Policy([Rule.allow("write_file", where={"file_path": {"under": "src"}})])
    executor = Executor([WriteFileTool()], policy=policy, hooks=[Swap()])

    assert code_of(await write(executor, folder, f"{folder}/src/x.txt")) == "permission_denied"
    assert not list((folder / "secrets").iterdir())


@pytest.mark.parametrize("path", ["a.txt", "../a.txt", "~/a.txt", "", "/a\0b"])
@pytest.mark.parametrize("file_tool", [WriteFileTool(), ReadFileTool()], ids=lambda one: one.name)
async def test_a_path_that_is_not_absolute_is_an_invalid_argument(tmp_path: Path, path: str, file_tool: Any) -> None:
    executor = Executor([file_tool], policy=ALLOWED)
    arguments = {"file_path": path, **({"content": ""} if file_tool.name == "write_file" else {})}

    result = await executor.run(call(file_tool.name, **arguments), session(tmp_path))

    assert code_of(result) == "invalid_arguments"


@pytest.mark.parametrize("turns", [(1, 1, 1), (1, 2, 3)])
async def test_write_a_then_b_then_a_ends_with_a(tmp_path: Path, turns: tuple[int, ...]) -> None:
    folder = tmp_path.resolve()
    executor = Executor([WriteFileTool(), EditFileTool()], policy=ALLOWED)
    file = folder / "x.txt"
    for number, (text, turn) in enumerate(zip("ABA", turns, strict=True)):
        assert (await write(executor, folder, str(file), text, f"c-{number}", turn)).origin == "run"
    assert file.read_text() == "A"
    for number, (old, new) in enumerate(("AB", "BA", "AB")):
        edit = call("edit_file", f"e-{number}", file_path=str(file), old_text=old, new_text=new)
        assert (await executor.run(edit, session(folder))).origin == "run"
    assert file.read_text() == "B"

    again = await write(executor, folder, str(file), "A", "c-0", turns[0])
    assert (again.origin, file.read_text()) == ("replayed", "B")


async def test_a_repeatable_tool_runs_for_every_id_and_once_for_each() -> None:
    ran: list[str] = []

    @tool(repeatable=True)
    def press(key: str) -> str:
        """Press a key."""
        ran.append(key)
        return "pressed"

    def proceed(arguments: dict[str, Any]) -> ToolResult:
        ran.append(arguments["key"])
        return ToolResult(output="pressed")

    executor = Executor([press], policy=ALLOWED, declared={"press_there": ToolFlags(repeatable=True)})
    for id in ("c-1", "c-2", "c-1"):
        await executor.run(call("press", id, key="enter"), at())
        await executor.guard(call("press_there", f"{id}-there", key="tab"), at(), proceed)

    assert (ran.count("enter"), ran.count("tab")) == (2, 2)
