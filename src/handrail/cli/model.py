"""`handrail model`: downloads, lists and removes the models of the catalogue."""

import argparse
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from handrail.errors import ModelFileError
from handrail.models import cache
from handrail.models.catalogue import CATALOGUE, Model, find_model
from handrail.models.download import DownloadProgress, pull

CONFIRM_ABOVE: Final = 200_000_000
"""Bytes above which a download needs a confirmation."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    names = ", ".join(CATALOGUE)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    pulls = actions.add_parser("pull", help="download a model, or resume a download")
    pulls.add_argument("names", nargs="+", metavar="NAME", help=names)
    pulls.add_argument("--yes", action="store_true", help="download without a confirmation, whatever the size")
    actions.add_parser("list", help="list the models of the catalogue, and which are on this machine")
    removes = actions.add_parser("remove", help="delete a model from this machine")
    removes.add_argument("name", metavar="NAME", help=names)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if it failed, 2 if nothing was started."""
    try:
        match options.action:
            case "pull":
                return _pull([find_model(name) for name in dict.fromkeys(options.names)], yes=options.yes)
            case "remove":
                return _remove(options.name)
            case _:
                return _list()
    except ModelFileError as error:
        print(error.message, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Run the same command to resume.", file=sys.stderr)
        return 130


def format_size(count: int) -> str:
    """Format a number of bytes; always in MB, so that sizes can be compared."""
    size = count / 1_000_000
    return f"{size:,.0f} MB" if size >= 10 else f"{size:.2g} MB"


def _pull(models: list[Model], *, yes: bool) -> int:
    missing = 0
    for model in models:
        cached = cache.inspect_model(model)
        if cached.is_complete:
            print(f"{model.name} is downloaded already, {format_size(model.size)}; verifying it.")
        else:
            partial = f", {format_size(cached.size)} downloaded already" if cached.size else ""
            print(f"{model.name}: {format_size(model.size)}{partial}. {model.about}. {model.licence}.")
            missing += model.size
    if missing > CONFIRM_ABOVE and not yes and not _confirm(models, missing):
        return 2
    for model in models:
        with _show_progress() as progress:
            directory = pull(model.name, progress=progress)
        print(f"{model.name} is in {directory}; its SHA-256 matches the catalogue.")
    return 0


def _confirm(models: list[Model], size: int) -> bool:
    """Ask once whether to download; False without a terminal."""
    if not sys.stdin.isatty():
        print(
            f"{format_size(size)}, and there is no terminal to confirm the download. "
            f"To download it anyway: handrail model pull {' '.join(model.name for model in models)} --yes",
            file=sys.stderr,
        )
        return False
    try:
        answer = input(f"Download {format_size(size)}? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().casefold() in {"y", "yes"}:
        return True
    print("Nothing was downloaded.")
    return False


def _list() -> int:
    for cached in cache.list_models():
        partial = f"partial, {format_size(cached.size)}" if cached.size else "not downloaded"
        state = "downloaded" if cached.is_complete else partial
        print(f"{cached.model.name:<20} {format_size(cached.model.size):>8}  {state:<16} {cached.model.about}")
    print(f"in {cache.get_cache_directory()}")
    return 0


def _remove(name: str) -> int:
    freed = cache.remove(name)
    print(f"Removed {name}, {format_size(freed)}." if freed else f"{name} is not downloaded.")
    return 0


@contextmanager
def _show_progress() -> Generator[Callable[[DownloadProgress], None]]:
    """Show the progress as a bar on a terminal with `rich`, else as a line per 10 %."""
    if not sys.stdout.isatty():
        yield _PrintedProgress()
        return
    try:
        rich: Any = import_module("rich.progress")
    except ImportError:
        yield _PrintedProgress()
        return
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.TaskProgressColumn())
    with rich.Progress(*columns, rich.TransferSpeedColumn(), rich.TimeRemainingColumn()) as bar:
        tasks: dict[tuple[str, str], Any] = {}

        def update(progress: DownloadProgress) -> None:
            if progress.note:
                bar.console.print(_format_note(progress), markup=False, highlight=False)
                return
            key = (progress.file, progress.source)
            if key not in tasks:
                tasks[key] = bar.add_task(progress.file, total=progress.total)
            bar.update(tasks[key], completed=progress.done)

        yield update


class _PrintedProgress:
    def __init__(self) -> None:
        self._last = ("", -1)

    def __call__(self, progress: DownloadProgress) -> None:
        if progress.note:
            print(_format_note(progress))
            return
        tenth = 10 * progress.done // (progress.total or 1)
        if (progress.file, tenth) != self._last:
            self._last = (progress.file, tenth)
            print(f"  {progress.file}: {10 * tenth} %", flush=True)


def _format_note(progress: DownloadProgress) -> str:
    return f"  {progress.source or progress.file}: {progress.note}"
