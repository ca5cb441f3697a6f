"""Whether a phone call that rings is taken, and by which tenant, or with which SIP status it is turned away."""

from msgspec import Struct

from handrail.phone.call_setup import IncomingCall
from handrail.tenants.config import TenantConfig

NOT_FOUND, UNAVAILABLE, BUSY = 404, 480, 486
"""What SIP calls the reasons to turn a call away."""


class CallRefusal(Struct, frozen=True, kw_only=True):
    """The status that a call is turned away with, and why."""

    status: int
    reason: str


def admit_call(
    call: IncomingCall,
    cfg: TenantConfig | None,
    *,
    is_draining: bool,
    calls: int,
    max_calls: int,
    max_calls_per_tenant: int | None,
    tenant_calls: int,
) -> TenantConfig | CallRefusal:
    """Return the tenant that takes the call, or why it is turned away.

    Args:
        call: The call that rings.
        cfg: The tenant that has the dialled number, if one has it.
        is_draining: Whether the gateway takes no more calls.
        calls: The calls under way and those that are being accepted.
        max_calls: The most of them at the same time.
        max_calls_per_tenant: The most of one tenant, which its own configuration cannot raise.
        tenant_calls: Those of this tenant.
    """
    if cfg is None:
        dialled = ", ".join(call.dialled[:3]) or "(none)"
        return CallRefusal(status=NOT_FOUND, reason=f"no tenant has the dialled number {dialled}")
    if not cfg.enabled:
        return CallRefusal(status=UNAVAILABLE, reason="the tenant is not enabled")
    if is_draining:
        return CallRefusal(status=UNAVAILABLE, reason="the gateway is draining")
    if calls >= max_calls:
        return CallRefusal(status=BUSY, reason="too many calls")
    if tenant_calls >= min(cfg.limits.max_calls, max_calls_per_tenant or cfg.limits.max_calls):
        return CallRefusal(status=BUSY, reason="too many calls of this tenant")
    return cfg
