"""The entry point of the `handrail` command: parses the arguments and runs the subcommand."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from handrail.core.text import encodable, escape_invisible, suggest
from handrail.core.version import __version__
from handrail.errors import HandrailError

_COMMANDS: Final = {
    "demo": ("demo.command", "show five failures of an agent that pays, without Handrail and with it"),
    "chat": ("chat", "chat with a model that has tools: the example's, or yours"),
    "model": ("model", "download, list and remove local models"),
    "eval": ("evaluation", "measure how well a provider calls tools"),
    "serve": ("serve", "serve the gateway and its console: MCP at /mcp, pages at /"),
    "worker": ("worker", "run the durable calls that other processes have stored"),
    "keys": ("keys", "create, list and revoke the keys of people and clients"),
    "mcp": ("mcp", "serve tools over MCP, and inspect and pin MCP servers"),
    "openapi": ("openapi", "inspect an OpenAPI document"),
    "phone": ("phone", "play scripted phone calls"),
    "approvals": ("approvals", "list, show, approve and deny what waits for an operator"),
    "why": ("why", "explain one call: who asked, which rule, whose approval, what happened"),
    "audit": ("audit", "show the audit, filtered by customer, tool, outcome and age"),
    "doubts": ("doubts", "list and resolve calls with an unknown outcome"),
    "erase": ("erase", "erase the data of one customer"),
    "policy": ("policy", "check a policy against tools, and test it on recorded calls"),
    "tools": ("tools", "list, show, call and lint tools"),
    "verify": ("verify.command", "play faults against your policy, tools and store: which guarantees hold"),
    "doctor": ("doctor", "show what is installed, and what is missing for what"),
}
"""Each subcommand with its module, which has `add_arguments` and `run`, and its help."""
_CHECKS: Final = frozenset({"eval", "phone", "policy", "tools", "verify"})
"""Subcommands whose exit code says whether something holds."""


class _Parser(argparse.ArgumentParser):
    """A parser that refuses an unknown argument itself, with its own usage, and not with that of `handrail`."""

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]  # its overloads are about the namespace
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            end = suggest(unknown[0].partition("=")[0], re.findall(r"--[\w-]+", self.format_usage()), otherwise="")
            self.error(f"unrecognized arguments: {' '.join(unknown)}{end}")
        return options, unknown


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    out: Any = sys.stdout
    if getattr(out, "errors", None) == "strict" and hasattr(out, "reconfigure"):
        out.reconfigure(errors="backslashreplace")  # As stderr: a terminal may not have every letter.
    parser = _Parser(prog="handrail", description="The tool runtime for LLM agents.")
    parser.add_argument("--version", action="version", version=f"handrail {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    try:
        # Only the command that is used is imported: the others may need what is not installed.
        modules = {name: import_module(f"handrail.cli.{_COMMANDS[name][0]}") for name in given[:1] if name in _COMMANDS}
        for name, (_, text) in _COMMANDS.items():
            command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
            if name in modules:
                modules[name].add_arguments(command)
        options = parser.parse_args(given)
        if options.command is None:
            parser.print_help()
            return 2
        code = modules[options.command].run(options)
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]  # It was closed: `handrail audit >&-`.
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # Who reads has seen enough: `handrail audit | head`.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # else the interpreter complains at its end
        return 1 if _CHECKS.intersection(given[:1]) else 0
    except HandrailError as error:
        print(escape_invisible(f"handrail: {error}"), file=sys.stderr)
        return 1
    except UnicodeEncodeError:  # No database and no provider takes it; a file may have such a name.
        wrong = next((text for text in given if encodable(text) != text), None)
        if wrong is None:
            raise
        print(f"handrail: an argument must be UTF-8, got {wrong!r}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
