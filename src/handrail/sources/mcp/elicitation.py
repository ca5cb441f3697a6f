"""Answers what an MCP server asks a person in the middle of a call, through the host's `on_elicitation`."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, cast
from urllib.parse import urlsplit

import mcp_types as types

from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.errors import InvalidArgumentsError, ToolDefinitionError, shorten
from handrail.schema.json_schema_arguments import RawSchema
from handrail.sources.mcp.server_options import Elicitation, McpServer

_TIMEOUT: Final = 300.0
"""Seconds that an answer may take, if the server has no `timeout`; the timeout of the call ends it before that."""
_MAX_QUESTIONS: Final = 8
"""How many questions of one connection may be open at once."""
_MAX_MESSAGE_CHARS: Final = 4_000

DECLINE: Final = types.ElicitResult(action="decline")
CANCEL: Final = types.ElicitResult(action="cancel")


class ElicitationHandler:
    """The SDK's callback for the questions of one server. Whatever happens, the server gets an answer."""

    def __init__(self, server: McpServer, find_context: Callable[[], ToolContext[Any] | None]) -> None:
        self._server = server
        self._find_context = find_context
        self._open = 0

    async def __call__(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Answer one question."""
        if self._open >= _MAX_QUESTIONS:
            log.warning("the MCP server %s asks too many questions at once", self._server.name)
            return DECLINE
        self._open += 1
        try:
            async with asyncio.timeout(self._server.timeout or _TIMEOUT):
                answer = await self._answer(params)
        except TimeoutError:
            log.warning("a question of the MCP server %s was not answered in time", self._server.name)
            answer = CANCEL
        except Exception:
            log.exception("on_elicitation of the MCP server %s failed", self._server.name)
            answer = CANCEL
        finally:
            self._open -= 1
        log.info("a question of the MCP server %s was answered: %s", self._server.name, answer.action)
        return answer

    async def _answer(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        ask = self._server.on_elicitation
        assert ask is not None
        url = params.url if isinstance(params, types.ElicitRequestURLParams) else None
        schema: dict[str, Any] | None = None
        if isinstance(params, types.ElicitRequestFormParams):
            schema = dict(cast(Mapping[str, Any], params.requested_schema))
        elif url is None or urlsplit(url).scheme != "https":
            log.warning("the MCP server %s wants a person to open a URL that is not https", self._server.name)
            return DECLINE
        question = Elicitation(
            server=self._server.name,
            message=params.message[:_MAX_MESSAGE_CHARS],
            schema=schema,
            url=url,
            context=self._find_context(),
        )
        answer: object = ask(question)
        if inspect.isawaitable(answer):
            answer = await cast(Any, answer)
        return self._check(answer, schema)

    def _check(self, answer: object, schema: dict[str, Any] | None) -> types.ElicitResult:
        """What the host answered, if the server can take it."""
        if answer is None or answer is False:
            return DECLINE
        if answer is not True and not isinstance(answer, Mapping):
            raise TypeError(f"on_elicitation must return a mapping, True, False or None, got {type(answer).__name__}.")
        if schema is None:
            return types.ElicitResult(action="accept")
        content = {} if answer is True else dict(cast(Mapping[str, Any], answer))
        try:
            RawSchema(schema, name="the question").check(content)
        except (InvalidArgumentsError, ToolDefinitionError) as error:
            problem = shorten(str(error), 300)
            log.error("the answer to a question of the MCP server %s does not fit: %s", self._server.name, problem)
            return CANCEL
        return types.ElicitResult(action="accept", content=cast(Any, content))
