"""The plain loop: ask, run the calls, give the answers, until the model is done or a budget is."""

import asyncio
import threading
import time
from collections.abc import Sequence
from math import nan
from typing import Any

import pytest

from handrail import ConfigError, Executor, Failure, ToolError, ToolResult, tool
from handrail.execute import Budget, LoopResult, run_until_done, run_until_done_sync
from handrail.execute.budget import LoopProgress
from handrail.formats import openai_chat
from handrail.testing.servers import text, text_and_calls, tool_calls
from tests.execute.helpers import ALLOWED, at, call
from tests.execute.providers import PROVIDERS, Provider
from tests.warped import warped


@tool(read_only=True, concurrency_safe=True)
async def weather(city: str) -> str:
    """The weather in a city."""
    if city == "Atlantis":
        raise ToolError("There is no such city.")
    return f"sunny in {city}"


@tool(key="what")
async def book(what: str, people: int = 1) -> dict[str, Any]:
    """Book something."""
    return {"booked": what, "people": people}


def executor() -> Executor:
    return Executor([weather, book], policy=ALLOWED)


each = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)

SCRIPT = [
    tool_calls(("weather", {"city": "Paris"}), ("weather", {"city": "Rome"})),
    text_and_calls("Let me book.", ("book", {"what": "table"}), ("weather", {"city": "Atlantis"})),
    text("LoopResult."),
]


async def play(provider: Provider, way: str, server: Any, **more: Any) -> LoopResult:
    def step(messages: list[Any], definitions: Sequence[Any]) -> Any:
        return provider.ask(server, messages, definitions)

    async def step_async(messages: list[Any], definitions: Sequence[Any]) -> Any:
        return await provider.ask_async(server, messages, definitions)

    given: Any = {"wire": provider.wire, "messages": [provider.user("Plan my evening.")], **more}
    if way == "sync":
        return await asyncio.to_thread(run_until_done_sync, step, executor(), at(), **given)
    return await run_until_done(step_async if way == "async" else step, executor(), at(), **given)


@pytest.mark.proves("HC-21", "TC-10")
@each
@pytest.mark.parametrize("way", ["async", "sync", "sync step"])
async def test_a_conversation_runs_until_the_model_responds_with_text(provider: Provider, way: str) -> None:
    with provider.server(SCRIPT) as server:
        done = await play(provider, way, server)

    assert done.stop_reason == "completed"
    assert provider.text(done.response) == "LoopResult."
    assert [result.output for result in done.results] == [
        "sunny in Paris",
        "sunny in Rome",
        {"booked": "table", "people": 1},
        None,
    ]
    assert provider.answers(done.messages) == [result.wire_id for result in done.results]
    assert done.messages[0] == provider.user("Plan my evening.")
    assert len(server.requests) == 3


@pytest.mark.proves("HC-21")
@each
async def test_a_collected_stream_is_a_response_too(provider: Provider) -> None:
    with provider.server(SCRIPT) as server:
        done = await run_until_done(
            lambda messages, tools: provider.stream(server, messages, tools),
            executor(),
            at(),
            wire=provider.wire,
            messages=[provider.user("Plan my evening.")],
        )

    assert done.stop_reason == "completed"
    assert provider.answers(done.messages) == [result.wire_id for result in done.results]
    assert len(done.results) == 4


@each
async def test_a_next_turn_continues_from_the_messages(provider: Provider) -> None:
    with provider.server([*SCRIPT, text("You are welcome.")]) as server:
        done = await play(provider, "async", server)
        again = await play(provider, "async", server, messages=[*done.messages, provider.user("Thanks!")])

    assert provider.text(again.response) == "You are welcome."
    assert again.messages[: len(done.messages)] == done.messages
    assert again.results == ()


@each
@pytest.mark.parametrize(
    ("budget", "stop_reason", "ran", "asked"),
    [
        (Budget(max_steps=1), "max_steps", 2, 1),
        (Budget(max_steps=2), "max_steps", 4, 2),
        (Budget(max_calls=1), "max_calls", 1, 1),
        (Budget(max_calls=3), "max_calls", 3, 2),
        (Budget(max_calls=0), "max_calls", 0, 1),
        (Budget(max_calls=4), "completed", 4, 3),
        (Budget(timeout=1e-9), "timeout", 0, 1),
    ],
)
async def test_a_budget_that_runs_out_leaves_every_call_with_a_result(
    provider: Provider, budget: Budget, stop_reason: str, ran: int, asked: int
) -> None:
    with provider.server([*SCRIPT[:asked], text("All right.")]) as server:
        done = await play(provider, "async", server, budget=budget)
        assert done.stop_reason == stop_reason
        assert len(server.requests) == asked
        refused = [result for result in done.results if result.error and result.error.code == "rate_limited"]
        assert len(done.results) - len(refused) == ran
        assert provider.answers(done.messages) == [result.wire_id for result in done.results]
        # The server takes a history in which every call has its answer, and no other.
        more = [provider.user("Thanks.")] if stop_reason == "completed" else []
        provider.ask(server, [*done.messages, *more], provider.wire.tools(executor().registry))


class Scripted:
    """A step that answers from a list, in the format of Chat Completions."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.threads: list[int] = []

    def __call__(self, messages: list[Any], definitions: Sequence[Any]) -> Any:
        self.threads.append(threading.get_ident())
        return self.answers.pop(0)


def chat(*calls: tuple[str, str, str], content: str | None = None) -> dict[str, Any]:
    made = [{"id": id, "type": "function", "function": {"name": name, "arguments": text}} for id, name, text in calls]
    message = {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}


def test_in_the_sync_form_the_step_runs_in_the_callers_own_thread() -> None:
    step = Scripted(chat(("1", "weather", '{"city": "Ulm"}')), chat(content="LoopResult."))
    done = run_until_done_sync(step, executor(), at(), wire=openai_chat, messages=[])

    assert done.stop_reason == "completed"
    assert set(step.threads) == {threading.get_ident()}


async def test_in_the_async_form_a_step_that_blocks_has_a_thread_of_its_own() -> None:
    step = Scripted(chat(("1", "weather", '{"city": "Ulm"}')), chat(content="LoopResult."))
    done = await run_until_done(step, executor(), at(), wire=openai_chat, messages=[])

    assert done.stop_reason == "completed"
    assert threading.get_ident() not in step.threads


async def test_a_plain_function_may_return_an_awaitable() -> None:
    async def answer() -> Any:
        return chat(content="LoopResult.")

    done = await run_until_done(lambda messages, tools: answer(), executor(), at(), wire=openai_chat, messages=[])
    assert done.stop_reason == "completed"


def test_the_sync_form_refuses_an_async_step() -> None:
    async def step(messages: list[Any], definitions: Sequence[Any]) -> Any:
        return chat(content="LoopResult.")

    coroutines: list[Any] = []

    def remembered(messages: list[Any], definitions: Sequence[Any]) -> Any:
        coroutines.append(step(messages, definitions))
        return coroutines[-1]

    with pytest.raises(ConfigError, match="use run_until_done"):
        run_until_done_sync(remembered, executor(), at(), wire=openai_chat, messages=[])
    coroutines[0].close()


async def test_the_messages_that_came_in_are_left_as_they_were() -> None:
    messages = [{"role": "user", "content": "Hi."}]
    done = await run_until_done(Scripted(chat(content="Hi.")), executor(), at(), wire=openai_chat, messages=messages)

    assert len(messages) == 1
    assert len(done.messages) == 2


async def test_a_model_that_asks_for_the_same_again_and_again_is_answered_and_stopped() -> None:
    answers = [chat((f"{n}", "book", '{"what": "table"}')) for n in range(30)]
    done = await run_until_done(
        Scripted(*answers), executor(), at(), wire=openai_chat, messages=[], budget=Budget(max_steps=10)
    )

    assert (done.stop_reason, len(done.results)) == ("max_steps", 10)
    assert sum("Already done" in result.for_model() for result in done.results) == 9


@pytest.mark.parametrize(("slow_part", "output"), [("model", None), ("tool", "done")])
@warped
async def test_time_that_runs_out_ends_the_loop_after_the_results_of_what_runs(
    slow_part: str, output: str | None
) -> None:
    async def work(part: str) -> None:
        await asyncio.sleep(11 if part == slow_part else 1)

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        await work("tool")
        return "done"

    async def respond(messages: list[Any], definitions: Sequence[Any]) -> Any:
        await work("model")
        return chat(("1", "look", "{}"))

    done = await run_until_done(
        respond, Executor([look]), at(), wire=openai_chat, messages=[], budget=Budget(timeout=10)
    )

    assert (done.stop_reason, [result.output for result in done.results]) == ("timeout", [output])


async def test_a_step_that_fails_reaches_the_caller() -> None:
    def step(messages: list[Any], definitions: Sequence[Any]) -> ToolResult:
        raise ConnectionError("no model")

    with pytest.raises(ConnectionError):
        await run_until_done(step, executor(), at(), wire=openai_chat, messages=[])


@pytest.mark.parametrize(
    "wrong",
    [{"max_steps": 0}, {"max_calls": -1}, {"timeout": 0}, {"max_steps": nan}, {"max_tokens": nan}, {"timeout": nan}],
)
def test_a_budget_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Budget(**wrong)


# A loop that stopped is resumed.


class Bank:
    """A payment of which nobody knows the outcome, until it is found out; beside it a look that always works."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.found: bool | None = None

        @tool(key="what", verify=lambda arguments, context: self.found)
        async def pay(what: str) -> str:
            """Pay."""
            self.paid.append(what)
            raise ConnectionError("lost")

        self.executor = Executor([pay, weather], policy=ALLOWED)

    async def run(self, *answers: dict[str, Any], **more: Any) -> LoopResult:
        self.step = Scripted(*answers)
        return await run_until_done(self.step, self.executor, at(), wire=openai_chat, **more)


PAY_AND_LOOK = chat(("1", "pay", '{"what": "rent"}'), ("2", "weather", '{"city": "Ulm"}'))


async def test_a_loop_with_a_call_in_doubt_stops_and_is_resumed_where_it_was() -> None:
    bank = Bank()
    asked = [{"role": "user", "content": "Pay."}]
    stopped = await bank.run(PAY_AND_LOOK, messages=asked)

    assert (stopped.stop_reason, len(stopped.messages)) == ("outcome_unknown", 2)
    assert [item.id for item in stopped.open_calls] == ["1", "2"]
    assert [result and result.output for result in stopped.partial_results] == [None, "sunny in Ulm"]

    still = await bank.run(resume=stopped)
    assert (still.stop_reason, still.messages, still.response) == (
        "outcome_unknown",
        stopped.messages,
        stopped.response,
    )
    assert still.open_calls == stopped.open_calls

    bank.found = True
    # What is looked at again had its place in the first budget.
    done = await bank.run(chat(content="Paid."), resume=still, budget=Budget(max_calls=0))
    assert (done.stop_reason, done.open_calls, done.partial_results) == ("completed", (), ())
    assert [message.get("tool_call_id") for message in done.messages] == [None, None, "1", "2", None]
    assert [result.call_id for result in done.results] == ["1"]
    assert bank.paid == ["rent"]


async def test_a_resumed_loop_has_its_messages_and_takes_no_others() -> None:
    bank = Bank()
    stopped = await bank.run(PAY_AND_LOOK, messages=[])

    with pytest.raises(ConfigError, match="messages cannot be passed together with resume"):
        await bank.run(resume=stopped, messages=[{"role": "user", "content": "Hi."}])


async def test_new_calls_of_a_resumed_loop_count_against_its_budget() -> None:
    bank = Bank()
    stopped = await bank.run(PAY_AND_LOOK, messages=[])
    bank.found = True

    more = chat(("3", "weather", '{"city": "Rom"}'), ("4", "weather", '{"city": "Bonn"}'))
    done = await bank.run(more, chat(content="never"), resume=stopped, budget=Budget(max_calls=2))

    assert (done.stop_reason, done.open_calls, done.partial_results) == ("max_calls", (), ())
    assert [result.ok for result in done.results] == [True, True, False]


def test_the_sync_form_resumes_too() -> None:
    bank = Bank()
    step = Scripted(PAY_AND_LOOK, chat(content="Paid."))
    stopped = run_until_done_sync(step, bank.executor, at(), wire=openai_chat)
    bank.found = True
    done = run_until_done_sync(step, bank.executor, at(), wire=openai_chat, resume=stopped)

    assert (stopped.stop_reason, done.stop_reason, bank.paid) == ("outcome_unknown", "completed", ["rent"])


# What ends a loop.


@warped
async def test_a_loop_ends_when_a_limit_is_reached_and_what_came_first_stays_the_reason() -> None:
    def start(**limits: Any) -> LoopProgress:
        return LoopProgress(Budget(**limits), executor())

    progress = start(max_tokens=10)
    progress.tokens = 9
    assert progress.check() is None
    progress.tokens = 10
    assert progress.check() == "token_budget"
    progress.is_interrupted = True
    assert progress.check() == "token_budget"

    progress = start(max_steps=2, timeout=60)
    progress.steps = 1
    await asyncio.sleep(59)
    assert progress.check() is None
    await asyncio.sleep(1)
    assert progress.check() == "timeout"

    progress = start(max_steps=2)
    progress.steps, progress.is_interrupted = 2, True
    assert progress.check() == "interrupted"


@warped
async def test_a_loop_admits_as_many_calls_as_it_has_room_for() -> None:
    calls = [call("weather", f"c-{n}", city="Ulm") for n in range(2)]

    def admit(progress: LoopProgress) -> tuple[int, list[str | None], str | None]:
        run, refused = progress.admit(calls)
        return len(run), [item.call_id for item in refused], progress.stop_reason

    assert admit(LoopProgress(Budget(max_calls=2), executor())) == (2, [], None)
    assert admit(LoopProgress(Budget(max_calls=1), executor())) == (1, ["c-1"], "max_calls")
    full = LoopProgress(Budget(max_calls=1), executor())
    full.add([ToolResult(output="x", call_id="a"), ToolResult(output="x", call_id="b")])
    assert admit(full) == (0, ["c-0", "c-1"], "max_calls")
    interrupted = LoopProgress(Budget(), executor())
    interrupted.is_interrupted = True
    assert admit(interrupted) == (0, ["c-0", "c-1"], None)
    late = LoopProgress(Budget(timeout=5), executor())
    await asyncio.sleep(5)
    assert admit(late) == (0, ["c-0", "c-1"], "timeout")


def test_what_nobody_knows_stops_a_loop_before_what_still_runs_and_an_interruption_before_both() -> None:
    def result(code: str) -> ToolResult:
        return ToolResult(error=Failure(code=code, message="x"), tool_name="book", call_id=code)

    both = [result("in_progress"), result("outcome_unknown"), ToolResult(output="fine")]
    progress = LoopProgress(Budget(), executor())
    progress.stop_if_unsettled(both[2:])
    assert progress.stop_reason is None
    progress.stop_if_unsettled(both)
    assert progress.stop_reason == "outcome_unknown"
    progress = LoopProgress(Budget(), executor())
    progress.is_interrupted = True
    progress.stop_if_unsettled(both)
    assert progress.stop_reason is None


@pytest.mark.parametrize("smallest", [{"max_steps": 1}, {"max_calls": 0}, {"max_tokens": 1}, {"max_tokens": None}])
def test_the_smallest_budget_is_one(smallest: dict[str, Any]) -> None:
    Budget(**smallest)


@pytest.mark.parametrize("wrong", [{"max_steps": True}, {"max_calls": 1.0}, {"max_tokens": 0}, {"timeout": -1}])
def test_a_budget_is_whole_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Budget(**wrong)


@pytest.mark.parametrize(("later", "is_late"), [(9.0, False), (10.0, True)])
def test_the_time_of_a_loop_is_over_at_its_deadline(
    later: float, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    asked, ran = (LoopProgress(Budget(timeout=10), executor()) for _ in range(2))
    now[0] += later
    run, refused = ran.admit([call("book", what="table")])

    assert asked.check() == ran.stop_reason == ("timeout" if is_late else None)
    assert (len(run), len(refused)) == (not is_late, is_late)
