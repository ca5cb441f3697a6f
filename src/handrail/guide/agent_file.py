"""Guidelines, relationships, variables and terms from a file: YAML or JSON."""

from pathlib import Path
from typing import Any, cast

import pydantic

from handrail.core.yaml_reader import YamlReader, read_config_file
from handrail.errors import ConfigError
from handrail.guide.guidelines import Relation
from handrail.guide.values import Criticality, Guideline

_MAX_VALUES = 100_000


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
            [tuple(cast(list[Any], entry)) if isinstance(entry, list) else entry for entry in given]
            if isinstance(value, list)
            else value
        )


def load_agent_definition(path: str | Path) -> dict[str, Any]:
    """Read the keyword arguments of an `Agent` from a file; `ConfigError` names the file and the place."""
    file = Path(path)
    reader = YamlReader(read_config_file(file), source=str(file), max_values=_MAX_VALUES, allow_aliases=False)
    try:
        found = _AgentFile.model_validate(reader.read_value(reader.root) or {})
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(f"{file}: {place}: {first['msg']}.") from error
    return {
        "instructions": found.instructions,
        "agent_id": found.agent_id,
        "guidelines": [
            Guideline(
                condition=guideline.condition,
                action=guideline.action,
                tools=tuple(guideline.tools),
                criticality=guideline.criticality,
                always=guideline.always,
                id=guideline.id,
            )
            for guideline in found.guidelines
        ],
        "relationships": found.relationships,
        "variables": found.variables,
        "terms": found.terms,
    }
