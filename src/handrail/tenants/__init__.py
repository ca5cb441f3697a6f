"""One customer's configuration, the tools that are built from it, and the features that every agent can have."""

from handrail.tenants.builder import BuildDiagnostic, ToolBuilder, ToolBuildResult
from handrail.tenants.built import BuiltTool, NoTool
from handrail.tenants.call_control import CallControl, Digits, get_call_control
from handrail.tenants.config import Destination, Features, TenantConfig, TenantLimits, TransferFeature
from handrail.tenants.directory import TenantDirectory, Tenants
from handrail.tenants.opening_hours import OpeningHours
from handrail.tenants.section import Section
from handrail.tenants.texts import Texts
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
