"""The eight programs of the toolcall document, read from the document itself, which is not part of this repository."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

SEEDS = Path(__file__).resolve().parents[3] / "shared" / "seeds"
RULER = "-" * 80
RAISED = "get_weather raised a ToolErrorMessageForLLMToSee()"
PROGRAM = re.compile(
    r"<summary>OpenAI - (?P<api>Chat Completions|Responses) API(?P<is_async> - Async)?</summary>\n\n"
    r"```python\n(?P<source>.*?)```\n\nOutput:\n\n```\n(?P<printed>.*?)```",
    re.DOTALL,
)

Item = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program, and what the document says that it prints."""

    name: str
    api: Literal["chat", "responses"]
    grouped: bool
    original: str
    printed: str

    @property
    def source(self) -> str:
        """The program with nothing changed but the root of its one import from the library."""
        changed, times = re.subn(
            r"^from toolcall\.openai\.", "from handrail.openai.", self.original, flags=re.MULTILINE
        )
        assert times == 1
        return changed

    @property
    def transcript(self) -> list[Item]:
        """The printed messages, as values."""
        blocks = self.printed.split(f"{RULER}\n")[1:]
        return [json.loads(f"{{{block}}}") for block in blocks]

    @property
    def turns(self) -> list[list[Item]]:
        """What the model said, one list for each of its answers."""
        turns: list[list[Item]] = []
        spoke = False
        for item in self.transcript:
            speaks = item.get("role") == "assistant" or item.get("type") == "function_call"
            if speaks and spoke and self.api == "responses":
                turns[-1].append(item)
            elif speaks:
                turns.append([item])
            spoke = speaks
        return turns

    @property
    def output(self) -> str:
        """What is really printed: the document leaves out the system message, a line, and the last blank one."""
        prompt = re.search(r'^SYSTEM_PROMPT = """\n(.*?)\n""".strip\(\)$', self.original, re.DOTALL | re.MULTILINE)
        assert prompt
        system = json.dumps({"role": "system", "content": prompt[1]}, indent=2).strip("{}")
        raised = "" if self.grouped else f"{RAISED}\n"
        return f"{raised}{RULER}\n{system}\n{self.printed}\n"


def programs() -> dict[str, Program]:
    """The programs by name; skips the test where the document is not there."""
    found = [
        text for path in sorted(SEEDS.glob("*.txt")) if (text := path.read_text("utf-8")).startswith("# toolcall\n")
    ]
    if not found:
        pytest.skip("needs the toolcall document in ../shared/seeds, beside the repository")
    start_of_standalone = found[0].index("### 2. Standalone tools")
    read: dict[str, Program] = {}
    for match in PROGRAM.finditer(found[0]):
        api = "chat" if match["api"].startswith("Chat") else "responses"
        grouped = match.start() < start_of_standalone
        name = "_".join(["grouped" if grouped else "standalone", api, "aio" if match["is_async"] else "core"])
        read[name] = Program(name=name, api=api, grouped=grouped, original=match["source"], printed=match["printed"])
    assert len(read) == 8
    return read
