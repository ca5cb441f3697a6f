"""The event names of phone agents for the log events of an executor."""

from collections.abc import Mapping
from typing import Any, Final

_PHONE_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "call_accepted": ("tool_invocation_scheduled",),
    "cancelling": ("tool_cancel_all_started",),
    "cancellation_skipped": ("tool_cancel_for_response_skipped_missing_response_id",),
}


def find_phone_names(event: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names under which a phone agent logs an event; its own name if it has no other."""
    match event:
        case "call_finished":
            error: Mapping[str, Any] = fields.get("error") or {}
            if error.get("code") == "tool_not_found":
                return ("tool_not_found",)
            failed = error.get("code") in ("tool_execution_failed", "outcome_unknown", "tool_timeout")
            return ("tool_executor_execute_finished", *(("tool_execution_failed",) if failed else ()))
        case "call_started":
            prepared = ("tool_executor_dependencies_prepared",) if fields.get("dependencies") else ()
            return ("tool_executor_execute_started", "tool_executor_arguments_parsed", *prepared)
        case "call_cancelled" if fields["scope"] == "response":
            return ("tool_cancelled_for_response",)
        case "call_ignored":
            return (f"tool_invocation_ignored_{fields['reason']}",)
        case "cancellation":
            return (
                "tool_cancel_all_finished" if fields["scope"] == "session" else "tool_cancel_for_response_finished",
            )
        case _:
            return _PHONE_NAMES.get(event, (event,))
