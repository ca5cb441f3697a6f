"""A process with a workflow of DBOS, whose step pays through Handrail; a test kills it and starts it again."""

import asyncio
import sys
from typing import Any

from dbos import DBOS, SetWorkflowID

from handrail import ToolCall
from handrail.store import open_store
from tests.durable.workers import CONTEXT, Effects, build_executor

EXECUTOR: dict[str, Any] = {}


@DBOS.step(retries_allowed=True, interval_seconds=0.3, backoff_rate=1.0, max_attempts=50)
async def pay_invoice(workflow_id: str, name: str) -> str:
    """Pay; the same call id in every repetition."""
    call = ToolCall(id=f"{workflow_id}/pay", name=name, arguments_json='{"invoice": "R-1"}')
    result = await EXECUTOR["one"].run(call, CONTEXT)
    if result.error is not None and result.error.code in ("in_progress", "unavailable"):
        raise RuntimeError(result.error.code)  # The engine repeats the step.
    return result.for_model()


@DBOS.workflow()
async def order(name: str) -> str:
    """One step."""
    assert DBOS.workflow_id is not None
    return await pay_invoice(DBOS.workflow_id, name)


async def main(folder: str, how: str, name: str) -> None:
    """Begin the workflow, or, with `-`, go on with what was begun: DBOS does so when it is launched."""
    async with open_store(f"sqlite:///{folder}/handrail.db") as store:
        EXECUTOR["one"] = build_executor(store, Effects(f"{folder}/effects"), how)
        DBOS.launch()
        if how == "-":
            handle = await DBOS.retrieve_workflow_async("w-1")
        else:
            with SetWorkflowID("w-1"):
                handle = await DBOS.start_workflow_async(order, name)
        print(await handle.get_result(), flush=True)


if __name__ == "__main__":
    url = f"sqlite:///{sys.argv[1]}/dbos.db"
    DBOS(config={"name": "shop", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False})
    asyncio.run(main(*sys.argv[1:4]))
    DBOS.destroy()
