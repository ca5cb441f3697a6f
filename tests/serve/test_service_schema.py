"""What the API says of itself is true: schemathesis sends it what the document allows, and what it does not."""

import asyncio
import json
import os
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from prometheus_client import CollectorRegistry
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from handrail.serve import ApiLimits
from handrail.store import open_store
from handrail.store.api_keys import ROLES
from tests.serve.service import PARROT, open_replica
from tests.sources.serving import bind

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
EXAMPLES = 60 if FULL else 3
CHECKS = (
    not_a_server_error,
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)


class Server:
    """The service on a socket, in a thread with its own event loop."""

    def __init__(self, folder: Path) -> None:
        self.keys: dict[str, str] = {}
        self._folder = folder
        self._listener = bind()
        self._ready = threading.Event()
        self._server: Any = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(60)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    async def _serve(self) -> None:
        limits = ApiLimits(requests_per_second=10_000, burst=10_000)
        url = f"sqlite:///{self._folder}/schema.db"
        async with (
            open_store(url, audit_values=True) as store,
            open_replica(
                store, tenants=store.tenants, registry=CollectorRegistry(), api_limits=limits, agent=PARROT
            ) as replica,
        ):
            for role in ROLES:
                client = await replica.connect(role, None)
                self.keys[role] = client.secret or ""
            config = uvicorn.Config(replica.app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
            self._server = uvicorn.Server(config)
            self._listener.listen(100)  # From now on a client waits, and is not refused.
            self._ready.set()
            await self._server.serve(sockets=[self._listener])

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    running = Server(tmp_path_factory.mktemp("service"))
    yield running
    running.stop()


@pytest.mark.proves("SV-02")
@pytest.mark.timeout(1_800 if FULL else 300)
@pytest.mark.parametrize("role", ROLES)
def test_the_document_holds_for_whatever_a_key_sends(server: Server, role: str) -> None:
    """No input is answered with 500, and every answer has a status, a type and a form that the document names."""
    headers = {"Authorization": f"Bearer {server.keys[role]}"}
    schema = load_schema(server)
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in GenerationMode:
            try:
                cases = operation.as_strategy(generation_mode=mode)
                play(cases, headers)
            except Unsatisfiable:  # Nothing of this operation can be wrong.
                continue
            tried += 1
    assert tried > 40


def load_schema(server: Server) -> Any:
    """The document, without the key, which every request here has: that it is needed is tested elsewhere."""
    with urlopen(f"{server.url}/v1/openapi.json") as answer:
        document = json.load(answer)
    for methods in document["paths"].values():
        for operation in methods.values():
            operation.pop("security", None)
    schema: Any = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=f"{server.url}/v1")
    return schema


def play(cases: Any, headers: dict[str, str]) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=not FULL,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(case=cases)
    def check(case: Any) -> None:
        case.call_and_validate(headers=headers, checks=CHECKS, timeout=30)

    check()
