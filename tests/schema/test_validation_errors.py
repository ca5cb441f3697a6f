"""What is wrong with arguments is told in words for the model."""

from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AfterValidator, BaseModel, Field, Json, model_validator

from handrail import InvalidArgumentsError, LLMFunctionTool, ToolArgsParseError, ToolError, as_tool, tool
from handrail.schema.validation_errors import describe_type, format_path, quote_value


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Named(BaseModel):
    name: str


class Aged(BaseModel):
    age: int


def echo(value: str) -> str:
    raise ValueError(f"cannot use {value}")


@tool(read_only=True)
def adopt(
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] = Dog(kind="dog", tricks=[]),  # noqa: B008
    who: Named | Aged | int = 0,
    scores: dict[str, int] = {},  # noqa: B006
    note: Annotated[str, AfterValidator(echo)] = "",
    packed: Json[dict[str, int]] | None = None,
    pair: tuple[int, int] = (0, 0),
) -> None: ...


def told(text: str) -> list[str]:
    with pytest.raises(InvalidArgumentsError) as caught:
        adopt.parse(text)
    return str(caught.value).split("\n")[1:]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            '{"pet": {"kind": "cat", "lives": "many"}}',
            ['- pet.lives: input should be a valid integer, unable to parse string as an integer, got "many"'],
        ),
        ('{"pet": {"kind": "cat"}}', ["- pet.lives: required, but missing"]),
        (
            '{"pet": {"kind": "cow"}}',
            [
                "- pet: input tag 'cow' found using 'kind' does not match any of the expected tags: 'cat', 'dog', "
                'got {"kind":"cow"}'
            ],
        ),
        (
            '{"who": {"age": "old"}}',
            [
                "- who.name: required, but missing",
                '- who.age: input should be a valid integer, unable to parse string as an integer, got "old"',
                '- who: input should be a valid integer, got {"age":"old"}',
            ],
        ),
        ('{"scores": {"Ann": []}}', ["- scores.Ann: input should be a valid integer, got []"]),
        ('{"pair": [1]}', ["- pair[1]: required, but missing"]),
        ('{"packed": "{"}', ['- packed: invalid JSON: EOF while parsing an object at line 1 column 1, got "{"']),
        ('{"gone": 1}', ["- gone: not an argument of this tool; it has: pet, who, scores, note, packed, pair"]),
    ],
)
@pytest.mark.proves("GC-42")
def test_a_place_is_one_in_what_was_sent(text: str, lines: list[str]) -> None:
    assert told(text) == lines


def test_the_places_are_kept_for_the_log() -> None:
    with pytest.raises(InvalidArgumentsError) as caught:
        adopt.parse('{"pet": {"kind": "dog", "tricks": ["sit", 5]}, "extra": 1}')

    assert caught.value.places == ("pet.tricks[1]", "extra")
    assert caught.value.to_log_dict()["places"] == ["pet.tricks[1]", "extra"]


def test_ten_faults_are_reported_and_the_rest_is_counted() -> None:
    text = "{" + ", ".join(f'"k{number}": 1' for number in range(1_000)) + "}"

    with pytest.raises(InvalidArgumentsError) as caught:
        adopt.parse(text)

    lines = str(caught.value).split("\n")[1:]
    assert len(lines) == 11
    assert lines[-1] == "- … and 990 more"
    assert len(caught.value.places) == 10


@pytest.mark.parametrize(
    "text",
    ['{"note": "' + "x" * 1_000_000 + '"}', '{"' + "x" * 1_000_000 + '": 1}', '{"scores": "' + "x" * 1_000_000 + '"}'],
    ids=["quoted by a validator", "a name", "a value"],
)
def test_an_answer_is_short_however_long_the_arguments_are(text: str) -> None:
    assert len("\n".join(told(text))) < 700


def test_the_words_of_pydantic_keep_their_capitals_where_they_are_names() -> None:
    @tool
    def find(identifier: Annotated[str, Field(pattern="^[A-Z]+$")], number: UUID) -> None: ...

    with pytest.raises(InvalidArgumentsError, match=r"number: UUID input should be a string") as caught:
        find.parse('{"identifier": "a", "number": 5}')
    assert "identifier: string should match pattern" in str(caught.value)


def test_a_fault_of_the_whole_has_no_place() -> None:
    class Range(LLMFunctionTool):
        low: int
        high: int

        @model_validator(mode="after")
        def in_order(self) -> "Range":
            if self.low > self.high:
                raise ValueError("low must not be above high")
            return self

        def model_tool_handler(self, context: None) -> tuple[str, None]:
            return "", None

    with pytest.raises(InvalidArgumentsError) as caught:
        as_tool(Range).parse('{"low": 2, "high": 1}')

    assert str(caught.value).split("\n")[1].startswith("- value error, low must not be above high, got {")


def test_a_class_that_reads_its_arguments_in_its_own_way_reports_places_all_the_same() -> None:
    class Lenient(LLMFunctionTool):
        count: int

        @classmethod
        def model_tool_validate_tool_call(cls, name: str, arguments: str) -> Any:
            return cls.model_validate_json(arguments.replace("'", '"'))

        def model_tool_handler(self, context: None) -> tuple[str, None]:
            return "", None

    lenient = as_tool(Lenient, read_only=True)

    assert lenient.parse("{'count': 1}").count == 1
    with pytest.raises(InvalidArgumentsError, match="- count: input should be a valid integer"):
        lenient.parse("{'count': 'x'}")


@pytest.mark.parametrize(
    ("text", "found"),
    [("[1]", "an array"), ("null", "null"), ('"x"', "a string"), ("1", "a number"), ("true", "a boolean")],
)
@pytest.mark.proves("PH-43")
def test_json_that_is_no_object_is_refused_with_the_reason(text: str, found: str) -> None:
    with pytest.raises(ToolArgsParseError) as caught:
        adopt.parse(text)

    assert str(caught.value) == f"The arguments must be a JSON object, not {found}."


@pytest.mark.parametrize("text", ["nope", '{"a":', "{'a': 1}", '{"a": 1} x', "\x00", '"\ud800"', '{"a": "\ud800"}'])
@pytest.mark.proves("PH-42")
def test_text_that_is_no_json_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(ToolArgsParseError, match=r"^The arguments are not valid JSON: .*\. Send one JSON object\.$"):
        adopt.parse(text)


def test_both_can_be_mended_by_the_model() -> None:
    for text in ("nope", "[]", '{"gone": 1}'):
        with pytest.raises(ToolError) as caught:
            adopt.parse(text)
        assert caught.value.retryable


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["items", 0, "price"], "items[0].price"),
        ([""], '""'),
        (["a", "", 1], "a.[1]"),
        (["x" * 500], "x" * 120 + "…"),
        (["a\nb\ud800"], "a�b�"),
    ],
)
def test_a_place_is_written_as_people_write_it(path: list[Any], text: str) -> None:
    assert format_path(path) == text


def test_a_value_is_quoted_short_and_harmless() -> None:
    assert quote_value({"a": [1, "x"]}) == '{"a":[1,"x"]}'
    assert quote_value("x" * 100) == '"' + "x" * 59 + "…"
    assert quote_value("\ud800\x07") == '"?\\u0007"'
    assert quote_value(object()) == "a object"
    assert describe_type({}) == "an object"
