"""The local cache of model files."""

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from handrail.errors import ModelFileError
from handrail.models.catalogue import CATALOGUE, Model, find_model

LOCK: Final = ".lock"
"""The lock file in a model's directory, held while the directory is changed."""


class CachedModel(Struct, frozen=True, kw_only=True):
    """A model of the catalogue, and how much of it is on this machine."""

    model: Model
    directory: Path
    size: int
    """Bytes on the disk, including partial downloads."""
    is_complete: bool


def get_cache_directory(env: Mapping[str, str] | None = None) -> Path:
    """Return the directory of all models: `HANDRAIL_CACHE` if it is set, else the user's cache directory."""
    env = os.environ if env is None else env
    if chosen := env.get("HANDRAIL_CACHE"):
        return Path(chosen).expanduser() / "models"
    from platformdirs import user_cache_path  # noqa: PLC0415  # only machines that have or want a model need it

    return user_cache_path("handrail", appauthor=False) / "models"


@contextmanager
def hold_lock(directory: Path, *, on_wait: Callable[[], object] | None = None) -> Generator[None]:
    """Hold the lock of a model's directory; `on_wait` is called once if another process holds it."""
    from filelock import FileLock, Timeout  # noqa: PLC0415  # as above

    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        if on_wait is not None:
            on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def inspect_model(model: Model, *, root: Path | None = None) -> CachedModel:
    """Inspect the files of one model by size; their hashes were verified after the download."""
    place = (root or get_cache_directory()) / model.name
    files = [path for path in _list_files(place) if path.name != LOCK]
    return CachedModel(
        model=model,
        directory=place,
        size=sum(map(_get_size, files)),
        is_complete=all(_get_size(place / file.name) == file.size for file in model.files),
    )


def list_models(*, root: Path | None = None, catalogue: Mapping[str, Model] = CATALOGUE) -> tuple[CachedModel, ...]:
    """List every model of the catalogue, and how much of it is on this machine."""
    return tuple(inspect_model(model, root=root) for model in catalogue.values())


def find_directory(name: str, *, root: Path | None = None, catalogue: Mapping[str, Model] = CATALOGUE) -> Path:
    """Return the directory of a model whose files are complete, or raise `ModelFileError`."""
    there = inspect_model(find_model(name, catalogue=catalogue), root=root)
    if not there.is_complete:
        raise ModelFileError(
            f"The model `{name}` is not on this machine ({there.directory}). Fetch it with: handrail model pull {name}"
        )
    return there.directory


def remove(name: str, *, root: Path | None = None, catalogue: Mapping[str, Model] = CATALOGUE) -> int:
    """Delete the files of a model, including partial downloads; return the number of bytes freed."""
    there = inspect_model(find_model(name, catalogue=catalogue), root=root)
    if not there.directory.is_dir():
        return 0
    with hold_lock(there.directory):
        for path in _list_files(there.directory):
            if path.name != LOCK:
                path.unlink(missing_ok=True)
    # The lock file stays: another process may be waiting for it.
    return there.size


def _list_files(place: Path) -> list[Path]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return [path for path in place.iterdir() if path.is_file()]
    return []


def _get_size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return -1
