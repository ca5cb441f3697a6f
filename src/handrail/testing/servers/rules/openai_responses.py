"""What OpenAI Responses refuses."""

from collections.abc import Collection, Iterable

from .openai import check_function, name_is_valid, names_are_unique, output_format_is_valid, parts_are
from .openai import stream_options_need_a_stream as stream_options_need_a_stream
from .reading import Field, RequestRefused, format_bracketed, is_base64, words

FIELDS = words(
    """
    access_programs background context_management conversation image include input instructions max_output_tokens
    max_tool_calls metadata model moderation parallel_tool_calls previous_response_id prompt prompt_cache_key
    prompt_cache_options prompt_cache_retention reasoning safety_identifier service_tier store stream
    stream_options temperature text tool_choice tools top_logprobs top_p truncation user
    """
)
HOSTED = words(
    """
    tool_search programmatic_tool_calling mcp shell apply_patch local_shell computer computer_use_preview
    code_interpreter web_search web_search_2025_08_26 web_search_preview web_search_preview_2025_03_11 file_search
    image_generation
    """
)
ITEMS = words(
    """
    message function_call function_call_output custom_tool_call custom_tool_call_output tool_search_call
    tool_search_output additional_tools configuration_update reasoning compaction compaction_trigger
    item_reference program program_output file_search_call web_search_call computer_call computer_call_output
    image_generation_call code_interpreter_call local_shell_call local_shell_call_output shell_call
    shell_call_output apply_patch_call apply_patch_call_output mcp_list_tools mcp_approval_request
    mcp_approval_response mcp_call
    """
)
FUNCTION_FIELDS = words("type name parameters strict description defer_loading allowed_callers output_schema async")
CUSTOM_FIELDS = words("type name description format defer_loading allowed_callers async")
IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}
CALLS = frozenset(OUTPUTS.values())
CHOICES = HOSTED | {"function", "custom", "allowed_tools", "computer_use"}


def fields_are_known(body: Field) -> None:
    """SDK types: the fields of openai 3.49."""
    body.only(FIELDS)
    if not body.find("prompt"):
        body.need("model").text()
    for option in ("stream", "store", "background"):
        if flag := body.find(option):
            flag.flag()


def items_are_valid(body: Field) -> None:
    """API reference: items: their types, and the fields that a call and an output need."""
    for item in items(body):
        kind = _kind(item)
        if kind == "message":
            _check_message(item)
        elif kind == "function_call":
            _check_call(item, "arguments")
        elif kind == "custom_tool_call":
            _check_call(item, "input")
        elif kind in OUTPUTS:
            _check_output(item)


def every_call_is_answered(conversation: Iterable[Field]) -> None:
    """API reference: every call has one result with its id; `function_call` and `function_call_output`.

    A call that is marked `async` may stay open (API reference: "non-blocking call").
    """
    asked: dict[str, str] = {}
    answered: set[str] = set()
    open_: set[str] = set()
    for item in conversation:
        kind = _kind(item)
        if kind in OUTPUTS:
            _answer(item, asked, answered)
        elif kind in CALLS:
            if (name := item.need("call_id").text()) in asked:
                raise RequestRefused(f"Duplicate call_id '{name}' in '{format_bracketed(item.path)}'.", param="input")
            asked[name] = kind
            if item.members().get("async") is True:
                open_.add(name)
    if missing := [name for name in asked if name not in answered | open_]:
        raise RequestRefused(f"No tool output found for function call {missing[0]}.", param="input")


def tools_are_valid(body: Field) -> None:
    """API reference: tool types and names."""
    names = [name for tool in _tools(body) for name in _check_tool(tool, HOSTED | {"function", "custom", "namespace"})]
    names_are_unique(names)


def choice_names_a_tool(body: Field) -> None:
    """API reference: `tool_choice`."""
    choice = body.find("tool_choice")
    if choice is None:
        return
    if isinstance(choice.value, str):
        if choice.one_of(("none", "auto", "required")) == "required" and not _tools(body):
            message = "Tool choice 'required' must be specified with 'tools' parameter."
            raise RequestRefused(message, param="tool_choice")
    elif choice.need("type").one_of(CHOICES) == "allowed_tools":
        choice.need("mode").one_of(("auto", "required"))
        for tool in choice.need("tools").items():
            _refuse_unknown(tool, body)
    else:
        _refuse_unknown(choice, body)


def answer_format_is_valid(body: Field) -> None:
    """API reference, strict mode, for `text.format`."""
    text = body.find("text")
    chosen = text.find("format") if text else None
    if chosen and chosen.need("type").one_of(("text", "json_object", "json_schema")) == "json_schema":
        output_format_is_valid(chosen)


RULES = (
    fields_are_known,
    items_are_valid,
    tools_are_valid,
    choice_names_a_tool,
    answer_format_is_valid,
    stream_options_need_a_stream,
)


def items(body: Field) -> list[Field]:
    """The items of the input, which may also be one text or nothing."""
    given = body.find("input")
    return [] if given is None or isinstance(given.value, str) else given.items()


def _kind(item: Field) -> str:
    if kind := item.find("type"):
        return kind.one_of(ITEMS)
    return "message" if item.has("role") else "item_reference"


def _check_message(item: Field) -> None:
    role = item.need("role").one_of(("user", "assistant", "system", "developer"))
    spoken, heard = ("output_text", "refusal"), ("input_text", "input_image", "input_file")
    parts_are(item.need("content"), spoken if role == "assistant" else heard)


def _check_call(item: Field, payload: str) -> None:
    """Observed: the API tells a call's own `id` (fc_…, ctc_…) from its `call_id`, and refuses the wrong one."""
    item.need("call_id").text()
    name_is_valid(item.need("name"), max_chars=128)
    item.need(payload).text()
    prefix = "fc" if payload == "arguments" else "ctc"
    if (own := item.find("id")) and not own.text().startswith(prefix):
        place = format_bracketed(own.path)
        message = f"Invalid '{place}': '{own.text()}'. Expected an ID that begins with '{prefix}'."
        raise RequestRefused(message, code="invalid_value", param=place)


def _check_output(item: Field) -> None:
    """API reference: "`output` = string or list of `input_text` / `input_image` / `input_file`"."""
    item.need("call_id").text()
    if not item.has("output"):
        raise item.wording.missing((*item.path, "output"))
    output = item.need("output")
    parts_are(output, ("input_text", "input_image", "input_file"))
    for part in [] if isinstance(output.value, str) else output.items():
        _check_media(part)


def _check_media(part: Field) -> None:
    """The fields of openai 3.49's ResponseInputImageContentParam and ResponseInputFileContentParam."""
    kind = part.need("type").text()
    if kind == "input_image":
        part.only(("type", "detail", "file_id", "image_url", "prompt_cache_breakpoint"))
        if not part.find("file_id"):
            url = part.need("image_url")
            _check_url(url, IMAGE_TYPES)
    elif kind == "input_file":
        part.only(("type", "detail", "file_data", "file_id", "file_url", "filename", "prompt_cache_breakpoint"))
        if data := part.find("file_data"):
            part.need("filename").text()
            _check_url(data, None)
        elif not part.find("file_id"):
            part.need("file_url").text()


def _check_url(url: Field, types: Collection[str] | None) -> None:
    place = format_bracketed(url.path)
    if types is not None and url.text().startswith(("https://", "http://")):
        return
    head, _, data = url.text().partition(";base64,")
    if not head.startswith("data:") or not is_base64(data):
        message = f"Invalid '{place}'. Expected a valid URL or base64-encoded data in a data URL."
        raise RequestRefused(message, code="invalid_value", param=place)
    if types is not None and (kind := head.removeprefix("data:")) not in types:
        message = f"Invalid image data in '{place}': unsupported MIME type '{kind}'."
        raise RequestRefused(message, code="invalid_image_format", param=place)


def _answer(item: Field, asked: dict[str, str], answered: set[str]) -> None:
    name = item.need("call_id").text()
    if asked.get(name) != OUTPUTS[_kind(item)]:
        raise RequestRefused(f"No tool call found for function call output with call_id {name}.", param="input")
    if name in answered:
        raise RequestRefused(
            f"Duplicate output for call_id '{name}' in '{format_bracketed(item.path)}'.", param="input"
        )
    answered.add(name)


def _tools(body: Field) -> list[Field]:
    """The tools of the request and those that `additional_tools` items add."""
    given = body.find("tools")
    added = [tool for item in items(body) if _kind(item) == "additional_tools" for tool in item.need("tools").items()]
    return [*(given.items() if given else []), *added]


def _check_tool(tool: Field, kinds: Iterable[str], *, within: str = "") -> list[str]:
    kind = tool.need("type").one_of(tuple(kinds))
    if kind in HOSTED:
        return []
    name = name_is_valid(tool.need("name"), max_chars=128)
    if kind == "function":
        _check_function(tool, name, optional=bool(within))
    elif kind == "custom":
        tool.only(CUSTOM_FIELDS)
    else:
        tool.only(("type", "name", "description", "tools"))
        inner = tool.need("tools").items()
        return [found for tool in inner for found in _check_tool(tool, ("function", "custom"), within=f"{name}.")]
    return [within + name]


def _check_function(tool: Field, name: str, *, optional: bool) -> None:
    """API reference: "`name`, `parameters`, `strict` (all three required keys)"; in a namespace two are optional."""
    tool.only(FUNCTION_FIELDS)
    for key in () if optional else ("parameters", "strict"):
        if not tool.has(key):
            raise tool.wording.missing((*tool.path, key))
    strict = tool.find("strict")
    if parameters := tool.find("parameters"):
        check_function(parameters, name=name, strict=strict is not None and strict.flag())


def _refuse_unknown(choice: Field, body: Field) -> None:
    kind = choice.need("type").text()
    if kind in ("function", "custom"):
        wanted = (kind, choice.need("name").text())
    elif kind == "mcp":
        wanted = (kind, choice.need("server_label").text())
    else:
        wanted = (kind, "")
    if wanted not in {_identity(tool) for tool in _tools(body)}:
        raise RequestRefused(f"Tool choice '{wanted[1] or kind}' not found in 'tools' parameter.", param="tool_choice")


def _identity(tool: Field) -> tuple[str, str]:
    kind = tool.need("type").text()
    key = {"function": "name", "custom": "name", "mcp": "server_label"}.get(kind)
    return (kind, tool.need(key).text() if key else "")
