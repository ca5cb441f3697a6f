"""The catalogue is data: these are the rules that it keeps."""

import re
from urllib.parse import urlsplit

import pytest

from handrail.models import CATALOGUE
from handrail.models.catalogue import FileAddress, ModelFile, Wheels

FILES = [file for model in CATALOGUE.values() for file in model.files]
SHA256 = re.compile(r"[0-9a-f]{64}")


def test_the_models_of_the_note_are_there() -> None:
    assert {name: model.licence for name, model in CATALOGUE.items()} == {
        "smollm2-135m": "Apache-2.0",
        "qwen2.5-coder-1.5b": "Apache-2.0",
        "minilm": "Apache-2.0",
    }
    assert all(name == model.name and re.fullmatch(r"[a-z0-9.-]+", name) for name, model in CATALOGUE.items())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_file_is_pinned_and_its_sources_add_up(file: ModelFile) -> None:
    assert SHA256.fullmatch(file.sha256)
    assert re.fullmatch(r"[\w.-]+", file.name)
    assert file.sources
    addresses = [isinstance(source, FileAddress) for source in file.sources]
    assert addresses == sorted(addresses, reverse=True), "the model's own address comes first"
    for source in file.sources:
        match source:
            case FileAddress(url=url):
                assert urlsplit(url).scheme == "https"
            case Wheels(parts=parts):
                assert sum(part.member_size for part in parts) == file.size
                assert all(SHA256.fullmatch(part.sha256) and part.size > 0 for part in parts)
                assert len({part.sha256 for part in parts}) == len(parts)
                assert all(not part.member.startswith("/") and ".." not in part.member for part in parts)
