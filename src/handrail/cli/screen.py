"""What a conversation looks like in a terminal: what is said, and between the lines what was done."""

from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from handrail.authorize.approvals import Approval
from handrail.chat import ChatEvent, TurnResult
from handrail.core.events import CallCancelled, CallFinished, CallIgnored, CallStarted, DecisionMade, Event, Progress
from handrail.core.text import compact_json
from handrail.core.tool import Tool
from handrail.core.values import ToolCall
from handrail.providers import TextDelta

_MARGIN: Final = 11
_LONGEST: Final = 200


class Screen:
    """Prints a conversation. Whatever a model, a tool or a person wrote is text here, and never a command to the
    terminal."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console = console
        self._quiet = quiet
        self._speaking = False

    def say(self, who: str, text: str) -> None:
        """A line of somebody's."""
        self.end_line()
        self._begin(who)
        self._print(printable(text))

    def speak(self, text: str) -> None:
        """The next words of the agent."""
        if not self._speaking:
            self._begin("agent")
            self._speaking = True
        self._print(printable(text), end="")

    def end_line(self) -> None:
        """The agent pauses."""
        if self._speaking:
            self.console.print()
        self._speaking = False

    def note(self, text: str, style: str = "dim") -> None:
        """What happens between the lines."""
        if not self._quiet:
            self.tell(text, style)

    def tell(self, text: str, style: str = "dim") -> None:
        """What is worth saying even to those who want it quiet."""
        self.end_line()
        for line in printable(text).splitlines():
            self._print(f"{'':{_MARGIN}}| {line}", style=style)

    def hear(self, event: ChatEvent | Event) -> None:
        """Show an event of a turn."""
        match event:
            case TextDelta():
                self.speak(event.text)
            case CallStarted():
                self.note(f"-> {shown_call(event.call)}")
            case Progress():
                share = "" if event.fraction is None else f"{event.fraction:.0%} "
                self.note(f".. {event.tool_name}: {share}{event.message}")
            case CallIgnored():
                self.note(f"== {shown_call(event.call)}: {event.reason}, not run again")
            case CallFinished():
                self._finished(event)
            case Approval():
                reason = f" ({event.question})" if event.question else ""
                self.tell(f"?? {event.tool}({shown_arguments(event.arguments)}) needs the {event.by}{reason}", "yellow")
            case TurnResult():
                self._ended(event)
            case _:
                pass

    def _finished(self, event: CallFinished) -> None:
        error = event.result.error
        text = short(event.result.for_model())
        if error is None:
            self.note(f"ok {event.call.name}: {text} ({event.result.duration_ms:.0f} ms)", "green")
        elif error.code != "approval_required":  # The question follows.
            self.note(f"no {shown_call(event.call)}: {error.code}: {short(error.message)}", "red")

    def _ended(self, answer: TurnResult) -> None:
        self.end_line()
        if answer.stop_reason == "handed_off":
            self.tell("A person has taken over; the agent is silent.", "yellow")
        elif answer.stop_reason not in ("completed", "approval_required"):
            words = {"interrupted": "interrupted"}.get(
                answer.stop_reason, f"the budget of {answer.stop_reason} is used up"
            )
            self.tell(f"The turn ended here: {words}.", "yellow")
        if answer.finish_reason in ("length", "refusal"):
            self.tell(f"The model stopped: {answer.finish_reason}.", "yellow")

    def tools(self, tools: Iterable[Tool[..., Any]], decided: dict[str, str]) -> None:
        """Which tools there are."""
        table = Table(box=None, pad_edge=False)
        for column in ("tool", "what it does", "policy"):
            table.add_column(column)
        for tool in tools:
            first = tool.description.partition("\n")[0]
            table.add_row(Text(tool.name), Text(printable(first)), Text(decided.get(tool.name, "")))
        self.end_line()
        self.console.print(table)

    def _begin(self, who: str) -> None:
        self._print(f"{who:>9}  ", style="bold", end="")

    def _print(self, text: str, *, style: str | None = None, end: str = "\n") -> None:
        self.console.print(Text(text, style=style or ""), end=end, soft_wrap=True)


def printable(text: str) -> str:
    """A text that can do nothing to a terminal: no control characters but the end of a line."""
    return "".join(char if char == "\n" or char.isprintable() else " " if char == "\t" else "�" for char in text)


def short(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def shown_call(call: ToolCall) -> str:
    """A call, on one line."""
    return f"{call.name}({short(call.arguments_json)})"


def shown_arguments(arguments: Any) -> str:
    """Arguments, on one line; whole, because somebody decides about them."""
    return compact_json(arguments)


def traced(event: Event, began: float) -> str | None:
    """An event as one line of a trace."""
    at = f"{event.at - began:8.3f} s  {type(event).__name__:13}"
    match event:
        case CallFinished():
            error = event.result.error
            how = "ok" if error is None else error.code
            return f"{at} {shown_call(event.call)}  {how}, {event.result.duration_ms:.1f} ms"
        case DecisionMade():
            one = event.decision
            return f"{at} {shown_call(event.call)}  {one.action}, by {one.rule} ({one.source})"
        case CallIgnored() | CallCancelled():
            return f"{at} {shown_call(event.call)}  {event.reason}"
        case CallStarted():
            return f"{at} {shown_call(event.call)}"
        case Progress():
            return f"{at} {event.tool_name}  {event.message}"
        case _:
            return None
