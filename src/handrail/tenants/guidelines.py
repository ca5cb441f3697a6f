"""A tenant's guidelines: written as mappings, validated field by field, used as `Guideline` values."""

from collections.abc import Container, Sequence
from typing import Annotated, Any

from msgspec import structs
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetPydanticSchema, model_validator
from pydantic_core import core_schema

from handrail.core.tool import check_name
from handrail.errors import ToolDefinitionError
from handrail.guide.values import Criticality, Guideline


def _check_tool(name: str) -> str:
    try:
        check_name(name)
    except ToolDefinitionError as error:
        raise ValueError(error.message) from error
    return name


class _GuidelineFields(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)

    condition: Annotated[str, Field(max_length=2_000)] = ""
    action: Annotated[str, Field(max_length=20_000)] = ""
    tools: tuple[Annotated[str, AfterValidator(_check_tool)], ...] = ()
    criticality: Criticality = "medium"
    always: bool = False
    priority: int = 0
    track: bool = False
    id: Annotated[str, Field(max_length=64)] = ""

    @model_validator(mode="before")
    @classmethod
    def _take_value(cls, given: Any) -> Any:
        if not isinstance(given, Guideline):
            return given
        if given.matches is not None:
            raise ValueError("matches is code, which a configuration cannot have; write a condition")
        if given.on_match is not None:
            raise ValueError("on_match is code, which a configuration cannot have")
        return _dump(given)

    @model_validator(mode="after")
    def _check_condition(self) -> "_GuidelineFields":
        if not self.condition.strip() and not self.always:
            raise ValueError("must have a condition, or `always: true`")
        return self


def _dump(guideline: Guideline) -> dict[str, Any]:
    return {name: value for name, value in structs.asdict(guideline).items() if name not in ("matches", "on_match")}


def _to_guideline(fields: _GuidelineFields) -> Guideline:
    return Guideline(**fields.model_dump())


TenantGuideline = Annotated[
    Guideline,
    GetPydanticSchema(
        lambda _, handler: core_schema.no_info_after_validator_function(
            _to_guideline,
            handler.generate_schema(_GuidelineFields),
            serialization=core_schema.plain_serializer_function_ser_schema(_dump),
        )
    ),
]
"""A `Guideline`, or a mapping with its fields."""


def keep_built(guidelines: Sequence[Guideline], names: Container[str]) -> tuple[tuple[Guideline, ...], list[str]]:
    """The guidelines with those of their tools that were built, and what is to be said of the others.

    A guideline of whose tools none was built is left out.
    """
    kept: list[Guideline] = []
    warnings: list[str] = []
    for number, guideline in enumerate(guidelines):
        known = tuple(name for name in guideline.tools if name in names)
        if missing := [name for name in guideline.tools if name not in names]:
            what = "which was not built" if known else "which was not built, and is left out"
            warnings.append(f"guidelines.{number} names the tool {missing[0]!r}, {what}")
        if known or not guideline.tools:
            kept.append(structs.replace(guideline, tools=known))
    return tuple(kept), warnings
