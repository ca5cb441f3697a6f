"""What Gemini's generateContent refuses."""

import re
from collections.abc import Mapping
from itertools import pairwise

from .reading import Field, RequestRefused, as_list, as_map, first_repeated, format_bracketed, is_base64, words
from .schemas import Complaint, JsonSchema, is_malformed, walk

NAME = re.compile("[A-Za-z_][A-Za-z0-9_.:-]{0,127}")
PARAMETER = re.compile("[A-Za-z_][A-Za-z0-9_]{0,63}")
FIELDS = words(
    """
    contents systemInstruction safetySettings tools toolConfig generationConfig cachedContent labels serviceTier
    continuationToken store model
    """
)
PART_FIELDS = words(
    """
    text thought thoughtSignature functionCall functionResponse inlineData fileData executableCode
    codeExecutionResult videoMetadata mediaResolution toolCall toolResponse partMetadata audioTranscription
    mediaProcessing speechMetadata
    """
)
TOOL_FIELDS = words(
    """
    functionDeclarations googleSearch googleSearchRetrieval googleMaps urlContext codeExecution computerUse
    fileSearch mcpServers
    """
)
DECLARATION_FIELDS = words("name description parameters parametersJsonSchema response responseJsonSchema behavior")
SCHEMA_FIELDS = words(
    """
    type format title description nullable enum default example items minItems maxItems properties required
    minProperties maxProperties propertyOrdering minLength maxLength pattern minimum maximum anyOf
    additionalProperties defs ref
    """
)
MEDIA_TYPES = words("image/png image/jpeg image/webp application/pdf text/plain")
TYPES = words("STRING NUMBER INTEGER BOOLEAN ARRAY OBJECT NULL TYPE_UNSPECIFIED")
TURN = "Please ensure that multiturn requests"


def key_is_sent(headers: Mapping[str, str], query: Mapping[str, str]) -> None:
    """Observed: google-genai 3.1 sends `x-goog-api-key`; without a key the API responds with 403, not 401."""
    if not headers.get("x-goog-api-key") and not query.get("key") and not headers.get("authorization"):
        message = (
            "Method doesn't allow unregistered callers. Please use API Key or other form of API consumer identity."
        )
        raise RequestRefused(message, status=403, code="PERMISSION_DENIED")


def fields_are_known(body: Field) -> None:
    """SDK types: the fields of google-genai 3.1."""
    body.only(FIELDS)
    for content in _contents(body):
        content.only(("role", "parts"))
        for part in content.need("parts").items():
            part.only(PART_FIELDS)


def contents_are_there(body: Field) -> None:
    """Observed: the refusal of the API."""
    if not _contents(body):
        raise RequestRefused("* GenerateContentRequest.contents: contents is not specified")
    for content in _contents(body):
        if not content.need("parts").items():
            raise RequestRefused(f"* GenerateContentRequest.{format_bracketed(content.path)}.parts: must not be empty")


def roles_alternate(body: Field) -> None:
    """API reference: the order of messages; a request with one content may leave out its role."""
    contents = _contents(body)
    roles = [_role(content, alone=len(contents) == 1) for content in contents]
    if any(role == other for role, other in pairwise(roles)):
        raise RequestRefused(f"{TURN} alternate between user and model.")
    if roles[-1] != "user":
        raise RequestRefused(f"{TURN} ends with a user role or a function response.")


def calls_and_responses_are_complete(body: Field) -> None:
    """API reference: `FunctionCall{id, name, args}` and `FunctionResponse{id, name, response}`."""
    for content in _contents(body):
        role = content.find("role")
        for part in content.need("parts").items():
            if call := part.find("functionCall"):
                call.need("name").text()
                if args := call.find("args"):
                    args.members()
            if response := part.find("functionResponse"):
                response.need("name").text()
                response.need("response").members()
                response.only(("id", "name", "response", "parts", "willContinue", "scheduling"))
                for media in found.items() if (found := response.find("parts")) else []:
                    _check_media(media)
            if call and (role is None or role.text() != "model"):
                raise RequestRefused("Please ensure that function call turn is a turn of the model.")


def _check_media(part: Field) -> None:
    """API reference: `parts[inline_data|file_data, media_processing]`; the MIME types that Google documents."""
    part.only(("inlineData", "fileData", "mediaProcessing"))
    if part.find("fileData"):
        return
    blob = part.need("inlineData")
    blob.only(("mimeType", "data", "displayName"))
    kind = blob.need("mimeType").text()
    if kind not in MEDIA_TYPES:
        raise RequestRefused(f"Unsupported MIME type: {kind}")
    if not is_base64(blob.need("data").text()):
        raise RequestRefused(
            f"Invalid value at '{format_bracketed(blob.path)}.data' (TYPE_BYTES), Base64 decoding failed."
        )


def responses_follow_calls(body: Field) -> None:
    """API reference: every call has one result with its id; `FunctionResponse{id, name, …}`."""
    asked: list[Field] = []
    for content in _contents(body):
        answers = _inside(content, "functionResponse")
        if answers and not asked:
            raise RequestRefused(
                "Please ensure that function response turn comes immediately after a function call turn."
            )
        if len(answers) != len(asked):
            raise RequestRefused(
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn."
            )
        _match(asked, answers)
        asked = _inside(content, "functionCall")


def declarations_are_valid(body: Field) -> None:
    """API reference: names, `FunctionDeclaration` and "documented max 512 declarations"."""
    declarations = _declarations(body)
    names = [_check_declaration(declaration) for declaration in declarations]
    if repeated := first_repeated(names):
        raise RequestRefused(f"Duplicate function declaration found: {repeated}")
    if len(declarations) > 512:
        raise RequestRefused(f"There are {len(declarations)} function declarations. The limit is 512.")


def choice_names_a_function(body: Field) -> None:
    """API reference: `function_calling_config{mode: AUTO|ANY|NONE|VALIDATED, allowed_function_names}`."""
    tool_config = body.find("toolConfig")
    config = tool_config.find("functionCallingConfig") if tool_config else None
    if config is None:
        return
    config.only(("mode", "allowedFunctionNames"))
    mode = config.find("mode")
    chosen = mode.one_of(("MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED")) if mode else "AUTO"
    allowed = config.find("allowedFunctionNames")
    if allowed is None:
        return
    if chosen not in ("ANY", "VALIDATED"):
        raise RequestRefused("allowed_function_names should only be set when mode is ANY or VALIDATED.")
    names = [declaration.need("name").text() for declaration in _declarations(body)]
    for name in allowed.items():
        if name.text() not in names:
            raise RequestRefused(f"allowed_function_names: '{name.text()}' is not the name of a function declaration.")


def answer_format_is_valid(body: Field) -> None:
    """SDK types: google-genai 3.1 says of `response_json_schema` that "`response_schema` must be
    omitted, but `response_mime_type` is required", and that keywords beyond its subset may be sent.
    """
    config = body.find("generationConfig")
    schema = config.find("responseJsonSchema") if config else None
    if config is None or schema is None:
        return
    if config.find("responseSchema"):
        raise RequestRefused("response_schema and response_json_schema are mutually exclusive.")
    kind = config.find("responseMimeType")
    if kind is None or kind.text() != "application/json":
        raise RequestRefused("response_json_schema needs a response_mime_type of application/json.")
    if complaint := is_malformed(schema.members()) or has_wrong_enum(schema.members()):
        raise RequestRefused(f"* GenerateContentRequest.{format_bracketed(schema.path)}: {complaint}")


def has_wrong_enum(root: JsonSchema) -> Complaint:
    """Errors that users report: "enum: only allowed for STRING type" where it has none, "enum[0]: cannot be empty"."""
    for place in walk(root):
        if (values := place.schema.get("enum")) is None:
            continue
        if "type" not in place.schema:
            return f"{'.'.join(place.context)}.enum: only allowed for STRING type"
        if "" in as_list(values):
            return f"{'.'.join(place.context)}.enum[{as_list(values).index('')}]: cannot be empty"
    return None


RULES = (
    fields_are_known,
    contents_are_there,
    roles_alternate,
    calls_and_responses_are_complete,
    responses_follow_calls,
    declarations_are_valid,
    choice_names_a_function,
    answer_format_is_valid,
)


def _contents(body: Field) -> list[Field]:
    contents = body.find("contents")
    return contents.items() if contents else []


def _role(content: Field, *, alone: bool) -> str:
    role = content.find("role")
    if role is None and alone:
        return "user"
    if role is None or role.text() not in ("user", "model"):
        raise RequestRefused("Please use a valid role: user, model.")
    return role.text()


def _inside(content: Field, key: str) -> list[Field]:
    return [found for part in content.need("parts").items() if (found := part.find(key))]


def _match(asked: list[Field], answers: list[Field]) -> None:
    """By id where a response has one, else by name."""
    waiting = list(asked)
    for answer in answers:
        name, own = answer.need("name").text(), answer.find("id")
        for call in waiting:
            known = call.find("id")
            if call.need("name").text() == name and (own is None or (known is not None and known.value == own.value)):
                waiting.remove(call)
                break
        else:
            which = f"'{name}'" if own is None else f"'{name}' with id '{own.value}'"
            raise RequestRefused(f"The function response {which} does not match a function call of the turn before it.")


def _declarations(body: Field) -> list[Field]:
    tools = body.find("tools")
    found: list[Field] = []
    for tool in tools.items() if tools else []:
        tool.only(TOOL_FIELDS)
        declarations = tool.find("functionDeclarations")
        found += declarations.items() if declarations else []
    return found


def _check_declaration(declaration: Field) -> str:
    declaration.only(DECLARATION_FIELDS)
    at = f"* GenerateContentRequest.{format_bracketed(declaration.path)}"
    name = declaration.need("name").text()
    if not NAME.fullmatch(name):
        raise RequestRefused(
            f"{at}.name: Invalid function name. Must start with a letter or an underscore. Must be a-z, A-Z, 0-9, or "
            "contain underscores (_), dots (.), colons (:), or dashes (-), with a maximum length of 128."
        )
    typed, raw = declaration.find("parameters"), declaration.find("parametersJsonSchema")
    if typed and raw:
        raise RequestRefused(f"{at}: parameters and parameters_json_schema are mutually exclusive.")
    if typed:
        _check_schema(typed)
    if raw and (complaint := is_malformed(raw.members()) or has_wrong_enum(raw.members())):
        raise RequestRefused(f"{at}.parameters_json_schema: {complaint}")
    for schema in (typed, raw):
        if schema:
            _check_parameters(schema)
    return name


def _check_parameters(schema: Field) -> None:
    """API reference: "parameter names"; the schema describes an object."""
    at = f"* GenerateContentRequest.{format_bracketed(schema.path)}"
    kind = schema.find("type")
    if kind is None or str(kind.value).upper() != "OBJECT":
        raise RequestRefused(f"{at}: the schema of parameters has to be of type OBJECT.")
    for name in as_map(schema.members().get("properties")):
        if not PARAMETER.fullmatch(name):
            raise RequestRefused(
                f"{at}.properties: Invalid parameter name '{name}'. Must start with a letter or an underscore, and "
                "contain a-z, A-Z, 0-9 or underscores, with a maximum length of 64."
            )


def _check_schema(root: Field) -> None:
    """API reference: "Schema fields"; "enum (strings)"."""
    waiting = [root]
    while waiting:
        schema = waiting.pop()
        schema.only(SCHEMA_FIELDS)
        if (kind := schema.find("type")) and kind.text().upper() not in TYPES:
            raise kind.wording.wrong_value(kind.path, kind.text(), TYPES)
        if values := schema.find("enum"):
            for value in values.items():
                if not value.text():
                    raise RequestRefused(f"* GenerateContentRequest.{format_bracketed(value.path)}: cannot be empty")
            if kind is None or kind.text().upper() != "STRING":
                at = format_bracketed(values.path)
                raise RequestRefused(f"* GenerateContentRequest.{at}: only allowed for STRING type")
        if items := schema.find("items"):
            waiting.append(items)
        if choices := schema.find("anyOf"):
            waiting += choices.items()
        for key in ("properties", "defs"):
            if named := schema.find(key):
                waiting += [named.need(name) for name in named.members()]
