"""`kill -9` of the gateway at random points while its clients call: ledger, audit, effects and answers agree."""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from handrail.errors import ApprovalError
from handrail.store import SqlStore, open_store
from tests.serve.desk import ROOT, text_of, write_shop
from tests.sources.serving import bind

CLIENTS = 5


class KilledGateway:
    """`handrail serve` in a process of its own, which can be killed and started again at the same address."""

    def __init__(self, directory: Path) -> None:
        listener = bind()
        self.port = listener.getsockname()[1]
        listener.close()
        self.file = directory / "gateway.yaml"
        self.journal = directory / "journal"
        self.journal.touch()
        self.store_url = f"sqlite:///{directory}/gateway.db"
        self.file.write_text(
            f"store: {self.store_url}\napproval_wait: 2\nsources:\n  shop: {write_shop(self.journal, timeout=5)}\n"
        )
        self._log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "handrail.cli", "serve", str(self.file), "--port", str(self.port)]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def require_alive(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, self._log.read_text()[-2_000:]

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


async def decide_everything(store: SqlStore) -> None:
    """An operator who reads: no to what is said to have been done already."""
    while True:
        for approval in await store.approvals.pending():
            decide = store.approvals.deny if approval.repeat else store.approvals.approve
            with suppress(ApprovalError):  # It has expired, or was withdrawn.
                await decide(approval.token, by="operator", who="ann")
        await asyncio.sleep(0.1)


async def refund(url: str, secret: str, orders: list[int], answers: dict[int, str]) -> None:
    """A client that sends each call again until it has a final answer."""
    left = list(orders)
    while left:
        http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=60)
        try:
            async with http, Client(streamable_http_client(url, http_client=http)) as client:
                while left:
                    text = text_of(await client.call_tool("shop__refund", {"order_id": left[0], "amount": 5}))
                    # "no": the result went out and was lost on its way, and the operator saw that it was done already.
                    codes = {"refunded": "done", "said no": "done already", "outcome_unknown": "unknown"}
                    if code := next((name for word, name in codes.items() if word in text), None):
                        answers[left.pop(0)] = code
                    elif "in_progress" in text:
                        await asyncio.sleep(0.5)
        except Exception:  # The gateway is away, or its source is not connected yet.
            await asyncio.sleep(0.2)
        except BaseExceptionGroup:
            await asyncio.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.proves("GW-06")
async def test_kills_at_random_points_lose_no_call_and_repeat_no_effect(tmp_path: Path) -> None:
    count = int(os.environ.get("HANDRAIL_TEST_CALLS") or 200)
    gateway = KilledGateway(tmp_path)
    answers: dict[int, str] = {}
    kills = 0
    async with open_store(gateway.store_url) as store:
        secrets = [(await store.keys.create(role="caller", who=f"client-{number}"))[1] for number in range(CLIENTS)]
        approving = asyncio.create_task(decide_everything(store))
        url = f"http://127.0.0.1:{gateway.port}/mcp"
        clients = [
            asyncio.create_task(refund(url, secret, list(range(number, count, CLIENTS)), answers))
            for number, secret in enumerate(secrets)
        ]
        try:
            while any(not client.done() for client in clients):
                gateway.start()
                # After some answers, not after some time: the machine may be slow. Then at any point of the next call.
                wanted = len(answers) + random.randint(0, 8)
                while len(answers) < wanted and any(not client.done() for client in clients):
                    gateway.require_alive()
                    await asyncio.sleep(0.02)
                await asyncio.sleep(random.uniform(0, 0.3) if wanted else 3)
                await asyncio.to_thread(gateway.kill)
                kills += 1
            await asyncio.gather(*clients)
        finally:
            await asyncio.to_thread(gateway.kill)
            for task in (approving, *clients):
                task.cancel()
            await asyncio.gather(approving, *clients, return_exceptions=True)
        effects = Counter(int(line.split()[1]) for line in gateway.journal.read_text().splitlines())
        assert answers.keys() == set(range(count))
        assert max(effects.values()) == 1, "an effect happened twice"
        for order, answer in answers.items():
            if answer != "unknown":
                assert effects[order] == 1, f"{order} was told as done"
        calls = {}
        for number in range(CLIENTS):
            (key,) = [item for item in await store.keys.list() if item.who == f"client-{number}"]
            rows = await store.audit.query(session_id=f"mcp-{key.id}", kind="approval_used", limit=10_000)
            calls[number] = {row.call_id for row in rows}
            for call_id in calls[number]:
                entry = (await store.ledger.recall(session_id=f"mcp-{key.id}", call_id=str(call_id))).by_id
                assert entry is not None, "an approval was used without an entry"
                order = int(entry.arguments.split('"order_id":')[1].split(",")[0].rstrip("}"))
                state = entry.state_at(time.time())
                if state == "committed":
                    assert effects[order] == 1
                assert (state == "committed") == (answers[order] != "unknown"), (order, state)
        assert sum(map(len, calls.values())) >= len(effects), "an effect without an approval"
    print(f"{count} calls, {kills} kills: {Counter(answers.values())}")
