"""The eight programs of the toolcall document run here, changed only in the root of an import."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import handrail
from handrail.testing.servers import OpenAIServer, Raw, Reply, raw, text, tool_calls
from tests.openai.document import Program, programs

SOURCE = Path(handrail.__file__).parents[1]


def replies(program: Program) -> list[Reply | Raw]:
    """The script of the server: what the model says in the transcript."""
    return [chat_reply(*items) if program.api == "chat" else response(*items) for items in program.turns]


def chat_reply(message: dict) -> Reply:
    if "tool_calls" not in message:
        return text(message["content"])
    calls = [(call["function"]["name"], call["function"]["arguments"], call["id"]) for call in message["tool_calls"]]
    return tool_calls(*calls)


def response(*items: dict) -> Raw:
    # Word for word, because the ids of the items are printed.
    told = {"status": "completed", "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None}
    return raw({"id": "resp_1", "object": "response", "created_at": 1, "model": "local", "output": items, **told})


def run(program: Program, url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / f"{program.name}.py"
    path.write_text(program.source)
    here = {"PYTHONPATH": str(SOURCE), "OPENAI_API_KEY": "test", "OPENAI_BASE_URL": url, "NO_PROXY": "*"}
    return subprocess.run(
        [sys.executable, str(path)], env=os.environ | here, capture_output=True, text=True, timeout=50, check=False
    )


@pytest.mark.proves("TC-D3")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("grouped_chat_core", marks=pytest.mark.proves("TC-05")),
        pytest.param("grouped_chat_aio", marks=pytest.mark.proves("TC-05")),
        pytest.param("grouped_responses_core", marks=pytest.mark.proves("TC-06")),
        pytest.param("grouped_responses_aio", marks=pytest.mark.proves("TC-06")),
        pytest.param("standalone_chat_core", marks=pytest.mark.proves("TC-07")),
        pytest.param("standalone_chat_aio", marks=pytest.mark.proves("TC-07")),
        pytest.param("standalone_responses_core", marks=pytest.mark.proves("TC-08")),
        pytest.param("standalone_responses_aio", marks=pytest.mark.proves("TC-08")),
    ],
)
def test_a_program_of_the_document_prints_its_transcript(name: str, tmp_path: Path) -> None:
    program = programs()[name]

    with OpenAIServer(replies(program)) as server:
        ran = run(program, server.url, tmp_path)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == program.output
    assert [request.refused for request in server.requests] == [None] * len(program.turns)


@pytest.mark.proves("TC-09")
@pytest.mark.node
@pytest.mark.timeout(300)
def test_the_programs_pass_the_type_checker(tmp_path: Path) -> None:
    read = programs()
    for program in read.values():
        (tmp_path / f"{program.name}.py").write_text(program.source)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(SOURCE)], "include": ["*.py"]}))

    pyright = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    quiet = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    ran = subprocess.run(pyright, env=quiet, capture_output=True, text=True, check=False)

    answer = json.loads(ran.stdout)
    assert answer["summary"]["filesAnalyzed"] == len(read)
    found = [
        (Path(generalDiagnostic["file"]).stem, generalDiagnostic["message"])
        for generalDiagnostic in answer["generalDiagnostics"]
    ]
    assert [item for item in found if not is_about_the_sdk(item[1])] == []
    # Since openai 1.99 a chat call may be one of a custom tool. Two of the programs are older, and do not ask which.
    assert set(Counter(name for name, _ in found)) <= {"standalone_chat_core", "standalone_chat_aio"}


def is_about_the_sdk(message: str) -> bool:
    return bool(re.match('Cannot access attribute "function" for class "ChatCompletionMessageCustomToolCall"', message))
