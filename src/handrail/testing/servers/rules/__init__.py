"""What each API refuses, as small functions. A docstring names the source of its rule: the API reference, the types of
the SDK, or a response that was observed."""
