"""A local Gemini API: POST /v1beta/models/{model}:generateContent and :streamGenerateContent."""

import re
from collections.abc import Iterable, Iterator, Mapping

from .http import Incoming, StrictServer, sse
from .rules.gemini import RULES, key_is_sent
from .rules.reading import Field, GeminiWording, RequestRefused
from .script import Error, Reply, ScriptedResponse, parse_arguments, pieces

PATH = re.compile(r"/v1(?:alpha|beta)?/models/(?P<model>[^/:]+):(?P<method>generateContent|streamGenerateContent)")
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class GeminiServer(StrictServer):
    """A local Gemini server: `genai.Client(api_key="test", http_options={"base_url": server.url})`.

    With `call_ids=False` calls come without an id, as older models send them.
    """

    def __init__(self, script: Iterable[ScriptedResponse] = (), *, piece: int = 4, call_ids: bool = True) -> None:
        super().__init__(script, apis=(GeminiApi(call_ids=call_ids),), piece=piece)


class GeminiApi:
    """Checks requests for generateContent as the API does, and renders scripted responses."""

    def __init__(self, *, call_ids: bool = True) -> None:
        self._call_ids = call_ids

    def can_serve(self, path: str) -> bool:
        return PATH.fullmatch(path) is not None

    def check(self, incoming: Incoming) -> None:
        key_is_sent(incoming.headers, incoming.query)
        body = Field(value=incoming.body, wording=GeminiWording())
        for rule in RULES:
            rule(body)
        if self.is_streaming(incoming) and incoming.query.get("alt") != "sse":
            raise RequestRefused("This local server streams server-sent events only: add `?alt=sse`.", status=501)

    def is_streaming(self, incoming: Incoming) -> bool:
        return incoming.path.endswith(":streamGenerateContent")

    def build_body(self, incoming: Incoming, reply: Reply, number: int) -> Mapping[str, object]:
        parts = [{"text": reply.text}] if reply.text else []
        return _chunk(incoming, reply, number, [*parts, *self._calls(reply, number)], last=True)

    def build_events(self, incoming: Incoming, reply: Reply, number: int, piece: int) -> Iterator[bytes]:
        parts: list[Mapping[str, object]] = [{"text": piece_text} for piece_text in pieces(reply.text, piece)]
        parts += self._calls(reply, number)
        for index, part in enumerate(parts, 1):
            chunk = _chunk(incoming, reply, number, [part], last=index == len(parts))
            yield sse(chunk, newline="\r\n")
        if not parts:
            yield sse(_chunk(incoming, reply, number, [], last=True), newline="\r\n")

    def build_error_body(self, error: Error) -> Mapping[str, object]:
        status = error.code or STATUSES.get(error.status, "UNKNOWN")
        return {"error": {"code": error.status, "message": error.message, "status": status}}

    def build_error_event(self, error: Error) -> bytes:
        return sse(self.build_error_body(error), newline="\r\n")

    def _calls(self, reply: Reply, number: int) -> list[Mapping[str, object]]:
        """Build the parts of calls. Arguments must be objects, so a call with other arguments is left out."""
        parts: list[Mapping[str, object]] = []
        for index, call in enumerate(reply.calls, 1):
            if (args := parse_arguments(call)) is None:
                continue
            name = call.id or (f"call_{number}_{index}" if self._call_ids else None)
            parts.append({"functionCall": {**({"id": name} if name else {}), "name": call.name, "args": args}})
        return parts


def _chunk(
    incoming: Incoming, reply: Reply, number: int, parts: list[Mapping[str, object]], *, last: bool
) -> dict[str, object]:
    candidate: dict[str, object] = {"content": {"parts": parts, "role": "model"} if parts else {"role": "model"}}
    if last:
        candidate["finishReason"] = _finish_reason(reply)
        if reply.refusal is not None:
            candidate["finishMessage"] = reply.refusal
    used = reply.usage
    usage = {
        "promptTokenCount": used.input,
        "candidatesTokenCount": used.output,
        "totalTokenCount": used.input + used.output,
    }
    if used.cached:
        usage["cachedContentTokenCount"] = used.cached
    match = PATH.fullmatch(incoming.path)
    return {
        "candidates": [{**candidate, "index": 0}],
        "usageMetadata": usage,
        "modelVersion": match["model"] if match else "local",
        "responseId": reply.id or f"resp_{number}",
    }


def _finish_reason(reply: Reply) -> str:
    if reply.stop is not None:
        return reply.stop
    if reply.refusal is not None:
        return "SAFETY"
    if reply.truncated:
        return "MAX_TOKENS"
    return "MALFORMED_FUNCTION_CALL" if any(parse_arguments(call) is None for call in reply.calls) else "STOP"
