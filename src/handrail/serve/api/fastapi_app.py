"""Builds the API: a FastAPI app behind a gate, with an OpenAPI document of its own."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from handrail.core.version import __version__
from handrail.serve.api import audit_and_erasure, calls, decisions, operations, sessions, tenants, tools
from handrail.serve.api.error_responses import add_error_handlers
from handrail.serve.api.key_scope import Service
from handrail.serve.api.request_limits import ApiGate, ApiLimits

_NO_KEY = ("/health", "/ready", "/phone/webhook")


def build_api(service: Service, *, limits: ApiLimits, title: str) -> ApiGate:
    """The API of a service, to mount; its paths are below the mount."""
    api = FastAPI(
        title=f"{title}: tools over HTTP",
        version=__version__,
        docs_url=None,  # They load scripts from another host.
        redoc_url=None,
        redirect_slashes=False,
    )
    api.state.service = service
    add_error_handlers(api)
    for module in (calls, decisions, audit_and_erasure, tenants, tools):
        api.include_router(module.build_router())
    api.include_router(operations.build_router(service))
    if service.conversations is not None:
        api.include_router(sessions.build_router(service, service.conversations, json_timeout=limits.request_timeout))

    def describe() -> dict[str, Any]:
        if api.openapi_schema is None:
            api.openapi_schema = _describe_api(api)
        return api.openapi_schema

    api.openapi = describe
    return ApiGate(api, service.access, limits)


def _describe_api(api: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the bodies that are read by hand, and the key that every other route needs."""
    document = get_openapi(title=api.title, version=api.version, routes=api.routes)
    parts = document.setdefault("components", {})
    parts.setdefault("schemas", {})["Call"] = calls.CallBody.model_json_schema()
    parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "bearerFormat": "hrk_…"}}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            if path not in _NO_KEY:
                operation["security"] = [{"key": []}]
    return document
