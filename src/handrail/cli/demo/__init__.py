"""`handrail demo`: five failures of an agent that pays, without Handrail and with it, in processes that are killed."""

__all__: list[str] = []
