"""One line for every fact: its name, its level, its fields, and no value."""

import asyncio
import json
import logging
import logging.handlers
import queue
from typing import Any

import pytest

from handrail import Decision, Executor, Failure, Policy, Rule, ToolContext, ToolError, ToolResult, tool
from handrail.core import events
from handrail.core.redact import HIDDEN
from handrail.errors import ToolNotFoundError
from handrail.execute import CircuitBreaker, Limits
from handrail.monitor import JsonFormatter, Log
from tests.monitor.conftest import CONTEXT, IDS, Door, Lines, call, crash, ids_of, look, pay, refuse

ALLOWED = Policy([Rule.allow("*")])


# A call


@pytest.mark.proves("PH-34", "PH-40", "PH-45", "PH-47", "GC-22")
async def test_a_call_that_starts_is_reported_with_its_ids_and_names(lines: Lines) -> None:
    executor = Executor([look], listeners=[lines.log])

    await executor.run(call("look", '{"days": 3, "city": "Rome"}'), CONTEXT)

    line = lines.one("call_started")
    assert ids_of(line) == IDS
    assert (line.tool, line.agent_id, line.levelno) == ("look", "ann", logging.DEBUG)
    assert line.argument_keys == ["city", "days"]
    assert line.dependencies == ["bank", "clock"]
    assert (line.pending, line.active) == (1, 1)
    assert "Rome" not in str(line.__dict__)


@pytest.mark.proves("PH-34")
async def test_a_call_that_is_taken_on_and_has_to_wait_is_reported_with_the_counts(lines: Lines) -> None:
    door = Door()
    executor = Executor([door.tool(), look], policy=ALLOWED, listeners=[lines.log])

    first = asyncio.create_task(executor.run(call("wait"), CONTEXT))
    await door.entered.wait()
    second = asyncio.create_task(executor.run(call("look", id="c-2"), CONTEXT))
    await lines.until("call_accepted", times=2)
    waiting, started = lines.of("call_accepted"), lines.of("call_started")
    door.opened.set()
    await asyncio.gather(first, second)

    assert [(line.call_id, line.pending, line.active) for line in waiting] == [("c-1", 1, 0), ("c-2", 2, 1)]
    assert [(line.call_id, line.pending, line.active) for line in started] == [("c-1", 1, 1)]
    assert ids_of(waiting[0]) == IDS
    assert waiting[0].levelno == logging.DEBUG
    assert [(line.pending, line.active) for line in lines.of("call_started")][-1] == (1, 1)


async def test_the_dependencies_of_a_typed_context_are_reported_by_their_type(lines: Lines) -> None:
    class Bank:
        pass

    executor = Executor([look], listeners=[lines.log])

    await executor.run(call("look"), ToolContext(session_id="s-1", deps=Bank()))

    assert lines.one("call_started").dependencies == ["Bank"]


@pytest.mark.proves("PH-50", "GC-23")
async def test_a_call_that_is_over_is_reported_with_what_came_of_it(lines: Lines) -> None:
    executor = Executor([look], listeners=[lines.log])

    await executor.run(call("look"), CONTEXT)

    line = lines.one("call_finished")
    assert ids_of(line) == IDS
    assert (line.tool, line.ok, line.output_length, line.levelno) == ("look", True, len("sunny"), logging.INFO)
    assert not hasattr(line, "error")
    assert (line.decision, line.rule, line.source) == ("allow", "default", "default")
    assert line.duration_ms >= 0
    assert "sunny" not in str(line.__dict__)


@pytest.mark.proves("PH-41")
async def test_a_tool_that_does_not_exist_is_reported_with_the_log_dict_of_its_error(lines: Lines) -> None:
    executor = Executor([look], listeners=[lines.log])

    result = await executor.run(call("lok"), CONTEXT)

    line = lines.one("call_finished")
    assert result.error is not None
    assert result.error.code == "tool_not_found"
    assert ids_of(line) == IDS
    assert line.error == ToolNotFoundError("lok").to_log_dict()
    assert (line.tool, line.ok, line.levelno) == ("lok", False, logging.WARNING)


@pytest.mark.proves("PH-87")
@pytest.mark.parametrize(("name", "code"), [("crash", "tool_execution_failed"), ("fall", "outcome_unknown")])
async def test_the_failure_of_a_handler_is_an_error_in_the_log(
    name: str, code: str, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(name="fall")
    async def fall() -> str:
        """Break, having perhaps done something."""
        raise RuntimeError("boom")

    executor = Executor([crash, fall], policy=ALLOWED, listeners=[lines.log])

    await executor.run(call(name), CONTEXT)

    line = lines.one("call_finished")
    assert (line.levelno, line.error) == (logging.ERROR, {"code": code, "retryable": False})
    [own] = caplog.records
    assert (own.name, own.levelno, own.getMessage()) == ("handrail", logging.ERROR, f"{name} failed")
    assert "RuntimeError" in caplog.text


@pytest.mark.parametrize(
    ("code", "level"),
    [
        *[(code, logging.INFO) for code in ("approval_required", "cancelled", "in_progress")],
        *[(code, logging.WARNING) for code in ("tool_not_found", "invalid_arguments", "permission_denied")],
        *[(code, logging.WARNING) for code in ("tool_args_parse_error", "refused_by_hook", "rate_limited")],
        *[(code, logging.WARNING) for code in ("duplicate_call", "account_closed")],
        *[(code, logging.ERROR) for code in ("tool_execution_failed", "outcome_unknown", "tool_timeout")],
        ("unavailable", logging.ERROR),
    ],
)
def test_how_bad_a_failure_is_shows_in_its_level(code: str, level: int, lines: Lines) -> None:
    lines.log(finished(ToolResult(error=Failure(code=code, message="it is closed"))))

    line = lines.one("call_finished")
    assert line.levelno == level
    assert "it is closed" not in str(line.__dict__)


def test_a_slow_call_is_a_warning_and_one_that_was_not_recorded_an_error(lines: Lines) -> None:
    lines.log(finished(ToolResult(output="x"), slow=True))
    lines.log(finished(ToolResult(output="x", recorded=False, metadata={"recorded": True, "silent": "words"})))

    slow, unrecorded = lines.of("call_finished")
    assert (slow.slow, slow.levelno) == (True, logging.WARNING)
    assert (unrecorded.recorded, unrecorded.levelno) == (False, logging.ERROR)
    assert not hasattr(unrecorded, "origin")
    assert not hasattr(unrecorded, "silent")


def finished(result: ToolResult, **fields: Any) -> events.CallFinished:
    return events.CallFinished(at=0.0, session_id="s-1", call=call("look"), result=result, **fields)


# Calls that arrive again


@pytest.mark.proves("PH-32")
@pytest.mark.parametrize("options", [{}, {"read_only": True}], ids=["an effect", "a read"])
async def test_a_second_arrival_of_a_running_call_is_reported_as_ignored(options: dict[str, Any], lines: Lines) -> None:
    door = Door()
    executor = Executor([door.tool(**options)], policy=ALLOWED, listeners=[lines.log])

    first = asyncio.create_task(executor.run(call("wait"), CONTEXT))
    await door.entered.wait()
    second = asyncio.create_task(executor.run(call("wait"), CONTEXT))
    await lines.until("call_ignored")
    door.opened.set()
    results = await asyncio.gather(first, second)

    line = lines.one("call_ignored")
    assert (line.reason, line.tool, line.levelno) == ("already_pending", "wait", logging.INFO)
    assert ids_of(line) == IDS
    assert [result.output for result in results] == ["open", "open"]
    assert len(lines.of("call_started")) == len(lines.of("call_finished")) == 1


@pytest.mark.proves("PH-33")
@pytest.mark.parametrize("name", ["pay", "look"])
async def test_a_second_arrival_of_a_call_that_has_run_is_reported_as_ignored(name: str, lines: Lines) -> None:
    executor = Executor([pay, look], policy=ALLOWED, listeners=[lines.log])

    await executor.run(call(name), CONTEXT)
    await executor.run(call(name), CONTEXT)

    line = lines.one("call_ignored")
    assert (line.reason, line.tool, line.levelno) == ("already_executed", name, logging.INFO)
    assert ids_of(line) == IDS
    assert len(lines.of("call_started")) == len(lines.of("call_finished")) == 1


@pytest.mark.parametrize("name", ["pay", "look"])
async def test_counts_come_back_to_nothing(name: str, lines: Lines) -> None:
    executor = Executor([pay, look, crash, refuse], policy=ALLOWED, listeners=[lines.log])

    for arrival in (call(name), call(name), call("crash", id="c-2"), call("refuse", id="c-3"), call("no", id="c-4")):
        await executor.run(arrival, CONTEXT)
    await executor.run(call(name, '{"wrong": []}', id="c-5"), CONTEXT)
    await executor.run(call("look", id="c-9"), CONTEXT)

    last = lines.of("call_started")[-1]
    assert (last.pending, last.active) == (1, 1)


# Decisions and breakers


async def test_a_decision_is_reported_with_its_rule_its_source_and_its_reason(lines: Lines) -> None:
    policy = Policy([Rule.deny("look", reason="closed on Sundays"), Rule.ask("pay", by="operator")])
    executor = Executor([look, pay], policy=policy, listeners=[lines.log])

    await executor.run(call("look"), CONTEXT)
    await executor.run(call("pay"), CONTEXT)

    denied, asked = lines.of("decision_made")
    assert (denied.decision, denied.decision_reason, denied.source) == ("deny", "closed on Sundays", "code")
    assert "look" in denied.rule
    assert ids_of(denied) == IDS
    assert (asked.decision, asked.by, asked.observed, asked.levelno) == ("ask", "operator", False, logging.INFO)
    assert [line.error["code"] for line in lines.of("call_finished")] == ["permission_denied", "approval_required"]


async def test_what_a_tools_own_check_says_is_for_the_model_only(lines: Lines) -> None:
    def check(arguments: dict[str, Any], context: ToolContext[Any]) -> None:
        raise ToolError(f"{arguments['city']} is not yours")

    @tool(read_only=True, permission_check=check)
    async def visit(city: str) -> str:
        """Go there."""
        return "there"

    executor = Executor([visit], listeners=[lines.log])

    result = await executor.run(call("visit", '{"city": "Rome"}'), CONTEXT)

    assert "Rome" in result.for_model()
    assert lines.one("decision_made").rule == "permission_check"
    assert not any("Rome" in str(record.__dict__) for record in lines.records)


async def test_a_breaker_that_opens_is_a_warning(lines: Lines) -> None:
    executor = Executor([crash], limits=Limits(circuit_breaker=CircuitBreaker(max_failures=1)), listeners=[lines.log])

    await executor.run(call("crash"), CONTEXT)

    line = lines.one("circuit_breaker_changed")
    assert (line.tool, line.state, line.levelno) == ("crash", "open", logging.WARNING)


# Other events


async def test_an_operator_who_resolves_a_doubt_is_named_with_what_they_found(lines: Lines) -> None:
    @tool
    async def wire() -> None:
        """Wire money."""
        raise TimeoutError

    executor = Executor([wire], policy=ALLOWED, listeners=[lines.log])
    await executor.run(call("wire"), CONTEXT)
    [doubt] = await executor.doubts()

    await executor.resolve(
        session_id=doubt.session_id, call_id=doubt.call_id, happened=True, who="op-7", reason="seen at the bank"
    )

    line = lines.one("doubt_resolved")
    assert (line.tool, line.happened, line.who, line.reason) == ("wire", True, "op-7", "seen at the bank")


async def test_progress_is_reported_without_the_text_of_the_handler(lines: Lines) -> None:
    @tool(read_only=True)
    async def count(context: ToolContext[Any]) -> int:
        """Count."""
        context.progress("halfway to Rome", fraction=0.5)
        return 2

    await Executor([count], listeners=[lines.log]).run(call("count"), CONTEXT)

    line = lines.one("progress")
    assert (line.call_id, line.tool, line.fraction, line.levelno) == ("c-1", "count", 0.5, logging.DEBUG)
    assert "Rome" not in str(line.__dict__)


def test_plans_and_builds_are_reported_by_names_and_counts(lines: Lines) -> None:
    lines.log(events.ToolsBuilt(at=0.0, session_id="", tenant_id="acme", tool_names=("a", "b")))
    lines.log(events.ToolsBuilt(at=0.0, session_id="", tenant_id="acme", tool_names=(), failed=("c",)))
    lines.log(events.TurnPlanned(at=0.0, session_id="s-1", turn=2, guideline_ids=("g",), call_ids=("c-1",)))

    built, failed = lines.of("tool_build_finished")
    assert (built.tenant_id, built.tool_count, built.tool_names, built.levelno) == ("acme", 2, ["a", "b"], logging.INFO)
    assert (failed.tool_count, failed.tool_names, failed.failed, failed.levelno) == (0, [], ["c"], logging.WARNING)
    planned = lines.one("turn_planned")
    assert (planned.turn, planned.guideline_ids, planned.call_ids) == (2, ["g"], ["c-1"])


def test_a_durable_call_that_waits_or_is_taken_over_is_named(lines: Lines) -> None:
    lines.log(events.CallQueued(at=0.0, session_id="s-1", call=call("look"), priority=3))
    lines.log(events.CallTakenOver(at=0.0, session_id="s-1", call=call("look"), previous_owner="w-1", owner="w-2"))

    queued, taken = lines.one("call_queued"), lines.one("call_taken_over")
    assert (queued.call_id, queued.tool, queued.priority) == ("c-1", "look", 3)
    assert (taken.call_id, taken.tool, taken.previous_owner, taken.owner) == ("c-1", "look", "w-1", "w-2")


def test_what_another_process_reports_is_named_with_its_worker_and_its_call(lines: Lines) -> None:
    where: Any = {"at": 0.0, "session_id": "s-1"}
    done = ToolResult(output="kestrel", call_id="c-1", tool_name="look")
    for event in (
        events.CallStarted(**where, call=call("look")),
        events.Progress(**where, call_id="c-1", tool_name="look", message="kestrel"),
        events.CallFinished(**where, call=call("look"), result=done),
    ):
        lines.log(events.WorkerEvent(**where, worker="w-1", event=event))

    told = lines.of("worker_event")
    assert [(item.kind, item.levelname) for item in told] == [  # type: ignore[attr-defined]
        ("call_started", "DEBUG"),
        ("progress", "DEBUG"),
        ("call_finished", "INFO"),
    ]
    assert {(item.worker, item.call_id, item.tool) for item in told} == {("w-1", "c-1", "look")}  # type: ignore[attr-defined]
    assert "kestrel" not in str([item.__dict__ for item in told])


def test_an_event_that_is_not_known_is_reported_by_its_name_and_its_numbers(lines: Lines) -> None:
    class LineDropped(events.Event, frozen=True, kw_only=True):
        seconds: float
        words: str

    lines.log(LineDropped(at=0.0, session_id="s-1", seconds=2.5, words="kestrel"))

    line = lines.one("line_dropped")
    assert (line.session_id, line.seconds) == ("s-1", 2.5)
    assert "kestrel" not in str(line.__dict__)


def test_what_a_model_or_a_person_named_is_redacted_and_bounded(lines: Lines) -> None:
    key = "sk-proj-abcdefghijklmnop1234"
    decision = Decision(action="deny", rule="r", reason=f"not with {key}")
    arguments = json.dumps({key: 1, "x" * 1_000: 2})
    lines.log(events.CallStarted(at=0.0, session_id="s", call=call(f"no {key}\n", arguments)))
    lines.log(events.DecisionMade(at=0.0, session_id="s" * 1_000, call=call("look"), decision=decision))

    started, decided = lines.one("call_started"), lines.one("decision_made")
    assert started.tool == f"no {HIDDEN}�"
    assert started.argument_keys == [HIDDEN, "x" * 200 + "…"]
    assert decided.decision_reason == f"not with {HIDDEN}"
    assert len(decided.session_id) == 201


# Lines


@pytest.mark.proves("PH-86")
async def test_a_record_is_one_line_of_json_with_the_name_and_the_fields(lines: Lines) -> None:
    await Executor([look], listeners=[lines.log]).run(call("look"), CONTEXT)

    written = [JsonFormatter().format(record) for record in lines.records]

    started, over = map(json.loads, written)
    assert not any("\n" in line for line in written)
    assert (started["event"], started["level"], started["logger"]) == ("call_started", "debug", "lines")
    assert over["time"].endswith("Z")
    assert {**over, **IDS, "event": "call_finished", "tool": "look", "ok": True} == over
    assert over["message"] == f"call finished: look, ok, {over['duration_ms']} ms"


async def test_without_a_formatter_a_record_is_readable_too(lines: Lines) -> None:
    await Executor([look], listeners=[lines.log]).run(call("look"), CONTEXT)

    summary, _, fields = lines.one("call_started").getMessage().partition(" {")
    assert summary == "call started: look"
    assert json.loads("{" + fields)["tool"] == "look"


def test_the_fields_survive_a_queue(lines: Lines) -> None:
    waiting: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    logger = logging.Logger("handrail.events")  # noqa: LOG001  # nobody else's
    logger.addHandler(logging.handlers.QueueHandler(waiting))

    Log(logger)(finished(ToolResult(output="x")))

    line = json.loads(JsonFormatter().format(waiting.get()))
    assert (line["tool"], line["event"]) == ("look", "call_finished")
    assert line["message"].startswith("call finished: look, ok")


@pytest.mark.parametrize("wins", ["added", "changed", "removed", "replaced", "formatted"])
def test_what_a_filter_makes_of_a_record_is_in_its_line(lines: Lines, wins: str) -> None:
    def change(record: Any) -> bool:
        if wins in ("added", "replaced"):
            record.region = "north"
        if wins in ("removed", "replaced"):
            del record.call_id
        if wins == "changed":
            record.tool, record.event = "look elsewhere", "call_over"
        if wins == "formatted":
            logging.Formatter("%(asctime)s %(message)s").format(record)  # Keeps both in the record.
        return True

    lines.logger.addFilter(change)
    lines.log(finished(ToolResult(output="x")))

    line = json.loads(JsonFormatter().format(lines.records[0]))
    changed = wins == "changed"
    assert (line["tool"], line["event"]) == ("look elsewhere", "call_over") if changed else ("look", "call_finished")
    assert line["message"] == f"{line['event'].replace('_', ' ')}: {line['tool']}, ok, {line['duration_ms']} ms"
    assert line.get("region") == ("north" if wins in ("added", "replaced") else None)
    assert ("call_id" in line) == (wins not in ("removed", "replaced"))
    assert "asctime" not in line


@pytest.mark.parametrize("duration", [0.0, 0.0004, 0.25, 12.0, 1234.5678, 86_400_000.0])
def test_the_line_of_a_call_that_succeeded_is_the_same_if_a_filter_has_touched_it(
    lines: Lines, duration: float
) -> None:
    decision = Decision(action="allow", rule='allow("lóok")', source="rules\\1.yaml", reason="reads \u2028 only")
    event = finished(ToolResult(output="é", duration_ms=duration, decision=decision), decision=decision)
    lines.log(event)

    def add(record: Any) -> bool:
        record.region = "north"
        return True

    lines.logger.addFilter(add)
    lines.log(event)

    untouched, touched = (JsonFormatter().format(record) for record in lines.records)
    assert touched == untouched[:-1] + ',"region":"north"}'
    assert json.loads(untouched)["duration_ms"] == round(duration, 3)


def test_a_value_that_a_filter_has_put_for_an_equal_one_is_in_the_line(lines: Lines) -> None:
    def to_numbers(record: Any) -> bool:
        record.ok, record.slow = int(record.ok), int(record.slow)
        return True

    lines.logger.addFilter(to_numbers)
    lines.log(finished(ToolResult(output="x")))

    assert '"ok":1,' in JsonFormatter().format(lines.records[0])


def test_other_peoples_records_are_written_redacted() -> None:
    def record(**options: Any) -> logging.LogRecord:
        return logging.makeLogRecord({"name": "shop", "levelname": "ERROR", **options})

    try:
        raise ValueError("with password=hunter2")
    except ValueError as error:
        failed = record(msg="it broke", exc_info=(ValueError, error, error.__traceback__))
    plain = record(msg="token=%s", args=("abc",), password="hunter2", order=7, stack_info="Stack:\n  here")

    assert "ValueError: with password=[redacted]" in json.loads(JsonFormatter().format(failed))["exception"]
    line = json.loads(JsonFormatter().format(plain))
    assert (line["message"], line["password"], line["order"]) == (f"token={HIDDEN}", HIDDEN, 7)
    assert line["stack"].endswith("here")


def test_nothing_is_made_for_a_logger_that_does_not_listen(lines: Lines) -> None:
    lines.logger.setLevel(logging.ERROR)

    lines.log(events.CallStarted(at=0.0, session_id="s", call=call("look")))
    lines.log(finished(ToolResult(output="x")))
    lines.log(finished(ToolResult(error="broken")))

    assert lines.names == ["call_finished"]


def test_a_field_of_an_event_never_says_where_the_event_belongs(lines: Lines) -> None:
    fields = {"tenant_id": "made-up", "response_id": "made-up", "step": 1}

    lines.log(events.LogEvent(at=0.0, session_id="s", name="of_a_call", call=call("look"), fields=fields))
    lines.log(events.LogEvent(at=0.0, session_id="s", name="alone", fields=fields))

    of_a_call, alone = lines.one("of_a_call").__dict__, lines.one("alone").__dict__
    assert of_a_call["step"] == 1
    assert "made-up" not in (of_a_call.get("tenant_id"), of_a_call.get("response_id"), alone.get("tenant_id"))
    assert alone["response_id"] == "made-up"


@pytest.mark.parametrize("name", ["message", "name", "event", "level", "about", "time", "logger"])
def test_a_field_that_a_record_or_a_line_has_itself_is_written_with_an_underscore(lines: Lines, name: str) -> None:
    lines.log(events.LogEvent(at=7.5, session_id="s", name="step", fields={name: "mine"}))

    record = lines.one("step")
    line = json.loads(JsonFormatter().format(record))
    written = name if name == "about" else f"{name}_"
    assert (getattr(record, written), line[written]) == ("mine", "mine")
    assert (line["time"], line["level"], line["logger"], line["event"]) == (
        "1970-01-01T00:00:07.500Z", "info", "lines", "step"
    )  # fmt: skip
    assert line["message"] == "step"
