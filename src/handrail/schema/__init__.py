"""Types to JSON Schema and back: what a tool accepts, and how schemas are lowered for providers."""

__all__: list[str] = []
