"""How long tools take, as an OpenTelemetry metric."""

from typing import TYPE_CHECKING, Any

from handrail.core.events import CallFinished, CallStarted, Event
from handrail.errors import MissingExtraError
from handrail.monitor import genai
from handrail.monitor.calls import Calls
from handrail.monitor.labels import Labels, tool_of
from handrail.monitor.metrics import SECONDS

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


class Meters:
    """Records how long every call took that was not refused before its handler began; the extra `otel`.

    Without a provider the global one is used. Tools and tenants beyond the first are called `other`.
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
            description="How long a tool took, from the arrival of its call to its answer.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._begun: Calls[bool] = Calls()
        self._tools = Labels(max_tools)
        self._tenants = Labels(max_tenants)
        self._codes = Labels(50)

    def __call__(self, event: Event) -> None:
        """Record one call when it is over."""
        if isinstance(event, CallStarted):
            self._begun.put(event, True)
        if not isinstance(event, CallFinished):
            return
        began = self._begun.pop(event) is not None
        if not began and not event.result.ok:
            return
        attributes: dict[str, Any] = {
            genai.OPERATION_NAME: genai.OPERATION,
            genai.TOOL_NAME: self._tools(tool_of(event.call, event.result)),
        }
        if event.tenant_id is not None:
            attributes[genai.TENANT_ID] = self._tenants(event.tenant_id)
        if event.result.error is not None:
            attributes[genai.ERROR_TYPE] = self._codes(event.result.error.code)
        self._histogram.record(event.result.duration_ms / 1000, attributes)
