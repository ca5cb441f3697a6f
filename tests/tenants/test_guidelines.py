"""A tenant's guidelines: from a file to a guided chat with the tenant's own tools."""

import json
from pathlib import Path

import pytest

from handrail import Agent, Executor, Guideline, Policy, Tool, ToolContext, tool
from handrail.chat import FileSessionStore
from handrail.errors import ConfigError
from handrail.guide import GuidelineMatch, Plan, ScriptedJudge, ToolVerdict
from handrail.store import open_store
from handrail.tenants import TenantConfig, TenantDirectory, ToolBuilder
from tests.tenants.samples import acme

FILE = """
tenant_id: shop
guidelines:
  - condition: The customer asks where an order is
    action: Look it up and tell them
    tools: [find_order]
    criticality: high
  - condition: The customer wants their money back
    tools: [find_order, refund]
    id: money
  - condition: The customer wants a present
    tools: [wrap_up]
  - action: Be kind.
    always: true
"""


@tool(read_only=True)
def find_order(order_id: str) -> str:
    """Find an order."""
    return f"{order_id} arrives tomorrow."


@tool
def refund(order_id: str) -> str:
    """Pay an order back."""
    return "done"


def builder(*tools: Tool[..., object]) -> ToolBuilder:
    made = ToolBuilder()
    for given in tools:

        def build(cfg: TenantConfig, given: Tool[..., object] = given) -> Tool[..., object]:
            return given

        build.__name__ = f"build_{given.name}"
        made.register(build)
    return made


async def test_guidelines_of_a_file_lead_a_chat_with_the_tools_of_the_tenant(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(FILE)
    [cfg] = TenantDirectory.from_files(tmp_path)
    built = builder(find_order, refund).build_tools(cfg)
    judge = ScriptedJudge(
        [Plan((GuidelineMatch("g1"),), (ToolVerdict("find_order", "needs_to_run", {"order_id": "A-1"}),))],
        ["It arrives tomorrow."],
    )
    agent = Agent(judge=judge, executor=Executor(built.tools, policy=Policy(built.rules)), guidelines=built.guidelines)

    result = await agent.session(session_id="s-1", tenant_id=cfg.tenant_id).send("Where is A-1?")

    assert result.text == "It arrives tomorrow."
    assert "find_order for g1: needs_to_run" in result.trace.tree()
    assert "result: A-1 arrives tomorrow." in result.trace.tree()


async def test_a_handler_in_a_guided_chat_reads_the_configuration_of_its_tenant_and_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    @tool(read_only=True)
    async def look(context: ToolContext) -> str:
        """Look."""
        seen.append((context.tenant_id, context.tenant, context.secrets["crm"], context.call_control))
        return "seen"

    monkeypatch.setenv("CRM_KEY", "k-1")
    cfg = acme(secrets={"crm": "env:CRM_KEY"}, guidelines=[{"condition": "anything", "tools": ["look"], "id": "g"}])
    built = builder(look).build_tools(cfg)
    plan = Plan((GuidelineMatch("g"),), (ToolVerdict("look", "needs_to_run", {}),))
    agent = Agent(
        judge=ScriptedJudge([plan, plan], ["Done.", "Done again."]),
        executor=Executor(built.tools, policy=Policy(built.rules), secrets=cfg.secrets),
        guidelines=built.guidelines,
    )
    sessions = FileSessionStore(tmp_path)

    await agent.session("s-1", tenant=cfg, sessions=sessions, allow_memory_ledger=True).send("Look.")
    again = await agent.load_session("s-1", tenant=cfg, sessions=sessions, allow_memory_ledger=True)
    await again.send("Once more.")

    assert seen == [("acme-corp", cfg, "k-1", None)] * 2
    with pytest.raises(ConfigError, match="tenant_id must be that of tenant, 'acme-corp', got 'other'"):
        agent.session("s-2", tenant=cfg, tenant_id="other")
    with pytest.raises(ConfigError, match="tenant must be a TenantConfig, got dict"):
        agent.session("s-2", tenant={"tenant_id": "acme-corp"})


def test_a_guideline_keeps_the_tools_that_were_built_and_goes_without_any() -> None:
    cfg = acme(
        guidelines=[
            Guideline(condition="both", tools=("find_order", "refund")),
            {"condition": "gone", "tools": ["refund"]},
            {"condition": "none"},
        ]
    )

    built = builder(find_order).build_tools(cfg)

    assert [(guideline.condition, guideline.tools) for guideline in built.guidelines] == [
        ("both", ("find_order",)),
        ("none", ()),
    ]
    assert [diagnostic.message for diagnostic in built.diagnostics if diagnostic.status == "warning"] == [
        "guidelines.0 names the tool 'refund', which was not built",
        "guidelines.1 names the tool 'refund', which was not built, and is left out",
    ]


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_an_error_in_a_guideline_names_file_line_and_field(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"shop{suffix}"
    wrong = {"tenant_id": "shop", "guidelines": [{"condition": "c"}, {"condition": "d", "criticality": "urgent"}]}
    path.write_text(json.dumps(wrong, indent=0))

    with pytest.raises(ConfigError) as caught:
        TenantDirectory.from_files(tmp_path)

    line = 1 + path.read_text().splitlines().index('"criticality": "urgent"')
    assert f"shop{suffix}:{line}: guidelines.1.criticality: Input should be 'low', 'medium' or 'high'" in str(
        caught.value
    )


async def test_guidelines_survive_a_database_and_count_for_the_version(tmp_path: Path) -> None:
    cfg = acme(guidelines=[{"condition": "c", "tools": ["find_order"], "criticality": "high"}])
    async with open_store(f"sqlite+aiosqlite:///{tmp_path}/tenants.db") as store:
        await store.tenants.put(cfg, who="ann")
        found = await store.tenants.get(cfg.tenant_id)

    assert found is not None
    assert found.guidelines == (Guideline(condition="c", tools=("find_order",), criticality="high"),)
    assert found.version == cfg.version != acme().version
