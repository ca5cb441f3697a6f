"""Listeners for an executor's events: log, metrics and traces. `Executor(…, listeners=[Log(), metrics])`."""

from handrail.monitor.log import Log
from handrail.monitor.log_record import JsonFormatter
from handrail.monitor.meters import Meters
from handrail.monitor.metrics import Metrics
from handrail.monitor.traces import Traces

__all__ = ["JsonFormatter", "Log", "Meters", "Metrics", "Traces"]
