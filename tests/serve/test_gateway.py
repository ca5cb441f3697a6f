"""`gateway.yaml` in front of an MCP server: the official client, a person at the console, one call, once."""

from pathlib import Path

import pytest

from handrail.tenants import TenantConfig
from tests.serve.desk import open_file_desk, text_of, write_shop

GATEWAY = """
store: STORE
approval_wait: 0
sources:
  shop: SHOP
"""


@pytest.mark.parametrize(
    ("errors", "code"), [("nothing_happened", "tool_execution_failed"), ("unknown", "outcome_unknown")]
)
async def test_what_an_error_of_a_server_means_is_said_in_the_file(errors: str, code: str, tmp_path: Path) -> None:
    text = GATEWAY.replace("SHOP", write_shop(tmp_path / "journal", errors=errors)) + "policy: policy.yaml\n"
    async with (
        open_file_desk(tmp_path, text, policy_yaml="rules: [{allow: shop__refund}]") as desk,
        desk.connect_client() as client,
    ):
        assert code in text_of(await client.call_tool("shop__refund", {"order_id": 7, "amount": 5_000}))
        assert len(await desk.gateway.executor.doubts()) == (1 if errors == "unknown" else 0)  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.proves("GW-04")
async def test_a_call_waits_for_an_operator_and_runs_once_when_it_is_sent_again(mode: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with (
        open_file_desk(tmp_path, GATEWAY.replace("SHOP", write_shop(journal, trusted=True))) as desk,
        desk.connect_client(mode=mode) as client,
        desk.sign_in(who="ann") as ann,
    ):
        found = await client.call_tool("shop__find_order", {"order_id": 7})
        assert found.structured_content == {"order_id": 7, "state": "paid"}

        waiting = await client.call_tool("shop__refund", {"order_id": 7, "amount": 5})
        assert waiting.is_error
        assert "waits for an operator" in text_of(waiting)
        assert "call the tool again with exactly the same arguments" in text_of(waiting)
        again = await client.call_tool("shop__refund", {"amount": 5.0, "order_id": 7})  # The same call: one question.
        assert "waits for an operator" in text_of(again)
        (approval,) = await desk.store.approvals.pending()
        page = await ann.read("/decide")
        assert "shop__refund" in page
        assert '"order_id": 7' in page
        assert "client" in page  # Who asks.
        assert not journal.exists()

        assert "approved by ann" in (await ann.answer(approval.token, "approve", reason="checked")).text
        done = await client.call_tool("shop__refund", {"order_id": 7, "amount": 5})
        assert "refunded 5" in text_of(done)
        assert journal.read_text() == "refund 7\n"

        # Its result was delivered: an equal call is another one, and the operator is asked about the repetition.
        more = await client.call_tool("shop__refund", {"order_id": 7, "amount": 5})
        assert "waits for an operator" in text_of(more)
        assert "This was done before" in await ann.read("/decide")
        assert journal.read_text() == "refund 7\n"

        await desk.store.audit.flush(timeout=60)
        calls = await ann.read("/calls")
        assert "shop__find_order" in calls
        assert calls.count("approval_required") == 3


async def test_a_source_that_is_away_costs_a_tenant_the_tools_of_that_source_only(tmp_path: Path) -> None:
    shop = write_shop(tmp_path / "journal", trusted=True)
    text = GATEWAY.replace("SHOP", shop) + "  crm: {url: 'http://127.0.0.1:9/mcp'}\npolicy: policy.yaml\n"
    policy = "rules: [{allow: shop__refund}, {deny: crm__delete}]"
    async with open_file_desk(tmp_path, text, policy_yaml=policy) as desk:
        rules = [{"deny": "shop__refund", "where": {"amount": {"above": 10}}}, {"ask": "crm__find", "by": "operator"}]
        await desk.store.tenants.put(TenantConfig(tenant_id="acme", policy=rules))
        async with desk.connect_client(await desk.create_key("caller", tenant_id="acme")) as client:
            assert "refunded 5" in text_of(await client.call_tool("shop__refund", {"order_id": 7, "amount": 5}))
            assert "denied" in text_of(await client.call_tool("shop__refund", {"order_id": 7, "amount": 11}))
