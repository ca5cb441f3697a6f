"""`end_call` and `collect_digits`: the tools that end a phone call, and that read the keys that the caller presses."""

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

END_CALL: Final = "end_call"
COLLECT_DIGITS: Final = "collect_digits"


def build_end_call(cfg: TenantConfig) -> BuiltTool | NoTool:
    """The tool that ends the call, if the feature is on."""
    if not cfg.features.end_call.enabled:
        return NoTool("features.end_call is off")
    tool = build_tool(
        {
            "name": END_CALL,
            "description": cfg.locale_texts()("end_call.description"),
            "input_schema": {"type": "object", "properties": {}, "additionalProperties": False},
            "execute": _end_call,
            "timeout": 60.0,
            "repeatable": True,  # Each phone call is ended, also the next one of the same caller.
            "on_interrupt": "uninterruptible",  # The caller's voice ends the goodbye, and the call goes on.
        }
    )
    return BuiltTool(tool=tool, rules=(Rule.allow(END_CALL, source=cfg.source),))


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


def build_collect_digits(cfg: TenantConfig) -> BuiltTool | NoTool:
    """The tool that waits for keys, if the feature is on."""
    feature = cfg.features.collect_digits
    if not feature.enabled:
        return NoTool("features.collect_digits is off")
    texts = cfg.locale_texts()
    tool = build_tool(
        {
            "name": COLLECT_DIGITS,
            "description": texts("digits.description"),
            "input_schema": {
                "type": "object",
                "properties": {
                    "purpose": {"type": "string", "maxLength": 200, "description": texts("digits.purpose")},
                    "max_digits": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": feature.max_digits,
                        "description": texts("digits.max_digits"),
                    },
                },
                "required": ["purpose"],
                "additionalProperties": False,
            },
            "execute": _collect_digits,
            "read_only": True,
            "repeatable": True,  # What a caller types now is not what they typed before.
            "on_interrupt": "finish",  # A caller who talks while typing still types.
            "timeout": feature.timeout * feature.max_digits + 5.0,
        }
    )
    return BuiltTool(tool=tool)


async def _collect_digits(arguments: Mapping[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
    """Wait for the keys; a sensitive feature gives the model their number and an id only."""
    cfg, control = context.tenant, get_call_control(context)
    if not isinstance(cfg, TenantConfig) or control is None:
        raise ToolError(Texts()("digits.outside_call"), code="call_unavailable")
    feature, texts = cfg.features.collect_digits, cfg.locale_texts()
    collected = await control.collect_digits(
        max_digits=arguments.get("max_digits", feature.max_digits),
        timeout=feature.timeout,
        terminator=feature.terminator,
    )
    if collected is None:
        raise ToolError(texts("digits.busy"), code="digits_busy", retryable=True)
    if not collected.count:
        raise ToolError(texts("digits.none"), code="no_digits", retryable=True)
    about = {"digits_id": collected.digits_id, "count": collected.count, "complete": collected.complete}
    return about if feature.sensitive else {**about, "digits": control.digits(collected.digits_id)}
