"""Every exception of Handrail, as a tree.

    HandrailError
    ├── ToolError                   for the model, which reads the message
    │   ├── ToolNotFoundError       tool_not_found          (also a KeyError)
    │   ├── ToolArgsParseError      tool_args_parse_error   (also a ValueError)
    │   ├── InvalidArgumentsError   invalid_arguments       (also a ValueError)
    │   ├── PermissionDeniedError   permission_denied       (also a PermissionError)
    │   ├── CallPausedError         in_progress
    │   └── ToolExecutionError      tool_execution_failed
    ├── ApprovalError               for the approver: this approval cannot be decided
    ├── StoreError                  for the operator: the database was replaced, or an entry is missing
    ├── LedgerFullError             for the operator: a ledger in memory can forget no entry
    ├── CallTakenOverError          for the operator: another worker has taken a call over
    ├── ThreadsStrandedError        for the operator: too many threads of one tool never came back
    ├── UnusableOutputError         for the operator: what a handler returned cannot become a result
    ├── McpCallError                for the operator: an MCP server did not say what became of a call
    ├── ProviderError               for the operator: a request to a language model failed
    │   ├── ProviderKeyError        missing_key, key_refused
    │   ├── UnknownModelError       unknown_model
    │   ├── ProviderLimitError      rate_limit              may work later
    │   ├── ContextTooLongError     context_too_long
    │   ├── RefusalError            refusal                 the model, or a filter, refused to respond
    │   ├── BadResponseError        bad_response            the response is malformed or does not fit the schema
    │   └── ProviderDownError       unavailable             no connection, or a stream that ended early; may work later
    ├── SourceError                 for the operator: a source of tools cannot be read
    ├── ModelFileError              for the operator: a model file is missing or damaged
    └── ConfigError                 for the developer: the program must be changed
        ├── ToolDefinitionError     this cannot be a tool   (also a TypeError)
        │   └── DuplicateToolError  two tools with one name
        ├── UnsupportedToolError    the API of a provider does not take this tool
        ├── RuleError               a rule of a policy cannot be read
        ├── ToolBuildError          a tool cannot be built from a tenant's configuration
        └── MissingExtraError       an optional dependency is absent (also an ImportError)

Each error has one audience: only the message of a `ToolError` is shown to a model. What one package raises and catches
itself, and no other package sees, is defined beside its code.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, get_args

Code = Literal[
    "tool_not_found",
    "tool_args_parse_error",
    "invalid_arguments",
    "permission_denied",
    "approval_required",
    "refused_by_hook",
    "rate_limited",
    "unavailable",
    "in_progress",
    "duplicate_call",
    "tool_timeout",
    "cancelled",
    "outcome_unknown",
    "tool_execution_failed",
]
"""Every code that Handrail itself puts into a failure. A handler may raise `ToolError` with a code of its own."""

CODES: Final[frozenset[str]] = frozenset(get_args(Code))

__all__ = [
    "ApprovalError",
    "BadResponseError",
    "CallPausedError",
    "CallTakenOverError",
    "ConfigError",
    "ContextTooLongError",
    "DuplicateToolError",
    "HandrailError",
    "InvalidArgumentsError",
    "LedgerFullError",
    "McpCallError",
    "MissingExtraError",
    "ModelFileError",
    "PermissionDeniedError",
    "ProviderDownError",
    "ProviderError",
    "ProviderKeyError",
    "ProviderLimitError",
    "RefusalError",
    "RuleError",
    "SourceError",
    "StoreError",
    "ThreadsStrandedError",
    "ToolArgsParseError",
    "ToolBuildError",
    "ToolDefinitionError",
    "ToolError",
    "ToolExecutionError",
    "ToolNotFoundError",
    "UnknownModelError",
    "UnsupportedToolError",
    "UnusableOutputError",
]


class HandrailError(Exception):
    """The base class of all exceptions of Handrail."""

    code: str = "handrail_error"

    @cached_property
    def message(self) -> str:
        """The text of the error."""
        return BaseException.__str__(self)  # for a subclass that does not call this __init__

    def __init__(self, message: object = "") -> None:
        self.message = str(message)
        super().__init__(self.message)

    def __str__(self) -> str:
        # Some subclasses are also KeyErrors, whose str() is a repr.
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an exception is unpickled from its args, which not every subclass here accepts.
        return _rebuild, (type(self), self.args, self.__dict__)

    def to_log_dict(self) -> dict[str, Any]:
        """Return what may be logged; never the value of an argument."""
        return {"type": type(self).__name__, "code": self.code, "message": self.message}


def _rebuild(kind: type[HandrailError], args: tuple[Any, ...], state: dict[str, Any]) -> HandrailError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ToolError(HandrailError):
    """A failure whose message is written for the model.

    Raise it in a handler if the call had no effect.
    """

    code = "tool_execution_failed"
    retryable: bool = False
    after: float | None = None

    def __init__(
        self,
        message: object = "",
        *,
        code: str | None = None,
        retryable: bool | None = None,
        after: float | None = None,
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        if retryable is not None:
            self.retryable = retryable
        self.after = after
        """In how many seconds another attempt makes sense, if that is known."""

    def to_log_dict(self) -> dict[str, Any]:
        # The message is for the model, and may quote what the model sent.
        return {"type": type(self).__name__, "code": self.code, "retryable": self.retryable}


class ToolNotFoundError(ToolError, KeyError):
    """No tool with this name is registered."""

    code = "tool_not_found"

    def __init__(self, tool_name: str, *, similar: Sequence[str] = (), available: Sequence[str] = ()) -> None:
        hint = f" Did you mean {' or '.join(f'`{name}`' for name in similar)}?" if similar else ""
        if available and not similar:
            hint = f" Available: {', '.join(f'`{name}`' for name in available)}."
        super().__init__(f"There is no tool named `{shorten(tool_name)}`.{hint}")
        self.tool_name = tool_name

    def to_log_dict(self) -> dict[str, Any]:
        return {**super().to_log_dict(), "tool_name": shorten(self.tool_name)}


class ToolArgsParseError(ToolError, ValueError):
    """The arguments are not a JSON object."""

    code = "tool_args_parse_error"
    retryable = True


class InvalidArgumentsError(ToolError, ValueError):
    """The arguments are a JSON object, but not one that this tool accepts."""

    code = "invalid_arguments"
    retryable = True

    def __init__(self, message: object = "", *, places: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.places = tuple(places)
        """Where in the arguments something is wrong, as paths: `items[0].price`."""

    def to_log_dict(self) -> dict[str, Any]:
        return {**super().to_log_dict(), "places": list(self.places)}


class PermissionDeniedError(ToolError, PermissionError):
    """The call is not allowed; the message says why, and what would allow it."""

    code = "permission_denied"


class CallPausedError(ToolError):
    """The handler waits for something else before it does anything: the call can be sent again, under another id.

    The approval of the call was not needed yet, and can be used again.
    """

    code = "in_progress"


class ToolExecutionError(ToolError):
    """The handler failed, and the reason is not for the model."""

    def __init__(self, message: object = "Tool execution failed.", *, retryable: bool | None = None) -> None:
        super().__init__(message, retryable=retryable)


class ApprovalError(HandrailError):
    """An approval that cannot be decided: unknown, expired, already decided, or for another person to decide."""

    code = "approval_error"


class StoreError(HandrailError):
    """The database was replaced while it was in use: its file was deleted, or an entry is missing."""

    code = "store_error"


class LedgerFullError(HandrailError):
    """A ledger in memory holds as many entries as it may, and none of them can be forgotten."""

    code = "ledger_full"


class CallTakenOverError(HandrailError):
    """Another worker has taken the call over, so that this one can write nothing about it."""

    code = "call_taken_over"


class ThreadsStrandedError(HandrailError):
    """Too many threads of one tool never came back: it gets no more of them."""

    code = "threads_stranded"


class UnusableOutputError(HandrailError):
    """A handler returned something that cannot become a result; the message completes "it ran, but …"."""

    code = "unusable_output"


class McpCallError(HandrailError):
    """An MCP server did not say what became of a call."""

    code = "mcp_call_error"


class ProviderError(HandrailError):
    """A request to a language model failed. The message never contains a key."""

    code = "provider_error"
    retryable: bool = False

    def __init__(
        self, message: object = "", *, code: str | None = None, status: int | None = None, after: float | None = None
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.status = status
        """The HTTP status of the response, if there was one."""
        self.after = after
        """The provider's `Retry-After` in seconds, if it sent one."""


class ProviderKeyError(ProviderError):
    """There is no API key for this provider, or the provider does not accept it."""

    code = "missing_key"


class UnknownModelError(ProviderError):
    """The provider has no model with this name, or this key may not use it."""

    code = "unknown_model"


class ProviderLimitError(ProviderError):
    """Too many requests, or no more credit."""

    code = "rate_limit"
    retryable = True


class ContextTooLongError(ProviderError):
    """The conversation is longer than the model's context window."""

    code = "context_too_long"


class RefusalError(ProviderError):
    """The model, or a content filter of its provider, refused to respond."""

    code = "refusal"


class BadResponseError(ProviderError):
    """The response is not what the API promises, or does not fit the schema that was asked for."""

    code = "bad_response"
    retryable = True


class ProviderDownError(ProviderError):
    """The provider could not be reached, failed, or ended its stream early."""

    code = "unavailable"
    retryable = True


class SourceError(HandrailError):
    """A source of tools cannot be reached, or its definitions cannot be read."""

    code = "source_error"


class ModelFileError(HandrailError):
    """A model file is missing, cannot be downloaded, or is damaged."""

    code = "model_file_error"


class ConfigError(HandrailError):
    """The program or its configuration is wrong."""

    code = "config_error"


class ToolDefinitionError(ConfigError, TypeError):
    """This cannot be a tool; the message names the part that is wrong."""

    code = "tool_definition_error"


class DuplicateToolError(ToolDefinitionError):
    """Two different tools have the same name."""

    code = "duplicate_tool"


class UnsupportedToolError(ConfigError):
    """The API of a provider does not take this tool, or this schema; the message is the reason."""

    code = "unsupported_tool"


class RuleError(ConfigError):
    """A rule of a policy cannot be read; `key` is the key that is wrong."""

    code = "rule_error"

    def __init__(self, message: object = "", *, key: str = "", is_unknown: bool = False) -> None:
        super().__init__(message)
        self.key = key
        self.is_unknown = is_unknown
        """Whether a rule has no such key at all."""


class ToolBuildError(ConfigError):
    """A tool cannot be built from a tenant's configuration."""

    code = "tool_build_error"

    def __init__(
        self, message: object = "", *, tenant_id: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.tenant_id = tenant_id
        self.details = dict(details or {})

    def to_log_dict(self) -> dict[str, Any]:
        # Details name the keys that are wrong; their values may be personal data, such as phone numbers.
        return {**super().to_log_dict(), "tenant_id": self.tenant_id, "details": sorted(self.details)}


class MissingExtraError(ConfigError, ImportError):
    """An optional dependency is not installed; the message holds the command that installs it."""

    code = "missing_extra"

    def __init__(self, package: str, *, extra: str) -> None:
        super().__init__(f"`{package}` is not installed. Install it with: pip install 'handrail[{extra}]'")
        self.extra = extra


def shorten(text: str, limit: int = 80) -> str:
    """Shorten an untrusted text to printable characters within a limit."""
    if len(text) <= limit and text.isprintable():
        return text
    clipped = text if len(text) <= limit else f"{text[:limit]}…"
    return "".join(char if char.isprintable() else "�" for char in clipped)


def must_propagate(error: BaseException, *, cancelling: int = 0) -> bool:
    """Whether a catch-all has to raise this exception again: a real cancellation, or an interrupt of the program.

    A cancellation is real if the current task was cancelled (more than `cancelling` times); else the code that was
    called has raised `CancelledError` by itself.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > cancelling
    return isinstance(error, KeyboardInterrupt)
