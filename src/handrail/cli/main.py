"""The commands, and what each takes."""

import argparse
import asyncio
from collections.abc import Sequence

from handrail.cli.recorded import play


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the number is the exit code."""
    parser = argparse.ArgumentParser(prog="handrail", description="The tool runtime for LLM agents.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    chat = commands.add_parser("chat", help="a conversation with tools at a bank's desk (recorded, offline)")
    chat.add_argument("--quiet", action="store_true", help="leave out what happens between the lines")
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 2
    asyncio.run(play(quiet=given.quiet))
    return 0
