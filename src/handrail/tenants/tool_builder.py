"""Building a tenant's tools from its configuration."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, cast

from msgspec import Struct, structs
from pydantic import BaseModel, ValidationError

from handrail.authorize.policy import Policy, Rule
from handrail.core.events import Event, Listener, LogEvent, ToolsBuilt
from handrail.core.log import log
from handrail.core.selectors import is_name
from handrail.core.tool import Tool
from handrail.define.build import as_tool
from handrail.errors import ConfigError, ToolBuildError
from handrail.guide.values import Guideline
from handrail.tenants.built_tool import BuiltTool, NoTool
from handrail.tenants.call_tools import COLLECT_DIGITS, END_CALL, build_collect_digits, build_end_call
from handrail.tenants.config import Features, FunctionChoice, TenantConfig
from handrail.tenants.guidelines import keep_built
from handrail.tenants.request_transfer import REQUEST_TRANSFER, build_request_transfer

Builder = Callable[[TenantConfig], Any]
"""`builder(cfg) -> Tool | BuiltTool | NoTool | None`; anything tool-shaped is taken as a tool."""
WrapTools = Callable[[Sequence[Tool[..., Any]]], Iterable[Tool[..., Any]]]
RunAside = Callable[[Callable[[], "ToolBuildResult"]], Awaitable["ToolBuildResult"]]
"""Runs a function in a thread."""
TenantToolChoice = Literal["auto", "none", "required"] | dict[str, str]

_CALL_TOOLS: Final = (build_request_transfer, build_end_call, build_collect_digits)
"""Builders whose tools steer the phone call."""
CALL_TOOL_NAMES: Final = frozenset((REQUEST_TRANSFER, END_CALL, COLLECT_DIGITS))
"""The tools that steer a phone call, and mean nothing without one."""


class BuildDiagnostic(Struct, frozen=True, kw_only=True):
    """What came of one builder, or of one part of a configuration."""

    builder: str
    status: Literal["built", "no_tool", "failed", "warning"]
    tool_name: str | None = None
    message: str = ""


class ToolBuildResult(Struct, frozen=True, kw_only=True):
    """A tenant's tools, and everything that goes with them."""

    tools: tuple[Tool[..., Any], ...]
    tool_choice: TenantToolChoice
    """`auto`, `none`, `required`, or `{"type": "function", "name": …}`."""
    rules: tuple[Rule, ...] = ()
    rule_problems: tuple[str, ...] = ()
    """Rules that can never apply to these tools, and why; an executor refuses to be built with them."""
    is_partial: bool = False
    """Whether there may be more tools at another time: those of sources, or of a builder that failed."""
    prompt: str = ""
    """The prompt texts of the built tools, for the end of the instructions."""
    diagnostics: tuple[BuildDiagnostic, ...] = ()
    read_backs: Mapping[str, Callable[[Mapping[str, Any]], str]] = {}
    """What a caller is asked to agree to, for the tools that say it in their own words."""
    background: Mapping[str, float] = {}
    """The tools that go on in the background after so many seconds."""
    guidelines: tuple[Guideline, ...] = ()
    """The tenant's guidelines with the tools that were built; one that is left without any of its tools is left out."""
    config: TenantConfig
    """The configuration with the sections of all registered features typed."""


class ToolBuilder:
    """Asks each registered builder, in order, for its tool."""

    def __init__(self, *, listeners: Iterable[Listener] = (), wrap: WrapTools | None = None) -> None:
        """`wrap` puts others in the place of the tools that are not about the call itself, such as a cassette's."""
        self._listeners = tuple(listeners)
        self._wrap = wrap
        self._builders: list[tuple[str, Builder, str | None]] = []
        self._features: dict[str, type[BaseModel]] = {}
        for builder in _CALL_TOOLS:
            self.register(builder)

    def register(self, builder: Builder, *, feature: tuple[str, type[BaseModel]] | None = None) -> None:
        """Add a builder, and with `feature` the name and the model of its section in `features`."""
        if not callable(builder):
            raise ConfigError(f"builder must be callable, got {builder!r}.")
        name = getattr(builder, "__name__", type(builder).__name__)
        if any(name == known for known, _, _ in self._builders):
            raise ConfigError(f"a builder named {name!r} is already registered.")
        section = None
        if feature is not None:
            section, model = feature
            if section in Features.model_fields or section in self._features:
                raise ConfigError(f"the feature {section!r} is already registered.")
            if not section.isidentifier() or section.startswith(("_", "model_")):
                raise ConfigError(f"the name of a feature must be an identifier, got {section!r}.")
            if not (isinstance(given := cast(Any, model), type) and issubclass(given, BaseModel)):
                raise ConfigError(f"the model of the feature {section!r} must be a Pydantic model, got {model!r}.")
            self._features[section] = model
        self._builders.append((name, builder, section))

    def check(self, cfg: TenantConfig, *, tools: Iterable[Tool[..., Any]] = (), are_all: bool = True) -> TenantConfig:
        """The configuration with the sections of registered features typed; `ToolBuildError` if one is wrong.

        A rule that can never apply to the tenant's tools, and to `tools` of the host, is wrong, too, unless the host
        may get others (`are_all`).
        """
        typed = self._check_features(cfg)
        if are_all:
            _check_rules(self.preview(cfg, tools=tools))
        return typed

    async def check_aside(
        self, cfg: TenantConfig, run: RunAside, *, tools: Iterable[Tool[..., Any]] = (), are_all: bool = True
    ) -> None:
        """The same as `check`; what may take seconds, because of many rules for many tools, is run by `run`."""
        self._check_features(cfg)
        if are_all:
            _check_rules(await _Build(self, cfg, (), "").run_aside(tuple(tools), run))

    def _check_features(self, cfg: TenantConfig) -> TenantConfig:
        typed, problems = self._read_features(cfg)
        if problems:
            section, message = next(iter(problems.items()))
            raise ToolBuildError(
                f"tenant {cfg.tenant_id!r}: features.{section}: {message}", tenant_id=cfg.tenant_id, details=problems
            )
        return typed

    def preview(self, cfg: TenantConfig, *, tools: Iterable[Tool[..., Any]] = ()) -> ToolBuildResult:
        """What would be built for a tenant without its sources; no listener hears of it."""
        return _Build(self, cfg, (), "").run(tuple(tools))

    def build_tools(
        self,
        cfg: TenantConfig,
        *,
        tools: Iterable[Tool[..., Any]] = (),
        listeners: Iterable[Listener] = (),
        session_id: str = "",
    ) -> ToolBuildResult:
        """Build a tenant's tools. A builder that fails costs its own tool, rules and prompt, and nothing else.

        `tools` come from elsewhere, such as the tenant's MCP servers; one whose name is taken is left out.
        """
        return _Build(self, cfg, (*self._listeners, *listeners), session_id).run(tuple(tools))

    async def build_tools_aside(
        self,
        cfg: TenantConfig,
        run: RunAside,
        *,
        tools: Iterable[Tool[..., Any]] = (),
        listeners: Iterable[Listener] = (),
        session_id: str = "",
    ) -> ToolBuildResult:
        """The same as `build_tools`; what may take seconds, because of many rules for many tools, is run by `run`."""
        return await _Build(self, cfg, (*self._listeners, *listeners), session_id).run_aside(tuple(tools), run)

    def _read_features(self, cfg: TenantConfig) -> tuple[TenantConfig, dict[str, str]]:
        given: Mapping[str, Any] = cfg.features.model_extra or {}
        sections: dict[str, Any] = {}
        problems: dict[str, str] = {}
        for name in given:
            if name not in self._features:
                known = ", ".join((*Features.model_fields, *self._features))
                problems[name] = f"is not a registered feature; registered are {known}."
        for name, model in self._features.items():
            value = given.get(name)
            if isinstance(value, model):
                continue
            try:
                sections[name] = model.model_validate({} if name not in given else value)
            except ValidationError as error:
                sections[name] = None
                if name in given:
                    problems[name] = _describe(error)
        # The version stays that of what was written.
        return cfg.model_copy(update={"features": cfg.features.model_copy(update=sections)}), problems


class _Build:
    """One run over all builders."""

    def __init__(
        self, builder: ToolBuilder, cfg: TenantConfig, listeners: tuple[Listener, ...], session_id: str
    ) -> None:
        self._builders = builder._builders  # pyright: ignore[reportPrivateUsage]
        self._wrap = builder._wrap  # pyright: ignore[reportPrivateUsage]
        self._cfg, self._problems = builder._read_features(cfg)  # pyright: ignore[reportPrivateUsage]
        self._listeners = listeners
        self._session_id = session_id
        self._built: list[BuiltTool] = []
        self._diagnostics: list[BuildDiagnostic] = []

    def run(self, found: tuple[Tool[..., Any], ...]) -> ToolBuildResult:
        return self._apply_rules(self._collect(found))

    async def run_aside(self, found: tuple[Tool[..., Any], ...], run: RunAside) -> ToolBuildResult:
        """Ask the builders here, and look through the rules elsewhere. Listeners hear of everything here."""
        tools, listeners, events = self._collect(found), self._listeners, list[Event]()
        self._listeners = (events.append,)
        try:
            return await run(partial(self._apply_rules, tools))
        finally:
            self._listeners = listeners
            for event in events:
                self._emit(event)

    def _collect(self, found: tuple[Tool[..., Any], ...]) -> tuple[Tool[..., Any], ...]:
        """The tools that the builders make, and those from elsewhere."""
        self._note("tool_build_started", builder_count=len(self._builders))
        sections = {section for _, _, section in self._builders}
        for section, message in self._problems.items():
            if section not in sections:
                self._warn("features", f"features.{section}: {message}")
        for name, builder, section in self._builders:
            self._note("tool_builder_phase_started", builder=name)
            try:
                self._ask(name, builder, section)
            except Exception as error:  # noqa: BLE001  # a builder is user code: any bug costs its own tool only
                self._fail(name, error)
        built = {tool.name: tool for tool in (as_tool(built_tool.tool) for built_tool in self._built)}
        for tool in found:
            if tool.name in built:
                self._warn(tool.source, f"there is already a tool named {tool.name!r}")
            else:
                built[tool.name] = tool
        tools = self._wrap_tools(built)
        for name in self._cfg.fillers.tools:
            if name not in built and not self._is_partial:
                self._warn("fillers", f"fillers.tools names {name!r}, which was not built")
        return tools

    def _apply_rules(self, tools: tuple[Tool[..., Any], ...]) -> ToolBuildResult:
        """What goes with these tools, and whether the rules can apply to them."""
        cfg = self._cfg
        choice = self._choose({tool.name for tool in tools})
        is_partial = self._is_partial
        rules = self._rules(tools)
        guidelines, warnings = keep_built(cfg.guidelines, {tool.name for tool in tools})
        for warning in warnings:
            self._warn("guidelines", warning)
        problems = tuple(str(problem) for problem in Policy(rules).find_problems(tools))
        for problem in problems:
            self._diagnostics.append(BuildDiagnostic(builder="policy", status="failed", message=problem))
            self._note("tool_build_error", "error", builder="policy", reason=problem)
        result = ToolBuildResult(
            tools=tools,
            tool_choice=choice,
            rules=rules,
            rule_problems=problems,
            is_partial=is_partial,
            prompt="\n\n".join(built_tool.prompt.strip() for built_tool in self._built if built_tool.prompt.strip()),
            read_backs={
                as_tool(built_tool.tool).name: built_tool.read_back
                for built_tool in self._built
                if built_tool.read_back is not None
            },
            background={
                as_tool(built_tool.tool).name: built_tool.background
                for built_tool in self._built
                if built_tool.background is not None
            },
            guidelines=guidelines,
            diagnostics=tuple(self._diagnostics),
            config=cfg,
        )
        self._emit(
            ToolsBuilt(
                at=time.time(),
                session_id=self._session_id,
                tenant_id=cfg.tenant_id,
                tool_names=tuple(tool.name for tool in tools),
                failed=tuple(diagnostic.builder for diagnostic in self._diagnostics if diagnostic.status == "failed"),
                tool_choice=choice if isinstance(choice, str) else choice["name"],
            )
        )
        return result

    def _wrap_tools(self, built: Mapping[str, Tool[..., Any]]) -> tuple[Tool[..., Any], ...]:
        if self._wrap is None:
            return tuple(built.values())
        own = {builder.__name__ for builder in _CALL_TOOLS}
        steering = {diagnostic.tool_name for diagnostic in self._diagnostics if diagnostic.builder in own}
        given = [tool for name, tool in built.items() if name not in steering]
        wrapped = {tool.name: tool for tool in map(as_tool, self._wrap(given))}
        if set(wrapped) != {tool.name for tool in given}:
            raise ConfigError(
                f"wrap must return one tool for each that it gets, under the same name; "
                f"got {', '.join(sorted(wrapped)) or 'none'} for {', '.join(sorted(tool.name for tool in given))}."
            )
        return tuple(wrapped.get(name, tool) for name, tool in built.items())

    def _ask(self, name: str, builder: Builder, section: str | None) -> None:
        if section is not None:
            if section in self._problems:
                raise ToolBuildError(f"features.{section}: {self._problems[section]}", tenant_id=self._cfg.tenant_id)
            if getattr(self._cfg.features, section, None) is None:
                self._none(name, NoTool(f"features.{section} is not configured"))
                return
        answer = builder(self._cfg)
        if answer is None or isinstance(answer, NoTool):
            self._none(name, answer or NoTool())
            return
        built = answer if isinstance(answer, BuiltTool) else BuiltTool(tool=answer)
        tool = as_tool(built.tool)
        if any(as_tool(other.tool).name == tool.name for other in self._built):
            raise ToolBuildError(f"there is already a tool named {tool.name!r}.", tenant_id=self._cfg.tenant_id)
        if not isinstance(built.prompt, str) or not all(isinstance(rule, Rule) for rule in built.rules):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolBuildError("prompt must be text and rules must be `Rule`s.", tenant_id=self._cfg.tenant_id)
        if built.background is not None and not tool.concurrency_safe:
            raise ToolBuildError(
                f"{tool.name!r} runs in the background, so it must be concurrency_safe: all other tools of the phone "
                f"call would wait for it.",
                tenant_id=self._cfg.tenant_id,
            )
        for event, fields in built.log:
            self._note(event, **fields)
        self._built.append(structs.replace(built, tool=tool, rules=tuple(built.rules)))
        self._diagnostics.append(BuildDiagnostic(builder=name, status="built", tool_name=tool.name))
        self._note("tool_builder_phase_built_tool", builder=name, tool=tool.name)

    def _none(self, name: str, answer: NoTool) -> None:
        for event, fields in answer.log:
            self._note(event, **fields)
        self._diagnostics.append(BuildDiagnostic(builder=name, status="no_tool", message=answer.reason))
        self._note("tool_builder_phase_no_tool", builder=name, reason=answer.reason)

    def _fail(self, name: str, error: Exception) -> None:
        wrapped = (
            error if isinstance(error, ToolBuildError) else ToolBuildError(f"{name} raised {type(error).__name__}")
        )
        if wrapped is not error:
            log.error("the builder %s of the tenant %s failed", name, self._cfg.tenant_id, exc_info=error)
        self._diagnostics.append(BuildDiagnostic(builder=name, status="failed", message=wrapped.message))
        self._note("tool_build_error", "error", builder=name, error=wrapped.to_log_dict())

    def _choose(self, names: set[str]) -> TenantToolChoice:
        choice = self._cfg.tool_choice
        default: TenantToolChoice = "auto" if names else "none"
        if choice is None or (choice == "required" and not names):
            if choice is not None:
                self._warn("tool_choice", "tool_choice is 'required', but no tool was built")
            return default
        name = choice.name if isinstance(choice, FunctionChoice) else choice
        if name == "auto" or name == "none" or name == "required":
            return name if names else "none"
        if name not in names:
            self._warn("tool_choice", f"tool_choice names {name!r}, which was not built")
            return default
        return {"type": "function", "name": name}

    def _rules(self, tools: tuple[Tool[..., Any], ...]) -> tuple[Rule, ...]:
        """The tenant's rules first, then those of the built tools.

        A rule that selects no tool stays, and is a problem, unless its tool may exist: one of a feature that is off, of
        a builder that failed, or of a source that is not connected.
        """
        names = {tool.name for tool in tools}
        is_partial = self._is_partial
        rules: list[Rule] = []
        for rule in (*self._cfg.rules(), *(rule for built in self._built for rule in built.rules)):
            absent = {text for text in rule.tools if is_name(text) and text not in names}
            if not is_partial:
                absent &= CALL_TOOL_NAMES
            kept = tuple(text for text in rule.tools if text not in absent)
            if absent or (is_partial and not any(map(rule.selects, tools))):
                self._warn("policy", f"the rule {rule} concerns a tool that this tenant does not have now")
            if kept and (not is_partial or any(map(rule.selects, tools))):
                rules.append(structs.replace(rule, tools=kept) if absent else rule)
            elif not rule.tools:
                rules.append(rule)
        return tuple(rules)

    @property
    def _is_partial(self) -> bool:
        has_sources = bool(self._cfg.mcp_servers or self._cfg.openapi)
        return has_sources or any(diagnostic.status == "failed" for diagnostic in self._diagnostics)

    def _warn(self, part: str, message: str) -> None:
        self._diagnostics.append(BuildDiagnostic(builder=part, status="warning", message=message))
        self._note("tool_build_warning", "warning", builder=part, reason=message)

    def _note(
        self, name: str, severity: Literal["debug", "info", "warning", "error"] = "info", /, **fields: Any
    ) -> None:
        self._emit(
            LogEvent(
                at=time.time(),
                session_id=self._session_id,
                tenant_id=self._cfg.tenant_id,
                name=name,
                severity=severity,
                fields=fields,
            )
        )

    def _emit(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # a listener never breaks a call
                log.exception("a listener failed")


def _check_rules(built: ToolBuildResult) -> None:
    if built.rule_problems:
        tenant_id = built.config.tenant_id
        raise ToolBuildError(f"tenant {tenant_id!r}: policy: {built.rule_problems[0]}", tenant_id=tenant_id)


def _describe(error: ValidationError) -> str:
    parts = [
        f"{'.'.join(map(str, problem['loc'])) or 'it'}: {problem['msg']}"
        for problem in error.errors(include_input=False)
    ]
    return "; ".join(parts[:5])
