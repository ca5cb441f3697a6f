"""How fast Handrail is, beside a floor and beside its peers; `benchmarks/run` runs it."""
