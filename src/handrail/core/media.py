"""`MediaPart`: an image, a sound or a file in the result of a tool."""

from base64 import b64encode
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct, structs

from handrail.core.lazy_loading import LazyModule, LazyPattern

if TYPE_CHECKING:
    import hashlib
else:
    hashlib = LazyModule("hashlib")

MediaKind = Literal["image", "audio", "video", "file"]

MAX_MEDIA_PARTS: Final = 20
"""How many parts the media of one result may have."""
_MIME_TYPE: Final = LazyPattern(r"[A-Za-z0-9][\w!#$&^.+-]{0,126}/[A-Za-z0-9][\w!#$&^.+-]{0,126}")
_TEXT: Final = LazyPattern(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,2000}")
_UNKNOWN_TYPE: Final = "application/octet-stream"


class MediaPart(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An image, a sound or a file for the model: its bytes, or the URI under which the model's provider finds it.

    Its bytes are never written to a log, an audit record or a `repr`; `describe()` is what those show.
    """

    mime_type: str
    """Such as `image/png`."""
    data: bytes | None = None
    uri: str | None = None
    """Where it is, if there is no `data`; where it came from, if there is."""
    name: str | None = None
    """A file name, for people and models."""
    omitted: str = ""
    """Why the data is not here any more: it was too large, or was not recorded. Such a part is only described."""
    size: int = 0
    """Bytes; set from `data`."""
    digest: str = ""
    """The SHA-256 of data that was omitted."""

    def __post_init__(self) -> None:
        if not isinstance(self.mime_type, str) or not _MIME_TYPE.compiled.fullmatch(self.mime_type):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"mime_type must be like 'image/png', got {self.mime_type!r}.")
        data = self.data
        if data is not None:
            if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"data must be bytes, got {type(data).__name__}; decode base64 text first.")
            structs.force_setattr(self, "size", len(data))
        elif self.uri is None and not self.omitted:
            raise ValueError("a MediaPart needs data=… or uri=…, got neither.")
        for field in ("uri", "name"):
            text: object = getattr(self, field)
            if text is not None and not (isinstance(text, str) and _TEXT.compiled.fullmatch(text)):
                raise ValueError(f"{field} must be 1 to 2,000 characters without control characters, got {text!r}.")

    @property
    def kind(self) -> MediaKind:
        """What it is, by its MIME type."""
        kind = self.mime_type.partition("/")[0].lower()
        return kind if kind in ("image", "audio", "video") else "file"

    @property
    def base64(self) -> str:
        """The data as base64 text, which is how every API takes it."""
        return b64encode(self.data or b"").decode()

    @property
    def data_url(self) -> str:
        """The data as a `data:` URL."""
        return f"data:{self.mime_type.lower()};base64,{self.base64}"

    def describe(self) -> dict[str, Any]:
        """What may be written down about it: type, size and digest, and never the data."""
        digest = hashlib.sha256(self.data).hexdigest() if self.data is not None else self.digest
        known = {"type": self.kind, "mime_type": self.mime_type, "name": self.name, "size": self.size, "sha256": digest}
        return {key: value for key, value in {**known, "omitted": self.omitted}.items() if value}

    def describe_for_model(self) -> str:
        """One line that tells a model what it cannot see."""
        title = f"{self.kind} {self.name}" if self.name else self.kind
        where = f"{self.size:,} bytes" if self.size else self.uri or "no data"
        why = f", left out: {self.omitted}" if self.omitted else ""
        return f"[{title}: {self.mime_type}, {where}{why}]"

    def omit(self, reason: str) -> "MediaPart":
        """The part without its data, and the reason for that."""
        if self.omitted:
            return self
        digest = hashlib.sha256(self.data).hexdigest() if self.data is not None else ""
        return structs.replace(self, data=None, omitted=reason, digest=digest)

    def __repr__(self) -> str:
        return f"MediaPart({', '.join(f'{name}={value!r}' for name, value in self.describe().items())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(self.describe().items())


def to_mime_type(text: str | None) -> str:
    """Normalize an untrusted MIME type: without parameters, and a generic one if it is not valid."""
    plain = (text or "").partition(";")[0].strip()
    return plain if _MIME_TYPE.compiled.fullmatch(plain) else _UNKNOWN_TYPE


def limit_media(media: Iterable[MediaPart], max_bytes: int, *, reason: str) -> tuple[MediaPart, ...]:
    """Parts of at most so many bytes together; one that does not fit any more is kept without its data."""
    left = max_bytes
    kept: list[MediaPart] = []
    for part in media:
        if part.data is not None and part.size > left:
            kept.append(part.omit(reason))
        else:
            left -= part.size if part.data is not None else 0
            kept.append(part)
    if len(kept) > MAX_MEDIA_PARTS:
        rest = f"a result holds at most {MAX_MEDIA_PARTS} parts"
        more = MediaPart(mime_type=_UNKNOWN_TYPE, name=f"({len(kept) - MAX_MEDIA_PARTS + 1:,} more)", omitted=rest)
        kept[MAX_MEDIA_PARTS - 1 :] = [more]
    return tuple(kept)
