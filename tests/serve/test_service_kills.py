"""`kill -9` of one of two replicas at random points, during calls with approvals and during turns of conversations:
ledger, audit, effects and what is said agree.
"""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Coroutine, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from handrail.store import open_store
from tests.postgres import PostgresServer
from tests.postgres import postgres as postgres  # a fixture
from tests.serve.desk import ROOT
from tests.sources.serving import bind

CLIENTS = 8
AGAIN = ("approval_required", "in_progress", "unavailable")


class Replica:
    """A process that is killed and started again at the same address."""

    def __init__(self, store: str, folder: Path, number: int) -> None:
        listener = bind()
        self.port = listener.getsockname()[1]
        listener.close()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._log = folder / f"log-{number}"
        self._command = [sys.executable, "-m", "tests.serve.replica_process", store, str(folder / "journal")]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("a") as log:
            command = [*self._command, str(self.port)]
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


async def ask(replicas: list[Replica], secret: str, method: str, path: str, **options: object) -> dict[str, Any]:
    """A request to any replica, again until one has answered."""
    while True:
        try:
            async with httpx2.AsyncClient(timeout=30, headers={"Authorization": f"Bearer {secret}"}) as http:
                answer = await http.request(method, f"{random.choice(replicas).url}{path}", **options)  # pyright: ignore[reportArgumentType]
            if answer.status_code < 500:
                return answer.json()
        except httpx2.HTTPError:  # It was killed, or is not there yet.
            pass
        await asyncio.sleep(0.05)


async def decide(replicas: list[Replica], operator: str) -> None:
    """An operator who agrees to everything."""
    while True:
        page = await ask(replicas, operator, "GET", "/approvals", params={"limit": 50})
        items = page.get("items")
        for item in items if isinstance(items, list) else []:
            await ask(replicas, operator, "POST", f"/approvals/{item['token']}/approve", json={})
        await asyncio.sleep(0.05)


async def find_busy(replicas: list[Replica], journal: Path) -> Replica | None:
    """The replica that does something next; None if that takes long."""
    size, until = journal.stat().st_size, time.monotonic() + 5
    while journal.stat().st_size == size and time.monotonic() < until:
        await asyncio.sleep(0.005)
    found = journal.read_bytes()[size:].split()
    processes = {str(replica.process.pid).encode(): replica for replica in replicas if replica.process is not None}
    return processes.get(found[1]) if len(found) > 1 else None


async def kill_during(
    replicas: list[Replica],
    clients: Sequence[Coroutine[Any, Any, None]],
    beside: Coroutine[Any, Any, None],
    *,
    done: Collection[object],
    every: tuple[int, int],
    journal: Path,
) -> int:
    """Kill a replica each time that so many more are done, until all clients are; how often that was.

    Every second time it is at any moment, and else the one that has just done something, and has not recorded it.
    """
    kills = 0
    for replica in replicas:
        replica.start()
    tasks = [asyncio.create_task(client) for client in clients]
    deciding = asyncio.create_task(beside)
    try:
        while not all(task.done() for task in tasks):
            wanted = len(done) + random.randint(*every)
            while len(done) < wanted and not all(task.done() for task in tasks):
                await asyncio.sleep(0.02)
            victim = await find_busy(replicas, journal) if kills % 2 else None
            if victim is None:
                await asyncio.sleep(random.uniform(0, 0.2))
            await asyncio.to_thread((victim or random.choice(replicas)).kill)
            kills += 1
            for replica in replicas:
                if replica.process is None:
                    replica.start()
        await asyncio.gather(*tasks)
    finally:
        for task in (deciding, *tasks):
            task.cancel()
        await asyncio.gather(deciding, *tasks, return_exceptions=True)
        for replica in replicas:
            await asyncio.to_thread(replica.kill)
    return kills


@pytest.mark.proves("SV-05")
@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(1_800)
async def test_a_replica_that_dies_at_any_point_loses_no_call_and_repeats_no_effect(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    count = int(os.environ.get("HANDRAIL_TEST_CALLS") or 500)
    url = postgres.new_database()
    journal = tmp_path / "journal"
    journal.touch()
    answers: dict[str, str] = {}
    async with open_store(url) as store:
        _, caller = await store.keys.create(role="caller", who="bot", tenant_id="acme")
        _, operator = await store.keys.create(role="operator", who="ann", tenant_id="acme")
        replicas = [Replica(url, tmp_path, number) for number in range(2)]

        async def call(numbers: range) -> None:
            for number in numbers:
                invoice = f"i-{number}"
                body = {"tool": "pay", "arguments": {"invoice": invoice}, "session_id": "s", "call_id": invoice}
                while True:
                    result = await ask(replicas, caller, "POST", "/calls", json=body)
                    error = result.get("error")
                    code = error["code"] if isinstance(error, dict) else "done"
                    if code not in AGAIN:
                        answers[invoice] = str(code)
                        break
                    await asyncio.sleep(0.05)

        clients = [call(range(number, count, CLIENTS)) for number in range(CLIENTS)]
        kills = await kill_during(
            replicas, clients, decide(replicas, operator), done=answers, every=(3, 25), journal=journal
        )
        effects = Counter(line.split()[0] for line in journal.read_text().splitlines())
        assert answers.keys() == {f"i-{number}" for number in range(count)}
        assert set(effects.values()) <= {1}, "an effect happened twice"
        for invoice, answer in answers.items():
            entry = (await store.ledger.recall(session_id="api:acme/s", call_id=invoice)).by_id
            assert entry is not None, "a call was answered without an entry"
            state = entry.state_at(time.time())
            assert answer in ("done", "outcome_unknown"), (invoice, answer)
            if answer == "done":
                assert (effects[invoice], state) == (1, "committed"), invoice
            else:
                assert state == "unknown", invoice
            rows = await store.audit.query(session_id="api:acme/s", call_id=invoice, kind="approval_used")
            assert len(rows) == 1, "an effect has exactly one approval in the audit"
    print(f"{count} calls, {kills} kills: {Counter(answers.values())}")


@pytest.mark.proves("SV-12")
@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(1_800)
async def test_a_turn_whose_replica_dies_is_resumed_by_another_with_one_effect_and_a_true_reply(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    count = int(os.environ.get("HANDRAIL_TEST_CALLS") or 60)
    url = postgres.new_database()
    journal = tmp_path / "journal"
    journal.touch()
    talks: dict[str, Any] = {}
    doubts = set[str]()
    async with open_store(url) as store:
        _, caller = await store.keys.create(role="caller", who="bot", tenant_id="acme")
        _, operator = await store.keys.create(role="operator", who="ann", tenant_id="acme")
        replicas = [Replica(url, tmp_path, number) for number in range(2)]
        whole = {"Accept": "application/json"}

        async def resolve(invoice: str) -> None:
            """The operator looks into the journal, and says what has happened."""
            params = {"session_id": f"api:acme/{invoice}"}
            for doubt in (await ask(replicas, operator, "GET", "/doubts", params=params)).get("items", ()):
                doubts.add(invoice)
                body = {"session_id": doubt["session_id"], "call_id": doubt["call_id"], "expected": doubt["version"]}
                body["happened"] = any(line.startswith(f"{invoice} ") for line in journal.read_text().splitlines())
                await ask(replicas, operator, "POST", "/doubts/resolve", json=body)

        async def talk(numbers: range) -> None:
            for number in numbers:
                invoice = f"i-{number}"
                path = f"/sessions/{invoice}"
                while True:
                    shown = await ask(replicas, caller, "GET", path)
                    if "error" in shown:
                        body = {"message": invoice, "turn": 1}
                        await ask(replicas, caller, "POST", f"{path}/turns", json=body, headers=whole)
                    elif shown["resumable"]:
                        await resolve(invoice)
                        await ask(replicas, caller, "POST", f"{path}/resume", headers=whole)
                    elif not shown["running"]:
                        talks[invoice] = shown
                        break
                    await asyncio.sleep(0.05)

        clients = [talk(range(number, count, CLIENTS)) for number in range(CLIENTS)]
        kills = await kill_during(
            replicas, clients, decide(replicas, operator), done=talks, every=(1, 4), journal=journal
        )
        effects = Counter(line.split()[0] for line in journal.read_text().splitlines())
        assert talks.keys() == {f"i-{number}" for number in range(count)}
        assert set(effects.values()) <= {1}, "an effect happened twice"
        for invoice, shown in talks.items():
            customer, asked, answered, reply = shown["messages"]
            assert customer["text"] == invoice
            ((call,), (result,)) = asked["calls"], answered["results"]
            assert call["call_id"] == result["call_id"]
            assert reply["text"] == result["text"]
            entry = (await store.ledger.recall(session_id=f"api:acme/{invoice}", call_id=call["call_id"])).by_id
            assert entry is not None
            happened = effects[invoice] == 1
            assert (entry.state == "committed") is happened, (invoice, entry.state)
            assert result["ok"] is happened, (invoice, result)
            if invoice not in doubts:
                assert reply["text"] == f"paid {invoice}"
            rows = await store.audit.query(session_id=f"api:acme/{invoice}", kind="approval_used")
            assert len(rows) == 1, "an effect has exactly one approval in the audit"
    print(f"{count} conversations, {kills} kills, {len(doubts)} calls in doubt")
