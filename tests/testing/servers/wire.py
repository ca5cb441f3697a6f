"""What the tests of the local servers share: a plain HTTP client, and the shape of a case with a wrong client."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

Body = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A request that breaks one rule, and what the answer says."""

    rule: Callable[..., object]
    body: Body
    says: str
    status: int = 400
    headers: Mapping[str, str] | None = None


def wrong(name: str, rule: Callable[..., object], body: Body, says: str, **more: Any) -> Any:
    """A case for `pytest.mark.parametrize`."""
    return pytest.param(Wrong(rule=rule, body=body, says=says, **more), id=name.replace(" ", "-"))


def rules_of(cases: Iterable[Any]) -> set[str]:
    """The rules that some wrong client breaks."""
    return {case.values[0].rule.__name__ for case in cases}


def post(url: str, body: object, headers: Mapping[str, str]) -> tuple[int, Any]:
    """The status and the JSON of the answer to a POST; bytes are sent as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = Request(url, data=data, headers={"Content-Type": "application/json", **headers}, method="POST")
    try:
        with urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def schema(properties: Body | None = None, **more: Any) -> Body:
    """A closed object in which everything is required."""
    properties = {"city": {"type": "string"}} if properties is None else properties
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **more,
    }
