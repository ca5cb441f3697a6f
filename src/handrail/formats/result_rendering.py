"""The results of tools as the formats send them: the text for the model, and the media that an API takes."""

from collections.abc import Collection
from typing import Final

from handrail.core.media import MediaPart
from handrail.core.text import compact_json
from handrail.core.values import ToolResult

PDF: Final = "application/pdf"


def select_media(
    result: ToolResult, *, images: Collection[str], files: Collection[str] = (), with_uri: bool = False
) -> tuple[MediaPart, ...]:
    """The media that an API takes, by the MIME types that it names; `with_uri`, also those that it fetches itself."""
    if not result.media or not result.ok:
        return ()

    def is_accepted(part: MediaPart) -> bool:
        has_content = part.data is not None or (with_uri and (part.uri or "").startswith("https://"))
        return has_content and not part.omitted and part.mime_type.lower() in (*images, *files)

    return tuple(part for part in result.media if is_accepted(part))


def render_result(result: ToolResult, attached: Collection[MediaPart] = ()) -> tuple[str, bool]:
    """The text for the model, and whether it is a failure; an output that JSON cannot hold is one.

    Media are described in the text, but for those that are attached.
    """
    text = result.for_model(attached=attached)
    if result.ok and not isinstance(result.output, str):
        try:
            compact_json(result.output)
        except ValueError:
            return text, True
    return text, not result.ok
