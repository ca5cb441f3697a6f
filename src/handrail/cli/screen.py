"""Prints a conversation and the calls in it to a terminal."""

from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from handrail.chat import ChatEvent, TurnResult
from handrail.core.events import CallCancelled, CallFinished, CallIgnored, CallStarted, DecisionMade, Event, Progress
from handrail.core.text import compact_json
from handrail.core.tool import Tool
from handrail.core.values import Approval, ToolCall
from handrail.providers import TextDelta

_MARGIN: Final = 11
_MAX_LINE_CHARS: Final = 200


_STOP_REASONS: Final = {
    "interrupted": "it was interrupted",
    "in_progress": "a call still runs elsewhere; /again looks at it",
    "outcome_unknown": "it is not known whether a call took effect; /again looks at it",
}


class Screen:
    """Prints a conversation. Control characters in what a model, a tool or a person wrote are removed."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console = console
        self._quiet = quiet
        self._is_mid_line = False

    def print_message(self, who: str, text: str) -> None:
        """Print a whole message."""
        self.end_line()
        self._print_name(who)
        self._print(strip_controls(text))

    def print_delta(self, text: str) -> None:
        """Print the next part of the agent's message."""
        if not self._is_mid_line:
            self._print_name("agent")
            self._is_mid_line = True
        self._print(strip_controls(text), end="")

    def end_line(self) -> None:
        """End the line of the agent's message, if one is open."""
        if self._is_mid_line:
            self.console.print()
        self._is_mid_line = False

    def print_detail(self, text: str, style: str = "dim") -> None:
        """Print a detail, such as a call, unless the screen is quiet."""
        if not self._quiet:
            self.print_notice(text, style)

    def print_notice(self, text: str, style: str = "dim") -> None:
        """Print a notice, also on a quiet screen."""
        self.end_line()
        for line in strip_controls(text).splitlines():
            self._print(f"{'':{_MARGIN}}| {line}", style=style)

    def show(self, event: ChatEvent | Event) -> None:
        """Print an event of a turn."""
        match event:
            case TextDelta():
                self.print_delta(event.text)
            case CallStarted():
                self.print_detail(f"-> {format_call(event.call)}")
            case Progress():
                share = "" if event.fraction is None else f"{event.fraction:.0%} "
                self.print_detail(f".. {event.tool_name}: {share}{event.message}")
            case CallIgnored():
                self.print_detail(f"== {format_call(event.call)}: {event.reason}, not run again")
            case CallFinished():
                self._show_result(event)
            case Approval():
                reason = f" ({event.question})" if event.question else ""
                self.print_notice(
                    f"?? {event.tool}({format_arguments(event.arguments)}) needs the {event.by}{reason}", "yellow"
                )
                for path, sentence in event.seen.items():
                    self.print_notice(f"   {path}: {sentence}", "yellow")
            case TurnResult():
                self._show_end(event)
            case _:
                pass

    def _show_result(self, event: CallFinished) -> None:
        error = event.result.error
        text = shorten_line(event.result.for_model())
        if error is None:
            self.print_detail(f"ok {event.call.name}: {text} ({event.result.duration_ms:.0f} ms)", "green")
        elif error.code != "approval_required":  # The question follows.
            self.print_detail(f"no {format_call(event.call)}: {error.code}: {shorten_line(error.message)}", "red")

    def _show_end(self, result: TurnResult) -> None:
        self.end_line()
        if result.stop_reason == "handed_off":
            self.print_notice("A person has taken over; the agent does not reply.", "yellow")
        elif result.stop_reason not in ("completed", "approval_required"):
            reason = _STOP_REASONS.get(result.stop_reason, f"{result.stop_reason} was reached")
            self.print_notice(f"The turn ended: {reason}.", "yellow")
        if result.finish_reason in ("length", "refusal"):
            self.print_notice(f"The model stopped: {result.finish_reason}.", "yellow")

    def print_tools(self, tools: Iterable[Tool[..., Any]], actions: dict[str, str]) -> None:
        """Print a table of tools, with the actions that the policy can decide for each."""
        table = Table(box=None, pad_edge=False)
        for column in ("tool", "what it does", "policy"):
            table.add_column(column)
        for tool in tools:
            first = tool.description.partition("\n")[0]
            table.add_row(Text(tool.name), Text(strip_controls(first)), Text(actions.get(tool.name, "")))
        self.end_line()
        self.console.print(table)

    def _print_name(self, who: str) -> None:
        self._print(f"{who:>9}  ", style="bold", end="")

    def _print(self, text: str, *, style: str | None = None, end: str = "\n") -> None:
        self.console.print(Text(text, style=style or ""), end=end, soft_wrap=True)


def strip_controls(text: str) -> str:
    """Replace control characters, except line ends, so that the text cannot control a terminal."""
    return "".join(char if char == "\n" or char.isprintable() else " " if char == "\t" else "�" for char in text)


def shorten_line(text: str) -> str:
    """Return the beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}…"


def format_call(call: ToolCall) -> str:
    """Format a call, on one line."""
    return f"{call.name}({shorten_line(call.arguments_json)})"


def format_arguments(arguments: Any) -> str:
    """Format arguments on one line, without shortening them: a person decides about them."""
    return compact_json(arguments)


def format_event(event: Event, start: float) -> str | None:
    """Format an event as one line of a trace, or return None if the trace leaves it out."""
    at = f"{event.at - start:8.3f} s  {type(event).__name__:13}"
    match event:
        case CallFinished():
            error = event.result.error
            outcome = "ok" if error is None else error.code
            return f"{at} {format_call(event.call)}  {outcome}, {event.result.duration_ms:.1f} ms"
        case DecisionMade():
            decision = event.decision
            return f"{at} {format_call(event.call)}  {decision.action}, by {decision.rule} ({decision.source})"
        case CallIgnored() | CallCancelled():
            return f"{at} {format_call(event.call)}  {event.reason}"
        case CallStarted():
            return f"{at} {format_call(event.call)}"
        case Progress():
            return f"{at} {event.tool_name}  {event.message}"
        case _:
            return None
