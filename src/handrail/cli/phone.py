"""`handrail phone`: plays scripted phone calls against an agent that is defined by files."""

import argparse
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct

from handrail.errors import ConfigError
from handrail.phone import PhoneGateway
from handrail.tenants import TenantDirectory, ToolBuilder
from handrail.testing.phone import (
    PhoneSimulator,
    Report,
    Script,
    ScriptError,
    format_timeline,
    load_script,
    run_warped,
)

_EXAMPLE: Final = "phone_agent"
_COLOURS: Final = {"agent": "green", "caller": "cyan", "model": "magenta", "http": "yellow", "check": "bold"}


class PhoneAgent(Struct, frozen=True, kw_only=True):
    """What an agent file for the phone defines."""

    tools: ToolBuilder
    make_context: Callable[..., Any] | None


def add_parser(subparsers: Any) -> None:
    """Add the parser of the command."""
    phone: argparse.ArgumentParser = subparsers.add_parser("phone", help="play scripted phone calls")
    actions = phone.add_subparsers(dest="action", metavar="ACTION", required=True)
    simulate = actions.add_parser("simulate", help="play scripts against an agent, without a phone and without a key")
    simulate.add_argument("scripts", nargs="*", metavar="SCRIPT", help="YAML files (default: those of the example)")
    simulate.add_argument("--tenants", metavar="DIR", help="the files of the tenants (default: those of the example)")
    simulate.add_argument("--agent", metavar="FILE", help="a Python file with TOOLS, a ToolBuilder, and make_context")
    simulate.add_argument("--verbose", action="store_true", help="every event")


def run(given: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if a call did not meet the expectations of its script."""
    example = find_example()
    files = [Path(script) for script in given.scripts] or sorted((example / "calls").glob("*.yaml"))
    try:
        scripts = [load_script(file) for file in files]
    except ScriptError as error:
        raise ConfigError(str(error)) from error
    tenants = TenantDirectory.from_files(given.tenants or example / "tenants")
    # The tools of the example belong to its tenants.
    agent = load_phone_agent(given.agent or (None if given.tenants else example / "agent.py"))
    failed = 0
    for file, script in zip(files, scripts, strict=True):
        report = run_warped(play(script, tenants, agent))
        print(f"{file.name}: {script.name or 'a call'} to {script.call.to}")
        _print_timeline(format_timeline(report, verbose=given.verbose))
        failed += not report.ok
    return 1 if failed else 0


async def play(script: Script, tenants: TenantDirectory, agent: PhoneAgent) -> Report:
    """Play one call through the official SDK, a local server and a gateway."""
    openai = _import_openai()
    async with PhoneSimulator() as simulator:
        client = openai.AsyncOpenAI(
            base_url=simulator.url, api_key="sk-simulated", webhook_secret=simulator.webhook_secret
        )
        gateway = PhoneGateway(client=client, tenants=tenants, tools=agent.tools, context=agent.make_context)
        async with client, gateway:
            report = await simulator.play(script, gateway.handle_webhook)
            await gateway.drain()
        return report


def find_example() -> Path:
    """The example: beside this module in an installed package, in `examples/` in a checkout."""
    installed = Path(__file__).with_name(_EXAMPLE)
    return installed if installed.exists() else Path(__file__).parents[3] / "examples" / _EXAMPLE


def load_phone_agent(path: str | Path | None) -> PhoneAgent:
    """Run a Python file and read `TOOLS` and `make_context` from it; without a file, the features of every tenant."""
    if path is None:
        return PhoneAgent(tools=ToolBuilder(), make_context=None)
    if not Path(path).is_file():
        raise ConfigError(f"{path} is not a file; expected a Python file that defines TOOLS, a ToolBuilder.")
    names = runpy.run_path(str(path))
    tools, make_context = names.get("TOOLS"), names.get("make_context")
    if not isinstance(tools, ToolBuilder):
        raise ConfigError(f"{path} must define TOOLS, a ToolBuilder, got {type(tools).__name__}.")
    if make_context is not None and not callable(make_context):
        raise ConfigError(f"make_context in {path} must be a function of the call, got {type(make_context).__name__}.")
    return PhoneAgent(tools=tools, make_context=cast(Callable[..., Any] | None, make_context))


def _print_timeline(text: str) -> None:
    try:
        from rich.console import Console  # noqa: PLC0415  # optional
        from rich.text import Text  # noqa: PLC0415
    except ImportError:
        print(text)
        return
    console = Console(file=sys.stdout, soft_wrap=True, highlight=False)
    for line in text.splitlines():
        source = line[9:17].strip()
        style = "red" if " FAIL " in line or source == "error" else _COLOURS.get(source, "dim")
        console.print(Text(line, style=style))


def _import_openai() -> Any:
    try:
        import openai  # noqa: PLC0415  # optional
    except ImportError as error:
        raise ConfigError("`handrail phone` needs the OpenAI SDK: pip install 'handrail[openai]'.") from error
    return openai
