"""How the public API looks to a type checker. Nobody runs this; tests/repository/test_types.py checks it."""

from typing import Any, Literal, assert_type

from handrail import (
    Control,
    Decision,
    Failure,
    LLMFunctionTool,
    MediaPart,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolFlags,
    ToolLike,
    ToolNotFoundError,
    ToolResult,
    as_tool,
    build_tool,
    tool,
)


def the_harness_sees_an_inferred_type(names: list[str]) -> None:
    assert_type(max(names), str)
    assert_type(max(names), int)  # E: reportAssertTypeFailure


class Bank:
    def __init__(self, owner: str) -> None:
        self.owner = owner

    @tool
    def close(self, account: str, *, force: bool = False) -> int:
        return len(account)

    @tool(read_only=True)
    async def balance(self, account: str) -> float:
        return 0.0

    @tool
    @staticmethod
    def hours(day: str) -> str:
        return day


@tool
def pay(invoice: str, amount: int = 1) -> bool:
    return bool(invoice) and amount > 0


@tool(read_only=True, timeout=5, key="invoice", tags=["money"], examples=[{"invoice": "i-1"}])
async def look(invoice: str, context: ToolContext[Bank]) -> str:
    assert_type(context.deps, Bank)
    assert_type(context.deps.owner, str)
    return invoice


def every_way_to_write_a_tool_has_the_same_options(source: object) -> None:
    assert_type(as_tool(source, key="invoice", timeout=5, name="pay"), Tool[..., Any])
    as_tool(source, timout=5)  # E: reportCallIssue
    as_tool(source, timeout="5")  # E: reportArgumentType
    assert_type(ToolFlags(key=["invoice"], read_only=True, lock_key=lambda arguments: arguments["invoice"]), ToolFlags)
    ToolFlags(red_only=True)  # E: reportCallIssue
    ToolFlags(read_only="yes")  # E: reportArgumentType
    tool(on_interrupt="stop")  # E: reportArgumentType


class Refund(LLMFunctionTool[Bank, None]):
    order: str

    model_tool_flags = ToolFlags(key="order", idempotent=True)

    async def model_tool_handler(self, context: Bank) -> tuple[str, None]:
        return context.owner, None


# A tool is called like the function that it was made from.


def a_tool_keeps_the_signature_of_its_function(context: ToolContext[Bank]) -> None:
    assert_type(pay("i-1"), bool)
    assert_type(pay(invoice="i-1", amount=2), bool)
    pay()  # E: reportCallIssue
    pay(5)  # E: reportArgumentType
    pay("i-1", amount="much")  # E: reportArgumentType
    pay("i-1", 2, 3)  # E: reportCallIssue
    pay("i-1", currency="EUR")  # E: reportCallIssue


async def an_async_tool_is_awaited(context: ToolContext[Bank]) -> None:
    assert_type(await look("i-1", context), str)
    await look("i-1")  # E: reportCallIssue
    await look("i-1", ToolContext(session_id="s-1", deps=5))  # E: reportArgumentType


async def a_method_taken_from_an_instance_has_its_self() -> None:
    bank = Bank("Ann")
    assert_type(bank.close("a"), int)
    assert_type(bank.close("a", force=True), int)
    assert_type(await bank.balance("a"), float)
    assert_type(Bank.hours("Monday"), str)
    assert_type(bank.hours("Monday"), str)
    bank.close()  # E: reportCallIssue
    bank.close(5)  # E: reportArgumentType
    bank.close("a", True)  # E: reportCallIssue
    bank.balance(bank, "a")  # E: reportCallIssue


def options_are_checked() -> None:
    tool(readonly=True)  # E: reportCallIssue
    tool(read_only="yes")  # E: reportArgumentType
    tool(on_interrupt="maybe")  # E: reportArgumentType


async def a_tool_answers_with_a_result(context: ToolContext[Bank]) -> None:
    assert_type(await pay.execute({"invoice": "i-1"}, context), ToolResult)
    assert_type(await pay.check_permissions('{"invoice": "i-1"}', context), None)
    assert_type(pay.name, str)
    assert_type(pay.id, str)
    assert_type(pay.consequential, bool)
    assert_type(pay.is_read_only(), bool)


def other_ways_to_make_a_tool(thing: object) -> ToolLike:
    assert_type(as_tool(thing), Tool[..., Any])
    assert_type(build_tool({"name": "x"}), Tool[..., Any])
    like: ToolLike = pay
    return like


class Whole:
    name = "whole"
    description = "Has every member of the protocol."
    input_schema: dict[str, Any] = {}  # noqa: RUF012

    async def execute(self, payload: dict[str, Any], context: ToolContext[Any]) -> ToolResult:
        return ToolResult(output=payload)

    async def check_permissions(self, payload: dict[str, Any], context: ToolContext[Any]) -> None: ...

    def is_read_only(self) -> bool:
        return True

    def is_concurrency_safe(self) -> bool:
        return True


class Half:
    name = "half"


def an_object_has_to_have_every_member_of_the_protocol() -> None:
    whole: ToolLike = Whole()
    half: ToolLike = Half()  # E: reportAssignmentType
    assert_type((whole.name, half.name), tuple[str, str])


# Values


def a_result_takes_a_text_or_a_failure(result: ToolResult) -> None:
    ToolResult(error="boom")
    ToolResult(error=Failure(code="no_stock", message="None left."))
    ToolResult(error=5)  # E: reportArgumentType
    ToolResult(output="Drawn.", media=(MediaPart(mime_type="image/png", data=b""),))
    ToolResult(media="aGVsbG8=")  # E: reportArgumentType
    MediaPart(mime_type="image/png", data="aGVsbG8=")  # E: reportArgumentType
    ToolResult("text")  # E: reportCallIssue
    assert_type(result.error, Failure | None)
    print(result.error.code)  # E: reportOptionalMemberAccess
    if result.error:
        assert_type(result.error.code, str)
        assert_type(result.error.retryable, bool)
    assert_type(result.ok, bool)
    assert_type(result.for_model(), str)
    assert_type(result.control, Control | None)


def values_are_frozen_and_keyword_only(
    call: ToolCall, result: ToolResult, context: ToolContext[Bank], decision: Decision
) -> None:
    call.name = "other"  # E: reportAttributeAccessIssue
    result.output = 1  # E: reportAttributeAccessIssue
    context.turn = 2  # E: reportAttributeAccessIssue
    decision.action = "allow"  # E: reportAttributeAccessIssue
    pay.read_only = True  # E: reportAttributeAccessIssue
    ToolCall("call_1", "pay")  # E: reportCallIssue
    ToolContext("s-1")  # E: reportCallIssue
    ToolCall(id="call_1")  # E: reportCallIssue


def choices_are_closed(control: Control, decision: Decision) -> None:
    assert_type(control.mode, Literal["auto", "manual"] | None)
    assert_type(control.lifespan, Literal["response", "session"])
    assert_type(decision.action, Literal["allow", "ask", "deny"])
    Control(mode="sometimes")  # E: reportArgumentType
    Decision(action="perhaps")  # E: reportArgumentType


def a_context_is_typed_by_its_dependencies(plain: ToolContext, bank: Bank) -> None:
    assert_type(ToolContext(session_id="s-1", deps=bank), ToolContext[Bank])
    assert_type(ToolContext(session_id="s-1", deps=bank).deps, Bank)
    assert_type(plain.deps, Any)
    wider: ToolContext[object] = ToolContext(session_id="s-1", deps=bank)
    narrower: ToolContext[Bank] = ToolContext(session_id="s-1", deps=5)  # E: reportAssignmentType
    assert_type((wider.session_id, narrower.session_id), tuple[str, str])


def errors_have_an_audience(error: ToolError, missing: ToolNotFoundError) -> None:
    assert_type(error.code, str)
    assert_type(error.to_log_dict(), dict[str, Any])
    assert_type(missing.tool_name, str)
    ToolError("The account is closed.", code="closed", retryable=True)
    ToolError("The account is closed.", "closed")  # E: reportCallIssue
