"""Selecting tools by name, glob, source and tag."""

from typing import Any

import pytest

from handrail import ConfigError, Tool, build_tool
from handrail.core.selectors import SelectorTable, parse_selector, parse_selectors


def named(name: str, **options: Any) -> Tool[..., Any]:
    return build_tool({"name": name, "input_schema": {}, "execute": lambda payload: "", **options})


PAY = named("pay", tags=["money", "slow"])
STAR = named("star", source="mcp:git[hub]")
CALL = named("call", source="openapi:crm")
ODD = named("a[b]*")


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("pay", [PAY]),
        ("PAY", []),
        ("p?y", [PAY]),
        ("*a*", [PAY, STAR, CALL, ODD]),
        ("[!p]*", [STAR, CALL, ODD]),
        ("tag:money", [PAY]),
        ("tag:m*", [PAY]),
        ("tag:Money", []),
        ("mcp:*", [STAR]),
        ("mcp:git[[]hub]", [STAR]),
        ("mcp:git[hub]", [STAR]),
        ("openapi:crm", [CALL]),
        ("openapi:*", [CALL]),
        ("local", []),
        ("a[b]*", [ODD]),
        ("*:*", [STAR, CALL]),
    ],
)
def test_a_selector_selects(text: str, selected: list[Any]) -> None:
    assert [item for item in (PAY, STAR, CALL, ODD) if parse_selector(text)(item)] == selected


@pytest.mark.parametrize("text", ["", "  ", None, 3, ["pay"], "tag:"], ids=repr)
def test_what_is_no_selector_is_refused_with_what_one_is(text: object) -> None:
    with pytest.raises(ConfigError, match=r"a name, a glob, a source \(mcp:name\) or a tag \(tag:name\)"):
        parse_selector(text)


@pytest.mark.parametrize("text", [" pay", "pay\n", "\ttag:money"], ids=repr)
def test_spaces_around_a_selector_are_refused_because_it_would_select_nothing(text: str) -> None:
    with pytest.raises(ConfigError, match="no spaces around it"):
        parse_selector(text)


def test_any_of_several_selectors_will_do() -> None:
    chosen = parse_selectors(["pay", "mcp:*"])

    assert [chosen(item) for item in (PAY, STAR, CALL)] == [True, True, False]
    assert not parse_selectors([])(PAY)


def test_one_text_is_not_a_list_of_selectors() -> None:
    with pytest.raises(ConfigError, match=r"\['pay'\]"):
        parse_selectors("pay")


def test_a_bad_selector_is_refused_before_anything_is_selected() -> None:
    with pytest.raises(ConfigError):
        parse_selectors(["pay", ""])


def test_a_table_finds_what_each_selector_finds_in_the_order_of_its_entries() -> None:
    entries: list[tuple[tuple[str, ...], int]] = [
        (("p?y",), 0),
        (("pay", "call"), 1),
        ((), 2),
        (("a[b]*",), 3),
        (("tag:money", "openapi:*"), 4),
        (("pay",), 5),
        (("pay", "*"), 6),
    ]
    table = SelectorTable(entries)

    for tool in (PAY, STAR, CALL, ODD):
        expected = tuple(value for texts, value in entries if not texts or parse_selectors(texts)(tool))
        assert table.find(tool) == table.find(tool) == expected
    assert not SelectorTable[int]([])
    with pytest.raises(ConfigError, match="no spaces"):
        SelectorTable([((" pay",), 1)])
