"""The features that every `ToolBuilder` has, one file each."""
