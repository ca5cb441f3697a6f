"""Handrail under a pydantic-ai agent: a toolset that runs every call through an executor."""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, cast

from pydantic import Secret, SecretBytes, SecretStr
from pydantic_core import PydanticSerializationError, SchemaSerializer, ValidationError, core_schema, to_json

from handrail.adapters.host_calls import (
    ContextSource,
    ControlFlow,
    add_provenance,
    record_decision,
    resolve_context,
    run_host_call,
)
from handrail.core import failure_results
from handrail.core.values import ToolCall
from handrail.define.options import ToolFlags
from handrail.errors import InvalidArgumentsError, MissingExtraError, StoreError
from handrail.execute.executor import Executor

try:
    from pydantic_ai import ApprovalRequired, CallDeferred, ModelRetry, RunContext, ToolFailed, ToolReturn
    from pydantic_ai.agent import AbstractAgent
    from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart
    from pydantic_ai.tools import AgentDepsT, DeferredToolResults, ToolApproved, ToolDenied
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
except ImportError as error:  # pragma: no cover
    raise MissingExtraError("pydantic-ai", extra="pydantic-ai") from error

__all__ = ["HandrailToolset", "guard_agent", "record_decisions"]

_CONTROL = ControlFlow(failures=(ModelRetry, ToolFailed), pauses=(ApprovalRequired, CallDeferred))
_TO_PLAIN = SchemaSerializer(core_schema.any_schema())
"""Makes dicts of models; secrets stay what they are."""


@dataclass
class HandrailToolset(WrapperToolset[AgentDepsT]):
    """Runs the tools of another toolset under an executor.

    Use it as `Agent(toolsets=[HandrailToolset(toolset, executor, context=…)], output_type=[str, DeferredToolRequests])`

    A call that somebody has to agree to ends the run with `DeferredToolRequests`; its metadata has the token for
    `executor.approvals.approve(…)`. Resume with `DeferredToolResults(approvals={call_id: True})`: that only wakes the
    run, and without an approval in the executor's own store it pauses again. A call whose outcome is not known pauses
    the same way, with `"reason": "outcome_unknown"`, until `executor.resolve(…)`.
    """

    executor: Executor
    _: KW_ONLY
    context: ContextSource[RunContext[AgentDepsT]]
    """The context of every call, or a function that makes it from the run context."""
    trust_annotations: bool = False
    """Whether the annotations of an MCP server's tools (`readOnlyHint`, `idempotentHint`) say what they are, where
    nothing is declared."""

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[AgentDepsT], tool: ToolsetTool[AgentDepsT]
    ) -> Any:
        """Run one call through the executor, with the arguments that were authorised."""
        secrets: dict[str, Any] = {}
        try:
            await self.executor.open()  # The digests of secrets need the key of its ledger.
        except StoreError as error:
            raise ToolFailed(failure_results.unavailable(name).for_model()) from error
        sent, schema = _to_sent_form(_hide_secrets(tool_args, self.executor, secrets), tool)

        async def proceed(arguments: Mapping[str, Any], pauses: int) -> Any:
            # The host's own values, unless somebody changed them: then the host validates the new ones.
            if arguments == sent:
                return await self.wrapped.call_tool(name, tool_args, ctx, tool)
            try:
                changed = tool.args_validator.validate_python(
                    _replace(arguments, lambda value: secrets.get(value, value) if isinstance(value, str) else value),
                    context=ctx.validation_context,
                )
            except ValidationError as error:
                raise InvalidArgumentsError(f"The changed arguments of `{name}` are not valid: {error}") from error
            return await self.wrapped.call_tool(name, changed, ctx, tool)

        context = add_provenance(
            resolve_context(self.context, ctx, turn=_count_turns(ctx), wakes=_count_wakes(ctx)),
            self.executor,
            spoken=lambda: list(_list_spoken_texts(ctx)),
            results=lambda: _list_results(ctx),
        )
        call = ToolCall(id=ctx.tool_call_id or "", name=name, arguments_json=json.dumps(sent))
        host = await run_host_call(
            self.executor,
            call,
            context,
            proceed,
            schema=None if secrets else schema,  # The host validates a secret, not what stands for it.
            flags=self._read_flags(tool),
            control=_CONTROL,
            record=lambda value: value.return_value if isinstance(value, ToolReturn) else value,
        )
        if host.is_pause:
            raise ApprovalRequired(metadata=host.describe_pause())
        if not host.result.ok:
            raise ToolFailed(host.result.for_model())
        return host.value

    def _read_flags(self, tool: ToolsetTool[AgentDepsT]) -> ToolFlags | None:
        annotations: object = (tool.tool_def.metadata or {}).get("annotations") if self.trust_annotations else None
        if not isinstance(annotations, Mapping):
            return None
        return ToolFlags.from_annotations(cast(Mapping[str, Any], annotations))


@contextmanager
def guard_agent(
    agent: AbstractAgent[AgentDepsT, Any],
    executor: Executor,
    *,
    context: ContextSource[RunContext[AgentDepsT]],
    trust_annotations: bool = False,
) -> Generator[None]:
    """Run every tool of an agent under an executor while the block lasts, also those of `@agent.tool`.

    Use it as `with guard_agent(agent, executor, context=…): await agent.run(…)`. Toolsets that a run adds by itself
    (`agent.run(toolsets=…)`) are left out inside of the block, so that nothing runs unguarded; tools that the provider
    runs are not ours to guard.
    """
    guarded: list[AbstractToolset[AgentDepsT]] = [
        toolset
        if isinstance(toolset, HandrailToolset)
        else HandrailToolset(toolset, executor, context=context, trust_annotations=trust_annotations)
        for toolset in agent.toolsets
    ]
    with agent.override(toolsets=guarded, tools=[]):
        yield


async def record_decisions(
    executor: Executor,
    results: DeferredToolResults,
    *,
    session_id: str,
    tenant_id: str | None = None,
    by: Literal["customer", "operator"],
    who: str,
) -> DeferredToolResults:
    """Record the approvals of `DeferredToolResults` in the executor's own store, each for its own call.

    `session_id` and `tenant_id` are those of the `ToolContext`. `True` or `ToolApproved` approves, `False` or
    `ToolDenied` denies, and the `override_args` of a `ToolApproved` are what runs instead. Resume with what this
    returns: `agent.run(deferred_tool_results=await record_decisions(…))`.
    """
    wakes = dict(results.approvals)
    for call_id, decision in results.approvals.items():
        is_approved = decision is True or isinstance(decision, ToolApproved)
        recorded = await record_decision(
            executor,
            call_id,
            session_id=session_id,
            tenant_id=... if tenant_id is None else tenant_id,
            by=by,
            who=who,
            is_approved=is_approved,
            reason=decision.message if isinstance(decision, ToolDenied) else "",
            arguments=decision.override_args if isinstance(decision, ToolApproved) else None,
        )
        if recorded is not None and is_approved:
            wakes[call_id] = True  # The call stays what the model sent: what was approved instead is in the store.
    return replace(results, approvals=wakes)


def _hide_secrets(tool_args: dict[str, Any], executor: Executor, secrets: dict[str, Any]) -> dict[str, Any]:
    """The arguments with a digest in place of every secret; `secrets` gets the values by their digests.

    Pydantic writes every secret as the same asterisks: two calls with different ones would be the same call.
    """

    def hide(value: Any) -> Any:
        if not isinstance(value, SecretStr | SecretBytes | Secret):
            return value
        secret: Any = cast(Any, value).get_secret_value()
        text = f"[secret {executor.digest_secret(secret if isinstance(secret, bytes) else str(secret).encode())}]"
        secrets[text] = secret
        return text

    hidden = _replace(_TO_PLAIN.to_python(tool_args, by_alias=True), hide)
    return hidden if secrets else tool_args


def _replace(value: Any, replacement: Callable[[Any], Any]) -> Any:
    """A copy of nested values in which every value that is no container was replaced."""
    if isinstance(value, Mapping):
        return {key: _replace(one, replacement) for key, one in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_replace(item, replacement) for item in cast(Iterable[Any], value)]
    return replacement(value)


def _to_sent_form(tool_args: dict[str, Any], tool: ToolsetTool[Any]) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """The validated arguments as the model sends them, and the schema that they fit; None if it has other names."""
    try:
        sent = json.loads(to_json(tool_args, fallback=str))
    except PydanticSerializationError:  # Bytes that are no text.
        sent = json.loads(to_json(tool_args, fallback=str, bytes_mode="base64"))
    schema = tool.tool_def.parameters_json_schema
    function_schema = getattr(getattr(tool, "call_func", None), "__self__", None)
    if (single := getattr(function_schema, "single_arg_name", None)) in sent and isinstance(sent[single], dict):
        sent = sent[single]  # A function with one model as its argument: the model's fields are what is sent.
    is_fitting = schema.get("additionalProperties") or sent.keys() <= set(schema.get("properties", ()))
    return sent, schema if is_fitting else None


def _is_prompt(message: ModelMessage) -> bool:
    """Whether the person spoke: a prompt beside a tool's return is what the tool added."""
    kinds = {type(part) for part in message.parts}
    return isinstance(message, ModelRequest) and UserPromptPart in kinds and ToolReturnPart not in kinds


def _count_turns(ctx: RunContext[Any]) -> int:
    return sum(map(_is_prompt, ctx.messages))


def _list_spoken_texts(ctx: RunContext[Any]) -> Iterator[str]:
    """What the person wrote, prompt by prompt; images and files are left out."""
    for message in filter(_is_prompt, ctx.messages):
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                content: Any = part.content
                items: list[Any] = [content] if isinstance(content, str) else list(content)
                yield from (item for item in items if isinstance(item, str))


def _list_results(ctx: RunContext[Any]) -> list[tuple[str, str]]:
    parts = (part for message in ctx.messages for part in message.parts)
    return [(part.tool_call_id, part.tool_name) for part in parts if isinstance(part, ToolReturnPart)]


def _count_wakes(ctx: RunContext[Any]) -> int:
    """How many runs there were since the last prompt, before this one: each went on after a pause."""
    runs = {ctx.run_id}
    for message in reversed(ctx.messages):
        runs.add(message.run_id)
        if _is_prompt(message):
            break
    return max(len(runs) - 1, int(ctx.tool_call_approved))
