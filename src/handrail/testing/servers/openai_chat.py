"""A local Chat Completions API: POST /v1/chat/completions."""

from collections.abc import Iterator, Mapping

from .http import Incoming, sse
from .rules.openai import key_is_sent
from .rules.openai_chat import RULES
from .rules.reading import Field, RequestRefused, as_map
from .rules.wording import OpenAIWording
from .script import Error, Reply, ScriptedCall, pieces

CREATED = 1_700_000_000
KINDS = {429: "requests", 500: "server_error", 502: "server_error", 503: "server_error", 504: "server_error"}
CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


class ChatApi:
    """Checks requests for Chat Completions as the API does, and renders scripted responses."""

    def can_serve(self, path: str) -> bool:
        return path == "/v1/chat/completions"

    def check(self, incoming: Incoming) -> None:
        key_is_sent(incoming.headers)
        body = Field(value=incoming.body, wording=OpenAIWording(unrecognized=True))
        for rule in RULES:
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
            message["tool_calls"] = [_call(call, number, index) for index, call in enumerate(reply.calls, 1)]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(reply)}
        head = _head(incoming, reply, number, "chat.completion")
        return {**head, "choices": [choice], "usage": _usage(reply)}

    def build_events(self, incoming: Incoming, reply: Reply, number: int, piece: int) -> Iterator[bytes]:
        with_usage = as_map(incoming.body.get("stream_options")).get("include_usage") is True
        head = _head(incoming, reply, number, "chat.completion.chunk")
        tail: dict[str, object] = {"usage": None} if with_usage else {}
        for delta in _deltas(reply, number, piece):
            yield sse({**head, "choices": [_choice(delta, None)], **tail})
        yield sse({**head, "choices": [_choice({}, finish_reason(reply))], **tail})
        if with_usage:
            yield sse({**head, "choices": [], "usage": _usage(reply)})
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


def finish_reason(reply: Reply) -> str:
    """Return the finish reason of Chat Completions."""
    if reply.stop is not None:
        return reply.stop
    return "length" if reply.truncated else "tool_calls" if reply.calls else "stop"


def call_id(call: ScriptedCall, number: int, index: int) -> str:
    """Return the scripted id, or one that is the same in every run."""
    return call.id or f"call_{number}_{index}"


def _head(incoming: Incoming, reply: Reply, number: int, kind: str) -> dict[str, object]:
    return {
        "id": reply.id or f"chatcmpl-{number}",
        "object": kind,
        "created": CREATED,
        "model": incoming.body["model"],
        "service_tier": "default",
        "system_fingerprint": "fp_local",
    }


def _choice(delta: Mapping[str, object], reason: str | None) -> dict[str, object]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def _deltas(reply: Reply, number: int, piece: int) -> Iterator[dict[str, object]]:
    opening = None if reply.calls and not reply.text else ""
    yield {"role": "assistant", "content": opening, "refusal": None}
    for part in pieces(reply.text, piece):
        yield {"content": part}
    for part in pieces(reply.refusal or "", piece):
        yield {"refusal": part}
    for index, call in enumerate(reply.calls):
        described = _call(call, number, index + 1)
        yield {"tool_calls": [{"index": index, **described, "function": {"name": call.name, "arguments": ""}}]}
        for part in pieces(call.arguments, piece):
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}


def _call(call: ScriptedCall, number: int, index: int) -> dict[str, object]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call_id(call, number, index), "type": "function", "function": function}


def _usage(reply: Reply) -> dict[str, object]:
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
