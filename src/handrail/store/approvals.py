"""Approvals in SQL: requested in one process, decided in another, used once."""

import time
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Unpack

from msgspec import structs
from sqlalchemy import Executable
from sqlalchemy.exc import IntegrityError

from handrail.authorize.approvals import (
    ApprovalEvents,
    ApprovalFilters,
    ApprovalSubject,
    check_limit,
    decide_approval,
    get_subject,
    history_position,
    is_denial_of,
    pending_position,
    read_filters,
    wait_for_decision,
)
from handrail.core.log import log
from handrail.core.redact import Redactor, is_longer
from handrail.core.secret_patterns import MAX_PIECE
from handrail.core.values import Approval
from handrail.errors import StoreError
from handrail.execute.stored_calls import WorkItem, can_wake
from handrail.store.approval_statements import TIMES, ApprovalStatements, bind_subject
from handrail.store.database import Database, to_storable
from handrail.store.encryption import Cipher
from handrail.store.stored_calls import SqlWork
from handrail.store.tables import approvals as table
from handrail.store.transactions import Transaction

UNREADABLE = "[unreadable]"
"""The only argument of an approval in a list whose arguments are encrypted with a key that is not here."""


class SqlApprovals:
    """The approvals of all processes that share a database."""

    is_immediate: ClassVar[bool] = False

    def __init__(self, database: Database, *, redactor: Redactor, cipher: Cipher, work: SqlWork | None = None) -> None:
        self._work = work
        self.events = ApprovalEvents()
        self._database = database
        self._redactor = redactor
        self._cipher = cipher
        self._statements = ApprovalStatements(is_sqlite=database.is_sqlite)

    @property
    def awaits_plain_futures(self) -> bool:
        """Whether its methods wait for futures only: those of the thread that has the connection to SQLite."""
        return self._database.is_sqlite

    def is_in(self, database: Database) -> bool:
        """Whether these approvals are in this database."""
        return self._database is database or self._database.url == database.url

    def is_of(self, database: Database) -> bool:
        """Whether these approvals are of the store that has this database open."""
        return self._database is database

    async def ask(self, approval: Approval) -> Approval:
        """Save a request; return the equal one instead if it is open or approved and not used, or its denial."""
        statements, subject = self._statements, bind_subject(get_subject(approval))
        while True:
            found = await self._read(statements.find_answer, subject | {"of_call": approval.call_id})
            for known in found:
                if is_denial_of(known, approval) or known.state != "denied" or not approval.call_id:
                    return known
            for denied in found:  # The answer to another call.
                await self.withdraw(denied.token)
            if await self._write(statements.insert, self._values(approval)) == 1:
                self.events.emit_requested(approval)
                return approval
            # An equal one has expired, and stays as it is under its token; or another process was faster: find it.
            await self._write(statements.close_expired, subject)

    async def find(
        self, *, session_id: str, tool: str, digest: str, by: str, repeat: int, now: float
    ) -> Approval | None:
        """Find the approval of exactly this call that is neither expired nor used."""
        subject: ApprovalSubject = {
            "session_id": session_id,
            "tool": tool,
            "digest": digest,
            "by": by,
            "repeat": repeat,
        }
        found = await self._read(self._statements.find, bind_subject(subject) | {"now": now})
        return found[0] if found else None

    async def consume(self, token: str, *, now: float, call_id: str | None = None) -> bool:
        """Consume an approval for a call; return True to exactly one caller."""
        if await self._database.write(self._statements.consume, {"of_token": token, "now": now}) != 1:
            return False
        try:
            if (approval := await self.get(token)) is not None:
                self.events.emit_used(approval, call_id=call_id)
        except Exception:  # the approval is consumed already: its call must run
            log.exception("the use of an approval could not be audited")
        return True

    async def restore(self, token: str) -> None:
        """Make an approval usable again that was consumed for a call that did not run."""
        try:
            await self._database.write(self._statements.restore, {"of_token": token})
        except IntegrityError:
            log.warning("an approval was not restored: the same request is open again")

    async def withdraw(self, token: str) -> None:
        """Close a question that nobody needs an answer to any more."""
        await self._write(self._statements.withdraw, {"of_token": token})

    async def withdraw_pending(self, *, session_id: str, call_id: str) -> None:
        """Withdraw what is pending about a call; where the ledger is in the same database, a trigger does it."""
        await self._write(self._statements.withdraw_pending, {"of_session": session_id, "of_call": call_id})

    async def approve(
        self,
        token: str,
        *,
        by: Literal["customer", "operator"],
        who: str,
        reason: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> Approval:
        """Approve a call, optionally with changed arguments."""
        return await self._decide(token, by=by, who=who, state="approved", reason=reason, arguments=arguments)

    async def deny(self, token: str, *, by: Literal["customer", "operator"], who: str, reason: str = "") -> Approval:
        """Deny a call."""
        return await self._decide(token, by=by, who=who, state="denied", reason=reason, arguments=None)

    async def _decide(self, token: str, *, reason: str, **decision: Any) -> Approval:
        reason = to_storable(await self._redactor.text_aside(reason))  # A person may quote anything.
        while True:
            now = time.time()
            known = await self.get(token)
            after = decide_approval(known, now=now, reason=reason, **decision)
            if after is known:
                return after
            values = {
                "of_token": token,
                "now": now,
                "to_state": after.state,
                "to_who": after.who,
                "to_reason": after.reason,
                "to_arguments": self._cipher.encrypt(after.changed_arguments),
                "to_redacted": await self._redact_arguments(after.arguments),
                "to_seen": {path: to_storable(self._redactor.text(text)) for path, text in after.seen.items()} or None,
            }
            if await self._write_decision(after, values):
                self.events.emit_decided(after)
                return after
            # Another process decided first: look again, which says how.

    async def _redact_arguments(self, arguments: Mapping[str, Any]) -> Any:
        is_long = is_longer(arguments, MAX_PIECE)
        return await self._redactor.run_aside(lambda: self._redactor.arguments(arguments), is_long=is_long)

    async def _write_decision(self, decided: Approval, values: Mapping[str, Any]) -> bool:
        """Write a decision, and queue the durable calls that were parked for it: both or none."""
        if self._work is None or not can_wake(decided.by, decided.state):
            return await self._write(self._statements.decide, values) == 1
        work = self._work

        def decide(transaction: Transaction) -> list[WorkItem] | None:
            if transaction.execute(self._statements.decide, {"now": time.time(), **values}) != 1:
                return None
            return work.wake_within(transaction, decided.token)

        woken = await self._database.run(decide)
        if woken is None:
            return False
        await work.send_woken(woken)
        return True

    async def get(self, token: str) -> Approval | None:
        """Find an approval; its arguments are whole until it is decided, and redacted from then on."""
        found = await self._read(self._statements.get, {"of_token": token})
        return found[0] if found else None

    async def pending(
        self,
        *,
        session_id: str | None = None,
        tenant_id: str | None = None,
        limit: int = 100,
        after: Approval | None = None,
    ) -> list[Approval]:
        """List the open approvals, those first that expire first; `after` is the last one of the page before."""
        query = self._statements.build_pending(is_after=after is not None)
        if session_id is not None:
            query = query.where(table.c.session_id == session_id)
        if tenant_id is not None:
            query = query.where(table.c.tenant_id == tenant_id)
        values = {} if after is None else dict(zip(("after_time", "after_token"), pending_position(after), strict=True))
        found = await self._database.fetch(query.limit(check_limit(limit)), values | {"now": time.time()})
        return [self._show(row) for row in found]

    async def history(
        self, *, limit: int = 100, before: Approval | None = None, **filters: Unpack[ApprovalFilters]
    ) -> list[Approval]:
        """Return the newest approvals that match, whatever their state, oldest first.

        `before` is the first one of a page: the page of older ones is returned.
        """
        query = self._statements.build_history(is_before=before is not None)
        query = query.where(*(table.c[name] == value for name, value in read_filters(filters).items()))
        values = (
            {} if before is None else dict(zip(("before_time", "before_token"), history_position(before), strict=True))
        )
        found = await self._database.fetch(query.limit(check_limit(limit)), values | {"now": time.time()})
        return [self._show(row) for row in reversed(found)]

    async def wait(self, token: str, timeout: float) -> Approval:
        """Wait until an approval is decided, used or expired; it looks every half a second."""
        return await wait_for_decision(self.get, token, timeout=timeout, interval=0.5)

    async def _read(self, statement: Executable, values: Mapping[str, Any]) -> list[Approval]:
        found = await self._database.fetch(statement, {"now": time.time(), **values})
        return [self._approval(row) for row in found]

    async def _write(self, statement: Executable, values: Mapping[str, Any]) -> int:
        return await self._database.write(statement, {"now": time.time(), **values})

    def _values(self, approval: Approval) -> dict[str, Any]:
        values = structs.asdict(approval)
        values["given_created_at"], values["given_expires_at"] = values.pop("created_at"), values.pop("expires_at")
        return {
            **values,
            "question": to_storable(approval.question),
            "arguments": self._cipher.encrypt(approval.arguments),
            "seen": self._cipher.encrypt(approval.seen or None),
            "unsaid": list(approval.unsaid) or None,
        }

    def _show(self, row: tuple[Any, ...]) -> Approval:
        """An approval for a list: one that cannot be read does not hide the others, and says so."""
        try:
            return self._approval(row)
        except StoreError as error:
            return self._approval(row, unreadable={UNREADABLE: str(error)})

    def _approval(self, row: tuple[Any, ...], *, unreadable: Mapping[str, Any] | None = None) -> Approval:
        *columns, skew = row
        values: dict[str, Any] = dict(zip(table.columns.keys(), columns, strict=True))
        for name in _ONLY_STORED:
            del values[name]
        if skew:
            values |= {name: values[name] - skew for name in TIMES if values[name] is not None}
        for name in ("arguments", "changed_arguments", "seen"):
            if unreadable is None:
                values[name] = self._cipher.decrypt(values[name])
            elif values[name] is not None:
                values[name] = unreadable
        values["seen"] = values["seen"] or {}
        values["unsaid"] = tuple(values["unsaid"] or ())
        return Approval(**values)


_ONLY_STORED = ("closed_at", "erased_at", "erased_by")
