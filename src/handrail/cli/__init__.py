"""The `handrail` command."""

__all__: list[str] = []
