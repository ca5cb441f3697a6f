"""Where the values of a conversation come from: rebuilds its `Provenance` from the messages."""

from handrail.chat.conversation import Conversation
from handrail.core.provenance import Provenance
from handrail.core.values import ToolCall, ToolResult
from handrail.execute.executor import Executor
from handrail.providers.messages import AssistantMessage, ToolMessage, UserMessage


def add_message(provenance: Provenance, message: UserMessage) -> None:
    """Add what the customer typed as their words, and what they pasted as nobody's."""
    provenance.add_customer(message.own_words)
    for text in message.quoted:
        provenance.add_quoted(text)


def rebuild_provenance(provenance: Provenance, conversation: Conversation, executor: Executor) -> None:
    """Add everything that a conversation has to its provenance, as it was when the conversation was live.

    What the application knows is not part of a conversation, and stays. A result that was meant for one response
    counts no more.
    """
    provenance.rebuild()
    calls: dict[str, ToolCall] = {}
    transient = frozenset(conversation.transient)

    def add(result: ToolResult) -> None:
        tool = executor.find_source_tool(result.tool_name)
        call = calls.get(result.call_id) or ToolCall(id=result.call_id, name=result.tool_name)
        provenance.add_history_result(call, result, tool)
        if result.call_id in transient:
            provenance.drop_result(result.call_id)

    for message in conversation.messages:
        match message:
            case UserMessage():
                add_message(provenance, message)
            case AssistantMessage():
                calls.update((call.id, call) for call in message.calls)
            case ToolMessage():
                for result in message.results:
                    add(result)
    for result in conversation.partial_results:
        add(result)
