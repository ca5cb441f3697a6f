"""The entry point of the `handrail` command: parses the arguments and runs the subcommand."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from handrail.errors import HandrailError

_COMMANDS: Final = {
    "chat": "chat",
    "model": "model",
    "eval": "evaluation",
    "mcp": "mcp",
    "openapi": "openapi",
    "phone": "phone",
    "doubts": "doubts",
    "policy": "policy",
}
"""Each subcommand with its module, which has `add_parser` and `run`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    parser = argparse.ArgumentParser(prog="handrail", description="The tool runtime for LLM agents.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    try:
        modules = {name: import_module(f"handrail.cli.{module}") for name, module in _COMMANDS.items()}
        for module in modules.values():
            module.add_parser(commands)
        options = parser.parse_args(arguments)
        if options.command is None:
            parser.print_help()
            return 2
        return modules[options.command].run(options)
    except HandrailError as error:
        print(f"handrail: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
