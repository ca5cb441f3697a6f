"""A local Anthropic Messages API: POST /v1/messages."""

from collections.abc import Iterable, Iterator, Mapping

from .http import Incoming, StrictServer, sse
from .rules.anthropic_messages import RULES, fields_are_known, key_is_sent, version_is_sent
from .rules.reading import AnthropicWording, Field, RequestRefused, as_list, as_map
from .script import Error, Reply, ScriptedCall, ScriptedResponse, parse_arguments, pieces

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class AnthropicServer(StrictServer):
    """A local Anthropic server: `Anthropic(base_url=server.url, api_key="test")`."""

    def __init__(self, script: Iterable[ScriptedResponse] = (), *, piece: int = 4) -> None:
        super().__init__(script, apis=(MessagesApi(),), piece=piece)


class MessagesApi:
    """Anthropic Messages, with the threads that this server stores."""

    def __init__(self) -> None:
        self._threads: dict[str, dict[str, object]] = {}
        self._continued: set[str] = set()

    def can_serve(self, path: str) -> bool:
        return path == "/v1/messages"

    def check(self, incoming: Incoming) -> None:
        key_is_sent(incoming.headers)
        version_is_sent(incoming.headers)
        sent = Field(value=incoming.body, wording=AnthropicWording())
        fields_are_known(sent, beta="anthropic-beta" in incoming.headers or incoming.query.get("beta") == "true")
        body = Field(value=self._add_thread(sent), wording=AnthropicWording())
        for rule in RULES:
            rule(body)

    def is_streaming(self, incoming: Incoming) -> bool:
        return incoming.body.get("stream") is True

    def build_body(self, incoming: Incoming, reply: Reply, number: int) -> Mapping[str, object]:
        message = _message(incoming, reply, number, content=list(_blocks(reply, number)))
        self._hold(incoming, message)
        return message

    def build_events(self, incoming: Incoming, reply: Reply, number: int, piece: int) -> Iterator[bytes]:
        self.build_body(incoming, reply, number)
        for event in _events(incoming, reply, number, piece):
            yield sse(event, event=str(event["type"]))

    def build_error_body(self, error: Error) -> Mapping[str, object]:
        kind = KINDS.get(error.status, "api_error")
        described: dict[str, object] = {"type": kind, "message": error.message}
        if error.code in (*KINDS.values(), "api_error"):
            described["type"] = error.code
        elif error.code:
            described["details"] = {"error_code": error.code}
        return {"type": "error", "error": described, "request_id": "req_local"}

    def build_error_event(self, error: Error) -> bytes:
        return sse(self.build_error_body(error), event="error")

    def _add_thread(self, body: Field) -> dict[str, object]:
        """Add the stored messages of a thread to a request."""
        thread = body.find("thread")
        if thread is None or thread.need("type").one_of(("create", "continue")) == "create":
            return body.members()
        previous = thread.need("previous_message_id").text()
        if previous in self._continued:
            raise RequestRefused(f"thread: '{previous}' has already been continued", code="thread_already_continued")
        if previous not in self._threads:
            message = f"thread: no state was found for '{previous}'"
            raise RequestRefused(message, status=404, code="thread_not_found")
        held = self._threads[previous]
        messages = [*as_list(held["messages"]), *as_list(body.need("messages").value)]
        return {**held, **body.members(), "messages": messages}

    def _hold(self, incoming: Incoming, message: Mapping[str, object]) -> None:
        thread = as_map(incoming.body.get("thread"))
        if not thread:
            return
        body = self._add_thread(Field(value=incoming.body, wording=AnthropicWording()))
        reply_message = {"role": "assistant", "content": message["content"]}
        self._threads[str(message["id"])] = {**body, "messages": [*as_list(body["messages"]), reply_message]}
        self._continued.add(str(thread.get("previous_message_id")))


def _message(incoming: Incoming, reply: Reply, number: int, *, content: list[object]) -> dict[str, object]:
    return {
        "id": reply.id or f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": incoming.body["model"],
        "content": content,
        **_ending(incoming, reply),
        "usage": {
            "input_tokens": reply.usage.input - reply.usage.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": reply.usage.cached,
            "output_tokens": reply.usage.output,
            "service_tier": "standard",
        },
    }


def _ending(incoming: Incoming, reply: Reply) -> dict[str, object]:
    sequences = as_list(incoming.body.get("stop_sequences")) or [None]
    details = {"type": "refusal", "category": None, "explanation": reply.refusal}
    reason = _stop_reason(reply)
    return {
        "stop_reason": reason,
        "stop_sequence": sequences[0] if reason == "stop_sequence" else None,
        "stop_details": details if reason == "refusal" else None,
    }


def _stop_reason(reply: Reply) -> str:
    if reply.stop is not None:
        return reply.stop
    if reply.refusal is not None:
        return "refusal"
    return "max_tokens" if reply.truncated else "tool_use" if reply.calls else "end_turn"


def _blocks(reply: Reply, number: int) -> Iterator[dict[str, object]]:
    if reply.text:
        yield {"type": "text", "text": reply.text, "citations": None}
    for index, call in enumerate(reply.calls, 1):
        # The API can send arguments that are not an object only in the chunks of a stream.
        yield {**_tool_use(call, number, index), "input": parse_arguments(call) or {}}


def _tool_use(call: ScriptedCall, number: int, index: int) -> dict[str, object]:
    name = call.id or f"toolu_{number}_{index}"
    return {"type": "tool_use", "id": name, "name": call.name, "input": {}, "caller": {"type": "direct"}}


def _events(incoming: Incoming, reply: Reply, number: int, piece: int) -> Iterator[dict[str, object]]:
    message = _message(incoming, reply, number, content=[])
    usage = {"input_tokens": reply.usage.input - reply.usage.cached, "cache_read_input_tokens": reply.usage.cached}
    nothing_yet = {"stop_reason": None, "stop_sequence": None, "stop_details": None}
    started = {**message, **nothing_yet, "usage": {**usage, "cache_creation_input_tokens": 0, "output_tokens": 1}}
    yield {"type": "message_start", "message": started}
    deltas: list[tuple[dict[str, object], list[dict[str, object]]]] = []
    if reply.text:
        block: dict[str, object] = {"type": "text", "text": ""}
        deltas.append((block, [{"type": "text_delta", "text": part} for part in pieces(reply.text, piece)]))
    for index, call in enumerate(reply.calls, 1):
        parts = ["", *pieces(call.arguments, piece)]
        changes: list[dict[str, object]] = [{"type": "input_json_delta", "partial_json": part} for part in parts]
        deltas.append((_tool_use(call, number, index), changes))
    for index, (block, changes) in enumerate(deltas):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        if index == 0:
            yield {"type": "ping"}
        for change in changes:
            yield {"type": "content_block_delta", "index": index, "delta": change}
        yield {"type": "content_block_stop", "index": index}
    ending = _ending(incoming, reply)
    yield {"type": "message_delta", "delta": ending, "usage": {**usage, "output_tokens": reply.usage.output}}
    yield {"type": "message_stop"}
