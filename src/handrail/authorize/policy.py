"""Ordered rules that decide about a call: deny before ask, ask before allow, allow before the default."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from typing import Any, Final, Literal, Self, cast

from msgspec import Struct

from handrail.authorize.argument_paths import DeclaredArguments
from handrail.authorize.conditions import Condition
from handrail.authorize.from_condition import ValueOrigin, find_source_problems
from handrail.core.context import ToolContext
from handrail.core.provenance_records import ValueSource
from handrail.core.selectors import Selector, SelectorTable, is_name, parse_selectors
from handrail.core.text import join_names, suggest
from handrail.core.tool import Tool
from handrail.core.values import Decision
from handrail.errors import ConfigError

Action = Literal["allow", "ask", "deny"]
By = Literal["customer", "operator"]

_ORDER: Final[tuple[Action, ...]] = ("deny", "ask", "allow")


class Rule(Struct, frozen=True, kw_only=True):
    """One rule of a policy. Write it with `Rule.allow`, `Rule.ask` or `Rule.deny`."""

    action: Action
    """What is decided where the rule holds."""
    tools: tuple[str, ...]
    """Selectors: names, globs, sources, tags. None of them means every tool for which the rest of the rule holds."""
    by: By | None = None
    """Who is asked."""
    where: Mapping[str, Any] | None = None
    """Conditions on the arguments, by their paths; all of them must hold. None always holds."""
    read_only: bool | None = None
    """Only tools that are read-only, or only those that are not. None is both."""
    tenant: str | None = None
    """Only calls for this tenant (`ToolContext.tenant_id`)."""
    agent: str | None = None
    """Only calls of this agent (`ToolContext.agent_id`)."""
    reason: str = ""
    """Why. A model whose call is denied reads it; people see it with every decision."""
    name: str = ""
    """What the rule is called in decisions, logs and explanations; without one, its own text."""
    source: str = "code"
    """Where the rule was written: `code`, or a file and a line."""

    @classmethod
    def allow(
        cls,
        *tools: str,
        where: Mapping[str, Any] | None = None,
        read_only: bool | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        reason: str = "",
        name: str = "",
        source: str = "code",
    ) -> Self:
        """Allow calls of these tools."""
        return cls(
            action="allow",
            tools=tools,
            where=where,
            read_only=read_only,
            tenant=tenant,
            agent=agent,
            reason=reason,
            name=name,
            source=source,
        )

    @classmethod
    def ask(
        cls,
        *tools: str,
        by: By,
        where: Mapping[str, Any] | None = None,
        read_only: bool | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        reason: str = "",
        name: str = "",
        source: str = "code",
    ) -> Self:
        """Ask the customer in the conversation, or an operator, before these tools run."""
        return cls(
            action="ask",
            tools=tools,
            by=by,
            where=where,
            read_only=read_only,
            tenant=tenant,
            agent=agent,
            reason=reason,
            name=name,
            source=source,
        )

    @classmethod
    def deny(
        cls,
        *tools: str,
        where: Mapping[str, Any] | None = None,
        read_only: bool | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        reason: str = "",
        name: str = "",
        source: str = "code",
    ) -> Self:
        """Never run these tools."""
        return cls(
            action="deny",
            tools=tools,
            where=where,
            read_only=read_only,
            tenant=tenant,
            agent=agent,
            reason=reason,
            name=name,
            source=source,
        )

    def __post_init__(self) -> None:
        if self.action not in _ORDER:
            raise ConfigError(f"action must be 'allow', 'ask' or 'deny', got {self.action!r}.")
        if (self.action == "ask") != (self.by is not None) or self.by not in (None, "customer", "operator"):
            raise ConfigError(
                f"by must be 'customer' or 'operator' in a rule that asks, and only there; got by={self.by!r}."
            )
        # A value of a wrong type would match nothing, so that a deny rule would deny nothing.
        if self.read_only is not None and type(self.read_only) is not bool:
            raise ConfigError(f"read_only must be True or False, got {self.read_only!r}.")
        for name, value in (("tenant", self.tenant), ("agent", self.agent)):
            if value is not None and not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"{name} must be a string, got {value!r}.")
        if not self.tools and (self.read_only, self.tenant, self.agent, self.where) == (None, None, None, None):
            raise ConfigError("A rule must select something; '*' selects every tool.")

    def selects(self, tool: Tool[..., Any]) -> bool:
        """Whether the rule can apply to a tool at all."""
        return _CompiledRule(self).selects(tool)

    def __str__(self) -> str:
        """The rule in one line, as it would be written."""
        parts = [repr(selector) for selector in self.tools]
        for field in ("by", "where", "read_only", "tenant", "agent"):
            value = getattr(self, field)
            if value is not None:
                parts.append(f"{field}={value!r}")
        return self.name or f"{self.action}({', '.join(parts)})"


class _CompiledRule:
    """A rule with its selectors and conditions compiled."""

    __slots__ = ("applies_to", "condition", "decision", "is_constant", "origins", "rule")

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.applies_to: Selector = parse_selectors(rule.tools) if rule.tools else lambda tool: True
        self.condition = Condition(rule.where) if rule.where is not None else None
        self.origins = () if self.condition is None else self.condition.origins
        self.is_constant = self.condition is None and rule.tenant is None and rule.agent is None
        self.decision = Decision(action=rule.action, by=rule.by, rule=str(rule), source=rule.source, reason=rule.reason)

    @property
    def sources(self) -> tuple[ValueSource, ...]:
        """What its `from` conditions name."""
        return tuple(source for origin in self.origins for source in origin.sources)

    def selects(self, tool: Tool[..., Any]) -> bool:
        wanted = self.rule.read_only
        return (wanted is None or wanted == tool.read_only) and self.applies_to(tool)

    def matches(
        self, context: ToolContext[Any], arguments: Callable[[], Mapping[str, Any]], declared: DeclaredArguments
    ) -> bool:
        rule = self.rule
        if rule.tenant is not None and rule.tenant != context.tenant_id:
            return False
        if rule.agent is not None and rule.agent != context.agent_id:
            return False
        return self.condition is None or self.condition.matches(
            arguments(), action=rule.action, declared=declared, context=context
        )

    def explain_failure(
        self,
        context: ToolContext[Any],
        arguments: Mapping[str, Any],
        declared: DeclaredArguments,
        shown: Mapping[str, Any],
    ) -> str | None:
        """Why the rule does not match a call; None if it does."""
        if self.matches(context, lambda: arguments, declared):
            return None
        for name, wanted, found in (
            ("tenant", self.rule.tenant, context.tenant_id),
            ("agent", self.rule.agent, context.agent_id),
        ):
            if wanted is not None and wanted != found:
                return f"the {name} is {found!r}"
        assert self.condition is not None
        return self.condition.explain_failure(arguments, shown=shown, declared=declared, context=context)


DEFAULT: Final = "default"
"""The source of the decision where no rule matches."""

READ_ONLY: Final = Decision(action="allow", rule=DEFAULT, source=DEFAULT, reason="the tool is read-only")
ADVICE: Final = "; Rule.allow(…) would, or read_only=True if it is harmless"
"""The end of the default's reason, which is for the developer and not for whoever is asked."""
_WHY_UNDECLARED: Final = f"it may change something and no rule allows it{ADVICE}"
UNDECLARED: Final[Mapping[By, Decision]] = {
    by: Decision(action="ask", by=by, rule=DEFAULT, source=DEFAULT, reason=_WHY_UNDECLARED)
    for by in ("customer", "operator")
}


REQUIRED: Final = "the tool itself requires an approval"


def _get_policy_schema(tool: Tool[..., Any]) -> Mapping[str, Any]:
    """The schema of the arguments that a policy sees: those of the model, and those that are filled in."""
    if not tool.hidden_arguments:
        return tool.input_schema
    return {**tool.input_schema, "properties": {**tool.input_schema.get("properties", {}), **tool.hidden_arguments}}


class Policy:
    """Rules in order. `deny > ask > allow > default`, and the first match within an action.

    The default allows read-only tools and asks the customer for every other.

    Args:
        rules: `Rule` values. Their order counts only among rules of one action.
        default: What is decided where no rule matches, such as `Decision(action="deny")`.
        asks: Who is asked where no rule says it: `operator` for calls without a customer in a conversation, such as
            those of a gateway.
    """

    __slots__ = ("_table", "asks", "default", "rules", "sources")

    def __init__(self, rules: Iterable[Rule] = (), *, default: Decision | None = None, asks: By = "customer") -> None:
        if asks not in ("customer", "operator"):
            raise ConfigError(f"asks must be 'customer' or 'operator', got {asks!r}.")
        if not isinstance(default, Decision | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"default must be a Decision, such as Decision(action='deny'), got {default!r}.")
        if not isinstance(rules, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller's
            raise ConfigError(f"A policy must be a list of rules, such as Policy([rule]), got {rules!r}.")
        self.rules = tuple(rules)
        self.default = default
        self.asks: By = asks
        for rule in self.rules:
            if not isinstance(rule, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"A policy must be a list of rules, got {cast(object, rule)!r}.")
        compiled = [_CompiledRule(rule) for rule in self.rules]
        self.sources = tuple({source.text: source for rule in compiled for source in rule.sources}.values())
        """What the rules name in `from`; empty if no rule asks where a value comes from."""
        compiled.sort(key=lambda candidate: _ORDER.index(candidate.rule.action))
        self._table = SelectorTable((candidate.rule.tools, candidate) for candidate in compiled)

    def __repr__(self) -> str:
        rules = join_names([str(rule) for rule in self.rules])
        default = self.default
        shown = "" if default is None else f", default={' '.join(filter(None, (default.action, default.by)))!r}"
        return f"Policy([{rules}]{shown})"

    def compile(self, tool: Tool[..., Any]) -> "CompiledPolicy":
        """The rules of this policy that can apply to one tool."""
        default = self.default or (READ_ONLY if tool.read_only else UNDECLARED[self.asks])
        candidates = tuple(
            candidate for candidate in self._table.find(tool) if candidate.rule.read_only in (None, tool.read_only)
        )
        if tool.requires_approval is not None:  # After what is denied, before everything else.
            denied = tuple(candidate for candidate in candidates if candidate.rule.action == "deny")
            asked = _CompiledRule(
                Rule.ask("*", by=tool.requires_approval, name="requires_approval", source="tool", reason=REQUIRED)
            )
            candidates = (*denied, asked, *candidates[len(denied) :])
        declared = DeclaredArguments(_get_policy_schema(tool), is_declared="$ref" not in tool.input_schema)
        return CompiledPolicy(tool, candidates=candidates, default=default, declared=declared, asks=self.asks)

    def find_problems(self, tools: Iterable[Tool[..., Any]], *, are_all: bool = True) -> Iterator["PolicyProblem"]:
        """The rules that can never apply to these tools: names that no tool has, arguments and conditions that no
        schema has. A tool without declared properties can have any argument. If these are not all tools that there
        will be (`are_all`), a rule about another tool is no problem.

        A rule that others shadow is no problem: an emergency `deny: "*"` is one on purpose.
        """
        pool = {tool.name: tool for tool in tools}
        for number, rule in enumerate(self.rules, start=1):
            compiled = _CompiledRule(rule)
            is_named = rule.tools and all(map(is_name, rule.tools))
            candidates = [pool[text] for text in rule.tools if text in pool] if is_named else pool.values()
            selected = [tool for tool in candidates if compiled.selects(tool)]
            found = [
                f"unknown tool {text!r}{suggest(text, pool)}"
                for text in rule.tools
                if are_all and is_name(text) and text not in pool
            ]
            if are_all and not selected and rule.tools and not found:
                found.append(f"it selects no tool: {rule}.")
            if selected and compiled.condition is not None:
                found.extend(compiled.condition.find_problems([_get_policy_schema(tool) for tool in selected]))
            for source in compiled.sources:
                found.extend(find_source_problems(source, pool, are_all=are_all))
            for text in found:
                yield PolicyProblem(number=number, source=rule.source, text=text)

    def names(self, tool: str) -> bool:
        """Whether a rule names this tool, and does not only select it."""
        return any(tool in rule.tools for rule in self.rules)

    def decide(self, tool: Tool[..., Any], arguments: Mapping[str, Any], context: ToolContext[Any]) -> Decision:
        """The decision of this policy about one call."""
        return self.compile(tool).decide(context, lambda: arguments)


class PolicyProblem(Struct, frozen=True, kw_only=True):
    """A rule that can never apply, and why."""

    number: int
    """Which rule of the policy it is, counted from 1."""
    source: str
    text: str

    def __str__(self) -> str:
        return f"rule {self.number} ({self.source}): {self.text}"


class CompiledPolicy:
    """The rules that can apply to one tool, in the order in which they are evaluated."""

    __slots__ = (
        *("_by_tenant", "_candidates", "_default", "_declared", "_general"),
        *("always_allowed", "asks", "constant", "has_origins", "tool"),
    )

    constant: Decision | None
    """The decision, where it is the same for every call."""
    always_allowed: Decision | None
    """The decision, where every call is allowed and the tool has no permission check."""

    def __init__(
        self,
        tool: Tool[..., Any],
        *,
        candidates: tuple[_CompiledRule, ...],
        default: Decision,
        declared: DeclaredArguments,
        asks: By,
    ) -> None:
        self.tool = tool
        self.asks: By = asks
        self.has_origins = any(candidate.origins for candidate in candidates)
        """Whether a rule about the tool asks where values come from."""
        self._candidates = candidates
        # Rules of other tenants are not looked at: a call pays for the rules of its own tenant, and for those of all.
        self._by_tenant: dict[str, list[tuple[int, _CompiledRule]]] = {}
        self._general: list[tuple[int, _CompiledRule]] = []
        for position, candidate in enumerate(candidates):
            tenant = candidate.rule.tenant
            group = self._general if tenant is None else self._by_tenant.setdefault(tenant, [])
            group.append((position, candidate))
        self._declared = declared
        self._default = default
        first = candidates[0] if candidates else None
        self.constant = default if first is None else first.decision if first.is_constant else None
        is_allowed = self.constant is not None and self.constant.action == "allow" and tool.permission_check is None
        self.always_allowed = self.constant if is_allowed else None

    def decide(self, context: ToolContext[Any], arguments: Callable[[], Mapping[str, Any]]) -> Decision:
        """The decision about one call; the arguments are only built if a rule has a condition on them."""
        if self.constant is not None:
            return self.constant
        candidates: Iterable[tuple[int, _CompiledRule]] = self._general
        own = self._by_tenant.get(context.tenant_id) if context.tenant_id is not None else None
        if own is not None:
            candidates = merge(own, candidates)
        for _, candidate in candidates:
            if candidate.matches(context, arguments, self._declared):
                return candidate.decision
        return self._default

    def without_origins(self) -> "CompiledPolicy":
        """The same rules but those with `from`: where a value came from was decided in its conversation."""
        if not self.has_origins:
            return self
        candidates = tuple(candidate for candidate in self._candidates if not candidate.origins)
        return CompiledPolicy(
            self.tool, candidates=candidates, default=self._default, declared=self._declared, asks=self.asks
        )

    def is_denied(self, context: ToolContext[Any]) -> bool:
        """Whether every call of the tool in this context is denied, whatever its arguments are."""
        for candidate in self._candidates:
            rule = candidate.rule
            if rule.tenant not in (None, context.tenant_id) or rule.agent not in (None, context.agent_id):
                continue
            if rule.action != "deny":
                return False
            if candidate.condition is None:
                return True
        return self._default.action == "deny"

    def possible_decisions(self) -> list[Decision]:
        """Every decision that there can be about a call of the tool."""
        found: list[Decision] = []
        for candidate in self._candidates:
            found.append(candidate.decision)
            if candidate.is_constant:
                return found
        return [*found, self._default]

    def explain_rules(
        self, context: ToolContext[Any], arguments: Mapping[str, Any], *, shown: Mapping[str, Any]
    ) -> list[tuple[Decision, str | None]]:
        """Every rule that can apply to the tool, in order, and why it does not hold for this call; None if it does.

        `shown` are the arguments as a person may see them.
        """
        return [
            (candidate.decision, candidate.explain_failure(context, arguments, self._declared, shown))
            for candidate in self._candidates
        ]

    def find_origins(self, context: ToolContext[Any], arguments: Mapping[str, Any]) -> list[ValueOrigin]:
        """Where the values come from that some rule about the tool asks for; empty if none does."""
        found: dict[tuple[str, tuple[str, ...]], ValueOrigin] = {}
        for candidate in self._candidates:
            rule = candidate.rule
            if rule.tenant in (None, context.tenant_id) and rule.agent in (None, context.agent_id):
                for test in candidate.origins:
                    for origin in test.describe(arguments, self._declared, context):
                        found.setdefault((origin.path, origin.wanted), origin)
        return list(found.values())
