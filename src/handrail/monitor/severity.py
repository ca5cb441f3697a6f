"""How bad a failure is: one answer for the log, the metrics and the traces."""

import logging
from typing import Final

from handrail.core.values import Failure
from handrail.errors import Code

LEVELS: Final[dict[Code, int]] = {
    # The call is waiting for something, or nobody wants it any more: as it should be.
    "approval_required": logging.INFO,
    "cancelled": logging.INFO,
    "in_progress": logging.INFO,
    # The call was not run, because of what was asked or how often.
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


def level_of(failure: Failure | None) -> int:
    """The level of a result; a code of a tool's own is a warning, since the tool saw it coming."""
    return logging.INFO if failure is None else _BY_CODE.get(failure.code, logging.WARNING)


_BY_CODE: Final[dict[str, int]] = {**LEVELS}
