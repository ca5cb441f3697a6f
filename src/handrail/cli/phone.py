"""`handrail phone`: plays scripted phone calls against an agent that is defined by files."""

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct

from handrail.cli.agent_file import find_example, run_file
from handrail.core.events import Event, LogEvent
from handrail.core.text import compact_json, escape_line
from handrail.errors import ConfigError, MissingExtraError
from handrail.phone import PhoneGateway, read_transcript
from handrail.phone.admission import NOT_FOUND
from handrail.tenants import TenantDirectory, TenantTrust, ToolBuilder
from handrail.testing.phone import (
    CallReport,
    PhoneSimulator,
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
    trust: TenantTrust = TenantTrust()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    simulate = actions.add_parser("simulate", help="play scripts against an agent, without a phone and without a key")
    simulate.description = (
        "Play scripted phone calls. What is not given is taken from the working directory, if it has tenants/, and "
        "otherwise from the example."
    )
    simulate.add_argument("scripts", nargs="*", metavar="SCRIPT", help="YAML files (default: calls/*.yaml)")
    simulate.add_argument("--tenants", metavar="DIR", help="the files of the tenants (default: tenants/)")
    simulate.add_argument(
        "--agent",
        metavar="FILE",
        help="a Python file with TOOLS, a ToolBuilder, make_context and TRUST (default: agent.py)",
    )
    simulate.add_argument("--verbose", action="store_true", help="every event")
    example = actions.add_parser("example", help="copy the example, a whole agent, into a new folder")
    example.add_argument("folder", metavar="FOLDER", help="a folder that does not exist yet")
    transcript = actions.add_parser("transcript", help="print what was said in a recorded call")
    transcript.add_argument("recording", metavar="RECORDING", help="a file of PhoneGateway(recordings=…)")


def _print_transcript(given: argparse.Namespace) -> int:
    try:
        lines = read_transcript(given.recording)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{given.recording}: the recording cannot be read: {reason}.") from error
    for line in lines:
        print(escape_line(str(line)))
    return 0


def _copy_example(folder: Path) -> int:
    try:
        shutil.copytree(find_example(_EXAMPLE), folder, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
    except OSError as error:
        raise ConfigError(
            f"{folder}: the example cannot be copied: {error.strerror or 'it exists already'}."
        ) from error
    print(f"{folder} has an agent for two dental practices. cd {folder} and run: handrail phone simulate")
    return 0


def run(given: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if a call did not meet the expectations of its script."""
    if given.action == "transcript":
        return _print_transcript(given)
    if given.action == "example":
        return _copy_example(Path(given.folder))
    folder = Path() if Path("tenants").is_dir() else find_example(_EXAMPLE)
    files = [Path(script) for script in given.scripts] or sorted((folder / "calls").glob("*.yaml"))
    if not files:
        raise ConfigError(f"there is no script: name one, or put some into {folder / 'calls'}.")
    try:
        scripts = [load_script(file) for file in files]
    except ScriptError as error:
        raise ConfigError(str(error)) from error
    except ImportError as error:  # The simulator knows nothing of Handrail, not even its errors.
        raise MissingExtraError("pyyaml", extra="yaml") from error
    tenants = TenantDirectory.from_files(given.tenants or folder / "tenants")
    # The tools of a folder belong to its tenants.
    own = folder / "agent.py" if given.tenants is None and (folder / "agent.py").is_file() else None
    agent = load_phone_agent(given.agent or own)
    print(f"agent {given.agent or own or 'without tools of its own'}, tenants {given.tenants or folder / 'tenants'}")
    failed = 0
    for file, script in zip(files, scripts, strict=True):
        noted: list[LogEvent] = []
        report = run_warped(play(script, tenants, agent, noted))
        print(f"{file.name}: {script.name or 'a call'} to {script.call.to}")
        _print_timeline(format_timeline(report, verbose=given.verbose))
        for event in noted:
            print(f"{'log':>12}     {event.severity}: {_describe(event, tenants)}")
        failed += not report.ok
    if len(files) > 1:
        print(f"{len(files)} calls, {failed or 'none'} failed")
    return 1 if failed else 0


def _describe(event: LogEvent, tenants: TenantDirectory) -> str:
    text = f"{event.name} {compact_json(event.fields)}"
    if event.name == "phone_call_rejected" and event.fields.get("status") == NOT_FOUND:
        text += f"; the tenants have {', '.join(number for cfg in tenants for number in cfg.numbers) or 'no numbers'}"
    return text


async def play(
    script: Script, tenants: TenantDirectory, agent: PhoneAgent, noted: list[LogEvent] | None = None
) -> CallReport:
    """Play one call through the official SDK, a local server and a gateway; `noted` gets what the log warns of."""
    openai = _import_openai()

    def listen(event: Event) -> None:
        if noted is not None and isinstance(event, LogEvent) and event.severity in ("warning", "error"):
            noted.append(event)

    async with PhoneSimulator() as simulator:
        client = openai.AsyncOpenAI(
            base_url=simulator.url, api_key="sk-simulated", webhook_secret=simulator.webhook_secret
        )
        gateway = PhoneGateway(
            client=client,
            tenants=tenants,
            tools=agent.tools,
            trust=agent.trust,
            context=agent.make_context,
            listeners=[listen],
        )
        async with client, gateway:
            report = await simulator.play(script, gateway.handle_webhook)
            await gateway.drain()
        return report


def load_phone_agent(path: str | Path | None) -> PhoneAgent:
    """Run a Python file and read `TOOLS` and `make_context` from it; without a file, the features of every tenant."""
    if path is None:
        return PhoneAgent(tools=ToolBuilder(), make_context=None)
    if not Path(path).is_file():
        raise ConfigError(f"{path} is not a file; expected a Python file that defines TOOLS, a ToolBuilder.")
    names = run_file(Path(path))
    tools, make_context = names.get("TOOLS"), names.get("make_context")
    if not isinstance(tools, ToolBuilder):
        raise ConfigError(f"{path} must define TOOLS, a ToolBuilder, got {type(tools).__name__}.")
    if make_context is not None and not callable(make_context):
        raise ConfigError(f"make_context in {path} must be a function of the call, got {type(make_context).__name__}.")
    trust = names.get("TRUST", TenantTrust())
    if not isinstance(trust, TenantTrust):
        raise ConfigError(f"TRUST in {path} must be a TenantTrust, got {type(trust).__name__}.")
    return PhoneAgent(tools=tools, make_context=cast(Callable[..., Any] | None, make_context), trust=trust)


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
        raise MissingExtraError("openai", extra="openai") from error
    return openai
