"""What an executor uses of a store."""

from typing import Protocol

from handrail.authorize.approvals import Approvals
from handrail.core.events import Listener
from handrail.execute.ledger import Ledger


class Store(Protocol):
    """Keeps the ledger and the approvals, and audits: what `handrail.store.open_store` yields is one."""

    @property
    def ledger(self) -> Ledger: ...
    @property
    def approvals(self) -> Approvals: ...
    @property
    def audit(self) -> Listener: ...
