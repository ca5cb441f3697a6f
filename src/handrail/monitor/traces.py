"""Spans of tool calls, inside whatever span the caller is in."""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from handrail.core.events import CallCancelled, CallFinished, CallIgnored, CallStarted, Event
from handrail.core.redact import Redactor
from handrail.core.text import canonical_json
from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import MissingExtraError, ToolError, shorten
from handrail.monitor import genai
from handrail.monitor.calls import Calls
from handrail.monitor.severity import level_of

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

_LONG = 200
_NANO = 1_000_000_000


class _Open(Struct, frozen=True, kw_only=True):
    """A span that is not over, and the context to go back to."""

    span: "Span"
    outside: "Context"


class Traces:
    """Makes a span `execute_tool {tool}` of every call; the extra `otel`.

    - The span of a call begins when its handler does, is a child of the caller's current span, and is the current span
      of the handler: what the handler does is inside it.
    - A call that is refused before its handler begins has a span too, from its arrival to its answer, with
      `handrail.call.started` false. A call that is ignored, because it arrived before, has none.
    - `tools` (a registry will do) lets spans say what a tool is.
    - `content=True` also writes arguments and results, redacted: by field, by pattern, and by the types that the tool
      declares. So only calls of `tools` with valid arguments show their content.
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
        self._tracer = trace.get_tracer("handrail", tracer_provider=tracer_provider)
        self._tools = {tool.name: tool for tool in tools}
        self._agent_name = agent_name
        self._content = content
        self._most = max_content_chars
        self._redactor = redactor or Redactor()
        self._calls: Calls[_Open] = Calls()

    @property
    def unfinished(self) -> int:
        """Spans of calls that have begun and are not over."""
        return len(self._calls)

    def __call__(self, event: Event) -> None:
        """Begin or end a span."""
        match event:
            case CallStarted():
                self._started(event)
            case CallFinished():
                self._finished(event)
            case CallCancelled():
                self._cancelled(event)
            case CallIgnored() if event.reason == "already_executed":
                self._end(self._calls.pop(event), event.at)
            case _:
                pass

    def _started(self, event: CallStarted) -> None:
        outside = self._context.get_current()
        span = self._span(event, event.call, event.at, outside, started=True)
        if event.agent_id is not None:
            span.set_attribute(genai.AGENT_ID, shorten(event.agent_id, _LONG))
        before = self._calls.put(event, _Open(span=span, outside=outside))
        self._end(before, event.at)
        self._context.attach(self._trace.set_span_in_context(span, outside))

    def _finished(self, event: CallFinished) -> None:
        opened = self._calls.pop(event)
        if opened is None:
            since = event.at - event.result.duration_ms / 1000
            outside = self._context.get_current()
            span = self._span(event, event.call, since, outside, started=False)
            opened = _Open(span=span, outside=outside)
        try:
            self._describe(opened.span, event)
        finally:
            self._end(opened, event.at)

    def _cancelled(self, event: CallCancelled) -> None:
        opened = self._calls.get(event)
        if opened is not None:
            attributes = {genai.REASON: self._redactor.text(shorten(event.reason, _LONG))}
            opened.span.add_event(genai.CANCELLED, attributes, timestamp=int(event.at * _NANO))

    def _span(self, event: Event, call: ToolCall, since: float, outside: "Context", *, started: bool) -> "Span":
        name = self._redactor.text(shorten(call.name, _LONG))
        tool = self._tools.get(call.name)
        attributes: dict[str, Any] = {
            genai.OPERATION_NAME: genai.OPERATION,
            genai.TOOL_NAME: name,
            genai.TOOL_TYPE: genai.FUNCTION if tool is None or tool.source == "local" else genai.EXTENSION,
            genai.CALL_ID: shorten(call.id, _LONG),
            genai.CONVERSATION_ID: shorten(event.session_id, _LONG),
            genai.STARTED: started,
        }
        if tool is not None:
            attributes[genai.TOOL_DESCRIPTION] = tool.description
        if self._agent_name is not None:
            attributes[genai.AGENT_NAME] = self._agent_name
        if event.tenant_id is not None:
            attributes[genai.TENANT_ID] = shorten(event.tenant_id, _LONG)
        return self._tracer.start_span(
            genai.SPAN.format(tool=name),
            context=outside,
            kind=self._trace.SpanKind.INTERNAL,
            attributes=attributes,
            start_time=int(since * _NANO),
        )

    def _describe(self, span: "Span", event: CallFinished) -> None:
        result, decision = event.result, event.decision
        if event.slow:
            span.set_attribute(genai.SLOW, True)
        if decision is not None:
            span.set_attribute(genai.DECISION, decision.action)
            span.set_attribute(genai.RULE, self._redactor.text(shorten(decision.rule, _LONG)))
            span.set_attribute(genai.SOURCE, self._redactor.text(shorten(decision.source, _LONG)))
        if result.error is not None:
            # Not its message: that is the model's, and may quote what the model sent.
            code = shorten(result.error.code)
            span.set_attribute(genai.ERROR_TYPE, code)
            if level_of(result.error) > logging.INFO:
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, code))
        if self._content:
            self._show(span, event.call, result)

    def _show(self, span: "Span", call: ToolCall, result: ToolResult) -> None:
        tool = self._tools.get(call.name)
        if tool is None:
            return
        try:  # As the tool understands them: its types say what is secret, where the names do not.
            arguments = canonical_json(self._redactor.value(tool.dump(tool.parse(call.arguments_json))))
        except (ToolError, ValueError, TypeError):
            return
        span.set_attribute(genai.CALL_ARGUMENTS, self._cut(arguments))
        if result.ok:
            span.set_attribute(genai.CALL_RESULT, self._cut(self._redactor.output(result.output)))

    def _cut(self, text: str) -> str:
        return text if len(text) <= self._most else f"{text[: self._most]}…"

    def _end(self, opened: _Open | None, at: float) -> None:
        if opened is None:
            return
        opened.span.end(end_time=int(at * _NANO))
        if self._trace.get_current_span() is opened.span:
            # Set anew rather than detached: the end may be told in another context than the beginning was.
            self._context.attach(opened.outside)
