"""The documentation site: `./scripts/docs` builds it from `docs/`, the docstrings and the examples."""
