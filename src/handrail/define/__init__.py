"""The ways to write a tool: `@tool`, `LLMFunctionTool`, `build_tool`, `as_tool`."""

__all__: list[str] = []
