"""Secrets are planted everywhere, calls of every kind are made, and then everything that was written is searched."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import generate_latest
from pydantic import BaseModel, SecretStr

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, tool
from handrail.core import Redactor
from handrail.core.text import compact_json
from handrail.monitor import JsonFormatter, Log, Meters, Traces
from handrail.store import open_store
from tests.monitor.conftest import create_metrics

# Each has its place in the name, so that a failure says where it got through.


def plain(place: str) -> str:
    """A value that looks like nothing: only what quotes no values at all keeps it."""
    return f"canary-plain-{place}"


def secret(place: str) -> str:
    """A value that is under a secret name, or of a secret type."""
    return f"canary-secret-{place}"


def key(place: str) -> str:
    """A value that looks like a secret."""
    return f"sk-canary-{place}-A1b2C3d4E5f6G7h8"


HARMLESS = "marker-that-may-be-seen"


class Bank:
    def __init__(self) -> None:
        self.password = secret("deps")

    def __repr__(self) -> str:
        return f"Bank({self.password}, {plain('deps')})"


class Login(BaseModel):
    user: str
    word: SecretStr
    api_key: str = ""


class Stopping(Exception):
    def __str__(self) -> str:
        return plain("str")


# Tools


@tool(read_only=True)
async def fine(note: str = "", password: str = "", context: ToolContext[Any] | None = None) -> dict[str, Any]:
    """Answer."""
    assert context is not None
    context.progress(f"{plain('progress')} {key('progress')} token={secret('progress')}")
    assert context.secrets["bank"] == secret("secrets")
    return {"accessToken": secret("output"), "note": key("output"), "marker": HARMLESS, "word": SecretStr("x" * 5)}


@tool
async def effect(note: str = "", login: Login | None = None) -> ToolResult:
    """Do something."""
    return ToolResult(
        output={"clientSecret": secret("effect"), "text": f"see {key('effect')}", "marker": HARMLESS},
        metadata={"pin": secret("metadata"), "note": key("metadata")},
    )


@tool
async def no_thanks(note: str = "") -> str:
    """Say no."""
    raise ToolError(f"not with {key('tool-error')} and password={secret('tool-error')}", code="closed")


@tool(read_only=True)
async def crash(note: str = "") -> str:
    """Break."""
    try:
        raise KeyError(plain("cause"))
    except KeyError as error:
        raise RuntimeError(f"{plain('crash')} {key('crash')} pin={secret('crash')} {note}") from error


@tool(read_only=True)
def crash_in_a_thread(note: str = "") -> str:
    """Break elsewhere."""
    raise Stopping(plain("thread"))


def find(arguments: dict[str, Any], context: ToolContext[Any]) -> bool:
    raise RuntimeError(plain("verify"))


@tool(verify=find)
async def fall(note: str = "") -> str:
    """Break, having perhaps done something."""
    raise ExceptionGroup(plain("group"), [ValueError(key("group")), TypeError(plain("member"))])


@tool(read_only=True, timeout=0.01)
async def late() -> str:
    """Take too long."""
    await asyncio.Event().wait()
    return ""


def object_to(arguments: dict[str, Any], context: ToolContext[Any]) -> None:
    raise ToolError(f"{plain('objection')} {arguments['note']}")


def break_down(arguments: dict[str, Any], context: ToolContext[Any]) -> None:
    raise RuntimeError(plain("check"))


@tool(read_only=True, permission_check=object_to)
async def objected(note: str = "") -> str:
    """Never run."""
    return ""


@tool(read_only=True, permission_check=break_down)
async def checked(note: str = "") -> str:
    """Never run."""
    return ""


def bad_key(arguments: Any) -> object:
    raise RuntimeError(plain("key"))


@tool(key=bad_key)
async def keyless(note: str = "") -> str:
    """Never run."""
    return ""


@tool(read_only=True)
async def odd() -> Any:
    """Return what cannot be written."""
    return Bank()


@tool
async def asked(note: str = "", login: Login | None = None) -> str:
    """Wait for somebody to agree."""
    return f"done with {key('asked')}"


@tool(read_only=True)
async def denied(note: str = "") -> str:
    """Never run."""
    return ""


TOOLS = [fine, effect, no_thanks, crash, crash_in_a_thread, fall, late, objected, checked, keyless, odd, asked, denied]


class Hook:
    def before(self, call: ToolCall, tool: Any, context: Any) -> None:
        if call.id == "hooked":
            raise RuntimeError(plain("hook"))


def broken_listener(event: object) -> None:
    raise RuntimeError(f"{plain('listener')} {event!r}")


# Making calls


class Written(logging.Handler):
    """Everything that listeners wrote, as text."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._forms = (JsonFormatter(), logging.Formatter("%(name)s %(message)s"))
        self.spans = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.bare = Traces(provider)
        self.full = Traces(provider, tools=ToolRegistry(TOOLS), content=True)
        self.metrics = create_metrics()
        self.reader = InMemoryMetricReader()
        self.meters = Meters(MeterProvider([self.reader]))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += [form.format(record) for form in self._forms]
        self.lines.append(
            repr({name: one for name, one in record.__dict__.items() if name not in ("args", "exc_info")})
        )

    def texts(self) -> Iterator[str]:
        yield from self.lines
        for span in self.spans.get_finished_spans():
            yield span.to_json()
        yield generate_latest(self.metrics.registry).decode()
        data = self.reader.get_metrics_data()
        yield data.to_json() if data else ""


@asynccontextmanager
async def logged(written: Written, level: int) -> AsyncGenerator[None]:
    logger = logging.getLogger("handrail")
    before = logger.level
    logger.addHandler(written)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(written)
        logger.setLevel(before)


async def make_every_kind_of_call(executor: Executor, *, notes: bool) -> list[ToolResult]:
    """`notes` says whether arguments hold values that only look like nothing."""

    def note(place: str) -> str:
        return compact_json({"note": f"{plain(place)} {key(place)}" if notes else key(place)})

    context = ToolContext[Any](
        session_id="s-1", tenant_id="acme", turn=1, deps=Bank(), plugin_data={"x": plain("data")}
    )
    typed = {"user": HARMLESS, "word": secret("typed"), "api_key": secret("field")}
    login = compact_json({"note": key("login"), "login": typed})
    results: list[ToolResult] = []

    async def run(name: str, arguments_json: str, id: str = "") -> ToolResult:
        result = await executor.run(
            ToolCall(id=id or f"c-{len(results)}", name=name, arguments_json=arguments_json), context
        )
        results.append(result)
        return result

    await run("fine", f'{{"note": "{key("fine")}", "password": "{secret("argument")}"}}')
    for name in (
        "effect",
        "no_thanks",
        "crash",
        "crash_in_a_thread",
        "fall",
        "objected",
        "checked",
        "keyless",
        "denied",
    ):
        await run(name, note(name))
    await run("late", "")
    await run("odd", "")
    await run("fine", note("hooked"), "hooked")
    await run("effect", login)
    await run("effect", login, "c-again")
    await run(f"no-{key('tool-name')}", note("unknown"))
    await run("fine", f'{{"password": "{secret("cut-off")}')
    await run("fine", f'{{"password": ["{secret("wrong-type")}"], "{key("wrong-name")}": 1}}')

    for answer in ("approve", "deny"):
        question = login.replace(HARMLESS, f"{HARMLESS}-{answer}")
        token = (await run("asked", question, answer)).approval.token
        await getattr(executor.approvals, answer)(token, by="operator", who="ann", reason=f"checked {key('reason')}")
        await run("asked", question, answer)

    leaving = asyncio.create_task(executor.run(ToolCall(id="left", name="late"), context))
    while not executor.running_calls("s-1"):
        await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    executor.cancel_tools_for_response("r", session_id="s-1")
    await executor.cancel_all("s-1")
    return results


def executor_with(listeners: list[Any], **options: Any) -> Executor:
    policy = Policy([Rule.deny("denied"), Rule.ask("asked", by="operator"), Rule.allow("*")])
    return Executor(
        TOOLS,
        policy=policy,
        hooks=[Hook()],
        secrets={"bank": lambda: secret("secrets")},
        listeners=listeners,
        **options,
    )


CODES = {
    "approval_required", "closed", "invalid_arguments", "outcome_unknown", "permission_denied", "refused_by_hook",
    "tool_args_parse_error", "tool_execution_failed", "tool_not_found", "tool_timeout",
}  # fmt: skip


def check_that_everything_happened(results: list[ToolResult]) -> None:
    assert {result.error.code for result in results if result.error} == CODES
    assert sum(result.ok for result in results) == 5
    assert sum(result.origin == "replayed" for result in results) == 1


async def test_no_value_of_any_kind_is_in_the_log_a_span_or_a_metric() -> None:
    written = Written()
    executor = executor_with([broken_listener, Log(), written.bare, written.metrics, written.meters])

    async with logged(written, logging.INFO):
        results = await make_every_kind_of_call(executor, notes=True)

    check_that_everything_happened(results)
    texts = list(written.texts())
    assert [text for text in texts if "canary" in text] == []
    assert any("a listener failed" in text for text in texts)
    assert any("execute_tool fine" in text for text in texts)


# The audit sees calls, not tools: what only a type makes secret must be named where values are wanted.
REDACTORS = {True: Redactor(fields=["word"]), False: Redactor()}


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
async def test_no_secret_is_written_anywhere_even_where_values_are(level: int, values: bool, tmp_path: Path) -> None:
    written = Written()
    url = f"sqlite+aiosqlite:///{tmp_path / 'executor.db'}"

    async with logged(written, level), open_store(url, audit_values=values, redactor=REDACTORS[values]) as store:
        listeners = [Log(), written.full, written.metrics, written.meters, store.audit]
        executor = executor_with(listeners, ledger=store.ledger, approvals=store.approvals)
        results = await make_every_kind_of_call(executor, notes=False)
        await store.audit.flush()

    check_that_everything_happened(results)
    texts = list(written.texts())
    files = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert [text for text in texts if "canary-secret" in text or "sk-canary" in text] == []
    assert [name for name, content in files.items() if b"canary-secret" in content or b"sk-canary" in content] == []
    # What may be seen is seen, in every place that was searched: the search works.
    assert any(HARMLESS in text and "gen_ai.tool.call.result" in text for text in texts)
    assert HARMLESS.encode() in files["executor.db"]
