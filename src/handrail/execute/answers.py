"""The failures that an executor answers with: one function each, in words for the model."""

import time

from handrail.core.values import Failure, ToolResult
from handrail.errors import ToolError

NOTHING_HAPPENED = "Nothing was done."


def from_error(error: ToolError) -> ToolResult:
    """What an error for the model says."""
    return failed(error.code, error.message, retryable=error.retryable)


def failed(code: str, message: str, *, retryable: bool = False) -> ToolResult:
    """A failure of this code."""
    return ToolResult(error=Failure(code=code, message=message, retryable=retryable))


def clash(tool: str) -> ToolResult:
    """The id of this call was another call's."""
    return failed("duplicate_call", f"The id of this call of `{tool}` was used for other arguments before. Not run.")


def busy(tool: str) -> ToolResult:
    """The same call is running elsewhere."""
    return failed(
        "in_progress", f"`{tool}` is already running with these arguments. Wait for its result.", retryable=True
    )


def unknown(tool: str) -> ToolResult:
    """Nobody can tell whether it happened."""
    return failed(
        "outcome_unknown",
        f"It is not known whether `{tool}` took effect. It is not run again by itself: "
        f"find out, or let a person look, before anything is said about it.",
    )


def timed_out(tool: str, seconds: float) -> ToolResult:
    """A call without consequences took too long."""
    return failed("tool_timeout", f"`{tool}` did not answer within {seconds:g} seconds.", retryable=True)


def cancelled(tool: str) -> ToolResult:
    """The call was cancelled before it could do anything."""
    return failed("cancelled", f"`{tool}` was cancelled. {NOTHING_HAPPENED}", retryable=True)


def broke(tool: str) -> ToolResult:
    """The handler raised something that says nothing to a model."""
    return failed("tool_execution_failed", f"`{tool}` failed.")


def broke_before(tool: str) -> ToolResult:
    """Something broke before the handler began."""
    return failed("tool_execution_failed", f"`{tool}` failed. {NOTHING_HAPPENED}")


def did_not_happen(tool: str) -> ToolResult:
    """It failed, and the tool itself says that nothing came of it."""
    return failed("tool_execution_failed", f"`{tool}` failed, and it was checked: {NOTHING_HAPPENED}", retryable=True)


def unwritable(tool: str, problem: str) -> ToolResult:
    """The handler ran, and returned what cannot be shown."""
    return failed("tool_execution_failed", f"`{tool}` ran, but {problem}, so that its result cannot be shown.")


def rate_limited(tool: str, seconds: float) -> ToolResult:
    """Too often."""
    return failed("rate_limited", f"`{tool}` was called too often. Try again in {_rounded(seconds)} s.", retryable=True)


def resting(tool: str, seconds: float) -> ToolResult:
    """The tool's breaker is open."""
    return failed(
        "unavailable", f"`{tool}` failed repeatedly and rests for {_rounded(seconds)} s. Not run.", retryable=True
    )


def joined_and_cancelled(tool: str) -> ToolResult:
    """The call was cancelled while it waited for another one of the same effect."""
    return failed("cancelled", f"This call of `{tool}` was cancelled. Another one with the same effect still runs.")


def unavailable(tool: str) -> ToolResult:
    """What was decided or done cannot be written down, so that nothing may happen."""
    return failed("unavailable", f"`{tool}` cannot be run safely at the moment. {NOTHING_HAPPENED}", retryable=True)


def at(moment: float) -> str:
    """A moment, for a sentence."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))


def _rounded(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 1 else "1"
