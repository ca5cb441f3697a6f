"""One call of a model in a turn: its response made fit for the history, and the event that reports it."""

import itertools
import time
from typing import Any

from msgspec import structs

from handrail.chat.conversation import Conversation, is_storable
from handrail.core.context import ToolContext
from handrail.core.events import ModelCalled
from handrail.core.text import encodable
from handrail.core.values import ToolCall
from handrail.formats.parse import make_unparsable
from handrail.providers.provider import ModelResponse, Usage


def normalize_response(response: ModelResponse, conversation: Conversation, *, step: int) -> ModelResponse:
    """Give the response an id, and each call one that no other call of this conversation has.

    A format already makes ids unique by the id of their response; some servers send none, or the same one again.
    """
    used, turn = conversation.call_ids, conversation.turn
    response_id = response.id or f"response-{turn}-{step}"
    calls: list[ToolCall] = []
    for call in response.calls:
        call_id = encodable(call.id)
        for number in itertools.count(1):
            if call_id and call_id not in used:
                break
            call_id = f"{encodable(call.id) or 'call'}-{turn}-{step}-{number}"
        used.add(call_id)
        arguments, name = call.arguments_json, encodable(call.name)
        if (mended := encodable(arguments)) != arguments:  # Half a surrogate pair: repaired arguments must not run.
            arguments = make_unparsable(mended)
        provider_id = None if call_id == call.wire_id else encodable(call.wire_id)
        changes = {"id": call_id, "provider_id": provider_id, "name": name, "arguments_json": arguments}
        calls.append(structs.replace(call, response_id=call.response_id or response_id, **changes))
    native = response.native if is_storable(response.native) else None
    text = encodable(response.text)
    return structs.replace(response, calls=tuple(calls), id=response_id, native=native, text=text)


def build_model_called(
    context: ToolContext[Any],
    *,
    provider: str,
    started: float,
    usage: Usage | None = None,
    model: str = "",
    finish_reason: str = "",
    error: str | None = None,
) -> ModelCalled:
    """Build the event of a call of a model that began at `started`, by `time.monotonic()`."""
    usage = usage or Usage()
    return ModelCalled(
        at=time.time(),
        session_id=context.session_id,
        tenant_id=context.tenant_id,
        customer_id=context.customer_id,
        provider=provider,
        model=model,
        turn=context.turn,
        duration_ms=(time.monotonic() - started) * 1000,
        input_tokens=usage.input,
        output_tokens=usage.output,
        cached_tokens=usage.cached,
        cost=usage.cost,
        finish_reason=finish_reason,
        error=error,
    )
