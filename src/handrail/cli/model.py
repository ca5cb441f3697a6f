"""`handrail model`: fetch, list and remove the models of the catalogue."""

import argparse
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from handrail.errors import ModelFileError
from handrail.models import cache
from handrail.models.catalogue import CATALOGUE, Model, find
from handrail.models.download import Progress, pull

ASKS_FROM: Final = 200_000_000
"""Bytes from which on a download is not begun without being told to."""


def add(subparsers: Any) -> None:
    """Declare the command."""
    names = ", ".join(CATALOGUE)
    model: argparse.ArgumentParser = subparsers.add_parser("model", help="fetch, list and remove local models")
    actions = model.add_subparsers(dest="action", metavar="ACTION", required=True)
    pulls = actions.add_parser("pull", help="fetch a model, or go on with a fetch that broke off")
    pulls.add_argument("names", nargs="+", metavar="NAME", help=names)
    pulls.add_argument("--yes", action="store_true", help="do not ask, however large it is")
    actions.add_parser("list", help="which models there are, and which are on this machine")
    removes = actions.add_parser("remove", help="delete a model from this machine")
    removes.add_argument("name", metavar="NAME", help=names)


def run(given: argparse.Namespace) -> int:
    """Run the command; the number is the exit code: 1 where it failed, 2 where it was not begun."""
    try:
        match given.action:
            case "pull":
                return _pull([find(name) for name in dict.fromkeys(given.names)], yes=given.yes)
            case "remove":
                return _remove(given.name)
            case _:
                return _list()
    except ModelFileError as error:
        print(error.message, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from here.", file=sys.stderr)
        return 130


def size_of(count: int) -> str:
    """Bytes as people say them."""
    for unit, name in ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} bytes"


def _pull(models: list[Model], *, yes: bool) -> int:
    for model in models:
        there = cache.held(model)
        if there.complete:
            print(f"{model.name} is here already, {size_of(model.size)}. Its bytes are compared again.")
        else:
            begun = f"; {size_of(there.bytes)} are here already" if there.bytes else ""
            print(f"{model.name}: {size_of(model.size)}{begun}. {model.about}. {model.licence}.")
            if model.size > ASKS_FROM and not yes and (refused := _refused(model)) is not None:
                return refused
        with _shown() as progress:
            place = pull(model.name, progress=progress)
        print(f"{model.name} is in {place}, and its SHA-256 is the pinned one.")
    return 0


def _refused(model: Model) -> int | None:
    """The exit code where the download is not wanted, or nobody is there to say so."""
    if not sys.stdin.isatty():
        print(
            f"{model.name} is {size_of(model.size)}, and there is no terminal to ask at. "
            f"To fetch it anyway: handrail model pull {model.name} --yes",
            file=sys.stderr,
        )
        return 2
    try:
        answer = input(f"Fetch {size_of(model.size)}? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().casefold() in {"y", "yes"}:
        return None
    print("Nothing was fetched.")
    return 2


def _list() -> int:
    for held in cache.listed():
        state = "here" if held.complete else f"begun, {size_of(held.bytes)}" if held.bytes else "not here"
        print(f"{held.model.name:<20} {size_of(held.model.size):>8}  {state:<16} {held.model.about}")
    print(f"in {cache.directory()}")
    return 0


def _remove(name: str) -> int:
    freed = cache.remove(name)
    print(f"Removed {name}, {size_of(freed)}." if freed else f"{name} is not on this machine.")
    return 0


@contextmanager
def _shown() -> Generator[Callable[[Progress], None]]:
    """Progress as a bar where there is a terminal and `rich`, else as a line every tenth."""
    if not sys.stdout.isatty():
        yield _Lines()
        return
    try:
        rich: Any = import_module("rich.progress")
    except ImportError:
        yield _Lines()
        return
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.DownloadColumn())
    with rich.Progress(*columns, rich.TransferSpeedColumn(), rich.TimeRemainingColumn()) as bar:
        tasks: dict[tuple[str, str], Any] = {}

        def told(progress: Progress) -> None:
            if progress.note:
                bar.console.print(_noted(progress), markup=False, highlight=False)
                return
            key = (progress.file, progress.source)
            if key not in tasks:
                tasks[key] = bar.add_task(progress.file, total=progress.total)
            bar.update(tasks[key], completed=progress.done)

        yield told


class _Lines:
    def __init__(self) -> None:
        self._last = ("", -1)

    def __call__(self, progress: Progress) -> None:
        if progress.note:
            print(_noted(progress))
            return
        tenth = 10 * progress.done // (progress.total or 1)
        if (progress.file, tenth) != self._last:
            self._last = (progress.file, tenth)
            print(f"  {progress.file}: {size_of(progress.done)} of {size_of(progress.total)}", flush=True)


def _noted(progress: Progress) -> str:
    return f"  {progress.source or progress.file}: {progress.note}"
