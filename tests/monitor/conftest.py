"""What the tests of listeners share: tools, an executor's surroundings, and a logger that keeps what it is told."""

import asyncio
import logging
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from handrail import ToolCall, ToolContext, ToolError, tool
from handrail.monitor import Log, Metrics


def create_metrics(**options: Any) -> Metrics:
    """Create metrics with a registry of their own."""
    return Metrics(CollectorRegistry(), **options)


class Lines(logging.Handler):
    """Keeps every record, and finds those of one event."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.logger = logging.Logger("lines", logging.DEBUG)  # noqa: LOG001  # one for each test
        self.logger.addHandler(self)
        self.log = Log(self.logger)
        self._told = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self._told.set()

    async def until(self, event: str, *, times: int = 1) -> None:
        """Wait until an event was told so often."""
        while len(self.of(event)) < times:
            self._told.clear()
            await self._told.wait()

    def of(self, event: str) -> list[logging.LogRecord]:
        return [record for record in self.records if getattr(record, "event", None) == event]

    def one(self, event: str) -> Any:
        [record] = self.of(event)
        return record

    @property
    def names(self) -> list[str]:
        return [getattr(record, "event", "") for record in self.records]


@pytest.fixture
def lines() -> Lines:
    return Lines()


CONTEXT = ToolContext[Any](
    session_id="s-1", tenant_id="acme", agent_id="ann", deps={"bank": object(), "clock": object()}
)
IDS = {"session_id": "s-1", "tenant_id": "acme", "call_id": "c-1", "response_id": "r-1", "item_id": "i-1"}


def call(name: str, arguments_json: str = "", *, id: str = "c-1", response_id: str | None = "r-1") -> ToolCall:
    return ToolCall(id=id, name=name, arguments_json=arguments_json, response_id=response_id, item_id="i-1")


def ids_of(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name, None) for name in IDS}


@tool(read_only=True)
async def look(city: str = "Oslo", days: int = 1) -> str:
    """Look something up."""
    return "sunny"


@tool
async def pay(invoice: str = "i", amount: int = 1) -> str:
    """Pay something."""
    return "paid"


@tool(read_only=True)
async def crash() -> str:
    """Break."""
    raise RuntimeError("boom")


@tool(read_only=True)
async def refuse() -> str:
    """Say why not."""
    raise ToolError("The account is closed.", code="account_closed")


class Door:
    """A tool that waits until somebody opens."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()

    def tool(self, **options: Any) -> Any:
        @tool(name="wait", **options)
        async def wait() -> str:
            """Wait."""
            self.entered.set()
            await self.opened.wait()
            return "open"

        return wait
