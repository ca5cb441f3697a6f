"""OpenTelemetry spans of turns, model calls and tool calls."""

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from handrail.core.events import (
    CallCancelled,
    CallFinished,
    CallIgnored,
    CallStarted,
    Event,
    ModelCalled,
    TurnFinished,
    TurnStarted,
)
from handrail.core.redact import Redactor
from handrail.core.secret_patterns import MAX_PIECE
from handrail.core.text import canonical_json, compact_json
from handrail.core.tool import Tool
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.errors import MissingExtraError, ToolError, shorten
from handrail.monitor import genai
from handrail.monitor.calls import CallIdentity
from handrail.monitor.log_record import find_level

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

_MAX_CHARS = 200
_MAX_DESCRIBED = 1_000
"""The most tools whose attributes are kept."""
_MAX_DECISIONS = 256
"""The most decisions whose attributes are kept."""
_NANOSECONDS = 1_000_000_000


class _OpenSpan(Struct, frozen=True):
    """A span that has not ended, and the context to restore."""

    call: ToolCall
    span: "Span"
    parent: "Context"
    context: "Context | None" = None
    """The one in which it is the current span; None if it never was."""
    decision: Decision | None = None
    """The decision that its attributes name already."""


class Traces:
    """Makes a span `invoke_agent` for every turn, and in it `chat {model}` and `execute_tool {tool}`. Needs `otel`.

    - The span starts with the handler. It is a child of the caller's current span, and the current span of the handler.
    - A call that is refused has a span, too, from its arrival to its result, with `handrail.call.started` false. A
      repeated call that is ignored has none.

    Args:
        tracer_provider: By default the global one.
        tools: Adds the descriptions of tools, such as a registry's, to the spans.
        agent_name: The name of the agent in the spans of turns.
        content: Also write arguments and results, redacted by field, by pattern, and by the types that the tool
            declares: so only for `tools`, and only if the arguments are valid.
        max_content_chars: The length of each of them; longer ones are cut.
        redactor: What is hidden.
    """

    def __init__(
        self,
        tracer_provider: "TracerProvider | None" = None,
        *,
        tools: Iterable[Tool[..., Any]] = (),
        agent_name: str | None = None,
        content: bool = False,
        max_content_chars: int = 10_000,
        redactor: Redactor | None = None,
    ) -> None:
        try:
            from opentelemetry import context, trace  # noqa: PLC0415  # optional
        except ModuleNotFoundError as error:
            raise MissingExtraError("opentelemetry-api", extra="otel") from error
        self._context = context
        self._trace = trace
        self._internal = trace.SpanKind.INTERNAL
        self._tracer = trace.get_tracer("handrail", tracer_provider=tracer_provider)
        self._tools = {tool.name: tool for tool in tools}
        self._agent_name = agent_name
        self._content = content
        self._max_content_chars = max_content_chars
        self._max_redacted = max(max_content_chars, MAX_PIECE)
        self._redactor = redactor or Redactor()
        self._calls: dict[CallIdentity, _OpenSpan] = {}
        self._turns: dict[str, Span] = {}
        self._described: dict[str, tuple[str, dict[str, Any]]] = {}
        """The name of the span of each tool, and the attributes that all its calls have."""
        self._decisions: dict[int, tuple[Decision, dict[str, Any]]] = {}
        """The attributes of decisions by `id`: those about read-only calls are kept, and each call has the same one."""
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            CallStarted: self._start_span,
            CallFinished: self._finish_span,
            CallCancelled: self._add_cancellation,
            CallIgnored: self._drop_span,
            TurnStarted: self._start_turn,
            TurnFinished: self._finish_turn,
            ModelCalled: self._add_model_span,
        }

    @property
    def unfinished(self) -> int:
        """The number of spans that have not ended."""
        return len(self._calls) + len(self._turns)

    def __call__(self, event: Event) -> None:
        """Start or end a span."""
        handle = self._handlers.get(type(event))
        if handle is not None:
            handle(event)

    # Turns and model calls.

    def _start_turn(self, event: TurnStarted) -> None:
        attributes: dict[str, Any] = {genai.OPERATION_NAME: genai.INVOKE_AGENT, genai.TURN: event.turn}
        if event.agent_id is not None:
            attributes[genai.AGENT_ID] = shorten(event.agent_id, _MAX_CHARS)
        if self._agent_name is not None:
            attributes[genai.AGENT_NAME] = self._agent_name
        name = " ".join(filter(None, (genai.INVOKE_AGENT, self._agent_name)))
        previous = self._turns.pop(event.session_id, None)
        if previous is not None:
            previous.end(end_time=int(event.at * _NANOSECONDS))
        self._turns[event.session_id] = self._tracer.start_span(
            name,
            context=self._context.get_current(),
            kind=self._internal,
            attributes=attributes | self._describe_session(event, event.customer_id),
            start_time=int(event.at * _NANOSECONDS),
        )

    def _finish_turn(self, event: TurnFinished) -> None:
        span = self._turns.pop(event.session_id, None)
        if span is None:
            return
        span.set_attribute(genai.STOP_REASON, event.stop_reason)
        if event.stop_reason == "error":
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
        span.end(end_time=int(event.at * _NANOSECONDS))

    def _add_model_span(self, event: ModelCalled) -> None:
        provider, _, model = event.provider.partition(":")
        attributes: dict[str, Any] = {
            genai.OPERATION_NAME: genai.CHAT,
            genai.PROVIDER_NAME: provider,
            genai.REQUEST_MODEL: model,
            genai.RESPONSE_MODEL: event.model,
            genai.INPUT_TOKENS: event.input_tokens,
            genai.OUTPUT_TOKENS: event.output_tokens,
            genai.TURN: event.turn,
        }
        if event.finish_reason:
            attributes[genai.FINISH_REASONS] = (event.finish_reason,)
        if event.cost is not None:
            attributes[genai.COST] = event.cost
        if event.error is not None:
            attributes[genai.ERROR_TYPE] = shorten(event.error)
        span = self._tracer.start_span(
            f"{genai.CHAT} {model}",
            context=self._find_parent(event.session_id),
            kind=self._trace.SpanKind.CLIENT,
            attributes=attributes | self._describe_session(event, event.customer_id),
            start_time=int((event.at - event.duration_ms / 1000) * _NANOSECONDS),
        )
        if event.error is not None:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, shorten(event.error)))
        span.end(end_time=int(event.at * _NANOSECONDS))

    def _describe_session(self, event: Event, customer_id: str | None) -> dict[str, Any]:
        ids = {
            genai.CONVERSATION_ID: event.session_id, genai.TENANT_ID: event.tenant_id, genai.CUSTOMER_ID: customer_id
        }  # fmt: skip
        return {name: shorten(value, _MAX_CHARS) for name, value in ids.items() if value is not None}

    def _find_parent(self, session_id: str) -> "Context":
        """The context of a session's turn, if one is running; else the current one."""
        current = self._context.get_current()
        turn = self._turns.get(session_id)
        return current if turn is None else self._trace.set_span_in_context(turn, current)

    # Tool calls.

    def _start_span(self, event: CallStarted) -> None:
        identity = (event.session_id, id(event.call))
        if (repeated := self._calls.pop(identity, None)) is not None:
            self._end(repeated, event.at)  # It is no parent of its repetition.
        parent = self._find_parent(event.session_id) if self._turns else self._context.get_current()
        decision = event.decision
        span = self._build_span(event, event.call, event.at, parent, decision, started=True)
        if event.agent_id is not None:
            span.set_attribute(genai.AGENT_ID, shorten(event.agent_id, _MAX_CHARS))
        context = self._trace.set_span_in_context(span, parent)
        self._calls[identity] = _OpenSpan(event.call, span, parent, context, decision)
        self._context.attach(context)

    def _finish_span(self, event: CallFinished) -> None:
        open_span, result = self._calls.pop((event.session_id, id(event.call)), None), event.result
        if open_span is None:
            since = event.at - result.duration_ms / 1000
            parent = self._find_parent(event.session_id)
            span = self._build_span(event, event.call, since, parent, event.decision, started=False)
            open_span = _OpenSpan(event.call, span, parent, None, event.decision)
        is_expected = result.error is None and not event.slow and event.decision is open_span.decision
        try:
            if (not is_expected or self._content) and open_span.span.is_recording():  # Else it was not sampled.
                self._describe(open_span, event)
        finally:
            self._end(open_span, event.at)

    def _drop_span(self, event: CallIgnored) -> None:
        if (
            event.reason == "already_executed"
            and (open_span := self._calls.pop((event.session_id, id(event.call)), None)) is not None
        ):
            self._end(open_span, event.at)

    def _add_cancellation(self, event: CallCancelled) -> None:
        open_span = self._calls.get((event.session_id, id(event.call)))
        if open_span is not None:
            attributes = {genai.REASON: self._redactor.text(shorten(event.reason, _MAX_CHARS))}
            open_span.span.add_event(genai.CANCELLED, attributes, timestamp=int(event.at * _NANOSECONDS))

    def _build_span(
        self,
        event: Event,
        call: ToolCall,
        since: float,
        parent: "Context",
        decision: Decision | None,
        *,
        started: bool,
    ) -> "Span":
        name, common = self._described.get(call.name) or self._describe_tool(call.name)
        attributes = common.copy()
        attributes[genai.CALL_ID] = shorten(call.id, _MAX_CHARS)
        attributes[genai.CONVERSATION_ID] = shorten(event.session_id, _MAX_CHARS)
        attributes[genai.STARTED] = started
        if decision is not None:  # All at once: a span takes a microsecond more for attributes that are set later.
            attributes.update(self._find_decision(decision))
        if event.tenant_id is not None:
            attributes[genai.TENANT_ID] = shorten(event.tenant_id, _MAX_CHARS)
        return self._tracer.start_span(
            name,
            context=parent,
            kind=self._internal,
            attributes=attributes,
            start_time=int(since * _NANOSECONDS),
        )

    def _describe_tool(self, tool_name: str) -> tuple[str, dict[str, Any]]:
        name = self._redactor.name(tool_name)
        tool = self._tools.get(tool_name)
        attributes: dict[str, Any] = {
            genai.OPERATION_NAME: genai.OPERATION,
            genai.TOOL_NAME: name,
            genai.TOOL_TYPE: genai.FUNCTION if tool is None or tool.source == "local" else genai.EXTENSION,
        }
        if tool is not None:
            attributes[genai.TOOL_DESCRIPTION] = tool.description
        if self._agent_name is not None:
            attributes[genai.AGENT_NAME] = self._agent_name
        described = (genai.SPAN.format(tool=name), attributes)
        if len(self._described) >= _MAX_DESCRIBED:  # A model can make up any number of names.
            self._described.clear()
        if len(tool_name) <= _MAX_CHARS:
            self._described[tool_name] = described
        return described

    def _describe(self, open_span: _OpenSpan, event: CallFinished) -> None:
        span, result = open_span.span, event.result
        if (decision := event.decision) is not None and decision is not open_span.decision:
            span.set_attributes(self._find_decision(decision))
        if event.slow:
            span.set_attribute(genai.SLOW, True)
        if result.error is not None:
            # Not the message: it is written for the model and may quote the arguments.
            code = shorten(result.error.code)
            span.set_attribute(genai.ERROR_TYPE, code)
            if find_level(result.error) > logging.INFO:
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, code))
        if self._content:
            self._add_content(span, event.call, result)

    def _find_decision(self, decision: Decision) -> dict[str, Any]:
        """The attributes of a decision, kept."""
        if (known := self._decisions.get(id(decision))) is not None:
            return known[1]
        if len(self._decisions) >= _MAX_DECISIONS:
            self._decisions.clear()
        attributes: dict[str, Any] = {
            genai.DECISION: decision.action,
            genai.RULE: self._redactor.name(decision.rule),
            genai.SOURCE: self._redactor.name(decision.source),
        }
        self._decisions[id(decision)] = (decision, attributes)  # The reference keeps the id of the object unique.
        return attributes

    def _add_content(self, span: "Span", call: ToolCall, result: ToolResult) -> None:
        tool = self._tools.get(call.name)
        if tool is None:
            return
        try:  # Parsed, because a type can mark a value as secret.
            values = tool.dump(tool.parse(call.arguments_json))
            arguments = canonical_json(self._redactor.arguments(values, max_chars=self._max_redacted))
        except (ToolError, ValueError, TypeError):
            return
        span.set_attribute(genai.CALL_ARGUMENTS, self._shorten(arguments))
        if result.ok:
            output = self._redactor.beginning(result.output, max_chars=self._max_redacted)
            text = output if isinstance(output, str) else compact_json(output)
            span.set_attribute(genai.CALL_RESULT, self._shorten(text))

    def _shorten(self, text: str) -> str:
        return text if len(text) <= self._max_content_chars else f"{text[: self._max_content_chars]}…"

    def _end(self, open_span: _OpenSpan, at: float) -> None:
        span = open_span.span
        span.end(end_time=int(at * _NANOSECONDS))
        current = self._context.get_current()
        if current is open_span.context or self._trace.get_current_span(current) is span:
            # Attached, not detached: the end may come in another context than the start.
            self._context.attach(open_span.parent)
