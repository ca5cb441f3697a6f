"""Tools of installed packages: found by their entry points, and one that is broken harms no other."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail import ConfigError, Executor, ToolCall, ToolContext
from handrail.sources import load_plugins

WEATHER = """
from handrail import tool, build_tool

@tool(read_only=True)
def forecast(city: str) -> str:
    "Tell the weather."
    return f"sun in {city}"

def climate(city: str) -> str:
    "Tell the climate."
    return "mild"

TOOLS = [forecast, climate, {"name": "odd"}]
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def install(site: Path, package: str, code: str, entry: str | None = None) -> None:
    (site / f"{package}.py").write_text(code)
    if entry is not None:
        info = site / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[handrail.tools]\n{entry}\n")


async def test_the_tools_of_installed_packages_are_loaded_and_run(site: Path) -> None:
    install(site, "hr_weather", WEATHER, "weather = hr_weather:TOOLS")
    install(site, "hr_broken", "import no_such_module_of_anybody", "broken = hr_broken:TOOLS")
    install(site, "hr_exit", "import sys; sys.exit('bye')", "exit = hr_exit")
    install(site, "hr_copy", "from hr_weather import forecast\nother = forecast", "zz = hr_copy:other.missing")
    install(site, "hr_late", "from handrail import tool\n@tool\ndef forecast() -> str: 'x'", "z_late = hr_late")

    plugins = load_plugins()
    async with Executor([*plugins]) as executor:
        call = ToolCall(id="c-1", name="forecast", arguments_json='{"city": "Rome"}')
        result = await executor.run(call, ToolContext(session_id="s-1"))

    assert result.output == "sun in Rome"
    assert [(tool.name, tool.source) for tool in plugins] == [
        ("forecast", "plugin:weather"),
        ("climate", "plugin:weather"),
    ]
    reasons = {skipped.name: skipped.reason for skipped in plugins.skipped}
    assert reasons == {
        "broken": "ModuleNotFoundError: No module named 'no_such_module_of_anybody'",
        "exit": "SystemExit: bye",
        "weather": "`odd` cannot be built: it has no execute, input_schema.",
        "z_late": "`forecast` is there already, from plugin:weather",
        "zz": "AttributeError: 'Tool' object has no attribute 'missing'",
    }


def test_an_object_or_a_module_can_be_named(site: Path) -> None:
    install(site, "hr_weather", WEATHER)

    assert [tool.name for tool in load_plugins("hr_weather:TOOLS")] == ["forecast", "climate"]
    assert [tool.name for tool in load_plugins("hr_weather:climate", "hr_weather")] == ["climate", "forecast"]
    assert "ModuleNotFoundError" in load_plugins("hr_whether:TOOLS").skipped[0].reason
    with pytest.raises(ConfigError, match=r"a plugin is named 'package\.module:object', got ':x'"):
        load_plugins(":x")


UNPRINTABLE = """
class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no text")

raise Silent
"""


def test_a_plugin_that_raises_anything_at_all_is_a_diagnostic(site: Path) -> None:
    install(site, "hr_weather", WEATHER)
    install(site, "hr_silent", UNPRINTABLE)
    install(site, "hr_base", "class Odd(BaseException): pass\nraise Odd('gone')")
    install(site, "hr_end", "raise GeneratorExit")

    plugins = load_plugins("hr_silent", "hr_base", "hr_end", "hr_weather:TOOLS")

    assert [tool.name for tool in plugins] == ["forecast", "climate"]
    reasons = [skipped.reason for skipped in plugins.skipped]
    assert reasons[:3] == ["Silent: (it cannot be printed)", "Odd: gone", "GeneratorExit: "]
