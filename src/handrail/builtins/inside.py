"""A place inside the working directory: the only way in which the built-in tools touch files."""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import PurePath
from typing import Any, Final, Literal, NamedTuple

from handrail.core.context import ToolContext
from handrail.errors import PermissionDeniedError, ToolError, shorten

Kind = Literal["file", "folder", "link", "other"]

CHUNK: Final = 8192
"""How many bytes are read ahead of what was asked for, at most."""

# A flag that a platform does not have is left out; `_verify` then finds afterwards what it would have prevented.
_NO_LINK: Final[int] = getattr(os, "O_NOFOLLOW", 0)
_FOLDER: Final[int] = os.O_RDONLY | _NO_LINK | getattr(os, "O_DIRECTORY", 0)
# Without O_NONBLOCK, opening a pipe that took the place of a file would wait for a writer for ever.
_READ: Final[int] = (
    os.O_RDONLY | _NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
)
_CREATE: Final[int] = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | getattr(os, "O_BINARY", 0)
# Not Final: the tests turn it off, to run the form for platforms without directory descriptors.
_BY_DESCRIPTOR: bool = {os.open, os.stat, os.mkdir, os.rename, os.unlink} <= os.supports_dir_fd


class Entry(NamedTuple):
    """One name in a directory, and what it is; a link is a link, wherever it leads."""

    name: str
    kind: Kind


def locate(path: str | None, context: ToolContext[Any]) -> "Place":
    """Find the place that a path leads to, or refuse it. No path at all means the working directory itself."""
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
    path = directory if path is None else path
    if not os.path.isabs(path):
        raise PermissionDeniedError(
            f"The path `{shorten(path)}` must be absolute. It begins with the working directory, "
            f"`{shorten(directory, 300)}`."
        )
    try:
        root, real = PurePath(os.path.realpath(directory)), PurePath(os.path.realpath(path))
    except (OSError, ValueError, RecursionError) as error:  # NUL, text that no file system can hold, endless links
        raise PermissionDeniedError(f"`{shorten(path)}` cannot be the path of a file.") from error
    if not real.is_relative_to(root):
        raise PermissionDeniedError(
            f"`{shorten(path, 300)}` leads outside the working directory `{shorten(directory, 300)}`; "
            "only what is inside may be touched."
        )
    return Place(directory=directory, root=str(root), parts=real.relative_to(root).parts)


def check(argument: str) -> Callable[[dict[str, Any], ToolContext[Any]], None]:
    """The permission check of a tool that gets its path in this argument."""

    def permission_check(arguments: dict[str, Any], context: ToolContext[Any]) -> None:
        locate(arguments[argument], context)

    return permission_check


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A path that was found to lie inside the working directory.

    The finding may be out of date when the place is used: somebody can put a link where a directory was. So a place is
    reached from the working directory one step at a time, each through an open directory and none through a link, and
    what was opened is looked at again. Where the platform has no directory descriptors, the second look is all there
    is.
    """

    directory: str
    """The working directory as the context spells it."""
    root: str
    """The working directory without links."""
    parts: tuple[str, ...]
    """The steps from there, without links."""

    @property
    def path(self) -> str:
        """The absolute path, as the model is told it."""
        return os.path.join(self.directory, *self.parts)

    @property
    def shown(self) -> str:
        """The path as it stands in a sentence."""
        return shorten(self.path, 300)

    def child(self, name: str) -> "Place":
        """The place of an entry of this directory; if the entry is a link, it cannot be opened."""
        return Place(directory=self.directory, root=self.root, parts=(*self.parts, name))

    def kind(self) -> Kind:
        """What is here."""
        if not self.parts:
            return "folder"
        with self.explained(), self._folder(self.parts[:-1]) as folder:
            mode = folder.stat(self.parts[-1]).st_mode
            if stat.S_ISLNK(mode):
                raise self._link()
            if stat.S_ISDIR(mode):
                return "folder"
            return "file" if stat.S_ISREG(mode) else "other"

    def open(self) -> BufferedReader:
        """Open a regular file for reading; anything else is refused before it is opened."""
        with self.explained(), self._folder(self.parts[:-1]) as folder:
            name = self._name()
            # Looked at first, because opening a device or a pipe can already do something.
            self._require_file(folder.stat(name))
            fd = os.open(folder.at(name), _READ, dir_fd=folder.fd)
            try:
                self._require_file(os.fstat(fd))
                self._verify(fd, self.parts)
                return BufferedReader(FileIO(fd), CHUNK)
            except BaseException:
                os.close(fd)
                raise

    def scan(self, limit: int) -> list[Entry]:
        """The entries of a directory, sorted by name; no more than `limit` of them are looked at."""
        entries: list[Entry] = []
        with (
            self.explained(),
            self._folder(self.parts) as folder,
            os.scandir(folder.path if folder.fd is None else folder.fd) as found,
        ):
            for entry in found:
                if len(entries) == limit:
                    break
                entries.append(Entry(entry.name, _kind(entry)))
            if folder.fd is None:
                self._require_no_link(folder.path)
        return sorted(entries)

    def replace(self, data: bytes, *, seen: os.stat_result | None = None, make_folders: bool = False) -> bool:
        """Put these bytes here, all or nothing; says whether there was no file before.

        The bytes go into a new file beside the old one, which is then renamed. It gets the permissions of the old one,
        and its owner where the system allows that; other names of the old file (hard links) keep the old text. With
        `seen`, the file must still be the one that was read.
        """
        with self.explained(), self._folder(self.parts[:-1], make=make_folders) as folder:
            name = self._name()
            old = folder.stat_or_none(name)
            if old is not None:
                self._require_file(old)
                self._require_writable(old)
            if seen is not None and (old is None or _version(old) != _version(seen)):
                raise ToolError(
                    f"`{self.shown}` was changed by somebody else at this moment. Read it again, and try again.",
                    retryable=True,
                )
            temporary = f".handrail-{secrets.token_hex(8)}.tmp"
            fd = os.open(folder.at(temporary), _CREATE, 0o600 if old else 0o666, dir_fd=folder.fd)
            try:
                with os.fdopen(fd, "wb") as file:
                    self._verify(fd, (*self.parts[:-1], temporary))
                    file.write(data)
                    file.flush()
                    if old is not None:
                        _take_after(old, fd)
                    os.fsync(fd)
                os.replace(folder.at(temporary), folder.at(name), src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
            except BaseException:
                with suppress(OSError):
                    os.unlink(folder.at(temporary), dir_fd=folder.fd)
                raise
            return old is None

    @contextmanager
    def explained(self) -> Generator[None]:
        """Turn what the system says into a sentence for the model."""
        try:
            yield
        except ToolError:
            raise
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):  # what O_NOFOLLOW says of a link
                raise self._link() from error
            raise ToolError(_sentence(error, self.shown)) from error

    @contextmanager
    def _folder(self, parts: tuple[str, ...], *, make: bool = False) -> Generator["_Folder"]:
        """Walk from the working directory to one below it."""
        path = os.path.join(self.root, *parts)
        if not _BY_DESCRIPTOR:
            self._require_no_link(path)
            if make:
                os.makedirs(path, exist_ok=True)
                self._require_no_link(path)
            yield _Folder(path=path, fd=None)
            return
        fd = os.open(self.root, _FOLDER)
        try:
            for name in parts:
                below = self._step(fd, name, make=make)
                os.close(fd)
                fd = below
            self._verify(fd, parts)
            yield _Folder(path=path, fd=fd)
        finally:
            os.close(fd)

    def _step(self, fd: int, name: str, *, make: bool) -> int:
        try:
            return os.open(name, _FOLDER, dir_fd=fd)
        except FileNotFoundError:
            if not make:
                raise
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=fd)
            return os.open(name, _FOLDER, dir_fd=fd)
        except NotADirectoryError as error:
            # Asked for a directory and no link, Linux says this of a link as well.
            if stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                raise self._link() from error
            raise

    def _verify(self, fd: int, parts: tuple[str, ...]) -> None:
        """Ask where the open file is by now: a directory on the way may have been moved, or swapped for a link."""
        try:
            where = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # no /proc: then the path must still lead to this very file
            where = os.path.realpath(os.path.join(self.root, *parts))
            if not os.path.samestat(os.stat(where), os.fstat(fd)):
                raise self._link() from None
        if not PurePath(where).is_relative_to(self.root):
            raise self._link()

    def _require_no_link(self, path: str) -> None:
        if os.path.realpath(path) != path:
            raise self._link()

    def _name(self) -> str:
        if not self.parts:
            raise ToolError(_not_a_file(stat.S_IFDIR, self.shown))
        return self.parts[-1]

    def _require_file(self, found: os.stat_result) -> None:
        if stat.S_ISLNK(found.st_mode):
            raise self._link()
        if not stat.S_ISREG(found.st_mode):
            raise ToolError(_not_a_file(found.st_mode, self.shown))

    def _require_writable(self, found: os.stat_result) -> None:
        # A rename asks the directory only, so it would replace a file that its owner made read-only.
        if not found.st_mode & 0o222:
            raise ToolError(f"`{self.shown}` is marked read-only, and stays as it is.")

    def _link(self) -> PermissionDeniedError:
        return PermissionDeniedError(
            f"`{self.shown}` leads through a link that goes in a circle or was changed during the call."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """A directory that was reached safely."""

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


def _kind(entry: "os.DirEntry[str]") -> Kind:
    # These ask what the directory itself says, which costs no call per entry.
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def _version(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _take_after(old: os.stat_result, fd: int) -> None:
    """Give a new file the owner and the permissions of the one that it replaces."""
    if hasattr(os, "fchown"):
        with suppress(PermissionError):  # only root may give a file away
            os.fchown(fd, old.st_uid, old.st_gid)
    if hasattr(os, "fchmod"):
        os.fchmod(fd, old.st_mode & 0o777)  # never setuid: the old text had it, not the new one


def _not_a_file(mode: int, path: str) -> str:
    if stat.S_ISDIR(mode):
        return f"`{path}` is a directory, not a file. list_files shows what is in it."
    return f"`{path}` is a device, a pipe or a socket; only regular files can be used."


def _sentence(error: OSError, path: str) -> str:
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
