"""What makes two calls the same call, or the same effect: keyed digests of what the model sent."""

import hashlib
from typing import Any, Final, cast

from handrail.core.context import ToolContext
from handrail.core.text import canonical_json
from handrail.core.tool import KeyOf, Tool
from handrail.core.values import ToolCall

VERSION: Final = "1"
"""Of the canonical form: digests of different versions never meet."""

_MASK: Final = "**********"
"""How Pydantic shows a secret: two different secrets look the same."""


class Identities:
    """Makes digests with the key of a ledger: without it they tell nothing about likely arguments."""

    __slots__ = ("_keyed",)

    def __init__(self, key: bytes) -> None:
        # BLAKE2 has a key of its own: a copy with the key already in it takes a fifth of the time of an HMAC.
        self._keyed = hashlib.blake2b(key=hashlib.sha256(key).digest(), digest_size=32)

    def of(
        self, tool: Tool[..., Any], call: ToolCall, arguments: dict[str, Any], context: ToolContext[Any]
    ) -> tuple[str, str]:
        """The identity of what the model sent, and the key of the effect that it asks for."""
        tenant = context.tenant_id or ""
        sent = told_apart(canonical_json(arguments), call)
        key = None if tool.key is None else key_of(tool.key, arguments)
        whose = context.customer_id or context.session_id
        effect = sent if key is None else told_apart(key, call)
        # Whatever comes before the last part has its length before it: two different calls never make one text.
        scope = f"{VERSION},{len(tool.name)},{len(tenant)},{tool.name}{tenant}"
        return self._digest(f"{scope}{sent}"), self._digest(f"{scope}{len(whose)},{whose}{effect}")

    def _digest(self, text: str) -> str:
        digest = self._keyed.copy()
        digest.update(text.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def told_apart(text: str, call: ToolCall) -> str:
    """Canonical arguments; where they hide a secret, with what the model sent, so that two secrets stay two."""
    return text + call.arguments_json if _MASK in text else text


def key_of(key: tuple[str, ...] | KeyOf | None, arguments: dict[str, Any]) -> str | None:
    """What a tool's `key` or `lock_key` makes of arguments; None where the tool has none."""
    if key is None:
        return None
    if isinstance(key, tuple):
        return canonical_json([arguments.get(name) for name in cast("tuple[str, ...]", key)])
    return canonical_json(key(arguments))
