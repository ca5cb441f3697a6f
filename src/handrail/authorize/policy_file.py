"""Policies as YAML; every error names the file and the line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from handrail.authorize.policy import Policy, Rule
from handrail.errors import ConfigError, MissingExtraError

_EFFECTS: Final = ("allow", "ask", "deny")
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
        reason: over the limit of this desk
      - ask: [pay, refund_*]
        by: operator
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
        return Policy(reader.rules(root))
    except RecursionError as error:
        raise ConfigError(f"{source}:1: something in it refers to itself.") from error


class _Reader:
    """Reads YAML nodes, because only nodes know their lines."""

    def __init__(self, yaml: Any, source: str) -> None:
        self._yaml = yaml
        self._source = source
        self._left = _MOST_VALUES

    def rules(self, root: Any) -> list[Rule]:
        top = self._mapping(root, "a policy is a mapping with `rules:`")
        for key, (key_node, _) in top.items():
            if key != "rules":
                self._fail(key_node, f"`{key}` is not known here; a policy has `rules:`")
        if "rules" not in top:
            self._fail(root, "a policy has `rules:`")
        node = top["rules"][1]
        if not isinstance(node, self._yaml.SequenceNode):
            self._fail(node, "`rules` is a list")
        return [self._rule(one) for one in node.value]

    def _rule(self, node: Any) -> Rule:
        fields = self._mapping(node, "a rule is a mapping, like `- deny: pay`")
        effects = [key for key in fields if key in _EFFECTS]
        for key, (key_node, _) in fields.items():
            if key not in (*_EFFECTS, *_OPTIONS):
                self._fail(key_node, f"a rule does not have `{key}`; it has {', '.join((*_EFFECTS, *_OPTIONS))}")
        if len(effects) != 1:
            self._fail(node, f"a rule has one of {', '.join(_EFFECTS)}, and this one has {len(effects)}")
        options = {key: self._option(key, value) for key, (_, value) in fields.items() if key in _OPTIONS}
        tools = self._selectors(fields[effects[0]][1])
        line = node.start_mark.line + 1
        try:
            rule = Rule(
                action=cast(Any, effects[0]),
                tools=tools,
                source=f"{self._source}:{line}",
                **options,
            )
            Policy([rule])  # Selectors and conditions are compiled here, so that an error has its line.
        except ConfigError as error:
            self._fail(node, error.message)
        return rule

    def _option(self, key: str, node: Any) -> Any:
        value = self._value(node)
        if not isinstance(value, _KINDS[key]):
            self._fail(node, f"`{key}` is a {_KINDS[key].__name__}, not {value!r}")
        return cast(Any, value)

    def _selectors(self, node: Any) -> tuple[str, ...]:
        value = self._value(node)
        given = cast(list[Any], value if isinstance(value, list) else [value])
        wrong = [one for one in given if not isinstance(one, str)]
        if wrong or not given:
            self._fail(node, "name a tool, a glob, a source or a tag, or a list of them; `'*'` is every tool")
        return tuple(cast(list[str], given))

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
        if self._left < 0:  # Through references, a short text can be endless.
            self._fail(node, f"a policy has at most {_MOST_VALUES:,} values")
        if isinstance(node, self._yaml.MappingNode):
            return {key: self._value(value) for key, (_, value) in self._mapping(node, "").items()}
        if isinstance(node, self._yaml.SequenceNode):
            return [self._value(one) for one in node.value]
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
