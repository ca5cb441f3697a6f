"""Paths inside the working directory, the only way in which built-in tools access files; and what they output."""

import errno
import json
import os
import secrets
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal, NamedTuple

import pydantic
from pydantic_core import PydanticCustomError

from handrail.core.context import ToolContext
from handrail.errors import PermissionDeniedError, ToolDefinitionError, ToolError, shorten

EntryKind = Literal["file", "folder", "link", "other"]

CHUNK: Final = 8192
"""The read-ahead in bytes."""

# A flag that a platform does not have is left out; `_verify_location` then detects what it would have prevented.
_NO_LINK: Final[int] = getattr(os, "O_NOFOLLOW", 0)
_FOLDER_FLAGS: Final[int] = os.O_RDONLY | _NO_LINK | getattr(os, "O_DIRECTORY", 0)
# Without O_NONBLOCK, opening a pipe that replaced a file would wait for a writer for ever.
_READ_FLAGS: Final[int] = (
    os.O_RDONLY | _NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
)
_CREATE_FLAGS: Final[int] = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | getattr(os, "O_BINARY", 0)
# Not Final: the tests turn it off, to run the form for platforms without directory descriptors.
_HAS_DIR_FD: bool = {os.open, os.stat, os.mkdir, os.rename, os.unlink} <= os.supports_dir_fd


class DirectoryEntry(NamedTuple):
    """One name in a directory and its kind; a link is a link, wherever it leads."""

    name: str
    kind: EntryKind


def _resolve_argument(path: str) -> str:
    """The path without links and dots, so that policy, approvals and the handler see where it leads."""
    if not os.path.isabs(path):
        raise PydanticCustomError("path_type", "must be an absolute path; it begins with the working directory")
    try:
        return os.path.realpath(path)
    except (OSError, ValueError, RecursionError) as error:  # NUL, text that no file system can hold, endless links
        raise PydanticCustomError("path_type", "cannot be the path of a file") from error


AbsolutePath = Annotated[str, pydantic.AfterValidator(_resolve_argument)]
"""An argument that is an absolute path; it is resolved when the arguments are validated."""


def resolve_argument(argument: str, path: str | None, context: ToolContext[Any]) -> "WorkspacePath":
    """The path of an `AbsolutePath` argument; refused if it leads elsewhere than when the arguments were validated."""
    target = resolve_path(path, context, argument=argument)
    if path is not None and os.path.join(target.root, *target.parts) != path:
        raise target.build_link_error()
    return target


def resolve_path(path: str | None, context: ToolContext[Any], *, argument: str = "path") -> "WorkspacePath":
    """Resolve a path inside the working directory; None is the directory itself. Raises `PermissionDeniedError`.

    The message does not name the path: it was resolved, and where a link leads is not for the model.
    """
    directory = context.working_directory
    if not directory:
        raise PermissionDeniedError(
            "This session has no working directory, and files may only be touched inside one. "
            "Whoever runs the session sets it: ToolContext(working_directory=…)."
        )
    if not os.path.isabs(directory):
        raise PermissionDeniedError(
            f"The working directory of this session, `{shorten(directory)}`, must be an absolute path."
        )
    try:
        root = PurePath(os.path.realpath(directory))
        real = root if path is None else PurePath(os.path.realpath(path))
    except (OSError, ValueError, RecursionError) as error:
        raise PermissionDeniedError(f"`{argument}` cannot be the path of a file.") from error
    if not real.is_relative_to(root):
        raise PermissionDeniedError(
            f"`{argument}` leads outside the working directory `{shorten(directory, 300)}`; "
            "only what is inside may be touched."
        )
    target = WorkspacePath(directory=directory, root=str(root), parts=real.relative_to(root).parts)
    if any(map(os.path.islink, (real, *real.parents[: len(target.parts)]))):  # A link that leads to itself.
        raise target.build_link_error()
    return target


def build_permission_check(argument: str) -> Callable[[dict[str, Any], ToolContext[Any]], None]:
    """The permission check of a tool that takes its path in this argument."""

    def permission_check(arguments: dict[str, Any], context: ToolContext[Any]) -> None:
        resolve_argument(argument, arguments[argument], context)

    return permission_check


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspacePath:
    """A resolved path inside the working directory.

    It may be out of date when it is used: another process can replace a directory with a link. So it is opened from
    the working directory one step at a time, each through a directory descriptor and never through a link, and the
    location of what was opened is checked again. On platforms without directory descriptors there is only that check.
    """

    directory: str
    """The working directory as the context spells it."""
    root: str
    """The working directory without links."""
    parts: tuple[str, ...]
    """The path from there, without links."""

    @property
    def path(self) -> str:
        """The absolute path, as the model sees it."""
        return os.path.join(self.directory, *self.parts)

    @property
    def display_path(self) -> str:
        """The path, shortened for a message."""
        return shorten(self.path, 300)

    def child(self, name: str) -> "WorkspacePath":
        """The path of an entry of this directory; if the entry is a link, it cannot be opened."""
        return WorkspacePath(directory=self.directory, root=self.root, parts=(*self.parts, name))

    def get_kind(self) -> EntryKind:
        """The kind of the file at this path."""
        if not self.parts:
            return "folder"
        with self.translate_errors(), self._open_folder(self.parts[:-1]) as folder:
            mode = folder.stat(self.parts[-1]).st_mode
            if stat.S_ISLNK(mode):
                raise self.build_link_error()
            if stat.S_ISDIR(mode):
                return "folder"
            return "file" if stat.S_ISREG(mode) else "other"

    def open(self) -> BufferedReader:
        """Open a regular file for reading; anything else is refused before it is opened."""
        with self.translate_errors(), self._open_folder(self.parts[:-1]) as folder:
            name = self._get_name()
            # Checked first, because opening a device or a pipe can already have an effect.
            self._require_file(folder.stat(name))
            fd = os.open(folder.at(name), _READ_FLAGS, dir_fd=folder.fd)
            try:
                self._require_file(os.fstat(fd))
                self._verify_location(fd, self.parts)
                return BufferedReader(FileIO(fd), CHUNK)
            except BaseException:
                os.close(fd)
                raise

    def scan(self, limit: int) -> list[DirectoryEntry]:
        """The entries of a directory, sorted by name, at most `limit` of them."""
        entries: list[DirectoryEntry] = []
        with (
            self.translate_errors(),
            self._open_folder(self.parts) as folder,
            os.scandir(folder.path if folder.fd is None else folder.fd) as found,
        ):
            for entry in found:
                if len(entries) == limit:
                    break
                entries.append(DirectoryEntry(entry.name, _get_entry_kind(entry)))
            if folder.fd is None:
                self._require_no_link(folder.path)
        return sorted(entries)

    def replace(self, data: bytes, *, expected: os.stat_result | None = None, create_folders: bool = False) -> bool:
        """Write these bytes atomically; returns whether the file is new.

        The bytes are written to a new file in the same directory, which then replaces the old one. It gets the
        permissions of the old one, and its owner where the system allows that; hard links to the old file keep the old
        text. With `expected`, the file must still be the one that was read.
        """
        with self.translate_errors(), self._open_folder(self.parts[:-1], make=create_folders) as folder:
            name = self._get_name()
            old = folder.stat_or_none(name)
            if old is not None:
                self._require_file(old)
                self._require_writable(old)
            if expected is not None and (old is None or _get_version(old) != _get_version(expected)):
                raise ToolError(
                    f"`{self.display_path}` was changed by somebody else at this moment. Read it again, and try again.",
                    retryable=True,
                )
            temporary = f".handrail-{secrets.token_hex(8)}.tmp"
            fd = os.open(folder.at(temporary), _CREATE_FLAGS, 0o600 if old else 0o666, dir_fd=folder.fd)
            try:
                with os.fdopen(fd, "wb") as file:
                    self._verify_location(fd, (*self.parts[:-1], temporary))
                    file.write(data)
                    file.flush()
                    if old is not None:
                        _copy_ownership(old, fd)
                    os.fsync(fd)
                os.replace(folder.at(temporary), folder.at(name), src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
            except BaseException:
                with suppress(OSError):
                    os.unlink(folder.at(temporary), dir_fd=folder.fd)
                raise
            return old is None

    @contextmanager
    def translate_errors(self) -> Generator[None]:
        """Convert an `OSError` to a `ToolError` for the model."""
        try:
            yield
        except ToolError:
            raise
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):  # what O_NOFOLLOW says of a link
                raise self.build_link_error() from error
            raise ToolError(_describe_os_error(error, self.display_path)) from error

    @contextmanager
    def _open_folder(self, parts: tuple[str, ...], *, make: bool = False) -> Generator["_Folder"]:
        """Open a directory below the working directory, step by step."""
        path = os.path.join(self.root, *parts)
        if not _HAS_DIR_FD:
            self._require_no_link(path)
            if make:
                os.makedirs(path, exist_ok=True)
                self._require_no_link(path)
            yield _Folder(path=path, fd=None)
            return
        fd = os.open(self.root, _FOLDER_FLAGS)
        try:
            for name in parts:
                below = self._open_step(fd, name, make=make)
                os.close(fd)
                fd = below
            self._verify_location(fd, parts)
            yield _Folder(path=path, fd=fd)
        finally:
            os.close(fd)

    def _open_step(self, fd: int, name: str, *, make: bool) -> int:
        try:
            return os.open(name, _FOLDER_FLAGS, dir_fd=fd)
        except FileNotFoundError:
            if not make:
                raise
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=fd)
            return os.open(name, _FOLDER_FLAGS, dir_fd=fd)
        except NotADirectoryError as error:
            # With O_DIRECTORY and O_NOFOLLOW, Linux reports a link in this way, too.
            if stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                raise self.build_link_error() from error
            raise

    def _verify_location(self, fd: int, parts: tuple[str, ...]) -> None:
        """Check where the open file is now: a directory of its path may have been moved, or replaced by a link."""
        try:
            where = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # no /proc: then the path must still lead to this very file
            where = os.path.realpath(os.path.join(self.root, *parts))
            if not os.path.samestat(os.stat(where), os.fstat(fd)):
                raise self.build_link_error() from None
        if not PurePath(where).is_relative_to(self.root):
            raise self.build_link_error()

    def _require_no_link(self, path: str) -> None:
        if os.path.realpath(path) != path:
            raise self.build_link_error()

    def _get_name(self) -> str:
        if not self.parts:
            raise ToolError(_describe_not_a_file(stat.S_IFDIR, self.display_path))
        return self.parts[-1]

    def _require_file(self, found: os.stat_result) -> None:
        if stat.S_ISLNK(found.st_mode):
            raise self.build_link_error()
        if not stat.S_ISREG(found.st_mode):
            raise ToolError(_describe_not_a_file(found.st_mode, self.display_path))

    def _require_writable(self, found: os.stat_result) -> None:
        # A rename checks the directory only, so it would replace a file that its owner made read-only.
        if not found.st_mode & 0o222:
            raise ToolError(f"`{self.display_path}` is marked read-only, and stays as it is.")

    def build_link_error(self) -> PermissionDeniedError:
        """The error for a path that leads elsewhere than it did."""
        return PermissionDeniedError(
            f"`{self.display_path}` leads through a link that goes in a circle or was changed during the call."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """A directory that was opened without following links."""

    path: str
    fd: int | None
    """None where the platform has no directory descriptors."""

    def at(self, name: str) -> str:
        return name if self.fd is not None else os.path.join(self.path, name)

    def stat(self, name: str) -> os.stat_result:
        return os.stat(self.at(name), dir_fd=self.fd, follow_symlinks=False)

    def stat_or_none(self, name: str) -> os.stat_result | None:
        try:
            return self.stat(name)
        except FileNotFoundError:
            return None


def _get_entry_kind(entry: "os.DirEntry[str]") -> EntryKind:
    # These read the directory itself, without a system call per entry.
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def _get_version(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _copy_ownership(old: os.stat_result, fd: int) -> None:
    """Give a new file the owner and the permissions of the one that it replaces."""
    if hasattr(os, "fchown"):
        with suppress(PermissionError):  # only root may give a file away
            os.fchown(fd, old.st_uid, old.st_gid)
    if hasattr(os, "fchmod"):
        os.fchmod(fd, old.st_mode & 0o777)  # never setuid: the old text had it, not the new one


def _describe_not_a_file(mode: int, path: str) -> str:
    if stat.S_ISDIR(mode):
        return f"`{path}` is a directory, not a file. list_files shows what is in it."
    return f"`{path}` is a device, a pipe or a socket; only regular files can be used."


def _describe_os_error(error: OSError, path: str) -> str:
    match error.errno:
        case errno.ENOENT:
            return f"There is no `{path}`. list_files shows what there is."
        case errno.ENOTDIR:
            return f"`{path}` cannot be reached: a part of it is not a directory."
        case errno.EACCES | errno.EPERM:
            return f"The system does not allow this for `{path}`."
        case errno.ENAMETOOLONG:
            return f"`{path}` has a name that is too long for this system."
        case errno.ENOSPC | errno.EDQUOT:
            return f"There is no room left for `{path}`; it is as it was."
        case errno.EROFS:
            return f"`{path}` is on a file system that can only be read."
        case _:
            return f"The system cannot do this for `{path}`: {os.strerror(error.errno or 0)}."


BOM: Final = b"\xef\xbb\xbf"


class ToolOutput:
    """Lines for the model, followed by notices in brackets.

    A line begins with a number or an absolute path, a notice with a bracket, so that no text of a file can look like a
    notice.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._left = max_bytes
        self._lines: list[str] = []
        self._notices: list[str] = []

    def __len__(self) -> int:
        return len(self._lines)

    def add_line(self, line: str) -> bool:
        """Add a line; False if the output is full. The first line is always added, so that a call makes progress."""
        size = len(line.encode("utf-8", "replace")) + 1
        if size > self._left and self._lines:
            return False
        self._left -= size
        self._lines.append(line)
        return True

    def add_notice(self, sentence: str) -> None:
        """Add a notice."""
        self._notices.append(f"[{sentence}]")

    def render(self) -> str:
        """The lines and the notices as one text."""
        return "\n".join(self._lines + self._notices)


def format_path(path: str) -> str:
    """A path on one line: unchanged, or as a JSON string if it has characters that would break the line.

    Bytes that are not UTF-8 are shown as �; such a file cannot be named in JSON.
    """
    clean = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return clean if clean.isprintable() else json.dumps(clean)


def check_positive(tool_name: str, **settings: float) -> None:
    """Raise `ToolDefinitionError` unless every setting is a positive number."""
    for name, value in settings.items():
        if isinstance(value, bool) or not value > 0:
            raise ToolDefinitionError(f"`{tool_name}`: {name} must be a positive number, got {value!r}.")


def build_not_text_error(path: str, beginning: bytes) -> ToolError:
    """The error for a file with NUL bytes, which is not text."""
    if beginning.startswith((b"\xff\xfe", b"\xfe\xff")):
        return ToolError(f"`{path}` is text in UTF-16; only UTF-8 can be used here.")
    return ToolError(f"`{path}` is a binary file (it has NUL bytes); only text can be used here.")


def encode_text(text: str, *, argument: str) -> bytes:
    """Encode text as UTF-8; raises `ToolError` for half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ToolError(
            f"`{argument}` has half of a surrogate pair at character {error.start}, which is no text; "
            "send the whole character."
        ) from error
