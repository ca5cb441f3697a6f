"""Every Python snippet of the README and the docs is a program that runs, and prints what it says.

The snippets of one page run in order, in one module and one event loop, so that a page can be read from top to bottom;
`await` works outside functions, as in Python's asyncio console. What they print must be what their `#> ` lines say.

- A block `python {file="shop.py"}`, in any language, is a file in the reader's folder.
- A block `console {run="yes"}` has commands of a shell (`$ …`) and what they print; `…` stands for any text.
- A snippet `python {needs="module"}` runs only where the module is installed.
"""

import ast
import asyncio
import contextlib
import inspect
import io
import logging
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from pytest_examples import CodeExample, find_examples

from handrail.models.catalogue import MINILM, SMOLLM2
from tests.models.weights import fetched
from tests.tools import is_installed

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PRINTED = re.compile(r"^ *#>(?: (.*))?$", re.MULTILINE)


BLOCK = re.compile(
    r"^```(?P<language>\w+) \{(?P<kind>file|run)=\"(?P<value>[^\"]+)\"\}\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of a page that is no Python of the page's own program: a file, or commands."""

    start_line: int
    kind: str
    value: str
    text: str

    def run(self) -> None:
        """Write the file, or run the commands and compare what they print."""
        if self.kind == "file":
            Path(self.value).parent.mkdir(parents=True, exist_ok=True)
            Path(self.value).write_text(self.text)
            return
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        for command in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            line, _, said = command.partition("\n")
            ended = subprocess.run(
                line,
                shell=True,
                env=os.environ | {"PATH": path, "COLUMNS": "100"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=60,
            )
            pattern = ".*?".join(map(re.escape, said.rstrip().split("…")))
            assert re.fullmatch(pattern, ended.stdout.rstrip(), re.DOTALL), f"$ {line}\n{ended.stdout}"


def find_blocks(page: Path) -> list[Block]:
    """The files and the commands of a page."""
    text = page.read_text("utf-8")
    return [
        Block(start_line=text.count("\n", 0, item.start()), kind=item["kind"], value=item["value"], text=item["text"])
        for item in BLOCK.finditer(text)
    ]


def find_snippets(page: Path) -> list[CodeExample]:
    """The snippets of a page that can run here.

    One that is marked with `{needs="module"}` is for an environment that has the module: `.ci/adapters` runs the page
    in the environment of each framework.
    """
    found = [(example, example.prefix_settings()) for example in find_examples(page)]
    return [
        one
        for one, settings in found
        if "file" not in settings and ((module := settings.get("needs")) is None or is_installed(module))
    ]


def run_page(page: Path) -> None:
    """Run the snippets of a page in the working directory."""
    snippets = find_snippets(page)
    # A file of Python with the line numbers of the page: tracebacks are right, and tools can read their own source.
    # It is not `litellm.py`, which a page would import in place of the library.
    file = Path(f"page_{page.stem}.py").absolute()
    lines = [""] * (1 + max((snippet.end_line for snippet in snippets), default=0))
    for snippet in snippets:
        code = snippet.source.splitlines()
        lines[snippet.start_line : snippet.start_line + len(code)] = code
    file.write_text("\n".join(lines))

    module = ModuleType("__main__")
    module.__file__ = str(file)
    before, sys.modules["__main__"] = sys.modules["__main__"], module
    known, path = set(sys.modules), list(sys.path)
    sys.path.insert(0, str(file.parent))  # as for a program that is started in this folder
    try:
        with asyncio.Runner() as runner:
            for part in sorted([*snippets, *find_blocks(page)], key=lambda part: part.start_line):
                if isinstance(part, Block):
                    part.run()
                    continue
                output = io.StringIO()
                source = "\n" * part.start_line + part.source
                block = compile(source, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
                with contextlib.redirect_stdout(output):
                    result = eval(block, module.__dict__)
                    if inspect.iscoroutine(result):
                        runner.run(result)
                said = PRINTED.findall(part.source)
                assert output.getvalue().splitlines() == said, f"{page.name}:{part.start_line}"
    finally:
        sys.modules["__main__"] = before
        sys.path[:] = path
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(file.parent)):
                del sys.modules[name]  # a file of the page, which another page may have, too


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_snippets_of_a_page_run_and_print_what_they_say(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    run_page(page)

    # Without a configuration, Python writes warnings of a library to standard error.
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [*logged, *capsys.readouterr().err.splitlines()] == [] or page.stem in SHOW_FAULTS


SHOW_FAULTS = {"chat", "executor", "sources", "livekit", "crewai"}
"""Pages with a tool that fails or is refused, a rule that is misspelt, a server that is down: the log says so.
CrewAI warns about every model that it does not know, such as a scripted one."""


PAGES_WITH_A_MODEL = [
    page for page in PAGES if any(re.search("ToolSearch|Embedd", snippet.source) for snippet in find_snippets(page))
]
"""The pages whose programs use a model where this machine has it."""


@pytest.mark.model
@pytest.mark.parametrize("page", PAGES_WITH_A_MODEL, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_also_right_for_a_reader_who_has_the_models(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for model in (SMOLLM2, MINILM):
        fetched(model.name)

    run_page(page)


SAMPLE = '''
```python
import asyncio
import inspect
from dataclasses import dataclass


@dataclass
class Answer:
    value: int
    """What was found."""


queue = asyncio.Queue()
await queue.put(Answer(42))
```

Then, in the same loop:

```python
for _ in range(2):
    print(queue.qsize())
#> 1
#> {second}
answer = await queue.get()
print("What was found" in inspect.getsource(type(answer)))
#> True
```
'''


@pytest.mark.parametrize(("second", "outcome"), [("1", contextlib.nullcontext()), ("2", pytest.raises(AssertionError))])
def test_a_page_that_says_something_else_than_it_prints_is_noticed(
    second: str, outcome: contextlib.AbstractContextManager[None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(SAMPLE.replace("{second}", second))

    with outcome:
        run_page(page)
