"""What an MCP server asks a person in the middle of a call, and `ask_for_approval`, which makes an approval of it."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from handrail.authorize.approvals import Approvals, new_token
from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.text import compact_json
from handrail.core.values import Approval


class Elicitation(Struct, frozen=True, kw_only=True):
    """A question of an MCP server to a person, in the middle of a call. Its texts are the server's own."""

    server: str
    """The name of the `McpServer`."""
    message: str
    schema: Mapping[str, Any] | None = None
    """The fields that are asked for, as a JSON Schema; None if the person is to visit a URL."""
    url: str | None = None
    """The https address that the person is to visit."""
    context: ToolContext[Any] | None = None
    """Of the call that it belongs to; None where that is not certain, because several calls are running."""


ElicitationAnswer = Mapping[str, Any] | bool | None
"""The fields; True for a question without any and for a URL that was visited; False or None to decline."""
OnElicitation = Callable[[Elicitation], ElicitationAnswer | Awaitable[ElicitationAnswer]]


def ask_for_approval(
    approvals: Approvals, *, by: Literal["customer", "operator"] = "operator", timeout: float = 300.0
) -> OnElicitation:
    """An `on_elicitation` that makes an approval of each question, and waits until somebody has decided it.

    Share the store with the executor: `Executor(approvals=approvals)`, or `store.approvals`. The fields that the server
    asks for are given with the yes: `approvals.approve(token, …, arguments={"guests": 2})`. A question that belongs to
    no certain call, or that nobody decides in time, is declined. Give the server a `timeout` for a person to decide in.
    """

    async def ask(question: Elicitation) -> ElicitationAnswer:
        context = question.context
        if context is None:
            log.warning("a question of the MCP server %s belongs to no certain call: declined", question.server)
            return None
        now = time.time()
        shown = {"message": question.message, "url": question.url, "schema": question.schema}
        arguments = {name: value for name, value in shown.items() if value is not None}
        call_id = context.call.id if context.call is not None else None
        digested = compact_json([question.server, call_id, arguments]).encode("utf-8", "replace")
        asked = await approvals.ask(
            Approval(
                token=new_token(),
                tool=f"{question.server}__elicitation",
                digest=f"elicitation:{hashlib.sha256(digested).hexdigest()}",
                session_id=context.session_id,
                tenant_id=context.tenant_id,
                customer_id=context.customer_id,
                by=by,
                turn=context.turn,
                wakes=context.wakes,
                arguments=arguments,
                question=f"The MCP server {question.server} asks: {question.message}",
                created_at=now,
                expires_at=now + timeout,
                call_id=call_id,
            )
        )
        try:
            decided = await approvals.wait(asked.token, timeout)
        except BaseException:
            await asyncio.shield(approvals.withdraw(asked.token))
            raise
        if decided.state != "approved" or not await approvals.consume(decided.token, now=time.time(), call_id=call_id):
            return None
        return True if decided.changed_arguments is None else decided.changed_arguments

    return ask
