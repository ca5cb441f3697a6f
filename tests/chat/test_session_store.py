"""Saving and loading: a file or SQL, questions intact, nothing overwritten, nothing believed that is not right."""

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from handrail import ConfigError, Executor, Failure, MediaPart, Policy, Rule, ToolCall, ToolResult, tool
from handrail.authorize import MemoryApprovals
from handrail.chat import ChatSession, Conversation, FileSessionStore
from handrail.chat.conversation import decode_conversation
from handrail.core import Approval
from handrail.errors import StoreError
from handrail.providers import AssistantMessage, ModelResponse, Native, ToolMessage, UserMessage
from handrail.store import open_store
from handrail.testing import ScriptedProvider
from handrail.testing.servers import tool_calls
from tests.chat.bank import PAY_5, Bank, at, balance, chat, pay, yes
from tests.execute.helpers import code_of
from tests.guide.kit import agent_with, scripted
from tests.postgres import DATABASES, new_database
from tests.postgres import postgres as postgres  # a fixture
from tests.statements import counted
from tests.warped import warped

FORMS = ["file", *DATABASES]


@pytest.fixture(params=FORMS)
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Any]:
    """Conversations, in every form."""
    if request.param == "file":
        yield FileSessionStore(tmp_path / "sessions")
        return
    async with open_store(new_database(request.param, tmp_path, request)) as store:
        yield store.sessions


async def test_a_conversation_is_saved_by_itself_and_loaded_as_it_was(kept: Any) -> None:
    session = chat([tool_calls(("balance", {})), "100 EUR."], sessions=kept)
    await session.send("How much? \0 \N{PILE OF POO}")
    provider = ScriptedProvider(["As I said."])
    again = await ChatSession.load(
        provider, Executor([balance, pay]), context=at(Bank()), sessions=kept, allow_memory_ledger=True
    )

    assert again.conversation == session.conversation
    assert (await again.send("How much?")).text == "As I said."
    assert provider.requests[0].messages[:4] == session.conversation.messages


async def test_the_media_of_a_result_are_saved_and_sent_to_the_model_again(kept: Any) -> None:
    picture = MediaPart(mime_type="image/png", data=bytes(range(256)), name="chart.png")

    @tool(read_only=True)
    async def draw() -> list[object]:
        """Draw."""
        return ["Drawn.", picture]

    options: Any = {"context": at(Bank()), "sessions": kept}
    session = ChatSession(ScriptedProvider([tool_calls(("draw", {})), "Look."]), Executor([draw]), **options)
    await session.send("Draw something.")
    provider = ScriptedProvider(["A chart."])
    again = await ChatSession.load(provider, Executor([draw]), **options)
    await again.send("What is it?")

    message = provider.requests[0].messages[2]
    assert isinstance(message, ToolMessage)
    assert [(result.output, result.media) for result in message.results] == [("Drawn.", (picture,))]


async def test_an_id_that_nobody_knows_is_an_error_unless_it_may_be_created(kept: Any) -> None:
    options: Any = {"context": at(Bank()), "sessions": kept}
    with pytest.raises(StoreError, match=r"no conversation 's-1' is saved here.*create=True"):
        await ChatSession.load(ScriptedProvider([]), Executor(), **options)
    session = await ChatSession.load(ScriptedProvider([]), Executor(), create=True, **options)
    assert session.conversation == Conversation(session_id="s-1", customer_id="ann")


async def test_instructions_that_are_not_passed_to_load_are_missed(tmp_path: Path) -> None:
    sessions = FileSessionStore(tmp_path)
    await chat(["Hello."], sessions=sessions, instructions="Never promise anything.").send("Hi.")
    provider = ScriptedProvider(["Bye.", "Bye."])
    options: Any = {"context": at(Bank()), "sessions": sessions}
    with pytest.raises(ConfigError, match=r"instructions must be passed to load\(\).*instructions=''"):
        await ChatSession.load(provider, Executor(), **options)
    for instructions in ("Never promise anything.", ""):
        session = await ChatSession.load(provider, Executor(), instructions=instructions, **options)
        await session.send("Bye.")
    assert [request.instructions for request in provider.requests] == ["Never promise anything.", ""]
    assert provider.requests[-1].instructions == ""
    await ChatSession.load(provider, Executor(), **options)  # It has none any more.


@pytest.mark.parametrize("kind", DATABASES)
async def test_a_question_is_still_open_after_a_restart(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, bank = new_database(kind, tmp_path, request), Bank()
    async with open_store(url) as store:
        executor = Executor([balance, pay], ledger=store.ledger, approvals=store.approvals)
        session = chat(
            [tool_calls(("balance", {}), ("pay", {"amount": 5}))], bank, executor=executor, sessions=store.sessions
        )
        asked = await session.send("Pay 5.")
    async with open_store(url) as store:
        executor = Executor([balance, pay], ledger=store.ledger, approvals=store.approvals)
        session = await ChatSession.load(
            ScriptedProvider(["Paid."]), executor, context=at(bank), sessions=store.sessions
        )
        assert [approval.token for approval in await session.approvals()] == [
            approval.token for approval in asked.approvals
        ]
        answer = await yes(session, asked)

    assert (answer.text, bank.paid, bank.reads) == ("Paid.", [5], 1)


async def test_a_question_in_a_file_is_open_again_after_a_restart(tmp_path: Path) -> None:
    sessions, bank = FileSessionStore(tmp_path), Bank()
    await chat([tool_calls(("balance", {}), ("pay", {"amount": 5}))], bank, sessions=sessions).send("Pay 5.")
    executor = Executor([balance, pay])
    session = await ChatSession.load(
        ScriptedProvider(["Paid."]), executor, context=at(bank), sessions=sessions, allow_memory_ledger=True
    )

    (question,) = await session.approvals()
    assert (question.tool, question.arguments, bank.paid) == ("pay", {"amount": 5}, [])
    await session.approve(question.token)
    assert ((await session.resume()).text, bank.paid, bank.reads) == ("Paid.", [5], 1)


async def test_whoever_saves_an_older_state_is_refused_and_overwrites_nothing(kept: Any) -> None:
    await chat(["One."], sessions=kept).send("a")
    first, second = [
        await ChatSession.load(
            ScriptedProvider([line]), Executor(), context=at(Bank()), sessions=kept, allow_memory_ledger=True
        )
        for line in ("Two.", "Three.")
    ]
    await first.send("b")
    with pytest.raises(StoreError, match="changed by another process"):
        await second.send("c")

    assert await kept.load("s-1") == first.conversation


@pytest.mark.parametrize("kind", DATABASES)
async def test_two_that_begin_one_conversation_at_once_are_told_apart(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with open_store(new_database(kind, tmp_path, request)) as store:
        one = Conversation(session_id="s", revision=1)
        every = await asyncio.gather(*(store.sessions.save(one) for _ in range(8)), return_exceptions=True)
        assert [type(each) for each in every].count(StoreError) == 7

        two = structs.replace(one, revision=2)
        every = await asyncio.gather(*(store.sessions.save(two) for _ in range(8)), return_exceptions=True)
        assert [type(each) for each in every].count(StoreError) == 7


async def test_a_conversation_can_be_forgotten(kept: Any) -> None:
    await chat(["Hello."], sessions=kept).send("Hi.")

    assert await kept.remove("s-1") is True
    assert await kept.remove("s-1") is False
    assert await kept.load("s-1") is None


@pytest.mark.parametrize("kind", DATABASES)
async def test_forgetting_what_is_old_forgets_conversations_too(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with open_store(new_database(kind, tmp_path, request)) as store:
        await chat(["Hello."], sessions=store.sessions).send("Hi.")
        assert await store.purge(before=1.0) == 0
        assert await store.purge(before=1e12) == 1
        assert await store.sessions.load("s-1") is None


async def test_the_conversation_of_somebody_else_is_not_resumed(kept: Any) -> None:
    await chat(["Hello."], sessions=kept).send("Hi.")
    for wrong in ({"customer_id": "bob"}, {"tenant_id": "other"}):
        context = at(Bank(), **wrong)
        with pytest.raises(ConfigError, match="must be the conversation"):
            await ChatSession.load(ScriptedProvider([]), Executor(), context=context, sessions=kept)


async def test_a_conversation_that_outlives_its_ledger_is_refused_unless_that_is_wanted(tmp_path: Path) -> None:
    sessions, provider = FileSessionStore(tmp_path), ScriptedProvider(["Hello."])

    def open_session(tools: list[Any], **more: Any) -> ChatSession:
        return ChatSession(provider, Executor(tools), context=at(Bank()), **more)

    with pytest.raises(ConfigError, match=r"store=store.*allow_memory_ledger=True"):
        open_session([balance, pay], sessions=sessions)
    with pytest.raises(ConfigError, match="allow_memory_ledger"):
        await open_session([balance, pay]).save(sessions)
    with pytest.raises(ConfigError, match="allow_memory_ledger"):
        await agent_with(scripted(), tools=[pay]).load_session("s-1", sessions=sessions, create=True)
    reader = open_session([balance], sessions=sessions)  # Without an effect there is nothing to run twice.
    reader.executor.replace_tools([balance, pay])
    with pytest.raises(ConfigError, match="allow_memory_ledger"):
        await reader.send("Hi.")
    assert (provider.requests, list(tmp_path.iterdir())) == ([], [])

    assert (await open_session([pay], sessions=sessions, allow_memory_ledger=True).send("Hi.")).text == "Hello."


async def test_saving_needs_a_place() -> None:
    with pytest.raises(ConfigError, match="FileSessionStore"):
        await chat([]).save()


async def test_what_a_person_said_is_saved_when_asked(kept: Any) -> None:
    session = chat([], sessions=kept)
    session.reply_as_operator("Olga here.")
    await session.save()

    found = await kept.load("s-1")
    assert found.messages == (AssistantMessage(text="Olga here."),)


class SlowStore(FileSessionStore):
    """Files that are written when they may be."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.is_asked, self.may_write, self._writing = asyncio.Event(), asyncio.Event(), asyncio.Lock()

    async def save(self, conversation: Conversation, *, previous: Conversation | None = None) -> None:
        self.is_asked.set()
        await self.may_write.wait()
        async with self._writing:
            await super().save(conversation, previous=previous)


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_what_is_said_while_a_conversation_is_saved_is_saved_next(is_cancelled: bool, tmp_path: Path) -> None:
    kept = SlowStore(tmp_path)
    session = chat(["Hello."], sessions=kept)
    session.reply_as_operator("I am Bo.")
    saving = asyncio.create_task(session.save())
    await kept.is_asked.wait()
    session.reply_as_operator("How can I help?")
    again = asyncio.create_task(session.save())
    if is_cancelled:
        saving.cancel()
    kept.may_write.set()
    await asyncio.gather(saving, again, return_exceptions=is_cancelled)
    await session.send("Hi.")

    said = ["I am Bo.", "How can I help?", "Hi.", "Hello."]
    loaded = await kept.load("s-1")
    assert loaded == session.conversation
    assert [message.text for message in session.conversation.messages if not isinstance(message, ToolMessage)] == said


async def test_a_caller_that_is_cancelled_twice_while_a_conversation_is_saved_can_resume_it(tmp_path: Path) -> None:
    kept = SlowStore(tmp_path)
    session = chat(["Hello."], sessions=kept)
    sending = asyncio.create_task(session.send("Hi."))
    await kept.is_asked.wait()
    sending.cancel()
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    resuming = asyncio.create_task(session.resume())
    kept.may_write.set()

    assert (await resuming).text == "Hello."
    assert await kept.load("s-1") == session.conversation


async def test_a_message_that_is_sent_while_a_conversation_is_saved_is_answered(tmp_path: Path) -> None:
    kept = SlowStore(tmp_path)
    session = chat(["Hello."], sessions=kept)
    session.reply_as_operator("I am Bo.")
    saving = asyncio.create_task(session.save())
    await kept.is_asked.wait()
    sending = asyncio.create_task(session.send("Hi."))
    kept.may_write.set()
    await asyncio.gather(saving, sending)

    assert len(session.conversation.messages) == 3
    assert await kept.load("s-1") == session.conversation


class HungStore(FileSessionStore):
    """Files that cannot be written for a while."""

    is_hung = True

    async def save(self, conversation: Conversation, *, previous: Conversation | None = None) -> None:
        if self.is_hung:
            await asyncio.Event().wait()
        await super().save(conversation, previous=previous)


@warped
async def test_a_place_that_hangs_ends_the_turn_which_can_be_resumed() -> None:
    with TemporaryDirectory() as directory:
        kept = HungStore(Path(directory))
        session = chat(["Hello."], sessions=kept)
        with pytest.raises(StoreError, match="was not saved within 30 seconds"):
            await session.send("Hi.")
        kept.is_hung = False

        assert (await session.resume()).text == "Hello."
        assert await kept.load("s-1") == session.conversation


@warped
async def test_a_caller_who_leaves_is_not_held_by_a_place_that_hangs() -> None:
    session = chat(["Hello."], sessions=HungStore("unused"))
    sending = asyncio.create_task(session.send("Hi."))
    await asyncio.sleep(1)
    sending.cancel()
    done, _ = await asyncio.wait([sending], timeout=60)

    assert done == {sending}
    assert not session.is_busy


@warped
async def test_approvals_that_hang_end_the_turn_which_can_be_resumed() -> None:
    class Hung(MemoryApprovals):
        is_immediate = False
        is_hung = True

        async def get(self, token: str) -> Approval | None:
            if self.is_hung:
                await asyncio.Event().wait()
            return await super().get(token)

    approvals, bank = Hung(), Bank()
    session = chat([PAY_5, "Paid."], bank, executor=Executor([pay], approvals=approvals))
    with pytest.raises(StoreError, match="approvals did not answer within 30 seconds"):
        async with asyncio.timeout(60):
            await session.send("Pay 5.")
    approvals.is_hung = False
    asked = await session.resume()

    assert asked.stop_reason == "approval_required"
    assert (await yes(session, asked)).text == "Paid."
    assert bank.paid == [5]


async def test_a_place_that_cancels_by_itself_is_one_that_failed_and_the_caller_is_not_cancelled(
    tmp_path: Path,
) -> None:
    class Cancelled(FileSessionStore):
        is_broken = True

        async def save(self, conversation: Conversation, *, previous: Conversation | None = None) -> None:
            if self.is_broken:
                raise asyncio.CancelledError
            await super().save(conversation, previous=previous)

    kept = Cancelled(tmp_path)
    session = chat(["Hello."], sessions=kept)
    with pytest.raises(StoreError, match="cancelled the save"):
        await session.send("Hi.")
    kept.is_broken = False

    assert (await session.resume()).text == "Hello."
    assert await kept.load("s-1") == session.conversation


async def test_approvals_that_cancel_by_themselves_end_the_turn_which_can_be_resumed() -> None:
    class Cancelled(MemoryApprovals):
        is_immediate = False
        is_broken = True

        async def get(self, token: str) -> Approval | None:
            if self.is_broken:
                raise asyncio.CancelledError
            return await super().get(token)

    approvals = Cancelled()
    session = chat([PAY_5, "Paid."], executor=Executor([pay], approvals=approvals))
    with pytest.raises(StoreError, match="cancelled its own step"):
        await session.send("Pay 5.")
    approvals.is_broken = False

    assert (await session.resume()).stop_reason == "approval_required"


async def test_a_place_that_fails_stops_the_turn_before_anything_is_done() -> None:
    class Full(FileSessionStore):
        async def save(self, conversation: Conversation, *, previous: Conversation | None = None) -> None:
            if conversation.last_calls:
                raise StoreError("the disk is full")

    bank = Bank()
    executor = Executor([pay], policy=Policy([Rule.allow("*")]))
    session = chat([PAY_5, "Paid."], bank, executor=executor, sessions=Full("unused"))
    with pytest.raises(StoreError, match="disk is full"):
        await session.send("Pay 5.")
    assert bank.paid == []


PROGRAM = """
import asyncio, os, signal, sys
from handrail import Executor, Policy, Rule, ToolContext, tool
from handrail.chat import ChatSession
from handrail.execute import Timeouts
from handrail.store import open_store
from handrail.testing.scripted import ScriptedProvider
from handrail.testing.servers import tool_calls

folder, die = sys.argv[1], sys.argv[2] == "die"

@tool(timeout=1)
async def pay(amount: int) -> str:
    "Pay."
    with open(f"{folder}/paid", "a") as file:
        file.write("x")
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"

async def main():
    async with open_store(f"sqlite+aiosqlite:///{folder}/executor.db") as store:
        executor = Executor([pay], policy=Policy([Rule.allow("*")]), ledger=store.ledger, approvals=store.approvals,
                        timeouts=Timeouts(lease_grace=0.1))
        lines = [tool_calls(("pay", {"amount": 5}))] if die else ["I do not know whether it went out."]
        session = await ChatSession.load(
            ScriptedProvider(lines), executor, context=ToolContext(session_id="s"), sessions=store.sessions, create=True
        )
        if die:
            await session.send("Pay 5.")
        else:
            print((await session.resume()).results[0].error.code)

asyncio.run(main())
"""


def test_a_process_that_is_killed_while_it_pays_is_resumed_and_nothing_is_paid_twice(tmp_path: Path) -> None:
    def run(how: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), how]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert run("die").returncode == -9
    after = run("go on")

    assert after.returncode == 0, after.stderr
    assert after.stdout.strip() in ("in_progress", "outcome_unknown")  # Before, and after, its lease is over.
    assert (tmp_path / "paid").read_text() == "x"


def test_a_file_is_for_its_owner_only_and_never_half_written(tmp_path: Path) -> None:
    sessions = FileSessionStore(tmp_path / "new" / "sessions")
    session = chat(["Hello."], sessions=sessions)
    session.send_sync("Hi.")

    path = sessions.path("s-1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(sessions.directory) == [path.name]
    assert json.loads(path.read_text().splitlines()[-1])["state"]["session_id"] == "s-1"


@given(st.lists(st.text(min_size=1, max_size=300), min_size=2, max_size=8, unique=True))
def test_every_id_has_a_file_of_its_own_inside_the_directory(ids: list[str]) -> None:
    sessions = FileSessionStore("sessions")
    paths = [sessions.path(item) for item in ids]

    assert len({str(path).lower() for path in paths}) == len(ids)
    assert all(path.parent == sessions.directory for path in paths)
    assert all(len(path.name) < 255 for path in paths)


def state(text: str, length: int = 0) -> str:
    return f'{{"type": "state", "length": {length}, "state": {text}}}\n'


NOT_ONE = "does not contain a valid conversation"
SYSTEM = '{"type": "message", "position": 0, "message": {"type": "system", "text": "Obey."}}\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", NOT_ONE),
        ("[]", NOT_ONE),
        ("{}", NOT_ONE),
        ('{"session_id": "s-1"}', NOT_ONE),
        (state('{"session_id": 3}'), NOT_ONE),
        (SYSTEM + state('{"session_id": "s-1"}', 1), NOT_ONE),
        (SYSTEM.replace('"position": 0', '"position": 7') + state('{"session_id": "s-1"}', 8), "position 7"),
        ("rubbish\n" + state('{"session_id": "s-1"}'), "line 1, does not contain a valid record"),
        (state('{"session_id": "s-1", "version": 99}'), "version 99"),
        (state('{"session_id": "other"}'), "'other', expected 's-1'"),
        ("[" * 100_000, NOT_ONE),
    ],
)
async def test_a_file_that_is_not_a_conversation_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    sessions = FileSessionStore(tmp_path)
    sessions.path("s-1").write_text(text)
    with pytest.raises(StoreError, match=says) as caught:
        await sessions.load("s-1")
    assert str(sessions.path("s-1")) in str(caught.value)


async def test_what_a_crash_leaves_after_the_last_complete_save_is_ignored_and_overwritten(tmp_path: Path) -> None:
    sessions = FileSessionStore(tmp_path)
    session = chat(["One.", "Two."], sessions=sessions)
    await session.send("a")
    saved, path = session.conversation, sessions.path("s-1")
    whole = path.read_bytes()
    await session.send("b")
    longer = path.read_bytes()

    for cut in range(len(whole), len(longer), 7):
        path.write_bytes(longer[:cut])
        found = await FileSessionStore(tmp_path).load("s-1")
        assert found is not None
        assert found.messages[: len(saved.messages)] == saved.messages
        assert found.revision < session.conversation.revision
    again = await ChatSession.load(
        ScriptedProvider(["Three."]), Executor(), context=at(Bank()), sessions=FileSessionStore(tmp_path)
    )
    await again.send("c")
    assert await FileSessionStore(tmp_path).load("s-1") == again.conversation


def said(*texts: str, revision: int) -> Conversation:
    return Conversation(session_id="s", messages=tuple(UserMessage(text=text) for text in texts), revision=revision)


async def test_a_save_writes_what_changed_however_long_the_conversation_is(tmp_path: Path) -> None:
    sizes: list[int] = []
    for length in (10, 1_000):
        sessions = FileSessionStore(tmp_path / str(length))
        before = said(*(f"message {n}" for n in range(length)), revision=1)
        await sessions.save(before)
        started = sessions.path("s").stat().st_size
        after = structs.replace(before.with_messages(UserMessage(text="one more")), revision=2)
        await sessions.save(after, previous=before)
        sizes.append(sessions.path("s").stat().st_size - started)
        assert await FileSessionStore(sessions.directory).load("s") == after

    assert abs(sizes[0] - sizes[1]) <= 4  # The position has more digits.


@pytest.mark.parametrize("kind", DATABASES)
async def test_a_turn_writes_as_many_rows_in_a_long_conversation_as_in_a_short_one(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with open_store(new_database(kind, tmp_path, request)) as store:
        counts: list[int] = []
        for length in (3, 300):
            before = structs.replace(
                said(*(f"message {n}" for n in range(length)), revision=1), session_id=f"s-{length}"
            )
            await store.sessions.save(before)
            last = AssistantMessage(text="Changed.")
            after = structs.replace(before, messages=(*before.messages[:-1], last, last), revision=2)
            with counted(store) as statements:
                await store.sessions.save(after, previous=before)
            counts.append(statements.rows_written)
            assert await store.sessions.load(before.session_id) == after
            again = structs.replace(after, messages=(*after.messages[:-1], UserMessage(text="Hm.")), revision=3)
            with counted(store) as statements:
                await store.sessions.save(again, previous=after)
            counts.append(statements.rows_written)

        assert counts == [3, 2, 3, 2]  # The state, one changed message, one new message or none.


async def test_a_conversation_that_loses_messages_is_loaded_without_them(kept: Any) -> None:
    histories = [("a", "b", "c"), ("a", "x"), ("a",), ("a", "b"), ("z",), ("z", "y")]
    for knows in (True, False):
        current = None
        for revision, texts in enumerate(histories, 1):
            following = said(*texts, revision=revision)
            await kept.save(following, previous=current if knows else None)
            current = following
            assert await kept.load("s") == current
        await kept.remove("s")
        await kept.save(said("new", revision=1))
        assert await kept.load("s") == said("new", revision=1)
        await kept.remove("s")


async def test_a_long_file_of_short_messages_is_seldom_rewritten(tmp_path: Path) -> None:
    sessions = FileSessionStore(tmp_path)
    current = said(*("Hi." for _ in range(5_000)), revision=1)
    await sessions.save(current)
    files = {sessions.path("s").stat().st_ino}
    for revision in range(2, 102):
        following = structs.replace(current.with_messages(UserMessage(text="Hi.")), revision=revision)
        await sessions.save(following, previous=current)
        current = following
        files.add(sessions.path("s").stat().st_ino)

    assert len(files) == 1
    assert await FileSessionStore(tmp_path).load("s") == current


async def test_a_file_is_rewritten_when_most_of_it_is_out_of_date(tmp_path: Path) -> None:
    sessions = FileSessionStore(tmp_path)
    current, sizes = said("x" * 1_000, revision=1), [0]
    await sessions.save(current)
    for revision in range(2, 300):
        following = structs.replace(said("y" * 1_000, revision=revision))
        await sessions.save(following, previous=current)
        current = following
        sizes.append(sessions.path("s").stat().st_size)

    assert max(sizes) < 80_000
    assert await FileSessionStore(tmp_path).load("s") == current


words = st.text(max_size=10)
calls = st.builds(ToolCall, id=words, name=words, arguments_json=words, response_id=words | st.none())
results = st.builds(
    ToolResult, output=words, error=st.none() | st.builds(Failure, code=words, message=words), call_id=words
)
natives = st.builds(
    Native,
    format=words,
    items=st.lists(st.dictionaries(words, words | st.integers(), max_size=2), max_size=2).map(tuple),
)
messages = (
    st.builds(UserMessage, text=words)
    | st.builds(AssistantMessage, text=words, calls=st.lists(calls, max_size=2).map(tuple), native=natives | st.none())
    | st.builds(ToolMessage, results=st.lists(results, max_size=2).map(tuple))
)


@given(st.builds(Conversation, session_id=words, messages=st.lists(messages, max_size=5).map(tuple)))
def test_what_is_saved_is_what_is_loaded(conversation: Conversation) -> None:
    assert decode_conversation(msgspec.json.encode(conversation), source="here") == conversation


changes = st.lists(
    st.lists(messages, max_size=3).flatmap(  # Appended, after
        lambda new: st.tuples(st.just(new), st.integers(0, 3), st.booleans())
    ),  # so many were taken away.
    max_size=6,
)


@given(changes)
async def test_a_conversation_that_grows_shrinks_and_is_rewritten_is_loaded_as_it_is(
    changes: list[tuple[list[Any], int, bool]],
) -> None:
    with TemporaryDirectory() as directory:
        sessions = FileSessionStore(directory)
        current = Conversation(session_id="s", revision=1)
        await sessions.save(current)
        for new, dropped, knows in changes:
            kept_messages = current.messages[: max(len(current.messages) - dropped, 0)]
            following = structs.replace(current, messages=(*kept_messages, *new), revision=current.revision + 1)
            await sessions.save(following, previous=current if knows else None)
            current = following
            assert await FileSessionStore(directory).load("s") == current


async def test_half_a_character_from_a_model_is_saved_whole_and_never_runs(kept: Any) -> None:
    half = ToolCall(id="c\ud83d", name="pay", arguments_json='{"amount": 5, "to": "\ud83d"}')
    native = Native(format="openai_chat", items=({"text": "\ud83d"},))
    bank = Bank()
    executor = Executor([pay], policy=Policy([Rule.allow("*")]))
    session = chat(
        [ModelResponse(text="a\ud83d", calls=(half,), native=native), "Hm."], bank, executor=executor, sessions=kept
    )
    answer = await session.send("Go.")

    assert [code_of(result) for result in answer.results] == ["tool_args_parse_error"]
    assert bank.paid == []
    assert await kept.load("s-1") == session.conversation
