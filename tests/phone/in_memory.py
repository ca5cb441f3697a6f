"""The provider's side of a gateway without sockets: the simulator's engine as a transport."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from handrail.phone import Acceptance, ConnectionLost, Sideband
from handrail.phone.signals import TransferAnswer
from handrail.testing.phone import Frame, LiveCall, PhoneSimulator


class MemoryTransport:
    """Call control and sidebands of simulated calls, in one process and without a network."""

    def __init__(self, simulator: PhoneSimulator) -> None:
        self._simulator = simulator

    async def accept(self, session_id: str, session: Mapping[str, Any]) -> Acceptance:
        status = self._simulator.live(session_id).request("accept", {"type": "realtime", **session}).status
        return Acceptance(outcome="accepted" if status == 200 else "gone" if status == 404 else "failed")

    async def reject(self, session_id: str, *, status_code: int) -> None:
        self._simulator.live(session_id).request("reject", {"status_code": status_code})

    async def transfer(self, session_id: str, target_uri: str) -> TransferAnswer:
        response = self._simulator.live(session_id).request("refer", {"target_uri": target_uri})
        await asyncio.sleep(response.delay)
        if response.is_lost or response.status >= 500:
            return "unknown"
        return "transferred" if response.status == 200 else "failed"

    async def hang_up(self, session_id: str) -> bool:
        return self._simulator.live(session_id).request("hangup").status in (200, 404)

    @asynccontextmanager
    async def connect(self, session_id: str) -> AsyncGenerator[Sideband]:
        live = self._simulator.live(session_id)
        frames: asyncio.Queue[Frame] = asyncio.Queue()
        try:
            sideband = live.connect(frames.put_nowait)
        except LookupError as error:
            raise ConnectionLost(is_over=True) from error
        try:
            yield _Sideband(live, frames)
        finally:
            live.disconnect(sideband)


class _Sideband:
    def __init__(self, live: LiveCall, frames: asyncio.Queue[Frame]) -> None:
        self._live = live
        self._frames = frames
        self._closed: ConnectionLost | None = None

    async def receive(self) -> str | bytes:
        if self._closed is not None:
            raise self._closed
        frame = await self._frames.get()
        if frame.close is not None:
            self._closed = ConnectionLost(is_over=frame.close == 1000)
            raise self._closed
        return frame.text if frame.text is not None else json.dumps(frame.event)

    async def send(self, event: Mapping[str, Any]) -> None:
        if self._closed is not None:
            raise self._closed
        self._live.feed(json.dumps(event))
