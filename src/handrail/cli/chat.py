"""`handrail chat`: a conversation with tools, in a terminal."""

import argparse
import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, Final

from handrail.authorize.approvals import Approval
from handrail.chat import ChatEvent, ChatSession, FileSessionStore, TurnResult
from handrail.cli import model
from handrail.cli.choose import choose
from handrail.cli.desk import Desk, load_desk
from handrail.core.context import ToolContext
from handrail.core.events import CallFinished, CallIgnored, DecisionMade, Event
from handrail.core.values import ToolCall
from handrail.errors import HandrailError, MissingExtraError, ModelFileError
from handrail.execute.executor import Executor
from handrail.models.cache import held
from handrail.models.catalogue import CATALOGUE, MINILM, SMOLLM2
from handrail.providers import Provider
from handrail.providers.embedded import EmbeddedProvider

try:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.formatted_text import ANSI
    from rich.console import Console

    from handrail.cli.recorded import play
    from handrail.cli.screen import Screen, printable, shown_arguments, traced
except ImportError as error:
    raise MissingExtraError(error.name or "rich", extra="cli") from error

HELP: Final = """\
/why     which rule decided about the last call, and why
/tools   the tools of this desk
/trace   what happened so far, with times
/save    keep this conversation; it says how to go on with it
/again   go on with a turn that broke off
/back    give the conversation back to the agent after a person took over
/help    this
/quit    leave (so does Ctrl-D); Ctrl-C interrupts the agent"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "chat",
        help="a conversation with tools: at a bank's desk, or with your own",
        description="Talk to a model that has tools. Without a terminal, a recorded conversation is played instead.",
    )
    parser.add_argument("file", nargs="?", help="a Python file that defines TOOLS (default: the bank's desk)")
    parser.add_argument("--provider", help="openai, responses, anthropic, gemini, ollama, compatible or embedded")
    parser.add_argument("--model", help="the model's name, or the path of a GGUF file")
    parser.add_argument("--session", metavar="NAME", help="go on with a conversation that was saved, or begin it")
    parser.add_argument("--recorded", action="store_true", help="play the recorded conversation")
    parser.add_argument("--quiet", action="store_true", help="leave out what happens between the lines")


def run(given: argparse.Namespace) -> int:
    """Hold the conversation; the number is the exit code."""
    screen = Screen(Console(highlight=False), quiet=given.quiet)
    desk = load_desk(None if given.recorded else given.file)
    if given.recorded or not (sys.stdin.isatty() and sys.stdout.isatty()):
        if given.file is not None:
            raise SystemExit("handrail chat: this is no terminal, and the recorded conversation is the bank's desk's.")
        asyncio.run(play(desk, screen))
        return 0
    provider = _provider(given)
    if isinstance(provider, int):
        return provider
    return asyncio.run(Conversation(desk, provider, screen, name=given.session).hold())


def _provider(given: argparse.Namespace) -> Provider | int:
    """Whoever is talked to; a model that is not on this machine yet is fetched, or the number is the exit code."""
    missing: list[str] = []
    try:
        provider = choose(os.environ, name=given.provider, model=given.model)
    except ModelFileError:
        wanted = given.model or os.environ.get("HANDRAIL_MODEL") or SMOLLM2.name
        if wanted not in CATALOGUE:
            raise
        provider, missing = None, [wanted]
    if provider is None or isinstance(provider, EmbeddedProvider):
        missing += [] if held(MINILM).complete else [MINILM.name]
    if missing:
        fetched = model.run(argparse.Namespace(action="pull", names=missing, yes=False))
        if fetched:
            return fetched
    return provider or choose(os.environ, name=given.provider, model=given.model)


def sessions_directory(env: Mapping[str, str]) -> Path:
    """Where conversations are saved."""
    home = env.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "handrail" / "sessions"


class Conversation:
    """One person at a terminal."""

    def __init__(self, desk: Desk, provider: Provider, screen: Screen, *, name: str | None) -> None:
        self._desk = desk
        self._provider = provider
        self._screen = screen
        self._saved_as = name
        self._name = name or f"desk-{secrets.token_hex(4)}"
        self._events: list[Event] = []
        self._prompt: PromptSession[str] = PromptSession()
        self._commands: dict[str, Callable[[], Any]] = {
            "/why": self._why,
            "/tools": self._tools,
            "/trace": self._trace,
            "/save": self._save,
            "/back": self._back,
            "/help": lambda: screen.tell(HELP),
        }

    async def hold(self) -> int:
        """Run turns until the person leaves."""
        rail = Executor(self._desk.tools, policy=self._desk.policy, listeners=[self._events.append])
        self._context = ToolContext(session_id=self._name, customer_id="you", deps=self._desk.make_deps())
        self._sessions = FileSessionStore(sessions_directory(os.environ))
        options: dict[str, Any] = {"context": self._context, "instructions": self._desk.instructions}
        if self._saved_as:
            self._session = await ChatSession.load(self._provider, rail, sessions=self._sessions, **options)
        else:
            self._session = ChatSession(self._provider, rail, **options)
        self._screen.tell(f"{self._provider.name}. /help says what else can be typed; Ctrl-D leaves.")
        async with rail:
            if self._session.conversation.open_calls:
                self._screen.tell("This conversation stopped in the middle of a turn; it goes on now.")
                await self._play(self._session.resume_stream)
            while (line := await self._line("you")) is not None:
                if line.strip() and not await self._typed(line.strip()):
                    break
        if (close := getattr(self._provider, "aclose", None)) is not None:
            await close()
        return 0

    async def _typed(self, line: str) -> bool:
        """Do what was typed; False to leave."""
        if not line.startswith("/"):
            await self._play(lambda: self._session.stream(line))
        elif line == "/quit":
            return False
        elif line == "/again":
            await self._play(self._session.resume_stream)
        elif (command := self._commands.get(line.split()[0])) is not None:
            done = command()
            if asyncio.iscoroutine(done):
                await done
        else:
            self._screen.tell(f"There is no {line.split()[0]}. {HELP}")
        return True

    async def _play(self, begin: Callable[[], AsyncGenerator[ChatEvent]]) -> None:
        """One turn, with the questions in it, until the next word is the person's."""
        stream: Callable[[], AsyncGenerator[ChatEvent]] | None = begin
        while stream is not None:
            answer: TurnResult | None = None
            try:
                with _interruptible(self._session):
                    async with aclosing(stream()) as events:
                        async for event in events:
                            self._screen.hear(event)
                            answer = event if isinstance(event, TurnResult) else None
            except HandrailError as error:
                self._screen.tell(f"{error}\n/again tries it again.", "red")
            stream = None
            if answer is not None and answer.approvals:
                decided = [await self._decide(one) for one in answer.approvals]
                stream = self._session.resume_stream if all(decided) else None

    async def _decide(self, approval: Approval) -> bool:
        """Ask the person; whether it is decided now."""
        if approval.by != "customer":
            self._screen.tell(f"An operator has to decide about {approval.token}. /again looks whether they have.")
            return False
        what = f"{approval.tool}({shown_arguments(approval.arguments)})"
        typed = await self._line("allow?", f"{what}  y/N ")
        if typed is None:  # To leave is no decision: the question stays open.
            return False
        if typed.strip().lower() in ("y", "yes"):
            await self._session.approve(approval.token)
        else:
            await self._session.deny(approval.token)
        return True

    async def _line(self, who: str, question: str = "") -> str | None:
        """What the person types; None when they leave."""
        self._screen.end_line()
        try:
            # Only our own words may hold escapes: whatever a model wrote into the arguments is made harmless.
            return await self._prompt.prompt_async(ANSI(f"\x1b[1m{who:>9}\x1b[0m  {printable(question)}"))
        except (EOFError, KeyboardInterrupt):
            return None

    # Commands.

    def _why(self) -> None:
        last = next((call for event in reversed(self._events) if (call := _decided(event)) is not None), None)
        if last is None:
            self._screen.tell("No tool was called yet.")
            return
        self._screen.tell(str(self._session.executor.explain(last, self._context)))

    def _tools(self) -> None:
        rail = self._session.executor
        decided: dict[str, str] = {}
        for tool in rail.registry:
            effects = {f"{one.action} {one.by or ''}".strip() for one in self._desk.policy.plan(tool).possible()}
            decided[tool.name] = " or ".join(sorted(effects))
        self._screen.tools(rail.registry, decided)

    def _trace(self) -> None:
        began = self._events[0].at if self._events else 0.0
        lines = [line for event in self._events if (line := traced(event, began)) is not None]
        usage = self._session.conversation.usage
        lines.append(f"{self._session.conversation.turn} turns, {usage.input} tokens read, {usage.output} written")
        self._screen.tell("\n".join(lines))

    async def _save(self) -> None:
        try:
            await self._session.save(self._sessions)
        except (HandrailError, OSError) as error:
            self._screen.tell(f"It could not be saved: {error}", "red")
            return
        self._screen.tell(
            f"Saved in {self._sessions.path(self._name)}. Go on with: handrail chat --session {self._name}"
        )

    def _back(self) -> None:
        self._session.hand_back()
        self._screen.tell("The agent talks again.")


def _decided(event: Event) -> ToolCall | None:
    return event.call if isinstance(event, CallFinished | CallIgnored | DecisionMade) else None


@contextmanager
def _interruptible(session: ChatSession) -> Generator[None]:
    """Ctrl-C stops the agent, and not the program."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, session.interrupt)
    except NotImplementedError:  # Windows: there it ends the program, as it does elsewhere between the turns.
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
