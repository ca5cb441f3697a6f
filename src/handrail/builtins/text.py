"""What the file tools take for text: UTF-8, with or without a mark at the beginning, and no NUL."""

from typing import Final

from handrail.errors import ToolError

BOM: Final = b"\xef\xbb\xbf"


def no_text(path: str, beginning: bytes) -> ToolError:
    """The refusal of a file that is not text; NUL bytes gave it away."""
    if beginning.startswith((b"\xff\xfe", b"\xfe\xff")):
        return ToolError(f"`{path}` is text in UTF-16; only UTF-8 can be used here.")
    return ToolError(f"`{path}` is a binary file (it has NUL bytes); only text can be used here.")


def to_bytes(text: str, *, argument: str) -> bytes:
    """Text as UTF-8, or a refusal of what UTF-8 cannot hold."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ToolError(
            f"`{argument}` has half of a surrogate pair at character {error.start}, which is no text; "
            "send the whole character."
        ) from error
