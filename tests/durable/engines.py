"""Deliveries of other engines, by a text that a process can be started with."""

import os
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from handrail.execute import Delivery

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def open_delivery(engine: str) -> AsyncGenerator[Delivery | None]:
    """The delivery that `engine` names: `-`, `temporal ADDRESS TASK_QUEUE LEASE` or `pgqueuer URL`."""
    match engine.split():
        case ["temporal", address, task_queue, lease]:
            from temporalio.client import Client

            from handrail.adapters.temporal import TemporalDelivery

            yield TemporalDelivery(await Client.connect(address), task_queue=task_queue, lease=float(lease))
        case ["pgqueuer", url]:
            import asyncpg

            async with asyncpg.create_pool(url.replace("+asyncpg", ""), min_size=1, max_size=5) as pool:
                yield load_pgqueuer_delivery()(pool)
        case _:
            yield None


@asynccontextmanager
async def open_temporal(*, lease: float = 1.0) -> AsyncGenerator[str]:
    """A development server of Temporal, as `open_delivery` takes it."""
    from temporalio.testing import WorkflowEnvironment

    path = shutil.which("temporal") or str(Path(sys.executable).parent / "temporal")
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=path) as server:
        address = server.client.service_client.config.target_host
        yield f"temporal {address} handrail-{os.getpid()} {lease}"


def load_pgqueuer_delivery() -> Any:
    """The class that docs/durable.md shows."""
    text = (ROOT / "docs/durable.md").read_text("utf-8")
    _, _, rest = text.partition('```python {needs="pgqueuer"}\n')
    names: dict[str, Any] = {"__name__": "pgqueuer_delivery"}
    exec(compile(rest.partition("```")[0], "docs/durable.md", "exec"), names)
    return names["PgqueuerDelivery"]
