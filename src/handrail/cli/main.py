"""The commands, and what each takes."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from handrail.errors import HandrailError

_COMMANDS: Final = {"chat": "chat", "model": "model", "eval": "evaluate"}
"""Each with the module that has it: `add` says what it takes, `run` runs it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the number is the exit code."""
    parser = argparse.ArgumentParser(prog="handrail", description="The tool runtime for LLM agents.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    try:
        modules = {name: import_module(f"handrail.cli.{module}") for name, module in _COMMANDS.items()}
        for module in modules.values():
            module.add(commands)
        given = parser.parse_args(arguments)
        if given.command is None:
            parser.print_help()
            return 2
        return modules[given.command].run(given)
    except HandrailError as error:
        print(f"handrail: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
