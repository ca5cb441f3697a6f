"""What every adapter shares: one call of a host framework's tool, run through `Executor.guard`."""

import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, Literal, TypeAlias, TypeVar, cast

from msgspec import Struct, structs
from pydantic_core import to_jsonable_python

from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.values import Approval, ToolCall, ToolResult
from handrail.define.options import ToolFlags
from handrail.errors import ApprovalError, CallPausedError, ConfigError, ToolError, ToolNotFoundError
from handrail.execute.executor import Executor

HostT = TypeVar("HostT")
ContextSource: TypeAlias = ToolContext[Any] | Callable[[HostT], ToolContext[Any]]
"""The context of every call, or a function that makes it from the host's own run context."""

PAUSES = frozenset({"approval_required", "in_progress", "outcome_unknown"})
"""Codes that are not final: somebody has to decide, or the truth is not known yet. The host pauses instead of telling
the model."""

_MAX_PAUSES = 100
"""How often a tool may pause one call by itself."""


class HostResult(Struct, frozen=True, kw_only=True):
    """The result of one call, with the host's own return value where the call ran here and now."""

    result: ToolResult
    value: Any = None
    """What the host's tool returned; for a replayed call, the recorded output, as text where it has a notice."""

    @property
    def is_pause(self) -> bool:
        """Whether the host has to pause: nothing final is known about this call."""
        return self.result.error is not None and self.result.error.code in PAUSES

    def describe_pause(self) -> dict[str, Any]:
        """What the application needs to resume: the token to approve, or the call whose outcome is in doubt."""
        result, error = self.result, self.result.error
        assert error is not None
        described = {
            "reason": error.code,
            "message": error.message,
            "tool": result.tool_name,
            "call_id": result.call_id,
        }
        if (approval := result.approval) is None:
            return described
        return (
            described
            | {"token": approval.token, "by": approval.by, "arguments": dict(approval.arguments)}
            | ({"question": approval.question} if approval.question else {})
            | ({"seen": dict(approval.seen)} if approval.seen else {})
        )


def resolve_context(source: ContextSource[HostT], host: HostT, *, turn: int = 0, wakes: int = 0) -> ToolContext[Any]:
    """The context of one call, with the turn of the host's own history and how often it was woken within that turn.

    Both count for a customer's approval, which has to come after the question: hosts resume inside the turn that asked.
    A turn that the application counts is used where it is the later one: a history can be shortened.
    """
    context: Any = source(host) if callable(source) else source
    if not isinstance(context, ToolContext):
        raise ConfigError(f"context must be a ToolContext or return one, got {type(context).__name__}.")
    context = cast(ToolContext[Any], context)
    return structs.replace(context, turn=max(context.turn, turn), wakes=wakes)


def add_provenance(
    context: ToolContext[Any],
    executor: Executor,
    *,
    spoken: Callable[[], Sequence[str]],
    results: Callable[[], Iterable[tuple[str, str]]],
) -> ToolContext[Any]:
    """The context of one call, with what its session knows about the origins of values; unchanged if no rule asks.

    `spoken` returns what the customer wrote, in order, and `results` the ids and the tools of the host's results. One
    that was not returned here (by another process, or before a restart) puts rules about its tool in doubt.
    """
    if not executor.asks_for_origins:
        return context
    provenance = context.provenance or executor.get_provenance(context)
    provenance.bind(context.session_id)
    provenance.set_customer(spoken())
    for call_id, name in results():
        provenance.mark_unknown(call_id, executor.find_source_tool(name))
    return structs.replace(context, provenance=provenance)


async def record_decision(
    executor: Executor,
    call_id: str,
    *,
    session_id: str,
    by: Literal["customer", "operator"],
    who: str,
    is_approved: bool,
    tenant_id: str | EllipsisType | None = ...,
    reason: str = "",
    arguments: Mapping[str, Any] | None = None,
    shown: Mapping[str, Any] | None = None,
) -> Approval | None:
    """Record what a person decided in the host about one call, found by its id among the open questions of a session.

    None if there is no open question about it: the call needs nobody, or was decided about already. Without a
    `tenant_id` it may be of any tenant, but not of several: sessions of two may have one id. `shown` are the arguments
    that the host shows by itself: nobody agrees to others without having seen them.
    """
    question = await _find_question(executor, call_id, session_id, tenant_id)
    if question is None:
        return None
    if not is_approved:
        return await executor.approvals.deny(question.token, by=by, who=who, reason=reason)
    if arguments == question.arguments:
        arguments = None
    elif arguments is None and shown is not None and shown != question.arguments:
        raise ApprovalError(
            f"{question.tool} would run with other arguments than were shown: show those of "
            "executor.approvals.pending(…), and pass what was shown as arguments=."
        )
    return await executor.approvals.approve(question.token, by=by, who=who, reason=reason, arguments=arguments)


async def _find_question(
    executor: Executor, call_id: str, session_id: str, tenant_id: str | EllipsisType | None
) -> Approval | None:
    """The open question about a call that expires first."""
    found: list[Approval] = []
    after: Approval | None = None
    while page := await executor.approvals.pending(session_id=session_id, after=after):
        found += [
            question
            for question in page
            if question.call_id == call_id and (tenant_id is ... or question.tenant_id == tenant_id)
        ]
        after = page[-1]
    if len({question.tenant_id for question in found}) > 1:
        raise ConfigError(f"tenant_id is needed: several tenants have a session {session_id!r} with this call.")
    return found[0] if found else None


class ControlFlow(Struct, frozen=True, kw_only=True):
    """The exceptions by which a host's tool steers its run."""

    failures: tuple[type[BaseException], ...] = ()
    """The tool did nothing, and the model reads why."""
    pauses: tuple[type[BaseException], ...] = ()
    """The tool did nothing yet: it waits for somebody, and the host sends the same call again."""


class HostAnswerError(Exception):
    """Raised by `proceed` where the host has already made an answer of what its tool raised."""

    def __init__(self, answer: Any) -> None:
        super().__init__("the tool failed in its host")
        self.answer = answer
        """What the caller gets as the value, unless the outcome is in doubt."""


class ToolFailedError(HostAnswerError):
    """The tool failed: nobody knows whether it did something, unless it is read-only."""


class ToolWaitsError(HostAnswerError):
    """The tool did nothing yet: it waits for somebody, and the host sends the same call again."""


class NoSuchToolError(HostAnswerError):
    """The host has no tool with this name: nothing was run."""


class OneEntry:
    """What may be entered once under a claim: a retry of the host inside the guard would be a second effect."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_entered = False

    def enter(self) -> None:
        """Let the first one in; the second is refused, and the developer is told why."""
        if self._is_entered:
            text = (
                f"`{self._name}` was entered a second time under one claim, and was not run again: something "
                "between Handrail and the tool retries. Place Handrail innermost, after what retries."
            )
            log.error(text)
            raise ConfigError(text)
        self._is_entered = True


class OneRun:
    """A host's tool that can run once: `methods` are those that run it. All else of it is reached as before."""

    def __init__(self, tool: Any, entry: OneEntry, *methods: str) -> None:
        self._tool = tool
        self._entry = entry
        self._methods = frozenset(methods)

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._tool, attribute)
        return self._enter(found) if attribute in self._methods else found

    def _enter(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def enter_once(*args: Any, **options: Any) -> Any:
            self._entry.enter()
            return run(*args, **options)

        return enter_once


async def run_host_call(
    executor: Executor,
    call: ToolCall,
    context: ToolContext[Any],
    proceed: Callable[[Mapping[str, Any], int], Awaitable[Any]],
    *,
    control: ControlFlow,
    schema: Mapping[str, Any] | None = None,
    flags: ToolFlags | None = None,
    record: Callable[[Any], Any] = lambda value: value,
) -> HostResult:
    """Run one call of a host's tool under the executor.

    `proceed` runs the host's tool with the arguments that were authorised, and gets how often the tool has paused this
    call before; `record` picks what is kept of its value. An exception that steers the host is recorded as "nothing
    happened", and raised again for the host; of a `HostAnswerError`, the answer is the value. One that stands for a
    timeout says nothing about the effect, which is then in doubt.
    """
    if not call.id:  # Some hosts have calls without an id: each is one of its own.
        call = structs.replace(call, id=f"host_{secrets.token_hex(12)}")
    pauses = 0
    value: Any = None
    recorded: Any = None
    raised: BaseException | None = None

    async def run(arguments: Mapping[str, Any]) -> Any:
        nonlocal value, recorded, raised
        try:
            value = await proceed(arguments, pauses)
        except control.failures as error:
            raised = error
            if _is_timeout(error):
                raise TimeoutError(f"{call.name} timed out in its host") from error
            raise ToolError(str(error) or type(error).__name__) from error
        except (ToolWaitsError, *control.pauses) as error:
            raised = error
            raise CallPausedError(f"`{call.name}` waits in its host. Nothing was done.") from error
        except NoSuchToolError as error:
            raised = error
            raise ToolNotFoundError(call.name) from error
        except ToolFailedError as error:
            raised = error
            raise
        recorded = to_json_value(record(value))
        return recorded

    result = await executor.guard(call, context, run, schema=schema, flags=flags)
    while _is_recorded_pause(result) and pauses < _MAX_PAUSES:  # It waited before: this is another attempt.
        pauses += 1
        again = structs.replace(call, id=f"{call.id}.{pauses}")
        result = await executor.guard(again, context, run, schema=schema, flags=flags)
    is_shown = result.ok and result.origin == "run" and not result.notice
    if not is_shown or result.output != recorded:  # Else it may be too long for a model.
        value = result.for_model() if result.notice else result.output
    if raised is not None and result.error is not None and result.error.code != "outcome_unknown":
        if not isinstance(raised, HostAnswerError):
            raise raised
        value = raised.answer
    return HostResult(result=result, value=value)


def _is_recorded_pause(result: ToolResult) -> bool:
    return result.origin == "replayed" and result.error is not None and result.error.code == CallPausedError.code


def to_json_value(value: Any) -> Any:
    """A value of the host as JSON. What JSON cannot hold becomes text: the effect has happened, and is recorded."""
    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings", fallback=_to_text)
    except Exception:  # noqa: BLE001  # the host's own types: whatever is wrong with them, the effect has happened
        return _to_text(value)


def _to_text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001  # such as the repr of a row whose session is closed
        return f"<{type(value).__name__}>"


def _is_timeout(error: BaseException) -> bool:
    """Whether an exception was raised because of a timeout."""
    causes = (error.__cause__, error.__context__)
    return isinstance(error, TimeoutError) or any(isinstance(cause, TimeoutError) for cause in causes)
