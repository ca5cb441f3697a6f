"""What Anthropic Messages refuses."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .anthropic_schema import check_input, check_output, check_totals
from .reading import Field, RequestRefused, first_repeated, format_dotted, is_base64, words
from .schemas import JsonSchema, is_instance

NAME = re.compile("[a-zA-Z0-9_-]{1,128}")
FIELDS = words(
    """
    cache_control container diagnostics inference_geo max_tokens messages metadata model output_config service_tier
    speed stop_sequences stream system thinking tool_choice tools user_profile_id workspace_id
    """
)
BETA_FIELDS = words("compaction context_management fallback_credit_token fallbacks mcp_servers thread")
TOOL_FIELDS = words(
    """
    type name description input_schema strict defer_loading allowed_callers input_examples eager_input_streaming
    cache_control
    """
)
TYPED_TOOL = re.compile(
    "(bash|text_editor|memory|code_execution|web_search|web_fetch|advisor|browser_toolset|computer_toolset|computer"
    r"|tool_search_tool_bm25|tool_search_tool_regex)(_\d{8})?|mcp_toolset"
)
RESULT_BLOCKS = ("text", "image", "search_result", "document", "tool_reference", "browser_state")
IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
SOURCES = {"image": ("base64", "url", "file"), "document": ("base64", "text", "content", "url", "file")}
USERS = words("text image document search_result tool_result container_upload tool_addition tool_removal")
ASSISTANTS = words(
    """
    text thinking redacted_thinking tool_use server_tool_use mcp_tool_use mcp_tool_result web_search_tool_result
    web_fetch_tool_result code_execution_tool_result bash_code_execution_tool_result
    text_editor_code_execution_tool_result tool_search_tool_result container_upload advisor_tool_result compaction
    """
)
BLOCKS = {"user": USERS, "assistant": ASSISTANTS, "system": frozenset({"text"})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Messages of one role that follow each other: the API reads them as one."""

    role: str
    at: Field
    blocks: list[Field]


def key_is_sent(headers: Mapping[str, str]) -> None:
    """Observed: anthropic 2.8 sends the key so, and the API responds with 401 without it."""
    if not headers.get("x-api-key") and not re.fullmatch(r"Bearer \S+", headers.get("authorization", "")):
        raise RequestRefused("x-api-key header is required", status=401, code="authentication_error")


def version_is_sent(headers: Mapping[str, str]) -> None:
    """Observed: anthropic 2.8 sends it with every request."""
    if not headers.get("anthropic-version"):
        raise RequestRefused("anthropic-version: header is required")


def fields_are_known(body: Field, *, beta: bool) -> None:
    """SDK types: the fields of anthropic 2.8."""
    body.only(FIELDS | BETA_FIELDS if beta else FIELDS)
    body.need("model").text()
    if stream := body.find("stream"):
        stream.flag()


def max_tokens_is_given(body: Field) -> None:
    """SDK types: `max_tokens` is required in anthropic 2.8's types."""
    if body.need("max_tokens").number() < 1:
        raise RequestRefused("max_tokens: Input should be greater than or equal to 1")


def first_message_is_the_users(body: Field) -> None:
    """API reference: the order of messages."""
    messages = body.need("messages").items()
    if not messages:
        raise RequestRefused("messages: at least one message is required")
    if messages[0].need("role").one_of(BLOCKS) != "user":
        raise RequestRefused('messages: first message must use the "user" role')


def blocks_fit_roles(body: Field) -> None:
    """API reference: `tool_use` and `tool_result`: which blocks there are, and who may send them."""
    messages = body.need("messages").items()
    for message in messages:
        role = message.need("role").one_of(BLOCKS)
        message.only(("role", "content"))
        content = message.need("content")
        if not content.value and not (role == "assistant" and message is messages[-1]):
            raise RequestRefused(f"{format_dotted(message.path)}: all messages must have non-empty content")
        for block in _blocks(message):
            _check_block(block, role)


def results_follow_calls(body: Field) -> None:
    """API reference: every call has one result with its id; `tool_result{tool_use_id, …}`."""
    turns = _turns(body)
    asked: list[str] = []
    for index, turn in enumerate(turns):
        before = _ids(turns[index - 1], "tool_use", "id") if index else []
        after = _leading_results(turns[index + 1]) if index + 1 < len(turns) else []
        _check_results(turn, before)
        calls = _ids(turn, "tool_use", "id")
        if missing := [name for name in calls if name not in after]:
            raise RequestRefused(
                f"{format_dotted(turn.at.path)}: `tool_use` ids were found without `tool_result` blocks immediately "
                f"after: {', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in "
                "the next message."
            )
        asked += calls
    if repeated := first_repeated(asked):
        raise RequestRefused(f"messages: `tool_use` ids must be unique: {repeated}")


def tools_are_valid(body: Field) -> None:
    """API reference: names, `ToolParam` and the typed tools; error code `tool_name_conflict`."""
    tools = _tools(body)
    if repeated := first_repeated([name for tool in tools if (name := _check_tool(tool))]):
        raise RequestRefused(f"tools: Tool names must be unique. '{repeated}' is there twice.")


def strict_tools_are_few(body: Field) -> None:
    """API reference: "≤ 20 strict tools, ≤ 24 optional parameters, ≤ 16 union-typed parameters"."""
    schemas = [tool.need("input_schema").members() for tool in _tools(body) if tool.members().get("strict") is True]
    if len(schemas) > 20:
        raise RequestRefused(f"tools: Too many strict tools ({len(schemas)}). The limit is 20.")
    output = _output_schema(body)
    check_totals([*schemas, output.members()] if output else schemas)


def examples_are_valid(body: Field) -> None:
    """API reference: `input_examples`: each has to be valid for its own `input_schema`."""
    for tool in _tools(body):
        examples = tool.find("input_examples")
        for example in examples.items() if examples else []:
            schema: JsonSchema = tool.need("input_schema").members()
            if not is_instance(schema, example.members()):
                raise RequestRefused(
                    f"{format_dotted(example.path)}: Input example does not match the tool's input_schema"
                )


def choice_names_a_tool(body: Field) -> None:
    """API reference: `tool_choice`: `auto|any|tool|none` with `disable_parallel_tool_use`."""
    choice = body.find("tool_choice")
    if choice is None:
        return
    kind = choice.need("type").one_of(("auto", "any", "tool", "none"))
    names = [name.text() for tool in _tools(body) if (name := tool.find("name"))]
    if not names and kind != "none":
        raise RequestRefused("tool_choice: may only be specified while providing tools")
    allowed = {"tool": ("type", "disable_parallel_tool_use", "name"), "none": ("type",)}
    choice.only(allowed.get(kind, ("type", "disable_parallel_tool_use")))
    if kind == "tool" and (wanted := choice.need("name").text()) not in names:
        raise RequestRefused(f"tool_choice: Tool '{wanted}' not found in provided tools")


def answer_format_is_valid(body: Field) -> None:
    """API reference: structured-outputs: the strict subset also holds for `output_config.format`."""
    if schema := _output_schema(body):
        check_output(schema)


RULES = (
    max_tokens_is_given,
    first_message_is_the_users,
    blocks_fit_roles,
    results_follow_calls,
    tools_are_valid,
    answer_format_is_valid,
    strict_tools_are_few,
    examples_are_valid,
    choice_names_a_tool,
)


def _blocks(message: Field) -> list[Field]:
    content = message.need("content")
    return [] if isinstance(content.value, str) else content.items()


def _check_block(block: Field, role: str) -> None:
    kind = block.need("type").text()
    if (kind, role) in {("tool_use", "user"), ("tool_result", "assistant")}:
        owner = "assistant" if kind == "tool_use" else "user"
        raise RequestRefused(f"{format_dotted(block.path)}: `{kind}` blocks can only be in `{owner}` messages")
    block.need("type").one_of(BLOCKS[role])
    if kind == "text" and not block.need("text").text():
        raise RequestRefused(f"{format_dotted(block.path)}: text content blocks must be non-empty")
    if kind == "tool_use":
        block.need("id").text()
        block.need("name").text()
        block.need("input").members()
    if kind == "tool_result":
        block.only(("type", "tool_use_id", "content", "is_error", "toolset_name", "cache_control"))
        content = block.find("content")
        for part in [] if content is None or isinstance(content.value, str) else content.items():
            kind = part.need("type").one_of(RESULT_BLOCKS)
            if kind == "text" and not part.need("text").text():
                raise RequestRefused(f"{format_dotted(part.path)}: text content blocks must be non-empty")
            if kind in SOURCES:
                _check_source(part, kind)


def _check_source(block: Field, kind: str) -> None:
    """The fields of anthropic 2.8's ImageBlockParam and DocumentBlockParam."""
    block.only(("type", "source", "cache_control", *(("title", "context", "citations") if kind == "document" else ())))
    source = block.need("source")
    match source.need("type").one_of(SOURCES[kind]):
        case "base64":
            source.only(("type", "media_type", "data"))
            source.need("media_type").one_of(IMAGE_TYPES if kind == "image" else ("application/pdf",))
            if not is_base64(source.need("data").text()):
                raise RequestRefused(f"{format_dotted(source.path)}.data: invalid base64 data")
        case "url":
            source.only(("type", "url"))
            if not source.need("url").text().startswith("https://"):
                raise RequestRefused(f"{format_dotted(source.path)}.url: Only HTTPS URLs are supported.")
        case _:
            pass


def _turns(body: Field) -> list[Turn]:
    turns: list[Turn] = []
    for message in body.need("messages").items():
        role = message.need("role").text()
        if turns and turns[-1].role == role:
            turns[-1] = Turn(role=role, at=turns[-1].at, blocks=[*turns[-1].blocks, *_list_blocks(message)])
        else:
            turns.append(Turn(role=role, at=message, blocks=_list_blocks(message)))
    return turns


def _list_blocks(message: Field) -> list[Field]:
    """The blocks of a message; a text is one block."""
    text = Field(value={"type": "text"}, path=message.path, wording=message.wording)
    return _blocks(message) or [text]


def _ids(turn: Turn, kind: str, key: str) -> list[str]:
    return [block.need(key).text() for block in turn.blocks if block.need("type").text() == kind]


def _leading_results(turn: Turn) -> list[str]:
    """The results at the start of a turn: after any other block they do not count."""
    count = next((n for n, block in enumerate(turn.blocks) if block.need("type").text() != "tool_result"), None)
    return _ids(Turn(role=turn.role, at=turn.at, blocks=turn.blocks[:count]), "tool_result", "tool_use_id")


def _check_results(turn: Turn, asked: list[str]) -> None:
    answered: set[str] = set()
    for block in turn.blocks:
        if block.need("type").text() != "tool_result":
            continue
        name, at = block.need("tool_use_id").text(), format_dotted(block.path)
        if name not in asked:
            raise RequestRefused(
                f"{at}: unexpected `tool_use_id` found in `tool_result` blocks: {name}. Each `tool_result` block "
                "must have a corresponding `tool_use` block in the previous message."
            )
        if name in answered:
            found = f"Found multiple `tool_result` blocks with id: {name}"
            raise RequestRefused(f"{at}: each tool_use must have a single result. {found}")
        answered.add(name)


def _tools(body: Field) -> list[Field]:
    tools = body.find("tools")
    return tools.items() if tools else []


def _check_tool(tool: Field) -> str | None:
    kind = tool.find("type")
    if kind is not None and kind.text() != "custom":
        if not TYPED_TOOL.fullmatch(kind.text()):
            raise RequestRefused(
                f"{format_dotted(tool.path)}: Input tag '{kind.text()}' does not match any of the expected tags"
            )
        name = tool.find("name")
        return name.text() if name else None
    tool.only(TOOL_FIELDS)
    name = tool.need("name")
    if not NAME.fullmatch(name.text()):
        at = f"{format_dotted(tool.path)}.custom.name"
        raise RequestRefused(f"{at}: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
    strict = tool.find("strict")
    check_input(tool.need("input_schema"), strict=strict is not None and strict.flag())
    return name.text()


def _output_schema(body: Field) -> Field | None:
    config = body.find("output_config")
    chosen = config.find("format") if config else None
    return chosen.need("schema") if chosen and chosen.need("type").one_of(("json_schema",)) else None
