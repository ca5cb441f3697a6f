"""An agent's definition, compiled once and shared by all of its turns."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final, Literal

from msgspec import Struct

from handrail.core.context import ToolContext
from handrail.errors import ConfigError
from handrail.guide.claims import Effect
from handrail.guide.journeys import JourneyStates
from handrail.guide.parameters import GuidedTool
from handrail.guide.prefilter import Prefilter
from handrail.guide.relationships import Relationships
from handrail.guide.values import CandidateTool, Guideline

RANK: Final = {"high": 0, "medium": 1, "low": 2}
"""The order in which the calls of one iteration run."""


class GuideSettings(Struct, frozen=True, kw_only=True):
    """How a guided turn plans."""

    max_iterations: int = 3
    """How often the results of tools go back into planning."""
    match_first: int | Literal["always"] = 12
    """Above this number of tools, guidelines are matched first, and only the tools of those that apply are shown to the
    judge."""
    max_tools_per_plan: int = 12
    """How many tools one question shows after guidelines were matched; tools that overlap stay together."""
    prefilter_above: int = 100
    """Above this number of guidelines, a pre-filter picks the ones that the judge is asked about."""
    prefilter_limit: int = 60
    judge_timeout: float = 60.0
    """How many seconds one question to the judge may take."""

    def __post_init__(self) -> None:
        for name in ("max_iterations", "max_tools_per_plan", "prefilter_limit"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.match_first != "always" and (not isinstance(self.match_first, int) or self.match_first < 0):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"match_first must be a number of tools or 'always', got {self.match_first!r}.")
        if not self.judge_timeout > 0:
            raise ConfigError(f"judge_timeout must be more than 0 seconds, got {self.judge_timeout!r}.")


class Variable(Struct, frozen=True, kw_only=True):
    """Something that the judge knows about the customer or the world."""

    name: str
    value: Any = None
    read: Callable[[ToolContext[Any]], Awaitable[Any] | Any] | None = None
    fresh_for: float = 0.0
    """How many seconds a session keeps what `read` returned."""


class Guide(Struct, frozen=True, kw_only=True):
    """Everything about an agent that does not change from turn to turn."""

    agent_id: str | None
    instructions: str
    guidelines: tuple[Guideline, ...]
    by_id: Mapping[str, Guideline]
    always: frozenset[str]
    tools: Mapping[str, GuidedTool]
    candidates: Mapping[str, CandidateTool]
    """Each tool as the judge sees it, with all of its guidelines."""
    effects: Mapping[str, Effect]
    """Of the consequential tools."""
    relationships: Relationships
    journeys: JourneyStates
    variables: tuple[Variable, ...]
    terms: Mapping[str, str]
    settings: GuideSettings
    prefilter: Prefilter | None
    clock: Callable[[], datetime]
