"""`request_transfer`: transfer the caller to one of the tenant's destinations."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

from handrail.authorize.policy import Rule
from handrail.core.context import ToolContext
from handrail.core.events import LogEvent
from handrail.core.text import compact_json
from handrail.core.values import ToolResult
from handrail.define.build import build_tool
from handrail.errors import ToolError
from handrail.tenants.built_tool import BuiltTool, NoTool
from handrail.tenants.call_control import CallControl, TransferOutcome, get_call_control
from handrail.tenants.config import Destination, TenantConfig, replace_label
from handrail.tenants.texts import Texts

REQUEST_TRANSFER: Final = "request_transfer"
TIMEOUT: Final = 120.0
"""Seconds for the announcement, its playout and the transfer together, and for those of a backup."""


def build_request_transfer(cfg: TenantConfig) -> BuiltTool | NoTool:
    """The transfer tool, if the feature is on and some destination is enabled."""
    refer = cfg.features.refer
    if not refer.enabled:
        return NoTool("features.refer is off", (("tool_builder_refer_disabled", {}),))
    destinations = list_destinations(cfg)
    if not destinations:
        fields = {"configured_destinations": len(refer.destinations)}
        return NoTool("no destination is enabled", (("tool_builder_refer_no_enabled_destinations", fields),))
    texts = cfg.locale_texts()
    ids = [destination.destination_id for destination in destinations]
    parameters = describe_parameters(destinations, texts)
    description = [texts("transfer.confirm" if refer.require_confirmation else "transfer.on_request")]
    if refer.handoff_phrase.strip():
        description.append(texts("transfer.announced"))
    tool = build_tool(
        {
            "name": REQUEST_TRANSFER,
            "description": " ".join(description),
            "input_schema": parameters,
            "execute": _request_transfer,
            "timeout": TIMEOUT,
            "on_interrupt": "uninterruptible",  # The caller's voice ends the announcement, and with it the transfer.
            # Each phone call may be transferred: a returning caller, and one whose transfer was not taken. That a call
            # is transferred once at a time is the call's own rule.
            "repeatable": True,
            # A destination that cannot be reached is refused before the caller is asked about it.
            "permission_check": _check_destination if refer.require_confirmation else None,
        }
    )
    if refer.require_confirmation:
        rule = Rule.ask(
            REQUEST_TRANSFER, by="customer", source=cfg.source, reason="the caller has to confirm the transfer"
        )
    else:
        rule = Rule.allow(REQUEST_TRANSFER, source=cfg.source)
    return BuiltTool(
        tool=tool,
        rules=(rule,),
        read_back=lambda arguments: _describe_transfer(cfg, arguments["destination_id"]),
        log=(
            ("tool_builder_refer_destinations_selected", {"destination_ids": ids}),
            ("tool_builder_refer_parameters_built", {"destination_ids": ids, "required": parameters["required"]}),
            ("tool_builder_refer_tool_definition_built", {"tool": REQUEST_TRANSFER, "destination_ids": ids}),
        ),
    )


def list_destinations(cfg: TenantConfig) -> list[Destination]:
    """The enabled destinations, the highest priority first."""
    enabled = [destination for destination in cfg.features.refer.destinations if destination.enabled]
    return sorted(enabled, key=lambda destination: destination.priority, reverse=True)


def describe_parameters(destinations: Sequence[Destination], texts: Texts) -> dict[str, Any]:
    """The JSON Schema of the arguments: ids only, never an address."""
    ids = [destination.destination_id for destination in destinations]
    hints = " | ".join(f"{destination.destination_id}: {_hint(destination)}" for destination in destinations)
    return {
        "type": "object",
        "properties": {
            "destination_id": {
                "type": "string",
                "enum": ids,
                "description": texts("transfer.destination", ids=", ".join(ids), hints=hints),
            },
            "reason": {"type": "string", "maxLength": 500, "description": texts("transfer.reason")},
        },
        "required": ["destination_id"],
        "additionalProperties": False,
    }


def _hint(destination: Destination) -> str:
    parts = (destination.spoken_label, destination.description_for_model.strip())
    return " — ".join(part for part in parts if part)


def resolve_destination(cfg: TenantConfig, destination_id: str, *, at: datetime) -> Destination:
    """The destination that a transfer goes to at this moment, or `ToolError` with the ids that are valid."""
    texts = cfg.locale_texts()
    if not cfg.features.refer.enabled:
        raise ToolError(texts("transfer.off"), code="transfer_unavailable")
    known = {destination.destination_id: destination for destination in list_destinations(cfg)}
    reachable = [destination.destination_id for destination in known.values() if is_reachable(cfg, destination, at=at)]
    wanted = known.get(destination_id)
    if wanted is not None and wanted.destination_id not in reachable and wanted.fallback in reachable:
        return known[wanted.fallback]
    if destination_id in reachable:
        return known[destination_id]
    if not reachable:
        raise ToolError(texts("transfer.none_valid"), code="transfer_unavailable")
    key = "transfer.unknown" if wanted is None else "transfer.closed"
    code = "unknown_destination" if wanted is None else "destination_closed"
    raise ToolError(texts(key, destination=destination_id, ids=", ".join(reachable)), code=code, retryable=True)


def _describe_transfer(cfg: TenantConfig, destination_id: str) -> str:
    """Where the call would go at this moment: to the destination, or to the one that stands in for it."""
    wanted = next(each for each in list_destinations(cfg) if each.destination_id == destination_id)
    destination = resolve_destination(cfg, destination_id, at=datetime.now(UTC))
    if destination.destination_id == destination_id:
        return cfg.locale_texts()("read_back.transfer", label=destination.spoken_label)
    return cfg.locale_texts()("read_back.transfer_fallback", label=destination.spoken_label, wanted=wanted.spoken_label)


def _check_destination(arguments: Mapping[str, Any], context: ToolContext[Any]) -> None:
    """Raise if the destination cannot be reached at this moment."""
    if isinstance(context.tenant, TenantConfig):
        resolve_destination(context.tenant, arguments["destination_id"], at=datetime.now(UTC))


def is_reachable(cfg: TenantConfig, destination: Destination, *, at: datetime) -> bool:
    """Whether a destination is open at this moment."""
    hours = destination.opening_hours or cfg.opening_hours
    return hours is None or hours.is_open(at, timezone=cfg.timezone)


async def _request_transfer(arguments: Mapping[str, Any], context: ToolContext[Any]) -> ToolResult:
    """Resolve the destination, announce the transfer, and transfer the call once."""
    cfg, control = context.tenant, get_call_control(context)
    if not isinstance(cfg, TenantConfig) or control is None:
        raise ToolError(Texts()("transfer.outside_call"), code="transfer_unavailable")
    texts = cfg.locale_texts()
    destination_id: str = arguments["destination_id"]
    reason: str = arguments.get("reason") or ""
    _note(context, "request_transfer_started", argument_keys=sorted(arguments))
    destination = _resolve(cfg, destination_id, context)
    _note(
        context,
        "request_transfer_refer_call_started",
        destination_id=destination.destination_id,
        reason=reason,
        idempotency_key=context.idempotency_key,
    )
    outcome = await _transfer(control, cfg, destination, reason)
    backup = _find_backup(cfg, destination)
    if outcome in ("failed", "not_taken") and backup is not None and not cfg.features.refer.require_confirmation:
        _note(context, "request_transfer_backup_tried", "warning", destination_id=backup.destination_id)
        destination, backup = backup, None
        outcome = await _transfer(control, cfg, destination, reason)
    if outcome == "transferred":
        _note(context, "request_transfer_refer_call_succeeded", destination_id=destination.destination_id)
        return ToolResult(output=_describe_request(destination, reason))
    if outcome == "interrupted":
        raise ToolError(texts("transfer.interrupted"), code="call_transfer_interrupted", retryable=True)
    if outcome == "in_progress":
        raise ToolError(texts("transfer.busy"), code="transfer_in_progress")
    _note(context, "tool_execution_error", "error", destination_id=destination.destination_id, error=outcome)
    if outcome == "unknown":  # Neither done nor not done: the ledger says so.
        raise RuntimeError("the phone call was ended while it was being transferred")
    if backup is not None:  # The caller agreed to one destination: another needs another yes.
        text = texts("transfer.failed_with_backup", label=backup.spoken_label, destination=backup.destination_id)
    else:
        text = texts("transfer.not_taken" if outcome == "not_taken" else "transfer.failed")
    raise ToolError(text, code="call_transfer_failed", retryable=True)


async def _transfer(control: CallControl, cfg: TenantConfig, destination: Destination, reason: str) -> TransferOutcome:
    phrase = cfg.features.refer.handoff_phrase.strip()
    announcement = replace_label(phrase, destination.spoken_label)
    output = compact_json(_describe_request(destination, reason))
    return await control.transfer(destination.target_uri, announcement=announcement, output=output)


def _describe_request(destination: Destination, reason: str) -> dict[str, str]:
    return {"message": "call_transfer_requested", "destination_id": destination.destination_id, "reason": reason}


def _find_backup(cfg: TenantConfig, destination: Destination) -> Destination | None:
    """The destination to try when the transfer to this one fails."""
    known = {each.destination_id: each for each in list_destinations(cfg)}
    backup = known.get(destination.fallback or "")
    return backup if backup is not None and is_reachable(cfg, backup, at=datetime.now(UTC)) else None


def _resolve(cfg: TenantConfig, destination_id: str, context: ToolContext[Any]) -> Destination:
    _note(context, "request_transfer_destination_resolution_started", destination_id=destination_id)
    try:
        destination = resolve_destination(cfg, destination_id, at=datetime.now(UTC))
    except ToolError as error:
        if not cfg.features.refer.enabled:
            _note(context, "request_transfer_refer_feature_disabled", "warning", destination_id=destination_id)
        else:
            valid = [destination.destination_id for destination in list_destinations(cfg)]
            name = "request_transfer_destination_not_found"
            _note(
                context, name, "warning", destination_id=destination_id, valid_destination_ids=valid, error=error.code
            )
        _note(context, "request_transfer_destination_resolution_finished", destination_id=destination_id, resolved=None)
        raise
    found = destination.destination_id
    _note(context, "request_transfer_destination_resolved", destination_id=found)
    _note(context, "request_transfer_destination_resolution_finished", destination_id=destination_id, resolved=found)
    return destination


def _note(
    context: ToolContext[Any],
    name: str,
    severity: Literal["debug", "info", "warning", "error"] = "info",
    /,
    **fields: Any,
) -> None:
    if context.listener is not None:
        context.listener(
            LogEvent(
                at=time.time(),
                session_id=context.session_id,
                tenant_id=context.tenant_id,
                name=name,
                severity=severity,
                call=context.call,
                fields=fields,
            )
        )
