"""Encrypts what the database keeps in full for a time: the arguments of open approvals, and changed ones."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite

from handrail.errors import ConfigError, MissingExtraError, StoreError
from handrail.store.database import Database
from handrail.store.tables import settings

EncryptionKey = str | bytes | Sequence[str | bytes]

_MARK: Final = "handrail:encrypted"
_CHECK: Final = "encryption_check"
"""The setting that says that a database is encrypted, and with which key."""
_WRONG_KEY: Final = "encryption_key is not the one that this database was encrypted with."


class Cipher:
    """Encrypts with the first of several keys, and decrypts with any; without a key it leaves values as they are."""

    def __init__(self, key: EncryptionKey | None) -> None:
        self._fernet: Any = None
        self._is_required = False
        self._has_old_keys = False
        if key is None:
            return
        try:
            from cryptography.fernet import Fernet, MultiFernet  # noqa: PLC0415  # optional
        except ImportError as error:
            raise MissingExtraError("cryptography", extra="encryption") from error
        try:
            keys = [key] if isinstance(key, str | bytes) else list(key)
            self._has_old_keys = len(keys) > 1
            self._fernet = MultiFernet([Fernet(key) for key in keys])
        except (ValueError, TypeError) as error:  # Its message does not contain the key.
            raise ConfigError(
                "encryption_key must be 32 bytes in url-safe base64, or several such keys, the newest first: "
                "cryptography.fernet.Fernet.generate_key() makes one."
            ) from error

    @property
    def has_key(self) -> bool:
        """Whether it encrypts."""
        return self._fernet is not None

    async def check(self, database: Database) -> None:
        """Raise `StoreError` if the database was encrypted with another key; remember that it is encrypted."""
        query = select(settings.c.value).where(settings.c.name == _CHECK)
        found = await database.fetch(query)
        if self._fernet is None:
            self._is_required = bool(found)
            return
        if not found:
            new = (sqlite if database.is_sqlite else postgresql).insert(settings).on_conflict_do_nothing()
            await database.write(new, {"name": _CHECK, "value": self._fernet.encrypt(b"handrail")})
            found = await database.fetch(query)
        self._decrypt(found[0][0])
        if self._has_old_keys:  # From now on the newest key is the database's.
            rotated = self._fernet.rotate(found[0][0])
            await database.write(update(settings).where(settings.c.name == _CHECK).values(value=rotated), {})

    def encrypt(self, value: Any) -> Any:
        """Encrypt a JSON value, as a JSON value; None stays None."""
        if value is None:
            return None
        if self._fernet is None:
            if self._is_required:
                raise StoreError("this database is encrypted: pass open_store(encryption_key=…).")
            return value
        return {_MARK: self._fernet.encrypt(msgspec.json.encode(value)).decode()}

    def decrypt(self, value: Any) -> Any:
        """Decrypt a value; what was written before there was a key is returned as it is.

        Raises `StoreError` for what this process has no key for, also if there was no key when it opened the database:
        what is encrypted never reaches a handler or a person.
        """
        token: object = cast(Any, value).get(_MARK) if isinstance(value, Mapping) else None
        if not isinstance(token, str):
            return cast(Any, value)
        if self._fernet is None:
            self._is_required = True  # Another process began to encrypt: from now on nothing is written in plain.
            raise StoreError("these arguments are encrypted: pass open_store(encryption_key=…).")
        return msgspec.json.decode(self._decrypt(token.encode()))

    def encrypt_text(self, text: str | None) -> str | None:
        """Encrypt a JSON text, as a text."""
        encrypted = self.encrypt(text)
        return encrypted if encrypted is None or isinstance(encrypted, str) else msgspec.json.encode(encrypted).decode()

    def decrypt_text(self, text: str | None) -> str | None:
        """Decrypt a text that `encrypt_text` made."""
        if text is None or not text.startswith(f'{{"{_MARK}"'):
            return text
        decrypted = self.decrypt(msgspec.json.decode(text))
        if not isinstance(decrypted, str):
            raise StoreError("an encrypted text holds something else.")
        return decrypted

    def _decrypt(self, token: bytes) -> bytes:
        from cryptography.fernet import InvalidToken  # noqa: PLC0415  # optional

        try:
            return self._fernet.decrypt(token)
        except InvalidToken as error:
            raise StoreError(_WRONG_KEY) from error
