"""A machine without the runtime of local models."""

import sys

import pytest

from handrail.errors import MissingExtraError
from handrail.providers import EmbeddedProvider


@pytest.mark.parametrize("model", ["smollm2-135m", "there-is-none.gguf"])
def test_what_is_missing_is_said_before_anybody_fetches_a_model(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)

    with pytest.raises(MissingExtraError, match=r"handrail\[embedded\]"):
        EmbeddedProvider(model)
