"""One customer's configuration, the tools that are built from it, and the features that every agent can have."""

from typing import TYPE_CHECKING

from handrail.core.lazy_loading import build_getattr

if TYPE_CHECKING:
    from handrail.tenants.built_tool import BuiltTool, NoTool
    from handrail.tenants.call_control import CallControl, Digits, get_call_control
    from handrail.tenants.config import Destination, Features, TenantConfig, TenantLimits, TransferFeature
    from handrail.tenants.directory import TenantDirectory, Tenants
    from handrail.tenants.opening_hours import OpeningHours
    from handrail.tenants.section import Section
    from handrail.tenants.texts import Texts
    from handrail.tenants.tool_builder import BuildDiagnostic, ToolBuilder, ToolBuildResult
    from handrail.tenants.trust import TenantTrust

__all__ = [
    "BuildDiagnostic",
    "BuiltTool",
    "CallControl",
    "Destination",
    "Digits",
    "Features",
    "NoTool",
    "OpeningHours",
    "Section",
    "TenantConfig",
    "TenantDirectory",
    "TenantLimits",
    "TenantTrust",
    "Tenants",
    "Texts",
    "ToolBuildResult",
    "ToolBuilder",
    "TransferFeature",
    "get_call_control",
]

# Loaded on first use, so that importing one module of this package does not import the others.
_ON_FIRST_USE = {
    "BuildDiagnostic": "handrail.tenants.tool_builder",
    "BuiltTool": "handrail.tenants.built_tool",
    "CallControl": "handrail.tenants.call_control",
    "Destination": "handrail.tenants.config",
    "Digits": "handrail.tenants.call_control",
    "Features": "handrail.tenants.config",
    "NoTool": "handrail.tenants.built_tool",
    "OpeningHours": "handrail.tenants.opening_hours",
    "Section": "handrail.tenants.section",
    "TenantConfig": "handrail.tenants.config",
    "TenantDirectory": "handrail.tenants.directory",
    "TenantLimits": "handrail.tenants.config",
    "TenantTrust": "handrail.tenants.trust",
    "Tenants": "handrail.tenants.directory",
    "Texts": "handrail.tenants.texts",
    "ToolBuildResult": "handrail.tenants.tool_builder",
    "ToolBuilder": "handrail.tenants.tool_builder",
    "TransferFeature": "handrail.tenants.config",
    "get_call_control": "handrail.tenants.call_control",
}

__getattr__ = build_getattr(__name__, _ON_FIRST_USE)
