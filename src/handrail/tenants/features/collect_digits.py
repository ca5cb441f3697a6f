"""`collect_digits`: keys that the caller presses on the telephone."""

from collections.abc import Mapping
from typing import Any, Final

from handrail.core.context import ToolContext
from handrail.define.build import build_tool
from handrail.errors import ToolError
from handrail.tenants.built_tool import BuiltTool, NoTool
from handrail.tenants.call_control import get_call_control
from handrail.tenants.config import TenantConfig
from handrail.tenants.texts import Texts

NAME: Final = "collect_digits"


def build_collect_digits(cfg: TenantConfig) -> BuiltTool | NoTool:
    """The tool that waits for keys, if the feature is on."""
    feature = cfg.features.collect_digits
    if not feature.enabled:
        return NoTool("features.collect_digits is off")
    texts = cfg.locale_texts()
    tool = build_tool(
        {
            "name": NAME,
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
