"""Where conversations are kept: the protocol, and its form in files."""

import asyncio
import os
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from handrail.chat.conversation import Conversation, decoded, encoded
from handrail.errors import StoreError


class SessionStore(Protocol):
    """Where conversations are kept."""

    async def save(self, conversation: Conversation) -> None:
        """Keep a conversation; `StoreError` unless its revision is the next one after the one that is kept."""
        ...

    async def load(self, session_id: str) -> Conversation | None:
        """The conversation of this id, if there is one."""
        ...

    async def remove(self, session_id: str) -> bool:
        """Forget a conversation; whether there was one."""
        ...


def overtaken(session_id: str) -> StoreError:
    """Somebody else went on with this conversation."""
    return StoreError(
        f"The conversation {session_id!r} was gone on with elsewhere meanwhile. Nothing was overwritten: load it again."
    )


class FileSessionStore:
    """Conversations as JSON files in a directory, readable by their owner only.

    One process at a time: two that go on with one conversation are told apart by its revision, but not in the same
    instant. Use SQL for that.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    async def save(self, conversation: Conversation) -> None:
        """Replace the file, whole or not at all."""
        await asyncio.to_thread(self._write, conversation)

    async def load(self, session_id: str) -> Conversation | None:
        """Read the file."""
        return await asyncio.to_thread(self._read, session_id)

    async def remove(self, session_id: str) -> bool:
        """Delete the file."""
        path = self.path(session_id)
        there = await asyncio.to_thread(path.exists)
        await asyncio.to_thread(path.unlink, missing_ok=True)
        return there

    def path(self, session_id: str) -> Path:
        """Where the conversation of this id is kept."""
        name = quote(session_id, safe="", errors="surrogatepass").replace(".", "%2E").replace("~", "%7E")
        if len(name) > 150 or name != name.lower():  # Not every file system tells A from a.
            name = f"{name[:80]}-{sha256(session_id.encode(errors='surrogatepass')).hexdigest()[:16]}"
        return self.directory / f"{name}.json"

    def _read(self, session_id: str) -> Conversation | None:
        path = self.path(session_id)
        try:
            found = decoded(path.read_bytes(), source=str(path))
        except FileNotFoundError:
            return None
        if found.session_id != session_id:
            raise StoreError(f"{path} holds the conversation {found.session_id!r}, not {session_id!r}.")
        return found

    def _write(self, conversation: Conversation) -> None:
        kept = self._read(conversation.session_id)
        if conversation.revision != (kept.revision if kept else 0) + 1:
            raise overtaken(conversation.session_id)
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=self.directory, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(encoded(conversation))
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path(conversation.session_id))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
