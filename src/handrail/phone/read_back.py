"""What a caller is asked to agree to, in words."""

from collections.abc import Mapping
from typing import Any

from handrail.core.log import log
from handrail.core.text import compact_json
from handrail.tenants.builder import ToolBuildResult
from handrail.tenants.texts import Texts

_MAX_CHARS = 2_000


def describe_call(built: ToolBuildResult, name: str, arguments: Mapping[str, Any], texts: Texts) -> str:
    """A call in the tenant's language: in the tool's own words, or as its name and its exact arguments."""
    own = built.read_backs.get(name)
    if own is not None:
        try:
            text = own(arguments)
            if isinstance(text, str) and text.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
                return text[:_MAX_CHARS]
        except Exception:  # user code: the arguments can still be listed
            log.exception("the read-back of %s failed", name)
    listed = ", ".join(
        texts("read_back.argument", name=_words(key), value=value if isinstance(value, str) else compact_json(value))
        for key, value in arguments.items()
        if value is not None
    )
    text = texts("read_back.call", tool=_words(name), arguments=listed) if listed else _words(name)
    return text[:_MAX_CHARS]


def _words(name: str) -> str:
    return name.replace("_", " ").strip()
