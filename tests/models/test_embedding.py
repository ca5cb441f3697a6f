"""The embedding model, with its real weights."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from handrail.errors import MissingExtraError, ModelFileError
from handrail.models.catalogue import MINILM
from handrail.models.embedding import Embedding
from tests.models.weights import fetched


@pytest.fixture(scope="session")
def embedding() -> Embedding:
    fetched("minilm")
    return Embedding()


def test_without_its_files_it_says_how_to_get_them(tmp_path: Path) -> None:
    absent = Embedding(root=tmp_path)

    assert not absent.is_available
    with pytest.raises(ModelFileError, match="handrail model pull minilm"):
        absent.embed(["hello"])


def test_files_that_are_no_model_are_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "minilm").mkdir()
    for file in MINILM.files:
        (tmp_path / "minilm" / file.name).write_bytes(bytes(file.size))

    with pytest.raises(ModelFileError, match="handrail model remove minilm"):
        Embedding(root=tmp_path).embed(["hello"])


def test_without_the_extra_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (tmp_path / "minilm").mkdir()
    for file in MINILM.files:
        (tmp_path / "minilm" / file.name).write_bytes(bytes(file.size))

    with pytest.raises(MissingExtraError, match=r"`onnxruntime` is not installed.*handrail\[embedded\]"):
        Embedding(root=tmp_path).embed(["hello"])


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


@pytest.mark.model
def test_texts_of_like_meaning_are_close(embedding: Embedding) -> None:
    one, other, far = embedding.embed(["Where is my parcel?", "Track a delivery.", "I like to sing in the rain."])

    assert dot(one, other) > dot(one, far) + 0.2


@pytest.mark.model
def test_vectors_have_length_one_and_do_not_depend_on_their_batch(embedding: Embedding) -> None:
    texts = ["", "a", "word " * 1_000, "\ud800", "Grüße 你好 🙂", *(f"text {number}" for number in range(40))]

    vectors = embedding.embed(texts)

    assert all(math.isclose(dot(vector, vector), 1.0, abs_tol=1e-4) for vector in vectors)
    assert {len(vector) for vector in vectors} == {384}
    # Quantised: what stands beside a text in its batch moves it a little.
    assert dot(embedding.embed(["text 7"])[0], vectors[5 + 7]) > 0.98
    assert embedding.embed([]) == []


@pytest.mark.model
def test_threads_may_share_one() -> None:
    fetched("minilm")
    shared = Embedding()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: shared.embed(["the same text"])[0], range(8)))

    assert all(item == found[0] for item in found)
