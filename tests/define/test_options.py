"""One set of options: whichever way a tool is written, it can have every option, and the option does the same."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from handrail import (
    Executor,
    LLMFunctionTool,
    Policy,
    Rule,
    Tool,
    ToolCall,
    ToolContext,
    ToolFlags,
    as_tool,
    build_tool,
    tool,
)
from handrail.define.options import ToolOptions
from handrail.errors import ToolDefinitionError

SCHEMA = {"type": "object", "properties": {"invoice": {"type": "string"}}, "required": ["invoice"]}


def deny(arguments: dict[str, Any], context: ToolContext[Any]) -> bool:
    return False


SAMPLES: dict[str, Any] = {
    "read_only": True,
    "concurrency_safe": True,
    "idempotent": True,
    "durable": True,
    "key": "invoice",
    "repeatable": True,
    "lock_key": ["invoice"],
    "permission_check": deny,
    "verify": deny,
    "timeout": 5,
    "on_interrupt": "cancel",
    "max_output_chars": 100,
    "max_media_bytes": 100,
    "cache_for": 60,
    "cache_public": True,
    "coerce": True,
    "inline": True,
    "strict": True,
    "examples": [{"invoice": "i-1"}],
    "tags": ["money"],
    "source": "elsewhere",
    "metadata": {"team": "billing"},
}
NORMALIZED = {
    "key": ("invoice",),
    "lock_key": ("invoice",),
    "tags": frozenset({"money"}),
    "examples": ({"invoice": "i-1"},),
}


async def pay(invoice: str) -> str:
    """Pay an invoice."""
    return f"paid {invoice}"


async def execute(payload: dict[str, Any], context: ToolContext[Any]) -> str:
    return await pay(payload["invoice"])


def pay_definition() -> dict[str, Any]:
    return {"name": "pay", "description": "Pay an invoice.", "input_schema": SCHEMA, "execute": execute}


class PayObject:
    """The members of a tool, and whatever else is said."""

    name, description, input_schema = "pay", "Pay an invoice.", SCHEMA

    def __init__(self, **options: Any) -> None:
        vars(self).update(options)

    async def execute(self, payload: dict[str, Any], context: ToolContext[Any]) -> str:
        return await pay(payload["invoice"])


def make_class(flags: ToolFlags, *, is_strict: bool = False) -> type[LLMFunctionTool[Any, None]]:
    class Pay(LLMFunctionTool[Any, None]):
        """Pay an invoice."""

        invoice: str
        model_tool_custom_name = "pay"
        model_tool_flags = flags
        model_tool_strict = is_strict

        async def model_tool_handler(self, context: Any) -> tuple[str, None]:
            return await pay(self.invoice), None

    return Pay


def build_class(*, strict: bool = False, **options: Any) -> Tool[..., Any]:
    return as_tool(make_class(ToolFlags(**options), is_strict=strict))


def declare(**options: Any) -> Tool[..., Any]:
    (known,) = Executor(declared={"pay": ToolFlags(**options)}).known_tools
    return known


DOORS: dict[str, Callable[..., Tool[..., Any]]] = {
    "@tool": lambda **options: tool(**options)(pay),
    "as_tool(function)": lambda **options: as_tool(pay, **options),
    "as_tool(tool)": lambda **options: as_tool(tool(pay), **options),
    "as_tool(mapping)": lambda **options: as_tool(pay_definition(), **options),
    "as_tool(class)": lambda **options: as_tool(make_class(ToolFlags()), **options),
    "as_tool(object)": lambda **options: as_tool(PayObject(), **options),
    "build_tool": lambda **options: build_tool({**pay_definition(), **options}),
    "an object": lambda **options: as_tool(PayObject(**options)),
    "a class": build_class,
    "declared": declare,
}


@pytest.mark.parametrize("option", ToolOptions.__annotations__)
@pytest.mark.parametrize("door", DOORS)
def test_every_way_to_write_a_tool_takes_every_option(door: str, option: str) -> None:
    assert SAMPLES.keys() == ToolOptions.__annotations__.keys()
    needed = {"read_only": True} if option.startswith("cache") else {}
    made = DOORS[door](**needed | {option: SAMPLES[option]})

    assert getattr(made, option) == NORMALIZED.get(option, SAMPLES[option])
    assert made.name == "pay"


@pytest.mark.parametrize("door", DOORS)
def test_a_misspelt_option_is_refused_with_the_right_one(door: str) -> None:
    make = DOORS[door]
    if door == "an object":  # It may have members of its own.
        assert make(idempotnt=True).idempotent is False
        return
    with pytest.raises(ToolDefinitionError, match=r"idempotnt.*[`']idempotent"):
        make(idempotnt=True)


@pytest.mark.parametrize(
    "source", [pay_definition() | {"is_read_only": lambda: True}, PayObject(is_read_only=lambda: True)]
)
def test_an_option_comes_before_what_the_source_says_of_itself(source: Any) -> None:
    assert as_tool(source).read_only is True
    assert as_tool(source, read_only=False).read_only is False
    assert as_tool(source, name="pay_again", description="Pay.").name == "pay_again"


def test_an_option_replaces_the_flag_of_a_class_and_the_class_keeps_it() -> None:
    reading = make_class(ToolFlags(read_only=True, timeout=5))

    assert (as_tool(reading, read_only=False).read_only, as_tool(reading, read_only=False).timeout) == (False, 5)
    assert as_tool(reading).read_only is True


def test_a_tool_that_becomes_consequential_validates_like_one() -> None:
    @tool(read_only=True)
    async def count(number: int) -> int:
        """Count."""
        return number

    assert count.parse('{"number": "5"}') == {"number": 5}
    with pytest.raises(ValueError, match="integer"):
        as_tool(count, read_only=False).parse('{"number": "5"}')


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"read_only": True}, r"model_tool_flags must be ToolFlags\(…\), not {'read_only': True}"),
        (ToolFlags(strict=True), "set model_tool_strict, not strict in model_tool_flags"),
    ],
)
def test_wrong_flags_of_a_class_are_refused_where_it_is_defined(flags: Any, message: str) -> None:
    with pytest.raises(ToolDefinitionError, match=message):
        make_class(flags)


def test_flags_are_values() -> None:
    flags = ToolFlags(key=["invoice"], tags=["money"], metadata={"team": "billing"})

    assert flags == ToolFlags(key="invoice", tags={"money"}, metadata={"team": "billing"})
    assert flags != ToolFlags(key="invoice")
    assert {flags: 1}[ToolFlags(key=("invoice",), tags=("money",), metadata={"team": "billing"})] == 1
    assert repr(ToolFlags(key="invoice", read_only=True)) == "ToolFlags(key=('invoice',), read_only=True)"
    with pytest.raises(AttributeError):
        flags.read_only = True  # type: ignore[attr-defined]
    for wrong in ({"name": "pay"}, {"description": "Pay."}):
        with pytest.raises(ToolDefinitionError, match="ToolFlags have no"):
            ToolFlags(**wrong)  # type: ignore[misc]


@pytest.mark.parametrize("by_option", [False, True])
async def test_a_class_has_a_key_a_check_and_a_verification(by_option: bool) -> None:
    paid: list[str] = []

    def check(arguments: Mapping[str, Any], context: ToolContext[Any]) -> bool:
        return arguments["invoice"] != "secret"

    def find_payment(arguments: Mapping[str, Any], context: ToolContext[Any]) -> bool:
        return arguments["invoice"] in paid

    class Pay(LLMFunctionTool[Any, None]):
        """Pay an invoice."""

        invoice: str
        amount: int = 1

        async def model_tool_handler(self, context: Any) -> tuple[str, None]:
            paid.append(self.invoice)
            if self.invoice == "crash":
                raise RuntimeError("the line went dead")
            return "paid", None

    options: Any = {"key": "invoice", "permission_check": check, "verify": find_payment}
    if by_option:
        made = as_tool(Pay, **options)
    else:
        Pay.model_tool_flags = ToolFlags(**options)
        made = as_tool(Pay)
    executor = Executor([made], policy=Policy([Rule.allow("*")]))

    async def run(id: str, arguments: str) -> str:
        result = await executor.run(
            ToolCall(id=id, name="Pay", arguments_json=arguments), ToolContext(session_id="s-1", customer_id="c-1")
        )
        return result.error.code if result.error else str(result.output)

    assert await run("1", '{"invoice": "i-1"}') == "paid"
    assert await run("2", '{"invoice": "i-1", "amount": 2}') == "duplicate_call"  # The same payment.
    assert await run("3", '{"invoice": "secret"}') == "permission_denied"
    assert await run("4", '{"invoice": "crash"}') == "`Pay` took effect."
    assert paid == ["i-1", "crash"]


def test_a_changed_copy_of_a_tool_keeps_its_options() -> None:
    made = as_tool(pay, key="invoice", timeout=5)

    assert (replace(made, name="pay_now").key, as_tool(made, name="pay_now").timeout) == (("invoice",), 5)
