"""Which servers are asked, whatever a document or the DNS says."""

import asyncio
import gzip
import json
import socket
import threading
import tracemalloc
from typing import Any

import pytest

from handrail import ConfigError, Executor, ToolCall, ToolContext, ToolResult
from handrail.sources import OpenApi
from handrail.sources.addresses import RequestNotSentError, find_address_problem, resolve_host
from tests.sources.api_server import Reply, serving


def document(url: str, **more: Any) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "Test", "version": "1"},
        "servers": [{"url": url}],
        "paths": {"/x": {"get": {"operationId": "op"}}},
        **more,
    }


async def ask(api: OpenApi) -> ToolResult:
    async with Executor(api.tools()) as executor:
        return await executor.run(ToolCall(id="c-1", name="op", arguments_json="{}"), ToolContext(session_id="s-1"))


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.254", "fd00:ec2::254", "168.63.129.16", "100.100.100.200", "::ffff:169.254.169.254"),
        *("64:ff9b::a9fe:a9fe", "fe80::1", "0.0.0.0", "224.0.0.1", "::"),
    ],
)
def test_metadata_and_odd_addresses_are_never_asked(address: str) -> None:
    assert find_address_problem(address, allow_private=True)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "::1", "fd12::1", "::ffff:10.0.0.1"),
        *("2002:0a00:0001::1", "64:ff9b::7f00:1", "fec0::1", "64:ff9b:1:7f00:0:100:808:808", "64:ff9b:1::808:808"),
    ],
)
def test_private_addresses_are_asked_only_if_that_is_allowed(address: str) -> None:
    assert "allow_private=True" in (find_address_problem(address, allow_private=False) or "")
    assert find_address_problem(address, allow_private=True) is None


async def test_a_name_server_that_does_not_answer_keeps_no_other_name_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ends, look_up = list[object](), threading.Event(), socket.getaddrinfo

    def hang(host: str, *args: Any, **options: Any) -> Any:
        if host != "dead.example":
            return look_up(host, *args, **options)
        asked.append(host)
        ends.wait()
        raise socket.gaierror("no answer")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    waiting = [asyncio.create_task(resolve_host("dead.example", 443, allow_private=False)) for _ in range(300)]
    await asyncio.sleep(0)
    for task in waiting[1:]:  # They give up; what they asked for goes on.
        task.cancel()
    await asyncio.gather(*waiting[1:], return_exceptions=True)
    try:
        async with asyncio.timeout(10):
            assert await resolve_host("93.184.216.34", 443, allow_private=False) == ["93.184.216.34"]
    finally:
        ends.set()
    with pytest.raises(RequestNotSentError, match=r"dead\.example has no address"):
        await waiting[0]
    assert len(asked) == 1


def test_public_addresses_are_asked() -> None:
    assert find_address_problem("93.184.216.34", allow_private=False) is None
    assert find_address_problem("2606:2800:220:1:248:1893:25c8:1946", allow_private=False) is None


@pytest.mark.parametrize(
    ("url", "allow_private"),
    [
        ("http://169.254.169.254/latest", True),
        ("http://[fd00:ec2::254]/", True),
        ("http://127.0.0.1:80", False),
        ("https://[::ffff:10.0.0.1]/", False),
        ("http://localhost/", False),
        ("https://user:pw@api.example", True),
        ("https://xn--bücher.example", True),
    ],
)
def test_an_operation_of_such_a_server_is_no_tool(url: str, allow_private: bool) -> None:
    api = OpenApi(document(url), allow_private=allow_private)

    assert api.tools() == ()
    assert [skipped.name for skipped in api.skipped] == ["op"]


async def test_a_name_that_leads_into_a_private_network_is_refused_when_it_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(lambda request: {"ok": 1}) as server:
        port = int(server.url.rpartition(":")[2])
        resolve(monkeypatch, [["127.0.0.1"]])
        refused = await ask(OpenApi(document(f"http://api.example:{port}")))

    assert refused.error is not None
    assert refused.error.code == "unavailable"
    assert server.requests == []


async def test_the_address_that_was_checked_is_the_one_that_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that answers twice, first with a good address and then with a bad one, gains nothing."""
    with serving(lambda request: {"host": request.headers["host"]}) as server:
        port = int(server.url.rpartition(":")[2])
        asked = resolve(monkeypatch, [["127.0.0.1"], ["169.254.169.254"]])
        result = await ask(OpenApi(document(f"http://api.example:{port}"), allow_private=True))

    assert result.output == {"host": f"api.example:{port}"}
    assert asked == ["api.example"]


async def test_one_bad_address_among_good_ones_refuses_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda request: {"ok": 1}) as server:
        port = int(server.url.rpartition(":")[2])
        resolve(monkeypatch, [["127.0.0.1", "169.254.169.254"]])
        result = await ask(OpenApi(document(f"http://api.example:{port}"), allow_private=True))

    assert not result.ok
    assert server.requests == []


def resolve(monkeypatch: pytest.MonkeyPatch, answers: list[list[str]]) -> list[str]:
    """Have the name server answer so, one answer for each question; what was asked."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if not str(host).endswith(".example"):
            return real(host, port, *args, **options)
        asked.append(str(host))
        found = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def test_credentials_are_references_that_have_a_place_and_a_safe_way() -> None:
    schemes = {"components": {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}}}
    with pytest.raises(ConfigError, match="bearer must be a reference") as error:
        OpenApi(document("https://api.example"), bearer="sk-literal-secret")
    assert "sk-literal" not in str(error.value)
    with pytest.raises(ConfigError, match="declares no API key"):
        OpenApi(document("https://api.example"), api_key="env:KEY").tools()
    with pytest.raises(ConfigError, match="the API keys of the document are: key"):
        OpenApi(document("https://api.example", **schemes), api_key={"kay": "env:KEY"}).tools()

    api = OpenApi(document("http://api.example"), bearer="env:TOKEN")
    assert api.tools() == ()
    assert "without encryption" in api.skipped[0].reason
    assert OpenApi(document("http://api.example")).tools()
    assert (
        json.dumps(
            OpenApi(document("https://api.example"), bearer="env:TOKEN", hosts=["api.example"]).tools()[0].input_schema
        ).count("TOKEN")
        == 0
    )


def test_credentials_go_only_to_hosts_that_the_developer_named() -> None:
    several = document("https://api.example")
    several["paths"]["/evil"] = {"get": {"operationId": "steal", "servers": [{"url": "https://evil.example"}]}}
    several["paths"]["/open"] = {
        "get": {"operationId": "open", "security": [], "servers": [{"url": "https://b.example"}]}
    }

    nobody = OpenApi(several, bearer="env:TOKEN")
    named = OpenApi(several, bearer="env:TOKEN", hosts=["API.example"])
    elsewhere = OpenApi(several, bearer="env:TOKEN", base_url="https://mine.example")

    assert [tool.name for tool in nobody.tools()] == ["open"]
    assert "pass hosts=['api.example']" in nobody.skipped[0].reason
    assert [skipped.name for skipped in named.skipped] == ["steal"]
    assert "credentials are not sent to evil.example" in named.skipped[0].reason
    assert {tool.metadata["host"] for tool in elsewhere.tools()} == {"mine.example"}
    assert len(OpenApi(several).tools()) == 3  # Without credentials there is nothing to leak.
    with pytest.raises(ConfigError, match="hosts must be a list"):
        OpenApi(several, hosts="api.example")
    with pytest.raises(ConfigError, match="hosts must have names"):
        OpenApi(several, hosts=["https://api.example"])


def test_options_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="base_url must be an http or https URL"):
        OpenApi(document("https://api.example"), base_url="file:///etc/passwd")
    with pytest.raises(ConfigError, match="timeout must be more than 0"):
        OpenApi(document("https://api.example"), timeout=0)
    with pytest.raises(ConfigError, match="takes a path, a URL or a mapping"):
        OpenApi(7)  # type: ignore[arg-type]


async def test_a_redirect_to_another_name_is_refused_also_on_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda request: Reply(status=307, headers={"Location": away})) as server:
        port = int(server.url.rpartition(":")[2])
        away = f"http://other.example:{port}/x"
        resolve(monkeypatch, [["127.0.0.1"]])
        api = OpenApi(document(f"http://api.example:{port}"), allow_private=True, hosts=["api.example"], bearer=token)
        result = await ask(api)

    assert result.error is not None
    assert "redirects to another host" in result.error.message
    assert [request.headers["host"] for request in server.requests] == [f"api.example:{port}"]


def token() -> str:
    return "tok-123456"


async def test_a_bomb_is_bounded_in_memory_too() -> None:
    packed = gzip.compress(bytes(50_000_000))
    with serving(lambda request: Reply(body=packed, headers={"Content-Encoding": "gzip"})) as server:
        api = OpenApi(document(server.url), allow_private=True, max_response_bytes=8_000_000)
        tracemalloc.start()
        try:
            result = await ask(api)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert not result.ok
    assert peak < 18_000_000  # Twice the limit, and what the server of this test and the executor need.


async def test_an_argument_never_takes_the_place_of_the_credentials_however_its_header_is_spelled() -> None:
    schemes = {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}}
    parameter = {"name": "x-KEY", "in": "header", "schema": {"type": "string"}}
    operation = {"operationId": "look", "parameters": [parameter], "security": [{"key": []}]}
    with serving(lambda request: {"ok": 1}) as server:
        api = OpenApi(
            {**document(server.url), "components": schemes, "paths": {"/x": {"get": operation}}},
            base_url=server.url,
            allow_private=True,
            api_key=token,
        )
        async with Executor(api.tools()) as executor:
            (argument,) = executor.registry.get("look").input_schema["properties"] or ["none"]
            arguments = json.dumps({argument: "forged"})
            await executor.run(ToolCall(id="c", name="look", arguments_json=arguments), ToolContext(session_id="s"))

    assert server.last.headers["x-key"] == "tok-123456"
