"""The service: tools over HTTP and MCP for the holders of keys, and the console where people decide (extra `serve`)."""

from typing import TYPE_CHECKING

from handrail.core.lazy_loading import build_getattr

if TYPE_CHECKING:
    from handrail.serve.api.request_limits import ApiLimits
    from handrail.serve.api.turns import ChatAgent
    from handrail.serve.app import build_app

__all__ = ["ApiLimits", "ChatAgent", "build_app"]

__getattr__ = build_getattr(
    __name__,
    {
        "ApiLimits": "handrail.serve.api.request_limits",
        "ChatAgent": "handrail.serve.api.turns",
        "build_app": "handrail.serve.app",
    },
    extra="serve",
)
