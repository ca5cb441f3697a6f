"""Who asks: credentials as references, fetched for each request, and put where the document wants them."""

import base64
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote

from msgspec import Struct

from handrail.core.secrets import Reference, check_reference, resolve_reference
from handrail.errors import ConfigError


class RequestCredentials(Struct, frozen=True, kw_only=True):
    """What a request carries to say who asks."""

    headers: Mapping[str, str] = {}
    query: tuple[str, ...] = ()
    cookies: Mapping[str, str] = {}
    secrets: tuple[str, ...] = ()
    """The values themselves, so that an answer that repeats them can be cleaned."""


class Credentials:
    """The credentials for one document."""

    def __init__(
        self,
        *,
        bearer: Reference | None,
        basic: Reference | tuple[str, Reference] | None,
        api_key: Reference | Mapping[str, Reference] | None,
    ) -> None:
        self._bearer = bearer
        self._user: str | None = None
        self._basic: Reference | None = None
        """The password, or `user:password` where no user is given."""
        self._key: Reference | None = None
        self._keys: dict[str, Reference] = {}
        """By the name of the scheme, where the document has several."""
        self._schemes: Mapping[str, Any] = {}
        if isinstance(basic, tuple):
            self._user, self._basic = cast(tuple[str, Reference], basic)
        else:
            self._basic = basic
        if isinstance(api_key, Mapping):
            self._keys = dict(cast(Mapping[str, Reference], api_key))
        else:
            self._key = api_key
        named = {f"api_key[{scheme!r}]": reference for scheme, reference in self._keys.items()}
        for name, reference in {"bearer": bearer, "basic": self._basic, "api_key": self._key, **named}.items():
            if reference is not None:
                check_reference(reference, name=name)

    def __bool__(self) -> bool:
        return bool(self._keys) or any(item is not None for item in (self._bearer, self._basic, self._key))

    def use_schemes(self, schemes: Mapping[str, Any]) -> None:
        """Take the security schemes of the document; a key that it has no place for is a mistake."""
        self._schemes = schemes
        places = [name for name, scheme in schemes.items() if scheme.get("type") == "apiKey"]
        for name in self._keys:
            if name not in places:
                listed = ", ".join(places) or "none"
                raise ConfigError(f"api_key names the scheme {name!r}; the API keys of the document are: {listed}.")
        if self._key is not None and not places:
            raise ConfigError("api_key is given, but the document declares no API key, and so no place for it.")

    def sign(self, security: tuple[tuple[str, ...], ...] | None, secrets: Mapping[str, str]) -> RequestCredentials:
        """The credentials for one request. Nothing for an operation that is declared to need none."""
        if security == ():
            return RequestCredentials()
        for alternative in security or ():
            parts = [self._sign_scheme(name, secrets) for name in alternative]
            if parts and all(part is not None for part in parts):
                return _join_signatures([part for part in parts if part is not None])
        if any(not alternative for alternative in security or ()):
            return RequestCredentials()  # It may be asked by anybody.
        # Nothing declared, or declared otherwise: what the developer gave is what the developer wants sent.
        return self._sign_bearer(secrets) or self._sign_basic(secrets) or RequestCredentials()

    def _sign_scheme(self, name: str, secrets: Mapping[str, str]) -> RequestCredentials | None:
        scheme: Mapping[str, Any] = self._schemes.get(name, {})
        kind = scheme.get("type")
        if kind == "apiKey":
            return self._sign_api_key(name, scheme, secrets)
        if kind == "http" and str(scheme.get("scheme", "")).lower() == "basic":
            return self._sign_basic(secrets)
        return self._sign_bearer(secrets) if kind in ("http", "oauth2", "openIdConnect") else None

    def _sign_api_key(
        self, name: str, scheme: Mapping[str, Any], secrets: Mapping[str, str]
    ) -> RequestCredentials | None:
        field, place = str(scheme.get("name", "")), scheme.get("in")
        reference = self._keys.get(name, self._key)
        if reference is None:
            return self._sign_bearer(secrets) if place == "header" and field.lower() == "authorization" else None
        value = _resolve_value(reference, "api_key", secrets)
        if place == "query":
            return RequestCredentials(query=(f"{quote(field, safe='')}={quote(value, safe='')}",), secrets=(value,))
        if place == "cookie":
            return RequestCredentials(cookies={field: value}, secrets=(value,))
        return RequestCredentials(headers={field: value}, secrets=(value,))

    def _sign_bearer(self, secrets: Mapping[str, str]) -> RequestCredentials | None:
        if self._bearer is None:
            return None
        value = _resolve_value(self._bearer, "bearer", secrets)
        return RequestCredentials(headers={"Authorization": f"Bearer {value}"}, secrets=(value,))

    def _sign_basic(self, secrets: Mapping[str, str]) -> RequestCredentials | None:
        if self._basic is None:
            return None
        password = _resolve_value(self._basic, "basic", secrets)
        pair = password if self._user is None else f"{self._user}:{password}"
        encoded = base64.b64encode(pair.encode()).decode()
        return RequestCredentials(headers={"Authorization": f"Basic {encoded}"}, secrets=(encoded, password))


def _resolve_value(reference: Reference, name: str, secrets: Mapping[str, str]) -> str:
    value = resolve_reference(reference, name=name, secrets=secrets)
    if not value or not value.isascii() or not value.isprintable():
        # The value itself is not in the message.
        raise ConfigError(f"{name} refers to a value that cannot be sent: it must be printable ASCII, and not empty.")
    return value


def _join_signatures(parts: list[RequestCredentials]) -> RequestCredentials:
    return RequestCredentials(
        headers={name: value for part in parts for name, value in part.headers.items()},
        query=tuple(pair for part in parts for pair in part.query),
        cookies={name: value for part in parts for name, value in part.cookies.items()},
        secrets=tuple(secret for part in parts for secret in part.secrets),
    )
