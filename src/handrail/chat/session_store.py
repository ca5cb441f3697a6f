"""Where conversations are saved: the `SessionStore` protocol, and its form in files."""

import asyncio
import os
import tempfile
from collections import OrderedDict
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol
from urllib.parse import quote

import msgspec

from handrail.chat.conversation import Conversation, ConversationDelta, diff_conversation, restore_conversation
from handrail.errors import StoreError

_MAX_FILES: Final = 1_000
"""How many files a store remembers the state of."""
_MIN_COMPACTION: Final = 65_536
"""Bytes that may be out of date in a file, on top of as much as is current, before the file is rewritten."""
_RECORD_BYTES: Final = 48
"""About what a message takes in a file besides itself."""


class SessionStore(Protocol):
    """Saves and loads conversations. One whose conversations end with the process has `in_memory = True`."""

    async def save(self, conversation: Conversation, *, previous: Conversation | None = None) -> None:
        """Save a conversation; raise `StoreError` unless its revision is the saved one plus 1.

        `previous` is the revision that is saved, where the caller knows it: a store may write only the difference.
        """
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
    """Saves each conversation as a file of JSON lines in a directory, readable by its owner only.

    A save appends what changed: `message` and `replace` records, then one `state` record that completes it. What a
    crash leaves after the last `state` is ignored. Now and then the file is rewritten without what was replaced.

    Use it from one process at a time: the revision detects that another process saved the conversation, but not two
    saves in the same instant. The SQL store detects both.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._files: OrderedDict[str, _SavedFile] = OrderedDict()

    async def save(self, conversation: Conversation, *, previous: Conversation | None = None) -> None:
        """Append what changed since `previous`, in one write."""
        await asyncio.to_thread(self._write, conversation, previous)

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
        return self.directory / f"{name}.jsonl"

    def _read(self, session_id: str) -> Conversation | None:
        path = self.path(session_id)
        try:
            with path.open("rb") as file:
                identity = _identify(os.fstat(file.fileno()))
                text = file.read()
        except FileNotFoundError:
            return None
        conversation, length = _decode_file(text, source=str(path))
        if conversation.session_id != session_id:
            raise StoreError(f"{path} contains the conversation {conversation.session_id!r}, expected {session_id!r}.")
        live = len(_encode_lines(diff_conversation(conversation, None)))
        self._remember(session_id, _SavedFile(identity, conversation.revision, length, live))
        return conversation

    def _remember(self, session_id: str, saved: "_SavedFile") -> None:
        self._files[session_id] = saved
        self._files.move_to_end(session_id)
        if len(self._files) > _MAX_FILES:
            self._files.popitem(last=False)

    def _find(self, session_id: str) -> "_SavedFile | None":
        """Return what is known about the file; it is read again only if somebody else changed it."""
        try:
            identity = _identify(self.path(session_id).stat())
        except FileNotFoundError:
            return None
        known = self._files.get(session_id)
        if known is None or known.identity != identity:
            self._read(session_id)
            known = self._files[session_id]
        return known

    def _write(self, conversation: Conversation, previous: Conversation | None) -> None:
        session_id = conversation.session_id
        path, saved = self.path(session_id), self._find(session_id)
        if conversation.revision != (saved.revision if saved is not None else 0) + 1:
            raise build_conflict_error(session_id)
        if saved is not None and previous is not None and previous.revision == saved.revision:
            delta = diff_conversation(conversation, previous)
            lines = _encode_lines(delta)
            length = saved.length + len(lines)
            live = saved.live + sum(
                len(text) + _RECORD_BYTES for at, text in delta.messages if at >= delta.previous_length
            )
            if length <= 2 * live + _MIN_COMPACTION:
                with path.open("r+b") as file:
                    file.truncate(saved.length)  # What a crash left after the last complete save is not part of it.
                    file.seek(saved.length)
                    file.write(lines)
                    file.flush()
                    os.fsync(file.fileno())
                    identity = _identify(os.fstat(file.fileno()))
                self._remember(session_id, _SavedFile(identity, conversation.revision, length, live))
                return
        delta = diff_conversation(conversation, None)
        lines = _encode_lines(delta)
        self._replace(path, lines)
        saved = _SavedFile(_identify(path.stat()), conversation.revision, length=len(lines), live=len(lines))
        self._remember(session_id, saved)

    def _replace(self, path: Path, text: bytes) -> None:
        """Write a file whole or not at all."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=self.directory, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


class _SavedFile(NamedTuple):
    """What a store remembers about a file, so that a save need not read it."""

    identity: tuple[int, int, int]
    revision: int
    length: int
    """Bytes up to the end of the last complete save."""
    live: int
    """Bytes that the file would have if it were written anew; the rest was replaced since."""


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a file."""

    type: Literal["message", "replace", "state"]
    position: int = 0
    message: msgspec.Raw = msgspec.Raw()
    length: int = 0
    """With `state`: how many messages there are."""
    state: msgspec.Raw = msgspec.Raw()


_RECORDS: Final = msgspec.json.Decoder(_Record)


def _encode_lines(delta: ConversationDelta) -> bytes:
    records = [
        _Record(type="message" if at >= delta.previous_length else "replace", position=at, message=msgspec.Raw(text))
        for at, text in delta.messages
    ]
    state = _Record(type="state", length=delta.length, state=msgspec.Raw(delta.state))
    return msgspec.json.Encoder().encode_lines([*records, state])


def _decode_file(text: bytes, *, source: str) -> tuple[Conversation, int]:
    """Decode the last complete save, and return where it ends."""
    messages: list[bytes] = []
    changes: list[_Record] = []
    state, end, offset, broken = b"", 0, 0, 0
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        offset += len(line)
        try:
            record = _RECORDS.decode(line) if line.endswith(b"\n") else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            record = None
        if record is None:
            broken = broken or number
        elif record.type != "state":
            changes.append(record)
        elif broken:  # A crash cuts off the end; something complete after it means that the file was damaged.
            raise StoreError(f"{source}, line {broken}, does not contain a valid record of a conversation.")
        else:
            for change in changes:
                if not 0 <= change.position <= len(messages):
                    raise StoreError(
                        f"{source}: a message has position {change.position}, expected at most {len(messages)}."
                    )
                messages[change.position : change.position + 1] = [bytes(change.message)]
            del messages[record.length :]
            changes, state, end = [], bytes(record.state), offset
    return restore_conversation(state, messages, source=source), end


def _identify(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns
