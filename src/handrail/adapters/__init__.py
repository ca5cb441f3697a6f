"""Handrail under other agent frameworks: one module per framework, each needs the extra of the same name."""

__all__: list[str] = []
