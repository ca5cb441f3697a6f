"""What the tests of the facade share: each runs against both of its modules."""

import pytest

from tests.openai.facades import AIO, CORE, Facade


@pytest.fixture(params=[pytest.param(CORE, id="core"), pytest.param(AIO, id="aio")])
def facade(request: pytest.FixtureRequest) -> Facade:
    return request.param
