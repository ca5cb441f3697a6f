"""Conversations over HTTP: streamed turns, approvals, interruption, two replicas, and clients that leave or sleep."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from handrail import Agent, Executor, Guideline, Policy, Rule, ToolCall, tool
from handrail.chat import Conversation
from handrail.errors import ConfigError, ProviderDownError
from handrail.guide import GuidelineMatch, Plan, ScriptedJudge, ToolVerdict
from handrail.providers import ModelRequest, ModelResponse, StreamEvent, TextDelta, UserMessage
from handrail.serve import ApiLimits, ChatAgent, build_app
from handrail.serve.api.turns import RunningTurn
from handrail.store import SqlStore, open_store
from handrail.tenants import TenantConfig, TenantDirectory
from handrail.testing import ScriptedProvider
from handrail.testing.servers import tool_calls
from tests.serve.service import Client, Replica, get_balance, open_replica, paid, pay
from tests.sources.serving import listening

READ = tool_calls(("get_balance", {"account": "a-1"}))
PAY = tool_calls(("pay", {"invoice": "i-1", "amount": 3}))


def make_agent(*lines: Any, **options: Any) -> ChatAgent:
    return ChatAgent(provider=ScriptedProvider(lines), **options)


async def send(client: Client, message: str = "hello", *, session: str = "s-1", status: int = 200, **body: Any) -> Any:
    """Send a message, and wait for the end of the turn."""
    headers = {"Accept": "application/json"}
    answer = await client.request(
        "POST", f"/sessions/{session}/turns", json={"message": message, **body}, headers=headers
    )
    assert answer.status_code == status, answer.text
    return answer.json()


async def resume(client: Client, *, session: str = "s-1", status: int = 200) -> Any:
    answer = await client.request("POST", f"/sessions/{session}/resume", headers={"Accept": "application/json"})
    assert answer.status_code == status, answer.text
    return answer.json()


async def stream(client: Client, message: str = "hello", *, session: str = "s-1") -> list[tuple[str, Any]]:
    answer = await client.request("POST", f"/sessions/{session}/turns", json={"message": message})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return read_events(answer.text)


def read_events(text: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


@pytest.mark.proves("SV-13")
async def test_a_turn_is_streamed_as_events_with_its_result_at_the_end(store: SqlStore) -> None:
    agent = make_agent(READ, "You have five.", instructions="Be brief.")
    async with open_replica(store, agent=agent) as replica:
        client = await replica.connect("caller")
        events = await stream(client, "how much?")
        assert [name for name, _ in events][:2] == ["call_started", "call_finished"]
        assert events[0][1]["tool"] == "get_balance"
        assert events[1][1]["output"] == {"account": "a-1", "balance": 5}
        assert "".join(data["text"] for name, data in events if name == "text") == "You have five."
        name, end = events[-1]
        assert (name, end["text"], end["stop_reason"]) == ("turn_finished", "You have five.", "completed")
        assert (end["session_id"], end["turn"]) == ("api:acme/s-1", 1)
        provider: Any = agent.provider
        assert provider.requests[0].instructions == "Be brief."

        shown = await client.get("/sessions/s-1")
        assert [message["role"] for message in shown["messages"]] == ["customer", "agent", "tools", "agent"]
        assert shown["messages"][2]["results"][0]["text"] == '{"account":"a-1","balance":5}'
        assert (shown["running"], shown["resumable"], shown["turn"]) == (False, False, 1)
        assert len((await client.get("/sessions/s-1", limit=1))["messages"]) == 1


@pytest.mark.proves("SV-13")
async def test_an_operator_approves_and_the_turn_is_resumed_at_another_replica(store: SqlStore) -> None:
    async with (
        open_replica(store, agent=make_agent(PAY)) as first,
        open_replica(store, agent=make_agent("Paid.")) as second,
    ):
        client, operator = await first.connect("caller"), await second.connect("operator")
        events = await stream(client, "pay i-1")
        asked = dict(events)["approval_requested"]
        assert (asked["by"], asked["arguments"]) == ("operator", {"invoice": "i-1", "amount": 3})
        assert events[-1][1]["stop_reason"] == "approval_required"
        assert (await client.get("/sessions/s-1"))["resumable"]
        await operator.post(f"/approvals/{asked['token']}/approve", {"reason": "fine"})

        done = await resume(second.use(client))

        assert (done["text"], done["results"][0]["output"], paid) == ("Paid.", "paid 3", [("i-1", 3)])
        assert (await resume(client, status=409))["error"]["code"] == "config_error"


async def test_a_caller_passes_on_what_the_customer_decided(store: SqlStore) -> None:
    executor = Executor([pay], policy=Policy([Rule.ask("pay", by="customer")]), store=store)
    paid.clear()
    app = build_app(executor, store=store, agent=make_agent(PAY, "Not paid, then."))
    async with app.router.lifespan_context(app):
        client = await Replica(app, executor, store).connect("caller")
        asked = (await send(client, customer_id="ann"))["approvals"][0]
        assert (asked["by"], asked["customer_id"]) == ("customer", "ann")
        await client.post(f"/approvals/{asked['token']}/deny", {"reason": "too much"})
        done = await resume(client)
        assert (done["results"][0]["error"]["code"], done["text"]) == ("permission_denied", "Not paid, then.")
        assert paid == []


async def test_a_guided_agent_is_served_with_its_trace(store: SqlStore) -> None:
    judge = ScriptedJudge(
        [Plan((GuidelineMatch("g1"),), (ToolVerdict("get_balance", "needs_to_run", {"account": "a-1"}),))],
        ["You have five."],
    )
    executor = Executor([get_balance], store=store)
    agent = Agent(
        judge=judge,
        executor=executor,
        guidelines=[Guideline(condition="the customer asks for the balance", tools=("get_balance",), id="g1")],
    )
    app = build_app(executor, store=store, agent=agent)
    async with app.router.lifespan_context(app):
        client = await Replica(app, executor, store).connect("caller")
        done = await send(client, "what is the balance of a-1?")
        assert (done["text"], done["results"][0]["tool"]) == ("You have five.", "get_balance")
        assert "1 g1 applies" in done["trace"]
        shown = await client.get("/sessions/s-1")
        assert shown["messages"][1]["calls"][0]["guideline_ids"] == ["g1"]


def test_an_agent_with_rules_of_its_own_is_refused(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/agent.db")
    agent = Agent(judge=ScriptedJudge([]), tools=[get_balance], policy=Policy([Rule.deny("get_balance")]))
    with pytest.raises(ConfigError, match=r"agent must have the executor of the app"):
        build_app(Executor([get_balance], store=store), store=store, agent=agent)
    with pytest.raises(ConfigError, match="agent must be a ChatAgent or an Agent, got str"):
        build_app(Executor([get_balance], store=store), store=store, agent="agent")  # type: ignore[arg-type]


@pytest.mark.proves("SV-09")
async def test_the_rules_and_instructions_of_a_tenant_hold_in_its_conversations(store: SqlStore) -> None:
    config = TenantConfig(
        tenant_id="acme", instructions="Speak for Acme.", policy=[{"deny": "get_balance", "reason": "not here"}]
    )
    await store.tenants.put(config, who="ann")
    agent = make_agent(READ, "I may not.", READ, "Five.", instructions="Be brief.")
    async with open_replica(store, agent=agent, tenants=store.tenants) as replica:
        done = await send(await replica.connect("caller"))
        assert done["results"][0]["error"]["code"] == "permission_denied"
        other = await send(await replica.connect("caller", "globex"))
        assert other["results"][0]["ok"]
        provider: Any = agent.provider
        assert provider.requests[0].instructions == "Be brief.\n\nSpeak for Acme."
        assert provider.requests[2].instructions == "Be brief."


@pytest.mark.proves("SV-01")
async def test_two_tenants_with_one_name_have_two_conversations(store: SqlStore) -> None:
    async with open_replica(store, agent=make_agent("one", "two")) as replica:
        ours, theirs = await replica.connect("caller"), await replica.connect("caller", "globex")
        await send(ours, "a secret of acme")
        await theirs.get("/sessions/s-1", 404)
        await resume(theirs, status=404)
        await send(theirs, "hello of globex")
        assert "acme" not in json.dumps(await theirs.get("/sessions/s-1"))
        host, of_globex = await replica.connect("operator", None), await replica.connect("operator", "globex")
        assert (await host.get("/sessions/s-1", tenant_id="acme"))["messages"][0]["text"] == "a secret of acme"
        await host.get("/sessions/s-1", 404)
        await of_globex.get("/sessions/s-1", 403, tenant_id="acme")
        assert "acme" not in json.dumps(await of_globex.get("/sessions/s-1"))


@pytest.mark.proves("SV-13")
async def test_conversations_are_listed_in_pages_the_newest_first_and_each_can_be_shown(store: SqlStore) -> None:
    agent = make_agent(*["hello"] * 9)
    async with open_replica(store, agent=agent) as replica:
        client, other = await replica.connect("caller"), await replica.connect("caller", "other")
        for name in ("one", "three", "four", "five"):
            await send(client, session=name, customer_id=f"of {name}")
        await send(other)
        await send(client, session="one")  # It moves to the front.
        # The application's own: no route shows it.
        await store.sessions.save(Conversation(session_id="own", tenant_id="acme", revision=1))

        pages = await read_pages(client, limit=2)
        assert [[row["name"] for row in page] for page in pages] == [["one"], ["five", "four"], ["three"]]
        for item in (row for page in pages for row in page):
            assert (item["tenant_id"], item["customer_id"]) == ("acme", f"of {item['name']}")
            assert (await client.get(f"/sessions/{item['name']}"))["session_id"] == item["session_id"]
        operator, host = await replica.connect("operator"), await replica.connect("operator", None)
        everything = await client.get("/sessions")
        assert everything == await operator.get("/sessions") == await host.get("/sessions", tenant_id="acme")
        assert everything["before"] is None
        assert (await host.get("/sessions"))["items"] == []  # It names no tenant.
        assert (await operator.get("/sessions", 403, tenant_id="other"))["error"]["code"] == "permission_denied"


@pytest.mark.parametrize("before", ["", "now", "nan:x", "-1:x", "1e12:x", "1.5"])
async def test_a_page_begins_where_another_one_ended(store: SqlStore, before: str) -> None:
    async with open_replica(store, agent=make_agent()) as replica:
        client = await replica.connect("caller")
        assert (await client.get("/sessions", before="1.5:s"))["items"] == []
        assert (await client.get("/sessions", 422, before=before))["error"]["code"] == "invalid_arguments"


async def read_pages(client: Client, *, limit: int) -> list[list[Any]]:
    """All pages of conversations."""
    pages: list[list[Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = await client.get("/sessions", limit=limit, **cursor)
        pages.append(page["items"])
        if page["before"] is None:
            return pages
        cursor = {"before": page["before"]}


async def test_a_conversation_stays_with_its_customer(store: SqlStore) -> None:
    async with open_replica(store, agent=make_agent("one", "two", "three")) as replica:
        client, other = await replica.connect("caller"), await replica.connect("caller", who="another bot")
        await send(client, customer_id="ann")
        await send(other)
        assert (await other.get("/sessions/s-1"))["customer_id"] == "ann"
        assert (await send(client, customer_id="bob", status=409))["error"]["code"] == "config_error"
        await send(client, session="s-2")
        assert (await client.get("/sessions/s-2"))["customer_id"] == "caller-of-acme"


async def test_a_message_that_is_sent_twice_can_be_refused(store: SqlStore) -> None:
    async with open_replica(store, agent=make_agent("one", "two")) as replica:
        client = await replica.connect("caller")
        await send(client, turn=1)
        assert (await send(client, turn=1, status=409))["error"]["code"] == "store_error"
        await send(client, turn=2)


WRONG: list[Any] = [
    {},
    {"message": ""},
    {"message": " \n"},
    {"message": 3},
    {"message": "x" * 200_001},
    {"message": "hi", "quoted": "no list"},
    {"message": "hi", "quoted": ["x"] * 21},
    {"message": "hi", "quoted": ["x", "y" * 200_001]},
    {"message": "hi", "turn": 0},
    {"message": "hi", "customer_id": ""},
    {"message": "hi", "other": 1},
    [],
]


async def test_a_message_that_is_none_is_refused(store: SqlStore) -> None:
    async with open_replica(store, agent=make_agent()) as replica:
        client = await replica.connect("caller")
        for body in WRONG:
            answer = await client.request("POST", "/sessions/s-1/turns", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_arguments"), body
        await client.get("/sessions/s-1", 404)


async def test_a_provider_that_fails_is_told_with_its_code_and_the_turn_can_be_resumed(store: SqlStore) -> None:
    agent = make_agent(
        ProviderDownError("it is down"), "Here I am.", ProviderDownError("again"), RuntimeError("sk-secret")
    )
    async with open_replica(store, agent=agent) as replica:
        client = await replica.connect("caller")
        failed = await send(client, status=502)
        assert failed["error"]["code"] == "unavailable"
        assert failed["error"]["retryable"]
        assert (await client.get("/sessions/s-1"))["resumable"]
        assert (await resume(client))["text"] == "Here I am."
        answer = await client.request("POST", "/sessions/s-1/turns", json={"message": "more"})
        assert answer.status_code == 502, "what fails at once has a status, streamed or not"
        broken = await send(client, session="s-2", status=500)
        assert broken["error"]["code"] == "internal_error"
        assert "sk-secret" not in json.dumps(broken)


@pytest.mark.proves("SV-08")
async def test_what_a_request_began_is_audited_with_its_id(store: SqlStore) -> None:
    async with open_replica(store, agent=make_agent("one")) as replica:
        client = await replica.connect("caller")
        headers = {"X-Request-ID": "r-7", "Accept": "application/json"}
        await client.request("POST", "/sessions/s-1/turns", json={"message": "hi"}, headers=headers)
        await store.audit.flush(timeout=20)
        (row,) = await store.audit.query(session_id="api:acme/s-1", kind="turn_over_http", limit=10)
        assert (row.tenant_id, row.detail["request_id"], row.detail["turn"]) == ("acme", "r-7", 1)


# Turns that take their time.


class Gate:
    """A model that says a word, and then waits until it is told to go on."""

    name = "gate:model"

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.said = asyncio.Event()
        self.go_on = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        line = self.lines.pop(0)
        yield TextDelta(text="Well, ")
        self.said.set()
        await self.go_on.wait()
        yield TextDelta(text=line)
        yield ModelResponse(text=f"Well, {line}", calls=(), finish_reason="stop", id="r")

    async def ask(self, request: ModelRequest) -> ModelResponse:
        *_, response = [event async for event in self.stream(request)]
        assert isinstance(response, ModelResponse)
        return response


async def wait_until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not await is_so():
            await asyncio.sleep(0.01)


@pytest.mark.proves("SV-14")
async def test_one_turn_at_a_time_runs_in_all_replicas_together(store: SqlStore) -> None:
    gate = Gate("yes", "no")
    agent = ChatAgent(provider=gate)
    async with open_replica(store, agent=agent) as first, open_replica(store, agent=agent) as second:
        client = await first.connect("caller")
        running = asyncio.create_task(send(client))
        await gate.said.wait()
        for replica in (first, second):
            busy = await send(replica.use(client), status=409)
            assert (busy["error"]["code"], busy["error"]["retryable"]) == ("in_progress", True)
            assert (await resume(replica.use(client), status=409))["error"]["code"] == "in_progress"
            assert (await replica.use(client).get("/sessions/s-1"))["running"]
        gate.go_on.set()
        assert (await running)["text"] == "Well, yes"
        assert (await send(second.use(client)))["text"] == "Well, no"


@pytest.mark.proves("SV-14")
async def test_a_turn_is_interrupted_at_any_replica(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handrail.serve.api.turns.RENEW_SECONDS", 0.02)
    gate = Gate("never", "never")
    agent = ChatAgent(provider=gate)
    async with open_replica(store, agent=agent) as first, open_replica(store, agent=agent) as second:
        client = await first.connect("caller")
        for replica in (first, second):
            gate.said.clear()
            running = asyncio.create_task(send(client))
            await gate.said.wait()
            assert await replica.use(client).post("/sessions/s-1/interrupt") == {"interrupted": True}
            done = await running
            assert (done["stop_reason"], done["text"]) == ("interrupted", "Well, ")
        assert await client.post("/sessions/s-1/interrupt") == {"interrupted": False}


async def test_a_turn_that_takes_too_long_is_interrupted(store: SqlStore) -> None:
    limits = ApiLimits(turn_timeout=0.05, request_timeout=60)
    async with open_replica(store, agent=ChatAgent(provider=Gate("never")), api_limits=limits) as replica:
        assert (await send(await replica.connect("caller")))["stop_reason"] == "interrupted"


async def test_a_stream_says_that_the_database_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handrail.serve.access._CACHED_SECONDS", 0.0)
    gate = Gate("yes")
    async with (
        open_store(f"sqlite:///{tmp_path}/a.db") as store,
        open_replica(store, agent=ChatAgent(provider=gate)) as one,
    ):
        client = await one.connect("caller")
        reading = asyncio.create_task(stream(client))
        await gate.said.wait()
        (tmp_path / "a.db").rename(tmp_path / "b.db")
        gate.go_on.set()
        name, error = (await reading)[-1]
        assert (name, error["error"]["code"]) == ("error", "unavailable")


class Payer(Gate):
    """A model that waits until it is told to go on, and then pays."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        self.said.set()
        await self.go_on.wait()
        calls = (ToolCall(id="c-1", name="pay", arguments_json='{"invoice": "i", "amount": 11}'),)
        is_first = isinstance(request.messages[-1], UserMessage)
        text = "" if is_first else "Done."
        yield ModelResponse(text=text, calls=calls if is_first else (), finish_reason="stop", id="r")


class SeenDirectory(TenantDirectory):
    """Says when the newest revision was looked at, and then once more: what it changes has changed."""

    def __init__(self, tenants: Sequence[TenantConfig]) -> None:
        super().__init__(tenants)
        self.left = 0
        self.seen = asyncio.Event()

    async def is_removed(self, tenant_id: str) -> bool:
        self._count()
        return await super().is_removed(tenant_id)

    async def get(self, tenant_id: str) -> TenantConfig | None:
        if (found := await super().get(tenant_id)) is not None:
            self._count()
        return found

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.seen.set()


@tool(name="pay")
async def pay_sum(sum: int) -> str:
    """Pay somebody."""
    return f"paid {sum}"


@pytest.mark.parametrize("change", ["nothing", "off", "removed", "a rule", "a rule of all", "other arguments"])
async def test_a_turn_that_runs_is_under_the_rules_of_now(
    change: str, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handrail.serve.tenant_pools._CACHED_SECONDS", 0.0)
    monkeypatch.setattr("handrail.serve.tenant_pools._WATCH_SECONDS", 0.01)
    model, directory = Payer(), SeenDirectory([TenantConfig(tenant_id="acme")])
    async with open_replica(store, agent=ChatAgent(provider=model), tenants=directory) as replica:
        replica.executor.replace_policy(Policy([Rule.allow("pay")]))
        running = asyncio.create_task(send(await replica.connect("caller")))
        await model.said.wait()
        directory.left = 3
        match change:
            case "off":
                directory.put(TenantConfig(tenant_id="acme", enabled=False))
            case "removed":
                directory.remove("acme")
            case "a rule":
                rules = ({"deny": "pay", "where": {"amount": {"above": 10}}},)
                directory.put(TenantConfig(tenant_id="acme", policy=rules))
            case "a rule of all":
                replica.executor.replace_policy(Policy([Rule.deny("pay")]))
            case "other arguments":
                replica.executor.replace_policy(Policy([]))
                replica.executor.replace_tools([pay_sum])
                replica.executor.replace_policy(Policy([Rule.allow("pay"), Rule.deny("pay", where={"sum": 11})]))
            case _:
                pass
        await directory.seen.wait()
        model.go_on.set()
        (result,) = (await running)["results"]
        assert result["ok"] == (change == "nothing"), result
        assert len(paid) == (change == "nothing")


async def test_one_tenant_cannot_have_all_turns(store: SqlStore) -> None:
    gate = Gate(*["yes"] * 3)
    limits = ApiLimits(max_turns=3, max_turns_per_tenant=2)
    async with open_replica(store, agent=ChatAgent(provider=gate), api_limits=limits) as replica:
        ours, theirs = await replica.connect("caller", "acme"), await replica.connect("caller", "globex")

        async def start(client: Client, session: str) -> int:
            answer = await client.request("POST", f"/sessions/{session}/turns", json={"message": "hi"})
            return answer.status_code

        # At once, so that all ask for their turn before one of them has it.
        running = [asyncio.create_task(start(ours, f"s-{at}")) for at in range(6)]
        async with asyncio.timeout(30):
            refused = [await item for item in itertools.islice(asyncio.as_completed(running), 4)]
        assert refused == [429] * 4
        full = await send(ours, session="s-7", status=429)
        assert (full["error"]["code"], full["error"]["retryable"]) == ("rate_limited", True)
        other = asyncio.create_task(start(theirs, "s-1"))
        await wait_until(lambda: has_session(theirs, "s-1"))
        gate.go_on.set()
        assert sorted([await item for item in running]) == [200, 200, 429, 429, 429, 429]
        assert await other == 200


async def test_without_tenants_all_turns_are_of_one_company(store: SqlStore) -> None:
    gate = Gate(*["yes"] * 2)
    limits = ApiLimits(max_turns=2, max_turns_per_tenant=1)
    async with open_replica(store, agent=ChatAgent(provider=gate), api_limits=limits) as replica:
        client = await replica.connect("caller", None)
        running = [asyncio.create_task(send(client, session=f"s-{at}")) for at in range(2)]
        for at in range(2):
            await wait_until(lambda at=at: has_session(client, f"s-{at}"))
        gate.go_on.set()
        assert [(await item)["text"] for item in running] == ["Well, yes"] * 2


async def has_session(client: Client, session: str) -> bool:
    return (await client.request("GET", f"/sessions/{session}")).status_code == 200


async def test_an_answer_that_takes_too_long_leaves_the_turn_running(store: SqlStore) -> None:
    gate = Gate("yes")
    limits = ApiLimits(request_timeout=0.05, max_turns=1)
    async with open_replica(store, agent=ChatAgent(provider=gate), api_limits=limits) as replica:
        client = await replica.connect("caller")
        assert (await send(client, status=503))["error"]["code"] == "unavailable"
        full = await send(client, session="s-2", status=503)
        assert "1 turns are running" in full["error"]["message"]
        gate.go_on.set()

        async def is_over() -> bool:
            return not (await client.get("/sessions/s-1"))["running"]

        await wait_until(is_over)
        assert (await client.get("/sessions/s-1"))["messages"][-1]["text"] == "Well, yes"


@asynccontextmanager
async def listen(store: SqlStore, agent: ChatAgent) -> AsyncGenerator[tuple[str, dict[str, str], Executor]]:
    """The service on a socket, with a caller's key."""
    paid.clear()
    executor = Executor([get_balance, pay], policy=Policy([Rule.allow("pay")]), store=store)
    _, secret = await store.keys.create(role="caller", who="bot", tenant_id="acme")
    async with listening(build_app(executor, store=store, agent=agent)) as url:
        yield f"{url}/v1", {"Authorization": f"Bearer {secret}"}, executor


@pytest.mark.proves("SV-15")
async def test_a_client_that_leaves_does_not_end_the_turn(store: SqlStore) -> None:
    gate = Gate("and that was it.")

    class PayFirst(Gate):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
            if len(request.messages) == 1:
                await self.go_on.wait()
                scripted = ScriptedProvider([PAY])
                async for event in scripted.stream(request):
                    yield event
                return
            async for event in super().stream(request):
                yield event

    gate = PayFirst("and that was it.")
    async with (
        listen(store, ChatAgent(provider=gate)) as (url, headers, _),
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
    ):
        async with http.stream("POST", f"{url}/sessions/s-1/turns", json={"message": "pay"}) as answer:
            assert answer.status_code == 200
        gate.go_on.set()  # The client has left before the call was made.

        async def is_over() -> bool:
            return not (await http.get(f"{url}/sessions/s-1")).json()["running"]

        await wait_until(is_over)
        shown = (await http.get(f"{url}/sessions/s-1")).json()
        assert shown["messages"][-1]["text"] == "Well, and that was it."
        assert paid == [("i-1", 3)]


@pytest.mark.proves("SV-15")
async def test_a_stream_that_is_never_read_ends_all_the_same_and_takes_little_memory(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[RunningTurn] = []
    most = 0
    add = RunningTurn.add

    def watch(turn: RunningTurn, event: Any) -> None:
        nonlocal most
        add(turn, event)
        most = max(most, turn.waiting)
        if turn not in kept:
            kept.append(turn)

    monkeypatch.setattr(RunningTurn, "add", watch)
    monkeypatch.setattr("handrail.serve.api.turns._MAX_TEXT_CHARS", 200)
    words = "word " * 20_000
    async with (
        listen(store, make_agent(words)) as (url, headers, _),
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
        http.stream("POST", f"{url}/sessions/s-1/turns", json={"message": "talk"}) as answer,
    ):
        assert answer.status_code == 200

        async def is_over() -> bool:
            return bool(kept) and kept[0].is_over

        await wait_until(is_over)
        assert most <= 2
        assert kept[0].skipped > 0
        shown = (await http.get(f"{url}/sessions/s-1")).json()
        assert (shown["running"], shown["messages"][-1]["text"]) == (False, words)
        events = read_events("".join([text async for text in answer.aiter_text()]))
        assert [name for name, _ in events][-2:] == ["skipped", "turn_finished"]
        assert events[-1][1]["text"] == words


@pytest.mark.proves("SV-12")
async def test_a_replica_that_is_stopped_interrupts_its_turns_and_leaves_them_to_be_resumed(store: SqlStore) -> None:
    gate = Gate("never")
    async with open_replica(store, agent=ChatAgent(provider=gate)) as replica:
        client = await replica.connect("caller")
        running = asyncio.create_task(send(client))
        await gate.said.wait()
    assert (await running)["stop_reason"] == "interrupted"
    assert not await store.turns.is_running("api:acme/s-1")


async def test_a_replica_that_died_loses_its_turn_with_its_lease(store: SqlStore) -> None:
    async with open_replica(store, agent=make_agent("one", "two")) as replica:
        client = await replica.connect("caller")
        await send(client)
        await store.turns.acquire("api:acme/s-1", owner="died", lease=0.2)
        assert (await send(client, status=409))["error"]["code"] == "in_progress"

        async def is_free() -> bool:
            return not await store.turns.is_running("api:acme/s-1")

        await wait_until(is_free)
        assert (await send(client))["text"] == "two"


async def test_without_an_agent_there_are_no_conversations(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        assert (await send(await replica.connect("caller"), status=404))["error"]["code"] == "not_found"
