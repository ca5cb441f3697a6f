"""The responses of the model: which script entry each takes, its events, and what the caller hears of them and when."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from .call_record import ToolCallRecord, TranscriptLine
from .clock import Timer
from .script import FunctionCall, ModelEntry
from .state import CallState


@dataclass(slots=True, eq=False)
class Playout:
    """The audio of one response."""

    response_id: str
    item_id: str
    on_start: Callable[[], None]
    text: str = ""
    complete: bool = False
    started_at: float | None = None
    timer: Timer | None = None


class Voice:
    """The output audio buffer of the call."""

    def __init__(self, state: CallState) -> None:
        self._state = state
        self._queue: deque[Playout] = deque()
        self.started = 0
        """How many responses the caller has begun to hear."""

    def add(self, playout: Playout) -> None:
        """Play this after what is being played."""
        self._queue.append(playout)
        if len(self._queue) == 1:
            self._start(playout)

    def complete(self, playout: Playout) -> None:
        """Say that no more audio is coming for it."""
        playout.complete = True
        if playout.started_at is not None and playout in self._queue:
            self._schedule_stop(playout)

    def clear(self) -> None:
        """Drop what was not played yet."""
        if not self._queue:
            return
        current = self._queue[0]
        played = self._state.clock.now - (current.started_at or 0.0)
        for playout in self._queue:
            if playout.timer is not None:
                playout.timer.cancel()
        self._queue.clear()
        self._state.playing = False
        characters = int(played * self._state.timing.speech_rate)
        if text := current.text[:characters]:
            self._note(current, f"{text}—" if characters < len(current.text) else text)
        self._state.emit("output_audio_buffer.cleared", response_id=current.response_id)
        if current.item_id in self._state.items:
            self._state.emit(
                "conversation.item.truncated", item_id=current.item_id, content_index=0, audio_end_ms=int(played * 1000)
            )

    def _start(self, playout: Playout) -> None:
        playout.started_at = self._state.clock.now
        self._state.playing = True
        self.started += 1
        self._state.emit("output_audio_buffer.started", response_id=playout.response_id)
        playout.on_start()
        if playout.complete:
            self._schedule_stop(playout)

    def _schedule_stop(self, playout: Playout) -> None:
        """R8: the end of playing comes after the end of the response."""
        now = self._state.clock.now
        ends = (playout.started_at or now) + len(playout.text) / self._state.timing.speech_rate
        playout.timer = self._state.clock.after(max(ends - now, 0.05), lambda: self._stop(playout))

    def _stop(self, playout: Playout) -> None:
        self._queue.popleft()
        self._state.playing = bool(self._queue)
        self._note(playout, playout.text)
        self._state.emit("output_audio_buffer.stopped", response_id=playout.response_id)
        if self._queue:
            self._start(self._queue[0])

    def _note(self, playout: Playout, text: str) -> None:
        at = playout.started_at or 0.0
        self._state.record.transcript.append(TranscriptLine(at=at, speaker="agent", text=text))
        self._state.note("agent", "speech", {"text": text, "started_at": at})


Creator: TypeAlias = Literal["caller", "client", "timeout"]

_TOKENS_PER_SECOND: Final = 20
"""Of the audio that a model speaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedRequest:
    """What a model that is a function gets to decide on."""

    number: int
    """How many responses there were before."""
    created_by: Creator
    tools: tuple[str, ...]
    tool_choice: Any
    instructions: str | None
    items: tuple[Mapping[str, Any], ...]
    """The conversation so far."""


ScriptedModel: TypeAlias = Callable[[ScriptedRequest], ModelEntry]


@dataclass(slots=True, eq=False)
class _Output:
    """One item of a response while it is generated."""

    index: int
    item: dict[str, Any]
    call: FunctionCall | None = None
    previous: str | None = None
    text: str = ""
    is_open: bool = True


@dataclass(slots=True, eq=False)
class Run:
    """One response while it is generated."""

    id: str
    entry: ModelEntry
    calls: tuple[FunctionCall, ...]
    in_conversation: bool
    is_audio: bool
    metadata: Mapping[str, str] | None
    answered: tuple[str, ...]
    """The calls whose outputs it can speak about."""
    outputs: list[_Output] = field(default_factory=list["_Output"])
    playout: Playout | None = None
    steps: Iterator[float] | None = None
    timer: Timer | None = None


class Responses:
    """The responses of one call; at most one at a time writes to the conversation."""

    def __init__(self, state: CallState, voice: Voice, model: ScriptedModel | None) -> None:
        self._state = state
        self._voice = voice
        self._model = model
        self._number = 0
        self.active: Run | None = None
        self._beside: list[Run] = []

    def create(self, created_by: Creator, params: Mapping[str, Any]) -> None:
        """Start a response with the next entry of the script."""
        state = self._state
        config: dict[str, Any] = {**state.session, **params}
        in_conversation = params.get("conversation", "auto") != "none"
        entry = self._next_entry(created_by, config)
        sees_outputs = params.get("input") is None
        run = Run(
            id=state.new_id("resp"),
            entry=entry,
            calls=self._allowed_calls(entry, config),
            in_conversation=in_conversation,
            is_audio=config.get("output_modalities", ["audio"]) == ["audio"],
            metadata=params.get("metadata"),
            answered=tuple(call.call_id for call in state.record.calls.values() if call.outputs)
            if sees_outputs
            else (),
        )
        if in_conversation:
            self.active, state.response_active = run, True
        else:
            self._beside.append(run)
            state.side_responses += 1
        run.steps = self._generate(run)
        self._step(run)

    def cancel(self, run: Run, reason: str) -> None:
        """Break a response off: what it had begun is closed as incomplete (R6)."""
        if run.timer is not None:
            run.timer.cancel()
        for output in run.outputs:
            if output.is_open:
                self._close(run, output, complete=False)
        self._finish(run, "cancelled", {"type": "cancelled", "reason": reason})

    def find(self, response_id: str | None) -> Run | None:
        """The active response, or the one with this id."""
        if response_id is None:
            return self.active
        running = [*([self.active] if self.active else []), *self._beside]
        return next((run for run in running if run.id == response_id), None)

    def _next_entry(self, created_by: Creator, config: Mapping[str, Any]) -> ModelEntry:
        script = self._state.script
        number, self._number = self._number, self._number + 1
        if self._model is not None:
            return self._model(
                ScriptedRequest(
                    number=number,
                    created_by=created_by,
                    tools=tuple(tool.get("name", "") for tool in config.get("tools", ())),
                    tool_choice=config.get("tool_choice", "auto"),
                    instructions=config.get("instructions"),
                    items=tuple(self._state.items.values()),
                )
            )
        if number < len(script.model):
            return script.model[number]
        self._state.record.unscripted_responses += 1
        return script.otherwise

    def _allowed_calls(self, entry: ModelEntry, config: Mapping[str, Any]) -> tuple[FunctionCall, ...]:
        """A model cannot call without tools, nor against the tool choice of the response."""
        if entry.calls and (config.get("tool_choice") == "none" or not config.get("tools")):
            self._state.record.suppressed_calls.extend(call.name for call in entry.calls)
            return ()
        return entry.calls

    def _step(self, run: Run) -> None:
        if run.steps is not None:
            delay = next(run.steps, None)
            if delay is not None:
                run.timer = self._state.clock.after(delay, lambda: self._step(run))

    def _generate(self, run: Run) -> Iterator[float]:
        state, entry = self._state, run.entry
        state.emit("response.created", response=self._snapshot(run, "in_progress", None))
        limits = [
            {"name": name, "limit": 10000, "remaining": 9000, "reset_seconds": 1.0} for name in ("requests", "tokens")
        ]
        state.emit("rate_limits.updated", rate_limits=limits)
        yield state.timing.think if entry.delay is None else entry.delay
        if entry.status == "failed" or state.faults.fails_reply():
            error = {"type": "server_error", "code": entry.error, "message": "The model failed."}
            self._finish(run, "failed", {"type": "failed", "error": error})
            return
        if entry.say:
            yield from self._say(run)
        if run.calls:
            yield from self._call(run)
        if entry.status == "incomplete":
            self._finish(run, "incomplete", {"type": "incomplete", "reason": entry.reason})
        else:
            self._finish(run, "completed", None)

    def _say(self, run: Run) -> Iterator[float]:
        state = self._state
        item: dict[str, Any] = {"type": "message", "role": "assistant", "content": []}
        output = self._open(run, item)
        place = {"response_id": run.id, "item_id": output.item["id"], "output_index": output.index, "content_index": 0}
        part = {"type": "audio", "transcript": ""} if run.is_audio else {"type": "text", "text": ""}
        state.emit("response.content_part.added", **place, part=part)
        if run.is_audio:
            run.playout = Playout(run.id, output.item["id"], lambda: self._mark_voiced(run))
        delta = "response.output_audio_transcript.delta" if run.is_audio else "response.output_text.delta"
        for start in range(0, len(run.entry.say), state.timing.piece):
            piece = run.entry.say[start : start + state.timing.piece]
            output.text += piece
            state.emit(delta, **place, delta=piece)
            if run.playout is not None:
                run.playout.text += piece
                if start == 0:
                    self._voice.add(run.playout)
            yield state.timing.delta
        self._close(run, output, complete=True)

    def _call(self, run: Run) -> Iterator[float]:
        """All calls of a response at once: their pieces interleave, told apart by the output index."""
        state = self._state
        outputs: list[tuple[_Output, str]] = []
        for call in run.calls:
            call_id = call.id or state.new_id("call")
            item = {"type": "function_call", "name": call.name, "call_id": call_id, "arguments": ""}
            outputs.append((self._open(run, item, call), _arguments_text(call)))
        breaks_off = outputs[-1][0] if run.entry.status == "incomplete" else None
        start, size = 0, state.timing.piece
        while any(output.is_open for output, _ in outputs):
            for output, text in outputs:
                if output is breaks_off:
                    text = text[: len(text) // 2]
                if piece := text[start : start + size]:
                    output.text += piece
                    state.emit("response.function_call_arguments.delta", **self._call_place(run, output), delta=piece)
                elif output.is_open and start:
                    self._close(run, output, complete=output is not breaks_off)
            state.writing_arguments = run.in_conversation
            start += size
            yield state.timing.delta

    def _open(self, run: Run, item: dict[str, Any], call: FunctionCall | None = None) -> _Output:
        state = self._state
        item = {"id": state.new_id("item"), "object": "realtime.item", "status": "in_progress", **item}
        output = _Output(len(run.outputs), item, call)
        run.outputs.append(output)
        state.emit("response.output_item.added", response_id=run.id, output_index=output.index, item=dict(item))
        if run.in_conversation:
            output.previous = next(reversed(state.items), None)
            state.items[item["id"]] = item
            if call is not None:
                state.call_items[item["call_id"]] = item["id"]
            state.emit("conversation.item.added", previous_item_id=output.previous, item=dict(item))
        return output

    def _close(self, run: Run, output: _Output, *, complete: bool) -> None:
        state, item = self._state, output.item
        output.is_open = False
        item["status"] = "completed" if complete else "incomplete"
        if output.call is not None:
            item["arguments"] = output.text
            named = {} if output.call.omit_name else {"name": output.call.name}
            done = {**self._call_place(run, output), **named, "arguments": output.text}
            state.emit("response.function_call_arguments.done", **done)
            if complete and run.in_conversation:
                call_id = item["call_id"]
                record = ToolCallRecord(
                    call_id=call_id, name=output.call.name, arguments=output.text, at=state.clock.now
                )
                state.record.calls.setdefault(call_id, record)
        else:
            self._close_message(run, output)
        index = output.index
        state.emit("response.output_item.done", response_id=run.id, output_index=index, item=dict(item))
        if run.in_conversation:
            state.emit("conversation.item.done", previous_item_id=output.previous, item=dict(item))

    def _close_message(self, run: Run, output: _Output) -> None:
        place = {"response_id": run.id, "item_id": output.item["id"], "output_index": output.index, "content_index": 0}
        if run.is_audio:
            output.item["content"] = [{"type": "output_audio", "transcript": output.text}]
            part = {"type": "audio", "transcript": output.text}
            self._state.emit("response.output_audio_transcript.done", **place, transcript=output.text)
        else:
            output.item["content"] = [{"type": "output_text", "text": output.text}]
            part = {"type": "text", "text": output.text}
            self._state.emit("response.output_text.done", **place, text=output.text)
        self._state.emit("response.content_part.done", **place, part=part)

    def _finish(self, run: Run, status: str, details: Mapping[str, Any] | None) -> None:
        state = self._state
        run.steps = None
        if run is self.active:
            self.active, state.response_active, state.writing_arguments = None, False, False
        elif run in self._beside:
            self._beside.remove(run)
            state.side_responses -= 1
        state.emit("response.done", response=self._snapshot(run, status, details))
        if status == "completed" and run.is_audio:
            self._mark_followed(run)
        if run.playout is not None:
            self._voice.complete(run.playout)

    def _snapshot(self, run: Run, status: str, details: Mapping[str, Any] | None) -> dict[str, Any]:
        state = self._state
        done = status != "in_progress"
        spoken = sum(len(output.text) for output in run.outputs if run.is_audio and output.call is None)
        audio = round(spoken / state.timing.speech_rate * _TOKENS_PER_SECOND)
        written = sum(len(output.text) for output in run.outputs) - spoken
        usage = {
            "total_tokens": 100 + audio + written,
            "input_tokens": 100,
            "output_tokens": audio + written,
            "input_token_details": {"text_tokens": 60, "audio_tokens": 40, "cached_tokens": 20},
            "output_token_details": {"text_tokens": written, "audio_tokens": audio},
        }
        return {
            "object": "realtime.response",
            "id": run.id,
            "status": status,
            "status_details": details,
            "output": [dict(output.item) for output in run.outputs] if done else [],
            "conversation_id": f"conv_{state.call_id}" if run.in_conversation else None,
            "output_modalities": ["audio"] if run.is_audio else ["text"],
            "max_output_tokens": "inf",
            "usage": usage if done else None,
            "metadata": run.metadata,
        }

    def _mark_voiced(self, run: Run) -> None:
        """The caller hears a response that was created with these outputs in the conversation."""
        for call_id in run.answered:
            call = self._state.record.calls[call_id]
            if call.voiced_at is None:
                call.voiced_at = self._state.clock.now
        self._mark_followed(run)

    def _mark_followed(self, run: Run) -> None:
        """A response was made with these outputs in the conversation; it may have called again instead of speaking."""
        for call_id in run.answered:
            call = self._state.record.calls[call_id]
            if call.followed_at is None:
                call.followed_at = self._state.clock.now

    def _call_place(self, run: Run, output: _Output) -> dict[str, Any]:
        item = output.item
        return {
            "response_id": run.id,
            "item_id": item["id"],
            "output_index": output.index,
            "call_id": item["call_id"],
        }


def _arguments_text(call: FunctionCall) -> str:
    return call.args if isinstance(call.args, str) else json.dumps(call.args, ensure_ascii=False, separators=(",", ":"))
