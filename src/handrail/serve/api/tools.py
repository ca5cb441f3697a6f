"""Tools over HTTP: what a key may call, in the form of each provider."""

from typing import Any, Final, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from handrail.core.tool import Tool
from handrail.execute.executor import Executor
from handrail.serve.api.calls import ShortId
from handrail.serve.api.error_responses import EVERY_ROUTE, describe_errors, not_found
from handrail.serve.api.key_scope import EVERYBODY, allow, get_service
from handrail.store.api_keys import ApiKey

Format = Literal["openai_responses", "openai_chat", "openai_realtime", "anthropic", "gemini", "mcp"]
RENDERERS: Final = {
    "openai_responses": "to_openai_tools",
    "openai_chat": "to_openai_chat_tools",
    "openai_realtime": "to_openai_realtime_tools",
    "anthropic": "to_anthropic_tools",
    "gemini": "to_gemini_tools",
    "mcp": "to_mcp_tools",
}
"""The method of a registry that renders each format."""


class ToolBody(BaseModel):
    """A tool, as it is."""

    model_config = {"title": "Tool"}

    name: str
    description: str
    source: str
    tags: list[str]
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    read_only: bool
    concurrency_safe: bool
    idempotent: bool
    repeatable: bool
    has_key: bool = Field(description="Whether it says which arguments make two calls the same effect.")
    has_verify: bool = Field(description="Whether it can find out itself what became of a call.")
    requires_approval: Literal["customer", "operator"] | None
    timeout: float | None


class ToolList(BaseModel):
    """The tools that may be called."""

    items: list[ToolBody]


class DefinitionNote(BaseModel):
    """Something to know about the definition of one tool."""

    tool: str
    text: str


class DefinitionList(BaseModel):
    """The definitions of the tools, as one provider takes them."""

    model_config = {"title": "Definitions"}

    format: Format
    tools: list[dict[str, Any]] = Field(description="Send them as they are.")
    notes: list[DefinitionNote] = Field(description="What was changed for this provider, and is checked here instead.")
    skipped: list[DefinitionNote] = Field(description="Tools that this provider would refuse; they are not in `tools`.")


def build_router() -> APIRouter:
    """The routes of tools."""
    router = APIRouter(tags=["tools"])
    errors = describe_errors(*EVERY_ROUTE)

    @router.get("/tools", summary="List tools", responses=errors)
    async def list_tools(request: Request, key: ApiKey = allow(*EVERYBODY)) -> ToolList:
        """The tools that calls with this key may name; one that the policy denies in any case is left out."""
        return ToolList(items=[describe_tool(tool) for tool in await _select(request, key)])

    @router.get("/tools/definitions/{format}", summary="Get the definitions for a provider", responses=errors)
    async def define(request: Request, format: Format, key: ApiKey = allow(*EVERYBODY)) -> DefinitionList:
        """The tools in the form that a provider takes, and what was changed for it."""
        service = get_service(request)
        executor = await service.get_executor(key)
        allowed = {tool.name for tool in await _select(request, key)}
        registry = executor.registry.select(*allowed) if len(allowed) < len(executor.registry) else executor.registry
        # In a thread: those of a thousand tools take seconds, and calls go on meanwhile.
        definitions = await service.run_in_thread(key, getattr(registry, RENDERERS[format]))
        return DefinitionList(
            format=format,
            tools=list(definitions),
            notes=[DefinitionNote(tool=note.tool, text=note.text) for note in definitions.notes],
            skipped=[DefinitionNote(tool=note.tool, text=note.text) for note in definitions.skipped],
        )

    @router.get("/tools/{name}", summary="Show a tool", responses=errors | describe_errors(404))
    async def show(request: Request, name: ShortId, key: ApiKey = allow(*EVERYBODY)) -> ToolBody:
        """One tool."""
        for tool in await _select(request, key):
            if tool.name == name:
                return describe_tool(tool)
        raise not_found("tool")

    return router


async def _select(request: Request, key: ApiKey) -> list[Tool[..., Any]]:
    service = get_service(request)
    executor = await service.get_executor(key)
    context = await service.make_context(key, session_id="tools", customer_id=None, agent_id=None, turn=0)
    return list_allowed(executor, context)


def list_allowed(executor: Executor, context: Any) -> list[Tool[..., Any]]:
    """The tools that the policy does not deny whatever their arguments are."""
    return [tool for tool in executor.registry if not executor.is_denied(tool.name, context)]


def describe_tool(tool: Tool[..., Any]) -> ToolBody:
    """A tool for people and programs."""
    return ToolBody(
        name=tool.name,
        description=tool.description,
        source=tool.source,
        tags=sorted(tool.tags),
        input_schema=dict(tool.input_schema),
        output_schema=None if tool.output_schema is None else dict(tool.output_schema),
        read_only=tool.read_only,
        concurrency_safe=tool.concurrency_safe,
        idempotent=tool.idempotent,
        repeatable=tool.repeatable,
        has_key=tool.key is not None,
        has_verify=tool.verify is not None,
        requires_approval=tool.requires_approval,
        timeout=tool.timeout,
    )
