"""`Agent`: guidelines, tools, relationships, variables and terms, and the sessions that follow them."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, Self, cast, get_args

from msgspec import structs

from handrail.authorize.approvals import Approvals
from handrail.authorize.policy import Policy
from handrail.chat.conversation import Conversation
from handrail.chat.session_store import SessionStore
from handrail.core.context import ToolContext
from handrail.core.redact import Redactor
from handrail.core.text import compact_json, encodable
from handrail.core.tool import Tool
from handrail.define.build import as_tool, build_tool
from handrail.errors import ConfigError, ToolError, shorten
from handrail.execute.executor import Executor
from handrail.execute.ledger import Ledger
from handrail.execute.loop import Budget
from handrail.guide.agent_definition import load_agent_definition
from handrail.guide.claims import effect_of
from handrail.guide.definition import Guide, GuideSettings, Variable
from handrail.guide.journeys import Journey, merge
from handrail.guide.judges import make_judge
from handrail.guide.parameters import ParameterOptions, compile_tool
from handrail.guide.prefilter import EmbeddingPrefilter, LexicalPrefilter, Prefilter
from handrail.guide.relationships import Relation, Relationships
from handrail.guide.strategy import GuidedSession, GuidedStrategy, NoProvider
from handrail.guide.values import CandidateTool, Criticality, Guideline, Judge
from handrail.providers.provider import Provider
from handrail.registry.registry import ToolRegistry
from handrail.registry.tool_source import ToolSource

MAX_TEXT: Final = 10_000
"""How long a condition, an action or a term may be: all of them are read by a model in every turn."""
_NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}


class Agent:
    """An agent that follows guidelines.

    Give it a `provider` or a `judge`; and `tools` with a `policy`, or an `executor` that has both. Its definition can
    be changed until the next turn begins; tools are fixed once it has a session.
    """

    def __init__(
        self,
        *,
        provider: Provider | None = None,
        judge: Judge | None = None,
        tools: Iterable[object] = (),
        policy: Policy | None = None,
        executor: Executor | None = None,
        guidelines: Iterable[Guideline] = (),
        relationships: Iterable[tuple[str, Relation, str]] = (),
        variables: Mapping[str, Any] | None = None,
        terms: Mapping[str, str] | None = None,
        instructions: str = "",
        agent_id: str | None = None,
        ledger: Ledger | None = None,
        approvals: Approvals | None = None,
        listeners: Iterable[Callable[[Any], object]] = (),
        settings: GuideSettings | None = None,
        prefilter: Prefilter | Literal["lexical", "embedding"] | None = "lexical",
        redactor: Redactor | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        tools, listeners = list(tools), list(listeners)
        if executor is not None and (tools or policy or ledger or approvals or listeners):
            raise ConfigError(
                "executor must be given without tools, policy, ledger, approvals and listeners: it has them."
            )
        self.provider = provider
        self.judge = judge
        self.instructions = encodable(instructions)
        self.agent_id = agent_id
        self._executor = executor
        self._given_executor = executor is not None
        self._policy = policy
        self._stores: dict[str, Any] = {"ledger": ledger, "approvals": approvals, "listeners": listeners}
        self._redactor = redactor or Redactor()
        self._settings = settings or GuideSettings()
        self._prefilter = _prefilter(prefilter)
        self._clock = clock or (lambda: datetime.now().astimezone())
        self._tools: dict[str, Tool[..., Any]] = {}
        self._options: dict[str, dict[str, ParameterOptions]] = {}
        self._sources: list[ToolSource] = []
        """Where tools come from that may change while the agent is used."""
        self._own: dict[str, None] = {}
        """The names of the tools that are the agent's own, in their order."""
        self._declared: set[str] = set()
        """Tools without a handler."""
        self._guidelines: dict[str, Guideline] = {}
        self._relationships = Relationships()
        self._variables: dict[str, Variable] = {}
        self._terms: dict[str, str] = {}
        self._journeys: dict[str, Journey] = {}
        self._guide: Guide | None = None
        self._compiled_with: ToolRegistry | None = None
        for one in tools:
            if isinstance(one, ToolSource):
                self._sources.append(one)
                continue
            made = as_tool(one)
            if made.name in self._tools:
                raise ConfigError(f"two tools are called {made.name!r}.")
            self._tools[made.name] = made
            self._own[made.name] = None
        self._look_at_sources()
        for one in guidelines:
            self.add_guideline(one)
        for source, kind, target in relationships:
            self._relate(source, kind, target)
        for name, value in (variables or {}).items():
            self._add_variable(name, None if callable(value) else value, value if callable(value) else None, 0.0)
        for name, text in (terms or {}).items():
            self._add_term(name, text)

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> Self:
        """Read guidelines, relationships, variables, terms and instructions from a YAML or JSON file.

        The options are those of the constructor, such as the tools that the guidelines name.
        """
        return cls(**{**load_agent_definition(path), **options})

    # What it is made of.

    @property
    def guidelines(self) -> tuple[Guideline, ...]:
        """The guidelines, in the order in which they were made."""
        return tuple(self._guidelines.values())

    @property
    def policy(self) -> Policy:
        """The policy that the agent was given; the default one, if it has none or has an executor of its own."""
        return self._policy or Policy()

    @property
    def executor(self) -> Executor:
        """The executor of all sessions; it is built, and its tools are fixed, when it is first needed."""
        if self._executor is None:
            given = {name: value for name, value in self._stores.items() if value}
            own = [self._tools[name] for name in self._own]
            self._executor = Executor([*own, *self._sources], policy=self._policy, redactor=self._redactor, **given)
        return self._executor

    async def create_guideline(
        self,
        condition: str,
        action: str = "",
        *,
        tools: Iterable[str | Tool[..., Any]] = (),
        criticality: Criticality = "medium",
        always: bool = False,
        id: str = "",
    ) -> Guideline:
        """Add a guideline; its tools are names, or tools."""
        names = tuple(self.tool_name(one) for one in tools)
        return self.add_guideline(
            Guideline(condition=condition, action=action, tools=names, criticality=criticality, always=always, id=id)
        )

    def add_guideline(self, guideline: Guideline) -> Guideline:
        """Add a guideline that is a value already: `create_guideline` without waiting."""
        for name in ("condition", "action"):
            _check_text(name, getattr(guideline, name))
        if not guideline.condition.strip() and not guideline.always:
            raise ConfigError("condition must not be empty; always=True makes a guideline that needs none.")
        if guideline.criticality not in get_args(Criticality):
            allowed = ", ".join(get_args(Criticality))
            raise ConfigError(f"criticality must be one of {allowed}, got {guideline.criticality!r}.")
        for tool in guideline.tools:
            self._known_tool(tool)
        guideline = structs.replace(
            guideline, id=guideline.id or self._next_id(), tools=tuple(dict.fromkeys(guideline.tools))
        )
        if guideline.id in self._guidelines:
            raise ConfigError(f"two guidelines have the id {guideline.id!r}.")
        self._guidelines[guideline.id] = guideline
        self._guide = None
        return guideline

    def replace_guideline(self, guideline: Guideline) -> None:
        """Put another guideline in the place of the one with its id."""
        self._known_guideline(guideline.id)
        self._guidelines[guideline.id] = guideline
        self._guide = None

    @property
    def relationships(self) -> Relationships:
        """How guidelines and tools are related."""
        return self._relationships

    async def create_journey(self, title: str, condition: str, *, id: str = "") -> Journey:
        """Add a journey: a path through several turns, whose states are guidelines."""
        _check_text("title", title)
        journey = Journey(self, id=id or f"j{len(self._journeys) + 1}", title=title, condition=condition)
        self._journeys[journey.id] = journey
        return journey

    def _next_id(self) -> str:
        number = len(self._guidelines) + 1
        while f"g{number}" in self._guidelines:
            number += 1
        return f"g{number}"

    async def create_tool(
        self,
        name: str,
        description: str = "",
        parameters: Any = None,
        handler: Callable[..., Any] | None = None,
        *,
        consequential: bool | None = None,
        options: Mapping[str, ParameterOptions] | None = None,
        **more: Any,
    ) -> Tool[..., Any]:
        """Add a tool with a JSON Schema and a handler `(arguments, context)`.

        Without a handler the tool of this name is meant; if there is none, it can be judged, and never runs. A tool is
        consequential unless `consequential=False` says that it only reads. `more` are options of `@tool`.
        """
        schema = _schema(parameters)
        if handler is None and name in self._tools and name not in self._declared:
            found = self._tools[name]
            if consequential is not None and consequential != found.consequential:
                has = "consequential" if found.consequential else "read-only"
                raise ConfigError(f"consequential: the tool {name!r} is {has}, got {consequential!r}.")
        else:
            if name in self._tools:
                raise ConfigError(f"two tools are called {name!r}.")
            if handler is not None and self._executor is not None:
                where = (
                    "the given executor has its tools" if self._given_executor else "the agent has a session already"
                )
                raise ConfigError(f"the tool {name!r} cannot be added: {where}.")
            found = build_tool(
                {
                    "name": name,
                    "description": description,
                    "input_schema": schema if schema is not None else _NO_PARAMETERS,
                    "read_only": consequential is False,
                    "handler": handler or _no_handler,
                    **more,
                }
            )
            if handler is None:
                self._declared.add(name)
            else:
                self._own[name] = None
        compile_tool(found, options=options)  # What is wrong with them is said here.
        self._tools[name] = found
        self._options[name] = {**self._options.get(name, {}), **(options or {})}
        self._guide = None
        return found

    async def associate_tool_with_guideline(self, *, tool_id: str, guideline_id: str) -> Guideline:
        """Make a tool a candidate whenever a guideline applies."""
        name = self._known_tool(tool_id)
        guideline = self._known_guideline(guideline_id)
        tools = tuple(dict.fromkeys([*guideline.tools, name]))
        self._guidelines[guideline.id] = structs.replace(guideline, tools=tools)
        self._guide = None
        return self._guidelines[guideline.id]

    async def create_relationship(
        self, source: Guideline | Tool[..., Any] | str, kind: Relation, target: Guideline | Tool[..., Any] | str
    ) -> None:
        """Relate two guidelines (`entails`, `depends_on`, `takes_priority_over`), or two tools (`overlaps`)."""
        self._relate(source, kind, target)

    def _relate(self, source: Any, kind: Relation, target: Any) -> None:
        if kind == "overlaps":
            ids = [self.tool_name(one) for one in (source, target)]
        else:
            ids = [self._known_guideline(_id_of(one)).id for one in (source, target)]
        self._relationships.add(ids[0], kind, ids[1])
        self._guide = None

    async def create_variable(
        self,
        name: str,
        *,
        value: Any = None,
        read: Callable[[ToolContext[Any]], Any] | None = None,
        fresh_for: float = 0.0,
    ) -> Variable:
        """Add something that the judge knows: a value, or a function of the context that reads it, at most once in
        `fresh_for` seconds per session."""
        return self._add_variable(name, value, read, fresh_for)

    def _add_variable(
        self, name: str, value: Any, read: Callable[[ToolContext[Any]], Any] | None, fresh_for: float
    ) -> Variable:
        _check_text("name", name)
        if read is not None and (value is not None or not callable(read)):
            raise ConfigError(f"the variable {name!r} has a value or a function that reads it, not both.")
        if read is None:
            try:
                compact_json(value)
            except ValueError as error:
                raise ConfigError(f"the value of the variable {name!r} must be JSON: {error}") from error
        if name in self._variables:
            raise ConfigError(f"two variables are called {name!r}.")
        self._variables[name] = Variable(name=name, value=value, read=read, fresh_for=fresh_for)
        self._guide = None
        return self._variables[name]

    async def create_term(self, name: str, description: str) -> None:
        """Explain a word of this business."""
        self._add_term(name, description)

    def _add_term(self, name: str, description: str) -> None:
        _check_text("name", name)
        _check_text("description", description)
        self._terms[name] = description
        self._guide = None

    # Looking things up.

    def tool_name(self, tool: str | Tool[..., Any]) -> str:
        """The name of a tool; one that the agent does not have yet is added."""
        if isinstance(tool, str):
            return self._known_tool(tool)
        if not isinstance(tool, Tool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"a tool must be a name or a Tool, got {shorten(repr(tool))}.")
        if tool.name not in self._tools:
            if self._executor is not None:
                raise ConfigError(f"the tool {tool.name!r} cannot be added: the agent's tools are fixed.")
            self._tools[tool.name] = tool
            self._own[tool.name] = None
        elif self._tools[tool.name] is not tool:
            raise ConfigError(f"two tools are called {tool.name!r}.")
        return tool.name

    def _known_tool(self, name: object) -> str:
        if isinstance(name, str) and name not in self._tools:
            self._look_at_sources()
        if isinstance(name, str) and name in self._tools:
            return name
        raise ConfigError(f"unknown tool {shorten(repr(name))}{_hint(name, self._tools)}")

    def _look_at_sources(self) -> None:
        """Take over what sources, or the executor, have now; a tool that is gone is remembered, and cannot run."""
        pools = [source.tools for source in self._sources] if self._executor is None else [self._executor.registry]
        for tool in (tool for pool in pools for tool in pool):
            if tool.name not in self._own and tool.name not in self._declared:
                self._tools[tool.name] = tool

    def _known_guideline(self, guideline_id: object) -> Guideline:
        if isinstance(guideline_id, str) and guideline_id in self._guidelines:
            return self._guidelines[guideline_id]
        raise ConfigError(f"unknown guideline {shorten(repr(guideline_id))}{_hint(guideline_id, self._guidelines)}")

    # Sessions.

    def session(
        self,
        session_id: str,
        *,
        customer_id: str | None = None,
        tenant_id: str | None = None,
        deps: Any = None,
        plugin_data: Mapping[str, Any] | None = None,
        secrets: Mapping[str, str] | None = None,
        budget: Budget | None = None,
        sessions: SessionStore | None = None,
        conversation: Conversation | None = None,
        allow_memory_ledger: bool = False,
    ) -> GuidedSession:
        """Open a session: a `ChatSession` whose turns follow the guidelines."""
        context = self._context(session_id, customer_id, tenant_id, deps, plugin_data, secrets)
        return GuidedSession(
            self.provider or NoProvider(),
            self.executor,
            context=context,
            conversation=conversation,
            allow_memory_ledger=allow_memory_ledger,
            **self._session_options(budget, sessions),
        )

    async def load_session(
        self,
        session_id: str,
        *,
        sessions: SessionStore,
        customer_id: str | None = None,
        tenant_id: str | None = None,
        deps: Any = None,
        plugin_data: Mapping[str, Any] | None = None,
        secrets: Mapping[str, str] | None = None,
        budget: Budget | None = None,
        create: bool = False,
        allow_memory_ledger: bool = False,
    ) -> GuidedSession:
        """Load a session that was saved. With `create`, start a new one if none is saved under this id."""
        context = self._context(session_id, customer_id, tenant_id, deps, plugin_data, secrets)
        options = self._session_options(budget, sessions)
        provider = self.provider or NoProvider()
        options["allow_memory_ledger"] = allow_memory_ledger
        return await GuidedSession.load(provider, self.executor, context=context, create=create, **options)

    def _context(
        self,
        session_id: str,
        customer_id: str | None,
        tenant_id: str | None,
        deps: Any,
        plugin_data: Mapping[str, Any] | None,
        secrets: Mapping[str, str] | None,
    ) -> ToolContext[Any]:
        return ToolContext(
            session_id=session_id,
            agent_id=self.agent_id,
            customer_id=customer_id,
            tenant_id=tenant_id,
            deps=deps,
            plugin_data=plugin_data or {},
            secrets=secrets or {},
        )

    def _session_options(self, budget: Budget | None, sessions: SessionStore | None) -> dict[str, Any]:
        return {
            "instructions": self.instructions,
            "budget": budget,
            "sessions": sessions,
            "strategy": GuidedStrategy(self.guide, self._judge(), redactor=self._redactor),
        }

    def _judge(self) -> Judge:
        if self.judge is not None:
            return self.judge
        if self.provider is None:
            raise ConfigError("an agent needs a provider or a judge: Agent(provider=…) or Agent(judge=…).")
        return make_judge(self.provider)

    def guide(self) -> Guide:
        """The definition, compiled; it is compiled again only when something was changed."""
        if self._guide is None or self._compiled_with is not self.executor.registry:
            self._compiled_with = self.executor.registry
            self._look_at_sources()
            self._guide = self._compile()
        return self._guide

    def _compile(self) -> Guide:
        guidelines = tuple(self._guidelines.values())
        registry = self.executor.registry
        wanted = dict.fromkeys(tool for one in guidelines for tool in one.tools)
        tools = {
            name: compile_tool(self._tools[name], options=self._options.get(name), runnable=name in registry)
            for name in wanted
        }
        return Guide(
            agent_id=self.agent_id,
            instructions=self.instructions,
            guidelines=guidelines,
            by_id=dict(self._guidelines),
            always=frozenset(one.id for one in guidelines if one.always),
            tools=tools,
            candidates={
                name: CandidateTool(
                    name=name,
                    description=one.tool.description,
                    schema=one.schema,
                    guideline_ids=tuple(each.id for each in guidelines if name in each.tools),
                    consequential=one.tool.consequential,
                )
                for name, one in tools.items()
            },
            effects={
                name: effect_of(name, one.tool.description) for name, one in tools.items() if one.tool.consequential
            },
            relationships=self._relationships,
            journeys=merge(self._journeys.values()),
            variables=tuple(self._variables.values()),
            terms=dict(self._terms),
            settings=self._settings,
            prefilter=self._prefilter,
            clock=self._clock,
        )

    async def aclose(self) -> None:
        """Let what runs finish, and close the executor that the agent made."""
        if self._executor is not None and not self._given_executor:
            await self._executor.aclose()


def _prefilter(given: Prefilter | str | None) -> Prefilter | None:
    if given is None or not isinstance(given, str):
        return given
    if given not in ("lexical", "embedding"):
        raise ConfigError(f"prefilter must be 'lexical', 'embedding', None or an object with select(), got {given!r}.")
    return LexicalPrefilter() if given == "lexical" else EmbeddingPrefilter()


def _schema(parameters: Any) -> Any:
    """The parameters of a tool: a JSON Schema, the properties of one, or `...` where they are left open."""
    if parameters is None or parameters is ... or parameters == {...}:
        return None
    if not isinstance(parameters, Mapping):
        return parameters
    given = cast(Mapping[str, Any], parameters)
    is_properties = given and "properties" not in given and all(isinstance(one, Mapping) for one in given.values())
    if not is_properties:
        return given
    return {"type": "object", "properties": dict(given), "required": list(given), "additionalProperties": False}


def _no_handler(arguments: dict[str, Any]) -> Any:
    raise ToolError("This tool has no handler.")


def _id_of(one: Any) -> Any:
    return one.id if isinstance(one, Guideline | Tool) else one


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise ConfigError(f"{name} must be a text, got {type(text).__name__}.")
    if len(text) > MAX_TEXT:
        raise ConfigError(f"{name} must be at most {MAX_TEXT} characters, got {len(text)}.")
    if encodable(text) != text:
        raise ConfigError(f"{name} must be text that can be sent as UTF-8.")


def _hint(name: object, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), list(known), n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; there are: {', '.join(sorted(known)[:20])}." if known else "; there are none yet."
