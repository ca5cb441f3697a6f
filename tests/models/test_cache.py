"""Where models are kept, and what there is."""

import sys
from pathlib import Path

import pytest

from handrail.errors import ModelFileError
from handrail.models import cache
from handrail.models.catalogue import Model, ModelFile

FILES = tuple(ModelFile(name=name, size=size, sha256="0", sources=()) for name, size in (("a.bin", 3), ("b.bin", 4)))
CATALOGUE = {"tiny": Model(name="tiny", about="a test", licence="none", files=FILES)}


def test_the_directory_is_the_chosen_one_or_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.get_cache_directory({"HANDRAIL_CACHE": str(tmp_path)}) == tmp_path / "models"
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache.get_cache_directory({}) == tmp_path / "handrail" / "models"


def test_a_model_is_there_when_all_its_files_have_their_size(tmp_path: Path) -> None:
    place = tmp_path / "tiny"
    assert cache.list_models(root=tmp_path, catalogue=CATALOGUE)[0].size == 0
    place.mkdir()
    (place / "a.bin").write_bytes(b"123")
    (place / "b.bin.part").write_bytes(b"12")

    (held,) = cache.list_models(root=tmp_path, catalogue=CATALOGUE)
    assert (held.is_complete, held.size) == (False, 5)
    with pytest.raises(ModelFileError, match="handrail model pull tiny"):
        cache.find_directory("tiny", root=tmp_path, catalogue=CATALOGUE)

    (place / "b.bin").write_bytes(b"123")
    assert not cache.inspect_model(CATALOGUE["tiny"], root=tmp_path).is_complete
    (place / "b.bin").write_bytes(b"1234")
    assert cache.find_directory("tiny", root=tmp_path, catalogue=CATALOGUE) == place


def test_removing_deletes_what_there_is_and_nothing_beside_it(tmp_path: Path) -> None:
    place = tmp_path / "tiny"
    place.mkdir()
    (place / "a.bin").write_bytes(b"123")
    (place / "a.bin.part").write_bytes(b"12")
    (tmp_path / "other").write_text("stays")

    assert cache.remove("tiny", root=tmp_path, catalogue=CATALOGUE) == 5
    assert cache.remove("tiny", root=tmp_path, catalogue=CATALOGUE) == 0
    assert cache.inspect_model(CATALOGUE["tiny"], root=tmp_path).size == 0
    assert (tmp_path / "other").read_text() == "stays"
    with pytest.raises(ModelFileError, match="no model named"):
        cache.remove("..", root=tmp_path, catalogue=CATALOGUE)
    assert (tmp_path / "other").exists()
