"""Where conversations are saved: the `SessionStore` protocol, and its form in files."""

import asyncio
import os
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from handrail.chat.conversation import Conversation, decode_conversation, encode_conversation
from handrail.errors import StoreError


class SessionStore(Protocol):
    """Saves and loads conversations."""

    async def save(self, conversation: Conversation) -> None:
        """Save a conversation; raise `StoreError` unless its revision is the saved one plus 1."""
        ...

    async def load(self, session_id: str) -> Conversation | None:
        """Load the conversation of this id, or return None if there is none."""
        ...

    async def remove(self, session_id: str) -> bool:
        """Delete a conversation; return whether there was one."""
        ...


def build_conflict_error(session_id: str) -> StoreError:
    """Build the error for a save whose revision is not the next one."""
    return StoreError(
        f"conversation {session_id!r} was changed by another process since it was loaded. "
        "Nothing was overwritten: load it again."
    )


class FileSessionStore:
    """Saves each conversation as a JSON file in a directory, readable by its owner only.

    Use it from one process at a time: the revision detects that another process saved the conversation, but not two
    saves in the same instant. The SQL store detects both.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    async def save(self, conversation: Conversation) -> None:
        """Replace the file atomically."""
        await asyncio.to_thread(self._write, conversation)

    async def load(self, session_id: str) -> Conversation | None:
        """Read the file."""
        return await asyncio.to_thread(self._read, session_id)

    async def remove(self, session_id: str) -> bool:
        """Delete the file."""
        path = self.path(session_id)
        exists = await asyncio.to_thread(path.exists)
        await asyncio.to_thread(path.unlink, missing_ok=True)
        return exists

    def path(self, session_id: str) -> Path:
        """The file of the conversation of this id."""
        name = quote(session_id, safe="", errors="surrogatepass").replace(".", "%2E").replace("~", "%7E")
        if len(name) > 150 or name != name.lower():  # Some file systems do not distinguish upper and lower case.
            name = f"{name[:80]}-{sha256(session_id.encode(errors='surrogatepass')).hexdigest()[:16]}"
        return self.directory / f"{name}.json"

    def _read(self, session_id: str) -> Conversation | None:
        path = self.path(session_id)
        try:
            found = decode_conversation(path.read_bytes(), source=str(path))
        except FileNotFoundError:
            return None
        if found.session_id != session_id:
            raise StoreError(f"{path} contains the conversation {found.session_id!r}, expected {session_id!r}.")
        return found

    def _write(self, conversation: Conversation) -> None:
        saved = self._read(conversation.session_id)
        if conversation.revision != (saved.revision if saved else 0) + 1:
            raise build_conflict_error(conversation.session_id)
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=self.directory, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(encode_conversation(conversation))
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path(conversation.session_id))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
