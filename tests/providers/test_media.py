"""Media in results, through the official SDKs: each API gets what it takes, and a description of what it does not."""

import json
from base64 import b64decode
from typing import Any

import pytest
from google import genai

from handrail import MediaPart, ToolResult
from handrail.formats import openai_realtime
from handrail.providers import ModelRequest, ToolMessage
from handrail.providers.messages import to_history_result
from handrail.testing.servers import GeminiServer, text, tool_calls
from tests.providers.kit import ALL, ANTHROPIC, CHAT, GEMINI, RESPONSES, TOOLS, Subject, hello

PNG = MediaPart(mime_type="image/png", data=b"\x89PNG\xff\xfe?>", name="chart.png")
GIF = MediaPart(mime_type="image/gif", data=b"GIF89a")
PDF = MediaPart(mime_type="application/pdf", data=b"%PDF-1.7", name="report.pdf")
LINK = MediaPart(mime_type="image/jpeg", uri="https://pictures.example/a.jpg")
SOUND = MediaPart(mime_type="audio/wav", data=b"RIFF")
LOCAL = MediaPart(mime_type="image/png", uri="file:///etc/passwd")
MEDIA = (PNG, GIF, PDF, LINK, SOUND, LOCAL)

ANTHROPIC_BLOCKS = [
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG.base64}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": GIF.base64}},
    {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": PDF.base64},
        "title": "report.pdf",
    },
    {"type": "image", "source": {"type": "url", "url": LINK.uri}},
]
RESPONSES_PARTS = [
    {"type": "input_image", "image_url": f"data:image/png;base64,{PNG.base64}", "detail": "auto"},
    {"type": "input_image", "image_url": f"data:image/gif;base64,{GIF.base64}", "detail": "auto"},
    {"type": "input_file", "filename": "report.pdf", "file_data": f"data:application/pdf;base64,{PDF.base64}"},
    {"type": "input_image", "image_url": LINK.uri, "detail": "auto"},
]


async def send(subject: Subject, media: tuple[MediaPart, ...], *, model: str = "test-model", output: Any = None) -> Any:
    """The body of the request that carries a result with these media; the strict server took it."""
    script = [tool_calls(("weather", {"city": "Ulm"})), text("A chart.")]
    with subject.server(script) as server:
        provider = subject.adapter(model, base_url=server.url, api_key="sk-test", max_retries=0)
        try:
            first = await provider.ask(ModelRequest(messages=hello(), tools=TOOLS))
            (call,) = first.calls
            result = ToolResult(output=output, media=media, call_id=call.id, tool_name=call.name)
            history = [*hello(), first.message(), ToolMessage(results=(to_history_result(result),))]
            last = await provider.ask(ModelRequest(messages=history, tools=TOOLS))
        finally:
            await provider.aclose()
        assert last.text == "A chart."
        return server.requests[-1].body


async def test_anthropic_gets_images_and_documents_as_blocks_of_the_tool_result() -> None:
    body = await send(ANTHROPIC, MEDIA, output="Drawn.")
    (block,) = body["messages"][-1]["content"]
    said, *blocks = block["content"]
    assert blocks == ANTHROPIC_BLOCKS
    assert said["text"] == f"Drawn.\n{SOUND.describe_for_model()}\n{LOCAL.describe_for_model()}"


async def test_responses_gets_images_and_files_as_parts_of_the_output() -> None:
    body = await send(RESPONSES, MEDIA, output={"n": 1})
    said, *parts = body["input"][-1]["output"]
    assert parts == RESPONSES_PARTS
    assert said["text"] == f'{{"n":1}}\n{SOUND.describe_for_model()}\n{LOCAL.describe_for_model()}'


async def test_gemini_gets_inline_data_beside_the_response() -> None:
    body = await send(GEMINI, MEDIA, output="Drawn.")
    response = body["contents"][-1]["parts"][0]["functionResponse"]
    blobs = [part["inline_data"] for part in response["parts"]]  # The API reads either spelling.
    assert [(blob["mime_type"], b64decode(blob["data"], altchars=b"-_")) for blob in blobs] == [
        ("image/png", PNG.data),
        ("application/pdf", PDF.data),
    ]
    hidden = [GIF, LINK, SOUND, LOCAL]
    assert response["response"]["output"].splitlines() == ["Drawn.", *(item.describe_for_model() for item in hidden)]


@pytest.mark.parametrize("model", ["gemini-2.5-flash", "models/gemini-1.5-pro", "gemma-3"])
async def test_an_older_gemini_reads_a_description(model: str) -> None:
    body = await send(GEMINI, (PNG,), model=model)
    response = body["contents"][-1]["parts"][0]["functionResponse"]
    assert "parts" not in response
    assert response["response"] == {"output": PNG.describe_for_model()}


async def test_chat_completions_reads_a_description_and_no_message_is_made_up() -> None:
    body = await send(CHAT, MEDIA, output="Drawn.")
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool"]
    assert body["messages"][-1]["content"].splitlines() == ["Drawn.", *(item.describe_for_model() for item in MEDIA)]


@pytest.mark.parametrize("subject", ALL, ids=lambda one: one.name)
async def test_every_api_takes_a_result_of_nothing_but_a_picture(subject: Subject) -> None:
    body = await send(subject, (PNG,))
    assert ('"text": ""' not in json.dumps(body)) or subject is GEMINI


def test_realtime_reads_a_description() -> None:
    (event,) = openai_realtime.results([ToolResult(output="Drawn.", media=(PNG,), call_id="c")])
    item: Any = event["item"]
    assert item["output"] == f"Drawn.\n{PNG.describe_for_model()}"


def test_the_strict_server_refuses_what_the_api_does_not_take() -> None:
    picture = {"inline_data": {"mime_type": "image/gif", "data": b"GIF"}}
    answer = {"name": "weather", "response": {"output": ""}, "parts": [picture]}
    contents: Any = [
        {"role": "user", "parts": [{"text": "Hi."}]},
        {"role": "model", "parts": [{"function_call": {"name": "weather", "args": {}}}]},
        {"role": "user", "parts": [{"function_response": answer}]},
    ]
    with GeminiServer([]) as server:
        options = genai.types.HttpOptions(base_url=server.url)
        client = genai.Client(api_key="sk-test", http_options=options)
        with pytest.raises(genai.errors.ClientError, match="Unsupported MIME type: image/gif"):
            client.models.generate_content(model="test-model", contents=contents)
