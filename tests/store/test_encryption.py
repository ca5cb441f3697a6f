"""With a key, the arguments of waiting approvals are encrypted in the database."""

import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import create_async_engine

from handrail import ConfigError, Executor, Policy, Rule, tool
from handrail.errors import MissingExtraError, StoreError
from handrail.store import open_store
from handrail.store.approvals import UNREADABLE
from handrail.store.encryption import Cipher
from handrail.store.tables import settings
from tests.execute.helpers import at, call, code_of
from tests.postgres import DATABASES, new_database
from tests.postgres import postgres as postgres  # a fixture
from tests.store.programs import ROTATING, start_program

KEY, OTHER = Fernet.generate_key(), Fernet.generate_key().decode()
IBAN, CHANGED, OTHER_IBAN = "DE89370400440532013000", "FR1420041010050500013M02606", "GB29NWBK60161331926819"
ASKED = Policy([Rule.ask("pay", by="operator")])


def payments() -> tuple[Any, list[str]]:
    paid: list[str] = []

    @tool
    async def pay(iban: str) -> str:
        """Pay."""
        paid.append(iban)
        return "paid"

    return pay, paid


async def stored(url: str) -> str:
    """Everything that the tables of approvals and calls hold."""
    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:
            rows = [(await connection.execute(text(f"SELECT * FROM {name}"))).all() for name in TABLES]
            return str(rows)
    finally:
        await engine.dispose()


TABLES = ("handrail_approvals", "handrail_ledger", "handrail_audit")


@pytest.mark.parametrize("database", DATABASES)
async def test_waiting_and_changed_arguments_are_encrypted_and_run_whole(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = new_database(database, tmp_path, request)
    pay, paid = payments()
    async with open_store(url, encryption_key=KEY) as store:
        executor = Executor([pay], policy=ASKED, ledger=store.ledger, approvals=store.approvals)
        assert code_of(await executor.run(call("pay", iban=IBAN), at())) == "approval_required"
        assert IBAN not in await stored(url)
        (asked,) = await store.approvals.pending()
        assert asked.arguments == {"iban": IBAN}
        await store.approvals.approve(asked.token, by="operator", who="bo", arguments={"iban": CHANGED})
        assert CHANGED not in await stored(url)

        assert (await executor.run(call("pay", iban=IBAN), at(turn=2))).ok
        assert paid == [CHANGED]
        kept = await stored(url)
        assert (IBAN in kept, CHANGED in kept) == (False, False)


async def test_without_a_key_they_are_plain_until_decided(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/handrail.db"
    pay, _ = payments()
    async with open_store(url) as store:
        executor = Executor([pay], policy=ASKED, ledger=store.ledger, approvals=store.approvals)
        await executor.run(call("pay", iban=IBAN), at())
        assert IBAN in await stored(url)
        (asked,) = await store.approvals.pending()
        await store.approvals.deny(asked.token, by="operator", who="bo")
        assert IBAN not in await stored(url)


async def test_another_key_and_no_key_are_refused_by_name_and_keys_can_be_changed(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/handrail.db"
    pay, paid = payments()
    async with open_store(url, encryption_key=KEY) as store:
        executor = Executor([pay], policy=ASKED, ledger=store.ledger, approvals=store.approvals)
        await executor.run(call("pay", iban=IBAN), at())

    with pytest.raises(StoreError, match="encryption_key is not the one"):
        async with open_store(url, encryption_key=OTHER):
            pass
    async with open_store(url) as store:
        (shown,) = await store.approvals.pending()
        assert list(shown.arguments) == [UNREADABLE]
        assert "pass open_store(encryption_key" in shown.arguments[UNREADABLE]
        with pytest.raises(StoreError, match=r"pass open_store\(encryption_key"):
            await store.approvals.approve(shown.token, by="operator", who="bo")
        executor = Executor([pay], policy=ASKED, ledger=store.ledger, approvals=store.approvals)
        # A process without the key writes nothing in plain text.
        assert code_of(await executor.run(call("pay", "c-2", iban=CHANGED), at())) == "unavailable"
    assert CHANGED not in await stored(url)

    async with open_store(url, encryption_key=[OTHER, KEY]) as store:
        assert [approval.arguments for approval in await store.approvals.pending()] == [{"iban": IBAN}]
    with pytest.raises(StoreError, match="encryption_key"):
        async with open_store(url, encryption_key=KEY):
            pass
    assert paid == []


async def test_opening_with_the_only_key_changes_nothing(url: str) -> None:
    query = select(settings.c.value).where(settings.c.name == "encryption_check")
    found: list[Any] = []
    for key in (KEY, KEY, [OTHER, KEY]):
        async with open_store(url, encryption_key=key) as store:
            found += await store._database.fetch(query)

    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("key", ["short", b"", [], 7])
def test_a_key_that_is_none_is_refused_before_anything_is_opened(key: Any, tmp_path: Path) -> None:
    async def opened() -> None:
        async with open_store(f"sqlite+aiosqlite:///{tmp_path}/handrail.db", encryption_key=key):
            pass

    with pytest.raises(ConfigError, match="encryption_key must be 32 bytes in url-safe base64"):
        opened().send(None)
    assert list(tmp_path.iterdir()) == []


async def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    with pytest.raises(MissingExtraError, match=r"handrail\[encryption\]"):
        async with open_store(f"sqlite+aiosqlite:///{tmp_path}/handrail.db", encryption_key=KEY):
            pass


async def test_a_process_that_was_opened_before_there_was_a_key_refuses_what_it_cannot_read(url: str) -> None:
    """A rolling deployment: one process begins to encrypt, while another without the key still runs."""
    pay, paid = payments()
    async with open_store(url) as without:
        plain = Executor([pay], policy=ASKED, store=without)
        await plain.run(call("pay", "c-1", iban=IBAN), at())
        async with open_store(url, encryption_key=KEY) as store:
            encrypting = Executor([pay], policy=ASKED, store=store)
            asked = await encrypting.run(call("pay", "c-2", iban=CHANGED), at())
            assert asked.approval is not None

            shown = {approval.call_id: dict(approval.arguments) for approval in await without.approvals.pending()}
            past = {approval.call_id: dict(approval.arguments) for approval in await without.approvals.history()}
            await store.approvals.approve(asked.approval.token, by="operator", who="bo", arguments={"iban": OTHER_IBAN})
            refused = await plain.run(call("pay", "c-2", iban=CHANGED), at())
            done = await encrypting.run(call("pay", "c-2", iban=CHANGED), at())

    assert shown == past
    assert (shown["c-1"], list(shown["c-2"])) == ({"iban": IBAN}, [UNREADABLE])
    assert code_of(refused) == "unavailable"
    assert done.ok
    assert paid == [OTHER_IBAN]


async def test_the_documented_order_of_a_rotation_leaves_nothing_unreadable(url: str) -> None:
    """Each step while processes of the step before are still open: [old, new] everywhere, then [new, old], then new."""
    pay, paid = payments()
    steps: list[Any] = [KEY, [KEY, OTHER], [OTHER, KEY], OTHER]
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(open_store(url, encryption_key=steps[0]))]
        for number, keys in enumerate(steps[1:], start=1):
            opened.append(await stack.enter_async_context(open_store(url, encryption_key=keys)))
            before, after = (Executor([pay], policy=ASKED, store=item) for item in opened[-2:])
            for asks, decides, name in ((before, after, "ab"), (after, before, "ba")):
                one = call("pay", f"{name}-{number}", iban=f"{IBAN}-{name}-{number}")
                asked = await asks.run(one, at())
                if number == 1 and name == "ba":  # What [old, new] writes, old can read.
                    assert list((await opened[0].approvals.pending())[0].arguments) == ["iban"]
                assert asked.approval is not None
                await decides.approvals.approve(asked.approval.token, by="operator", who="bo")
                assert (await decides.run(one, at())).ok
        assert await opened[-1].approvals.pending() == []

    assert len(paid) == 6


class LiveProcess:
    """A process with its own keys, which asks, approves and pays when it is told to."""

    def __init__(self, program: Any) -> None:
        self._program = program

    @classmethod
    async def start(cls, url: str, *keys: str) -> "LiveProcess":
        started = cls(await start_program(ROTATING, url, json.dumps(list(keys))))
        assert await started.read() == "ready"
        return started

    async def read(self) -> str:
        return (await self._program.stdout.readline()).decode().strip()

    async def tell(self, what: str, iban: str) -> str:
        self._program.stdin.write(f"{what} {iban}\n".encode())
        return await self.read()

    async def stop(self) -> None:
        await self._program.communicate(b"")  # Without any input it would not be closed.


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("database", DATABASES)
async def test_keys_are_rotated_in_the_documented_order_while_two_processes_live(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each step is deployed to one process after the other: whatever one asks, the other reads, approves and pays."""
    url, old, new = new_database(database, tmp_path, request), Fernet.generate_key().decode(), OTHER
    live = [await LiveProcess.start(url, old) for _ in range(2)]
    asked: list[str] = []
    number = 0
    for keys in ((old, new), (new, old), (new,)):
        for place in (0, 1):
            one, other = live[place], live[1 - place]
            open_one = f"open-{number}"  # Asked before this deployment, decided after it.
            assert await one.tell("ask", open_one) == "approval_required"
            if keys == (new,):  # The last step is for when nothing is left that the old key encrypted.
                asked.append(open_one)
                for iban in asked:
                    assert await other.tell("approve", iban) == "approved"
                asked.clear()
            else:
                asked.append(open_one)
            await one.stop()
            live[place] = one = await LiveProcess.start(url, *keys)
            for asker, approver in ((one, other), (other, one)):
                number += 1
                iban = f"iban-{number}"
                assert await asker.tell("ask", iban) == "approval_required"
                assert await approver.tell("approve", iban) == "approved"
                assert await asker.tell("ask", iban) == f"paid {iban}"
            if asked and keys != (new,):
                iban = asked.pop(0)
                assert await one.tell("approve", iban) == "approved"
                assert await other.tell("ask", iban) == f"paid {iban}"
            number += 1
    for process in live:
        await process.stop()
    async with open_store(url, encryption_key=new) as store:
        assert await store.approvals.pending() == []
        shown = [approval.arguments for approval in await store.approvals.history(limit=1_000)]
    assert all(UNREADABLE not in arguments for arguments in shown)


def test_an_encrypted_text_that_holds_something_else_is_refused() -> None:
    cipher = Cipher(KEY)
    text = cipher.encrypt_text('{"iban": 1}')
    assert text is not None
    assert cipher.decrypt_text(text) == '{"iban": 1}'

    with pytest.raises(StoreError, match="holds something else"):
        cipher.decrypt_text(json.dumps(cipher.encrypt({"iban": 1}), separators=(",", ":")))
