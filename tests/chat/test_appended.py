"""A save looks at the messages that are new, and still notices every one that changed."""

import copy
import pickle
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from handrail import ToolCall, ToolResult
from handrail.chat import Conversation
from handrail.chat.conversation import diff_conversation, restore_conversation
from handrail.providers import AssistantMessage, UserMessage


def build_conversation(length: int) -> Conversation:
    history = tuple(UserMessage(text=f"{number}") for number in range(length - 1))
    return Conversation(session_id="s-1", messages=history).with_messages(UserMessage(text="the last one"))


def count_lines(run: Callable[[], Any]) -> int:
    """How many lines of Python run."""
    lines, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return lines


def list_changes(conversation: Conversation, previous: Conversation) -> list[int]:
    return [position for position, _ in diff_conversation(conversation, previous).messages]


def test_saving_one_more_message_takes_as_many_steps_in_a_long_conversation_as_in_a_short_one() -> None:
    def count_steps(length: int) -> int:
        saved = build_conversation(length)
        return count_lines(lambda: diff_conversation(saved.with_messages(UserMessage(text="one more")), saved))

    assert count_steps(10) == count_steps(20_000)


def test_saving_a_conversation_whose_messages_did_not_change_looks_at_none() -> None:
    loaded = restore_conversation(b'{"session_id": "s-1"}', [b'{"type": "user", "text": "a"}'] * 5_000, source="here")
    resumed = structs.replace(loaded, turn=7)

    assert count_lines(lambda: diff_conversation(resumed, loaded)) < 100
    assert list_changes(resumed, loaded) == []


def test_calls_and_results_are_appended_too() -> None:
    saved = build_conversation(5_000)
    call = ToolCall(id="c-1", name="look", arguments_json="{}")
    result = ToolResult(output="seen", call_id="c-1", tool_name="look")

    after = saved.with_calls([call]).with_results([result])

    assert count_lines(lambda: diff_conversation(after, saved)) < 100
    assert list_changes(after, saved) == [5_000, 5_001]


def test_two_that_continue_one_conversation_are_not_taken_for_each_other() -> None:
    saved = build_conversation(3)
    one, other = (saved.with_messages(UserMessage(text=text)) for text in ("one", "other"))
    longer = one.with_messages(UserMessage(text="more"))

    assert list_changes(other, one) == [3]
    assert list_changes(longer, other) == [3, 4]
    assert list_changes(longer, one) == [4]
    assert list_changes(other, saved) == [3]


@pytest.mark.parametrize(
    "make", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))], ids=["copy", "deep", "pickle"]
)
def test_a_copy_that_goes_another_way_is_not_taken_for_the_original(make: Callable[[Any], Conversation]) -> None:
    saved = build_conversation(3)
    twin = make(saved)
    one, other = saved.with_messages(UserMessage(text="one")), twin.with_messages(UserMessage(text="other"))

    assert 3 in list_changes(other, one)
    assert 3 in list_changes(one, other)


def test_messages_that_a_caller_put_there_are_compared() -> None:
    saved = build_conversation(4).with_messages(UserMessage(text="more"))
    edited = list(saved.messages)
    edited[1] = UserMessage(text="edited")

    assert list_changes(structs.replace(saved, messages=tuple(edited)), saved) == [1]
    assert list_changes(structs.replace(saved, messages=tuple(edited)).with_messages(edited[0]), saved) == [1, 5]
    assert diff_conversation(structs.replace(saved, messages=saved.messages[:2]), saved).length == 2


def test_it_is_neither_saved_nor_compared() -> None:
    grown = Conversation(session_id="s-1").with_messages(UserMessage(text="a"))

    assert grown == Conversation(session_id="s-1", messages=(UserMessage(text="a"),))
    assert b"appended" not in diff_conversation(grown, None).state
    assert msgspec.json.decode(msgspec.json.encode(grown), type=Conversation) == grown


changes = st.sampled_from(["append", "two", "calls", "replace", "cut", "edit", "turn", "copy", "load", "another's"])


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(st.tuples(changes, st.integers(0, 7), st.integers(0, 7)), max_size=25))
def test_whatever_is_done_to_conversations_every_difference_is_found(steps: list[tuple[str, int, int]]) -> None:
    known = [Conversation(session_id="s-1"), build_conversation(4)]
    for number, (change, which, offset) in enumerate(steps):
        before, new = known[which % len(known)], UserMessage(text=f"step {number}")
        messages = before.messages
        place = offset % len(messages) if messages else 0
        match change:
            case "append":
                after = before.with_messages(new)
            case "two":
                after = before.with_messages(new, new).with_messages(new)
            case "calls":
                after = before.with_messages(AssistantMessage(text="a")).with_calls([ToolCall(id="c", name="n")])
            case "replace":
                after = structs.replace(before, messages=(*messages[:place], new, *messages[place + 1 :]))
            case "cut":
                after = structs.replace(before, messages=messages[:place])
            case "edit":
                after = structs.replace(before, messages=messages[:place]).with_messages(*messages[place:])
            case "copy":
                after = copy.copy(before)
            case "load":
                after = msgspec.json.decode(msgspec.json.encode(before), type=Conversation)
            case "another's":
                after = structs.replace(before, messages=messages[:place], appended=known[-1].appended)
            case _:
                after = structs.replace(before, turn=number)
        known.append(after)
    for item in known:
        for other in known:
            pairs = zip(item.messages, other.messages, strict=False)
            changed = [at for at, (left, right) in enumerate(pairs) if left is not right]
            assert list_changes(item, other) == [*changed, *range(len(other.messages), len(item.messages))]
