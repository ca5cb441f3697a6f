"""HTTP downloads with the standard library: bounded, resumable, and without credentials in error messages."""

import base64
import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

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
