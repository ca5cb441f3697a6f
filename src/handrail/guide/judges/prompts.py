"""The prompts of `ProviderJudge`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from handrail.core.text import compact_json
from handrail.core.values import ToolResult
from handrail.guide.reply_texts import select_visible_arguments
from handrail.guide.values import CandidateTool, Guideline, PlanRequest, ReplyRequest
from handrail.providers.messages import AssistantMessage, Message, ToolMessage, UserMessage

_MAX_RESULT: Final = 4_000
_MAX_MESSAGES: Final = 60

PLAN: Final = """\
You decide for an agent which guidelines apply to a conversation, and which tools must run before it replies. You do \
not reply to the customer. Answer with JSON only.

matches: one entry for every guideline that applies right now, judged by the customer's last message in its context \
and by the results of tools. Leave out those that do not apply.
verdicts: for every listed tool of a guideline that applies, one entry per call that is wanted:
- needs_to_run: its result is needed and not in the conversation, and every required argument is known.
- data_already_in_context: what it would return is already known.
- not_applicable: it is not needed now.
- cannot_run: it is needed, and a required argument is not known. Give the arguments that are known.
arguments: only values that the conversation, the variables, the terms or earlier results give. Never guess or invent \
a value; leave out what is not known. Write a list or an object as JSON text. evidence: the words that a value comes \
from, quoted.
A tool marked CHANGES THINGS runs only if the customer clearly wants it now; it needs evidence for every argument.
pending: a call that was read back to the customer and waits for their answer. If they clearly agree to exactly this \
call, give a verdict for its tool with its id in `pending` and confirmation "yes". If they refuse it, confirmation \
"no". If they want it with other values, give a verdict with the new arguments and no `pending`. If they talk about \
something else, give none."""

REPLY: Final = """\
You write the next message of an agent to its customer. Answer with JSON only.

text: the message, in the customer's language, short and friendly. Follow the guidelines that apply. Use only what \
the conversation and the results say. Ask for what is missing, by its display name, and offer the choices where a \
value is invalid. Never say that something was done unless a result in this conversation shows that it succeeded. For \
each pending call, repeat its exact values and ask whether to go ahead; it has not been done.
new_matches: ids of further guidelines that apply only because of the results; else empty.
claims: names of tools whose effect the text says has happened; else empty."""


def render_plan_request(request: PlanRequest) -> str:
    """Render a plan request as one text."""
    parts = [
        *_render_common(request.instructions, request.variables, request.terms),
        _render_section("Guidelines", (_render_guideline(one) for one in request.guidelines)),
        _render_section("Tools", (_render_tool(one) for one in request.tools)),
        _render_section(
            "Pending calls",
            (f"{one.call.id}: {one.call.name} {one.call.arguments_json}" for one in request.pending),
        ),
        f"Now: {request.now.strftime('%A %Y-%m-%d %H:%M %Z')}" if request.now else "",
        render_conversation(request.messages),
        f"Your previous answer could not be used: {request.error}" if request.error else "",
    ]
    return "\n\n".join(filter(None, parts))


def render_reply_request(request: ReplyRequest) -> str:
    """Render a reply request as one text."""
    insights = request.insights
    missing = (
        f"{one.tool} needs {one.display_name or one.parameter}" + (f" ({one.significance})" if one.significance else "")
        for one in insights.missing_data
    )
    invalid = (
        f"{one.tool}: {one.display_name or one.parameter} cannot be {compact_json(one.value)} ({one.reason})"
        + (f"; choices: {', '.join(map(_render_value, one.choices))}" if one.choices else "")
        for one in insights.invalid_data
    )
    blocked = (
        f"{one.tool} could not run: {one.reason}"
        for one in insights.evaluations
        if one.state == "cannot_run" and one.reason and one.tool
    )
    parts = [
        *_render_common(request.instructions, request.variables, request.terms),
        _render_section("Guidelines that apply", (_render_guideline(one) for one in request.guidelines)),
        _render_section("Further guidelines", (_render_guideline(one) for one in request.candidates)),
        _render_section("Results of this turn", (_render_result(one) for one in request.results)),
        _render_section("Missing", missing),
        _render_section("Invalid", invalid),
        _render_section("Not run", dict.fromkeys(blocked)),
        _render_section(
            "Pending, not done yet",
            (
                f"{one.call.name} {compact_json(select_visible_arguments(one, None))} waits for the {one.approval.by}"
                for one in request.pending
            ),
        ),
        render_conversation(request.messages),
        f"Your previous draft could not be used: {request.error}" if request.error else "",
    ]
    return "\n\n".join(filter(None, parts))


def _render_common(instructions: str, variables: Mapping[str, Any], terms: Mapping[str, str]) -> list[str]:
    return [
        f"About the agent: {instructions}" if instructions else "",
        _render_section("Variables", (f"{name}: {_render_value(value)}" for name, value in variables.items())),
        _render_section("Terms", (f"{name}: {text}" for name, text in terms.items())),
    ]


def _render_section(title: str, lines: Iterable[str]) -> str:
    listed = [f"- {line}" for line in lines]
    return "\n".join([f"{title}:", *listed]) if listed else ""


def _render_guideline(guideline: Guideline) -> str:
    when = "always" if guideline.always else f"when {guideline.condition}"
    return f"{guideline.id}: {when}" + (f", then {guideline.action}" if guideline.action else "")


def _render_tool(tool: CandidateTool) -> str:
    changes = " CHANGES THINGS" if tool.consequential else ""
    asked_by = ", ".join(tool.guideline_ids)
    return f"{tool.name} (for {asked_by}){changes}: {tool.description} {render_parameters(tool.schema)}".rstrip()


def render_parameters(schema: Mapping[str, Any]) -> str:
    """Render the parameters of a tool in a short form; empty if it has none."""
    properties = cast(Mapping[str, Any], schema.get("properties", {}))
    if not properties:
        return ""
    required = set(cast(Sequence[str], schema.get("required", ())))
    listed = {
        name: _shorten_node(node) if name in required else {"optional": True, **_shorten_node(node)}
        for name, node in properties.items()
    }
    shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return f"Arguments: {compact_json({**listed, **shared})}"


def _shorten_node(node: Any) -> dict[str, Any]:
    found: Mapping[str, Any] = cast(Mapping[str, Any], node) if isinstance(node, Mapping) else {}
    return {key: value for key, value in found.items() if key not in ("title", "default", "additionalProperties")}


def render_conversation(messages: Sequence[Message]) -> str:
    """Render the end of a conversation."""
    lines = ["Conversation:"]
    for message in messages[-_MAX_MESSAGES:]:
        match message:
            case UserMessage():
                lines.append(f"customer: {message.text}")
            case AssistantMessage():
                if message.text:
                    lines.append(f"agent: {message.text}")
                lines += [f"call {one.id}: {one.name} {one.arguments_json}" for one in message.calls]
            case ToolMessage():
                lines += [f"result {one.call_id}: {_clip(one.for_model())}" for one in message.results]
    return "\n".join(lines)


def _render_result(result: ToolResult) -> str:
    how = "succeeded" if result.ok else "FAILED"
    return f"{result.tool_name} ({result.call_id}) {how}: {_clip(result.for_model())}"


def _clip(text: str) -> str:
    return text if len(text) <= _MAX_RESULT else f"{text[:_MAX_RESULT]}… ({len(text) - _MAX_RESULT} more characters)"


def _render_value(value: Any) -> str:
    return value if isinstance(value, str) else compact_json(value)
