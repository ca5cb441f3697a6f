"""`handrail verify`: which guarantees hold for an executor of yours, its tools' flags, its policy and its store."""

__all__: list[str] = []
