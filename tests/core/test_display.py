"""How values show themselves: never a secret, never long, never markup of somebody else's, and never an exception."""

import subprocess
import sys
from typing import Any

import pytest
from rich.pretty import pretty_repr

from handrail import Agent, Decision, Executor, Failure, Policy, Rule, ToolCall, ToolContext, ToolResult, tool
from handrail.core import Approval
from handrail.guide import GuidelineMatch, Plan, ScriptedJudge, ToolVerdict

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789AB"
MARKUP = "<script>alert('x')</script>"


def build_approval(**arguments: Any) -> Approval:
    return Approval(
        token="apr_1",
        tool="pay",
        digest="d",
        session_id="s-1",
        customer_id="c-1",
        by="operator",
        turn=1,
        arguments=arguments,
        question=MARKUP,
        created_at=0.0,
        expires_at=900.0,
    )


class Hostile:
    """A value whose code does nothing but raise."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")


VALUES = [
    ToolResult(output={"password": "hunter2", "text": f"{SECRET} {MARKUP}"}, tool_name=MARKUP, call_id="c1"),
    ToolResult(output=f"the key is {SECRET} {MARKUP}", metadata={"token": SECRET}, context=SECRET, notice=MARKUP),
    ToolResult(error=Failure(code="no_stock", message=f"{SECRET} {MARKUP}")),
    ToolResult(approval=build_approval(password="hunter2"), decision=Decision(action="ask", reason=MARKUP)),
    Decision(action="deny", rule=MARKUP, reason=f"because of {SECRET}"),
    build_approval(password="hunter2", note=f"{SECRET} {MARKUP}"),
]


@pytest.mark.parametrize("value", VALUES)
def test_neither_a_console_nor_a_notebook_shows_a_secret_or_markup(value: Any) -> None:
    html = value._repr_html_()

    for shown in (repr(value), html):
        assert SECRET not in shown
        assert "hunter2" not in shown
    assert "<script" not in html
    assert "alert" in html or MARKUP not in repr(value)


@pytest.mark.parametrize(
    "output", [Hostile(), [Hostile()], {"x": Hostile()}, "\ud800\x00\x1b[31m", object(), {1: {2: 3}}]
)
def test_whatever_a_result_holds_it_can_be_shown(output: Any) -> None:
    result = ToolResult(output=output)

    assert repr(result).startswith("ToolResult(output=")
    assert result._repr_html_().startswith("<table>")
    assert repr(result).isprintable()


@pytest.mark.parametrize(
    "value",
    [
        ToolResult(output="x" * 1_000_000, notice="y" * 1_000_000),
        ToolResult(output=["x" * 100] * 10_000),
        ToolResult(output={f"key {number}": "x" for number in range(100_000)}),
        Decision(action="ask", reason="x" * 1_000_000),
        build_approval(**{f"argument_{number}": "x" * 1_000 for number in range(1_000)}),
    ],
)
def test_what_is_long_is_cut(value: Any) -> None:
    assert len(value._repr_html_()) < 20_000
    if not isinstance(value, Approval):  # It shows the names of all arguments.
        assert len(repr(value)) < 2_000


def test_a_short_result_reads_as_what_it_is() -> None:
    result = ToolResult(output="Paid 40 EUR.", tool_name="pay", call_id="c1", decision=Decision(action="allow"))

    assert repr(result) == "ToolResult(output='Paid 40 EUR.', tool_name='pay', call_id='c1', decision='allow')"
    assert repr(ToolResult(output=0)) == "ToolResult(output=0)"
    assert repr(ToolResult()) == "ToolResult()"
    assert repr(Decision(action="ask", by="customer")) == "Decision(action='ask', by='customer')"


def test_an_explanation_shows_its_lines() -> None:
    @tool
    def pay(invoice_id: str, amount: int) -> str:
        """Pay."""
        return ""

    executor = Executor([pay], policy=Policy([Rule.ask("pay", by="operator", where={"amount": {"above": 5}})]))
    call = ToolCall(id="c1", name="pay", arguments_json='{"invoice_id": "<b>", "amount": 9}')

    explanation = executor.explain(call, ToolContext(session_id="s-1"))

    assert repr(explanation) == f"<Explanation: {explanation.lines[0]}>"
    html = explanation._repr_html_()
    assert html.startswith("<pre")
    assert html.count("<br>") == len(explanation.lines) - 1
    assert "ask(&#x27;pay&#x27;" in html


async def test_a_trace_shows_its_tree_and_reads_as_counts() -> None:
    @tool(read_only=True)
    def look(name: str) -> str:
        """Look."""
        return f"<b>{name}</b>"

    plan = Plan((GuidelineMatch("g1"),), (ToolVerdict("look", "needs_to_run", {"name": "x"}),))
    agent = Agent(judge=ScriptedJudge([plan], ["Done <i>so</i>."]), tools=[look])
    await agent.create_guideline("The customer asks", tools=["look"])

    trace = (await agent.session(session_id="s-1").send("Look.")).trace

    assert repr(trace) == "<TurnTrace: session 's-1', turn 1: 1 iterations, 1 calls, 2 model calls>"
    html = trace._repr_html_()
    assert "guideline g1 applies" in html
    assert "Done &lt;i&gt;so&lt;/i&gt;." in html
    assert "<b>" not in html


def test_nothing_of_it_is_imported_before_a_value_is_shown() -> None:
    program = (
        "import sys; from handrail import ToolResult; result = ToolResult(output=1); "
        "assert 'handrail.core.display' not in sys.modules; repr(result); assert 'handrail.core.display' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_rich_shows_what_a_repr_shows() -> None:
    approval = build_approval(card=SECRET)
    shown = [
        ToolResult(output={"password": "hunter2", "key": SECRET}, approval=approval),
        ToolContext(session_id="s-1", secrets={"api": SECRET}, deps={"password": "hunter2"}),
        Decision(action="deny", reason=f"the key is {SECRET}"),
        approval,
    ]
    for value in shown:
        text = pretty_repr(value, max_width=10_000)
        assert text == repr(value)
        assert SECRET not in text
        assert "hunter2" not in text
