"""`Agent`: guidelines, tools, relationships, variables and terms, and the sessions that follow them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args

from msgspec import structs

from handrail.authorize.approvals import Approvals
from handrail.authorize.policy import Policy
from handrail.chat.conversation import Conversation
from handrail.chat.session_store import SessionStore
from handrail.core.context import ToolContext
from handrail.core.locale_texts import load_locale
from handrail.core.redact import Redactor
from handrail.core.text import encodable
from handrail.core.tool import Tool
from handrail.errors import ConfigError, shorten
from handrail.execute.budget import Budget
from handrail.execute.executor import Executor
from handrail.execute.executor_parts import Store
from handrail.execute.ledger import Ledger
from handrail.guide.agent_tools import AgentTools, suggest_name
from handrail.guide.compiled_agent import (
    Guide,
    GuideSettings,
    Retriever,
    Variable,
    check_guideline,
    check_text,
    check_variable,
    compile_guide,
)
from handrail.guide.journeys import Journey, merge_journeys
from handrail.guide.judge_requests import read_local_time
from handrail.guide.judges import make_judge
from handrail.guide.parameters import ParameterOptions, compile_tool
from handrail.guide.prefilter import Prefilter, build_prefilter
from handrail.guide.relationships import Relation, Relationships
from handrail.guide.templates import RepliesMode, Template, check_fields, check_templates
from handrail.guide.turn import GuidedSession, GuidedStrategy
from handrail.guide.values import Criticality, Guideline, Judge, Term
from handrail.providers.provider import ModelRequest, ModelResponse, Provider, StreamEvent
from handrail.registry.registry import ToolRegistry

if TYPE_CHECKING:
    from handrail.guide.agent_file import AgentDefinition

RetrieverFunction = TypeVar("RetrieverFunction", bound=Callable[[ToolContext[Any]], Awaitable[str] | str])


class Agent:
    """An agent that follows guidelines.

    Pass a `provider` or a `judge`; and `tools` with a `policy`, or an `executor` that has both. Changes of guidelines
    apply from the next turn on; the tools are fixed after the first session was opened.
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
        terms: Mapping[str, str | Term] | None = None,
        replies: Iterable[Template | str] = (),
        replies_mode: RepliesMode = "fluid",
        instructions: str = "",
        locale: str = "en",
        agent_id: str | None = None,
        store: Store | str | None = None,
        ledger: Ledger | None = None,
        approvals: Approvals | None = None,
        listeners: Iterable[Callable[[Any], object]] = (),
        settings: GuideSettings | None = None,
        prefilter: Prefilter | Literal["lexical", "embedding"] | None = "lexical",
        redactor: Redactor | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        """Raises `ConfigError` if options contradict each other, or a guideline names what does not exist.

        Args:
            provider: The model that judges and replies.
            judge: What judges and replies instead, such as a `ScriptedJudge`.
            tools: The tools that guidelines may name.
            policy: Who may run what, as of an `Executor`.
            executor: An executor with tools and policy of its own, instead of them.
            guidelines: What the agent does, and when.
            relationships: Triples such as `("a", "entails", "b")` of the ids of guidelines.
            variables: What is known about the customer or the case, by name: values, or functions of the context.
            terms: Words of your domain and what they mean.
            replies: Templates that a reply may be taken from.
            replies_mode: `strict` sends only templates, and no word that a model wrote.
            instructions: What the model is told in every turn.
            locale: The language of texts that Handrail writes by itself.
            agent_id: Its name in contexts, rules and logs.
            store: Keeps ledger and approvals, as of an `Executor`.
            ledger: As of an `Executor`.
            approvals: As of an `Executor`.
            listeners: Functions that get every event.
            settings: Limits and thresholds of planning.
            prefilter: What selects guidelines if there are very many; None asks about all of them.
            redactor: What is hidden in traces and logs.
            clock: The time that the model is told; by default that of the machine.
        """
        tools, listeners = list(tools), list(listeners)
        has_parts = any(part is not None for part in (policy, store, ledger, approvals))
        if executor is not None and (tools or listeners or has_parts):
            raise ConfigError(
                "executor must be passed without tools, policy, store, ledger, approvals and listeners: it has its own."
            )
        self.provider = provider
        self.judge = judge
        self.instructions = encodable(instructions)
        load_locale(locale)  # Raises if there are no texts for it.
        self.locale = locale
        self.agent_id = agent_id
        self._executor = executor
        self._given_executor = executor is not None
        self._policy = policy
        self._stores: dict[str, Any] = {
            "store": store,
            "ledger": ledger,
            "approvals": approvals,
            "listeners": listeners,
        }
        self._redactor = redactor or Redactor()
        self._settings = settings or GuideSettings()
        self._prefilter = build_prefilter(prefilter)
        self._clock = clock or read_local_time
        self._tools = AgentTools(tools)
        self._guidelines: dict[str, Guideline] = {}
        self._relationships = Relationships()
        self._variables: dict[str, Variable] = {}
        self._terms: dict[str, Term] = {}
        self._templates: tuple[Template, ...] = ()
        if replies_mode not in get_args(RepliesMode):
            raise ConfigError(f"replies_mode must be 'strict' or 'fluid', got {replies_mode!r}.")
        self._replies_mode: RepliesMode = replies_mode
        self._retrievers: dict[str, Retriever] = {}
        self._journeys: dict[str, Journey] = {}
        self._guide: Guide | None = None
        self._compiled_with: ToolRegistry | None = None
        self._tools.refresh(self._get_pool())
        for guideline in guidelines:
            self.add_guideline(guideline)
        for source, kind, target in relationships:
            self.add_relationship(source, kind, target)
        for name, value in (variables or {}).items():
            self.add_variable(name, None if callable(value) else value, read=value if callable(value) else None)
        for name, term in (terms or {}).items():
            self.add_term(name, term if isinstance(term, Term) else Term(term))
        for template in replies:
            self.add_template(template)

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> Self:
        """Read an agent from a YAML or JSON file: guidelines, journeys, relationships, variables, terms, options of
        parameters, templates and instructions. A `ConfigError` names the file and the line.

        The options are those of the constructor, such as the tools that the guidelines name.
        """
        # The file is read with Pydantic models, which are slow to import, and most agents are not read from a file.
        agent_file: Any = import_module("handrail.guide.agent_file")
        definition: AgentDefinition = agent_file.load_agent_definition(path)
        agent = cls(**{**definition.options, **options})
        definition.apply(agent)
        return agent

    # The definition.

    @property
    def guidelines(self) -> tuple[Guideline, ...]:
        """The guidelines, in the order in which they were added."""
        return tuple(self._guidelines.values())

    @property
    def policy(self) -> Policy:
        """The policy that was passed to the agent, or the default policy."""
        return self._policy or Policy()

    @property
    def executor(self) -> Executor:
        """The executor of all sessions; built on first use, which fixes the tools."""
        if self._executor is None:
            tools = self._tools.get_executor_tools()
            self._executor = Executor(tools, policy=self._policy, redactor=self._redactor, **self._stores)
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
        matches: Callable[[ToolContext[Any]], Awaitable[bool] | bool] | None = None,
        priority: int = 0,
        track: bool = False,
        on_match: Callable[[ToolContext[Any]], Awaitable[object] | object] | None = None,
    ) -> Guideline:
        """Add a guideline; its tools are names, or tools."""
        names = tuple(self.resolve_tool_name(tool) for tool in tools)
        return self.add_guideline(
            Guideline(
                condition=condition,
                action=action,
                tools=names,
                criticality=criticality,
                always=always,
                id=id,
                matches=matches,
                priority=priority,
                track=track,
                on_match=on_match,
            )
        )

    def add_guideline(self, guideline: Guideline) -> Guideline:
        """Add a `Guideline`; the sync form of `create_guideline`."""
        check_guideline(guideline)
        for tool in guideline.tools:
            self._find_tool(tool)
        guideline = structs.replace(
            guideline, id=guideline.id or self._next_id(), tools=tuple(dict.fromkeys(guideline.tools))
        )
        if guideline.id in self._guidelines:
            raise ConfigError(f"two guidelines have the id {guideline.id!r}.")
        self._guidelines[guideline.id] = guideline
        self._guide = None
        return guideline

    def replace_guideline(self, guideline: Guideline) -> None:
        """Replace the guideline with the same id."""
        self._find_guideline(guideline.id)
        self._guidelines[guideline.id] = guideline
        self._guide = None

    @property
    def relationships(self) -> Relationships:
        """The relationships between guidelines and between tools."""
        return self._relationships

    async def create_journey(self, title: str, condition: str, *, id: str = "") -> Journey:
        """Add a journey: a path through several turns, whose states are guidelines."""
        return self.add_journey(title, condition, id=id)

    def add_journey(self, title: str, condition: str, *, id: str = "") -> Journey:
        """Add a journey; the sync form of `create_journey`."""
        check_text("title", title)
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

        Without a handler, `options` are added to the known tool of this name; if there is none, the tool is declared:
        the judge sees it, and it never runs. A tool is consequential unless `consequential=False`. `more` are options
        of `@tool`.
        """
        why_fixed = "the given executor has its tools" if self._given_executor else "the agent has a session already"
        found = self._tools.create(
            name,
            description,
            parameters,
            handler,
            consequential=consequential,
            options=options,
            fixed_because=why_fixed if self._executor is not None else None,
            more=more,
        )
        self._guide = None
        return found

    def add_parameter_options(self, tool: str, options: Mapping[str, ParameterOptions]) -> None:
        """Add options to the parameters of a tool that the agent has."""
        self._tools.add_options(self._find_tool(tool), options)
        self._guide = None

    async def associate_tool_with_guideline(self, *, tool_id: str, guideline_id: str) -> Guideline:
        """Make a tool a candidate whenever a guideline applies."""
        name = self._find_tool(tool_id)
        guideline = self._find_guideline(guideline_id)
        tools = tuple(dict.fromkeys([*guideline.tools, name]))
        self._guidelines[guideline.id] = structs.replace(guideline, tools=tools)
        self._guide = None
        return self._guidelines[guideline.id]

    async def create_relationship(
        self, source: Guideline | Tool[..., Any] | str, kind: Relation, target: Guideline | Tool[..., Any] | str
    ) -> None:
        """Relate two guidelines, or, with `overlaps`, two tools.

        Guidelines: `entails`, `depends_on`, `depends_on_any` (one of several), `takes_priority_over`, and
        `disambiguates` (the source means that the customer is asked which of the targets they want).
        """
        self.add_relationship(source, kind, target)

    def add_relationship(self, source: Any, kind: Relation, target: Any) -> None:
        """Relate two guidelines or tools; the sync form of `create_relationship`."""
        if kind == "overlaps":
            ids = [self.resolve_tool_name(end) for end in (source, target)]
        else:
            ids = [self._find_guideline(_get_id(end)).id for end in (source, target)]
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
        """Add a variable for the judge: a value, or a function of the context that is called at most once per
        session and `fresh_for` seconds."""
        return self.add_variable(name, value, read=read, fresh_for=fresh_for)

    def add_variable(
        self,
        name: str,
        value: Any = None,
        *,
        read: Callable[[ToolContext[Any]], Any] | None = None,
        fresh_for: float = 0.0,
    ) -> Variable:
        """Add a variable; the sync form of `create_variable`."""
        if name in self._variables:
            raise ConfigError(f"two variables are called {name!r}.")
        self._variables[name] = check_variable(Variable(name=name, value=value, read=read, fresh_for=fresh_for))
        self._guide = None
        return self._variables[name]

    def retriever(self, find: RetrieverFunction) -> RetrieverFunction:
        """Register a function of the context, sync or async, that finds text for the reply, such as opening hours.

        It is called in every turn, while the judge plans; if it fails, the reply is written without it.
        """
        name = getattr(find, "__name__", "retriever")
        if name in self._retrievers:
            raise ConfigError(f"two retrievers are called {name!r}.")
        self._retrievers[name] = Retriever(name=name, find=find)
        self._guide = None
        return find

    async def create_term(self, name: str, description: str, *, synonyms: Iterable[str] = ()) -> None:
        """Add a term of your business, with its description and other words for it."""
        self.add_term(name, Term(description, tuple(synonyms)))

    def add_term(self, name: str, term: Term) -> None:
        """Add a term; the sync form of `create_term`."""
        check_text("name", name)
        check_text("description", term.description)
        for synonym in term.synonyms:
            check_text("synonyms", synonym)
        self._terms[name] = term
        self._guide = None

    def add_template(self, template: Template | str) -> None:
        """Add an approved text. Its fields name tools and variables that the agent has."""
        templates = check_templates([*self._templates, template])
        check_fields(templates[-1], [*self._tools.names, *self._variables])
        self._templates = templates
        self._guide = None

    # Lookups.

    def resolve_tool_name(self, tool: str | Tool[..., Any]) -> str:
        """Return the name of a tool; a tool that the agent does not have yet is added."""
        if isinstance(tool, str):
            return self._find_tool(tool)
        return self._tools.add(tool, is_fixed=self._executor is not None)

    def _find_tool(self, name: object) -> str:
        return self._tools.find(name, pool=self._get_pool())

    def _get_pool(self) -> ToolRegistry | None:
        return None if self._executor is None else self._executor.registry

    def _find_guideline(self, guideline_id: object) -> Guideline:
        if isinstance(guideline_id, str) and guideline_id in self._guidelines:
            return self._guidelines[guideline_id]
        raise ConfigError(
            f"unknown guideline {shorten(repr(guideline_id))}{suggest_name(guideline_id, self._guidelines)}"
        )

    # Sessions.

    def session(
        self,
        session_id: str,
        *,
        customer_id: str | None = None,
        tenant_id: str | None = None,
        tenant: Any = None,
        deps: Any = None,
        plugin_data: Mapping[str, Any] | None = None,
        secrets: Mapping[str, str] | None = None,
        budget: Budget | None = None,
        sessions: SessionStore | None = None,
        conversation: Conversation | None = None,
        allow_memory_ledger: bool = False,
    ) -> GuidedSession:
        """Open a session: a `ChatSession` whose turns follow the guidelines.

        `tenant` is a `TenantConfig` that handlers read as `context.tenant`; its `tenant_id` need not be passed.
        """
        context = self._build_context(session_id, customer_id, tenant_id, tenant, deps, plugin_data, secrets)
        return GuidedSession(
            self.provider or NoProvider(),
            self.executor,
            context=context,
            conversation=conversation,
            allow_memory_ledger=allow_memory_ledger,
            **self._build_session_options(budget, sessions),
        )

    async def load_session(
        self,
        session_id: str,
        *,
        sessions: SessionStore,
        customer_id: str | None = None,
        tenant_id: str | None = None,
        tenant: Any = None,
        deps: Any = None,
        plugin_data: Mapping[str, Any] | None = None,
        secrets: Mapping[str, str] | None = None,
        budget: Budget | None = None,
        create: bool = False,
        allow_memory_ledger: bool = False,
        executor: Executor | None = None,
    ) -> GuidedSession:
        """Load a session that was saved. With `create`, start a new one if none is saved under this id.

        The other options are those of `session`; they are not saved, so pass them again. `executor` runs the calls
        instead of the agent's own, such as one with the rules of a tenant: `agent.executor.with_tools(…)`.
        """
        context = self._build_context(session_id, customer_id, tenant_id, tenant, deps, plugin_data, secrets)
        options = self._build_session_options(budget, sessions)
        provider = self.provider or NoProvider()
        options["allow_memory_ledger"] = allow_memory_ledger
        return await GuidedSession.load(provider, executor or self.executor, context=context, create=create, **options)

    def _build_context(
        self,
        session_id: str,
        customer_id: str | None,
        tenant_id: str | None,
        tenant: Any,
        deps: Any,
        plugin_data: Mapping[str, Any] | None,
        secrets: Mapping[str, str] | None,
    ) -> ToolContext[Any]:
        if tenant is not None:
            own_id = getattr(tenant, "tenant_id", None)
            if not isinstance(own_id, str):
                raise ConfigError(f"tenant must be a TenantConfig, got {type(tenant).__name__}.")
            if tenant_id not in (None, own_id):
                raise ConfigError(f"tenant_id must be that of tenant, {own_id!r}, got {tenant_id!r}.")
            tenant_id = own_id
        return ToolContext(
            session_id=session_id,
            agent_id=self.agent_id,
            customer_id=customer_id,
            tenant_id=tenant_id,
            tenant=tenant,
            deps=deps,
            plugin_data=plugin_data or {},
            secrets=secrets or {},
        )

    def _build_session_options(self, budget: Budget | None, sessions: SessionStore | None) -> dict[str, Any]:
        return {
            "instructions": self.instructions,
            "budget": budget,
            "sessions": sessions,
            "strategy": GuidedStrategy(self.guide, self._get_judge(), redactor=self._redactor),
        }

    def _get_judge(self) -> Judge:
        if self.judge is not None:
            return self.judge
        if self.provider is None:
            raise ConfigError("an agent needs a provider or a judge: Agent(provider=…) or Agent(judge=…).")
        return make_judge(self.provider)

    def guide(self) -> Guide:
        """Return the compiled definition; it is compiled again only after a change."""
        if self._guide is None or self._compiled_with is not self.executor.registry:
            self._compiled_with = self.executor.registry
            self._tools.refresh(self._get_pool())
            self._guide = self._compile()
        return self._guide

    def _compile(self) -> Guide:
        registry = self.executor.registry
        names = dict.fromkeys(tool for guideline in self._guidelines.values() for tool in guideline.tools)
        tools = {
            name: compile_tool(tool, options=options, runnable=name in registry)
            for name in names
            for tool, options in (self._tools.get(name),)
        }
        return compile_guide(
            agent_id=self.agent_id,
            instructions=self.instructions,
            locale=self.locale,
            guidelines=self._guidelines,
            tools=tools,
            relationships=self._relationships,
            journeys=merge_journeys(self._journeys.values()),
            variables=tuple(self._variables.values()),
            terms=self._terms,
            templates=self._templates,
            replies_mode=self._replies_mode,
            retrievers=tuple(self._retrievers.values()),
            settings=self._settings,
            prefilter=self._prefilter,
            clock=self._clock,
        )

    async def aclose(self) -> None:
        """Wait for running calls, and close the executor unless it was passed to the agent."""
        if self._executor is not None and not self._given_executor:
            await self._executor.aclose()


def _get_id(named: Any) -> Any:
    return named.id if isinstance(named, Guideline | Tool) else named


class NoProvider:
    """The provider of a session that only has a judge; every request to it is an error."""

    @property
    def name(self) -> str:
        """`none`."""
        return "none"

    async def ask(self, request: ModelRequest) -> ModelResponse:
        """Refuse."""
        raise _build_no_provider_error()

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Refuse."""
        raise _build_no_provider_error()


def _build_no_provider_error() -> ConfigError:
    return ConfigError("This agent has no provider, only a judge: it can only run guided turns.")
