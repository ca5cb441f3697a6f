"""Every log event of the phone document is one of ours, with its fields, and the page about monitoring lists them."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolContext, tool
from handrail.core import events
from handrail.errors import ToolBuildError
from handrail.monitor import Log
from handrail.phone import events as phone_events
from handrail.tenants import TenantConfig, ToolBuilder
from tests.monitor.conftest import CONTEXT, Door, Lines, call, crash, look
from tests.monitor.phone_log_events import PHONE_LOG_EVENTS
from tests.phone.scripted import BrokenExecutor, ScriptedTransport, make_session
from tests.tenants.samples import acme, refer
from tests.tenants.test_transfer import Agent, Line

ROOT = Path(__file__).parents[2]
SEEDS = ROOT.parent / "shared" / "seeds"
"""Where the phone document is, on the machines that have it."""

PHONE = {
    "request_transfer_destination_not_found", "request_transfer_destination_resolution_finished",
    "request_transfer_destination_resolution_started", "request_transfer_destination_resolved",
    "request_transfer_refer_call_started", "request_transfer_refer_call_succeeded",
    "request_transfer_refer_feature_disabled", "request_transfer_started", "tool_build_error", "tool_build_finished",
    "tool_build_started", "tool_builder_phase_built_tool", "tool_builder_phase_no_tool", "tool_builder_phase_started",
    "tool_builder_refer_destinations_selected", "tool_builder_refer_disabled",
    "tool_builder_refer_no_enabled_destinations", "tool_builder_refer_parameters_built",
    "tool_builder_refer_tool_definition_built", "tool_cancel_all_finished", "tool_cancel_all_started",
    "tool_cancel_for_response_finished", "tool_cancel_for_response_skipped_missing_response_id",
    "tool_cancelled_for_response", "tool_execution_error", "tool_execution_failed", "tool_executor_arguments_parsed",
    "tool_executor_dependencies_prepared", "tool_executor_execute_finished", "tool_executor_execute_started",
    "tool_invocation_ignored_already_executed", "tool_invocation_ignored_already_pending", "tool_invocation_scheduled",
    "tool_not_found", "tool_run_and_respond_fallback_output_failed", "tool_run_and_respond_fallback_output_sent",
    "ws_tool_call_received", "ws_tool_dispatcher_missing_fallback_output", "ws_tool_invocation_built",
    "ws_tool_invocation_submitting_to_dispatcher",
}  # fmt: skip


ROWS = PHONE_LOG_EVENTS
COMMON = {"session_id", "tenant_id", "customer_id", "call_id", "tool", "response_id", "item_id", "guideline_ids"}
"""Fields that the page names once, for all events of a call."""


def documented() -> dict[str, set[str]]:
    """The log events of the page, with their fields."""
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    part = page.partition("| event | when | further fields |\n")[2]
    fields: dict[str, set[str]] = {}
    for line in part.splitlines()[1:]:
        if not line.startswith("|"):
            break
        names, _, further = (cell.strip() for cell in line.strip("|").split("|"))
        for name in re.findall(r"`(\w+)`", names):
            fields[name] = set(re.findall(r"`(\w+)`", further))
    return fields


def test_the_names_are_those_of_the_document() -> None:
    pages = [path for prefix in ("000_", "003_") for path in SEEDS.glob(f"{prefix}*.txt")]
    found = [set(re.findall(r'log_event\(\s*logging\.\w+,\s*"(\w+)"', page.read_text("utf-8"))) for page in pages]

    assert all(names == PHONE for names in found)
    assert len(PHONE) == 40


@pytest.mark.proves("PH-86")
def test_every_log_event_of_the_document_has_one_row() -> None:
    assert sorted(phone for phone, *_ in ROWS) == sorted(PHONE)
    assert all(fields for *_, fields in ROWS)


async def everything(lines: Lines) -> None:
    """Have every event told that an executor tells of."""
    door = Door()

    @tool(name="hold", concurrency_safe=True, on_interrupt="cancel")
    async def hold(city: str) -> str:
        """Wait."""
        door.entered.set()
        await door.opened.wait()
        return "held"

    executor = Executor([look, crash, hold], policy=Policy([Rule.allow("*")]), listeners=[lines.log])
    for name in ("look", "look", "crash", "nothing"):
        await executor.run(call(name, id=name), CONTEXT)
    arrivals = [asyncio.create_task(executor.run(call("hold", '{"city": "Rome"}'), CONTEXT)) for _ in range(2)]
    await door.entered.wait()
    executor.cancel_tools_for_response("r-1", session_id="s-1")
    executor.cancel_tools_for_response("", session_id="s-1")
    await executor.cancel_all("s-1")
    await asyncio.gather(*arrivals)
    await every_transfer(lines)
    await every_fallback(lines)


async def every_transfer(lines: Lines) -> None:
    """Have every event told that building tools and transferring a call tell of."""

    def build_broken(cfg: TenantConfig) -> None:
        raise ToolBuildError("no key")

    builder = ToolBuilder()
    builder.register(build_broken)
    off, none = acme(features={}), acme(features={"refer": refer(destinations=[])})
    for cfg in (acme(), off, none):
        builder.build_tools(cfg, listeners=[lines.log])
    for number, (now, outcome) in enumerate(
        ((acme(), "transferred"), (acme(), "failed"), (off, "failed"), (none, "failed"))
    ):
        agent = Agent(acme(features={"refer": refer(require_confirmation=False)}), Line(outcome), listener=lines.log)
        agent.cfg = now
        await agent.call(id=f"c-{number}", destination_id="sales")


async def every_fallback(lines: Lines) -> None:
    """Have a phone session tell of calls that arrive, that nothing can run, and whose run fails."""
    for is_cut in (False, True):
        transport = ScriptedTransport(is_cut=is_cut)
        session = make_session(transport, emit=lines.log, executor=BrokenExecutor)
        running = asyncio.create_task(session.run())
        await transport.opened.wait()
        for number, name in enumerate(("nothing", "request_transfer")):
            transport.call(f"c{number}", name, '{"destination_id": "sales"}')
        await transport.wait_for_outputs(1 if is_cut else 2)
        session.end()
        await running


async def test_every_name_of_the_document_comes_out_of_the_log_that_is_asked_for_them(lines: Lines) -> None:
    lines.log = Log(lines.log._logger, phone_names=True)
    await everything(lines)

    assert PHONE - set(lines.names) == set()
    for name, record in zip(lines.names, lines.records, strict=True):
        if name in ("tool_execution_failed", "tool_execution_error", "tool_build_error"):
            assert record.levelname == "ERROR"
        if name in PHONE and not name.startswith("tool_build"):
            assert record.session_id


async def test_a_phone_name_says_no_more_than_what_happened(lines: Lines) -> None:
    lines.log = Log(lines.log._logger, phone_names=True)
    door = Door()

    @tool(read_only=True, concurrency_safe=True)
    async def hold() -> str:
        """Wait."""
        door.entered.set()
        await door.opened.wait()
        return "held"

    executor = Executor([hold], listeners=[lines.log])
    running = asyncio.create_task(executor.run(call("hold", "{}"), ToolContext(session_id="s-1")))
    await door.entered.wait()
    await executor.cancel_all("s-1")
    await running

    assert {"tool_executor_execute_started", "call_cancelled", "tool_cancel_all_finished"} <= set(lines.names)
    assert "tool_cancelled_for_response" not in lines.names  # It was the end of the session.
    assert "tool_executor_dependencies_prepared" not in lines.names  # There are none.


@pytest.mark.proves("PH-86")
async def test_every_row_names_an_event_that_is_reported_under_that_name_with_those_fields(lines: Lines) -> None:
    kinds = [name for name, kind in vars(events).items() if isinstance(kind, type) and issubclass(kind, events.Event)]
    names = {name: re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in kinds}
    told: dict[str, set[str]] = {}
    await everything(lines)
    for name, record in zip(lines.names, lines.records, strict=True):
        told.setdefault(name, set()).update(record.__dict__)

    page = documented()
    for phone, event, log, fields in ROWS:
        own = (names[event], f"{names[event]}_skipped")
        assert log in ((phone,) if event in ("LogEvent", "ToolsBuilt") else own), phone
        assert set(fields) <= told[log], phone
        assert set(fields) <= page[log] | COMMON, phone


def test_the_page_lists_every_event_and_what_the_log_writes_of_it() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    kinds: dict[str, Any] = {
        name: kind
        for module in (events, phone_events)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event
    }
    table = page.partition("| event | when | its own fields |\n")[2].partition("\n\n")[0]
    rows = {name: row for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    for name, kind in kinds.items():
        own = set(kind.__struct_fields__) - set(events.Event.__struct_fields__)
        assert own <= set(re.findall(r"`(\w+)`", rows[name])), name
    # A `LogEvent` is written under its own name.
    written = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in kinds.keys() - {"ToolsBuilt", "LogEvent"}}
    assert sorted(written - documented().keys()) == []


async def test_the_page_names_no_field_that_an_event_does_not_have(lines: Lines) -> None:
    await everything(lines)
    told: dict[str, set[str]] = {}
    for name, record in zip(lines.names, lines.records, strict=True):
        told.setdefault(name, set()).update(record.__dict__)
    sometimes = {
        "origin",
        "recorded",
        "silent",
        "slow",
        "agent_id",
        "by",
        "rule",
        "source",
        "decision_reason",
        "decision",
    }
    for name, fields in documented().items():
        if name in told:
            assert fields - sometimes <= told[name], name
