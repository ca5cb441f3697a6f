"""The desk that a conversation is held at: a file with tools, the bank's unless another is named."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct

from handrail.authorize.policy import Policy
from handrail.errors import ConfigError
from handrail.registry.registry import ToolRegistry

_BANK: Final = "bank_desk.py"


class Desk(Struct, frozen=True, kw_only=True):
    """What a file says that a conversation needs."""

    tools: ToolRegistry
    policy: Policy
    instructions: str
    make_deps: Callable[[], Any]


def bank_file() -> Path:
    """The example, which an installed package carries beside this module, and a checkout in `examples`."""
    beside = Path(__file__).with_name(_BANK)
    return beside if beside.exists() else Path(__file__).parents[3] / "examples" / _BANK


def load_desk(path: str | Path | None = None) -> Desk:
    """Run a file, and take what it defines; it is code, and trusted like any other that is run."""
    file = Path(path) if path is not None else bank_file()
    if not file.is_file():
        raise ConfigError(f"There is no file {file}: name a Python file that defines TOOLS.")
    given = runpy.run_path(str(file))
    if "TOOLS" not in given:
        raise ConfigError(f"{file} defines no TOOLS: a list of functions with @tool, or of anything tool-shaped.")
    policy, instructions, make_deps = (
        given.get(name, default) for name, default in (("POLICY", None), ("INSTRUCTIONS", ""), ("make_deps", None))
    )
    for name, value, fits in (
        ("POLICY", policy, policy is None or isinstance(policy, Policy)),
        ("INSTRUCTIONS", instructions, isinstance(instructions, str)),
        ("make_deps", make_deps, make_deps is None or callable(make_deps)),
    ):
        if not fits:
            right = {"POLICY": "a Policy", "INSTRUCTIONS": "a str"}.get(name, "a function without arguments")
            raise ConfigError(f"{name} in {file} is {right}, not {type(value).__name__}.")
    return Desk(
        tools=ToolRegistry(given["TOOLS"]),
        policy=cast(Policy, policy or Policy()),
        instructions=cast(str, instructions),
        make_deps=cast(Callable[[], Any], make_deps or (lambda: None)),
    )
