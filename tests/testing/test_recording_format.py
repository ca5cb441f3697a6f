"""The file of a cassette: when it is written, what is never written, and one that somebody else wrote."""

import asyncio
import json
import os
from hashlib import md5, sha1, sha256
from pathlib import Path
from typing import Any

import pytest

from handrail import ConfigError, ToolError, build_tool, tool
from handrail.core import Redactor
from handrail.core.redact import HIDDEN
from handrail.testing import Cassette, run_tool, run_tool_async
from tests.testing.kit import CANARY, balance, call_and_raise, counted, counter, deadly, pay, recorded, replayed

# Recording.


def test_a_test_that_fails_leaves_the_old_recording(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    recorded(path, [pay], ("pay", {"amount": 5}))
    before = path.read_bytes()

    with pytest.raises(KeyError):
        call_and_raise(Cassette(path, mode="record"), KeyError)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.json"]


def test_recording_replaces_what_was_there_and_new_does_not(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    counted.clear()
    with Cassette(path, mode="new") as cassette:
        assert cassette.is_recording
        run_tool(cassette.tools([counter])[0])
    with Cassette(path, mode="new") as cassette:
        assert not cassette.is_recording
        assert run_tool(cassette.tools([deadly(counter)])[0]).output == 1
    recorded(path, [counter], ("counter", {}))

    assert replayed(path, [counter], ("counter", {}))[0].output == 2


def test_the_file_is_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    recorded(path, [pay], ("pay", {"amount": 5}))
    before, seen = path.read_bytes(), []
    really = Path.replace

    def watched(draft: Path, target: Path) -> Path:
        seen.append((path.read_bytes(), json.loads(draft.read_text())["version"]))
        return really(draft, target)

    monkeypatch.setattr(Path, "replace", watched)
    recorded(path, [pay], ("pay", {"amount": 6}))

    assert seen == [(before, 1)]
    assert os.listdir(tmp_path) == ["a.json"]


def test_the_file_is_readable_sorted_and_does_not_depend_on_the_order_of_the_calls(tmp_path: Path) -> None:
    calls = [("pay", {"amount": 6}), ("balance", {}), ("pay", {"amount": 5})]
    recorded(tmp_path / "a.json", [balance, pay], *calls)
    recorded(tmp_path / "b.json", [balance, pay], *reversed(calls))

    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    read = json.loads((tmp_path / "a.json").read_text())
    assert [(item["tool"], item["arguments"]) for item in read["tools"]] == [
        ("balance", {"account": "main"}),
        ("pay", {"amount": 5}),
        ("pay", {"amount": 6}),
    ]
    assert read["tools"][1] == {"tool": "pay", "arguments": {"amount": 5}, "output": "paid 5"}
    assert read["version"] == 1


@pytest.mark.parametrize("given", [object(), {1: object()}, iter([1]), (item for item in "ab")])
def test_what_cannot_be_written_cannot_be_recorded(given: Any, tmp_path: Path) -> None:
    odd = build_tool({"name": "odd", "input_schema": {}, "execute": lambda payload, context: given})

    with pytest.raises(AssertionError, match=r"'odd' returned a .*, which is not a JSON value"):
        recorded(tmp_path / "a.json", [odd], ("odd", {}))
    assert not (tmp_path / "a.json").exists()


async def test_what_was_cut_off_cannot_be_recorded(tmp_path: Path) -> None:
    @tool(read_only=True, timeout=0.01)
    async def slow() -> None:
        """Slow."""
        await asyncio.Event().wait()

    with (
        pytest.raises(AssertionError, match="'slow' was cancelled"),
        Cassette(tmp_path / "a.json", mode="record") as one,
    ):
        await run_tool_async(one.tools([slow])[0])


# What is never written.


@tool
def log_in(user: str, password: str, note: str = "") -> dict[str, str]:
    """Log in."""
    if user == "nobody":
        raise ToolError(f"No such user; password={password}")
    if user == "broken":
        raise ValueError(f"token: {password}")
    return {"user": user, "access_token": f"tok-{password}", "card": "4111 1111 1111 1111"}


@pytest.mark.parametrize("user", ["ann", "nobody", "broken"])
def test_no_secret_is_in_the_file_in_clear_or_as_a_digest(user: str, tmp_path: Path) -> None:
    note = json.dumps({"api_key": CANARY, "deep": json.dumps({"secret": CANARY})})
    arguments = {"user": user, "password": CANARY, "note": note}
    recorded(tmp_path / "a.json", [log_in], ("log_in", arguments))
    written = (tmp_path / "a.json").read_bytes()

    assert CANARY.encode() not in written
    assert b"4111" not in written
    assert HIDDEN.encode() in written
    for digest in (md5, sha1, sha256):
        for item in (CANARY, json.dumps(arguments), json.dumps(arguments, sort_keys=True, separators=(",", ":"))):
            assert digest(item.encode()).hexdigest()[:16].encode() not in written


def test_a_call_matches_with_another_secret_and_gets_what_was_written(tmp_path: Path) -> None:
    recorded(tmp_path / "a.json", [log_in], ("log_in", {"user": "ann", "password": CANARY}))

    (result,) = replayed(tmp_path / "a.json", [log_in], ("log_in", {"user": "ann", "password": "other"}))
    assert result.output == {"user": "ann", "access_token": HIDDEN, "card": HIDDEN}


def test_a_message_about_an_unrecorded_call_holds_no_secret(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        replayed(tmp_path / "a.json", [log_in], ("log_in", {"user": "ann", "password": CANARY}))
    assert CANARY not in str(caught.value)


def test_a_redactor_of_ones_own_hides_more(tmp_path: Path) -> None:
    own = Redactor(fields=["user"])
    recorded(tmp_path / "a.json", [log_in], ("log_in", {"user": CANARY, "password": "x"}), redactor=own)

    assert CANARY.encode() not in (tmp_path / "a.json").read_bytes()
    assert replayed(tmp_path / "a.json", [log_in], ("log_in", {"user": "any", "password": "y"}), redactor=own)[0].ok


# Files that somebody else wrote.

TOOL = {"tool": "pay", "arguments": {"amount": 5}}
MODEL = {"request": {"digest": "d", "messages": 1, "last": "", "tools": []}}
CORRUPT: dict[str, Any] = {
    "empty": b"",
    "no JSON": b"{",
    "no UTF-8": b'{"version": "\xff"}',
    "too deep": b"[" * 100_000,
    "a list": [],
    "no version": {"tools": []},
    "a later version": {"version": 2},
    "a version that is true": {"version": True},
    "an unknown field": {"version": 1, "hooks": ["os.system"]},
    "tools that are no list": {"version": 1, "tools": {}},
    "a tool without a name": {"version": 1, "tools": [{"arguments": {}}]},
    "arguments that are no object": {"version": 1, "tools": [{"tool": "pay", "arguments": "x"}]},
    "an unknown field of a tool": {"version": 1, "tools": [{**TOOL, "run": "rm"}]},
    "an error without words": {"version": 1, "tools": [{**TOOL, "error": 5}]},
    "an unknown control": {"version": 1, "tools": [{**TOOL, "control": {"mode": "root"}}]},
    "a response of another kind": {"version": 1, "models": [{**MODEL, "response": {"finish_reason": "never"}}]},
    "an error of another kind": {
        "version": 1,
        "models": [{**MODEL, "error": {"kind": "SystemExit", "message": "", "code": ""}}],
    },
}


@pytest.mark.parametrize("content", CORRUPT.values(), ids=list(CORRUPT))
def test_a_corrupt_file_is_an_error_that_names_it(content: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())

    for mode in ("replay", "strict", "new"):
        with pytest.raises(ConfigError, match="cannot be read") as caught:
            Cassette(path, mode=mode)  # type: ignore[arg-type]
        assert str(path) in str(caught.value)
        assert "--cassette=record" in str(caught.value)
    recorded(path, [pay], ("pay", {"amount": 5}))
    assert replayed(path, [pay], ("pay", {"amount": 5}))[0].ok


def test_a_folder_is_no_cassette(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Cassette(tmp_path)


def test_an_unknown_mode_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one of replay, strict, record, new, got 'all'"):
        Cassette(tmp_path / "a.json", mode="all")  # type: ignore[arg-type]
