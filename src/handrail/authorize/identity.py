"""What makes two calls the same call, or the same effect: the arguments of a call, and their keyed digests."""

import hashlib
from collections.abc import Callable
from typing import Any, Final, cast

from msgspec import Struct

from handrail.core.context import ToolContext
from handrail.core.text import canonical_json
from handrail.core.tool import KeyOf, Tool
from handrail.core.values import ToolCall

VERSION: Final = "1"
"""Of the canonical form: digests of different versions are never equal."""

_MASK: Final = "**********"
"""How Pydantic writes a secret: two different secrets look the same."""


class CallArguments(Struct, frozen=True, gc=False):
    """A call with its validated arguments, and everything that follows from them."""

    call: ToolCall
    value: Any
    """The validated arguments, as the handler takes them."""
    arguments: dict[str, Any]
    """The validated arguments, as JSON values."""
    text: str
    """`arguments` as canonical JSON."""
    digest: str
    """What makes two calls with one id the same call, and two calls of one effect equal."""
    key: str
    """What makes two calls the same effect, with its scope."""
    lock_key: str | None
    """What calls wait for each other by, if the tool has such a key."""


class CallDigests:
    """Computes digests with the key of a ledger: without the key they say nothing about likely arguments."""

    __slots__ = ("_get_key", "_keyed")

    def __init__(self, get_key: Callable[[], bytes]) -> None:
        self._get_key = get_key
        self._keyed: hashlib.blake2b | None = None

    def load_key(self) -> hashlib.blake2b:
        """Get the key: of a ledger in a database, once that is open."""
        # BLAKE2 has a key of its own: a copy with the key already in it takes a fifth of the time of an HMAC.
        self._keyed = hashlib.blake2b(key=hashlib.sha256(self._get_key()).digest(), digest_size=32)
        return self._keyed

    def build_arguments(
        self, tool: Tool[..., Any], call: ToolCall, value: Any, context: ToolContext[Any]
    ) -> CallArguments:
        """A call with its validated arguments, their digest and their keys."""
        arguments = tool.dump(value)
        key = None if tool.key is None else compute_key(tool.key, arguments)
        lock_key = None if tool.lock_key is None else compute_key(tool.lock_key, arguments)
        text = canonical_json(arguments)
        digest, effect = self._digest_call(tool, call, context, text, key)
        return CallArguments(call, value, arguments, text, digest, effect, lock_key)

    def _digest_call(
        self, tool: Tool[..., Any], call: ToolCall, context: ToolContext[Any], text: str, key: str | None
    ) -> tuple[str, str]:
        """The digests of a call, and of the effect that it asks for; `text` and `key` are canonical JSON."""
        tenant = context.tenant_id or ""
        sent = keep_secrets_distinct(text, call)
        owner = context.customer_id or context.session_id
        effect = sent if key is None else keep_secrets_distinct(key, call)
        if tool.repeatable:
            effect = f"{len(context.session_id)},{context.session_id}{len(call.id)},{call.id}{effect}"
        # Every part but the last has its length before it: two different calls never make the same text.
        scope = f"{VERSION},{len(tool.name)},{len(tenant)},{tool.name}{tenant}"
        return self._digest(f"{scope}{sent}"), self._digest(f"{scope}{len(owner)},{owner}{effect}")

    def digest_for_approval(
        self, tool: Tool[..., Any], call: ToolCall, arguments: dict[str, Any], context: ToolContext[Any]
    ) -> str:
        """The identity of a call, with its customer and with what the tool said it is: what somebody agrees to."""
        identity, _ = self._digest_call(tool, call, context, canonical_json(arguments), None)
        return self._digest(f"{identity}{tool.definition_digest},{context.customer_id or ''}")

    def digest_secret(self, secret: bytes) -> str:
        """What stands for a secret in arguments: the same for the same secret, and it says nothing about it."""
        digest = (self._keyed or self.load_key()).copy()
        digest.update(b"secret," + secret)
        return digest.hexdigest()

    def _digest(self, text: str) -> str:
        digest = (self._keyed or self.load_key()).copy()
        digest.update(text.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def keep_secrets_distinct(text: str, call: ToolCall) -> str:
    """Canonical arguments; where a secret is masked in them, with the model's own text, so that two secrets differ."""
    return text + call.arguments_json if _MASK in text else text


def compute_key(key: tuple[str, ...] | KeyOf, arguments: dict[str, Any]) -> str:
    """The value of a tool's `key` or `lock_key` for these arguments, as canonical JSON."""
    if isinstance(key, tuple):
        return canonical_json([arguments.get(name) for name in cast("tuple[str, ...]", key)])
    return canonical_json(key(arguments))
