"""One phone call under way: the state machine, driven by a socket, timers and the executor."""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, structs

from handrail.core.context import ToolContext
from handrail.core.events import CallIgnored, Event, LogEvent, PhoneCallEnded, ResultSpoken
from handrail.core.log import log
from handrail.core.values import Failure, ToolCall, ToolResult
from handrail.errors import ApprovalError
from handrail.execute.executor import Executor
from handrail.phone import signals as s
from handrail.phone.digits import DigitCollector
from handrail.phone.incoming import IncomingCall
from handrail.phone.machine import CallMachine, MachineOptions
from handrail.phone.read_back import describe_call
from handrail.phone.realtime import RealtimeAdapter, parse_event
from handrail.phone.recording import Recorder
from handrail.phone.transport import Connection, ConnectionLost, Transport
from handrail.tenants.builder import ToolBuildResult
from handrail.tenants.call_control import Digits, HangUpOutcome, TransferOutcome
from handrail.tenants.config import TenantConfig

Severity = Literal["debug", "info", "warning", "error"]

_SEND_TIMEOUT = 10.0
_MAX_EVENT_BYTES = 16_000_000
_TRANSCRIPT_TIMEOUT = 3.0
"""Seconds to wait for the transcript of an answer before it counts as not understood."""


class CallSession:
    """One phone call: who calls, whose tenant it is, which tools run.

    A gateway makes it; `await session.run()` lasts until the call is over and every tool call is settled.
    """

    def __init__(
        self,
        *,
        call: IncomingCall,
        built: ToolBuildResult,
        executor: Executor,
        transport: Transport,
        context: ToolContext[Any],
        emit: Callable[[Event], None],
        options: MachineOptions | None = None,
        recorder: Recorder | None = None,
        settle_grace: float = 5.0,
        reconnect_delays: Sequence[float] = (0.1, 0.5, 1.0, 2.0, 4.0),
    ) -> None:
        self.call = call
        self.tenant: TenantConfig = built.config
        self.session_id = call.session_id
        self.usage: dict[str, int] = {}
        self.end_reason: s.EndReason | None = None
        self.executor = executor = executor.snapshot()  # The tools of a phone call are those that it began with.
        self._built = built
        self._transport = transport
        self._emit_event = emit
        self._recorder = recorder
        self._settle_grace = settle_grace
        self._reconnect_delays = tuple(reconnect_delays)
        self._texts = self.tenant.locale_texts()
        self._machine = CallMachine(options, texts=self._texts)
        self._adapter = RealtimeAdapter(executor.registry.to_openai_realtime_tools())
        self._digits = DigitCollector()
        self._context = structs.replace(
            context,
            session_id=call.session_id,
            tenant_id=self.tenant.tenant_id,
            tenant=self.tenant,
            call_control=None,
        )
        self._outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._transcribed = asyncio.Event()
        self._over = asyncio.Event()
        self._requests = itertools.count(1)
        self._called: dict[str, tuple[str, float]] = {}
        """The name of each called tool, and when."""
        self._spoken: set[str] = set()
        """Calls whose result the caller has begun to hear."""
        self._fallbacks: dict[str, ToolCall] = {}
        """Calls that got no result of their own, until their output is sent."""
        self._started_at = time.monotonic()

    # What the outside can ask.

    @property
    def turn(self) -> int:
        """How often the caller has begun to speak."""
        return self._machine.turn

    @property
    def running_calls(self) -> tuple[str, ...]:
        """The ids of the tool calls that have no result yet."""
        return self._machine.running_calls

    @property
    def is_over(self) -> bool:
        """Whether the call is over."""
        return self._over.is_set()

    def submit_tool_invocation(self, call: ToolCall) -> None:
        """Run a tool call of the model; one that is known already neither runs nor gets a second output."""
        self.feed(s.ToolCalled(call=call))

    def cancel_tools_for_response(self, response_id: str) -> int:
        """Interrupt the running calls of a response, each as its tool wants it; how many were cancelled."""
        return self.executor.cancel_tools_for_response(response_id, session_id=self.session_id)

    def hang_up(self) -> None:
        """Say goodbye and end the call."""
        self.feed(s.HangUpRequested(goodbye=self._texts("end_call.goodbye")))

    def end(self, reason: s.EndReason = "shutdown") -> None:
        """The call is over, whatever the reason: nothing more is sent, and what runs is settled."""
        self.feed(s.Ended(reason=reason))

    # The life of the call.

    async def run(self) -> None:
        """Converse until the call is over, then settle every tool call."""
        try:
            await self._converse()
        except asyncio.CancelledError:
            self.end("shutdown")
            raise
        except Exception:  # a bug here must not leave tools running
            log.exception("the phone call %s failed", self.session_id)
            self.end("failed")
        finally:
            if not self.is_over:
                self.end("failed")
            await self._settle()

    async def _converse(self) -> None:
        is_resumed = False
        attempts = 0
        while not self.is_over:
            try:
                async with self._transport.connect(self.session_id) as connection:
                    self._outgoing = asyncio.Queue()  # What was not sent before is asked for again.
                    self.feed(s.Connected(resumed=is_resumed))
                    is_resumed, attempts = True, 0
                    await self._exchange(connection)
            except ConnectionLost as lost:
                self.feed(s.Disconnected())
                if lost.is_over:
                    self.feed(s.Ended(reason="caller"))
                elif attempts >= len(self._reconnect_delays):
                    self.feed(s.Ended(reason="lost"))
                else:
                    self._note("sideband_reconnecting", "warning", attempt=attempts + 1)
                    await self._wait_over(self._reconnect_delays[attempts])
                    attempts += 1

    async def _exchange(self, connection: Connection) -> None:
        """Receive and send until the socket closes or the call is over."""
        parts: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._receive(connection), name=f"receive-{self.session_id}"),
            asyncio.create_task(self._send(connection), name=f"send-{self.session_id}"),
            asyncio.create_task(self._over.wait(), name=f"over-{self.session_id}"),
        ]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def _receive(self, connection: Connection) -> None:
        while True:
            data = await connection.receive()
            event = parse_event(data) if len(data) <= _MAX_EVENT_BYTES else None
            if event is None:
                self._note("ws_event_ignored", "warning", size=len(data))
                continue
            if self._recorder is not None:
                self._recorder.received(event)
            for signal in self._adapter.read(event):
                self.feed(signal)
            if self._recorder is not None:
                self._recorder.read()

    async def _send(self, connection: Connection) -> None:
        while True:
            event = await self._outgoing.get()
            fallback = self._fallbacks.pop(event["item"].get("call_id", ""), None) if "item" in event else None
            try:
                async with asyncio.timeout(_SEND_TIMEOUT):
                    await connection.send(event)
            except (TimeoutError, ConnectionLost) as error:
                if fallback is not None:
                    self._fallbacks[fallback.id] = fallback
                    self._note("tool_run_and_respond_fallback_output_failed", "error", call=fallback)
                raise ConnectionLost(is_over=getattr(error, "is_over", False)) from error
            if fallback is not None:
                self._note("tool_run_and_respond_fallback_output_sent", "warning", call=fallback)
            if self._recorder is not None:
                self._recorder.sent(event)

    async def _wait_over(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            pass

    async def _settle(self) -> None:
        """Reads are dropped, effects have a grace to finish; then nothing of this call is left running."""
        for timer in self._timers.values():
            timer.cancel()
        if self.end_reason in ("shutdown", "failed", "lost"):
            # Nobody looks after this call any more: its agent would go on without tools, and without an end.
            await self._transport.hang_up(self.session_id)
        await self.executor.cancel_all(self.session_id, grace=self._settle_grace)
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._settle_grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        machine = self._machine
        lost = [id for id in machine.unsent_calls if id in self._called]
        self._emit(
            PhoneCallEnded,
            reason=self.end_reason or "failed",
            seconds=time.monotonic() - self._started_at,
            tool_calls=len(self._called),
            unanswered=len(lost),
            never_spoken=len(machine.never_spoken),
            cut_off=len({*machine.open_calls, *machine.unspoken} - {*lost}),
            usage=dict(self.usage),
        )
        if self._recorder is not None:
            self._recorder.close()

    # Signals in, commands out.

    def feed(self, signal: s.Signal) -> None:
        """Give a signal to the state machine, and do what it wants."""
        if self._recorder is not None:
            self._recorder.noticed(signal)
        if isinstance(signal, s.KeyPressed):
            self._digits.press(signal.key)
            return
        if isinstance(signal, s.ToolCalled):
            self._note("ws_tool_call_received", call=signal.call)
        if isinstance(signal, s.ResponseFinished):
            for name, count in signal.usage.items():
                self.usage[name] = self.usage.get(name, 0) + count
        commands = self._machine.handle(signal)
        if isinstance(signal, s.CallerTranscribed):
            self._transcribed.set()
            self._transcribed = asyncio.Event()
        for command in commands:
            self._do(command)

    def _do(self, command: s.Command) -> None:
        match command:
            case s.SendOutput() | s.SendMessage() | s.RequestResponse() | s.RetrieveItem():
                event = self._adapter.write(command)
                if event is not None:
                    self._outgoing.put_nowait(event)
            case s.RunTool():
                self._run_tool(command)
            case s.StartTimer():
                self._start_timer(command.name, command.seconds)
            case s.StopTimer():
                self._stop_timer(command.name)
            case s.InterruptTools():
                self.cancel_tools_for_response(command.response_id)
            case s.IgnoreCall():
                self._ignore(command)
            case s.FinishTransfer() | s.FinishHangUp():
                waiting = self._waiting.pop(command.request_id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(command.outcome)
            case s.Refer():
                self._spawn(self._refer(command.target_uri), "refer")
            case s.HangUp():
                self._spawn(self._hang_up(), "hang-up")
            case s.RefuseApproval():
                self._spawn(self._deny(command.token), "deny")
            case s.ReportSpoken():
                self._report_spoken(command.call_ids)
            case s.Note():
                self._note(command.name, command.severity, **command.fields)
            case s.FinishCall():
                self.end_reason = command.reason
                self._over.set()
            case _:
                raise AssertionError(f"unknown command {command!r}")

    def _start_timer(self, name: str, seconds: float) -> None:
        self._stop_timer(name)
        self._timers[name] = asyncio.get_running_loop().call_later(seconds, self._fire, name)

    def _stop_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _fire(self, name: str) -> None:
        self._timers.pop(name, None)
        self.feed(s.TimerFired(name=name))

    def _spawn(self, work: Any, name: str) -> None:
        task = asyncio.create_task(work, name=f"{name}-{self.session_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Tool calls.

    def _run_tool(self, command: s.RunTool) -> None:
        call = command.call
        self._called[call.id] = call.name, time.monotonic()
        self._note("ws_tool_invocation_built", call=call)
        if not self.executor.has_tool(call.name):
            self._note("ws_tool_dispatcher_missing_fallback_output", "warning", call=call)
        self._note("ws_tool_invocation_submitting_to_dispatcher", "debug", call=call)
        self._spawn(self._run_and_respond(call, command.turn), f"tool-{call.id}")

    async def _run_and_respond(self, call: ToolCall, turn: int) -> None:
        context = structs.replace(self._context, turn=turn, call_control=_CallControl(self, call.id))
        try:
            await self._confirm(call, context)
            result = await self.executor.run(call, context)
            finished = self._finish(call, result)
        except Exception:  # whatever happens, the model gets an output
            log.exception("the call %s of %s got no result", call.id, self.session_id)
            self._fallbacks[call.id] = call
            failure = Failure(code="tool_execution_failed", message=self._texts("calls.not_run"))
            text = ToolResult(error=failure, tool_name=call.name, call_id=call.id).for_model()
            finished = s.ToolFinished(call_id=call.id, output=text)
        self.feed(finished)

    def _finish(self, call: ToolCall, result: ToolResult) -> s.ToolFinished:
        output, approval = result.for_model(), result.approval
        if approval is None or approval.by != "customer":
            return s.ToolFinished(call_id=call.id, output=output, is_silent=result.silent)
        tool = self.executor.registry.get(call.name)
        text = describe_call(self._built, call.name, tool.dump(tool.parse(call.arguments_json)), self._texts)
        return s.ToolFinished(call_id=call.id, output=output, approval=approval.token, read_back=text)

    def _ignore(self, command: s.IgnoreCall) -> None:
        if command.reason == "other_arguments":
            self._note("tool_invocation_conflicting_arguments", "error", call=command.call)
        else:
            self._emit(CallIgnored, call=command.call, reason=command.reason)

    def _report_spoken(self, call_ids: tuple[str, ...]) -> None:
        now = time.monotonic()
        for call_id in call_ids:
            if call_id in self._called and call_id not in self._spoken:
                self._spoken.add(call_id)
                name, called_at = self._called[call_id]
                self._emit(ResultSpoken, call_id=call_id, tool_name=name, seconds=now - called_at)

    # The caller's agreement.

    async def _confirm(self, call: ToolCall, context: ToolContext[Any]) -> None:
        """Give the caller's approval to this exact call, if they heard what it does and then agreed."""
        confirmations = self._machine.confirmations
        if not confirmations.has_answers:
            return
        approval = await self.executor.request_approval(call, context)
        if approval is None:
            return
        token = approval.token
        deadline = time.monotonic() + _TRANSCRIPT_TIMEOUT
        while confirmations.state(token) == "unknown" and time.monotonic() < deadline and not self.is_over:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._transcribed.wait()
            except TimeoutError:
                break
        if confirmations.state(token) != "yes":
            return
        confirmations.forget(token)
        try:
            await self.executor.approvals.approve(
                token, by="customer", who=context.customer_id or "caller", reason="the caller agreed on the phone"
            )
        except ApprovalError as error:
            log.warning("the approval of %s could not be given: %s", call.name, error.message)

    async def _deny(self, token: str) -> None:
        try:
            await self.executor.approvals.deny(
                token,
                by="customer",
                who=self._context.customer_id or "caller",
                reason="the caller refused on the phone",
            )
        except ApprovalError as error:
            log.warning("an approval could not be denied: %s", error.message)

    # Call control.

    async def transfer(self, target_uri: str, *, announcement: str) -> TransferOutcome:
        """Announce and refer the call."""
        request_id = f"transfer_{next(self._requests)}"
        return await self._ask(
            request_id,
            s.TransferRequested(request_id=request_id, target_uri=target_uri, announcement=announcement),
        )

    async def ask_to_hang_up(self, call_id: str, *, goodbye: str) -> HangUpOutcome:
        """Say goodbye and end the call, after the output of the tool call that asked for it."""
        request_id = f"hang_up_{next(self._requests)}"
        return await self._ask(request_id, s.HangUpRequested(request_id=request_id, call_id=call_id, goodbye=goodbye))

    async def _ask(self, request_id: str, signal: s.Signal) -> Any:
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = waiting
        self.feed(signal)
        return await waiting

    async def _refer(self, target_uri: str) -> None:
        if self._recorder is not None:
            self._recorder.requested("refer")
        outcome = await self._transport.refer(self.session_id, target_uri)
        self.feed(s.ReferFinished(outcome=outcome))

    async def _hang_up(self) -> None:
        if self._recorder is not None:
            self._recorder.requested("hangup")
        for _ in range(2):
            if await self._transport.hang_up(self.session_id):
                break
        self.feed(s.Ended(reason="agent"))

    @property
    def digits(self) -> DigitCollector:
        """The keys that the caller pressed for tools of this call."""
        return self._digits

    # What is told.

    def _note(self, name: str, severity: Severity = "info", /, *, call: ToolCall | None = None, **fields: Any) -> None:
        self._emit(LogEvent, name=name, severity=severity, call=call, fields=fields)

    def _emit(self, kind: Any, **fields: Any) -> None:
        self._emit_event(
            kind(
                at=time.time(),
                session_id=self.session_id,
                tenant_id=self.tenant.tenant_id,
                sip_call_id=self.call.sip_call_id,
                **fields,
            )
        )


class _CallControl(Struct, frozen=True):
    """The call as one tool call sees it."""

    session: CallSession
    call_id: str

    async def transfer(self, target_uri: str, *, announcement: str = "") -> TransferOutcome:
        return await self.session.transfer(target_uri, announcement=announcement)

    async def hang_up(self, *, goodbye: str = "") -> HangUpOutcome:
        return await self.session.ask_to_hang_up(self.call_id, goodbye=goodbye)

    async def collect_digits(self, *, max_digits: int, timeout: float, terminator: str = "#") -> Digits | None:
        return await self.session.digits.collect(max_digits=max_digits, timeout=timeout, terminator=terminator)

    def digits(self, digits_id: str) -> str:
        return self.session.digits.get(digits_id)


def describe_session(built: ToolBuildResult, definitions: list[Any]) -> Mapping[str, Any]:
    """The configuration that a call is accepted with: instructions with each tool's prompt, tools and tool choice."""
    cfg = built.config
    instructions = "\n\n".join(part for part in (cfg.instructions.strip(), built.prompt) if part)
    audio: dict[str, Any] = {"input": {"turn_detection": {"type": "server_vad"}}}
    if cfg.transcription_model is not None:
        audio["input"]["transcription"] = {
            "model": cfg.transcription_model,
            "language": cfg.locale.partition("-")[0].lower(),
        }
    if cfg.voice is not None:
        audio["output"] = {"voice": cfg.voice}
    session: dict[str, Any] = {
        "model": cfg.model,
        "audio": audio,
        "tools": definitions,
        "tool_choice": built.tool_choice,
        "output_modalities": ["audio"],
    }
    if instructions:
        session["instructions"] = instructions
    return session
