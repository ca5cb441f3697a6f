"""What every adapter shares: one call of a host framework's tool, run through `Executor.guard`."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct, structs
from pydantic_core import to_jsonable_python

from handrail.core.context import ToolContext
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError, ToolError
from handrail.execute.executor import Executor

HostT = TypeVar("HostT")
ContextSource: TypeAlias = ToolContext[Any] | Callable[[HostT], ToolContext[Any]]
"""The context of every call, or a function that makes it from the host's own run context."""

PAUSES = frozenset({"approval_required", "in_progress", "outcome_unknown"})
"""Codes that are not final: somebody has to decide, or the truth is not known yet. The host pauses instead of telling
the model."""


class HostResult(Struct, frozen=True, kw_only=True):
    """The result of one call, with the host's own return value where the call ran here and now."""

    result: ToolResult
    value: Any = None
    """What the host's tool returned; for a replayed call, the recorded output."""

    @property
    def is_pause(self) -> bool:
        """Whether the host has to pause: nothing final is known about this call."""
        return self.result.error is not None and self.result.error.code in PAUSES

    def describe_pause(self) -> dict[str, Any]:
        """What the application needs to resume: the token to approve, or the call whose outcome is in doubt."""
        result, error = self.result, self.result.error
        assert error is not None
        described: dict[str, Any] = {"reason": error.code, "message": error.message, "tool": result.tool_name}
        if result.approval is not None:
            described |= {"token": result.approval.token, "by": result.approval.by, "arguments": result.approval.arguments}
        return described | {"call_id": result.call_id}


def resolve_context(source: ContextSource[HostT], host: HostT, *, resumed: bool = False) -> ToolContext[Any]:
    """The context of one call; one turn later where the host was woken by a person's decision.

    A customer's approval counts from a later turn on, and hosts resume inside the turn that asked.
    """
    context = source if isinstance(source, ToolContext) else source(host)
    if not isinstance(context, ToolContext):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
        raise ConfigError(f"context must be a ToolContext or return one, got {type(context).__name__}.")
    return structs.replace(context, turn=context.turn + 1) if resumed else context


async def run_host_call(
    executor: Executor,
    call: ToolCall,
    context: ToolContext[Any],
    proceed: Callable[[Mapping[str, Any]], Awaitable[Any]],
    *,
    schema: Mapping[str, Any] | None = None,
    control_exceptions: tuple[type[BaseException], ...] = (),
    record: Callable[[Any], Any] = lambda value: value,
) -> HostResult:
    """Run one call of a host's tool under the executor.

    `proceed` runs the host's tool with the arguments that were authorised; `record` picks what is kept of its value. A
    control exception of the host (a retry, a pause of its own) means that nothing happened: it is recorded so, and
    raised again for the host. One that stands for a timeout says nothing about the effect, which is then in doubt.
    """
    value: Any = None
    control: BaseException | None = None

    async def run(arguments: Mapping[str, Any]) -> Any:
        nonlocal value, control
        try:
            value = await proceed(arguments)
        except control_exceptions as error:
            control = error
            if _is_timeout(error):
                raise TimeoutError(f"{call.name} timed out in its host") from error
            raise ToolError(str(error) or type(error).__name__) from error
        return to_json_value(record(value))

    result = await executor.guard(call, context, run)
    host = HostResult(result=result, value=value if result.ok and result.origin == "run" else result.output)
    if control is not None and not result.ok and not host.is_pause:
        raise control
    return host


def to_json_value(value: Any) -> Any:
    """A value of the host as JSON. What JSON cannot hold becomes text: the effect has happened, and is recorded."""
    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings", fallback=str)
    except (ValueError, RecursionError):
        return str(value)


def _is_timeout(error: BaseException) -> bool:
    """Whether an exception was raised because of a timeout."""
    causes = (error.__cause__, error.__context__)
    return isinstance(error, TimeoutError) or any(isinstance(one, TimeoutError) for one in causes)
