"""A span for every call: where it belongs, what it says, and that it ends."""

import asyncio
import contextvars
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from pydantic import SecretStr

from handrail import Executor, Policy, Rule, ToolContext, ToolResult, tool
from handrail.core import CallFinished, CallIgnored, CallStarted
from handrail.core.redact import HIDDEN
from handrail.errors import MissingExtraError
from handrail.execute import Timeouts
from handrail.monitor import Traces
from tests.monitor.conftest import CONTEXT, Door, Lines, call, crash, look, pay, refuse

ALLOWED = Policy([Rule.allow("*")])


class Tracing:
    """A provider of spans that keeps those that are over."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("tests")
        self.listener = Traces(provider, **options)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def of(self, name: str) -> Any:
        [span] = [span for span in self.spans if span.name == name]
        return span


@pytest.fixture
def tracing() -> Tracing:
    return Tracing()


async def test_a_call_is_a_span_with_the_conventional_names() -> None:
    tracing = Tracing(tools=[look], agent_name="Ann")
    executor = Executor([look], listeners=[tracing.listener])

    await executor.run(call("look"), CONTEXT)

    span = tracing.of("execute_tool look")
    assert span.kind is SpanKind.INTERNAL
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Look something up.",
        "gen_ai.tool.call.id": "c-1",
        "gen_ai.conversation.id": "s-1",
        "gen_ai.agent.id": "ann",
        "gen_ai.agent.name": "Ann",
        "handrail.tenant.id": "acme",
        "handrail.call.started": True,
        "handrail.decision.action": "allow",
        "handrail.decision.rule": "default",
        "handrail.decision.source": "default",
    }
    assert span.status.status_code is StatusCode.UNSET
    assert span.start_time <= span.end_time


# Where it belongs


def made(kind: str, tracing: Tracing) -> Any:
    """A tool of some kind, in whose handler another span begins and ends."""
    if kind == "sync":

        @tool(name="work")
        def work() -> str:
            """Work in a thread."""
            with tracing.tracer.start_as_current_span("inside"):
                return "done"

        return work

    @tool(name="work", read_only=kind != "effect", concurrency_safe=kind == "safe read")
    async def work_async() -> str:
        """Work in the loop."""
        with tracing.tracer.start_as_current_span("inside"):
            if kind != "read":
                await asyncio.sleep(0)
        return "done"

    return work_async


@pytest.mark.parametrize("kind", ["read", "safe read", "effect", "sync"])
async def test_the_span_is_inside_the_callers_and_around_the_handlers(kind: str, tracing: Tracing) -> None:
    executor = Executor([made(kind, tracing)], policy=ALLOWED, listeners=[tracing.listener])

    with tracing.tracer.start_as_current_span("caller") as caller:
        await executor.run(call("work"), CONTEXT)
        assert trace.get_current_span() is caller

    outside, span, inside = tracing.of("caller"), tracing.of("execute_tool work"), tracing.of("inside")
    assert span.parent.span_id == outside.context.span_id
    assert inside.parent.span_id == span.context.span_id
    assert span.context.trace_id == inside.context.trace_id == outside.context.trace_id


@pytest.mark.parametrize("kind", ["safe read", "effect"])
async def test_calls_that_run_together_have_spans_beside_each_other(kind: str, tracing: Tracing) -> None:
    executor = Executor([made(kind, tracing)], policy=ALLOWED, listeners=[tracing.listener])

    with tracing.tracer.start_as_current_span("caller") as caller:
        await executor.run_all([call("work", id=f"c-{n}") for n in range(3)], CONTEXT)
        assert trace.get_current_span() is caller

    outside = tracing.of("caller").context.span_id
    spans = [span for span in tracing.spans if span.name == "execute_tool work"]
    assert [span.parent.span_id for span in spans if span.parent] == [outside] * 3


async def test_a_call_inside_a_call_is_a_span_inside_a_span(tracing: Tracing) -> None:
    @tool(name="outer", read_only=True)
    async def outer(context: ToolContext[Any]) -> str:
        """Call another tool."""
        return (await executor.run(call("look", id="c-2"), CONTEXT)).for_model()

    executor = Executor(
        [outer, tool(name="look", read_only=True, concurrency_safe=True)(sunny)], listeners=[tracing.listener]
    )

    await executor.run(call("outer"), ToolContext(session_id="s-0"))

    assert tracing.of("execute_tool look").parent.span_id == tracing.of("execute_tool outer").context.span_id


async def sunny() -> str:
    """Look at the weather."""
    return "sunny"


def test_a_caller_without_a_loop_has_its_spans_around_the_call_too(tracing: Tracing) -> None:
    executor = Executor([look], listeners=[tracing.listener])

    with tracing.tracer.start_as_current_span("caller"):
        executor.run_sync(call("look"), CONTEXT)

    assert tracing.of("execute_tool look").parent.span_id == tracing.of("caller").context.span_id


async def test_listeners_after_it_see_the_span_of_the_call(tracing: Tracing) -> None:
    seen: list[Any] = []
    executor = Executor([look], listeners=[tracing.listener, lambda event: seen.append(trace.get_current_span())])

    await executor.run(call("look"), CONTEXT)

    assert seen[0].get_span_context().span_id == tracing.of("execute_tool look").context.span_id
    assert not trace.get_current_span().get_span_context().is_valid


# What came of it


@pytest.mark.parametrize(
    ("name", "code", "status"),
    [
        ("crash", "tool_execution_failed", StatusCode.ERROR),
        ("refuse", "account_closed", StatusCode.ERROR),
        ("pay", "approval_required", StatusCode.UNSET),
        ("nothing", "tool_not_found", StatusCode.ERROR),
    ],
)
async def test_a_failure_is_reported_by_its_code(name: str, code: str, status: StatusCode, tracing: Tracing) -> None:
    executor = Executor([crash, refuse, pay], listeners=[tracing.listener])

    await executor.run(call(name), CONTEXT)

    span = tracing.of(f"execute_tool {name}")
    assert span.attributes["error.type"] == code
    assert (span.status.status_code, span.status.description) == (status, code if status is StatusCode.ERROR else None)
    assert span.attributes["handrail.call.started"] == (name in ("crash", "refuse"))
    assert "closed." not in span.to_json()


async def test_a_refused_call_has_a_span_from_its_arrival_to_its_result(tracing: Tracing) -> None:
    executor = Executor([pay], listeners=[tracing.listener])

    with tracing.tracer.start_as_current_span("caller"):
        result = await executor.run(call("pay"), CONTEXT)

    span = tracing.of("execute_tool pay")
    assert (span.end_time - span.start_time) / 1e6 == pytest.approx(result.duration_ms, abs=0.01)
    assert span.parent.span_id == tracing.of("caller").context.span_id
    assert span.attributes["handrail.decision.action"] == "ask"


@pytest.mark.parametrize("name", ["look", "pay"])
async def test_a_call_that_arrives_again_has_no_span(name: str, tracing: Tracing) -> None:
    executor = Executor([look, pay], policy=ALLOWED, listeners=[tracing.listener])

    await executor.run(call(name), CONTEXT)
    await executor.run(call(name), CONTEXT)

    assert len(tracing.spans) == 1
    assert tracing.listener.unfinished == 0


# That it ends


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_cancelled_call_ends_its_span_and_says_why(read_only: bool, tracing: Tracing) -> None:
    door = Door()
    wait = door.tool(read_only=read_only, on_interrupt="cancel")
    executor = Executor([wait], policy=ALLOWED, listeners=[tracing.listener])
    waiting = asyncio.create_task(executor.run(call("wait"), CONTEXT))
    await door.entered.wait()
    assert tracing.listener.unfinished == 1

    executor.cancel("c-1", session_id="s-1")
    await waiting

    span = tracing.of("execute_tool wait")
    assert span.attributes["error.type"] == ("cancelled" if read_only else "outcome_unknown")
    [event] = span.events
    assert (event.name, event.attributes["handrail.reason"]) == ("handrail.call.cancelled", "asked to")
    assert tracing.listener.unfinished == 0


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_caller_who_leaves_leaves_no_span_open(read_only: bool, tracing: Tracing, lines: Lines) -> None:
    door = Door()
    wait = door.tool(read_only=read_only, on_interrupt="cancel")
    executor = Executor([wait], policy=ALLOWED, listeners=[tracing.listener, lines.log])
    current: list[Any] = []

    async def caller() -> None:
        with tracing.tracer.start_as_current_span("caller") as span:
            try:
                await executor.run(call("wait"), CONTEXT)
            finally:
                current.append(trace.get_current_span() is span)

    waiting = asyncio.create_task(caller())
    await door.entered.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await lines.until("call_finished")

    assert tracing.of("execute_tool wait").end_time is not None
    assert tracing.listener.unfinished == 0
    assert current == [True]


async def test_a_timeout_ends_the_span(tracing: Tracing) -> None:
    executor = Executor([Door().tool(read_only=True, timeout=0.01)], listeners=[tracing.listener])

    await executor.run(call("wait"), CONTEXT)

    assert tracing.of("execute_tool wait").attributes["error.type"] == "tool_timeout"
    assert tracing.listener.unfinished == 0


async def test_two_calls_of_one_id_do_not_end_each_others_spans(tracing: Tracing) -> None:
    door = Door()

    @tool(name="wait", read_only=True)
    async def wait(a: int) -> int:
        """Wait."""
        door.entered.set()
        await door.opened.wait()
        return a

    executor = Executor([wait], listeners=[tracing.listener])
    first = asyncio.create_task(executor.run(call("wait", '{"a": 1}'), CONTEXT))
    await door.entered.wait()
    clash = await executor.run(call("wait", '{"a": 2}'), CONTEXT)
    assert clash.error is not None
    assert tracing.listener.unfinished == 1
    door.opened.set()
    await first

    ends = [(span.attributes or {}).get("error.type") for span in tracing.spans]
    assert ends == ["duplicate_call", None]
    assert tracing.listener.unfinished == 0


def test_an_end_that_is_reported_elsewhere_ends_the_span_and_disturbs_nobody(tracing: Tracing) -> None:
    one = call("look")
    contextvars.copy_context().run(tracing.listener, CallStarted(at=1.0, session_id="s", call=one))

    with tracing.tracer.start_as_current_span("another") as another:
        tracing.listener(CallFinished(at=2.0, session_id="s", call=one, result=ToolResult(output="x")))
        assert trace.get_current_span() is another

    assert tracing.of("execute_tool look").end_time == 2_000_000_000
    assert tracing.of("execute_tool look").parent is None


def test_a_call_that_began_and_was_then_ignored_leaves_no_span_open(tracing: Tracing) -> None:
    one = call("look")
    tracing.listener(CallStarted(at=1.0, session_id="s", call=one))
    tracing.listener(CallStarted(at=2.0, session_id="s", call=one))
    tracing.listener(CallIgnored(at=3.0, session_id="s", call=one, reason="already_executed"))

    assert len(tracing.spans) == 2
    assert tracing.listener.unfinished == 0
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_slow_call_says_so(tracing: Tracing) -> None:
    await Executor([look], listeners=[tracing.listener], timeouts=Timeouts(slow_after=1e-9)).run(call("look"), CONTEXT)

    assert tracing.of("execute_tool look").attributes["handrail.call.slow"] is True


# Content


@tool(read_only=True)
async def sign_in(user: str, word: SecretStr, api_key: str = "") -> dict[str, str]:
    """Sign somebody in."""
    return {"user": user, "session_token": "t-1", "note": "x" * 50}


ARGUMENTS = '{"user": "ann", "word": "kestrel", "api_key": "kestrel"}'


async def test_arguments_and_results_are_not_written_unless_asked_for(tracing: Tracing) -> None:
    await Executor([sign_in], listeners=[tracing.listener]).run(call("sign_in", ARGUMENTS), CONTEXT)

    text = tracing.of("execute_tool sign_in").to_json()
    assert "kestrel" not in text
    assert "xxx" not in text
    assert '"user"' not in text


async def test_asked_for_they_are_written_redacted_and_bounded() -> None:
    tracing = Tracing(tools=[sign_in], content=True, max_content_chars=70)

    await Executor([sign_in], listeners=[tracing.listener]).run(call("sign_in", ARGUMENTS), CONTEXT)

    attributes = tracing.of("execute_tool sign_in").attributes
    assert attributes["gen_ai.tool.call.arguments"] == f'{{"api_key":"{HIDDEN}","user":"ann","word":"**********"}}'
    assert attributes["gen_ai.tool.call.result"] == f'{{"user":"ann","session_token":"{HIDDEN}","note":"{"x" * 19}…'


async def test_content_is_written_only_where_the_types_are_known(caplog: pytest.LogCaptureFixture) -> None:
    tracing = Tracing(content=True)
    executor = Executor([sign_in], listeners=[tracing.listener])
    known = Tracing(tools=[sign_in], content=True)
    strict = Executor([sign_in], listeners=[known.listener])

    await executor.run(call("sign_in", ARGUMENTS), CONTEXT)
    await strict.run(call("sign_in", '{"user": 1, "word": "kestrel"}'), CONTEXT)

    for span in (*tracing.spans, *known.spans):
        assert "gen_ai.tool.call.arguments" not in (span.attributes or {})
        assert "kestrel" not in span.to_json()
    assert caplog.records == []  # No listener failed.


async def test_a_tool_that_lives_elsewhere_is_an_extension() -> None:
    far = tool(name="far", read_only=True, source="mcp:files")(sunny)
    tracing = Tracing(tools=[far])

    await Executor([far], listeners=[tracing.listener]).run(call("far"), CONTEXT)

    assert tracing.of("execute_tool far").attributes["gen_ai.tool.type"] == "extension"


def test_without_opentelemetry_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    with pytest.raises(MissingExtraError, match=r"handrail\[otel\]"):
        Traces()
