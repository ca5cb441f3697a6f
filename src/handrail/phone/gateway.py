"""The door for phone calls: webhooks in, one session per call, and nothing left behind when it closes."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, cast

from msgspec import structs

from handrail.authorize.policy import Rule
from handrail.core.context import ToolContext
from handrail.core.events import Listener, LogEvent
from handrail.core.log import log
from handrail.core.redact import Redactor
from handrail.core.time_budget import TimeBudget
from handrail.errors import ConfigError, must_propagate
from handrail.execute.executor_parts import Store
from handrail.phone.admission import UNAVAILABLE, CallRefusal, admit_call
from handrail.phone.call_ending import SETTLE_GRACE
from handrail.phone.call_limits import MachineOptions
from handrail.phone.call_setup import (
    CallSetup,
    IncomingCall,
    Prepare,
    Reject,
    apply_hours,
    describe_session,
    prepare_call,
    read_header_numbers,
)
from handrail.phone.events import Listeners
from handrail.phone.recording import CallRecorder
from handrail.phone.session import CallSession
from handrail.phone.tenant_executors import TenantExecutors
from handrail.phone.transport import RealtimeTransport, Transport
from handrail.phone.webhooks import Headers, Webhook, WebhookClaims, WebhookIntake, WebhookResponse
from handrail.tenants.config import TenantConfig
from handrail.tenants.directory import Tenants
from handrail.tenants.tool_builder import ToolBuilder, ToolBuildResult
from handrail.tenants.trust import TenantTrust

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_FIND_TIMEOUT: Final = 5.0
"""Seconds in which the tenant of a number has to be found: the phone rings meanwhile."""

MakeContext = Callable[[IncomingCall], ToolContext[Any] | Awaitable[ToolContext[Any]]]


class PhoneStore(Store, Protocol):
    """What a gateway uses of a store; `open_store(…)` gives one."""

    @property
    def webhooks(self) -> WebhookClaims: ...


class PhoneGateway:
    """Takes phone calls for many tenants: `async with PhoneGateway(…) as gateway`."""

    def __init__(
        self,
        *,
        client: "AsyncOpenAI",
        tenants: Tenants,
        tools: ToolBuilder | None = None,
        trust: TenantTrust | None = None,
        store: PhoneStore | None = None,
        listeners: Iterable[Listener] = (),
        context: MakeContext | None = None,
        prepare: Prepare | None = None,
        prepare_timeout: float = 2.0,
        dialled_number_header: str | None = None,
        on_digits: Callable[[CallSession, str], object] | None = None,
        policy: Iterable[Rule] = (),
        max_calls: int = 1_000,
        max_calls_per_tenant: int | None = None,
        recordings: str | Path | None = None,
        redactor: Redactor | None = None,
        options: MachineOptions | None = None,
        settle_grace: float = SETTLE_GRACE,
        transport: Transport | None = None,
        executor_options: Mapping[str, Any] | None = None,
    ) -> None:
        """What the configuration of a tenant says about its tools (`tool_timeout`, `max_output_chars` and
        `max_concurrent_tools`) replaces the same fields of `limits` and `timeouts` in `executor_options`.

        Args:
            client: A client of the OpenAI SDK.
            tenants: Finds the tenant of a dialled number, such as a `TenantDirectory`.
            tools: Builds the tools of a tenant; by default those that come with Handrail.
            trust: What the configurations of tenants may refer to: secrets of the host, commands, private networks.
            store: Keeps ledger, approvals, audit and webhooks: what `handrail.store.open_store` returns.
            listeners: Functions that get every event.
            context: Makes the context of a phone call.
            prepare: Decides about each call before it is accepted: a function of an `IncomingCall` that returns a
                `CallSetup` or a `Reject`. Instead of `context`.
            prepare_timeout: Seconds that `prepare` may take, or `context`: a call without one is turned away.
            dialled_number_header: The SIP header with the number that was dialled, where your carrier does not use a
                usual one.
            on_digits: A function `(session, key)` that gets the keys that no tool collects.
            policy: Rules for all tenants.
            max_calls: Phone calls at the same time; further callers hear that the line is busy.
            max_calls_per_tenant: The most of them for one tenant, whatever `limits.max_calls` of its configuration is.
            recordings: A folder in which the events of every call are written, redacted.
            redactor: What is hidden.
            options: The timing of calls.
            settle_grace: Seconds that running tools get when a call has ended.
            transport: What connects calls, instead of the Realtime API.
            executor_options: Further options of each tenant's executor: `limits`, `timeouts`, `retry`, `hooks` …
        """
        if max_calls < 1:
            raise ConfigError(f"max_calls must be at least 1, got {max_calls}.")
        if max_calls_per_tenant is not None and max_calls_per_tenant < 1:
            raise ConfigError(f"max_calls_per_tenant must be at least 1, got {max_calls_per_tenant}.")
        self.calls: dict[str, CallSession] = {}
        """The calls under way, by session id."""
        self.tenant_problems: dict[str, str] = {}
        """What was wrong with tenants when the gateway was entered, by their ids; the others work."""
        self._client = client
        self._tenants = tenants
        self._events = Listeners((*listeners, *((store.audit,) if store is not None else ())))
        if context is not None and prepare is not None:
            raise ConfigError("PhoneGateway takes either context or prepare, got both.")
        self._store = store
        self._make_context = context
        self._prepare = prepare
        self._prepare_timeout = prepare_timeout
        self._dialled_header = dialled_number_header
        self._on_digits = on_digits
        self._max_calls = max_calls
        self._max_calls_per_tenant = max_calls_per_tenant
        self.recordings = Path(recordings) if recordings is not None else None
        """The folder of the events of every call; it is made with the first."""
        self._redactor = redactor or Redactor()
        self._options = options or MachineOptions()
        self._settle_grace = settle_grace
        # The audit hears what executors emit through `_emit`, with the id of the phone call.
        self._executors = TenantExecutors(
            builder=tools or ToolBuilder(),
            rules=policy,
            ledger=store.ledger if store is not None else None,
            approvals=store.approvals if store is not None else None,
            redactor=self._redactor,
            trust=trust or TenantTrust(),
            emit=self._events.emit,
            options=executor_options or {},
        )
        self._transport: Transport = transport or RealtimeTransport(client)
        self._webhooks = WebhookIntake(
            verify=lambda body, headers: self._client.webhooks.unwrap(body, headers),
            claims=store.webhooks if store is not None else None,
            report=self._receive,
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ringing: dict[str, str] = {}
        """Calls that are being accepted, and their tenants."""
        self._is_draining = False

    async def handle_webhook(self, headers: Headers, body: bytes) -> WebhookResponse:
        """Look at a request, and answer it before the call is accepted in the background."""
        return await self._webhooks.handle(headers, body)

    def _receive(self, webhook: Webhook) -> None:
        """Note what a webhook was, and take its call in the background if it has one."""
        call = webhook.call
        session_id = call.session_id if call is not None else ""
        severity = "warning" if webhook.outcome == "refused" else "info"
        self._note(session_id, f"webhook_{webhook.outcome}", severity, call=call, reason=webhook.reason)
        if webhook.outcome == "incoming" and call is not None:
            task = asyncio.create_task(self._take(call), name=f"call-{session_id}")
            self._tasks[session_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(session_id, None))

    # One call.

    async def _take(self, call: IncomingCall) -> None:
        try:
            cfg = await self._find_tenant(call)
            if isinstance(cfg, int):
                await self._transport.reject(call.session_id, status_code=cfg)
                return
            self._ringing[call.session_id] = cfg.tenant_id
            try:
                session = await self._accept(structs.replace(call, tenant_id=cfg.tenant_id), cfg)
            finally:
                self._ringing.pop(call.session_id, None)
            if session is not None:
                await self._converse(session)
        except (Exception, asyncio.CancelledError) as error:  # one call that cannot be taken costs no other
            if must_propagate(error):
                raise
            log.exception("the phone call %s could not be taken", call.session_id)
            self._note(call.session_id, "phone_call_failed", "error", call=call, reason=type(error).__name__)
            if call.session_id not in self.calls:
                await self._transport.reject(call.session_id, status_code=UNAVAILABLE)

    async def _find_tenant(self, call: IncomingCall) -> TenantConfig | int:
        """The tenant that a call is for, or the status to turn it away with."""
        cfg = None
        for number in (*read_header_numbers(call, self._dialled_header), *call.dialled):
            cfg = await TimeBudget(_FIND_TIMEOUT).run(self._tenants.find(number))
            if cfg is not None:
                break
        under_way = [*(session.tenant.tenant_id for session in self.calls.values()), *self._ringing.values()]
        admitted = admit_call(
            call,
            cfg,
            is_draining=self._is_draining,
            calls=len(under_way),
            max_calls=self._max_calls,
            max_calls_per_tenant=self._max_calls_per_tenant,
            tenant_calls=under_way.count(cfg.tenant_id) if cfg is not None else 0,
        )
        if isinstance(admitted, CallRefusal):
            return self._turn_away(call, admitted.status, admitted.reason, cfg)
        return admitted

    def _turn_away(self, call: IncomingCall, status: int, reason: str, cfg: TenantConfig | None = None) -> int:
        tenant_id = cfg.tenant_id if cfg is not None else None
        self._note(
            call.session_id,
            "phone_call_rejected",
            "warning",
            call=call,
            tenant_id=tenant_id,
            status=status,
            reason=reason,
        )
        return status

    async def _accept(self, call: IncomingCall, cfg: TenantConfig) -> CallSession | None:
        self._events.calls[call.session_id] = call.sip_call_id, cfg.tenant_id
        accepted = False
        try:
            tools = await self._executors.get(
                cfg,
                session_id=call.session_id,
                on_source=lambda severity, fields: self._note(
                    call.session_id, "tool_source_opened", severity, call=call, tenant_id=cfg.tenant_id, **fields
                ),
            )
            setup, problem = await prepare_call(self._prepare, call, tools.built.config, timeout=self._prepare_timeout)
            if problem:
                self._note(call.session_id, "phone_call_unprepared", "error", call=call, reason=problem)
            if isinstance(setup, Reject):
                self._turn_away(call, setup.status_code, problem or "prepare rejected it", cfg)
                await self._transport.reject(call.session_id, status_code=setup.status_code)
                return None
            setup = apply_hours(setup, tools.built.config, at=datetime.now(UTC))
            context = await self._context(call, setup)
            session = describe_session(tools.built, tools.definitions, setup)
            acceptance = await self._transport.accept(call.session_id, session)
            self._note(
                call.session_id,
                f"phone_call_{acceptance.outcome}",
                "error" if acceptance.outcome == "failed" else "info",
                call=call,
                tenant_id=cfg.tenant_id,
                version=cfg.version,
                reason=acceptance.reason,
            )
            if acceptance.outcome == "failed":  # Nobody would answer: the caller hears that at once.
                await self._transport.reject(call.session_id, status_code=UNAVAILABLE)
            if acceptance.outcome != "accepted":
                return None
            accepted = True
            options = self._options_of(tools.built, setup)
            call_session = CallSession(
                call=call,
                built=tools.built,
                executor=tools.executor,
                session=session,
                exclude=setup.exclude,
                on_digits=self._on_digits,
                transport=self._transport,
                context=context,
                emit=self._events.emit,
                options=options,
                recorder=self._recorder(call, cfg, options),
                redactor=self._redactor,
                settle_grace=self._settle_grace,
            )
            self.calls[call.session_id] = call_session
            return call_session
        finally:
            if not accepted:
                self._events.calls.pop(call.session_id, None)

    async def _converse(self, session: CallSession) -> None:
        try:
            await session.run()
        finally:
            self.calls.pop(session.session_id, None)
            self._events.calls.pop(session.session_id, None)
            used = {(session.tenant.tenant_id, session.tenant.version) for session in self.calls.values()}
            await self._executors.forget(used=used, ringing=set(self._ringing.values()))

    async def _context(self, call: IncomingCall, setup: CallSetup) -> ToolContext[Any]:
        if self._make_context is None:
            customer_id = setup.customer_id or call.caller
            return ToolContext(session_id=call.session_id, customer_id=customer_id, deps=setup.deps)
        async with asyncio.timeout(self._prepare_timeout):  # In this task: handlers see the variables that it sets.
            made = self._make_context(call)
            context = await made if inspect.isawaitable(made) else made
        if not isinstance(context, ToolContext):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"context must return a ToolContext, got {type(context).__name__}.")
        return context

    def _options_of(self, built: ToolBuildResult, setup: CallSetup) -> MachineOptions:
        cfg = built.config
        texts, limits = cfg.locale_texts(), cfg.limits
        words = cfg.greeting if setup.greeting is None else setup.greeting
        greeting = texts("say.greeting", text=words) if words.strip() else ""
        fillers = cfg.fillers
        return structs.replace(
            self._options,
            greeting=greeting,
            filler_after=self._options.filler_after if fillers.after is None else fillers.after,
            filler=texts("say.exactly", text=fillers.text) if fillers.text else self._options.filler,
            fillers={name: texts("say.exactly", text=words) for name, words in fillers.tools.items()},
            max_duration=limits.max_duration,
            idle_timeout=limits.idle_timeout,
            max_tool_calls=limits.max_tool_calls,
            max_consecutive_calls=limits.max_consecutive_calls,
            max_tokens=limits.max_tokens,
            has_transcripts=cfg.has_transcripts,
            is_tool_choice_forced=built.tool_choice not in ("auto", "none"),
        )

    def _recorder(self, call: IncomingCall, cfg: TenantConfig, options: MachineOptions) -> CallRecorder | None:
        if self.recordings is None:
            return None
        about = {
            "session_id": call.session_id,
            "sip_call_id": call.sip_call_id,
            "tenant_id": cfg.tenant_id,
            "version": cfg.version,
            "locale": cfg.locale,
        }
        try:
            self.recordings.mkdir(parents=True, exist_ok=True)
            path = self.recordings / f"{call.session_id}.jsonl"
            return CallRecorder(path, about=about, options=options, redactor=self._redactor)
        except OSError as error:
            log.error("the phone call %s cannot be recorded: %s", call.session_id, error.strerror)
            return None

    # The end.

    async def drain(self, *, grace: float = 10.0, farewell: float = 20.0) -> None:
        """Take no more calls; let those under way end, then transfer the others or say goodbye, and end them.

        `farewell` is how long that may take: what is being said is heard to its end first.
        """
        self._is_draining = True
        await self._webhooks.drain()
        late = await self._wait_for_calls(grace)
        if late and farewell > 0:
            for session in list(self.calls.values()):
                session.leave()
            late = await self._wait_for_calls(farewell)
        for session in list(self.calls.values()):
            session.end("shutdown")
        if late:
            stuck = await self._wait_for_calls(self._settle_grace * 2 + 5.0)
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)

    async def _wait_for_calls(self, timeout: float) -> set[asyncio.Task[None]]:
        """Wait for the calls under way; those that are not over."""
        if not self._tasks:
            return set()
        _, late = await asyncio.wait(list(self._tasks.values()), timeout=timeout)
        return late

    async def __aenter__(self) -> Self:
        if self._store is not None:
            await self._store.open()
        self.tenant_problems = await self._executors.check(await self._tenants.list())
        left_out: object = getattr(self._tenants, "problems", None)
        if isinstance(left_out, Mapping):  # Of `SqlTenants`: saved configurations that are not valid any more.
            self.tenant_problems |= cast(Mapping[str, str], left_out)
        for tenant_id, problem in self.tenant_problems.items():
            log.error("the tenant %s: %s", tenant_id, problem)
            self._note("", "tenant_invalid", "error", tenant_id=tenant_id, reason=problem)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.drain(grace=0.0, farewell=0.0)
        await self._executors.aclose()

    # What is told.

    def _note(
        self,
        session_id: str,
        name: str,
        severity: Literal["debug", "info", "warning", "error"] = "info",
        *,
        call: IncomingCall | None = None,
        tenant_id: str | None = None,
        **fields: Any,
    ) -> None:
        self._events.emit(
            LogEvent(
                at=time.time(),
                session_id=session_id,
                tenant_id=tenant_id or (call.tenant_id if call is not None else None),
                sip_call_id=call.sip_call_id if call is not None else None,
                name=name,
                severity=severity,
                fields={key: value for key, value in fields.items() if value not in ("", None)},
            )
        )
