"""What a phone call writes to the log is documented."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = re.compile(r'(?:Note\(name=|note\((?:[a-z_.]+, )?)"([a-z_]+)"')
PACKAGES = ("phone", "tenants")


def test_every_log_event_of_a_phone_call_is_in_the_docs() -> None:
    files = [file for package in PACKAGES for file in sorted((ROOT / "src/handrail" / package).rglob("*.py"))]
    source = "".join(file.read_text() for file in files)
    pages = "".join((ROOT / "docs" / page).read_text() for page in ("phone.md", "monitoring.md"))
    names = set(NAMES.findall(source))

    assert {"ws_tool_call_received", "phone_call_failed", "sideband_reconnecting", "provider_error"} <= names
    assert {"tool_build_warning", "request_transfer_backup_tried"} <= names
    assert [name for name in sorted(names) if f"`{name}`" not in pages] == []
