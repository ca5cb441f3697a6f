"""Tool definitions and dispatch for your own loop with OpenAI's APIs: `core` is sync, `aio` is async.

It has no policy, no ledger and no timeout: a call that you dispatch runs. Everything else in Handrail goes through
`Executor.run`.
"""

__all__: list[str] = []
