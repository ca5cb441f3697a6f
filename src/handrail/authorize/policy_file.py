"""Reads policies from YAML; every error names the file and the line."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from handrail.authorize.policy import Policy, Rule
from handrail.core.values import Decision
from handrail.errors import ConfigError, MissingExtraError

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

_MOST_VALUES: Final = 10_000


def load_policy(path: str | Path) -> Policy:
    """Read a policy from a file:

    rules:
      - deny: pay
        where: {amount: {above: 10000}}
        reason: over the limit of this branch
      - ask: [pay, refund_*]
        by: operator
    default: deny        # for other calls; if left out, read-only tools run and the customer is asked for the rest
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: the policy cannot be read: {error}") from error
    return parse_policy(text, source=str(file))


def parse_policy(text: str, *, source: str = "policy") -> Policy:
    """Read a policy from YAML text; `source` is what errors and decisions call it."""
    try:
        import yaml  # noqa: PLC0415  # optional
    except ImportError as error:
        raise MissingExtraError("pyyaml", extra="yaml") from error
    try:
        root: Any = cast(Any, yaml).compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{source}:{line}: this is not YAML: {getattr(error, 'problem', error)}") from error
    reader = _Reader(yaml, source)
    try:
        return Policy(reader.rules(root), default=reader.default(root))
    except RecursionError as error:
        raise ConfigError(f"{source}:1: something in it refers to itself.") from error


class RuleError(ConfigError):
    """A rule that cannot be read, with the key that is wrong."""

    def __init__(self, message: str, *, key: str = "", is_unknown: bool = False) -> None:
        super().__init__(message)
        self.key = key
        self.is_unknown = is_unknown


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
    if not given or any(not isinstance(one, str) for one in given):
        problem = "name a tool, a glob, a source or a tag, or a list of them; `'*'` is every tool"
        raise RuleError(problem, key=key)
    return tuple(cast(list[str], given))


def _find_surprise(tag: str, text: str) -> str | None:
    """Return why a plain scalar is refused: YAML 1.1 gives it another type than most people expect."""
    kind = tag.rpartition(":")[2]
    surprises = {
        "bool": text not in ("true", "false"),
        "int": re.fullmatch(r"-?(0|[1-9]\d*)", text) is None,
        "float": re.fullmatch(r"-?\d+\.\d+([eE][+-]?\d+)?", text) is None,
        "timestamp": True,
    }
    if not surprises.get(kind, False):
        return None
    return f"`{text}` would be read as a {kind}; write it in quotes if it is a text, or as a plain value"


class _Reader:
    """Reads YAML nodes rather than values, because nodes have line numbers."""

    def __init__(self, yaml: Any, source: str) -> None:
        self._yaml = yaml
        self._source = source
        self._left = _MOST_VALUES

    def rules(self, root: Any) -> list[Rule]:
        top = self._mapping(root, "a policy is a mapping with `rules:`")
        for key, (key_node, _) in top.items():
            if key not in ("rules", "default"):
                self._fail(key_node, f"`{key}` is not known here; a policy has `rules:` and `default:`")
        if "rules" not in top:
            self._fail(root, "a policy has `rules:`")
        node = top["rules"][1]
        if not isinstance(node, self._yaml.SequenceNode):
            self._fail(node, "`rules` is a list")
        return [self._rule(one) for one in node.value]

    def default(self, root: Any) -> Decision | None:
        """Read the decision for calls that no rule matches: `allow`, `deny`, `ask customer` or `ask operator`."""
        top = self._mapping(root, "a policy is a mapping with `rules:`")
        if "default" not in top:
            return None
        node = top["default"][1]
        action, _, by = str(self._value(node)).partition(" ")
        if (action, by) not in (("allow", ""), ("deny", ""), ("ask", "customer"), ("ask", "operator")):
            self._fail(node, "`default` is one of: allow, deny, ask customer, ask operator")
        source = f"{self._source}:{node.start_mark.line + 1}"
        asked = cast(Any, by or None)
        return Decision(action=cast(Any, action), by=asked, rule="default", source=source, reason="no rule matches")

    def _rule(self, node: Any) -> Rule:
        fields = self._mapping(node, "a rule is a mapping, like `- deny: pay`")
        values = {key: self._value(value) for key, (_, value) in fields.items()}
        try:
            return read_rule(values, source=f"{self._source}:{node.start_mark.line + 1}")
        except RuleError as error:
            key_node, value_node = fields.get(error.key, (node, node))
            self._fail(key_node if error.is_unknown else value_node, error.message)

    def _mapping(self, node: Any, expected: str) -> dict[str, tuple[Any, Any]]:
        if not isinstance(node, self._yaml.MappingNode):
            self._fail(node, expected)
        found: dict[str, tuple[Any, Any]] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key in found:
                self._fail(key_node, f"`{key}` is here twice")
            found[key] = (key_node, value_node)
        return found

    def _value(self, node: Any) -> Any:
        self._left -= 1
        if self._left < 0:  # With references, a short text can expand without limit.
            self._fail(node, f"a policy has at most {_MOST_VALUES:,} values")
        if isinstance(node, self._yaml.MappingNode):
            return {key: self._value(value) for key, (_, value) in self._mapping(node, "").items()}
        if isinstance(node, self._yaml.SequenceNode):
            return [self._value(one) for one in node.value]
        if getattr(node, "style", None) is None and (problem := _find_surprise(str(node.tag), str(node.value))):
            self._fail(node, problem)
        loader = self._yaml.SafeLoader("")
        try:
            return loader.construct_object(node, deep=True)
        except (self._yaml.YAMLError, ValueError) as error:
            self._fail(node, str(getattr(error, "problem", error)))
        finally:
            loader.dispose()

    def _fail(self, node: Any, problem: str) -> NoReturn:
        line = node.start_mark.line + 1 if node is not None else 1
        raise ConfigError(f"{self._source}:{line}: {problem.removesuffix('.')}.")
