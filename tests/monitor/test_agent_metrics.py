"""Telemetry of the agent: turns and model calls in the log, the metrics and the traces."""

import json
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from handrail import Agent, ChatSession, Executor, ToolContext
from handrail.core import ModelCalled, TurnFinished, TurnStarted
from handrail.errors import ProviderDownError
from handrail.providers import ModelResponse, Usage
from handrail.testing import ScriptedProvider
from handrail.testing.servers import tool_calls
from tests.monitor.conftest import Lines, create_metrics, look
from tests.monitor.test_traces import Tracing

CONTEXT = ToolContext(session_id="s-1", customer_id="c-1", tenant_id="acme", agent_id="shop")
LOOK = tool_calls(("look", {"city": "Rome"}))


async def test_a_turn_is_a_span_with_its_model_calls_and_tool_calls_inside() -> None:
    tracing, heard = Tracing(agent_name="Ann"), []
    executor = Executor([look], listeners=[heard.append, tracing.listener])
    session = ChatSession(ScriptedProvider([LOOK, "Sunny."]), executor, context=CONTEXT)
    with tracing.tracer.start_as_current_span("request") as request:
        await session.send("How is Rome?")

    turn, tool = tracing.of("invoke_agent Ann"), tracing.of("execute_tool look")
    models = [span for span in tracing.spans if span.name == "chat model"]
    assert turn.parent.span_id == request.get_span_context().span_id
    assert [span.parent.span_id for span in (*models, tool)] == [turn.context.span_id] * 3
    assert {span.context.trace_id for span in tracing.spans} == {turn.context.trace_id}
    assert turn.attributes["handrail.turn.stop_reason"] == "completed"
    assert models[0].attributes["gen_ai.usage.input_tokens"] == 10
    assert models[0].attributes["handrail.customer.id"] == "c-1"
    assert models[1].attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert tracing.listener.unfinished == 0
    assert [type(event) for event in heard if isinstance(event, TurnStarted | ModelCalled | TurnFinished)] == [
        TurnStarted,
        ModelCalled,
        ModelCalled,
        TurnFinished,
    ]
    assert (heard[-1].model_calls, heard[-1].tool_calls, heard[-1].stop_reason) == (2, 1, "completed")


async def test_an_error_of_the_provider_is_in_the_log_the_metrics_and_the_span(lines: Lines) -> None:
    tracing, metrics = Tracing(), create_metrics()
    executor = Executor([look], listeners=[lines.log, metrics, tracing.listener])
    session = ChatSession(ScriptedProvider([ProviderDownError("gone"), "Hello."]), executor, context=CONTEXT)
    with pytest.raises(ProviderDownError):
        await session.send("Hi.")
    await session.resume()

    failed, answered = [record for record in lines.records if record.event == "model_called"]  # type: ignore[attr-defined]
    code = ProviderDownError("gone").code
    assert (failed.error, failed.levelname, failed.customer_id) == ({"code": code}, "ERROR", "c-1")  # type: ignore[attr-defined]
    assert (answered.input_tokens, answered.output_tokens) == (10, 5)  # type: ignore[attr-defined]
    first, second = (span for span in tracing.spans if span.name == "chat model")
    assert (first.status.status_code, second.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    provider, read = {"provider": "scripted:model"}, metrics.registry.get_sample_value
    assert read("handrail_model_calls_total", {**provider, "code": code}) == 1
    assert read("handrail_model_calls_total", {**provider, "code": "ok"}) == 1
    assert read("handrail_model_tokens_total", {**provider, "kind": "input"}) == 10
    assert read("handrail_turns_total", {"stop_reason": "error"}) == 1
    assert read("handrail_model_duration_seconds_count", provider) == 2


async def test_the_log_has_the_ids_of_the_trace_and_of_the_customer(lines: Lines) -> None:
    tracing = Tracing()
    executor = Executor([look], listeners=[tracing.listener, lines.log])
    session = ChatSession(ScriptedProvider([LOOK, "Sunny."]), executor, context=CONTEXT)
    with tracing.tracer.start_as_current_span("request") as request:
        await session.send("How is Rome?")

    trace_id = f"{request.get_span_context().trace_id:032x}"
    records: list[Any] = lines.records
    assert {record.trace_id for record in records} == {trace_id}
    assert {record.customer_id for record in records} == {"c-1"}
    started = next(record for record in records if record.event == "call_started")
    assert started.span_id == f"{tracing.of('execute_tool look').context.span_id:016x}"


async def test_the_model_calls_of_a_judge_are_reported_like_any_other() -> None:
    tracing, metrics, heard = Tracing(agent_name="Ann"), create_metrics(), []
    plan = {"matches": [{"guideline_id": "g1", "reason": "asked"}], "verdicts": []}
    reply = {"text": "Sunny.", "new_matches": []}
    provider = ScriptedProvider([json.dumps(plan), "no JSON at all", json.dumps(reply), ProviderDownError("gone")])
    agent = Agent(provider=provider, tools=[look], listeners=[heard.append, metrics, tracing.listener])
    await agent.create_guideline("Somebody asks about the weather", tools=[look])
    session = agent.session("s-1", customer_id="c-1")
    assert (await session.send("How is Rome?")).text == "Sunny."
    with pytest.raises(ProviderDownError):
        await session.send("And Paris?")

    called = [event for event in heard if isinstance(event, ModelCalled)]
    down = ProviderDownError("gone").code
    assert [(item.provider, item.error) for item in called] == [
        ("scripted:model", None), ("scripted:model", "bad_response"), ("scripted:model", None), ("scripted:model", down)
    ]  # fmt: skip
    assert [(item.input_tokens, item.customer_id, item.turn) for item in called[::2]] == [(10, "c-1", 1)] * 2
    assert [event.model_calls for event in heard if isinstance(event, TurnFinished)] == [3, 1]
    first, second = (span for span in tracing.spans if span.name == "invoke_agent Ann")
    spans = [span for span in tracing.spans if span.name.startswith("chat")]
    assert [span.parent.span_id for span in spans] == [first.context.span_id] * 3 + [second.context.span_id]
    labels = {"provider": "scripted:model", "code": "ok"}
    assert metrics.registry.get_sample_value("handrail_model_calls_total", labels) == 2


async def test_what_a_model_costs_is_in_the_log_the_metrics_and_the_span(lines: Lines) -> None:
    tracing, metrics = Tracing(), create_metrics()
    executor = Executor([look], listeners=[lines.log, metrics, tracing.listener])
    reply = ModelResponse(text="Hello.", usage=Usage(input=1_000, output=10, cached=600, cost=0.25), model="large")
    session = ChatSession(ScriptedProvider([reply, reply]), executor, context=CONTEXT)
    for _ in range(2):
        await session.send("Hi.")

    provider, read = {"provider": "scripted:model"}, metrics.registry.get_sample_value
    assert read("handrail_model_cost_total", provider) == 0.5
    assert read("handrail_model_tokens_total", {**provider, "kind": "cached"}) == 1200
    record: Any = next(item for item in lines.records if item.event == "model_called")  # type: ignore[attr-defined]
    assert (record.cost, record.model) == (0.25, "large")
    spans = [span for span in tracing.spans if span.name.startswith("chat")]
    assert [span.attributes["handrail.model.cost"] for span in spans] == [0.25] * 2
