"""Dispatch by hand with OpenAI's APIs: `core` is sync, `aio` is async.

A facade over `define` and `formats` for people who write their own loop. It has no policy, no ledger and no timeout:
the caller is the authority. Everything else in Handrail goes through `Executor.run`.
"""
