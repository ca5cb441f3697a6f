"""Reads policies from YAML or JSON; every error names the file, and the line or the rule."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from handrail.authorize.policy import By, Policy, Rule
from handrail.core.values import Decision
from handrail.core.yaml_reader import YamlReader, find_surprise, get_line, read_config_file
from handrail.errors import ConfigError, RuleError

_KEYS: Final = ("rules", "default", "asks")
_ACTIONS: Final = ("allow", "ask", "deny")
_OPTIONS: Final = ("by", "where", "read_only", "tenant", "agent", "reason", "name")
_KINDS: Final[Mapping[str, type]] = {
    "by": str,
    "where": dict,
    "read_only": bool,
    "tenant": str,
    "agent": str,
    "reason": str,
    "name": str,
}

_MAX_VALUES: Final = 10_000


def load_policy(path: str | Path) -> Policy:
    """Read a policy from a file:

    rules:
      - deny: pay
        where: {amount: {above: 10000}}
        reason: over the limit of this branch
      - ask: [pay, refund_*]
        by: operator
    default: deny        # for other calls; if left out, read-only tools run and somebody is asked for the rest
    asks: operator       # who is asked where no rule says it; if left out, the customer

    The file is YAML, which needs `handrail[yaml]`; with the suffix `.json` it is JSON with the same keys.
    """
    file = Path(path)
    text = read_config_file(file)
    if file.suffix.lower() == ".json":
        return _parse_json_policy(text, source=str(file))
    return parse_policy(text, source=str(file))


def parse_policy(text: str, *, source: str = "policy") -> Policy:
    """Read a policy from YAML text; `source` is what errors and decisions call it."""
    reader = YamlReader(text, source=source, max_values=_MAX_VALUES, check_plain=find_surprise)
    top = reader.read_mapping(reader.root, "a policy is a mapping with `rules:`")
    for key, (key_node, _) in top.items():
        if key not in _KEYS:
            raise reader.build_error(
                key_node, f"`{key}` is not known here; a policy has `rules:`, `default:` and `asks:`"
            )
    if "rules" not in top:
        raise reader.build_error(reader.root, "a policy has `rules:`")
    rules = [_read_rule_node(reader, node, source) for node in reader.read_list(top["rules"][1], "`rules` is a list")]
    options: dict[str, Any] = {}
    if "default" in top:
        node = top["default"][1]
        options["default"] = _build_default(reader.read_value(node), source=f"{source}:{get_line(node)}")
    if "asks" in top:
        node = top["asks"][1]
        options["asks"] = _check_asks(reader.read_value(node), source=f"{source}:{get_line(node)}")
    return Policy(rules, **options)


def _parse_json_policy(text: str, *, source: str) -> Policy:
    def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"{source}: the key {twice!r} is in an object twice.")
        return dict(pairs)

    def refuse_constant(text: str) -> Any:
        raise ConfigError(f"{source}: `{text}` is not a number that JSON has.")

    try:
        values: Any = json.loads(text, object_pairs_hook=build_object, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{source}:{error.lineno}: this is not JSON: {error.msg}.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: this is not JSON that can be read: {error}.") from error
    if not isinstance(values, dict) or "rules" not in values:
        raise ConfigError(f"{source}: a policy is an object with `rules`.")
    policy = cast(dict[str, Any], values)
    if unknown := next((key for key in policy if key not in _KEYS), None):
        raise ConfigError(f"{source}: `{unknown}` is not known here; a policy has `rules`, `default` and `asks`.")
    rules = policy["rules"]
    if not isinstance(rules, list) or any(not isinstance(rule, dict) for rule in cast(list[Any], rules)):
        raise ConfigError(f"{source}: `rules` is a list of objects.")
    default = policy.get("default")
    return Policy(
        read_rules(cast(list[dict[str, Any]], rules), source=source),
        default=None if default is None else _build_default(default, source=source),
        asks=_check_asks(policy.get("asks", "customer"), source=source),
    )


def read_rules(values: Iterable[Mapping[str, Any]], *, source: str) -> list[Rule]:
    """Read rules from plain values, with the keys of a policy file; an error names the number of the rule."""
    rules: list[Rule] = []
    for number, value in enumerate(values, start=1):
        try:
            rules.append(read_rule(value, source=source))
        except RuleError as error:
            raise ConfigError(f"rule {number} of {source}: {error.message.removesuffix('.')}.") from error
    return rules


def read_rule(values: Mapping[str, Any], *, source: str) -> Rule:
    """Read one rule from plain values; raises `RuleError`."""
    for key in values:
        if key not in (*_ACTIONS, *_OPTIONS):
            known = ", ".join((*_ACTIONS, *_OPTIONS))
            raise RuleError(f"a rule does not have `{key}`; it has {known}", key=key, is_unknown=True)
    actions = [key for key in values if key in _ACTIONS]
    if len(actions) != 1:
        raise RuleError(f"a rule has one of {', '.join(_ACTIONS)}, and this one has {len(actions)}")
    options = {key: value for key, value in values.items() if key in _OPTIONS}
    for key, value in options.items():
        if not isinstance(value, _KINDS[key]):
            raise RuleError(f"`{key}` is a {_KINDS[key].__name__}, not {value!r}", key=key)
    try:
        tools = _read_selectors(values[actions[0]], actions[0])
        rule = Rule(action=cast(Any, actions[0]), tools=tools, source=source, **options)
        Policy([rule])  # Selectors and conditions are compiled here, so that an error names its rule.
    except RuleError:
        raise
    except ConfigError as error:
        raise RuleError(error.message) from error
    return rule


def _read_selectors(value: Any, key: str) -> tuple[str, ...]:
    given = cast(list[Any], value if isinstance(value, list) else [value])
    if not given or any(not isinstance(selector, str) for selector in given):
        problem = "name a tool, a glob, a source or a tag, or a list of them; `'*'` is every tool"
        raise RuleError(problem, key=key)
    return tuple(cast(list[str], given))


def _read_rule_node(reader: YamlReader, node: Any, source: str) -> Rule:
    fields = reader.read_mapping(node, "a rule is a mapping, like `- deny: pay`")
    values = {key: reader.read_value(value) for key, (_, value) in fields.items()}
    try:
        return read_rule(values, source=f"{source}:{get_line(node)}")
    except RuleError as error:
        key_node, value_node = fields.get(error.key, (node, node))
        raise reader.build_error(key_node if error.is_unknown else value_node, error.message) from error


def _check_asks(value: Any, *, source: str) -> By:
    if value not in ("customer", "operator"):
        raise ConfigError(f"{source}: `asks` is `customer` or `operator`, not {value!r}.")
    return value


def _build_default(value: Any, *, source: str) -> Decision:
    """Build the decision for calls that no rule matches: `allow`, `deny`, `ask customer` or `ask operator`."""
    action, _, by = str(value).partition(" ")
    if (action, by) not in (("allow", ""), ("deny", ""), ("ask", "customer"), ("ask", "operator")):
        raise ConfigError(f"{source}: `default` is one of: allow, deny, ask customer, ask operator.")
    return Decision(
        action=cast(Any, action), by=cast(Any, by or None), rule="default", source=source, reason="no rule matches"
    )
