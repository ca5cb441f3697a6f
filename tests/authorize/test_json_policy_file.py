"""A policy in a `.json` file says the same as in YAML, and whatever is wrong with it is named."""

from pathlib import Path

import pytest

from handrail import ConfigError
from handrail.authorize import load_policy
from tests.authorize.test_policy_file import pay
from tests.execute.helpers import at


def write(folder: Path, text: str) -> Path:
    file = folder / "desk.json"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_policy_is_read_from_json(tmp_path: Path) -> None:
    rules = '[{"deny": "pay", "where": {"amount": {"above": 500}}, "reason": "too much"}]'
    policy = load_policy(write(tmp_path, f'{{"rules": {rules}, "default": "ask operator"}}'))

    denied = policy.decide(pay(), {"amount": 501}, at())
    assert (denied.action, denied.reason) == ("deny", "too much")
    asked = policy.decide(pay(), {"amount": 500}, at())
    assert (asked.action, asked.by) == ("ask", "operator")


def test_a_policy_without_rules_has_the_default(tmp_path: Path) -> None:
    assert load_policy(write(tmp_path, '{"rules": []}')).decide(pay(), {"amount": 1}, at()).action == "ask"


def test_a_file_says_who_is_asked_where_no_rule_does(tmp_path: Path) -> None:
    decided = load_policy(write(tmp_path, '{"rules": [], "asks": "operator"}')).decide(pay(), {"amount": 1}, at())

    assert (decided.action, decided.by) == ("ask", "operator")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "a policy is an object with `rules`"),
        ("{}", "a policy is an object with `rules`"),
        ('{"rules": [], "rulez": []}', "`rulez` is not known here"),
        ('{"rules": [], "asks": "nobody"}', "`asks` is `customer` or `operator`, not 'nobody'"),
        ('{"rules": [], "asks": null}', "`asks` is `customer` or `operator`, not None"),
        ('{"rules": {}}', "`rules` is a list of objects"),
        ('{"rules": ["pay"]}', "`rules` is a list of objects"),
        ('{"rules": [], "default": "perhaps"}', "desk.json: `default` is one of"),
        ('{"rules": [{"deny": "pay"}, {"deny": "pay", "wher": {}}]}', "desk.json: a rule does not have `wher`"),
        ('{"rules": [], "rules": []}', "the key 'rules' is in an object twice"),
        ('{"rules": [{"allow": "pay", "where": {"amount": {"below": NaN}}}]}', "`NaN` is not a number that JSON has"),
        ('{"rules": [}', "desk.json:1: this is not JSON"),
        ("[" * 100_000, "this is not JSON that can be read"),
    ],
)
def test_what_is_wrong_with_it_is_named(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_policy(write(tmp_path, text))

    assert problem in str(error.value)
