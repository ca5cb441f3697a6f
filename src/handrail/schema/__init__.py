"""Types to JSON Schema and back: what a tool accepts, and how a provider must be told."""
