"""The duration of calls as an OpenTelemetry histogram."""

from typing import TYPE_CHECKING, Any

from handrail.core.events import CallFinished, CallStarted, Event
from handrail.core.values import ToolCall
from handrail.errors import MissingExtraError
from handrail.monitor import genai
from handrail.monitor.calls import CallIdentity
from handrail.monitor.metrics import DURATION_BUCKETS, LabelLimit, find_tool_label

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


class Meters:
    """Records the duration of every call whose handler ran. Needs the extra `otel`.

    Without a `meter_provider` the global one is used. Tools above `max_tools` and tenants above `max_tenants` are
    recorded as `other`.
    """

    def __init__(
        self, meter_provider: "MeterProvider | None" = None, *, max_tools: int = 100, max_tenants: int = 50
    ) -> None:
        try:
            from opentelemetry.metrics import get_meter  # noqa: PLC0415  # optional
        except ModuleNotFoundError as error:
            raise MissingExtraError("opentelemetry-api", extra="otel") from error
        self._histogram = get_meter("handrail", meter_provider=meter_provider).create_histogram(
            genai.DURATION,
            unit=genai.DURATION_UNIT,
            description="The duration of a call, from its arrival to its result.",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS,
        )
        self._started: dict[CallIdentity, ToolCall] = {}
        self._tools = LabelLimit(max_tools)
        self._tenants = LabelLimit(max_tenants)
        self._codes = LabelLimit(50)

    def __call__(self, event: Event) -> None:
        """Record a call when it finishes."""
        if isinstance(event, CallStarted):
            self._started[event.session_id, id(event.call)] = event.call
        if not isinstance(event, CallFinished):
            return
        has_started = self._started.pop((event.session_id, id(event.call)), None) is not None
        if not has_started and not event.result.ok:
            return
        attributes: dict[str, Any] = {
            genai.OPERATION_NAME: genai.OPERATION,
            genai.TOOL_NAME: self._tools(find_tool_label(event.call, event.result, self._tools)),
        }
        if event.tenant_id is not None:
            attributes[genai.TENANT_ID] = self._tenants(event.tenant_id)
        if event.result.error is not None:
            attributes[genai.ERROR_TYPE] = self._codes(event.result.error.code)
        self._histogram.record(event.result.duration_ms / 1000, attributes)
