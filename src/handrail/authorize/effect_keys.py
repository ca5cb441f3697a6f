"""What makes two deliveries the same call, and two calls the same effect: a call's arguments, and their digests."""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from pydantic_core import from_json

from handrail.core.context import ToolContext
from handrail.core.lazy_loading import LazyModule
from handrail.core.text import canonical_json, copy_json, normalize_canonical, normalize_numbers
from handrail.core.tool import KeyOf, Tool
from handrail.core.values import ToolCall

if TYPE_CHECKING:
    import hashlib
else:
    hashlib = LazyModule("hashlib")

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
    """Of all values: what makes the arguments of two calls of one effect equal."""
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

    def load_key(self) -> "hashlib.blake2b":
        """Get the key: of a ledger in a database, once that is open."""
        # BLAKE2 has a key of its own: a copy with the key already in it takes a fifth of the time of an HMAC.
        self._keyed = hashlib.blake2b(key=hashlib.sha256(self._get_key()).digest(), digest_size=32)
        return self._keyed

    def digest_identity(self, sent_call: ToolCall, context: ToolContext[Any]) -> str:
        """The identity of a call as the model sent it, before any hook."""
        customer = "" if context.customer_id is None else f"c{context.customer_id}"
        sent = normalize_numbers(sent_call.arguments_json or "{}")
        return self._digest(_write_sent(_write_scope(sent_call.name, context.tenant_id), customer, sent))

    def read_call(
        self, tool: Tool[..., Any], call: ToolCall, context: ToolContext[Any], sent_call: ToolCall, value: Any = None
    ) -> CallArguments:
        """Validate a call's arguments, and compute what follows from them; raises what the tool's parser raises.

        `value` are the validated arguments, if they are known already: what was authorised is not parsed again.
        """
        if value is None:
            value = tool.parse(call.arguments_json)
        arguments = tool.dump(value)
        full, changed = write_arguments(tool, call, value, arguments)
        sent = normalize_numbers(sent_call.arguments_json or "{}")
        if tool.key is not None:
            full_key = changed = compute_key(tool.key, tool, call, value, arguments)
        else:
            full_key = full
        lock_key = None if tool.lock_key is None else compute_key(tool.lock_key, tool, call, value, arguments)
        scope = _write_scope(tool.name, context.tenant_id)
        customer = "" if context.customer_id is None else f"c{context.customer_id}"
        # A session never equals a customer of the same name.
        owner = customer or f"s{context.session_id}"
        effect = f"{scope}{len(owner)},{owner}"
        if tool.repeatable:
            effect = f"{effect}{len(context.session_id)},{context.session_id}{len(call.id)},{call.id}"
        sent_scope = scope if sent_call.name == tool.name else _write_scope(sent_call.name, context.tenant_id)
        identity = self._digest(_write_sent(sent_scope, customer, sent))
        full_digest = self._digest(effect + full_key)
        return CallArguments(
            call=call,
            sent_call=sent_call,
            value=value,
            arguments=arguments,
            identity=identity,
            # Without a key of the tool, the full key is made of all values.
            digest=full_digest if tool.key is None else self._digest(scope + full),
            key=full_digest if changed == full_key else self._digest(effect + changed),
            full_key=full_digest,
            lock_key=lock_key,
        )

    def digest_for_approval(
        self, tool: Tool[..., Any], call: ToolCall, value: Any, arguments: dict[str, Any], context: ToolContext[Any]
    ) -> str:
        """What somebody agrees to: all values, whose call it is, and what the tool said it is."""
        full, _ = write_arguments(tool, call, value, arguments)
        definition = tool.definition_digest
        customer = "" if context.customer_id is None else f"c{context.customer_id}"
        scope = f"{_write_scope(tool.name, context.tenant_id)}{definition},{len(customer)},{customer}"
        return self._digest(scope + full)

    def digest_secret(self, secret: bytes) -> str:
        """What stands for a secret in arguments: the same for the same secret, and it says nothing about it."""
        digest = (self._keyed or self.load_key()).copy()
        digest.update(b"secret," + secret)
        return digest.hexdigest()

    def digest_row(self, row: bytes) -> str:
        """What shows that a stored row is as it was written."""
        digest = (self._keyed or self.load_key()).copy()
        digest.update(b"row," + row)
        return digest.hexdigest()

    def _digest(self, text: str) -> str:
        digest = (self._keyed or self.load_key()).copy()
        digest.update(text.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


@lru_cache(maxsize=1_024)
def _write_scope(name: str, tenant_id: str | None) -> str:
    tenant = tenant_id or ""
    # Every part but the last has its length before it: two different calls never make the same text.
    return f"{VERSION},{len(name)},{len(tenant)},{name}{tenant}"


def _write_sent(scope: str, customer: str, sent: str) -> str:
    return f"{scope}{len(customer)},{customer}{sent}"


def write_arguments(tool: Tool[..., Any], call: ToolCall, value: Any, arguments: dict[str, Any]) -> tuple[str, str]:
    """Validated arguments as canonical text: all values, and those that differ from their defaults.

    Numbers are written by value, and secrets with theirs: the texts are for digests only.
    """
    if tool.write_forms is not None:
        return tool.write_forms(value, call.arguments_json, arguments)
    text = normalize_canonical(canonical_json(arguments))
    return text, text


def compute_key(
    key: tuple[str, ...] | KeyOf, tool: Tool[..., Any], call: ToolCall, value: Any, arguments: dict[str, Any]
) -> str:
    """The value of a tool's `key` or `lock_key`, as canonical JSON; it is computed from all arguments."""

    def compute(given: dict[str, Any]) -> object:
        # A function of the developer gets a copy: what it changed would be decided about, and shown, but not run.
        return key(copy_json(given)) if callable(key) else _select(key)(given)

    text = canonical_json(compute(arguments))
    if _MASK in text:  # A secret as JSON: two secrets would have one key.
        text = canonical_json(compute({**arguments, **from_json(write_arguments(tool, call, value, arguments)[0])}))
    return normalize_canonical(text)


@cache
def _select(names: tuple[str, ...]) -> KeyOf:
    return lambda arguments: list(map(arguments.get, names))
