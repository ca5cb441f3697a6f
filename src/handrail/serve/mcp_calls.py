"""The MCP endpoint of the gateway: who may call, which call it is, and how long it waits for a person."""

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from msgspec import structs

from handrail.core.context import ToolContext
from handrail.core.events import Progress
from handrail.core.log import log
from handrail.core.text import normalize_numbers
from handrail.core.values import Approval, ToolCall, ToolResult
from handrail.errors import ApprovalError, ConfigError, StoreError, ToolError
from handrail.execute.executor import Executor
from handrail.serve.access import Access
from handrail.serve.tenant_pools import DISABLED, TenantPool, TenantPools
from handrail.sources.mcp.endpoint import McpRequest
from handrail.store import SqlStore
from handrail.store.api_keys import ApiKey

AsgiScope = MutableMapping[str, Any]
AsgiReceive = Callable[[], Awaitable[MutableMapping[str, Any]]]
AsgiSend = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_APPROVAL_WAIT: Final = 55.0
"""Many clients and proxies give up after a minute."""
_PROGRESS_SECONDS: Final = 5.0
_DELIVERY_SECONDS: Final = 5.0
"""How long an equal call waits until it is known whether the result of the one before has arrived."""
_NOT_FINAL: Final = frozenset(
    {
        *("approval_required", "in_progress", "outcome_unknown", "unavailable", "rate_limited", "cancelled"),
        *("invalid_arguments", "tool_args_parse_error", "tool_not_found"),
    }
)
"""Codes of results after which the same call, sent again, is still the same call."""
_CALL_KEY: Final = re.compile(r"call-([0-9a-f]{32})-(\d+)\Z")


class ResponseDelivery:
    """What is to be done when the response of one request has ended: whether it has reached its client is passed."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[bool], Awaitable[None]]] = []


class McpGate:
    """An ASGI app in front of the MCP endpoint: lets in the keys of callers, and sees when a response is delivered."""

    def __init__(self, app: Any, access: Access) -> None:
        self._app = app
        self._access = access
        self._tasks: set[asyncio.Future[None]] = set()

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        headers = read_headers(scope)
        try:
            key = await self._access.find_bearer(headers)
        except StoreError:
            log.exception("the key of a client cannot be looked up")
            await refuse(send, 503, "The gateway cannot reach its database. Try again later.")
            return
        if key is None:
            await refuse(send, 401, "A key is needed: send `Authorization: Bearer hrk_…`.")
            return
        if key.role != "caller":
            text = f"This key is for a person ({key.role}), and cannot call tools: create one with --role caller."
            await refuse(send, 403, text)
            return
        delivery = ResponseDelivery()
        inner = {**scope, "state": {**scope.get("state", {}), "key": key, "delivery": delivery}}
        watch = _ConnectionWatch(receive, send)
        try:
            await self._app(inner, watch.receive, watch.send)
        finally:
            is_delivered = watch.is_complete and not watch.is_lost
            for callback in delivery.callbacks:
                task = asyncio.ensure_future(callback(is_delivered))
                self._tasks.add(task)  # The request may be cancelled; this is not.
                task.add_done_callback(self._tasks.discard)
            await watch.aclose()


class _ConnectionWatch:
    """Passes the messages of one request on, and notices a client that leaves before it has the whole response."""

    def __init__(self, receive: AsgiReceive, send: AsgiSend) -> None:
        self._receive = receive
        self._send = send
        self._waiting: asyncio.Task[MutableMapping[str, Any]] | None = None
        """The next message after the body: that the client has left."""
        self.is_complete = False
        self.is_lost = False

    async def receive(self) -> MutableMapping[str, Any]:
        if self._waiting is not None:
            return await asyncio.shield(self._waiting)
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self._waiting = asyncio.ensure_future(self._wait_for_disconnect())
        elif message["type"] == "http.disconnect":
            self.is_lost = True
        return message

    async def _wait_for_disconnect(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        if not self.is_complete:
            self.is_lost = True
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        try:
            await self._send(message)
        except OSError:
            self.is_lost = True
            raise
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_complete = True

    async def aclose(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.gather(self._waiting, return_exceptions=True)


class GatewayCalls:
    """How the calls of MCP clients are told apart, and how long they wait for a person."""

    def __init__(
        self,
        store: SqlStore,
        *,
        approval_wait: float,
        deps: Any = None,
        person: str = "stdio",
        tenants: TenantPools | None = None,
    ) -> None:
        if not 0 <= approval_wait <= MAX_APPROVAL_WAIT:
            raise ConfigError(f"approval_wait must be 0 to {MAX_APPROVAL_WAIT:g} seconds, got {approval_wait!r}.")
        self._store = store
        self._approval_wait = approval_wait
        self._deps = deps
        self._person = person
        self._tenants = tenants
        self._running: set[asyncio.Task[Any]] = set()
        self._unsettled: dict[tuple[str, str], asyncio.Future[None]] = {}
        """Calls whose result is on its way: an equal one waits until it is known whether it has arrived."""

    async def make_context(self, request: McpRequest) -> ToolContext[Any]:
        """The context of a call: the session and the person are those of the key, whatever the client says."""
        key = request.state.get("key")
        if not isinstance(key, ApiKey):  # Over stdio there is one client, which this person started.
            return ToolContext(session_id=f"mcp-stdio-{self._person}", customer_id=self._person, deps=self._deps)
        pool = await self._find_pool(request)
        if pool is not None and not pool.is_enabled:
            raise ToolError(DISABLED, code="permission_denied")
        return ToolContext(
            session_id=f"mcp-{key.id}",
            tenant_id=key.tenant_id,
            customer_id=key.who,
            deps=self._deps,
            tenant=None if pool is None else pool.config,
            secrets={} if pool is None else pool.secrets,
        )

    async def find_executor(self, request: McpRequest, executor: Executor) -> Executor:
        """The executor of a key's tenant, with the tenant's own tools and rules; else the one of all."""
        pool = await self._find_pool(request)
        return executor if pool is None else pool.executor

    def find_tenant(self, request: McpRequest) -> str | None:
        """The tenant of a key, if its tools may be others than those of all."""
        key = request.state.get("key")
        return None if self._tenants is None or not isinstance(key, ApiKey) else key.tenant_id

    async def _find_pool(self, request: McpRequest) -> TenantPool | None:
        tenant_id = self.find_tenant(request)
        if self._tenants is None or tenant_id is None:
            return None
        try:
            return await self._tenants.get(tenant_id)
        except StoreError as error:  # Without its rules nothing may run.
            log.exception("the tools of the tenant %s cannot be built", tenant_id)
            raise ToolError("The configuration of this tenant cannot be used now.", code="unavailable") from error

    async def find_key(
        self, request: McpRequest, executor: Executor, call: ToolCall, context: ToolContext[Any]
    ) -> str | None:
        """The same key for the same call until its result was delivered: MCP clients give their calls no ids."""
        if executor.is_read_only(call.name):
            decision = executor.explain(call, context).decision
            if decision is None or decision.action == "allow":
                return None
        named = f"{call.name}\n{normalize_numbers(call.arguments_json or '{}')}"
        digest = hashlib.sha256(named.encode(errors="surrogatepass")).hexdigest()[:32]
        if (arriving := self._unsettled.get((context.session_id, digest))) is not None:
            await asyncio.wait([arriving], timeout=_DELIVERY_SECONDS)
        try:
            count = await self._store.received_results.count(context.session_id, digest)
        except StoreError:  # The ledger cannot be read either: the call is refused.
            log.exception("what was delivered to a client cannot be looked up")
            return None
        return f"call-{digest}-{count}"

    async def run_call(
        self, request: McpRequest, executor: Executor, call: ToolCall, context: ToolContext[Any]
    ) -> ToolResult:
        """Run a call; if an operator has to agree, wait for that, but never longer than `approval_wait`."""
        deadline = time.monotonic() + self._approval_wait
        result = await executor.run(call, context)
        approval = result.approval
        if (
            approval is not None
            and approval.state == "pending"
            and approval.by == "operator"
            and await self._wait_for_decision(executor, approval, call, deadline)
        ):
            result = await executor.run(call, context)
        if result.error is None or result.error.code not in _NOT_FINAL:
            self._note_delivery(request, call, context)
        return _say_denied_by_policy(result)

    async def _wait_for_decision(self, executor: Executor, approval: Approval, call: ToolCall, deadline: float) -> bool:
        while (left := deadline - time.monotonic()) > 0:
            try:
                await executor.approvals.wait(approval.token, timeout=min(left, _PROGRESS_SECONDS))
                return True
            except TimeoutError:
                progress = Progress(
                    at=time.time(),
                    session_id=approval.session_id,
                    tenant_id=approval.tenant_id,
                    call_id=call.id,
                    tool_name=call.name,
                    message="waiting for an operator",
                )
                executor.emit(progress)
            except (ApprovalError, StoreError):
                log.exception("a call cannot wait for the decision about it")
                return False
        return False

    def _note_delivery(self, request: McpRequest, call: ToolCall, context: ToolContext[Any]) -> None:
        match = _CALL_KEY.search(call.id)
        if match is None:
            return
        digest, count = match[1], int(match[2])
        ref = (context.session_id, digest)
        settled = self._unsettled[ref] = asyncio.get_running_loop().create_future()

        async def settle(is_delivered: bool) -> None:
            try:
                if is_delivered:
                    await self._store.received_results.add(*ref, after=count)
            except Exception:
                log.exception("that a result was delivered cannot be recorded: the next equal call gets it again")
            finally:
                if not settled.done():
                    settled.set_result(None)
                if self._unsettled.get(ref) is settled:
                    del self._unsettled[ref]

        delivery = request.state.get("delivery")
        if isinstance(delivery, ResponseDelivery):
            delivery.callbacks.append(settle)
        else:  # Over stdio, what was written has arrived.
            task = asyncio.create_task(settle(True))
            self._running.add(task)
            task.add_done_callback(self._running.discard)


def _say_denied_by_policy(result: ToolResult) -> ToolResult:
    error, decision = result.error, result.decision
    if error is None or error.code != "permission_denied" or decision is None or decision.by is not None:
        return result
    return structs.replace(result, error=structs.replace(error, message=f"{error.message} It is denied by policy."))


def read_headers(scope: AsgiScope) -> dict[str, str]:
    """The headers of a request. Of several with one name the first counts, as everywhere else: two keys are one."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return headers


async def refuse(send: AsgiSend, status: int, text: str) -> None:
    """Answer a request that does not reach the endpoint."""
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
