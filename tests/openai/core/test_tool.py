"""What is special about the sync module: it runs where it is called, one call after the other."""

import threading
from typing import Any

import pytest

from handrail.openai import core


class note(core.LLMFunctionTool[list[str], threading.Thread]):
    """Write a word down."""

    word: str

    def model_tool_handler(self, context: list[str]) -> tuple[str, threading.Thread]:
        context.append(f"{self.word} begins")
        if self.word == "bad":
            raise LookupError(self.word)
        context.append(f"{self.word} ends")
        return self.word.upper(), threading.current_thread()


GROUP = core.LLMFunctionToolGroup[list[str], threading.Thread].from_list([note])


def calls(*words: str) -> list[dict[str, Any]]:
    return [{"call_id": word, "name": "note", "arguments": f'{{"word": "{word}"}}'} for word in words]


@pytest.mark.proves("TC-01")
def test_a_call_runs_where_it_is_called_and_returns_its_result() -> None:
    result = note.model_tool_run_tool_call(calls("one")[0], [])

    assert isinstance(result, core.ToolCallSuccess)
    assert result.result_content == "ONE"
    assert result.context is threading.current_thread()


@pytest.mark.proves("TC-59")
def test_calls_run_one_after_the_other() -> None:
    log: list[str] = []

    results = GROUP.run_tool_calls(calls("one", "two", "one"), log)

    assert log == ["one begins", "one ends", "two begins", "two ends", "one begins", "one ends"]
    assert [result.result_content for result in results] == ["ONE", "TWO", "ONE"]


@pytest.mark.proves("TC-D1")
def test_an_error_ends_the_row_and_reaches_the_caller() -> None:
    log: list[str] = []
    with pytest.raises(LookupError, match=r"^bad$"):
        GROUP.run_tool_calls(calls("one", "bad", "two"), log)
    assert log == ["one begins", "one ends", "bad begins"]


def test_a_coroutine_is_no_result_here() -> None:
    class late(core.LLMFunctionTool):
        async def model_tool_handler(self, context: None) -> tuple[str, None]:
            return "", None

    with (
        pytest.warns(RuntimeWarning, match="never awaited"),
        pytest.raises(TypeError, match=r"^late handler must return"),
    ):
        late.model_tool_run_tool_call({"call_id": "c", "name": "late", "arguments": "{}"}, None)
