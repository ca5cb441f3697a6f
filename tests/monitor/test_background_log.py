"""Records that a thread writes: all of them, in order, and none later than the end of the process."""

import json
import logging
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from handrail import Executor, ToolResult
from handrail.core import events
from handrail.monitor import Log
from handrail.monitor.background import BackgroundWriter
from tests.monitor.conftest import CONTEXT, Lines, call, crash, look


@pytest.fixture
def later(lines: Lines) -> Any:
    log = Log(lines.logger, in_background=True)
    yield log
    log.close()


def finished(number: int, *, output: Any = "x", error: str | None = None) -> events.CallFinished:
    result = ToolResult(output=None if error else output, error=error)
    return events.CallFinished(
        at=float(number), session_id="s", call=call("look", id=f"c-{number}"), result=result
    )  # fmt: skip


def test_the_records_are_written_in_the_order_of_the_events(lines: Lines, later: Log) -> None:
    for number in range(2_500):
        later(finished(number))

    assert later.flush()
    assert [record.created for record in lines.records] == list(range(2_500))


def test_a_record_says_where_and_when_the_event_was_emitted(lines: Lines, later: Log) -> None:
    writers: list[str] = []
    is_written = threading.Event()

    class Watching(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            writers.append(threading.current_thread().name)
            is_written.set()

    lines.logger.addHandler(Watching())  # It gets the record after `lines`.

    emitting = threading.Thread(target=later, args=(finished(7),), name="of-the-call")
    emitting.start()

    assert is_written.wait(timeout=30)
    [record] = lines.records
    assert (record.created, record.threadName, writers) == (7.0, "of-the-call", ["handrail:log"])
    emitting.join()


async def test_a_call_that_fails_is_written_before_it_returns_and_after_those_that_wait(
    lines: Lines, later: Log, caplog: pytest.LogCaptureFixture
) -> None:
    lines.logger.setLevel(logging.INFO)
    executor = Executor([look, crash], listeners=[later])

    await executor.run(call("look"), CONTEXT)
    await executor.run(call("crash", id="c-2"), CONTEXT)

    assert [record.call_id for record in lines.of("call_finished")] == ["c-1", "c-2"]


def test_a_decision_is_written_at_once(lines: Lines, later: Log) -> None:
    later(finished(1))
    later(events.CircuitBreakerChanged(at=0.0, session_id="", tool_name="look", state="closed"))

    assert lines.names == ["call_finished", "circuit_breaker_changed"]


def test_the_length_of_an_output_is_that_of_the_moment(lines: Lines, later: Log) -> None:
    output = ["a"]

    later(finished(1, output=output))
    output += ["b"] * 100
    later.flush()

    assert lines.one("call_finished").output_length == len('["a"]')


def test_the_ids_of_the_span_are_those_of_the_moment(lines: Lines, later: Log) -> None:
    with TracerProvider().get_tracer("test").start_as_current_span("outer") as span:
        later(finished(1))
    later.flush()

    record = lines.one("call_finished")
    context = span.get_span_context()
    assert (int(record.trace_id, 16), int(record.span_id, 16)) == (context.trace_id, context.span_id)


async def test_the_counts_are_those_of_the_moment(lines: Lines, later: Log) -> None:
    await Executor([look], listeners=[later]).run(call("look"), CONTEXT)
    later.flush()

    started = lines.one("call_started")
    assert (started.pending, started.active) == (1, 1)


def test_what_raises_is_reported_and_the_next_record_is_written(
    lines: Lines, later: Log, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_once(record: logging.LogRecord) -> bool:
        if record.created == 1:
            raise SystemExit("a filter of the user")
        return True

    lines.logger.addFilter(fail_once)

    for number in range(3):
        later(finished(number))
    later.flush()

    assert [record.created for record in lines.records] == [0, 2]
    assert [record.getMessage() for record in caplog.records] == ["a record of the log could not be written"]


def test_a_handler_that_emits_an_event_itself_does_not_stop_the_log(lines: Lines, later: Log) -> None:
    def emit(record: logging.LogRecord) -> bool:
        if record.created < 3:
            later(finished(int(record.created) + 1, error="broken"))
        return True

    lines.logger.addFilter(emit)

    later(finished(0))
    later.flush()

    assert sorted(record.created for record in lines.records) == [0, 1, 2, 3]


def test_a_full_queue_is_written_by_whoever_filled_it() -> None:
    written: list[int] = []
    writer = BackgroundWriter(written.append, interval=60, max_waiting=100)
    longest = 0

    for number in range(5_000):
        writer.put(number)
        longest = max(longest, len(writer))
    writer.close()

    assert written == list(range(5_000))
    assert longest <= 100


def test_a_thread_that_is_stuck_does_not_hold_a_flush_with_a_timeout() -> None:
    is_writing, may_go_on = threading.Event(), threading.Event()
    written: list[int] = []

    def write(number: int) -> None:
        is_writing.set()
        may_go_on.wait(timeout=30)
        written.append(number)

    writer = BackgroundWriter(write, interval=0)
    writer.put(1)
    assert is_writing.wait(timeout=30)
    writer.put(2)

    assert not writer.flush(timeout=0)
    may_go_on.set()
    assert writer.close(timeout=30)
    assert written == [1, 2]


def test_a_thread_that_is_stuck_does_not_hold_those_that_put_more_than_may_wait() -> None:
    is_writing, may_go_on = threading.Event(), threading.Event()
    written: list[int] = []

    def write(number: int) -> None:
        is_writing.set()
        may_go_on.wait(timeout=30)
        written.append(number)

    writer = BackgroundWriter(write, interval=0, max_waiting=100, timeout=0)
    writer.put(0)
    assert is_writing.wait(timeout=30)
    for number in range(1, 500):
        writer.put(number)

    assert written == []
    may_go_on.set()
    assert writer.close(timeout=30)
    assert written == list(range(500))


def test_a_log_that_is_closed_writes_at_once(lines: Lines, later: Log) -> None:
    later(finished(1))

    assert later.close()
    later(finished(2))
    assert later.close()

    assert [record.created for record in lines.records] == [1, 2]


def run_program(text: str) -> tuple[int, list[str]]:
    program = """
        import logging, os, sys
        from handrail import ToolCall, ToolResult
        from handrail.core.events import CallFinished
        from handrail.monitor import JsonFormatter, Log

        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(JsonFormatter())
        logging.getLogger("handrail.events").addHandler(handler)
        logging.getLogger("handrail.events").setLevel(logging.INFO)
        log = Log(in_background=True)

        def emit(id):
            log(CallFinished(at=0.0, session_id="s", call=ToolCall(id=id, name="look"), result=ToolResult(output="x")))
    """
    code = textwrap.dedent(program) + textwrap.dedent(text)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr
    return done.returncode, [json.loads(line)["call_id"] for line in done.stdout.splitlines()]


def test_a_record_that_is_emitted_just_before_the_process_exits_is_written() -> None:
    text = """
        import atexit
        atexit.register(emit, "d")  # the last to run
        emit("a")
        atexit.register(emit, "c")
        emit("b")
        sys.exit(3)
    """

    assert run_program(text) == (3, ["a", "b", "c", "d"])


@pytest.mark.skipif(sys.platform == "win32", reason="there are no forks")
def test_a_forked_child_writes_its_own_records_and_not_those_of_its_parent() -> None:
    text = """
        emit("before")
        child = os.fork()
        if not child:
            emit("of the child")
            sys.exit()
        os.waitpid(child, 0)
        emit("of the parent")
    """

    code, written = run_program(text)

    assert code == 0
    assert sorted(written) == ["before", "of the child", "of the parent"]
    assert written.index("before") < written.index("of the parent")
