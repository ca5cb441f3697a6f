"""A phone call that rings: who called whom, as far as SIP says."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from msgspec import Struct

from handrail.core.lazy_loading import LazyPattern
from handrail.tenants.phone_addresses import normalise_number


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
