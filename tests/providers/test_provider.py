"""The values of the protocol: usage adds up, prices are prices, a history keeps what a model was shown."""

import msgspec
import pytest

from handrail import Failure, ToolResult
from handrail.errors import ConfigError
from handrail.providers import ModelResponse, Prices, ToolMessage, Usage
from handrail.providers.messages import to_history_result


def test_usage_adds_up_and_cost_is_known_where_it_is_known() -> None:
    one, other = Usage(input=1, output=2, cached=1, cost=0.5), Usage(input=10, output=20)

    assert one + other == Usage(input=11, output=22, cached=1, cost=0.5)
    assert (one + one).cost == 1.0
    assert (other + other).cost is None


def test_input_from_a_cache_costs_what_other_input_costs_unless_it_is_said() -> None:
    usage = Usage(input=1_000_000, output=1_000_000, cached=500_000)

    assert Prices(input=2, output=10).apply(usage).cost == 12.0
    assert Prices(input=2, output=10, cached=0).apply(usage).cost == 11.0


@pytest.mark.parametrize("prices", [(-1, 0, None), (0, -1, None), (0, 0, -1)])
def test_a_price_is_not_negative(prices: tuple[float, float, float | None]) -> None:
    with pytest.raises(ConfigError, match="at least 0"):
        Prices(input=prices[0], output=prices[1], cached=prices[2])


def test_a_history_keeps_what_a_model_was_shown_and_no_more() -> None:
    full = ToolResult(output={"a": 1}, metadata={"x": 1}, context=object(), call_id="c1", tool_name="t", duration_ms=3)
    failed = ToolResult(error=Failure(code="x", message="half \ud83d"), context=object(), call_id="c2", tool_name="t")

    kept = ToolMessage(results=(to_history_result(full), to_history_result(failed)))

    assert [result.for_model() for result in kept.results] == [full.for_model(), failed.for_model()]
    assert msgspec.json.decode(msgspec.json.encode(kept), type=ToolMessage) == kept


def test_a_reply_is_the_message_that_it_adds() -> None:
    assert ModelResponse(text="Hi.").message().text == "Hi."
