"""With a key, the arguments of waiting approvals are encrypted in the database."""

import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from handrail import ConfigError, Executor, Policy, Rule, tool
from handrail.errors import MissingExtraError, StoreError
from handrail.store import open_store
from tests.execute.helpers import at, call, code_of
from tests.postgres import DATABASES, new_database
from tests.postgres import postgres as postgres  # a fixture

KEY, OTHER = Fernet.generate_key(), Fernet.generate_key().decode()
IBAN, CHANGED = "DE89370400440532013000", "FR1420041010050500013M02606"
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
        with pytest.raises(StoreError, match=r"pass open_store\(encryption_key"):
            await store.approvals.pending()
        executor = Executor([pay], policy=ASKED, ledger=store.ledger, approvals=store.approvals)
        # A process without the key writes nothing in plain text.
        assert code_of(await executor.run(call("pay", "c-2", iban=CHANGED), at())) == "unavailable"
    assert CHANGED not in await stored(url)

    async with open_store(url, encryption_key=[OTHER, KEY]) as store:
        assert [one.arguments for one in await store.approvals.pending()] == [{"iban": IBAN}]
    with pytest.raises(StoreError, match="encryption_key"):
        async with open_store(url, encryption_key=KEY):
            pass
    assert paid == []


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
