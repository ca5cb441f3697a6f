"""Figures of phone calls: how long results take to be heard, and what was not answered."""

from prometheus_client.parser import text_string_to_metric_families

from handrail.core.events import PhoneCallEnded, ResultSpoken
from handrail.monitor import Metrics


def test_phone_calls_are_counted_per_tool_and_tenant() -> None:
    metrics = Metrics(buckets=[1.0, 2.0])
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

    [voice] = metrics.voices()
    assert (voice.tool, voice.tenant, voice.count, voice.seconds) == ("lookup", "acme", 3, 11.0)
    assert voice.histogram == ((1.0, 1), (2.0, 2), (float("inf"), 3))
    [calls] = metrics.phone_calls()
    assert dict(calls.calls) == {"caller": 2, "transferred": 1}
    assert (calls.unanswered, calls.never_spoken, calls.cut_off, calls.tokens) == (0, 0, 1, {"total_tokens": 300})
    families = {one.name: one for one in text_string_to_metric_families(metrics.prometheus())}
    assert {"handrail_time_to_voice_seconds", "handrail_phone_unanswered", "handrail_phone_never_spoken"} <= set(
        families
    )
    assert [sample.value for sample in families["handrail_phone_tokens"].samples] == [300.0]


def test_without_phone_calls_nothing_is_said_of_them() -> None:
    assert "phone" not in Metrics().prometheus()
    assert "voice" not in Metrics().prometheus()
