"""Every exception of Handrail, drawn as a tree.

    HandrailError
    ├── ToolError                   for the model: it reads the message and can act on it
    │   ├── ToolNotFoundError       tool_not_found          (also a KeyError)
    │   ├── ToolArgsParseError      tool_args_parse_error   (also a ValueError)
    │   ├── InvalidArgumentsError   invalid_arguments       (also a ValueError)
    │   ├── PermissionDeniedError   permission_denied       (also a PermissionError)
    │   ├── CallPausedError         in_progress
    │   └── ToolExecutionError      tool_execution_failed
    ├── ApprovalError               for whoever decides: this approval cannot be given
    ├── StoreError                  for the operator: the database is not the one that it was
    ├── ProviderError               for the operator: a language model could not be asked, or did not answer
    │   ├── ProviderKeyError        missing_key, key_refused
    │   ├── UnknownModelError       unknown_model
    │   ├── ProviderLimitError      rate_limit              may work later
    │   ├── ContextTooLongError     context_too_long
    │   ├── RefusalError            refusal                 the model, or a filter, would not
    │   ├── BadResponseError        bad_response            what came back is not what was asked for
    │   └── ProviderDownError       unavailable             no connection, a stream that was cut; may work later
    ├── SourceError                 for the operator: tools from elsewhere cannot be read
    ├── ModelFileError              for the operator: a model's file cannot be had, or is not what it should be
    └── ConfigError                 for the developer: the program must be changed
        ├── ToolDefinitionError     this cannot be a tool   (also a TypeError)
        │   └── DuplicateToolError  two tools of one name
        ├── ToolBuildError          a tenant's configuration cannot become a tool
        └── MissingExtraError       an optional dependency is absent (also an ImportError)

An error has one audience. What a model may read is a `ToolError`; everything else stays in the log.
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
    "ConfigError",
    "ContextTooLongError",
    "DuplicateToolError",
    "HandrailError",
    "InvalidArgumentsError",
    "MissingExtraError",
    "ModelFileError",
    "PermissionDeniedError",
    "ProviderDownError",
    "ProviderError",
    "ProviderKeyError",
    "ProviderLimitError",
    "RefusalError",
    "SourceError",
    "StoreError",
    "ToolArgsParseError",
    "ToolBuildError",
    "ToolDefinitionError",
    "ToolError",
    "ToolExecutionError",
    "ToolNotFoundError",
    "UnknownModelError",
]


class HandrailError(Exception):
    """What every exception of Handrail is."""

    code: str = "handrail_error"

    @cached_property
    def message(self) -> str:
        """What it says."""
        return BaseException.__str__(self)  # for a child that does not call our __init__

    def __init__(self, message: object = "") -> None:
        self.message = str(message)
        super().__init__(self.message)

    def __str__(self) -> str:
        # Some children are also KeyErrors, whose str() is a repr.
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is made again from its args, which are not what every child here is made from.
        return _again, (type(self), self.args, self.__dict__)

    def to_log_dict(self) -> dict[str, Any]:
        """What may be written to a log: never an argument's value."""
        return {"type": type(self).__name__, "code": self.code, "message": self.message}


def _again(kind: type[HandrailError], args: tuple[Any, ...], state: dict[str, Any]) -> HandrailError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ToolError(HandrailError):
    """A failure that the model is told about, in a sentence made for it.

    Raised by a handler it means: nothing happened, and here is why.
    """

    code = "tool_execution_failed"
    retryable: bool = False

    def __init__(self, message: object = "", *, code: str | None = None, retryable: bool | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        if retryable is not None:
            self.retryable = retryable

    def to_log_dict(self) -> dict[str, Any]:
        # The message is the model's, and may quote what the model sent.
        return {"type": type(self).__name__, "code": self.code, "retryable": self.retryable}


class ToolNotFoundError(ToolError, KeyError):
    """A tool of this name is not registered."""

    code = "tool_not_found"

    def __init__(self, tool_name: str, *, similar: Sequence[str] = ()) -> None:
        hint = f" Did you mean {' or '.join(f'`{name}`' for name in similar)}?" if similar else ""
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
    retryable = True


class ToolExecutionError(ToolError):
    """The handler failed in a way that says nothing useful to a model."""

    def __init__(self, message: object = "Tool execution failed.", *, retryable: bool | None = None) -> None:
        super().__init__(message, retryable=retryable)


class ApprovalError(HandrailError):
    """An approval that cannot be given: unknown, expired, decided already, or not this person's to give."""

    code = "approval_error"


class StoreError(HandrailError):
    """The database is there, but it is not the one that it was: its file was deleted, or an entry is gone."""

    code = "store_error"


class ProviderError(HandrailError):
    """A language model could not be asked, or did not answer. The message never holds a key."""

    code = "provider_error"
    retryable: bool = False

    def __init__(
        self, message: object = "", *, code: str | None = None, status: int | None = None, after: float | None = None
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.status = status
        """What the server answered, where it did."""
        self.after = after
        """Seconds after which the provider wants to be asked again, where it says so."""


class ProviderKeyError(ProviderError):
    """There is no key for this provider, or it does not accept the one it got."""

    code = "missing_key"


class UnknownModelError(ProviderError):
    """The provider has no model of this name, or this key may not use it."""

    code = "unknown_model"


class ProviderLimitError(ProviderError):
    """Too many requests, or no more credit."""

    code = "rate_limit"
    retryable = True


class ContextTooLongError(ProviderError):
    """The conversation does not fit into the model any more."""

    code = "context_too_long"


class RefusalError(ProviderError):
    """The model, or a filter in front of it, would not answer."""

    code = "refusal"


class BadResponseError(ProviderError):
    """What came back is not what was asked for."""

    code = "bad_response"
    retryable = True


class ProviderDownError(ProviderError):
    """The provider could not be reached, failed, or broke off."""

    code = "unavailable"
    retryable = True


class SourceError(HandrailError):
    """A source of tools cannot be reached, or what it says about its tools cannot be read."""

    code = "source_error"


class ModelFileError(HandrailError):
    """A model's file cannot be had, or is not what it should be."""

    code = "model_file_error"


class ConfigError(HandrailError):
    """Something in the program or its configuration must be changed."""

    code = "config_error"


class ToolDefinitionError(ConfigError, TypeError):
    """This cannot be a tool; the message names the part that is in the way."""

    code = "tool_definition_error"


class DuplicateToolError(ToolDefinitionError):
    """Two different tools of one name."""

    code = "duplicate_tool"


class ToolBuildError(ConfigError):
    """A tenant's configuration cannot become a tool."""

    code = "tool_build_error"

    def __init__(
        self, message: object = "", *, tenant_id: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.tenant_id = tenant_id
        self.details = dict(details or {})

    def to_log_dict(self) -> dict[str, Any]:
        # Details name the keys that are wrong; their values may be numbers of customers.
        return {**super().to_log_dict(), "tenant_id": self.tenant_id, "details": sorted(self.details)}


class MissingExtraError(ConfigError, ImportError):
    """An optional dependency is not installed; the message holds the command that installs it."""

    code = "missing_extra"

    def __init__(self, package: str, *, extra: str) -> None:
        super().__init__(f"`{package}` is not installed. Install it with: pip install 'handrail[{extra}]'")
        self.extra = extra


def shorten(text: str, limit: int = 80) -> str:
    """The beginning of a hostile text, printable and of bounded length."""
    clipped = text if len(text) <= limit else f"{text[:limit]}…"
    return "".join(char if char.isprintable() else "�" for char in clipped)


def must_propagate(error: BaseException, *, cancelling: int = 0) -> bool:
    """Whether a catch-all has to raise this exception again: a real cancellation, or an interrupt of the program.

    A cancellation is real if somebody cancelled the current task (more than `cancelling` times); else the code that was
    called has raised `CancelledError` by itself.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > cancelling
    return isinstance(error, KeyboardInterrupt)
