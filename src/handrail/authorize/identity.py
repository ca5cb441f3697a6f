"""What makes two deliveries the same call, and two calls the same effect: a call's arguments, and their digests."""

import hashlib
from collections.abc import Callable
from typing import Any, Final, cast

from msgspec import Struct
from pydantic_core import from_json

from handrail.core.context import ToolContext
from handrail.core.text import canonical_json, normalize_canonical, normalize_numbers
from handrail.core.tool import KeyOf, Tool
from handrail.core.values import ToolCall

VERSION: Final = "2"
"""Of the canonical form: digests of different versions are never equal."""

_MASK: Final = "**********"
"""How Pydantic writes a secret in JSON."""


class CallArguments(Struct, frozen=True, gc=False):
    """A call with its validated arguments, and everything that follows from them."""

    call: ToolCall
    sent_call: ToolCall
    """The call as the model sent it, before any hook."""
    value: Any
    """The validated arguments, as the handler takes them."""
    arguments: dict[str, Any]
    """The validated arguments, as JSON values."""
    identity: str
    """What makes two deliveries with one id the same call: whose it is, and what the model sent."""
    digest: str
    """Of all values: what makes the arguments of two calls equal."""
    key: str
    """What makes two calls the same effect, with its scope: the tool's `key`, or the values that are no defaults."""
    full_key: str
    """The same with all values: an entry that has either key is the same effect."""
    lock_key: str | None
    """What calls wait for each other by, if the tool has such a key."""

    def get_arguments(self) -> dict[str, Any]:
        """The validated arguments, as a policy takes them."""
        return self.arguments


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

    def digest_identity(self, sent_call: ToolCall, context: ToolContext[Any]) -> str:
        """The identity of a call as the model sent it, before any hook."""
        return self._digest_sent(normalize_numbers(sent_call.arguments_json or "{}"), sent_call.name, context)

    def read_call(
        self, tool: Tool[..., Any], call: ToolCall, context: ToolContext[Any], sent_call: ToolCall
    ) -> CallArguments:
        """Validate a call's arguments, and compute what follows from them; raises what the tool's parser raises."""
        return self.build_arguments(tool, call, tool.parse(call.arguments_json), context, sent_call)

    def build_arguments(
        self, tool: Tool[..., Any], call: ToolCall, value: Any, context: ToolContext[Any], sent_call: ToolCall
    ) -> CallArguments:
        """A call with its validated arguments, also as JSON values, with their digest and their keys."""
        arguments = tool.dump(value)
        # First all texts, then all digests.
        full, changed = write_arguments(tool, call, value, arguments)
        sent = normalize_numbers(sent_call.arguments_json or "{}")
        if tool.key is not None:
            full_key = changed = compute_key(tool.key, tool, call, value, arguments)
        else:
            full_key = full
        lock_key = None if tool.lock_key is None else compute_key(tool.lock_key, tool, call, value, arguments)
        scope = _write_scope(tool.name, context)
        digest = self._digest(scope + full)
        # A session never equals a customer of the same name.
        owner = f"s{context.session_id}" if context.customer_id is None else f"c{context.customer_id}"
        scope = f"{scope}{len(owner)},{owner}"
        if tool.repeatable:
            scope = f"{scope}{len(context.session_id)},{context.session_id}{len(call.id)},{call.id}"
        full_digest = self._digest(scope + full_key)
        return CallArguments(
            call=call,
            sent_call=sent_call,
            value=value,
            arguments=arguments,
            identity=self._digest_sent(sent, sent_call.name, context),
            digest=digest,
            key=full_digest if changed == full_key else self._digest(scope + changed),
            full_key=full_digest,
            lock_key=lock_key,
        )

    def _digest_sent(self, sent: str, name: str, context: ToolContext[Any]) -> str:
        customer = "" if context.customer_id is None else f"c{context.customer_id}"
        return self._digest(f"{_write_scope(name, context)}{len(customer)},{customer}{sent}")

    def digest_for_approval(
        self, tool: Tool[..., Any], call: ToolCall, value: Any, arguments: dict[str, Any], context: ToolContext[Any]
    ) -> str:
        """What somebody agrees to: all values, whose call it is, and what the tool said it is."""
        full, _ = write_arguments(tool, call, value, arguments)
        definition = tool.definition_digest
        customer = "" if context.customer_id is None else f"c{context.customer_id}"
        scope = f"{_write_scope(tool.name, context)}{definition},{len(customer)},{customer}"
        return self._digest(scope + full)

    def digest_secret(self, secret: bytes) -> str:
        """What stands for a secret in arguments: the same for the same secret, and it says nothing about it."""
        digest = (self._keyed or self.load_key()).copy()
        digest.update(b"secret," + secret)
        return digest.hexdigest()

    def _digest(self, text: str) -> str:
        digest = (self._keyed or self.load_key()).copy()
        digest.update(text.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def _write_scope(name: str, context: ToolContext[Any]) -> str:
    tenant = context.tenant_id or ""
    # Every part but the last has its length before it: two different calls never make the same text.
    return f"{VERSION},{len(name)},{len(tenant)},{name}{tenant}"


def write_arguments(tool: Tool[..., Any], call: ToolCall, value: Any, arguments: dict[str, Any]) -> tuple[str, str]:
    """Validated arguments as canonical text: all values, and those that differ from their defaults.

    Numbers are written by value, and secrets with theirs: the texts are for digests only.
    """
    if tool.write_forms is not None:
        return tool.write_forms(value, call.arguments_json)
    text = normalize_canonical(canonical_json(arguments))
    return text, text


def compute_key(
    key: tuple[str, ...] | KeyOf, tool: Tool[..., Any], call: ToolCall, value: Any, arguments: dict[str, Any]
) -> str:
    """The value of a tool's `key` or `lock_key`, as canonical JSON; it is computed from all arguments."""
    compute = _select(cast("tuple[str, ...]", key)) if isinstance(key, tuple) else key
    text = canonical_json(compute(arguments))
    if _MASK in text:  # A secret as JSON: two secrets would have one key.
        text = canonical_json(compute({**arguments, **from_json(write_arguments(tool, call, value, arguments)[0])}))
    return normalize_canonical(text)


def _select(names: tuple[str, ...]) -> KeyOf:
    return lambda arguments: list(map(arguments.get, names))
