"""Whatever a person, a model and a machine do in whatever order, a conversation stays one that can go on."""

import asyncio
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from handrail import Executor, Policy, Rule, ToolContext, tool
from handrail.authorize import MemoryApprovals
from handrail.chat import Budget, ChatSession, Conversation
from handrail.chat.conversation import decode_conversation
from handrail.errors import ConfigError, ProviderDownError
from handrail.execute import MemoryLedger
from handrail.providers import ModelRequest, ToolMessage
from handrail.testing import ScriptedProvider
from handrail.testing.scripted import Line
from handrail.testing.servers import text, text_and_calls, tool_calls, truncated

amounts = st.integers(1, 4)
some_calls = st.lists(
    st.sampled_from([("look", {}), ("nothing", {}), ("pay", {"amount": "x"}), ("pay", '{"amou')])
    | amounts.map(lambda amount: ("pay", {"amount": amount}))
    | amounts.map(lambda amount: ("wire", {"amount": amount})),
    min_size=1,
    max_size=3,
)
lines: st.SearchStrategy[Line] = st.one_of(
    st.just("Words."),
    some_calls.map(lambda calls: tool_calls(*calls)),
    some_calls.map(lambda calls: text_and_calls("Both.", *calls)),
    some_calls.map(lambda calls: truncated("", *calls)),
    st.just(text("Cut off here.", cut_after=1)),
    st.builds(ProviderDownError, st.just("gone")),
)


class Kept:
    """One place for one conversation, as strict as the real ones, and through the same bytes."""

    in_memory = True

    def __init__(self) -> None:
        self.text: bytes | None = None

    async def save(self, conversation: Conversation, *, previous: Conversation | None = None) -> None:
        before = (await self.load("")).revision if self.text else 0
        assert conversation.revision == before + 1
        self.text = msgspec.json.encode(conversation)

    async def load(self, session_id: str) -> Any:
        return decode_conversation(self.text, source="here") if self.text else None

    async def remove(self, session_id: str) -> bool:
        raise NotImplementedError


class ConversationMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.approved = 0
        self.paid: list[int] = []
        self.wired: list[str] = []
        self.truth: bool | None = None
        self.queue: list[Line] = []
        self.kept = Kept()
        self.ledger, self.approvals = MemoryLedger(), MemoryApprovals()

    @initialize()
    def start(self) -> None:
        @tool(read_only=True, concurrency_safe=True)
        async def look() -> str:
            """Look."""
            await asyncio.sleep(0)
            return "seen"

        @tool
        async def pay(amount: int) -> str:
            """Pay."""
            await asyncio.sleep(0)
            self.paid.append(amount)
            return f"paid {amount}"

        async def verify(arguments: Any, context: Any) -> bool | None:
            return self.truth  # A sync one would run in a thread, and the steps of the loop could not be counted.

        @tool(verify=verify)
        async def wire(amount: int, context: ToolContext[Any]) -> str:
            """Send money by wire; the answer is lost."""
            assert context.call is not None
            self.wired.append(context.call.id)
            await asyncio.sleep(0)
            raise ConnectionError("lost")

        self.tools = [look, pay, wire]
        self.session = self.runner.run(self._loaded())

    async def _loaded(self) -> ChatSession:
        def next_line(request: ModelRequest) -> Line:
            self.check_request(request)
            return self.queue.pop(0) if self.queue else "Nothing more."

        return await ChatSession.load(
            ScriptedProvider([next_line] * 1000),
            Executor(self.tools, policy=Policy([Rule.allow("wire")]), ledger=self.ledger, approvals=self.approvals),
            context=ToolContext(session_id="s", customer_id="ann"),
            sessions=self.kept,
            create=True,
            budget=Budget(max_steps=3, max_calls=4),
        )

    def check_request(self, request: ModelRequest) -> None:
        """The model reads nothing final about a wire that nobody knows anything about."""
        unsettled = {call.id for call in self.session.conversation.unsettled}
        for item in (
            result for message in request.messages if isinstance(message, ToolMessage) for result in message.results
        ):
            code = item.error.code if item.error else None
            if item.call_id in self.wired:
                assert code in (None, "in_progress", "outcome_unknown"), item
            if item.tool_name == "wire" and code in ("in_progress", "outcome_unknown"):
                assert item.call_id in unsettled, item

    @rule(truth=st.sampled_from([True, None]))
    def find_out(self, truth: bool | None) -> None:
        """The bank can be asked what became of the wires, or not any more."""
        self.truth = truth

    def play(self, turn: Any, leaves_after: int | None) -> None:
        async def leave() -> None:
            task = asyncio.create_task(turn)
            for _ in range(leaves_after or 0):
                await asyncio.sleep(0)
            if leaves_after is not None:
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()) is not None:
                assert isinstance(error, ProviderDownError | ConfigError), error

        self.runner.run(leave())

    @rule(said=st.lists(lines, max_size=3), leaves_after=st.none() | st.integers(0, 30))
    def send(self, said: list[Line], leaves_after: int | None) -> None:
        self.queue = said
        self.play(self.session.send("Something."), leaves_after)

    @rule(leaves_after=st.none() | st.integers(0, 30))
    def go_on(self, leaves_after: int | None) -> None:
        self.play(self.session.resume(), leaves_after)

    @rule(after=st.integers(0, 20))
    def interrupt(self, after: int) -> None:
        async def interrupted() -> None:
            task = asyncio.create_task(self.session.send("Something else."))
            for _ in range(after):
                await asyncio.sleep(0)
            self.session.interrupt()
            await asyncio.wait([task])

        self.queue = [tool_calls(("look", {}), ("pay", {"amount": 9}))]
        self.runner.run(interrupted())

    @precondition(lambda self: self.runner.run(self.session.approvals()))
    @rule(data=st.data(), yes=st.booleans())
    def decide(self, data: st.DataObject, yes: bool) -> None:
        open_ones = self.runner.run(self.session.approvals())
        token = data.draw(st.sampled_from([item.token for item in open_ones]))
        self.runner.run(self.session.approve(token) if yes else self.session.deny(token))
        self.approved += yes

    @rule()
    def restart(self) -> None:
        """Another process goes on, with what was saved and nothing else."""
        self.runner.run(self.session.executor.aclose())
        self.session = self.runner.run(self._loaded())

    @invariant()
    def nothing_is_paid_that_nobody_agreed_to(self) -> None:
        assert len(self.paid) <= self.approved

    @invariant()
    def no_wire_is_sent_twice(self) -> None:
        assert len(self.wired) == len(set(self.wired))

    @invariant()
    def what_is_in_memory_is_what_was_saved(self) -> None:
        if hasattr(self, "session") and self.kept.text is not None:
            saved = self.runner.run(self.kept.load("s"))
            assert saved.messages == self.session.conversation.messages
            assert saved.revision == self.session.conversation.revision

    @invariant()
    def nobody_is_in_the_middle_of_a_turn(self) -> None:
        assert not hasattr(self, "session") or not self.session.is_busy

    def teardown(self) -> None:
        self.queue = []
        if hasattr(self, "session"):
            # Whatever happened, a last word is answered: the scripted provider refuses a history that is not whole.
            assert self.runner.run(self.session.send("And?")).stop_reason in (
                "completed",
                "max_steps",
                "approval_required",
            )
            self.runner.run(self.session.executor.aclose())
        self.runner.close()


def test_a_conversation_can_always_continue() -> None:
    run_machine(ConversationMachine, settings=settings(stateful_step_count=20))
