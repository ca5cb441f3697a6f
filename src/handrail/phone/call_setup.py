"""A phone call that rings, and how it is set up before it is accepted: what its agent knows, says first and may use."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, cast
from zoneinfo import ZoneInfo

from msgspec import Struct, structs

from handrail.core.lazy_loading import LazyPattern
from handrail.core.log import log
from handrail.errors import ConfigError, must_propagate, shorten
from handrail.tenants.config import TenantConfig
from handrail.tenants.phone_addresses import normalise_number
from handrail.tenants.tool_builder import ToolBuildResult


class IncomingCall(Struct, frozen=True, kw_only=True):
    """A call that waits to be accepted. Everything but `session_id` comes from the network, and proves nothing."""

    session_id: str
    """The provider's id of the phone call."""
    sip_call_id: str | None = None
    caller: str | None = None
    """The caller's number as it was sent; None if it is withheld or no number. It does not prove who calls."""
    dialled: tuple[str, ...] = ()
    """The numbers that were dialled, the most telling first."""
    sip_headers: tuple[tuple[str, str], ...] = ()
    tenant_id: str | None = None
    """Set once the tenant is known."""


_USER = LazyPattern(r"(?:sips?|tel):([^@;>?\s]+)", re.IGNORECASE)
_DIALLED = ("diversion", "x-dialled-number", "to")
_MAX_HEADERS = 200


def read_incoming(data: Mapping[str, Any]) -> IncomingCall | None:
    """The call that a webhook announces; None if it does not name one."""
    session_id = data.get("call_id")
    if not isinstance(session_id, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,256}", session_id):
        return None
    headers = tuple(_read_headers(data.get("sip_headers")))
    numbers = [
        number for wanted in reversed(_DIALLED) for name, value in headers if name.lower() == wanted
        for number in _numbers(value)
    ]  # fmt: skip
    callers = [number for name, value in headers if name.lower() == "from" for number in _numbers(value)]
    call_ids = [value for name, value in headers if name.lower() in ("call-id", "i")]
    return IncomingCall(
        session_id=session_id,
        sip_call_id=call_ids[0] if call_ids else None,
        caller=callers[0] if callers else None,
        dialled=tuple(dict.fromkeys(numbers)),
        sip_headers=headers,
    )


def read_header_numbers(call: IncomingCall, header: str | None) -> tuple[str, ...]:
    """The numbers in a SIP header of a call; none without one."""
    wanted = (header or "").lower()
    return tuple(
        number for name, value in call.sip_headers if name.lower() == wanted and wanted for number in _numbers(value)
    )


def _read_headers(given: Any) -> Iterable[tuple[str, str]]:
    if not isinstance(given, list):
        return
    for header in cast(list[Any], given)[:_MAX_HEADERS]:
        if isinstance(header, dict):
            name, value = cast(dict[str, Any], header).get("name"), cast(dict[str, Any], header).get("value")
            if isinstance(name, str) and isinstance(value, str):
                yield name[:256], value[:4_096]


def _numbers(value: str) -> Iterable[str]:
    """The telephone numbers of a header such as `"Ann" <sip:+33100000000@carrier.example>;tag=1`."""
    for user in _USER.compiled.findall(value) or [value]:
        text = user.strip()
        if re.fullmatch(r"00[1-9][0-9]{6,14}", text):
            text = f"+{text[2:]}"
        elif re.fullmatch(r"[1-9][0-9]{9,14}", text):  # Some carriers leave the plus out.
            text = f"+{text}"
        try:
            yield normalise_number(text)
        except ValueError:
            continue


class CallSetup(Struct, frozen=True, kw_only=True):
    """How one call differs from the tenant's others."""

    instructions: str = ""
    """Added to the tenant's own, for this call only."""
    customer_id: str | None = None
    """Who calls, as your own records say; the caller's number if unset."""
    deps: Any = None
    """What tools get as `context.deps`."""
    greeting: str | None = None
    """The first words in place of the tenant's; empty: the caller speaks first."""
    exclude: tuple[str, ...] | list[str] = ()
    """Tools that this call does not have, by name."""

    def __post_init__(self) -> None:
        # A text has members, too, and would exclude no tool.
        exclude = cast(object, self.exclude)
        if isinstance(exclude, str) or not isinstance(exclude, Collection):
            raise ConfigError(f"exclude must be a list of names of tools, got {shorten(repr(exclude))}.")
        texts = {"instructions": self.instructions, "greeting": self.greeting, "customer_id": self.customer_id}
        for name, text in texts.items():
            if not isinstance(text, str) and (text is not None or name == "instructions"):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"{name} must be a text, got {shorten(repr(text))}.")


class Reject(Struct, frozen=True):
    """Turn the call away, with a SIP status: 603 declined, 486 busy, 480 unavailable."""

    status_code: int = 603

    def __post_init__(self) -> None:
        if not 400 <= self.status_code <= 699:
            raise ConfigError(f"status_code must be a SIP status from 400 to 699, got {self.status_code}.")


Prepare = Callable[[IncomingCall], CallSetup | Reject | Awaitable[CallSetup | Reject]]


async def prepare_call(
    prepare: Prepare | None, call: IncomingCall, cfg: TenantConfig, *, timeout: float
) -> tuple[CallSetup | Reject, str]:
    """Ask `prepare` about a call. One that fails or takes too long counts as the tenant says; the text says why."""
    if prepare is None:
        return CallSetup(), ""
    try:
        async with asyncio.timeout(timeout):
            made = prepare(call)
            setup = await made if inspect.isawaitable(made) else made
        if isinstance(setup, CallSetup | Reject):  # pyright: ignore[reportUnnecessaryIsInstance]
            return setup, ""
        problem = f"prepare must return a CallSetup or a Reject, got {type(setup).__name__}"
    except TimeoutError:
        problem = f"prepare took longer than {timeout:g} s"
    except (Exception, asyncio.CancelledError) as error:  # user code: a call that rings is not lost because of it
        if must_propagate(error):
            raise
        log.exception("prepare failed for the phone call %s", call.session_id)
        problem = f"prepare raised {type(error).__name__}"
    return (CallSetup() if cfg.on_prepare_failure == "accept" else Reject(480)), problem


def apply_hours(setup: CallSetup, cfg: TenantConfig, *, at: datetime) -> CallSetup:
    """What a call is set up with at this moment: outside the opening hours the tenant's `out_of_hours` is added."""
    hours, closed = cfg.opening_hours, cfg.out_of_hours
    if hours is None or hours.is_open(at, timezone=cfg.timezone):
        return setup
    return structs.replace(
        setup,
        greeting=closed.greeting if setup.greeting is None else setup.greeting,
        instructions="\n\n".join(part for part in (closed.instructions.strip(), setup.instructions.strip()) if part),
        exclude=(*setup.exclude, *closed.exclude),
    )


def describe_session(built: ToolBuildResult, definitions: list[Any], setup: CallSetup) -> dict[str, Any]:
    """The configuration that a call is accepted with: instructions with each tool's prompt, tools and tool choice."""
    cfg = built.config
    excluded = set(setup.exclude)
    tools = [definition for definition in definitions if definition["name"] not in excluded]
    parts = [cfg.instructions.strip(), built.prompt, setup.instructions.strip()]
    if cfg.tell_time:
        now = datetime.now(UTC).astimezone(ZoneInfo(cfg.timezone))
        parts.append(cfg.locale_texts()("instructions.now", now=now.strftime("%A %Y-%m-%d %H:%M"), zone=cfg.timezone))
    session: dict[str, Any] = {
        "model": cfg.model,
        "audio": cfg.describe_audio(),
        "tools": tools,
        "tool_choice": _choose(built.tool_choice, {definition["name"] for definition in tools}),
        "output_modalities": ["audio"],
    }
    if instructions := "\n\n".join(part for part in parts if part):
        session["instructions"] = instructions
    if cfg.max_output_tokens is not None:
        session["max_output_tokens"] = cfg.max_output_tokens
    if cfg.truncation is not None:
        session["truncation"] = cfg.truncation
    if cfg.reasoning_effort is not None:
        session["reasoning"] = {"effort": cfg.reasoning_effort}
    return session


def _choose(choice: str | dict[str, str], names: set[str]) -> str | dict[str, str]:
    """The tenant's tool choice, as far as this call has tools for it."""
    if not names:
        return "none"
    return "auto" if isinstance(choice, dict) and choice["name"] not in names else choice
