"""The gateway and its console: MCP clients in front, people who decide in a browser (extra `serve`)."""

from typing import TYPE_CHECKING

from handrail.core.lazy_exports import build_getattr

if TYPE_CHECKING:
    from handrail.serve.app import build_app

__all__ = ["build_app"]

__getattr__ = build_getattr(__name__, {"build_app": "handrail.serve.app"})
