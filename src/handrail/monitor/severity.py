"""The log level of each failure code, for the log and the traces."""

import logging
from typing import Final

from handrail.core.events import CallFinished
from handrail.core.values import Failure
from handrail.errors import Code

LEVELS: Final[dict[Code, int]] = {
    # Normal: the call waits, or was cancelled.
    "approval_required": logging.INFO,
    "cancelled": logging.INFO,
    "in_progress": logging.INFO,
    # The call was refused.
    "tool_not_found": logging.WARNING,
    "tool_args_parse_error": logging.WARNING,
    "invalid_arguments": logging.WARNING,
    "permission_denied": logging.WARNING,
    "refused_by_hook": logging.WARNING,
    "rate_limited": logging.WARNING,
    "duplicate_call": logging.WARNING,
    # Something is broken.
    "unavailable": logging.ERROR,
    "tool_timeout": logging.ERROR,
    "outcome_unknown": logging.ERROR,
    "tool_execution_failed": logging.ERROR,
}


def find_level(failure: Failure | None) -> int:
    """Return the level of a result; a code that a tool defines itself is a warning."""
    return logging.INFO if failure is None else _BY_CODE.get(failure.code, logging.WARNING)


def find_result_level(event: CallFinished) -> int:
    """Return the level of a call that has its result."""
    result = event.result
    if not result.recorded:  # The effect happened, but the ledger has no record of it.
        return logging.ERROR
    level = logging.INFO if result.error is None else find_level(result.error)
    return max(level, logging.WARNING) if event.slow else level


_BY_CODE: Final[dict[str, int]] = {**LEVELS}
