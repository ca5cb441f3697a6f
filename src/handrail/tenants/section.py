"""The parts that a tenant's configuration is made of."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

_ID: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"

Id = Annotated[str, Field(pattern=rf"^{_ID}$")]
Text = Annotated[str, Field(max_length=20_000)]


class Section(BaseModel):
    """A part of a configuration: frozen, and without unknown fields. Features of your own can inherit from it."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)
