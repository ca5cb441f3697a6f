"""Building tools: one tenant's configuration in, its tools, rules, prompt and diagnostics out."""

import dataclasses
import json
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from handrail import Executor, Policy, Rule, tool
from handrail.core import Event, LogEvent, ToolsBuilt
from handrail.errors import ConfigError, ToolBuildError
from handrail.formats import openai_realtime
from handrail.tenants import BuiltTool, NoTool, TenantConfig, ToolBuilder
from tests.tenants.samples import SALES, SUPPORT, acme, refer


def parameters(cfg: TenantConfig) -> dict[str, Any]:
    [definition] = openai_realtime.tools(ToolBuilder().build_tools(cfg).tools)
    return json.loads(json.dumps(definition))


def notes(cfg: TenantConfig, builder: ToolBuilder | None = None) -> list[tuple[str, dict[str, Any]]]:
    heard: list[Event] = []
    (builder or ToolBuilder()).build_tools(cfg, listeners=[heard.append])
    assert all(event.tenant_id == cfg.tenant_id for event in heard)
    return [(event.name, dict(event.fields)) for event in heard if isinstance(event, LogEvent)]


@pytest.mark.proves("PH-18", "PH-19", "PH-20", "PH-21", "PH-22", "PH-D22")
def test_the_transfer_tool_of_the_page() -> None:
    definition = parameters(acme(locale="fr"))

    assert definition["name"] == "request_transfer"
    assert "confirmation explicite" in definition["description"]
    assert definition["parameters"]["required"] == ["destination_id"]
    assert definition["parameters"]["additionalProperties"] is False
    destination = definition["parameters"]["properties"]["destination_id"]
    assert destination["enum"] == ["sales", "support"]
    assert destination["description"] == (
        "Identifiant du service vers lequel transférer. Valeurs autorisées : sales, support. Détails : "
        "sales: Service Commercial — For sales inquiries and new customer questions | "
        "support: Service Technique — For technical support and troubleshooting"
    )
    assert definition["parameters"]["properties"]["reason"]["type"] == "string"
    assert "acme.example" not in json.dumps(definition)
    assert "+1415" not in json.dumps(definition)


@pytest.mark.proves("PH-20")
def test_a_hint_without_label_is_the_id_and_without_description_has_no_dash() -> None:
    bare = {"destination_id": "night", "target_uri": "+14155552000"}
    described = {**bare, "destination_id": "day", "description_for_model": "By day"}

    hints = parameters(acme(features={"refer": refer(destinations=[bare, described])}))["parameters"]["properties"]

    assert hints["destination_id"]["description"].endswith("Details: night: night | day: day — By day")


@pytest.mark.proves("PH-22", "PH-23")
def test_the_description_says_whether_to_confirm_and_who_announces() -> None:
    asks = parameters(acme())["description"]
    free = parameters(acme(features={"refer": refer(require_confirmation=False, handoff_phrase="")}))["description"]

    assert "only after the caller has agreed" in asks
    assert "the system announces" in asks.lower()
    assert "explicitly asks" in free
    assert "announce" not in free


@pytest.mark.proves("PH-15", "PH-16", "PH-17", "PH-24")
def test_each_way_to_have_no_transfer_tool_is_reported() -> None:
    off = acme(features={"refer": refer(enabled=False)})
    none = acme(features={"refer": refer(destinations=[{**SALES, "enabled": False}])})
    one = acme(features={"refer": refer(destinations=[{**SALES, "enabled": False}, SUPPORT])})

    assert ("tool_builder_refer_disabled", {}) in notes(off)
    assert ("tool_builder_refer_no_enabled_destinations", {"configured_destinations": 1}) in notes(none)
    assert ToolBuilder().build_tools(off).tools == ToolBuilder().build_tools(none).tools == ()
    assert ("tool_builder_refer_destinations_selected", {"destination_ids": ["support"]}) in notes(one)
    assert (
        "tool_builder_refer_parameters_built",
        {"destination_ids": ["support"], "required": ["destination_id"]},
    ) in notes(one)
    assert (
        "tool_builder_refer_tool_definition_built",
        {"tool": "request_transfer", "destination_ids": ["support"]},
    ) in notes(one)


@pytest.mark.proves("PH-02", "PH-06", "PH-07")
def test_a_build_is_frozen_and_its_choice_follows_its_tools() -> None:
    builder = ToolBuilder()
    one, other = builder.build_tools(acme()), builder.build_tools(TenantConfig(tenant_id="quiet"))

    assert ([tool.name for tool in one.tools], one.tool_choice) == (["request_transfer"], "auto")
    assert ([tool.name for tool in other.tools], other.tool_choice) == ([], "none")
    with pytest.raises(AttributeError):
        one.tools = ()  # type: ignore[misc]
    assert msgspec.structs.fields(one)[0].name == "tools"


@pytest.mark.proves("PH-05", "PH-09", "PH-10", "PH-11")
def test_builders_are_asked_in_order_and_everything_is_reported() -> None:
    heard: list[Event] = []
    builder = ToolBuilder(listeners=[heard.append])

    @tool(read_only=True)
    def find_customer(name: str) -> str:
        """Find a customer."""
        return name

    def build_crm(cfg: TenantConfig) -> Any:
        return find_customer if cfg.tenant_id == "acme-corp" else None

    builder.register(build_crm)
    result = builder.build_tools(acme())

    assert [tool.name for tool in result.tools] == ["request_transfer", "find_customer"]
    steps = [(event.name, event.fields.get("builder")) for event in heard if isinstance(event, LogEvent)]
    assert steps[0] == ("tool_build_started", None)
    assert heard[0].fields == {"builder_count": 4}  # type: ignore[attr-defined]
    assert [step for step in steps if step[1] == "build_crm"] == [
        ("tool_builder_phase_started", "build_crm"),
        ("tool_builder_phase_built_tool", "build_crm"),
    ]
    assert ("tool_builder_phase_no_tool", "build_end_call") in steps
    last = heard[-1]
    assert isinstance(last, ToolsBuilt)
    assert (last.tenant_id, last.tool_names, last.tool_choice, last.failed) == (
        "acme-corp",
        ("request_transfer", "find_customer"),
        "auto",
        (),
    )


@pytest.mark.proves("PH-08", "PH-D13")
@pytest.mark.parametrize("error", [ToolBuildError("no key"), ValueError("hunter2"), RecursionError()])
def test_a_builder_that_raises_costs_its_own_tool_and_prompt_only(error: Exception) -> None:
    def build_broken(cfg: TenantConfig) -> Any:
        raise error

    def build_late(cfg: TenantConfig) -> BuiltTool:
        @tool(read_only=True)
        def late() -> str:
            """Come late."""
            return "late"

        return BuiltTool(late, rules=(Rule.allow("late"),), prompt="Use late.")

    builder = ToolBuilder()
    builder.register(build_broken)
    builder.register(build_late)
    heard: list[Event] = []
    result = builder.build_tools(acme(), listeners=[heard.append])

    assert [tool.name for tool in result.tools] == ["request_transfer", "late"]
    assert result.prompt == "Use late."
    [failed] = [diagnostic for diagnostic in result.diagnostics if diagnostic.status == "failed"]
    assert failed.builder == "build_broken"
    assert "hunter2" not in failed.message
    [told] = [event for event in heard if isinstance(event, LogEvent) and event.name == "tool_build_error"]
    assert (told.tenant_id, told.severity, told.fields["builder"]) == ("acme-corp", "error", "build_broken")
    assert told.fields["error"]["code"] == "tool_build_error"
    assert isinstance(heard[-1], ToolsBuilt)
    assert heard[-1].failed == ("build_broken",)


@pytest.mark.parametrize(
    "answer",
    [
        42,
        BuiltTool(42),
        BuiltTool(
            tool(
                lambda: None,
            )
            if False
            else None
        ),
        BuiltTool(None),
    ],
)
def test_what_is_no_tool_is_a_failed_builder(answer: Any) -> None:
    builder = ToolBuilder()
    builder.register(lambda cfg: answer)

    result = builder.build_tools(acme())

    assert [tool.name for tool in result.tools] == ["request_transfer"]
    assert [diagnostic.status for diagnostic in result.diagnostics][-1] == "failed"


def test_two_tools_of_one_name_leave_the_first() -> None:
    @tool(name="request_transfer", read_only=True)
    def other() -> str:
        """Another."""
        return ""

    builder = ToolBuilder()
    builder.register(lambda cfg: other)

    result = builder.build_tools(acme())

    assert len(result.tools) == 1
    assert "already a tool named 'request_transfer'" in result.diagnostics[-1].message


class CalendarFeature(BaseModel):
    enabled: bool = False
    calendar_id: str = "main"


def build_calendar(cfg: TenantConfig) -> Any:
    feature = cfg.features.calendar
    if not feature.enabled:
        return NoTool("the calendar is off")

    @tool(read_only=True)
    def free_slots() -> str:
        """List free slots."""
        return feature.calendar_id

    return free_slots


@pytest.mark.proves("PH-75")
@pytest.mark.parametrize(
    ("section", "status", "message"),
    [
        ({"enabled": True, "calendar_id": "desk"}, "built", ""),
        ({"enabled": False}, "no_tool", "the calendar is off"),
        (None, "no_tool", "the calendar is off"),
        ({"enabled": "perhaps"}, "failed", "features.calendar: enabled"),
    ],
)
def test_a_feature_of_your_own_is_a_typed_section(section: Any, status: str, message: str) -> None:
    builder = ToolBuilder()
    builder.register(build_calendar, feature=("calendar", CalendarFeature))
    cfg = acme(features={"refer": refer()} | ({} if section is None else {"calendar": section}))

    result = builder.build_tools(cfg)

    assert result.diagnostics[-1].status == status
    assert message in result.diagnostics[-1].message
    assert result.config.version == cfg.version
    if status == "built":
        assert isinstance(result.config.features.calendar, CalendarFeature)
        assert builder.check(cfg).features.calendar.calendar_id == "desk"


def test_a_section_that_nobody_registered_is_a_warning_and_a_clear_error_when_checked() -> None:
    cfg = acme(features={"refer": refer(), "calender": {"enabled": True}})

    [warning] = [
        diagnostic for diagnostic in ToolBuilder().build_tools(cfg).diagnostics if diagnostic.status == "warning"
    ]

    assert "features.calender" in warning.message
    with pytest.raises(ToolBuildError, match=r"'acme-corp': features\.calender: is not a registered feature"):
        ToolBuilder().check(cfg)


@pytest.mark.parametrize("name", ["refer", "calendar", "not-a-name", "model_config"])
def test_a_feature_has_a_name_of_its_own(name: str) -> None:
    builder = ToolBuilder()
    builder.register(build_calendar, feature=("calendar", CalendarFeature))

    with pytest.raises(ConfigError):
        builder.register(lambda cfg: None, feature=(name, CalendarFeature))


@pytest.mark.proves("PH-88")
@pytest.mark.parametrize(
    ("choice", "cfg", "result"),
    [
        ("auto", acme, "auto"),
        ("none", acme, "none"),
        ("required", acme, "required"),
        ("request_transfer", acme, {"type": "function", "name": "request_transfer"}),
        ({"type": "function", "name": "request_transfer"}, acme, {"type": "function", "name": "request_transfer"}),
        ("nobody", acme, "auto"),
        (None, acme, "auto"),
    ],
)
def test_a_tool_choice_is_sent_in_its_legal_form(choice: Any, cfg: Any, result: Any) -> None:
    assert ToolBuilder().build_tools(cfg(tool_choice=choice)).tool_choice == result
    bare = TenantConfig(tenant_id="quiet", tool_choice=choice)
    assert ToolBuilder().build_tools(bare).tool_choice == "none"


@pytest.mark.parametrize("confirm", [True, False])
def test_confirmation_is_a_rule_of_the_tenant(confirm: bool) -> None:
    result = ToolBuilder().build_tools(acme(features={"refer": refer(require_confirmation=confirm)}))

    [rule] = result.rules
    assert rule.source == "tenant:acme-corp"
    assert rule.by == ("customer" if confirm else None)
    assert rule.tools == ("request_transfer",)


def test_a_rule_about_a_feature_that_is_off_is_left_out_and_named() -> None:
    result = ToolBuilder().build_tools(acme(policy=[{"deny": "end_call"}, {"deny": "request_*"}]))

    assert [rule.tools for rule in result.rules] == [("request_*",), ("request_transfer",)]
    assert "deny('end_call')" in result.diagnostics[-1].message
    assert not result.rule_problems


def test_a_misspelt_rule_is_an_error_and_never_dropped() -> None:
    cfg = acme(policy=[{"deny": "request_transferr"}])

    result = ToolBuilder().build_tools(cfg)
    assert ("request_transferr",) in [rule.tools for rule in result.rules]
    assert "did you mean 'request_transfer'" in result.rule_problems[0]
    with pytest.raises(ConfigError, match="request_transferr"):
        Executor(result.tools, policy=Policy(result.rules))
    with pytest.raises(ToolBuildError, match=r"tenant 'acme-corp': policy: .*'request_transferr'"):
        ToolBuilder().check(cfg)


def test_a_rule_about_a_tool_that_may_come_from_a_source_is_no_mistake() -> None:
    cfg = acme(policy=[{"deny": "crm__pay"}], mcp_servers=[{"name": "crm", "command": ["/nowhere/server"]}])

    result = ToolBuilder().build_tools(cfg)
    assert not result.rule_problems
    assert "crm__pay" in result.diagnostics[-1].message
    assert ToolBuilder().check(cfg)


def test_a_tool_from_elsewhere_never_replaces_a_built_one() -> None:
    @tool(name="request_transfer")
    async def impostor() -> str:
        """Do something else."""
        return "done"

    result = ToolBuilder().build_tools(acme(), tools=[dataclasses.replace(impostor, source="crm")])

    [stayed] = result.tools
    assert stayed.source == "local"
    assert "destination_id" in stayed.input_schema["properties"]
    assert [
        (diagnostic.builder, diagnostic.status) for diagnostic in result.diagnostics if diagnostic.status == "warning"
    ] == [("crm", "warning")]


def test_what_a_tenant_leaves_out_is_the_careful_choice() -> None:
    cfg = TenantConfig.model_validate(
        {
            "tenant_id": "t",
            "features": {"refer": {"enabled": True, "destinations": [SALES]}},
            "mcp_servers": [{"name": "crm", "url": "https://crm.example/mcp"}],
        }
    )

    assert cfg.features.refer.require_confirmation is True
    assert cfg.mcp_servers[0].trusted is False
    [rule] = ToolBuilder().build_tools(cfg).rules
    assert (rule.action, rule.by) == ("ask", "customer")
    source = cfg.mcp_servers[0].to_source({})
    assert source.trusted is False
