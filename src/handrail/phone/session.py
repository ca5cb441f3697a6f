"""One phone call under way: the state machine, driven by a socket, timers and the executor."""

import asyncio
import inspect
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import structs

from handrail.core.context import ToolContext
from handrail.core.events import Event
from handrail.core.log import log
from handrail.core.redact import Redactor
from handrail.core.values import ToolCall
from handrail.errors import ToolError, must_propagate
from handrail.execute.executor import Executor
from handrail.phone import signals as s
from handrail.phone.call_ending import SETTLE_GRACE, settle_calls
from handrail.phone.call_limits import MachineOptions
from handrail.phone.call_setup import IncomingCall
from handrail.phone.events import CallLog, PhoneCallEnded, SpeechTranscribed
from handrail.phone.realtime import RealtimeAdapter, parse_event
from handrail.phone.recording import CallRecorder
from handrail.phone.state_machine import CallMachine
from handrail.phone.tool_runner import ToolRequests, ToolRunner
from handrail.phone.transcript import SpokenLine, Transcript
from handrail.phone.transport import ConnectionLost, Sideband, Transport
from handrail.tenants.call_control import TransferOutcome
from handrail.tenants.config import TenantConfig, replace_label
from handrail.tenants.phone_addresses import normalise_target
from handrail.tenants.request_transfer import resolve_destination
from handrail.tenants.tool_builder import ToolBuildResult

_SEND_TIMEOUT = 10.0
_SENT_TIMEOUT = 2.0
"""Seconds for what is still to be sent before the call is ended."""
_ANSWER_GRACE = 30.0
"""Seconds before the end of a call in which a tool call may have no output, if the call was not ended here."""
_MAX_EVENT_BYTES = 16_000_000
_SPOKEN = (s.CallerStarted, s.CallerTranscribed, s.PlaybackStarted, s.PlaybackStopped, s.PlaybackCleared)
"""Signals that a transcript is made from, beside the words of a response."""
_YOUNG = 2.0
"""Seconds after the first connection in which its end is not taken for the end of the call."""


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
        session: Mapping[str, Any],
        transport: Transport,
        context: ToolContext[Any],
        emit: Callable[[Event], None],
        exclude: Collection[str] = (),
        on_digits: "Callable[[CallSession, str], object] | None" = None,
        options: MachineOptions | None = None,
        recorder: CallRecorder | None = None,
        redactor: Redactor | None = None,
        settle_grace: float = SETTLE_GRACE,
        reconnect_delays: Sequence[float] = (0.1, 0.5, 1.0, 2.0, 4.0),
    ) -> None:
        self.call = call
        self.tenant: TenantConfig = built.config
        self.session_id = call.session_id
        self.usage: dict[str, int] = {}
        self.end_reason: s.EndReason | None = None
        # The tools of a phone call are those that it began with.
        self.executor = executor = executor.snapshot(exclude=exclude)
        self._background = built.background
        self._transport = transport
        self._recorder = recorder
        self._settle_grace = settle_grace
        self._reconnect_delays = tuple(reconnect_delays)
        self._texts = self.tenant.locale_texts()
        self._machine = CallMachine(options, texts=self._texts)
        self._adapter = RealtimeAdapter(session)
        self._events = CallLog(
            session_id=call.session_id, sip_call_id=call.sip_call_id, tenant_id=self.tenant.tenant_id, emit=emit
        )
        self._control = ToolRequests(self.feed)
        self._transcript = Transcript(redact=(redactor or Redactor()).value, on_line=self._report_line)
        self._runner = ToolRunner(
            executor=executor,
            built=built,
            context=structs.replace(
                context,
                session_id=call.session_id,
                tenant_id=self.tenant.tenant_id,
                tenant=self.tenant,
                call_control=self._control,
            ),
            confirmations=self._machine.confirmations,
            texts=self._texts,
            events=self._events,
        )
        self._outgoing: asyncio.Queue[tuple[dict[str, Any], str | None]] = asyncio.Queue()
        """Events that wait to be sent, and the tool call that each is the output of."""
        self._called_at: dict[str, float] = {}
        """When each tool call was completed, by the clock of the loop."""
        self._answered: set[str] = set()
        """Tool calls whose output was really sent."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._over = asyncio.Event()
        self._has_hung_up = False
        self._on_digits = on_digits
        self._started_at = time.monotonic()

    # What the outside can ask.

    @property
    def turn(self) -> int:
        """How often the caller has begun to speak."""
        return self._machine.turn

    @property
    def transcript(self) -> tuple[SpokenLine, ...]:
        """What was said so far; the caller's words only with a transcription model."""
        return tuple(line for line in self._transcript.lines if line.text)

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

    def leave(self) -> None:
        """Transfer the call as the tenant's `on_drain` says, or say goodbye and end it."""
        self._spawn(self._leave(), "leave")

    async def _leave(self) -> None:
        refer = self.tenant.features.refer
        if refer.on_drain is not None:
            try:
                destination = resolve_destination(self.tenant, refer.on_drain, at=datetime.now(UTC))
            except ToolError as error:
                log.warning("the phone call %s is not transferred: %s", self.session_id, error.message)
            else:
                announcement = replace_label(refer.handoff_phrase.strip(), destination.spoken_label)
                if await self.transfer(destination.target_uri, announcement=announcement) == "transferred":
                    return
        self.hang_up()

    @property
    def handed_off(self) -> bool:
        """Whether a tool's result handed the call to a person (`Control(mode="manual")`)."""
        return self._machine.is_handed_off

    def reply_as_operator(self, text: str) -> None:
        """Have these words said to the caller, exactly, as soon as nobody speaks."""
        if not text.strip():
            raise ValueError("text must not be empty.")
        self.feed(s.OperatorReplied(text=text))

    def hand_back(self) -> None:
        """Let the agent speak again: it replies to what it missed."""
        self.feed(s.HandedBack())

    async def transfer(self, target_uri: str, *, announcement: str = "") -> TransferOutcome:
        """Announce and transfer the call to a number, or a `tel:` or `sip:` address; `ValueError` for others."""
        return await self._control.transfer(normalise_target(target_uri), announcement=announcement)

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
        except Exception as error:  # a bug here must not leave tools running
            log.exception("the phone call %s failed", self.session_id)
            self._events.note("phone_call_failed", "error", reason=type(error).__name__)
            self.end("failed")
        finally:
            if not self.is_over:
                self.end("failed")
            await self._settle()

    async def _converse(self) -> None:
        clock = asyncio.get_running_loop().time
        connected_at: float | None = None
        is_young = True
        """Whether the call has only just been accepted: then the provider may not know it yet."""
        attempts = 0
        while not self.is_over:
            try:
                async with self._transport.connect(self.session_id) as connection:
                    self._outgoing = asyncio.Queue()  # What was not sent before is asked for again.
                    self.feed(s.Connected(resumed=connected_at is not None))
                    is_young = connected_at is None
                    connected_at, attempts = clock(), 0
                    await self._exchange(connection)
            except ConnectionLost as lost:
                self.feed(s.Disconnected())
                is_early = is_young and (connected_at is None or clock() - connected_at < _YOUNG)
                is_young = is_young and connected_at is None
                if lost.is_over and not is_early:
                    self.feed(s.Ended(reason="caller"))
                elif attempts >= len(self._reconnect_delays):
                    self.feed(s.Ended(reason="caller" if lost.is_over else "lost"))
                else:
                    self._events.note("sideband_reconnecting", "warning", attempt=attempts + 1)
                    await self._wait_over(self._reconnect_delays[attempts])
                    attempts += 1

    async def _exchange(self, connection: Sideband) -> None:
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

    async def _receive(self, connection: Sideband) -> None:
        while True:
            data = await connection.receive()
            event = parse_event(data) if len(data) <= _MAX_EVENT_BYTES else None
            if event is None:
                self._events.note("ws_event_ignored", "warning", size=len(data))
                continue
            if self._recorder is not None:
                self._recorder.record_event(event)
            for signal in self._adapter.read(event):
                self.feed(signal)
            if self._recorder is not None:
                self._recorder.read()

    async def _send(self, connection: Sideband) -> None:
        while True:
            event, call_id = await self._outgoing.get()
            fallback = self._runner.fallbacks.pop(event["item"].get("call_id", ""), None) if "item" in event else None
            try:
                async with asyncio.timeout(_SEND_TIMEOUT):
                    await connection.send(event)
            except (TimeoutError, ConnectionLost) as error:
                if fallback is not None:
                    self._runner.report_fallback(fallback, is_sent=False)
                raise ConnectionLost(is_over=getattr(error, "is_over", False)) from error
            if call_id is not None:
                self._answered.add(call_id)
            self._outgoing.task_done()
            if fallback is not None:
                self._runner.report_fallback(fallback, is_sent=True)
            if self._recorder is not None:
                self._recorder.record_sent_event(event)

    async def _wait_over(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._over.wait()
        except TimeoutError:
            pass

    async def _settle(self) -> None:
        """Hang up, end what runs, and report the end: nothing of this call is left running."""
        ended_at = asyncio.get_running_loop().time()
        for timer in self._timers.values():
            timer.cancel()
        if self.end_reason != "transferred" and not self._has_hung_up:
            # Whatever the reason, nobody looks after this call any more: its agent would go on without tools, and
            # without an end. One that is over already is not found, which is as good.
            await self._hang_up_once()
        await settle_calls(self.executor, self.session_id, self._tasks, grace=self._settle_grace)
        machine = self._machine
        lost = self._list_unanswered(ended_at)
        self._events.emit(
            PhoneCallEnded,
            reason=self.end_reason or "failed",
            seconds=time.monotonic() - self._started_at,
            tool_calls=len(self._runner.called),
            unanswered=len(lost),
            never_spoken=len(machine.calls.never_spoken),
            cut_off=len({*machine.calls.open, *machine.calls.unspoken} - lost),
            usage=dict(self.usage),
        )
        if self._recorder is not None:
            await self._recorder.aclose()
            if self._recorder.error is not None:
                self._events.note("recording_failed", "error", reason=self._recorder.error)

    def _list_unanswered(self, ended_at: float) -> set[str]:
        """Tool calls that never got an output, although there was time: the call was ended here, or went on for long.

        The simulator's report counts in the same way.
        """
        is_ended_here = self.end_reason not in ("caller", "expired", "transferred")
        missing = self._called_at.keys() - self._answered
        return {id for id in missing if is_ended_here or ended_at - self._called_at[id] > _ANSWER_GRACE}

    # Signals in, commands out.

    def feed(self, signal: s.Signal) -> None:
        """Give a signal to the state machine, and do what it wants."""
        if self._recorder is not None:
            self._recorder.record_signal(signal)
        if isinstance(signal, s.KeyPressed):
            self._press(signal.key)
        if isinstance(signal, s.Disconnected):  # What was under way may not have arrived.
            self._answered = {id for id in self._answered if self._machine.calls.is_added(id)}
        if isinstance(signal, s.ToolCalled):
            self._called_at.setdefault(signal.call.id, asyncio.get_running_loop().time())
            self._events.note("ws_tool_call_received", call=signal.call)
        if isinstance(signal, s.ResponseFinished):
            for name, count in signal.usage.items():
                self.usage[name] = self.usage.get(name, 0) + count
        if isinstance(signal, _SPOKEN) or (isinstance(signal, s.ResponseFinished) and signal.words):
            self._transcript.take(signal, at=time.monotonic() - self._started_at)
        commands = self._machine.handle(signal)
        if isinstance(signal, s.CallerTranscribed):
            self._runner.approvals.transcribe()
        for command in commands:
            self._do(command)

    def _report_line(self, line: SpokenLine) -> None:
        self._events.emit(
            SpeechTranscribed,
            speaker=line.speaker,
            text=line.text,
            seconds=line.at,
            is_interrupted=line.is_interrupted,
        )

    def _press(self, key: str) -> None:
        """Give a key to whoever collects keys, else to the program, the model or those who collect them next."""
        digits = self._control.digits
        if digits.is_collecting or (self._on_digits is None and self.tenant.keys == "keep"):
            digits.press(key)
        elif self._on_digits is None:
            self._machine.tell(self._texts("digits.pressed", digit=key))
        else:
            self._spawn(self._handle_key(self._on_digits, key), "key")

    async def _handle_key(self, on_digits: "Callable[[CallSession, str], object]", key: str) -> None:
        try:
            handled = on_digits(self, key)
            if inspect.isawaitable(handled):
                await handled
        except Exception:  # user code never ends a call
            log.exception("on_digits failed in the phone call %s", self.session_id)

    def _do(self, command: s.Command) -> None:
        match command:
            case s.ProviderCommand():
                call_id = command.call_id if isinstance(command, s.SendOutput) else None
                self._outgoing.put_nowait((self._adapter.write(command), call_id))
            case s.RunTool():
                self._spawn(self._run_tool(command.call, command.turn), f"tool:{command.call.id}")
            case s.StartTimer():
                self._start_timer(command.name, command.seconds)
            case s.StopTimer():
                self._stop_timer(command.name)
            case s.InterruptTools():
                self.cancel_tools_for_response(command.response_id)
            case s.IgnoreCall():
                self._runner.report_ignored(command)
            case s.FinishTransfer() | s.FinishHangUp():
                self._control.finish(command.request_id, command.outcome)
            case s.TransferCall():
                self._spawn(self._transfer(command.target_uri), "transfer")
            case s.HangUp():
                self._spawn(self._hang_up(), "hang-up")
            case s.RefuseApproval():
                self._spawn(self._runner.approvals.deny(command.token, turn=command.turn), "deny")
            case s.ReportSpoken():
                self._runner.report_spoken(command.call_ids)
            case s.Note():
                self._events.note(command.name, command.severity, **command.fields)
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
        task = asyncio.create_task(work, name=f"handrail:{self.session_id}:{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_tool(self, call: ToolCall, turn: int) -> None:
        after = self._background.get(call.name)
        timer: asyncio.TimerHandle | None = None
        if after is not None:
            continues = s.ToolContinues(call_id=call.id, output=self._texts("calls.continues"))
            timer = asyncio.get_running_loop().call_later(after, self.feed, continues)
        try:
            finished = await self._runner.run(call, turn=turn)
        finally:
            if timer is not None:
                timer.cancel()
        self.feed(finished)

    # Call control.

    async def _transfer(self, target_uri: str) -> None:
        if self._recorder is not None:
            self._recorder.record_request("refer")
        try:
            outcome = await self._transport.transfer(self.session_id, target_uri)
        except (Exception, asyncio.CancelledError) as error:  # whatever a transport raises, the tool gets an answer
            if must_propagate(error):
                raise
            log.error("the transfer of the phone call %s raised", self.session_id, exc_info=error)
            outcome = "unknown"
        self.feed(s.TransferAnswered(outcome=outcome))

    async def _hang_up(self) -> None:
        try:
            async with asyncio.timeout(_SENT_TIMEOUT):
                await self._outgoing.join()
        except TimeoutError:
            pass
        await self._hang_up_once()
        self.feed(s.Ended(reason="agent"))

    async def _hang_up_once(self) -> None:
        """Hang up; a request that fails is repeated."""
        self._has_hung_up = True
        if self._recorder is not None:
            self._recorder.record_request("hangup")
        for _ in range(2):
            try:
                if await self._transport.hang_up(self.session_id):
                    return
            except (Exception, asyncio.CancelledError) as error:  # whatever a transport raises, what runs is settled
                if must_propagate(error):
                    raise
                log.error("the phone call %s could not be ended", self.session_id, exc_info=error)
        self._events.note("phone_call_not_hung_up", "error")
