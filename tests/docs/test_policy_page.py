"""The reference of policies has every field of a rule and every operator of a condition, in both forms."""

import re

import pytest

from handrail import Rule
from handrail.authorize.conditions import OPERATORS
from handrail.authorize.policy_file import read_rule
from handrail.errors import RuleError
from tests.docs.public_names import ROOT

PAGE = (ROOT / "docs/policy.md").read_text("utf-8")


def read_first_cells(heading: str) -> set[str]:
    """The first cells of the table under a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return {cell.strip("`") for cell in re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)}


def test_every_operator_of_where_is_in_the_table() -> None:
    assert {*OPERATORS, "from", "not"} <= read_first_cells("The operators of `where`")


def test_every_field_of_a_rule_is_in_the_table() -> None:
    assert set(Rule.__struct_fields__) <= read_first_cells("The fields of a rule")


def test_every_key_of_a_rule_in_a_file_is_in_the_table() -> None:
    with pytest.raises(RuleError) as raised:
        read_rule({"nothing": True}, source="test")
    keys = raised.value.message.partition("it has ")[2].split(", ")

    assert len(keys) > 8
    assert [key for key in keys if f"`{key}:" not in PAGE] == []


def test_there_are_ten_recipes() -> None:
    assert re.findall(r"^### (\d+)\. ", PAGE, re.MULTILINE) == [str(number) for number in range(1, 11)]
