"""`handrail chat`: a conversation with tools, in a terminal."""

import argparse
import asyncio
import os
import sys

from handrail.cli import model
from handrail.cli.agent_file import AgentFile, load_agent_file
from handrail.cli.provider_choice import PROVIDERS, choose_provider
from handrail.errors import ConfigError, MissingExtraError, ModelFileError
from handrail.guide.agent import NoProvider
from handrail.models.cache import inspect_model
from handrail.models.catalogue import CATALOGUE, MINILM, SMOLLM2
from handrail.providers import Provider
from handrail.providers.embedded import EmbeddedProvider


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Chat with a model that has tools. Without a terminal, a recorded conversation is played instead."
    )
    parser.add_argument(
        "file", nargs="?", help="a Python file that defines TOOLS, SOURCES or an AGENT (default: the example of a bank)"
    )
    parser.add_argument("--provider", choices=PROVIDERS, metavar="NAME", help=", ".join(PROVIDERS))
    parser.add_argument("--model", help="the model's name, or the path of a GGUF file")
    parser.add_argument("--session", metavar="NAME", help="resume the conversation saved under this name, or start it")
    parser.add_argument("--recorded", action="store_true", help="play the recorded conversation")
    parser.add_argument("--quiet", action="store_true", help="do not print calls and their results")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    try:
        from rich.console import Console  # noqa: PLC0415  # optional

        from handrail.cli.chat_terminal import TerminalChat  # noqa: PLC0415
        from handrail.cli.recorded_chat import play_recorded_chat  # noqa: PLC0415
        from handrail.cli.screen import Screen  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "rich", extra="cli") from error
    screen = Screen(Console(highlight=False), quiet=options.quiet)
    agent = load_agent_file(None if options.recorded else options.file)
    if options.recorded or not (sys.stdin.isatty() and sys.stdout.isatty()):
        for name, value in (
            ("FILE", options.file),
            ("--provider", options.provider),
            ("--model", options.model),
            ("--session", options.session),
        ):
            if value is not None:
                raise ConfigError(f"{name} needs a terminal; without one, the recorded conversation uses the example.")
        asyncio.run(play_recorded_chat(agent, screen))
        return 0
    provider = _get_own_provider(agent) or _prepare_provider(options)
    if isinstance(provider, int):
        return provider
    return asyncio.run(TerminalChat(agent, provider, screen, name=options.session, file=options.file).run())


def _get_own_provider(file: AgentFile) -> Provider | None:
    """Return the provider of an agent that has its own, or a judge."""
    if file.agent is None:
        return None
    return file.agent.provider or (NoProvider() if file.agent.judge is not None else None)


def _prepare_provider(options: argparse.Namespace) -> Provider | int:
    """Choose the provider, and download its model if it is missing; return an exit code if that fails."""
    missing: list[str] = []
    try:
        provider = choose_provider(os.environ, name=options.provider, model=options.model)
    except ModelFileError:
        name = options.model or os.environ.get("HANDRAIL_MODEL") or SMOLLM2.name
        if name not in CATALOGUE:
            raise
        provider, missing = None, [name]
    if provider is None or isinstance(provider, EmbeddedProvider):
        missing += [] if inspect_model(MINILM).is_complete else [MINILM.name]
    if missing:
        exit_code = model.run(argparse.Namespace(action="pull", names=missing, yes=False))
        if exit_code:
            return exit_code
    return provider or choose_provider(os.environ, name=options.provider, model=options.model)
