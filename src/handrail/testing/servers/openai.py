"""A local OpenAI server with both APIs."""

from collections.abc import Iterable

from .http import StrictServer
from .openai_chat import ChatApi
from .openai_responses import ResponsesApi
from .script import ScriptedResponse


class OpenAIServer(StrictServer):
    """A local OpenAI server with Chat Completions and Responses: `OpenAI(base_url=server.url, api_key="test")`."""

    def __init__(self, script: Iterable[ScriptedResponse] = (), *, piece: int = 4) -> None:
        super().__init__(script, apis=(ChatApi(), ResponsesApi()), prefix="/v1", piece=piece)
