"""Playing scripted calls through the official SDK, the simulator and a gateway, in time that jumps."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct
from openai import AsyncOpenAI

from handrail import ToolContext
from handrail.core import Event, LogEvent
from handrail.phone import CallSession, IncomingCall, PhoneGateway
from handrail.tenants import TenantConfig, TenantDirectory, ToolBuilder
from handrail.testing.phone import CallReport, PhoneSimulator, run_warped
from tests.tenants.samples import acme


class Played(Struct, kw_only=True):
    """What came of a call."""

    report: CallReport
    events: list[Event]

    @property
    def notes(self) -> list[str]:
        return [event.name for event in self.events if isinstance(event, LogEvent)]

    def of(self, kind: type[Any] | tuple[type[Any], ...]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def play(
    script: Mapping[str, Any],
    *,
    tenants: Iterable[TenantConfig] | None = None,
    tools: Iterable[object] = (),
    context: Callable[[IncomingCall], ToolContext[Any]] | None = None,
    check: bool = True,
    wrap: Any = None,
    on_note: Mapping[str, Callable[[CallSession], Awaitable[None]]] | None = None,
    **options: Any,
) -> Played:
    """Play one call to its end, and wait until the gateway has settled it.

    `on_note` starts something with the session when the log says this.
    """
    builder = ToolBuilder(wrap=wrap)
    for number, tool in enumerate(tools):
        builder.register(_builder(tool, number))

    async def main() -> Played:
        heard: list[Event] = []
        started: list[asyncio.Future[None]] = []

        def listen(event: Event) -> None:
            heard.append(event)
            if isinstance(event, LogEvent) and event.name in (on_note or {}):
                session = gateway.calls[event.session_id]
                loop = asyncio.get_running_loop()
                # The listener is called in the midst of things.
                loop.call_soon(lambda: started.append(asyncio.ensure_future(on_note[event.name](session))))

        async with PhoneSimulator() as simulator:
            client = AsyncOpenAI(base_url=simulator.url, api_key="sk-test", webhook_secret=simulator.webhook_secret)
            directory = TenantDirectory([acme()] if tenants is None else tenants)
            async with (
                client,
                PhoneGateway(
                    client=client,
                    tenants=directory,
                    tools=builder,
                    listeners=[listen],
                    context=context,
                    **options,
                ) as gateway,
            ):
                report = await simulator.play(script, gateway.handle_webhook)
                await gateway.drain(grace=30)
                await asyncio.gather(*started)
            assert not gateway.calls
            return Played(report=report, events=heard)

    played = run_warped(main())
    if check:
        played.report.check()
    return played


def _builder(tool: object, number: int) -> Callable[[TenantConfig], object]:
    def build(cfg: TenantConfig) -> object:
        return tool

    build.__name__ = f"build_{number}"
    return build


async def forever() -> None:
    await asyncio.Event().wait()
