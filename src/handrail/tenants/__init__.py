"""One customer's configuration, the tools that are built from it, and the features that every agent can have."""

from handrail.tenants.builder import Diagnostic, ToolBuilder, ToolBuildResult
from handrail.tenants.built import BuiltTool, NoTool
from handrail.tenants.call_control import CallControl, Digits
from handrail.tenants.config import Destination, Features, Limits, ReferFeature, Section, TenantConfig
from handrail.tenants.directory import TenantDirectory, Tenants
from handrail.tenants.opening_hours import OpeningHours
from handrail.tenants.texts import Texts

__all__ = [
    "BuiltTool",
    "CallControl",
    "Destination",
    "Diagnostic",
    "Digits",
    "Features",
    "Limits",
    "NoTool",
    "OpeningHours",
    "ReferFeature",
    "Section",
    "TenantConfig",
    "TenantDirectory",
    "Tenants",
    "Texts",
    "ToolBuildResult",
    "ToolBuilder",
]
