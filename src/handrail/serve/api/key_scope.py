"""What the routes of the API share: the executor of a key, whose rows it sees, and what is audited of a request."""

import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from fastapi import Depends, Request
from msgspec import Struct

from handrail.core.context import ToolContext
from handrail.core.events import LogEvent
from handrail.core.text import suggest
from handrail.errors import ConfigError
from handrail.execute.executor import Executor
from handrail.execute.stored_calls import WorkItem
from handrail.serve.access import Access
from handrail.serve.api.error_responses import ApiError, get_request_id
from handrail.serve.tenant_pools import DISABLED, TenantPool, TenantPools
from handrail.store import SqlStore
from handrail.store.api_keys import ApiKey, Role
from handrail.store.database import to_storable

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from handrail.phone.gateway import PhoneGateway
    from handrail.serve.api.turns import Conversations

_MAX_ID_CHARS: Final = 512


class Service(Struct, frozen=True, kw_only=True):
    """An executor, its store, and who may use them."""

    executor: Executor
    store: SqlStore
    access: Access
    deps: Any = None
    tenants: TenantPools | None = None
    phone: "PhoneGateway | None" = None
    registry: "CollectorRegistry | None" = None
    conversations: "Conversations | None" = None

    async def get_executor(self, whose: ApiKey | WorkItem) -> Executor:
        """The executor of the tenant of a key or of a stored call."""
        return await self.find_executor(whose.tenant_id)

    async def find_executor(self, tenant_id: str | None) -> Executor:
        """The executor of a tenant: that of all, or one with its own tools and rules."""
        pool = await self._find_pool(tenant_id)
        return self.executor if pool is None else pool.executor

    async def _find_pool(self, tenant_id: str | None) -> TenantPool | None:
        if self.tenants is None or tenant_id is None:
            return None
        return await self.tenants.get(tenant_id)

    async def make_context(
        self, key: ApiKey, *, session_id: str, customer_id: str | None, agent_id: str | None, turn: int
    ) -> ToolContext[Any]:
        """The context of a call: the tenant is the key's, and the session is one of that tenant, whatever it says."""
        pool = await self._find_pool(key.tenant_id)
        if pool is not None and not pool.is_enabled:
            raise ApiError(403, "permission_denied", DISABLED)
        return ToolContext(
            session_id=scope_session(key, session_id),
            tenant_id=key.tenant_id,
            customer_id=key.who if customer_id is None else customer_id,
            agent_id=agent_id,
            turn=turn,
            deps=self.deps,
            tenant=None if pool is None else pool.config,
            secrets={} if pool is None else pool.secrets,
        )

    async def make_worker_context(self, item: WorkItem) -> ToolContext[Any]:
        """The context of a stored call, with what this replica has of its tenant."""
        pool = await self._find_pool(item.tenant_id)
        return ToolContext(
            session_id=item.session_id,
            deps=self.deps,
            tenant=None if pool is None else pool.config,
            secrets={} if pool is None else pool.secrets,
        )

    def note(
        self,
        request: Request,
        key: ApiKey,
        name: str,
        *,
        tenant_id: str | None = None,
        session_id: str = "",
        **fields: Any,
    ) -> None:
        """Audit that a request changed something: who, what, and the id of the request."""
        known = {"request_id": get_request_id(request), "key": key.id, "who": key.who, **fields}
        tenant = key.tenant_id if tenant_id is None else tenant_id
        self.store.audit(LogEvent(at=time.time(), session_id=session_id, tenant_id=tenant, name=name, fields=known))


def scope_session(key: ApiKey, session_id: str) -> str:
    """The session of a caller as it is stored: two tenants that use one name mean two sessions."""
    return scope_tenant_session(key.tenant_id, session_id)


def scope_tenant_session(tenant_id: str | None, session_id: str) -> str:
    """The session of a tenant as it is stored."""
    prefix, name = _build_prefix(tenant_id), to_storable(session_id)
    return name if name.startswith(prefix) else prefix + name


def find_session_name(tenant_id: str | None, session_id: str) -> str | None:
    """The name within its tenant of a session as it is stored; None if it was not named over HTTP."""
    prefix = _build_prefix(tenant_id)
    return session_id.removeprefix(prefix) if session_id.startswith(prefix) else None


def _build_prefix(tenant_id: str | None) -> str:
    return f"api:{quote(tenant_id or '', safe='')}/"


def is_visible(key: ApiKey, tenant_id: str | None) -> bool:
    """Whether a row of a tenant is the holder's to see. A caller without a tenant sees rows without a tenant."""
    if key.tenant_id is None and key.role != "caller":
        return True
    return key.tenant_id == tenant_id


def choose_tenant(key: ApiKey, wanted: str | None) -> str | None:
    """The tenant that a request is about: the key's, or, for who sees every tenant, the one that is named."""
    if key.tenant_id is None:
        return None if wanted is None else clean(wanted)
    if wanted is not None and wanted != key.tenant_id:
        raise ApiError(403, "permission_denied", "This key is of another tenant. Leave tenant_id out.")
    return key.tenant_id


def clean(text: str) -> str:
    """A text of a request as a database can look it up."""
    return to_storable(text[:_MAX_ID_CHARS])


def get_service(request: Request) -> Service:
    """The service of the app that a request is sent to."""
    return request.app.state.service


def allow(*roles: Role) -> Any:
    """The key of a request, if it has one of these roles."""
    if not roles:
        raise ConfigError("allow must name at least one role.")
    listed = " or ".join(roles)

    async def check(request: Request) -> ApiKey:
        key: ApiKey = request.scope["state"]["key"]
        if key.role not in roles:
            text = f"This is for the role {listed}; this key has the role {key.role}."
            raise ApiError(403, "permission_denied", text)
        if request.scope["query_string"]:
            _refuse_unknown(request)
        return key

    return Depends(check)


def _refuse_unknown(request: Request) -> None:
    """A filter with a typing error must not mean every row."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            text = f"There is no parameter of this name{suggest(name, known)}"
            raise ApiError(422, "invalid_arguments", text, fields=[(f"query.{name}", "unknown")])


EVERYBODY: Final[tuple[Role, ...]] = ("caller", "viewer", "operator", "admin")
READERS: Final[tuple[Role, ...]] = ("viewer", "operator", "admin")
"""Who sees what happened: a caller sees its own calls only."""
