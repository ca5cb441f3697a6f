"""How a tenant's agent listens and speaks: turn detection, noise, transcription, voice and speed."""

from typing import Annotated, Any, Literal

from pydantic import Field

from handrail.tenants.section import Section

Milliseconds = Annotated[int, Field(ge=0, le=60_000)]
Name = Annotated[str, Field(min_length=1, max_length=128)]


class ServerVad(Section):
    """The caller's turn is over after some silence."""

    type: Literal["server_vad"]
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    prefix_padding_ms: Milliseconds | None = None
    silence_duration_ms: Milliseconds | None = None
    idle_timeout_ms: Annotated[int, Field(ge=5_000, le=30_000)] | None = None
    """After so much silence the model speaks by itself."""
    interrupt_response: bool | None = None
    """Whether the caller's voice interrupts the agent; the provider's default is yes."""


class SemanticVad(Section):
    """The caller's turn is over when they seem to have finished what they say."""

    type: Literal["semantic_vad"]
    eagerness: Literal["low", "medium", "high", "auto"] | None = None
    interrupt_response: bool | None = None
    """Whether the caller's voice interrupts the agent; the provider's default is yes."""


class Transcription(Section):
    """What the caller says, in writing."""

    model: Name
    language: Annotated[str, Field(pattern=r"^[a-z]{2,3}$")] | None = None
    """The language of the tenant's locale, unless this says another."""
    prompt: Annotated[str, Field(max_length=2_000)] | None = None
    """Words that callers are likely to use."""


class Audio(Section):
    """The audio of one tenant's calls; what is left out is the provider's default."""

    turn_detection: Annotated[ServerVad | SemanticVad, Field(discriminator="type")] = Field(
        default_factory=lambda: ServerVad(type="server_vad")
    )
    noise_reduction: Literal["near_field", "far_field"] | None = None
    transcription: Transcription | None = None
    voice: Name | None = None
    speed: Annotated[float, Field(ge=0.25, le=1.5)] | None = None

    def describe(self, *, language: str) -> dict[str, Any]:
        """The `audio` of a session, as the Realtime API takes it."""
        listening: dict[str, Any] = {"turn_detection": self.turn_detection.model_dump(exclude_none=True)}
        if self.noise_reduction is not None:
            listening["noise_reduction"] = {"type": self.noise_reduction}
        if self.transcription is not None:
            listening["transcription"] = {"language": language, **self.transcription.model_dump(exclude_none=True)}
        speaking = self.model_dump(include={"voice", "speed"}, exclude_none=True)
        return {"input": listening, **({"output": speaking} if speaking else {})}
