"""Guidelines, relationships, variables and terms from a file: YAML or JSON."""

from pathlib import Path
from typing import Any, cast

import pydantic

from handrail.errors import ConfigError, MissingExtraError
from handrail.guide.relationships import Relation
from handrail.guide.values import Criticality, Guideline

_MAX_BYTES = 5_000_000


class _GuidelineEntry(pydantic.BaseModel, extra="forbid", strict=True):
    condition: str = ""
    action: str = ""
    tools: list[str] = []
    criticality: Criticality = "medium"
    always: bool = False
    id: str = ""


class _AgentFile(pydantic.BaseModel, extra="forbid", strict=True):
    instructions: str = ""
    agent_id: str | None = None
    guidelines: list[_GuidelineEntry] = []
    relationships: list[tuple[str, Relation, str]] = []
    variables: dict[str, Any] = {}
    terms: dict[str, str] = {}

    # JSON and YAML have no tuples.
    @pydantic.field_validator("relationships", mode="before")
    @classmethod
    def _read_relationships(cls, value: Any) -> Any:
        given = cast(list[Any], value)
        return (
            [tuple(cast(list[Any], one)) if isinstance(one, list) else one for one in given]
            if isinstance(value, list)
            else value
        )


def load_agent_definition(path: str | Path) -> dict[str, Any]:
    """Read the keyword arguments of an `Agent` from a file; `ConfigError` names the file and the place."""
    file = Path(path)
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{file} must be at most {_MAX_BYTES} bytes.")
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    try:
        found = _AgentFile.model_validate(_parse(text, file))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(f"{file}: {place}: {first['msg']}.") from error
    return {
        "instructions": found.instructions,
        "agent_id": found.agent_id,
        "guidelines": [
            Guideline(
                condition=one.condition,
                action=one.action,
                tools=tuple(one.tools),
                criticality=one.criticality,
                always=one.always,
                id=one.id,
            )
            for one in found.guidelines
        ],
        "relationships": found.relationships,
        "variables": found.variables,
        "terms": found.terms,
    }


def _parse(text: str, file: Path) -> Any:
    try:
        import yaml  # noqa: PLC0415  # optional
    except ImportError as error:
        raise MissingExtraError("pyyaml", extra="yaml") from error
    try:
        if any(isinstance(one, yaml.AliasToken) for one in cast(Any, yaml).scan(text)):
            raise ConfigError(f"{file}: aliases are not supported; write the value out.")
        return yaml.safe_load(text) or {}
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{file}{line}: this is not YAML: {getattr(error, 'problem', error)}") from error
