"""Runs tool calls: authorised, scheduled, cancellable, at most once, and audited."""

from typing import TYPE_CHECKING

from handrail.core.lazy_loading import build_getattr

if TYPE_CHECKING:
    from handrail.execute.budget import Budget
    from handrail.execute.delivery import Delivery, MemoryDelivery
    from handrail.execute.executor import Executor
    from handrail.execute.executor_parts import Store
    from handrail.execute.ledger import Entry, Ledger, MemoryLedger, Recalled
    from handrail.execute.limits import CircuitBreaker, Limits, RateLimit, RetryPolicy, Timeouts
    from handrail.execute.loop import LoopResult, run_until_done, run_until_done_sync
    from handrail.execute.stored_calls import MemoryWork, Work, WorkItem
    from handrail.execute.worker import Worker

__all__ = [
    "Budget",
    "CircuitBreaker",
    "Delivery",
    "Entry",
    "Executor",
    "Ledger",
    "Limits",
    "LoopResult",
    "MemoryDelivery",
    "MemoryLedger",
    "MemoryWork",
    "RateLimit",
    "Recalled",
    "RetryPolicy",
    "Store",
    "Timeouts",
    "Work",
    "WorkItem",
    "Worker",
    "run_until_done",
    "run_until_done_sync",
]

# Loaded on first use, so that importing one module of this package does not import the others.
_ON_FIRST_USE = {
    "Budget": "handrail.execute.budget",
    "CircuitBreaker": "handrail.execute.limits",
    "Delivery": "handrail.execute.delivery",
    "Entry": "handrail.execute.ledger",
    "Executor": "handrail.execute.executor",
    "Ledger": "handrail.execute.ledger",
    "Limits": "handrail.execute.limits",
    "LoopResult": "handrail.execute.loop",
    "MemoryDelivery": "handrail.execute.delivery",
    "MemoryLedger": "handrail.execute.ledger",
    "MemoryWork": "handrail.execute.stored_calls",
    "RateLimit": "handrail.execute.limits",
    "Recalled": "handrail.execute.ledger",
    "RetryPolicy": "handrail.execute.limits",
    "Store": "handrail.execute.executor_parts",
    "Timeouts": "handrail.execute.limits",
    "Work": "handrail.execute.stored_calls",
    "WorkItem": "handrail.execute.stored_calls",
    "Worker": "handrail.execute.worker",
    "run_until_done": "handrail.execute.loop",
    "run_until_done_sync": "handrail.execute.loop",
}

__getattr__ = build_getattr(__name__, _ON_FIRST_USE)
