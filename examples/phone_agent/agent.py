"""A phone agent for two dental practices: it books appointments if the caller agrees, and transfers calls.

handrail phone simulate                              # every call of this example, also in a copy of this folder
handrail phone simulate calls/book.yaml --verbose    # one of them, with every event
"""

import asyncio
import os
import sqlite3
from collections.abc import Mapping
from functools import cache
from typing import Any

from handrail import Rule, ToolError, tool
from handrail.tenants import BuiltTool, NoTool, Section, TenantConfig, ToolBuilder

TIMES = ("09:00", "09:30", "10:00", "14:00")


class AppointmentsFeature(Section):
    """The section `appointments` of a tenant's `features`."""

    enabled: bool = False


def build_free_times(cfg: TenantConfig) -> BuiltTool | NoTool:
    """The tool that looks free times up, for practices with appointments."""
    if not cfg.features.appointments.enabled:
        return NoTool("appointments are not enabled")

    @tool(read_only=True)
    async def free_times(day: str) -> list[str]:
        """List the free times of a weekday, such as "monday"."""
        booked = await asyncio.to_thread(_list_booked, cfg.tenant_id, day)
        return [time for time in TIMES if time not in booked]

    return BuiltTool(tool=free_times, prompt="Look up the free times before you offer one.")


def build_book_appointment(cfg: TenantConfig) -> BuiltTool | NoTool:
    """The tool that books. It has consequences: the caller is asked first, by code and not by a prompt."""
    if not cfg.features.appointments.enabled:
        return NoTool("appointments are not enabled")

    @tool(key=["day", "time"])
    async def book_appointment(day: str, time: str, name: str) -> str:
        """Book an appointment on a weekday, at a free time, under the caller's name."""
        await asyncio.to_thread(_book, cfg.tenant_id, day, time, name)
        return f"Booked: {day}, {time}, {name}."

    def read_back(arguments: Mapping[str, Any]) -> str:
        return "{day}, {time}, {name}".format(**arguments)

    rule = Rule.ask("book_appointment", by="customer", source=cfg.source)
    return BuiltTool(tool=book_appointment, rules=(rule,), read_back=read_back)


@cache
def _connect() -> sqlite3.Connection:
    """The bookings: in a file if PRACTICE_DB names one, else in memory."""
    database = sqlite3.connect(os.environ.get("PRACTICE_DB", ":memory:"), check_same_thread=False)
    database.execute("CREATE TABLE IF NOT EXISTS bookings (tenant, day, time, name, UNIQUE (tenant, day, time))")
    return database


def _list_booked(tenant: str, day: str) -> set[str]:
    rows = _connect().execute("SELECT time FROM bookings WHERE tenant = ? AND day = ?", (tenant, day.lower()))
    return {time for (time,) in rows}


def _book(tenant: str, day: str, time: str, name: str) -> None:
    if time not in TIMES:
        raise ToolError(f"There is no appointment at {time}.", code="unknown_time")
    try:
        with _connect() as database:
            database.execute("INSERT INTO bookings VALUES (?, ?, ?, ?)", (tenant, day.lower(), time, name))
    except sqlite3.IntegrityError as error:  # Nothing was written: the model may offer another time.
        raise ToolError(f"{day}, {time} is taken.", code="taken") from error


TOOLS = ToolBuilder()
TOOLS.register(build_free_times, feature=("appointments", AppointmentsFeature))
TOOLS.register(build_book_appointment)
