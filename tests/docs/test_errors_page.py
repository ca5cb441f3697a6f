"""Each code of the table in docs/errors.md, provoked: the model reads what the page says."""

import asyncio
import re
from collections.abc import Mapping

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolError, ToolResult, tool
from handrail.errors import CODES
from handrail.execute import Limits, RateLimit
from tests.docs.public_names import ROOT

RELEASED: list[asyncio.Event] = []
CONTEXT = ToolContext(session_id="s-1", customer_id="c-1", turn=1)
ROW = re.compile(r"^\| `(?P<code>\w+)` \| .* \| “(?P<text>.*?)”.* \| .+ \|$", re.MULTILINE)


class Night:
    """A hook that refuses."""

    def authorised(self, *_: object) -> None:
        raise ToolError("Payments are closed at night.")


@tool(read_only=True, timeout=0.05, concurrency_safe=True)
async def get_balance(account: str) -> str:
    """Look up a balance."""
    if account == "broken":
        raise RuntimeError("a fault")
    if account == "slow":
        await asyncio.sleep(30)
    return "2400 EUR"


@tool(read_only=True)
async def wait(started: str) -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return started


@tool(key="invoice_id")
async def pay(invoice_id: str, amount: int) -> str:
    """Pay an invoice."""
    if invoice_id == "running":
        await RELEASED[0].wait()
    if invoice_id == "lost":
        raise ConnectionError("the answer was lost")
    return f"Paid {amount} EUR."


def call(name: str, arguments: str, *, id: str = "call-1") -> ToolCall:
    return ToolCall(id=id, name=name, arguments_json=arguments)


async def provoke() -> dict[str, ToolResult]:
    """A result with each code."""
    found: dict[str, ToolResult] = {}
    RELEASED[:] = [asyncio.Event()]
    allow = Policy([Rule.allow("*")])
    deny = Policy([Rule.deny("pay", where={"amount": {"above": 100}}, reason="over the limit")])
    executor = Executor([get_balance, wait, pay], policy=allow)
    found["tool_not_found"] = await executor.run(call("pya", "{}"), CONTEXT)
    found["tool_args_parse_error"] = await executor.run(call("pay", '{"amount": '), CONTEXT)
    found["invalid_arguments"] = await executor.run(call("pay", '{"invoice_id": "R-1"}'), CONTEXT)
    found["permission_denied"] = await Executor([pay], policy=deny).run(
        call("pay", '{"invoice_id": "R-1", "amount": 900}'), CONTEXT
    )
    found["approval_required"] = await Executor([pay]).run(call("pay", '{"invoice_id": "R-1", "amount": 9}'), CONTEXT)
    found["refused_by_hook"] = await Executor([pay], policy=allow, hooks=[Night()]).run(
        call("pay", '{"invoice_id": "R-1", "amount": 9}'), CONTEXT
    )
    limited = Executor([get_balance], limits=Limits(rate_limits=[RateLimit(max_calls=1, period=60)]))
    for id in ("1", "2"):
        found["rate_limited"] = await limited.run(call("get_balance", '{"account": "a"}', id=id), CONTEXT)
    stored = Executor([pay], policy=allow, store="postgresql://nobody@127.0.0.1:1/nothing")
    found["unavailable"] = await stored.run(call("pay", '{"invoice_id": "R-1", "amount": 9}'), CONTEXT)
    await stored.aclose()
    running = call("pay", '{"invoice_id": "running", "amount": 9}', id="running")
    task = asyncio.create_task(executor.run(running, CONTEXT))
    while (looked := await executor.look_up(running, CONTEXT)) is None:
        await asyncio.sleep(0)
    found["in_progress"] = looked
    RELEASED[0].set()
    await task
    found["duplicate_call"] = await executor.run(
        call("pay", '{"invoice_id": "running", "amount": 8}', id="running"), CONTEXT
    )
    found["tool_timeout"] = await executor.run(call("get_balance", '{"account": "slow"}', id="slow"), CONTEXT)
    found["tool_execution_failed"] = await executor.run(call("get_balance", '{"account": "broken"}', id="b"), CONTEXT)
    task = asyncio.create_task(executor.run(call("wait", '{"started": ""}', id="wait"), CONTEXT))
    while not executor.cancel("wait", session_id="s-1"):
        await asyncio.sleep(0)
    found["cancelled"] = await task
    found["outcome_unknown"] = await executor.run(call("pay", '{"invoice_id": "lost", "amount": 9}', id="l"), CONTEXT)
    return found


def read_rows() -> Mapping[str, str]:
    """What the model reads, by code, as the page says it."""
    return {row["code"]: row["text"] for row in ROW.finditer((ROOT / "docs/errors.md").read_text("utf-8"))}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_the_model_reads_what_the_page_says() -> None:
    found, said = await provoke(), read_rows()

    assert found.keys() == CODES == said.keys()
    assert {code: result.error and result.error.code for code, result in found.items()} == {c: c for c in CODES}
    for code, result in found.items():
        assert result.error is not None
        pattern = ".*?".join(map(re.escape, said[code].split("…")))
        assert re.fullmatch(pattern, result.error.message, re.DOTALL), (code, result.error.message)
