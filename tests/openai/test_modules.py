"""What the two modules export, and what they load."""

import subprocess
import sys
from pathlib import Path

import pytest

import handrail
from handrail.openai import aio, core

NAMES = {
    "LLMFunctionTool",
    "LLMFunctionToolGroup",
    "StandardToolCall",
    "ToolCallFailReason",
    "ToolCallFailure",
    "ToolCallResult",
    "ToolCallSuccess",
    "ToolErrorMessageForLLMToSee",
    "ToolHandlerResult",
    "ToolMessageContent",
    "standardize_tool_call",
    "tool_def_for_chat_completions_api",
    "tool_def_for_responses_api",
}

USE = """
import sys
from handrail.openai import aio, core

class Greet(core.LLMFunctionTool):
    name: str
    nick: str | None = None
    model_tool_strict = True

    def model_tool_handler(self, context):
        return f"Hello {self.name}", None

group = core.LLMFunctionToolGroup.from_list([Greet])
assert group.tool_definitions(api="responses") and group.tool_definitions(api="chat.completions")
answer = group.run_tool_call({"call_id": "c", "name": "Greet", "arguments": '{"name": "Ann", "nick": null}'}, None)
assert answer.tool_message["content"] == answer.output_item["output"] == "Hello Ann"
print(sorted(name for name in sys.modules if name.split(".")[0] in ("openai", "anthropic", "google", "mcp", "httpx")))
"""


@pytest.mark.proves("TC-03", "TC-D5")
@pytest.mark.parametrize("module", [core, aio])
def test_a_module_exports_the_thirteen_names_and_no_other(module: object) -> None:
    assert set(module.__all__) == NAMES
    assert all(hasattr(module, name) for name in NAMES)
    assert not hasattr(module, "LLMToolGroup")


def test_the_modules_differ_in_the_tool_and_the_group_only() -> None:
    different = {name for name in NAMES if getattr(core, name) is not getattr(aio, name)}
    assert different == {"LLMFunctionTool", "LLMFunctionToolGroup"}


def test_the_tool_of_the_async_module_is_the_one_at_the_root() -> None:
    assert aio.LLMFunctionTool is handrail.LLMFunctionTool
    assert core.ToolErrorMessageForLLMToSee is handrail.ToolError


@pytest.mark.proves("TC-04")
def test_no_sdk_is_loaded_by_defining_sending_and_running_tools() -> None:
    source = Path(handrail.__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", USE], env={"PYTHONPATH": str(source)}, capture_output=True, text=True
    )
    assert (run.stdout, run.stderr) == ("[]\n", "")
