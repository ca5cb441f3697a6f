"""`end_call`: say goodbye and hang up."""

from collections.abc import Mapping
from typing import Any, Final

from handrail.authorize.policy import Rule
from handrail.core.context import ToolContext
from handrail.define.build import build_tool
from handrail.errors import ToolError
from handrail.tenants.built_tool import BuiltTool, NoTool
from handrail.tenants.call_control import get_call_control
from handrail.tenants.config import TenantConfig
from handrail.tenants.texts import Texts

NAME: Final = "end_call"


def build_end_call(cfg: TenantConfig) -> BuiltTool | NoTool:
    """The tool that ends the call, if the feature is on."""
    if not cfg.features.end_call.enabled:
        return NoTool("features.end_call is off")
    tool = build_tool(
        {
            "name": NAME,
            "description": cfg.locale_texts()("end_call.description"),
            "input_schema": {"type": "object", "properties": {}, "additionalProperties": False},
            "execute": _end_call,
            "timeout": 60.0,
            "repeatable": True,  # Each phone call is ended, also the next one of the same caller.
            "on_interrupt": "uninterruptible",  # The caller's voice ends the goodbye, and the call goes on.
        }
    )
    return BuiltTool(tool=tool, rules=(Rule.allow(NAME, source=cfg.source),))


async def _end_call(arguments: Mapping[str, Any], context: ToolContext[Any]) -> dict[str, str]:
    """Say goodbye, wait until it was heard, and hang up."""
    cfg, control = context.tenant, get_call_control(context)
    if not isinstance(cfg, TenantConfig) or control is None:
        raise ToolError(Texts()("end_call.outside_call"), code="call_unavailable")
    texts = cfg.locale_texts()
    outcome = await control.hang_up(goodbye=cfg.features.end_call.goodbye.strip() or texts("end_call.goodbye"))
    if outcome != "ended":
        raise ToolError(texts(f"end_call.{outcome}"), code=f"end_call_{outcome}", retryable=True)
    return {"message": "call_ended"}
