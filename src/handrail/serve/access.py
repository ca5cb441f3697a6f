"""Who makes a request: the holder of a key in a header, or of a browser session that was made from a key."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from msgspec import Struct

from handrail.core.text import encodable
from handrail.store import SqlStore
from handrail.store.api_keys import ApiKey

COOKIE: Final = "handrail_session"
SESSION_SECONDS: Final = 12 * 3600
_CACHED_SECONDS: Final = 1.0
"""How long a key is believed to be as it was: a revoked one is refused after that."""
_MAX_CACHED: Final = 10_000


class BrowserSession(Struct, frozen=True, kw_only=True):
    """A person who has signed in."""

    key: ApiKey
    form_token: str
    """In every form, so that no other page can send it."""

    @property
    def can_decide(self) -> bool:
        """Whether this person may approve, deny and resolve, and not only see."""
        return self.key.role == "operator"


class Access:
    """Finds the key behind a request."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._cached: dict[str, tuple[float, ApiKey | None]] = {}

    async def find_bearer(self, headers: Mapping[str, str]) -> ApiKey | None:
        """The key in the `Authorization` header; None if there is none that is valid."""
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        return await self.find_key(secret.strip()) if scheme.lower() == "bearer" and secret.strip() else None

    async def find_key(self, secret: str) -> ApiKey | None:
        """The key with this secret, unless it is revoked."""
        digest = hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
        return await self._remember(f"secret:{digest}", lambda: self._store.keys.find(secret))

    async def find_session(self, cookies: Mapping[str, str]) -> BrowserSession | None:
        """The session of a cookie, if it was made here, is not over, and its key is not revoked."""
        value = cookies.get(COOKIE, "")
        signed, _, signature = value.rpartition(".")
        key_id, _, rest = signed.partition(".")
        until = rest.partition(".")[0]
        expected = self._sign("session", signed).encode()
        if not (until.isascii() and until.isdecimal() and hmac.compare_digest(encodable(signature).encode(), expected)):
            return None
        if time.time() >= int(until):
            return None
        key = await self._remember(f"id:{key_id}", lambda: self._store.keys.get(key_id))
        if key is None or key.revoked_at is not None or key.role == "caller":
            return None
        return BrowserSession(key=key, form_token=self._sign("form", value))

    def build_cookie(self, key: ApiKey) -> str:
        """The value of a cookie for the holder of a key."""
        signed = f"{key.id}.{int(time.time()) + SESSION_SECONDS}.{secrets.token_hex(8)}"
        return f"{signed}.{self._sign('session', signed)}"

    def _sign(self, purpose: str, text: str) -> str:
        # Made with the database's own secret, so that every process that shares it knows the same sessions.
        message = f"handrail console {purpose}\n{text}".encode(errors="surrogatepass")
        return hmac.new(self._store.ledger.digest_key, message, hashlib.sha256).hexdigest()

    async def _remember(self, name: str, read: Callable[[], Awaitable[ApiKey | None]]) -> ApiKey | None:
        now = time.monotonic()
        known = self._cached.get(name)
        if known is not None and now - known[0] < _CACHED_SECONDS:
            return known[1]
        found = await read()
        if len(self._cached) >= _MAX_CACHED:
            self._cached.clear()
        self._cached[name] = (now, found)
        return found
