"""Figures of phone calls: how long results take to be heard, and what was not answered."""

from handrail.phone import PhoneCallEnded, ResultSpoken
from tests.monitor.conftest import create_metrics


def test_phone_calls_are_counted_per_tool_and_tenant() -> None:
    metrics = create_metrics(buckets=[1.0, 2.0])
    for seconds in (0.5, 1.5, 9.0):
        metrics(
            ResultSpoken(at=0.0, session_id="s", tenant_id="acme", call_id="c", tool_name="lookup", seconds=seconds)
        )
    for reason, cut_off in (("caller", 1), ("transferred", 0), ("caller", 0)):
        metrics(
            PhoneCallEnded(
                at=0.0,
                session_id="s",
                tenant_id="acme",
                reason=reason,
                seconds=60.0,
                cut_off=cut_off,
                usage={"total_tokens": 100},
            )
        )

    read = metrics.registry.get_sample_value
    who, tenant = {"tool": "lookup", "tenant": "acme"}, {"tenant": "acme"}
    name = "handrail_time_to_voice_seconds"
    assert (read(f"{name}_count", who), read(f"{name}_sum", who)) == (3, 11.0)
    assert [read(f"{name}_bucket", {**who, "le": bound}) for bound in ("1.0", "2.0", "+Inf")] == [1, 2, 3]
    assert read("handrail_phone_calls_total", {**tenant, "reason": "caller"}) == 2
    assert read("handrail_phone_calls_total", {**tenant, "reason": "transferred"}) == 1
    assert read("handrail_phone_tokens_total", {**tenant, "kind": "total_tokens"}) == 300
    assert [read(f"handrail_phone_{name}_total", tenant) for name in ("unanswered", "never_spoken", "cut_off")] == [
        0, 0, 1
    ]  # fmt: skip
