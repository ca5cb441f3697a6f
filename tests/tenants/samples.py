"""Tenants that several tests use."""

from typing import Any

from handrail.tenants import TenantConfig

SALES: dict[str, Any] = {
    "destination_id": "sales",
    "label": "Service Commercial",
    "description_for_model": "For sales inquiries and new customer questions",
    "target_uri": "sip:sales@acme.example",
    "enabled": True,
    "priority": 10,
}
SUPPORT: dict[str, Any] = {
    "destination_id": "support",
    "label": "Service Technique",
    "description_for_model": "For technical support and troubleshooting",
    "target_uri": "+14155552000",
    "enabled": True,
    "priority": 5,
}


def refer(**changes: Any) -> dict[str, Any]:
    return {
        "enabled": True,
        "require_confirmation": True,
        "handoff_phrase": "Je vous transfère vers {{label}}",
        "destinations": [SUPPORT, SALES],
        **changes,
    }


def acme(**changes: Any) -> TenantConfig:
    """The tenant of the phone agent's page."""
    return TenantConfig.model_validate(
        {"tenant_id": "acme-corp", "numbers": ["+33100000000"], "features": {"refer": refer()}, **changes}
    )
