"""Makes the page of all options from the docstrings: each option of what a user configures, with its default."""

import re
from functools import cache
from typing import Any, NamedTuple

import griffe

from tests.docs.public_names import ROOT

CONFIGURED: dict[str, tuple[tuple[str, ...], ...]] = {
    "Tools": (("handrail.define.options.ToolOptions",), ("handrail.ToolContext",)),
    "Policy": (("handrail.Policy",), ("handrail.Rule",)),
    "Executor": (
        ("handrail.Executor",),
        ("handrail.execute.Limits",),
        ("handrail.execute.Timeouts",),
        ("handrail.execute.RateLimit",),
        ("handrail.execute.CircuitBreaker",),
        ("handrail.execute.RetryPolicy",),
        ("handrail.execute.MemoryLedger",),
        ("handrail.execute.Worker",),
        ("handrail.core.Redactor",),
        ("handrail.execute.run_until_done",),
        ("handrail.execute.Budget",),
    ),
    "Storage": (("handrail.store.open_store",),),
    "Conversations": (
        ("handrail.ChatSession",),
        ("handrail.Agent",),
        ("handrail.Guideline",),
        ("handrail.guide.GuideSettings",),
        ("handrail.guide.ParameterOptions",),
    ),
    "Models": (
        (
            "handrail.providers.OpenAIResponses",
            "handrail.providers.OpenAIChat",
            "handrail.providers.AnthropicMessages",
            "handrail.providers.GeminiModel",
        ),
        ("handrail.providers.EmbeddedProvider",),
        ("handrail.providers.Prices",),
    ),
    "Tools from elsewhere": (
        ("handrail.sources.McpServer",),
        ("handrail.sources.OpenApi",),
        ("handrail.sources.Pagination",),
        ("handrail.registry.ToolSearch",),
    ),
    "Serving": (
        ("handrail.sources.serve_mcp",),
        ("handrail.sources.mcp_app",),
        ("handrail.serve.build_app",),
        ("handrail.serve.ApiLimits",),
    ),
    "Monitoring": (("handrail.monitor.Log",), ("handrail.monitor.Metrics",), ("handrail.monitor.Traces",)),
    "Phone": (
        ("handrail.phone.PhoneGateway",),
        ("handrail.phone.MachineOptions",),
        ("handrail.tenants.TenantConfig",),
        ("handrail.tenants.TenantLimits",),
        ("handrail.tenants.TenantTrust",),
    ),
}
"""What is configured, by subject. Names that stand together have the same options, which the first one describes."""
NAMES = {"handrail.define.options.ToolOptions": "@tool, as_tool, build_tool, ToolFlags"}
"""How a type is called that users do not import."""


class Option(NamedTuple):
    """One option: a parameter or a field."""

    name: str
    default: str
    text: str


@cache
def load_package() -> Any:
    """The package as its sources describe it. Nothing is imported."""
    loader = griffe.GriffeLoader(search_paths=[str(ROOT / "src")], docstring_parser="google")
    package = loader.load("handrail")
    loader.resolve_aliases(implicit=True, external=False)
    return package


def find_object(path: str) -> Any:
    """A class or function by its public path."""
    found = load_package()[path.removeprefix("handrail.")]
    return found.final_target if found.is_alias else found


def list_options(path: str) -> list[Option]:
    """The options of a class or a function, in order."""
    found = find_object(path)
    is_dataclass = "dataclass" in found.labels
    function = found if found.is_function else None if is_dataclass else found.members.get("__init__")
    if function is None:
        return [
            Option(name, render_default(member.value), clean(member.docstring.value if member.docstring else ""))
            for name, member in found.members.items()
            if member.is_attribute and not name.startswith("_") and is_field(member)
        ]
    texts = {name: text for documented in (found, function) for name, text in read_arguments(documented).items()}
    return [
        Option(parameter.name, render_default(parameter.default), texts.get(parameter.name, ""))
        for parameter in function.parameters
        if parameter.name != "self" and not parameter.kind.value.startswith("variadic")
    ]


def is_field(member: Any) -> bool:
    """Whether an attribute of a class is one of its fields."""
    return member.annotation is not None and "ClassVar" not in str(member.annotation) and member.name != "model_config"


def read_arguments(described: Any) -> dict[str, str]:
    """The texts of the section `Args` of a docstring."""
    if described.docstring is None:
        return {}
    return {
        item.name: clean(item.description)
        for section in described.docstring.parsed
        if section.kind is griffe.DocstringSectionKind.parameters
        for item in section.value
    }


def clean(text: str) -> str:
    """A text on one line, for a cell of a table."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


def render_default(value: Any) -> str:
    """A default as a reader writes it; nothing for an option that must be given."""
    text = "" if value is None else str(value)
    if found := re.fullmatch(r"[Ff]ield\(.*?default_factory=(\w+).*\)", text):
        return f"`{found[1]}()`"
    if found := re.fullmatch(r"field\(.*?default=([^,)]+).*\)", text):
        return f"`{found[1]}`"
    if text.startswith("field("):
        return "–"
    return "–" if not text else f"`{text}`"


def render_options() -> str:
    """The page."""
    parts = [
        "# All options",
        "Every option of what you configure, with its default; `–` stands for an option that must be given. The page "
        "of each subject says more about them.",
    ]
    for subject, groups in CONFIGURED.items():
        parts.append(f"## {subject}")
        for group in groups:
            names = NAMES.get(group[0]) or ", ".join(path.rpartition(".")[2] for path in group)
            parts.append(f"### `{names}`")
            if group[0] not in NAMES:
                parts.append(", ".join(f"[`{path}`][{path}]" for path in group))
            options = list_options(group[0])
            if any(option.default != "–" for option in options):
                rows = ["| option | default | meaning |", "|---|---|---|"]
                rows += [f"| `{option.name}` | {option.default} | {option.text} |" for option in options]
            else:
                rows = [
                    "| option | meaning |",
                    "|---|---|",
                    *(f"| `{option.name}` | {option.text} |" for option in options),
                ]
            parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"
