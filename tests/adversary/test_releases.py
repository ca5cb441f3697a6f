"""A call is recognised after a release, a purge and a hook, and answers only its own caller."""

from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any
from uuid import uuid4

import pytest
from msgspec import structs
from pydantic import BaseModel, Field, SecretStr

from handrail import Executor, Tool, ToolCall, ToolError, tool
from handrail.execute import Limits, MemoryLedger
from tests.execute.helpers import ALLOWED, at, code_of

paid: list[Any] = []


@pytest.fixture(autouse=True)
def _forget_payments() -> None:
    paid.clear()


class Receiver(BaseModel):
    """Who gets the money."""

    iban: str


class NamedReceiver(BaseModel):
    """The same, one release later."""

    iban: str
    name: str = ""
    trace_id: str = Field(default_factory=lambda: uuid4().hex)


def build_first() -> Tool[..., Any]:
    @tool
    async def pay(invoice: str, amount: int) -> str:
        """Pay."""
        paid.append(invoice)
        return "paid"

    return pay


def build_with_option() -> Tool[..., Any]:
    @tool
    async def pay(invoice: str, amount: int, currency: str = "EUR") -> str:
        """Pay."""
        paid.append(invoice)
        return "paid"

    return pay


def build_with_other_default() -> Tool[..., Any]:
    @tool
    async def pay(invoice: str, amount: int, currency: str = "USD") -> str:
        """Pay."""
        paid.append(invoice)
        return "paid"

    return pay


def build_with_float() -> Tool[..., Any]:
    @tool
    async def pay(invoice: str, amount: float) -> str:
        """Pay."""
        paid.append(invoice)
        return "paid"

    return pay


def build_with_decimal() -> Tool[..., Any]:
    @tool
    async def pay(invoice: str, amount: Decimal) -> str:
        """Pay."""
        paid.append(invoice)
        return "paid"

    return pay


def build_with_factory() -> Tool[..., Any]:
    @tool
    async def pay(
        invoice: str, amount: int, reference: Annotated[str, Field(default_factory=lambda: uuid4().hex)]
    ) -> str:
        """Pay."""
        paid.append(invoice)
        return "paid"

    return pay


def build_with_requirement() -> Tool[..., Any]:
    @tool
    async def pay(invoice: str, amount: int, account: str) -> str:
        """Pay."""
        paid.append(invoice)
        return "paid"

    return pay


RELEASES = [build_with_option, build_with_other_default, build_with_float, build_with_decimal, build_with_factory]
TEXT = '{"invoice": "R-1", "amount": 500}'


def pay(call_id: str, text: str = TEXT) -> ToolCall:
    return ToolCall(id=call_id, name="pay", arguments_json=text)


@pytest.mark.parametrize("build", RELEASES)
@pytest.mark.parametrize("is_reversed", [False, True])
async def test_a_release_recognises_what_another_did(build: Callable[[], Any], is_reversed: bool) -> None:
    ledger = MemoryLedger()
    releases = [build_first(), build()]
    old, new = (
        Executor([pay], policy=ALLOWED, ledger=ledger) for pay in (reversed(releases) if is_reversed else releases)
    )
    assert (await old.run(pay("c-1"), at(customer_id="ann"))).ok

    same_call = await new.run(pay("c-1"), at(customer_id="ann", turn=2))
    same_turn = await new.run(pay("c-2"), at(customer_id="ann"))
    later = await new.run(pay("c-3"), at(customer_id="ann", turn=2))

    assert (same_call.output, same_call.origin) == ("paid", "replayed")
    assert (same_turn.output, same_turn.origin) == ("paid", "replayed")
    assert code_of(later) == "approval_required"
    assert paid == ["R-1"]


async def test_a_default_that_was_sent_is_recognised_by_the_release_in_which_it_is_none() -> None:
    ledger, text = MemoryLedger(), '{"invoice": "R-1", "amount": 500, "currency": "EUR"}'
    old = Executor([build_with_option()], policy=ALLOWED, ledger=ledger)
    new = Executor([build_with_other_default()], policy=ALLOWED, ledger=ledger)
    await old.run(pay("c-1", text), at(customer_id="ann"))

    assert (await new.run(pay("c-2", text), at(customer_id="ann"))).origin == "replayed"
    assert code_of(await new.run(pay("c-3", text), at(customer_id="ann", turn=2))) == "approval_required"
    assert paid == ["R-1"]


async def test_optional_values_are_left_out_at_every_depth_and_made_ones_never_count() -> None:
    ledger, text = MemoryLedger(), '{"receiver": {"iban": "DE1"}, "others": [{"iban": "DE2"}]}'

    def build(kind: type[Receiver] | type[NamedReceiver]) -> Executor:
        async def send(receiver: Any, others: Any) -> str:
            """Send money."""
            paid.append(text)
            return "sent"

        send.__annotations__ |= {"receiver": kind, "others": list[kind]}
        return Executor([tool(send)], policy=ALLOWED, ledger=ledger)

    await build(Receiver).run(ToolCall(id="c-1", name="send", arguments_json=text), at(customer_id="ann"))
    new = build(NamedReceiver)
    for call_id in ("c-2", "c-3"):
        result = await new.run(ToolCall(id=call_id, name="send", arguments_json=text), at(customer_id="ann"))
        assert result.origin == "replayed"
    assert len(paid) == 1


async def test_a_value_that_is_no_default_is_another_effect() -> None:
    executor = Executor([build_with_option()], policy=ALLOWED)
    await executor.run(pay("c-1"), at())
    await executor.run(pay("c-2", '{"invoice": "R-1", "amount": 500, "currency": "USD"}'), at())
    await executor.run(pay("c-3", '{"invoice": "R-1", "amount": 501}'), at())

    assert len(paid) == 3


async def test_true_is_not_one_and_a_text_is_no_number() -> None:
    async def pay(amount: Any) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    executor = Executor([tool(pay)], policy=ALLOWED)
    for call_id, text in enumerate(("1", "1.0", "1e0", "true", '"1"')):
        call = ToolCall(id=f"c-{call_id}", name="pay", arguments_json=f'{{"amount": {text}}}')
        await executor.run(call, at())

    assert paid == [1, True, "1"]


async def test_a_secret_counts_by_its_value_whatever_the_spelling() -> None:
    @tool
    async def charge(card: SecretStr, amount: int) -> str:
        """Charge."""
        paid.append(card.get_secret_value())
        return "charged"

    executor = Executor([charge], policy=ALLOWED)
    spellings = ('{"card": "41", "amount": 5}', '{"amount":5,"card":"41"}', '{ "amount": 5.0, "card": "4\\u0031" }')
    for call_id, text in enumerate((*spellings, '{"card": "42", "amount": 5}')):
        assert (await executor.run(ToolCall(id=f"c-{call_id}", name="charge", arguments_json=text), at())).ok

    assert paid == ["41", "42"]


# A refusal leaves only after the id was looked up.


@pytest.mark.parametrize("tools", [[build_with_requirement], []])
async def test_a_call_that_was_done_gets_its_result_from_a_release_that_could_not_run_it(tools: list[Any]) -> None:
    ledger = MemoryLedger()
    await Executor([build_first()], policy=ALLOWED, ledger=ledger).run(pay("c-1"), at(customer_id="ann"))
    release = Executor([build() for build in tools], policy=ALLOWED if tools else None, ledger=ledger)

    result = await release.run(pay("c-1"), at(customer_id="ann"))
    found = await release.look_up(pay("c-1"), at(customer_id="ann"))
    other = await release.run(pay("c-2"), at(customer_id="ann"))

    assert (result.output, result.origin) == ("paid", "replayed")
    assert (found.output if found else None) == "paid"
    assert code_of(other) == ("invalid_arguments" if tools else "tool_not_found")


@pytest.mark.parametrize("tools", [[build_with_requirement], []])
async def test_a_call_in_doubt_stays_one_in_a_release_that_could_not_run_it(tools: list[Any]) -> None:
    ledger = MemoryLedger()

    async def fail(invoice: str, amount: int) -> str:
        """Pay."""
        paid.append(invoice)
        raise RuntimeError("the connection is gone")

    old = Executor([tool(name="pay")(fail)], policy=ALLOWED, ledger=ledger)
    assert code_of(await old.run(pay("c-1"), at())) == "outcome_unknown"
    release = Executor([build() for build in tools], policy=ALLOWED if tools else None, ledger=ledger)

    assert code_of(await release.run(pay("c-1"), at())) == "outcome_unknown"


async def test_a_refusal_of_a_hook_or_for_its_length_does_not_hide_what_was_done() -> None:
    class Refuse:
        def before(self, call: ToolCall, tool: Any, context: Any) -> ToolCall:
            raise ToolError("not today")

    ledger = MemoryLedger()
    await Executor([build_first()], policy=ALLOWED, ledger=ledger).run(pay("c-1"), at())
    refusing = Executor([build_first()], policy=ALLOWED, ledger=ledger, hooks=[Refuse()])
    short = Executor([build_first()], policy=ALLOWED, ledger=ledger, limits=Limits(max_argument_chars=5))

    for executor, code in ((refusing, "refused_by_hook"), (short, "invalid_arguments")):
        assert (await executor.run(pay("c-1"), at())).output == "paid"
        assert code_of(await executor.run(pay("c-2"), at())) == code


async def test_a_ledger_that_cannot_be_read_does_not_let_a_refusal_say_that_nothing_was_done() -> None:
    class Away(MemoryLedger):
        async def recall(self, **given: Any) -> Any:
            raise OSError("no route to host")

    result = await Executor([], ledger=Away()).run(pay("c-1"), at())

    assert code_of(result) == "unavailable"
    assert "Nothing was done" not in result.for_model()


async def test_what_the_model_sent_is_what_counts_before_any_hook() -> None:
    stamps = iter(range(9))

    class Stamp:
        def before(self, call: ToolCall, tool: Any, context: Any) -> ToolCall:
            return structs.replace(call, arguments_json=f'{{"invoice": "R-{next(stamps)}", "amount": 5}}')

    executor = Executor([build_first()], policy=ALLOWED, hooks=[Stamp()])
    first = await executor.run(pay("c-1"), at())
    again = await executor.run(pay("c-1"), at())
    other = await executor.run(pay("c-1", '{"invoice": "R-9", "amount": 5}'), at())

    assert (first.output, again.origin, code_of(other)) == ("paid", "replayed", "duplicate_call")
    assert paid == ["R-0"]


# Whose it is, is part of it.


async def test_another_customer_gets_neither_a_receipt_nor_a_remembered_read() -> None:
    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "Ann has 5 EUR"

    executor = Executor([build_first(), look], policy=ALLOWED)
    read = ToolCall(id="c-2", name="look", arguments_json="{}")
    await executor.run_all([pay("c-1"), read], at(customer_id="ann"))

    for call in (pay("c-1"), read):
        result = await executor.run(call, at(customer_id="bob"))
        assert (code_of(result), result.output) == ("duplicate_call", None)
        assert "5 EUR" not in result.for_model()
        assert "paid" not in result.for_model()
    found = await executor.look_up(pay("c-1"), at(customer_id="bob"))
    assert found is not None
    assert (code_of(found), found.output) == ("duplicate_call", None)
    assert paid == ["R-1"]


async def test_a_session_is_never_a_customer_of_the_same_name() -> None:
    executor = Executor([build_first()], policy=ALLOWED)
    await executor.run(pay("c-1"), at("ann"))
    result = await executor.run(pay("c-2"), at("s-2", customer_id="ann"))

    assert (result.output, result.origin, len(paid)) == ("paid", "run", 2)
