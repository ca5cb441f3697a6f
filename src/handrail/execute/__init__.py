"""Runs tool calls: authorised, scheduled, cancellable, at most once, and audited."""
