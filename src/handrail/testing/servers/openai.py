"""A local OpenAI server with both APIs: POST /v1/chat/completions and POST /v1/responses."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .http import Incoming, StrictServer, sse
from .rules import openai_chat, openai_responses
from .rules.openai import key_is_sent
from .rules.reading import Field, OpenAIWording, RequestRefused, as_map
from .script import Error, Reply, ScriptedCall, ScriptedResponse, pieces

CREATED = 1_700_000_000
KINDS = {429: "requests", 500: "server_error", 502: "server_error", 503: "server_error", 504: "server_error"}
CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
ECHOED: dict[str, object] = {
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "background": False,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "store": True,
    "text": {"format": {"type": "text"}},
    "truncation": "disabled",
    "user": None,
}
"""The fields that a response repeats from its request, with their defaults."""


class OpenAIServer(StrictServer):
    """A local OpenAI server with Chat Completions and Responses: `OpenAI(base_url=server.url, api_key="test")`."""

    def __init__(self, script: Iterable[ScriptedResponse] = (), *, piece: int = 4) -> None:
        super().__init__(script, apis=(ChatApi(), ResponsesApi()), prefix="/v1", piece=piece)


class ChatApi:
    """Checks requests for Chat Completions as the API does, and renders scripted responses."""

    def can_serve(self, path: str) -> bool:
        return path == "/v1/chat/completions"

    def check(self, incoming: Incoming) -> None:
        key_is_sent(incoming.headers)
        body = Field(value=incoming.body, wording=OpenAIWording(unrecognized=True))
        for rule in openai_chat.RULES:
            rule(body)
        if incoming.body.get("n") not in (None, 1):
            raise RequestRefused("This local server gives one choice per request: leave out `n`.", status=501)
        if incoming.body.get("functions"):
            raise RequestRefused("This local server has no `functions`: use `tools`.", status=501)

    def is_streaming(self, incoming: Incoming) -> bool:
        return incoming.body.get("stream") is True

    def build_body(self, incoming: Incoming, reply: Reply, number: int) -> Mapping[str, object]:
        message: dict[str, object] = {
            "role": "assistant",
            "content": reply.text or (None if reply.calls or reply.refusal is not None else ""),
            "refusal": reply.refusal,
            "annotations": [],
        }
        if reply.calls:
            message["tool_calls"] = [_chat_call(call, number, index) for index, call in enumerate(reply.calls, 1)]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(reply)}
        head = _chat_head(incoming, reply, number, "chat.completion")
        return {**head, "choices": [choice], "usage": _chat_usage(reply)}

    def build_events(self, incoming: Incoming, reply: Reply, number: int, piece: int) -> Iterator[bytes]:
        with_usage = as_map(incoming.body.get("stream_options")).get("include_usage") is True
        head = _chat_head(incoming, reply, number, "chat.completion.chunk")
        tail: dict[str, object] = {"usage": None} if with_usage else {}
        for delta in _chat_deltas(reply, number, piece):
            yield sse({**head, "choices": [_chat_choice(delta, None)], **tail})
        yield sse({**head, "choices": [_chat_choice({}, _finish_reason(reply))], **tail})
        if with_usage:
            yield sse({**head, "choices": [], "usage": _chat_usage(reply)})
        yield sse("[DONE]")

    def build_error_body(self, error: Error) -> Mapping[str, object]:
        return build_error_body(error)

    def build_error_event(self, error: Error) -> bytes:
        return sse(build_error_body(error))


def build_error_body(error: Error) -> dict[str, object]:
    """Build the error body of both OpenAI APIs."""
    kind = error.kind or KINDS.get(error.status, "invalid_request_error")
    code = error.code or CODES.get(error.status)
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": code}}


def _finish_reason(reply: Reply) -> str:
    """Return the finish reason of Chat Completions."""
    if reply.stop is not None:
        return reply.stop
    return "length" if reply.truncated else "tool_calls" if reply.calls else "stop"


def _call_id(call: ScriptedCall, number: int, index: int) -> str:
    """Return the scripted id, or one that is the same in every run."""
    return call.id or f"call_{number}_{index}"


def _chat_head(incoming: Incoming, reply: Reply, number: int, kind: str) -> dict[str, object]:
    return {
        "id": reply.id or f"chatcmpl-{number}",
        "object": kind,
        "created": CREATED,
        "model": incoming.body["model"],
        "service_tier": "default",
        "system_fingerprint": "fp_local",
    }


def _chat_choice(delta: Mapping[str, object], reason: str | None) -> dict[str, object]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def _chat_deltas(reply: Reply, number: int, piece: int) -> Iterator[dict[str, object]]:
    opening = None if reply.calls and not reply.text else ""
    yield {"role": "assistant", "content": opening, "refusal": None}
    for part in pieces(reply.text, piece):
        yield {"content": part}
    for part in pieces(reply.refusal or "", piece):
        yield {"refusal": part}
    for index, call in enumerate(reply.calls):
        described = _chat_call(call, number, index + 1)
        yield {"tool_calls": [{"index": index, **described, "function": {"name": call.name, "arguments": ""}}]}
        for part in pieces(call.arguments, piece):
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}


def _chat_call(call: ScriptedCall, number: int, index: int) -> dict[str, object]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": _call_id(call, number, index), "type": "function", "function": function}


def _chat_usage(reply: Reply) -> dict[str, object]:
    used = reply.usage
    return {
        "prompt_tokens": used.input,
        "completion_tokens": used.output,
        "total_tokens": used.input + used.output,
        "prompt_tokens_details": {"cached_tokens": used.cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


class ResponsesApi:
    """OpenAI Responses, with the responses that this server has stored."""

    def __init__(self) -> None:
        self._conversations: dict[str, list[object]] = {}
        self._items: dict[str, object] = {}

    def can_serve(self, path: str) -> bool:
        return path == "/v1/responses"

    def check(self, incoming: Incoming) -> None:
        key_is_sent(incoming.headers)
        body = Field(value=incoming.body, wording=OpenAIWording())
        for rule in openai_responses.RULES:
            rule(body)
        for option in ("conversation", "background"):
            if incoming.body.get(option):
                raise RequestRefused(f"This local server has no `{option}`: leave it out.", status=501)
        conversation = Field(value=self._conversation(body), path=("input",), wording=body.wording)
        openai_responses.every_call_is_answered(conversation.items())

    def is_streaming(self, incoming: Incoming) -> bool:
        return incoming.body.get("stream") is True

    def build_body(self, incoming: Incoming, reply: Reply, number: int) -> Mapping[str, object]:
        output = list(_response_output(reply, number))
        response = _response(incoming, reply, number, output)
        self._remember(incoming, response, output)
        return response

    def build_events(self, incoming: Incoming, reply: Reply, number: int, piece: int) -> Iterator[bytes]:
        response = self.build_body(incoming, reply, number)
        started: dict[str, object] = {**response, "status": "in_progress", "output": [], "usage": None}
        started |= {"completed_at": None, "incomplete_details": None, "error": None}
        for position, event in enumerate(_response_events(started, response, piece)):
            yield sse({**event, "sequence_number": position}, event=str(event["type"]))

    def build_error_body(self, error: Error) -> Mapping[str, object]:
        return build_error_body(error)

    def build_error_event(self, error: Error) -> bytes:
        event = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return sse({**event, "sequence_number": 0}, event="error")

    def _conversation(self, body: Field) -> list[object]:
        """Build the whole conversation: the stored items, and those of this request with references resolved."""
        found: list[object] = []
        if previous := body.find("previous_response_id"):
            if previous.text() not in self._conversations:
                message = f"Previous response with id '{previous.text()}' not found."
                raise RequestRefused(message, code="previous_response_not_found", param="previous_response_id")
            found += self._conversations[previous.text()]
        return found + [self._resolve(item) for item in openai_responses.items(body)]

    def _resolve(self, item: Field) -> object:
        members = item.members()
        if (members.get("type") or "item_reference") != "item_reference" or "role" in members:
            return members
        wanted = item.need("id").text()
        if wanted not in self._items:
            raise RequestRefused(f"Item with id '{wanted}' not found.", status=404, param="input")
        return self._items[wanted]

    def _remember(self, incoming: Incoming, response: dict[str, Any], output: list[dict[str, Any]]) -> None:
        if incoming.body.get("store") is False:
            return
        before = self._conversation(Field(value=incoming.body, wording=OpenAIWording()))
        # A call that was cut off cannot get a result.
        complete = [item for item in output if item["type"] == "message" or item["status"] == "completed"]
        self._conversations[response["id"]] = [*before, *complete]
        self._items.update((str(item["id"]), item) for item in output)


def _response(incoming: Incoming, reply: Reply, number: int, output: list[dict[str, Any]]) -> dict[str, Any]:
    status, reason = _response_status(reply)
    used = reply.usage
    failure = {"code": "server_error", "message": "The script asked for this failure."}
    return {
        "id": reply.id or f"resp_{number}",
        "object": "response",
        "created_at": CREATED,
        "completed_at": CREATED if status == "completed" else None,
        "status": status,
        "error": failure if status == "failed" else None,
        "incomplete_details": {"reason": reason} if reason else None,
        **{key: incoming.body.get(key, default) for key, default in ECHOED.items()},
        "model": incoming.body.get("model", "local"),
        "output": output,
        "usage": {
            "input_tokens": used.input,
            "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": 0},
            "output_tokens": used.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used.input + used.output,
        },
    }


def _response_status(reply: Reply) -> tuple[str, str | None]:
    """Return the status, and the reason why a response is incomplete."""
    if reply.stop in ("completed", "failed", "cancelled"):
        return reply.stop, None
    if reply.stop is not None or reply.truncated:
        return "incomplete", reply.stop or "max_output_tokens"
    return "completed", None


def _response_output(reply: Reply, number: int) -> Iterator[dict[str, Any]]:
    last = "incomplete" if _response_status(reply)[0] == "incomplete" else "completed"
    part: dict[str, object] = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
    if reply.refusal is not None:
        part = {"type": "refusal", "refusal": reply.refusal}
    if reply.text or reply.refusal is not None or not reply.calls:
        status = "completed" if reply.calls else last
        yield {"id": f"msg_{number}", "type": "message", "status": status, "role": "assistant", "content": [part]}
    for index, call in enumerate(reply.calls, 1):
        yield {
            "id": f"fc_{number}_{index}",
            "type": "function_call",
            "status": last if index == len(reply.calls) else "completed",
            "call_id": _call_id(call, number, index),
            "name": call.name,
            "arguments": call.arguments,
        }


def _response_events(
    started: Mapping[str, Any], response: Mapping[str, Any], piece: int
) -> Iterator[dict[str, object]]:
    yield {"type": "response.created", "response": started}
    yield {"type": "response.in_progress", "response": started}
    for index, item in enumerate(response["output"]):
        is_message = item["type"] == "message"
        empty: dict[str, object] = {"content": []} if is_message else {"arguments": ""}
        added: dict[str, object] = {**item, **empty, "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": added}
        at = {"item_id": item["id"], "output_index": index}
        yield from _message_events(item, at, piece) if is_message else _call_events(item, at, piece)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{response['status']}", "response": response}


def _message_events(item: Mapping[str, Any], at: Mapping[str, Any], piece: int) -> Iterator[dict[str, object]]:
    part = item["content"][0]
    at = {**at, "content_index": 0}
    name, key = ("response.output_text", "text") if part["type"] == "output_text" else ("response.refusal", "refusal")
    extra: dict[str, object] = {"logprobs": []} if key == "text" else {}
    yield {"type": "response.content_part.added", **at, "part": {**part, key: ""}}
    for delta in pieces(part[key], piece):
        yield {"type": f"{name}.delta", **at, "delta": delta, **extra}
    yield {"type": f"{name}.done", **at, key: part[key], **extra}
    yield {"type": "response.content_part.done", **at, "part": part}


def _call_events(item: Mapping[str, Any], at: Mapping[str, Any], piece: int) -> Iterator[dict[str, object]]:
    name = "response.function_call_arguments"
    for delta in pieces(item["arguments"], piece):
        yield {"type": f"{name}.delta", **at, "delta": delta}
    yield {"type": f"{name}.done", **at, "arguments": item["arguments"]}
