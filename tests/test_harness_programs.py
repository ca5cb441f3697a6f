"""The two programs of the harness chapter run to their second request, changed only in their imports.

They are read from the chapter itself, which is not part of this repository. Its text has lost the indentation of the
code, and leaves the second request to the reader.
"""

import ast
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handrail import ToolResult
from handrail.formats import anthropic as messages_wire
from handrail.formats import openai_responses as responses_wire
from handrail.testing.servers import AnthropicServer, OpenAIServer, text, tool_calls

SEEDS = Path(__file__).resolve().parents[2] / "shared" / "seeds"
IMPORTS = "from handrail import ToolContext, ToolRegistry\nfrom handrail.builtins import ReadFileTool\n"


def program(first_line: str, last_line: str) -> str:
    """The lines of the chapter from one to the other."""
    chapters = [
        found
        for path in sorted(SEEDS.glob("*.txt"))
        if (found := path.read_text("utf-8")).startswith("Chapter 1 -- Tool System")
    ]
    if not chapters:
        pytest.skip("needs the harness chapter in ../shared/seeds, beside the repository")
    section = chapters[0].split("Using tools with both SDKs¶\n")[1].split("build_tool() factory pattern¶")[0]
    found = re.search(rf"^{re.escape(first_line)}$.*?^{re.escape(last_line)}$", section, re.DOTALL | re.MULTILINE)
    assert found
    return found[0]


def indented(source: str) -> str:
    """The program with its indentation: each block that it opens goes on to its end, as `await` and comment say."""
    lines: list[str] = []
    depth = 0
    for line in source.splitlines():
        lines.append("    " * depth + line)
        if re.match(r"(for|if) .*:$", line):
            depth += 1
    again = "\n".join(lines)
    assert [line.strip() for line in again.splitlines()] == source.splitlines()
    return f"{IMPORTS}{again}\n"


async def run(source: str) -> dict[str, Any]:
    """What a program with `await` at its top level leaves behind."""
    names: dict[str, Any] = {}
    code = compile(source, "<the chapter>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(code, names)
    return names


@pytest.fixture
def readable() -> Iterator[Path]:
    """A file inside the working directory of the programs."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder) / "test.py"
        path.write_text("print('one')\nprint('two')\n")
        yield path


NUMBERED = "1\tprint('one')\n2\tprint('two')"


# The chapter is older than the end of its model, of which the SDK warns.
@pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")
@pytest.mark.proves("HC-19")
async def test_the_anthropic_program_runs_to_its_second_request(
    readable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = indented(program("import anthropic", "# Send tool_result back to continue the conversation"))
    script = [tool_calls(("read_file", {"file_path": str(readable)}, "toolu_1")), text("It prints two words.")]

    with AnthropicServer(script) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
        ran = await run(source)
        with ran["client"] as client:
            asked = server.requests[0].body
            said = {"role": "assistant", "content": ran["response"].content}
            answered = messages_wire.results([answer(ran, ran["block"].id)])
            told = client.messages.create(**{**asked, "messages": [*asked["messages"], said, *answered]})

    assert [request.refused for request in server.requests] == [None, None]
    assert told.content[0].text == "It prints two words."
    (block,) = server.requests[1].body["messages"][-1]["content"]
    assert (block["type"], block["tool_use_id"], block["content"]) == ("tool_result", "toolu_1", NUMBERED)


@pytest.mark.proves("HC-20")
async def test_the_openai_program_runs_to_its_second_request(readable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = indented(program("import json", "# Send function_call_output back to continue"))
    script = [tool_calls(("read_file", {"file_path": str(readable)}, "call_1")), text("It prints two words.")]

    with OpenAIServer(script) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "test")
        ran = await run(source)
        with ran["client"] as client:
            asked = {**server.requests[0].body, "previous_response_id": ran["response"].id}
            answered = responses_wire.results([answer(ran, ran["item"].call_id)])
            told = client.responses.create(**{**asked, "input": answered})

    assert [request.refused for request in server.requests] == [None, None]
    assert told.output_text == "It prints two words."
    (item,) = server.requests[1].body["input"]
    assert (item["type"], item["call_id"], item["output"]) == ("function_call_output", "call_1", NUMBERED)


def answer(ran: dict[str, Any], call_id: str) -> ToolResult:
    """The result that the program has got, under the id of the call that it was for."""
    result: ToolResult = ran["result"]
    assert result.error is None
    assert result.duration_ms > 0
    return ToolResult(output=result.output, call_id=call_id)
