"""A conversation with one person at a terminal. Needs `handrail[cli]`."""

import asyncio
import os
import secrets
import shlex
import signal
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, Final

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import ANSI

from handrail.chat import ChatEvent, ChatSession, FileSessionStore, TurnResult
from handrail.cli.agent_file import AgentFile
from handrail.cli.screen import Screen, format_arguments, format_call, format_event, strip_controls
from handrail.core.context import ToolContext
from handrail.core.events import CallFinished, CallIgnored, DecisionMade, Event
from handrail.core.values import Approval, ToolCall
from handrail.errors import HandrailError
from handrail.execute.executor import Executor
from handrail.guide import Agent, GuidedTurnResult
from handrail.providers import AssistantMessage, Provider, UserMessage
from handrail.sources.source import Sources, connect

HELP: Final = """\
/why     show which rule decided about the last call, and which guideline led to it
/tools   list the tools and what the policy decides about them
/trace   list what happened so far, with times
/save    save this conversation, to resume it later
/yes     approve what the agent read back (an agent with guidelines also takes your words)
/again   resume a turn that stopped
/back    hand the conversation back to the agent after a person took over
/help    show this list
/quit    quit (as Ctrl-D does); Ctrl-C interrupts the agent"""
_MAX_SHOWN_MESSAGES: Final = 6
"""How many messages of a resumed conversation are shown."""


def find_sessions_directory(env: Mapping[str, str]) -> Path:
    """The directory where conversations are saved."""
    home = env.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "handrail" / "sessions"


class TerminalChat:
    """A chat with one person at a terminal."""

    def __init__(
        self, agent: AgentFile, provider: Provider, screen: Screen, *, name: str | None, file: str | None = None
    ) -> None:
        self._agent = agent
        self._provider = provider
        self._screen = screen
        self._saved_as = name
        self._name = name or f"chat-{secrets.token_hex(4)}"
        self._file = [] if file is None else [file]
        self._events: list[Event] = []
        self._result: TurnResult | None = None
        self._prompt: PromptSession[str] = PromptSession()
        self._commands: dict[str, Callable[[], Any]] = {
            "/why": self._why,
            "/tools": self._tools,
            "/trace": self._trace,
            "/save": self._save,
            "/back": self._back,
            "/yes": self._approve,
            "/help": lambda: screen.print_notice(HELP),
        }

    async def run(self) -> int:
        """Run turns until the person leaves."""
        self._context = ToolContext(session_id=self._name, customer_id="you", deps=self._agent.make_deps())
        self._sessions = FileSessionStore(find_sessions_directory(os.environ))
        async with connect(self._agent.sources) as sources:
            for status in sources.status.values():
                if status.state != "connected":
                    self._screen.print_notice(f"{status.name} is {status.state}: {status.reason}")
            agent = self._agent.agent
            self._session = await (self._open_guided(agent) if agent else self._open_plain(sources))
            executor = self._session.executor
            self._screen.print_notice(f"{self._provider.name}. /help lists the commands; Ctrl-D quits.")
            self._show_resumed()
            async with executor:
                with executor.subscribe(self._name, self._events.append):
                    await self._run_chat()
        if (close := getattr(self._provider, "aclose", None)) is not None:
            await close()
        return 0

    async def _open_plain(self, sources: Sources) -> ChatSession[Any]:
        executor = Executor([*self._agent.tools, sources], policy=self._agent.policy)
        options: dict[str, Any] = {
            "context": self._context,
            "instructions": self._agent.instructions,
            "allow_memory_ledger": True,  # `_run_chat` asks before it resumes a call that may have run.
        }
        if self._saved_as:
            return await ChatSession.load(self._provider, executor, sessions=self._sessions, create=True, **options)
        return ChatSession(self._provider, executor, **options)

    async def _open_guided(self, agent: Agent) -> ChatSession[Any]:
        if agent.judge is None:
            agent.provider = self._provider
        options: dict[str, Any] = {
            "customer_id": self._context.customer_id,
            "deps": self._context.deps,
            "allow_memory_ledger": True,
        }
        if self._saved_as:
            return await agent.load_session(self._name, sessions=self._sessions, create=True, **options)
        return agent.session(self._name, **options)

    def _show_resumed(self) -> None:
        """Show the end of the conversation that `--session` resumed, or that there is none yet."""
        if self._saved_as is None:
            return
        conversation = self._session.conversation
        if not conversation.messages:
            self._screen.print_notice(f"There is no conversation {self._name} yet: this one is new. /save saves it.")
            return
        turns = f"{conversation.turn} turn{'s' * (conversation.turn != 1)}"
        self._screen.print_notice(f"Resumed {self._name}, {turns}. It ended like this:")
        said = [
            ("you" if isinstance(message, UserMessage) else "agent", message.text)
            for message in conversation.messages
            if isinstance(message, UserMessage | AssistantMessage) and message.text
        ]
        for who, text in said[-_MAX_SHOWN_MESSAGES:]:
            self._screen.print_message(who, text)

    async def _run_chat(self) -> None:
        if open_calls := self._session.conversation.open_calls:
            self._screen.print_notice("The last turn of this conversation is not finished.")
            registry = self._session.executor.registry
            effects = [
                call for call in open_calls if call.name not in registry or not registry.get(call.name).read_only
            ]
            if len(await self._session.approvals()) >= len(effects):
                await self._run_turn(self._session.resume_stream)
            else:  # The ledger was in memory, so it is not known whether they ran.
                calls = ", ".join(map(format_call, effects))
                self._screen.print_notice(f"It is not known whether it ran: {calls}\n/again runs it, maybe once more.")
        while True:
            try:
                line = await self._read_line("you")
            except KeyboardInterrupt:
                self._screen.print_notice("Ctrl-D or /quit quits; Ctrl-C interrupts the agent while it works.")
                continue
            if line is None or (line.strip() and not await self._handle_line(line.strip())):
                break

    async def _handle_line(self, line: str) -> bool:
        """Run a command or send a message; return False to quit."""
        if not line.startswith("/"):
            await self._run_turn(lambda: self._session.stream(line))
        elif line == "/quit":
            return False
        elif line == "/again":
            await self._run_turn(self._session.resume_stream)
        elif (command := self._commands.get(line.split()[0])) is not None:
            running = command()
            if asyncio.iscoroutine(running):
                await running
        else:
            self._screen.print_notice(f"unknown command {line.split()[0]}\n{HELP}")
        return True

    async def _run_turn(self, start: Callable[[], AsyncGenerator[ChatEvent]]) -> None:
        """Run one turn and ask for the approvals in it, until it is the person's turn."""
        stream: Callable[[], AsyncGenerator[ChatEvent]] | None = start
        while stream is not None:
            result: TurnResult | None = None
            try:
                with _interruptible(self._session):
                    async with aclosing(stream()) as events:
                        async for event in events:
                            self._screen.show(event)
                            result = event if isinstance(event, TurnResult) else None
            except HandrailError as error:
                self._screen.print_notice(f"{error}\n/again tries again.", "red")
            stream = None
            self._result = result or self._result
            if isinstance(result, GuidedTurnResult):
                return  # A guided agent reads calls back, and the person replies with a message.
            if result is not None and result.approvals:
                decisions = [await self._ask_approval(approval) for approval in result.approvals]
                stream = self._session.resume_stream if all(decisions) else None

    async def _ask_approval(self, approval: Approval) -> bool:
        """Ask the person to approve a call; return whether it is decided now."""
        if approval.by != "customer":
            self._screen.print_notice(
                f"An operator must decide about {approval.token}. /again checks whether they have."
            )
            return False
        what = f"{approval.tool}({format_arguments(approval.arguments)})"
        try:
            why = f" ({approval.question})" if approval.question else ""
            answer = await self._read_line("allow?", f"{what}{why}  y/N ")
        except KeyboardInterrupt:
            answer = None
        if answer is None:  # Quitting decides nothing: the approval stays open.
            return False
        if answer.strip().lower() in ("y", "yes"):
            await self._session.approve(approval.token)
        else:
            await self._session.deny(approval.token)
        return True

    async def _read_line(self, who: str, question: str = "") -> str | None:
        """Read a line; return None if the person quits with Ctrl-D. Ctrl-C raises `KeyboardInterrupt`."""
        self._screen.end_line()
        try:
            # Arguments are a model's text: escape sequences in them must not reach the terminal.
            return await self._prompt.prompt_async(ANSI(f"\x1b[1m{who:>9}\x1b[0m  {strip_controls(question)}"))
        except EOFError:
            return None

    # Commands.

    def _why(self) -> None:
        last = next((call for event in reversed(self._events) if (call := _find_call(event)) is not None), None)
        if last is None:
            self._screen.print_notice("No tool was called yet.")
            return
        self._screen.print_notice(str(self._session.executor.explain(last, self._context)))
        if isinstance(self._result, GuidedTurnResult):
            self._screen.print_notice(self._result.trace.why(last.id))

    async def _approve(self) -> None:
        approvals = [approval for approval in await self._session.approvals() if approval.by == "customer"]
        if not approvals:
            self._screen.print_notice("Nothing awaits your approval.")
            return
        for approval in approvals:
            await self._session.approve(approval.token)
        await self._run_turn(self._session.resume_stream)

    def _tools(self) -> None:
        executor = self._session.executor
        actions: dict[str, str] = {}
        for tool in executor.registry:
            possible = {
                f"{decision.action} {decision.by or ''}".strip()
                for decision in self._agent.policy.compile(tool).possible_decisions()
            }
            actions[tool.name] = " or ".join(sorted(possible))
        self._screen.print_tools(executor.registry, actions)

    def _trace(self) -> None:
        start = self._events[0].at if self._events else 0.0
        lines = [line for event in self._events if (line := format_event(event, start)) is not None]
        usage = self._session.conversation.usage
        lines.append(
            f"{self._session.conversation.turn} turns, {usage.input} input tokens, {usage.output} output tokens"
        )
        self._screen.print_notice("\n".join(lines))
        if isinstance(self._result, GuidedTurnResult):
            self._screen.print_notice(self._result.trace.tree())

    async def _save(self) -> None:
        try:
            await self._session.save(self._sessions)
        except (HandrailError, OSError) as error:
            self._screen.print_notice(f"The conversation could not be saved: {error}", "red")
            return
        command = shlex.join(["handrail", "chat", *self._file, "--session", self._name])
        self._screen.print_notice(f"Saved in {self._sessions.path(self._name)}. Resume it with: {command}")

    def _back(self) -> None:
        self._session.hand_back()
        self._screen.print_notice("The agent replies again.")


def _find_call(event: Event) -> ToolCall | None:
    return event.call if isinstance(event, CallFinished | CallIgnored | DecisionMade) else None


@contextmanager
def _interruptible(session: ChatSession[Any]) -> Generator[None]:
    """Let Ctrl-C interrupt the agent instead of ending the program."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, session.interrupt)
    except NotImplementedError:  # Windows has no signal handlers here: Ctrl-C ends the program.
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
