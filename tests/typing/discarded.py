"""Results that must not be thrown away; in a file of its own, because the rule would forbid every `assert_type` too."""

# pyright: reportUnusedCallResult=error


def the_harness_sees_a_discarded_result(names: list[str]) -> None:
    sorted(names)  # E: reportUnusedCallResult
