"""The parts that a tenant's configuration is made of."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of a configuration: frozen, and without unknown fields. Features of your own can inherit from it."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)
