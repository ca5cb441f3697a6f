"""The failures that Handrail itself returns: one function each, with a message written for the model."""

import time

from handrail.core.text import encodable
from handrail.core.values import MAX_NAME_CHARS, Approval, Decision, Failure, ToolResult
from handrail.errors import ToolError, shorten

NOTHING_HAPPENED = "Nothing was done."


def failure(code: str, message: str, *, retryable: bool = False) -> ToolResult:
    """Build a failed result with this code; its message may quote a name that a model made up."""
    return ToolResult(error=Failure(code=code, message=encodable(message), retryable=retryable))


def _quote(tool: str) -> str:
    """A name that a model may have made up, at any length."""
    return f"`{shorten(tool, MAX_NAME_CHARS)}`"


def error_result(error: ToolError) -> ToolResult:
    """Build the failed result of a `ToolError`."""
    return failure(error.code, error.message, retryable=error.retryable)


# Refused before it could run.


def permission_denied(tool: str, decision: Decision) -> ToolResult:
    """The policy, a permission check or a person denied the call."""
    reason = decision.reason or f"the rule {decision.rule} denies it"
    error = Failure(code="permission_denied", message=f"`{tool}` is not allowed: {_end_sentence(reason)}")
    return ToolResult(error=error, decision=decision)


def approval_required(tool: str, decision: Decision, approval: Approval, *, reason: str) -> ToolResult:
    """Somebody has to approve the call first."""
    if approval.state == "approved":  # By the customer, in this very turn.
        message = f"`{tool}` was approved in this turn, which counts from the next one on. Call it again then."
    else:
        why = f" ({reason.rstrip(' .')})" if reason else ""
        message = (
            f"`{tool}` needs the approval of the {approval.by} first{why}. {NOTHING_HAPPENED} "
            f"Call it again with exactly these arguments once they have agreed."
        )
    error = Failure(code="approval_required", message=message, retryable=True)
    return ToolResult(error=error, decision=decision, approval=approval)


def refused_by_hook(message: str) -> ToolResult:
    """A hook refused the call."""
    return failure("refused_by_hook", message)


def invalid_changed_arguments(tool: str, by: str) -> ToolResult:
    """The approver changed the arguments to ones that the tool does not accept."""
    text = f"The arguments that the {by} wants for `{tool}` instead are not valid. {NOTHING_HAPPENED}"
    return failure("invalid_arguments", text)


def arguments_too_long(tool: str, length: int, *, max_chars: int) -> ToolResult:
    """The arguments are longer than this executor accepts; they were not parsed."""
    text = f"The arguments of `{tool}` have {length} characters; at most {max_chars} are accepted. {NOTHING_HAPPENED}"
    return failure("invalid_arguments", text)


def unusable_id(tool: str) -> ToolResult:
    """The id of the call is no text that could be written down: it can be told from no other call."""
    text = f"The id of this call of `{tool}` must be valid Unicode text without a zero character. {NOTHING_HAPPENED}"
    return failure("tool_args_parse_error", text)


def rate_limited(tool: str, wait: float) -> ToolResult:
    """A rate limit is reached."""
    return failure("rate_limited", f"`{tool}` was called too often. Try again in {_round(wait)} s.", retryable=True)


def no_calls_left() -> ToolResult:
    """The budget of the turn has no room for the call."""
    return failure("rate_limited", f"No more tools can be called in this turn. {NOTHING_HAPPENED}")


def circuit_open(tool: str, wait: float) -> ToolResult:
    """The tool's circuit breaker is open."""
    message = f"`{tool}` failed repeatedly and is not available for {_round(wait)} s. Not run."
    return failure("unavailable", message, retryable=True)


def unavailable(tool: str) -> ToolResult:
    """The ledger or the approvals are unavailable, so the call cannot run safely."""
    return failure("unavailable", f"`{tool}` cannot be run safely at the moment. {NOTHING_HAPPENED}", retryable=True)


def ledger_unreadable(tool: str) -> ToolResult:
    """What was done before cannot be looked up, so that the call cannot run safely."""
    message = (
        f"{_quote(tool)} was not run now, because it cannot be looked up whether it was done before. Try again later."
    )
    return failure("unavailable", message, retryable=True)


def queue_full(tool: str, retry_after: float) -> ToolResult:
    """The tenant has as many calls queued as it may have."""
    message = f"Too many calls wait already. `{tool}` was not stored. Try again in {_round(retry_after)} s."
    error = Failure(code="unavailable", message=message, retryable=True)
    return ToolResult(error=error, metadata={"retry_after": retry_after})


def unserved(tool: str, definition: str, waited: float) -> ToolResult:
    """No worker has taken a stored call: none runs, or none has this definition of the tool."""
    message = (
        f"`{tool}` is stored, and no worker has taken it for {_round(waited)} s: none runs that has its definition "
        f"{definition[:16]}. It runs when one does."
    )
    return failure("unavailable", message, retryable=True)


def row_changed(tool: str) -> ToolResult:
    """A stored call is not what it was when it was decided about."""
    return failure("permission_denied", f"The stored call of `{tool}` was changed after it was accepted. Not run.")


def approval_gone(tool: str) -> ToolResult:
    """The approval that a stored call waited for has expired, or was withdrawn."""
    message = f"The approval of `{tool}` has expired or was withdrawn. {NOTHING_HAPPENED} Call it again to ask anew."
    return failure("approval_required", message, retryable=True)


def no_call_id(tool: str) -> ToolResult:
    """A call without an id cannot be stored: nobody could find it again."""
    return failure("invalid_arguments", f"A stored call of `{tool}` needs an id. {NOTHING_HAPPENED}")


def not_durable(tool: str) -> ToolResult:
    """Only calls of durable tools are stored."""
    return failure("invalid_arguments", f"`{tool}` is not durable, so that its calls cannot be stored: run them.")


def purged(tool: str) -> ToolResult:
    """A stored call has ended, and its result is not kept any more."""
    return failure("outcome_unknown", f"`{tool}` has ended, and its result is not kept any more.")


def locks_cross(tool: str) -> ToolResult:
    """Two calls that were made inside others wait for each other's locks: neither would ever run."""
    message = (
        f"`{tool}` was not run: the call that has its lock waits for a lock of the call that it is part of. "
        f"{NOTHING_HAPPENED}"
    )
    return failure("unavailable", message, retryable=True)


def failed_before_start(tool: str) -> ToolResult:
    """Something failed before the handler started."""
    return failure("tool_execution_failed", f"`{tool}` failed. {NOTHING_HAPPENED}")


def call_cancelled(tool: str) -> ToolResult:
    """The call was cancelled before its handler started."""
    return failure("cancelled", f"`{tool}` was cancelled. {NOTHING_HAPPENED}", retryable=True)


def cancelled_unread(tool: str) -> ToolResult:
    """The call was cancelled before it was looked up whether it had been done before."""
    message = f"`{tool}` was cancelled before it was run. It was not looked up whether it was done before."
    return failure("cancelled", message, retryable=True)


# Calls and effects that are already recorded.


def duplicate_call(tool: str) -> ToolResult:
    """The id of this call was already used for another call: with other arguments, or of somebody else."""
    return failure(
        "duplicate_call", f"The id of this call of {_quote(tool)} was used for another call before. Not run."
    )


def duplicate_effect(tool: str, done_at: str, arguments: str) -> ToolResult:
    """The same effect was done before, with other arguments."""
    message = (
        f"`{tool}` was already done at {done_at} for the same key, with other arguments: {arguments}. "
        f"It was not done again, and nothing was done with these arguments."
    )
    return failure("duplicate_call", message)


def erased(tool: str, at: str, *, is_done: bool) -> ToolResult:
    """What is left of a result after the data of its customer was erased: whether it was done, and when."""
    if is_done:
        text = f"`{tool}` was done at {at}; its recorded result was erased."
        return ToolResult(output=text, metadata={"done_at": at, "erased": True})
    return failure(
        "tool_execution_failed", f"`{tool}` failed at {at}; its recorded result was erased. {NOTHING_HAPPENED}"
    )


def host_cannot_change(tool: str) -> ToolResult:
    """A hook or an approver changed the arguments, and the host can only run the original ones."""
    message = f"The arguments of `{tool}` were changed, and its host can only run the original ones. {NOTHING_HAPPENED}"
    return failure("permission_denied", message)


def in_progress(tool: str) -> ToolResult:
    """The same call is running elsewhere."""
    message = f"`{tool}` is already running with these arguments. Wait for its result."
    return failure("in_progress", message, retryable=True)


def unsettled(tool: str, *, is_running: bool, is_same: bool = True) -> ToolResult:
    """The same effect was begun before, and has no outcome yet: `in_progress` while it runs, else `outcome_unknown`.

    `is_same` says whether it was begun with the arguments of this call; else they are left alone.
    """
    if is_same:
        return in_progress(tool) if is_running else outcome_unknown(tool)
    other = f"for the same key, with other arguments. {NOTHING_HAPPENED.removesuffix('.')} with these arguments."
    if is_running:
        return failure("in_progress", f"`{tool}` is already running {other} Wait for its result.", retryable=True)
    advice = "Find out, or let a person look, before anything is said about it."
    return failure("outcome_unknown", f"It is not known whether `{tool}` took effect {other} {advice}")


def not_started(tool: str) -> ToolResult:
    """The call waited for another one of the same effect, which failed; it was never begun itself."""
    text = f"`{tool}` was not run: another call of the same effect was running, and it failed. {NOTHING_HAPPENED}"
    return failure("cancelled", text, retryable=True)


def join_cancelled(tool: str) -> ToolResult:
    """The call was cancelled while it waited for another call of the same effect."""
    return failure("cancelled", f"This call of `{tool}` was cancelled. Another one with the same effect still runs.")


# The handler was started.


def outcome_unknown(tool: str) -> ToolResult:
    """It is not known whether the call took effect."""
    return failure(
        "outcome_unknown",
        f"It is not known whether {_quote(tool)} took effect. It is not run again by itself: "
        f"find out, or let a person look, before anything is said about it.",
    )


def tool_timeout(tool: str, timeout: float) -> ToolResult:
    """A read-only call took too long."""
    return failure("tool_timeout", f"`{tool}` did not finish within {timeout:g} seconds.", retryable=True)


def tool_failed(tool: str) -> ToolResult:
    """The handler raised an exception that is not for the model."""
    return failure("tool_execution_failed", f"`{tool}` failed.")


def verified_failure(tool: str) -> ToolResult:
    """The call failed, and the tool's `verify` says that it had no effect."""
    message = f"`{tool}` failed, and it was checked: {NOTHING_HAPPENED}"
    return failure("tool_execution_failed", message, retryable=True)


def unusable_output(tool: str, problem: str) -> ToolResult:
    """The handler ran, and returned something that cannot be shown to a model."""
    return failure("tool_execution_failed", f"`{tool}` ran, but {problem}, so that its result cannot be shown.")


def format_time(timestamp: float) -> str:
    """Format a timestamp for a message: `2026-01-31 12:00:00 UTC`."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(timestamp))


def _end_sentence(text: str) -> str:
    """A text of a user with a full stop, unless it has one."""
    text = text.rstrip()
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def _round(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 1 else "1"


def confirmed_effect(tool: str, by: str) -> ToolResult:
    """An operator confirmed that the call took effect."""
    return ToolResult(output=f"`{tool}` took effect, as a person found out ({by}).")


def confirmed_failure(tool: str, by: str) -> ToolResult:
    """An operator confirmed that the call had no effect."""
    text = f"`{tool}` did not take effect, as a person found out ({by}). It may be called again."
    return failure("tool_execution_failed", text, retryable=True)
