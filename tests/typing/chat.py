"""What a type checker knows of providers and conversations."""

from typing import assert_type

from handrail import ChatSession, Executor, ToolContext
from handrail.chat import Conversation, FileSessionStore, TurnResult
from handrail.core import Approval
from handrail.providers import ModelRequest, ModelResponse, OpenAIChat, Provider, TextDelta, UserMessage
from handrail.testing import ScriptedProvider


def providers_fit_the_protocol() -> None:
    real: Provider = OpenAIChat("gpt-test")
    scripted: Provider = ScriptedProvider(["Hello."])
    wrong: Provider = "gpt-test"  # E: reportAssignmentType
    assert_type((real.name, scripted.name, wrong), tuple[str, str, Provider])


async def a_reply_is_whole_or_comes_in_pieces(provider: Provider) -> None:
    request = ModelRequest(messages=[UserMessage(text="Hi.")])
    assert_type(await provider.ask(request), ModelResponse)
    async for piece in provider.stream(request):
        assert_type(piece, TextDelta | ModelResponse)
    await provider.ask("Hi.")  # E: reportArgumentType


async def a_conversation_answers(provider: Provider, executor: Executor, context: ToolContext[object]) -> None:
    session = ChatSession(
        provider, executor, context=context, sessions=FileSessionStore("sessions"), allow_memory_ledger=True
    )
    answer = await session.send("Hi.")
    assert_type(answer, TurnResult)
    assert_type(answer.approvals, tuple[Approval, ...])
    assert_type(session.conversation, Conversation)
    assert_type(session.send_sync("Hi."), TurnResult)
    answer.text = "other"  # E: reportAttributeAccessIssue
    ChatSession(provider, executor, context)  # E: reportCallIssue
    ChatSession(provider, executor)  # E: reportCallIssue
