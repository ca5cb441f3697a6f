"""Reading from an address with the standard library: bounded, resumable, and without credentials in what it says."""

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
SECONDS: Final = 30.0
"""Without a byte, after which a connection counts as broken."""
TRIES: Final = 5
"""How often a download is taken up again, if each time it came further."""


class Unreachable(Exception):
    """This source did not give the file; the text is the reason."""


def shown(address: str) -> str:
    """An address as it may be said: without credentials and without a query, where tokens are."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def read(address: str, *, accept: str, most: int, env: Mapping[str, str] | None = None) -> tuple[bytes, str, str]:
    """A small page: its bytes, its type, and the address that it came from in the end."""
    with _open(address, {"Accept": accept}, env) as answer:
        try:
            body = _next(answer, most + 1)
        except _BrokenOff as error:
            raise Unreachable("the connection broke off") from error
        if len(body) > most:
            raise Unreachable(f"its page is larger than {most} bytes")
        return body, answer.headers.get_content_type(), answer.geturl()


def download(
    address: str, part: Path, *, size: int, told: Callable[[int], object], env: Mapping[str, str] | None = None
) -> None:
    """Fill a file up to its size. What is there already is kept, and the rest asked for; so it is when this raises."""
    tries = TRIES
    while True:
        before = _there(part, size)
        if before == size:
            return
        try:
            _once(address, part, size=size, told=told, env=env)
        except _Shorter:
            part.unlink()  # More is here than there: it cannot be the beginning of that file.
        except _BrokenOff as error:
            tries -= 1
            if not tries or _there(part, size) <= before:
                raise Unreachable(f"the connection broke off after {_there(part, size)} of {size} bytes") from error


class _BrokenOff(Exception):
    """A connection ended too early."""


class _Shorter(Exception):
    """The file there ends before the point at which this download should go on."""


def _there(part: Path, size: int) -> int:
    try:
        there = part.stat().st_size
    except FileNotFoundError:
        return 0
    if there <= size:
        return there
    part.unlink()
    return 0


def _once(address: str, part: Path, *, size: int, told: Callable[[int], object], env: Mapping[str, str] | None) -> None:
    done = _there(part, size)
    with _open(address, {"Range": f"bytes={done}-"} if done else {}, env) as answer:
        resumed = done and answer.status == 206
        if resumed and not (answer.headers.get("Content-Range") or "").startswith(f"bytes {done}-"):
            raise Unreachable("it answered with another part of the file than the one asked for")
        if not resumed:
            done = 0
        with part.open("ab" if resumed else "wb") as file:
            while block := _next(answer, CHUNK):
                done += len(block)
                if done > size:
                    file.truncate(0)
                    raise Unreachable(f"it is larger than the {size} bytes that it should have")
                file.write(block)
                told(done)
        if done < size:
            raise _BrokenOff


def _next(answer: Any, most: int) -> bytes:
    try:
        return answer.read(most)
    except (http.client.HTTPException, OSError) as error:  # Time-outs and TLS among them.
        raise _BrokenOff from error


@contextmanager
def _open(address: str, headers: Mapping[str, str], env: Mapping[str, str] | None) -> Generator[Any]:
    parts = urlsplit(address)
    if parts.scheme not in {"http", "https", "file"}:
        raise Unreachable("its address is not of a kind that is fetched")
    request = urllib.request.Request(
        parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
        headers={"User-Agent": "handrail", "Accept-Encoding": "identity", **headers},
    )
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        # Not sent on to where a redirect points.
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    try:
        answer = urllib.request.urlopen(request, timeout=SECONDS, context=_trusted(env))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and "Range" in headers:
            raise _Shorter from error
        raise Unreachable(f"it answered {error.code}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise Unreachable(f"no connection ({type(reason).__name__}: {reason})") from error
    with answer:
        yield answer


def _trusted(env: Mapping[str, str] | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    bundle = (os.environ if env is None else env).get("PIP_CERT")
    if bundle and Path(bundle).is_file():
        context.load_verify_locations(bundle)
    return context
