"""Each promise of the four source documents, the gateway, durable calls and the service, as one line of data with an id.

A test that proves a promise says so: `@pytest.mark.proves("TC-12")`; `tests/repository/test_requirements.py` holds the two
together. The text says what Handrail does, which is the right thing where a document is wrong; the `-D` ids are those
places, numbered as in the list of known defects. An id is never used again for something else.

`open` names the subject of the issue that will close a promise. Remove it in the change that proves the promise.
"""

# ruff: noqa: E501

from dataclasses import KW_ONLY, dataclass
from typing import Literal

Source = Literal["harness", "phone", "guided", "toolcall", "gateway", "durable", "service", "defect"]
Subject = Literal["executor", "providers and conversation", "phone", "guided", "sources", "service"]


@dataclass(frozen=True, slots=True)
class Requirement:
    """One promise."""

    id: str
    source: Source
    text: str
    _: KW_ONLY
    open: Subject | None = None
    """The subject of the issue that will close it; None means that a test proves it today."""


R = Requirement

# One promise, one line, however long.
# fmt: off

HARNESS = (
    # the contract of a tool
    R("HC-01", "harness", "A tool has `name`, `description`, `input_schema`, `execute`, `check_permissions`, `is_read_only` and `is_concurrency_safe`."),
    R("HC-02", "harness", "`ToolLike` is the public protocol, and `as_tool()` makes a `Tool` of any object that has its members."),
    R("HC-03", "harness", "`ToolContext` is frozen; `session_id` is all it needs, and `working_directory` is one of the things it carries."),
    R("HC-04", "harness", "`ToolResult` is frozen: `output` is any JSON value, `error` is None unless given (a str becomes a `Failure`), `duration_ms` is 0 unless given."),
    R("HC-05", "harness", "`await tool.execute(payload, context)` validates the payload, runs the handler, and answers a `ToolResult` with the time it took in `duration_ms`."),
    R("HC-06", "harness", "`await tool.check_permissions(payload, context)` returns None when it has no objection and raises a `PermissionError` when it refuses."),
    R("HC-07", "harness", "Every call passes authorisation before its handler runs; a permission check that raises anything refuses, and one that passes leaves the decision to policy."),
    R("HC-08", "harness", "Neighbouring calls of tools that are `concurrency_safe` run together, and every other call runs alone, in order."),
    # the registry
    R("HC-09", "harness", "A `ToolRegistry` starts empty or from anything tool-shaped, and finds a tool by its name: `get(name)`, `name in registry`."),
    R("HC-10", "harness", "`registry.register(tool)` returns a new registry with the tool and leaves the old one as it was."),
    R("HC-11", "harness", "`registry.get()` of an unknown name raises `ToolNotFoundError`, which is a `KeyError` and names what was asked for."),
    R("HC-12", "harness", "The definitions for every provider come from one registry: the same tools, in the same order, none assembled by hand."),
    R("HC-13", "harness", "`to_anthropic_tools()` gives `name`, `description` and `input_schema` for each tool, and no `type`."),
    R("HC-14", "harness", "`to_openai_tools()` gives `type: function`, `name`, `description` and `parameters` for each tool, flat, as the Responses API wants it."),
    # calls in, results out
    R("HC-15", "harness", "The Anthropic format reads each `tool_use` block of a response as a `ToolCall`, in order, and passes over the other blocks."),
    R("HC-16", "harness", "The Anthropic format renders a result as a `tool_result` block under the id of its `tool_use`, with failures marked as errors."),
    R("HC-17", "harness", "The Responses format reads each `function_call` item of a response as a `ToolCall`, in order, with the arguments kept as text."),
    R("HC-18", "harness", "The Responses format renders a result as a `function_call_output` item under the `call_id` of its call."),
    R("HC-19", "harness", "The chapter's Anthropic program, changed only in its imports, runs to its second request against a local server."),
    R("HC-20", "harness", "The chapter's OpenAI program, changed only in its imports, runs to its second request against a local server."),
    R("HC-21", "harness", "`run_until_done` runs the tool loop for any format: read the calls, dispatch each through the registry, send the results back, until none is left."),
    # read_file
    R("HC-22", "harness", "`ReadFileTool()` is a tool named `read_file` that goes into a registry as it is."),
    R("HC-23", "harness", "The schema of `read_file` requires `file_path` (a string), and takes `offset` (counted from 1) and `limit`, both integers; each is described."),
    R("HC-24", "harness", "`read_file` starts at line 1 and returns at most 2000 lines unless told otherwise."),
    R("HC-25", "harness", "`read_file` returns each line as its number in the file, a tab and its text, from `offset` on."),
    R("HC-26", "harness", "`read_file` refuses a path that is not absolute, and says that it must be."),
    R("HC-27", "harness", "`read_file` refuses a path outside the context's working directory, and says which."),
    R("HC-28", "harness", "`read_file` is read-only and concurrency-safe."),
    # build_tool
    R("HC-29", "harness", "`build_tool()` makes a tool of a mapping with `name`, `description`, `input_schema` and `execute`, sync or async."),
    R("HC-30", "harness", "The flags and the check given to `build_tool()` may be callables (`lambda: True`) or booleans, and sync or async functions."),
    R("HC-31", "harness", "A flag left out is false: a tool that says nothing is consequential and exclusive."),
    R("HC-32", "harness", "A key that `build_tool()` does not know is an error that names it, so that a misspelt flag opens no hole."),
    # the pool
    R("HC-33", "harness", "`assemble_tool_pool(built_in, mcp_tools, deny_rules)` leaves out every denied tool of either list: by exact name, by glob, by source."),
    R("HC-34", "harness", "A pool has the built-in tools first and then those of MCP servers, each part sorted by name."),
    R("HC-35", "harness", "Where a built-in tool and an MCP tool have one name, the pool has the built-in one."),
    R("HC-36", "harness", "The same tools give the same bytes of definitions whatever order they came in, and the lists that came in stay as they were."),
    R("HC-37", "harness", "The tools of a live MCP server come into the pool with `mcp:<server>` as their source, and run there."),
)

HARNESS_DEFECTS = (
    R("HC-D1", "defect", "What `build_tool()` returns works: its flags, `execute` and `check_permissions` can be called and awaited, also those left to their defaults."),
    R("HC-D2", "defect", "`check_permissions()` of a tool that declares no check refuses, unless the tool is read-only, and names the option that would allow it."),
    R("HC-D3", "defect", "A path is resolved, links too, and compared part by part: a prefix twin, a `..` and a link out are refused, and so is a link swapped between check and open."),
    R("HC-D4", "defect", "`register()` refuses a second tool of the same name."),
    R("HC-D5", "defect", "Only `concurrency_safe` lets calls overlap; a tool that is merely read-only runs alone."),
    R("HC-D6", "defect", "`read_file` reads no more of a file than it returns, has a limit of size, and answers clearly for text that is not UTF-8."),
)

PHONE = (
    # the life cycle
    R("PH-01", "phone", "One phone call goes through all six steps against the simulator: configuration, building, session set-up, call, execution, answer."),
    R("PH-02", "phone", "Two tenants with different configurations get different tools from the same code."),
    R("PH-03", "phone", "The tenant's tools, tool choice and instructions are in the session that a phone call is accepted with."),
    R("PH-04", "phone", "The Realtime format gives `type: function`, `name`, `description` and `parameters` for each tool, flat."),
    # building
    R("PH-05", "phone", "`ToolBuilder` asks each registered builder, in order, with the `TenantConfig`; a builder answers a tool or None."),
    R("PH-06", "phone", "A build gives one frozen value: the tools and the tool choice."),
    R("PH-07", "phone", "The tool choice of a build is auto when there are tools and none when there are not."),
    R("PH-08", "phone", "A builder that raises `ToolBuildError` costs its own tool only; the log has tenant, builder and the error's `to_log_dict()` (`tool_build_error`)."),
    R("PH-09", "phone", "A build is told at its start with tenant and number of builders (`tool_build_started`)."),
    R("PH-10", "phone", "Each builder is told at its start with tenant and name (`tool_builder_phase_started`), and at its end as built, with the tool's name, or as without a tool (`tool_builder_phase_built_tool`, `tool_builder_phase_no_tool`)."),
    R("PH-11", "phone", "`ToolsBuilt` is told at the end with tenant, number and names of the tools, and tool choice (`tool_build_finished`)."),
    # the transfer tool: configuration and definition
    R("PH-12", "phone", "A `TenantConfig` has `tenant_id` and `features`; `features.refer` has `enabled`, `require_confirmation`, `handoff_phrase` and `destinations`."),
    R("PH-13", "phone", "A destination has `destination_id`, `label`, `description_for_model`, `target_uri`, `enabled` and `priority`."),
    R("PH-14", "phone", "A `target_uri` is a SIP address or a telephone number; a number goes out as a `tel:` address, and anything else is a configuration error."),
    R("PH-15", "phone", "With the transfer feature off there is no transfer tool, and this is told (`tool_builder_refer_disabled`)."),
    R("PH-16", "phone", "With no enabled destination there is no transfer tool, and this is told with the number configured (`tool_builder_refer_no_enabled_destinations`)."),
    R("PH-17", "phone", "Enabled destinations only, the highest priority first, and their ids are told (`tool_builder_refer_destinations_selected`)."),
    R("PH-18", "phone", "The transfer tool is named `request_transfer`."),
    R("PH-19", "phone", "`destination_id` is an enum of the enabled ids, and its description lists them with a hint for each."),
    R("PH-20", "phone", "A hint is the id, the label and the description for the model; without a label it is the id, and without a description there is no loose dash."),
    R("PH-21", "phone", "`reason` is an optional short text; `destination_id` alone is required, and no other argument is accepted."),
    R("PH-22", "phone", "The description of `request_transfer` says whether the caller has to confirm first or only has to ask, as `require_confirmation` says."),
    R("PH-23", "phone", "The tenant's hand-off phrase is used with `{{label}}` replaced by the label of the chosen destination; with no phrase nothing is said of it."),
    R("PH-24", "phone", "The finished definition is told with tool name, ids and required arguments (`tool_builder_refer_parameters_built`, `tool_builder_refer_tool_definition_built`)."),
    # a call arrives
    R("PH-25", "phone", "A `ToolCall` has `id`, `name`, `arguments_json`, and `response_id` and `item_id` where they are known; it is frozen."),
    R("PH-26", "phone", "Tenant and phone call travel in the `ToolContext`, as `tenant_id` and `session_id`."),
    R("PH-27", "phone", "The Realtime format reads a completed `function_call` item as a `ToolCall` with its call, response and item ids, from SDK objects, dicts or collected events."),
    R("PH-28", "phone", "The Realtime format renders a result as a `conversation.item.create` with a `function_call_output` under the id of its call."),
    R("PH-29", "phone", "A call that arrives on the socket is told with session, call, response and item ids and tool name (`ws_tool_call_received`, `ws_tool_invocation_built`)."),
    R("PH-30", "phone", "Handing a call to the executor is told with session and call ids and tool name (`ws_tool_invocation_submitting_to_dispatcher`)."),
    R("PH-31", "phone", "A call that nothing can run still gets an output, and this is told (`ws_tool_dispatcher_missing_fallback_output`)."),
    # dispatch
    R("PH-32", "phone", "A second arrival of a call that is running is ignored: `CallIgnored` with reason `already_pending` and all its ids (`tool_invocation_ignored_already_pending`)."),
    R("PH-33", "phone", "A second arrival of a call that has run is ignored: `CallIgnored` with reason `already_executed` and all its ids (`tool_invocation_ignored_already_executed`)."),
    R("PH-34", "phone", "A call that is taken on is told with its ids and the numbers of pending and active calls (`tool_invocation_scheduled`)."),
    R("PH-35", "phone", "The socket is read on while tools run; a slow tool delays no event."),
    R("PH-36", "phone", "Several calls of one phone call run at once where their tools allow it, and each answer goes to its own call."),
    R("PH-37", "phone", "The task that runs a call is named after its session and its call, a read's among them; a read that is awaited by itself runs in its caller's task."),
    # execution
    R("PH-38", "phone", "The executor keeps nothing of a session but its running calls and the ledger: what a call needs comes with its `ToolContext`, and two sessions never see each other's."),
    R("PH-39", "phone", "`Executor.run` never raises: whatever happens is a `ToolResult` that a model can read."),
    R("PH-40", "phone", "`CallStarted` has tool, tenant, session, call, response and item ids (`tool_executor_execute_started`)."),
    R("PH-41", "phone", "A call of an unknown tool answers `tool_not_found`, and is told with its ids and the error's `to_log_dict()` (`tool_not_found`)."),
    R("PH-42", "phone", "Arguments that are no JSON answer `tool_args_parse_error`, under the id of the call."),
    R("PH-43", "phone", "Arguments that are JSON but no object answer `tool_args_parse_error`, and say that an object is wanted."),
    R("PH-44", "phone", "Empty arguments text means `{}`."),
    R("PH-45", "phone", "Parsed arguments are told by their sorted keys, never by their values (`tool_executor_arguments_parsed`)."),
    R("PH-46", "phone", "A handler gets its dependencies, typed, as `context.deps`."),
    R("PH-47", "phone", "The dependencies of a call are told by their names only (`tool_executor_dependencies_prepared`)."),
    R("PH-48", "phone", "A handler returns a plain value or a `ToolResult`; a return of the wrong type is an error that names the tool and the type."),
    R("PH-49", "phone", "Whatever else a handler raises answers `tool_execution_failed` with a fixed text (`outcome_unknown` for a consequential tool); the original goes to the log."),
    R("PH-50", "phone", "`CallFinished` has tool, tenant and call ids, ok, error code and length of the output (`tool_executor_execute_finished`)."),
    # results and errors
    R("PH-51", "phone", "A `ToolResult` has `call_id`, `output` and `error`, and is `ok` exactly when there is no error."),
    R("PH-52", "phone", "`for_model()` is text: a str as it is, any other value as compact JSON."),
    R("PH-53", "phone", "`for_model()` of every failure has one form: `{ok: false, error: code, tool: name, message: text}`."),
    R("PH-54", "phone", "`ToolNotFoundError`, `ToolArgsParseError`, `ToolExecutionError` and `ToolBuildError` exist by these names, with the codes `tool_not_found`, `tool_args_parse_error`, `tool_execution_failed`, `tool_build_error`."),
    R("PH-55", "phone", "Every error has a code and a `to_log_dict()` that holds no argument's value; the cause is chained, not printed."),
    R("PH-56", "phone", "A handler can fail with a code and a message of its own, by raising `ToolError` or by returning a failed `ToolResult`, and the model reads both."),
    R("PH-57", "phone", "When running or answering a call fails, a fallback output is sent for it (`tool_run_and_respond_fallback_output_sent`)."),
    R("PH-58", "phone", "When the fallback output cannot be sent either, this is told (`tool_run_and_respond_fallback_output_failed`), and the session goes on."),
    R("PH-59", "phone", "After any failure of a tool the model has an answer, is asked to speak, and the next call works."),
    # the transfer tool: execution
    R("PH-60", "phone", "A transfer is told at its start with all ids and the keys of its arguments (`request_transfer_started`)."),
    R("PH-61", "phone", "A `destination_id` that is missing or no text answers `invalid_arguments`, and nothing is referred."),
    R("PH-62", "phone", "The destination is resolved against the tenant's configuration when the tool runs, told at start and end by its id (`request_transfer_destination_resolution_started`, `request_transfer_destination_resolved`, `request_transfer_destination_resolution_finished`)."),
    R("PH-63", "phone", "With the feature off at the time of the call the transfer fails clearly, and this is told (`request_transfer_refer_feature_disabled`)."),
    R("PH-64", "phone", "An unknown destination fails with the ids that are valid, and this is told (`request_transfer_destination_not_found`)."),
    R("PH-65", "phone", "A transfer refers the phone call through `context.call_control`; where there is none it fails clearly."),
    R("PH-66", "phone", "The referral is told with destination id, reason (empty when not given) and idempotency key (`request_transfer_refer_call_started`)."),
    R("PH-67", "phone", "A referral that fails answers `call_transfer_failed` with the advice to go on without it; the phone call goes on, and the cause is in the log (`tool_execution_error`)."),
    R("PH-68", "phone", "A referral that succeeds answers `call_transfer_requested` with the reason, and is told (`request_transfer_refer_call_succeeded`)."),
    # cancellation
    R("PH-69", "phone", "`cancel_tools_for_response(response_id)` cancels the running calls of that response and no other, each told with its ids (`tool_cancelled_for_response`)."),
    R("PH-70", "phone", "A cancellation by response is told at its end with the number cancelled (`tool_cancel_for_response_finished`)."),
    R("PH-71", "phone", "A cancellation by response without a response id does nothing and is told (`tool_cancel_for_response_skipped_missing_response_id`)."),
    R("PH-72", "phone", "`cancel_all` of a session waits until every call has ended and forgets them, told with cancellable and tracked, then remaining and still pending (`tool_cancel_all_started`, `tool_cancel_all_finished`)."),
    R("PH-73", "phone", "A caller who interrupts sets off the cancellation of the interrupted response's calls, as each tool's `on_interrupt` allows."),
    R("PH-74", "phone", "The end of a phone call, however it comes, ends or settles all its calls; nothing is sent afterwards."),
    # own tools
    R("PH-75", "phone", "A user adds a tool without touching Handrail: a feature in the configuration, a builder that answers None when it is off, a handler."),
    R("PH-76", "phone", "A handler is a function, sync or async, that gets validated arguments by name; `@tool` makes it a `Tool` that a registry takes."),
    R("PH-77", "phone", "Parameter descriptions reach the model in every format, and so do the examples of a tool."),
    R("PH-78", "phone", "A tool is tested without a phone call, in one line, with good and with invalid arguments."),
    # performance and monitoring
    R("PH-79", "phone", "A tool has a timeout, and a slow call is flagged in the events."),
    R("PH-80", "phone", "Sync handlers run in worker threads, so that they block nobody."),
    R("PH-81", "phone", "A read-only tool with `cache_for` answers the same question again without running."),
    R("PH-82", "phone", "Metric: the number of calls, per tool and tenant."),
    R("PH-83", "phone", "Metric: the success rate, per tool and tenant."),
    R("PH-84", "phone", "Metric: a histogram of how long calls take, per tool and tenant."),
    R("PH-85", "phone", "Metric: the distribution of error codes, per tool and tenant."),
    R("PH-86", "phone", "Every fact is one structured log event with a name; the docs list them with their fields, and each log event of the phone document is one of them."),
    R("PH-87", "phone", "A handler's failure is logged at error level (`tool_execution_failed`)."),
    # what the page names in passing
    R("PH-88", "phone", "A tenant can set the tool choice: auto, none, required, or one tool, which goes out in its legal form."),
    R("PH-89", "phone", "A tenant's configuration can come from a database, where every revision is kept and the newest applies to the next call."),
    R("PH-90", "phone", "Tools that run concurrently in one phone call can be tested: the simulator plays such a call, and its report says what was left undone."),
)

PHONE_DEFECTS = (
    R("PH-D1", "defect", "A tool runs on `response.output_item.done` with a completed item; half-written, cancelled and incomplete calls never run."),
    R("PH-D2", "defect", "A tool's name that an event leaves out is taken from `response.output_item.added`."),
    R("PH-D3", "defect", "A barge-in reaches the calls whose response is already complete, by each tool's `on_interrupt`: cancel, finish, finish_silently, uninterruptible."),
    R("PH-D4", "defect", "A cancelled call sends an output too, and it says truthfully what may have happened."),
    R("PH-D5", "defect", "One response is asked for per batch of outputs, never while one is active or the caller speaks, and no result is left unspoken."),
    R("PH-D6", "defect", "A disabled destination is neither transferred to nor listed as a valid option."),
    R("PH-D7", "defect", "Arguments of a Realtime call are validated here before anything runs, and its definitions carry no `strict`."),
    R("PH-D8", "defect", "`require_confirmation` is enforced by code: without the caller's approval in a later turn nothing is referred."),
    R("PH-D9", "defect", "No output for the model holds a `target_uri`."),
    R("PH-D10", "defect", "One transfer at a time for a phone call and at most one referral for a request, with no retry by the SDK; after a failure a second try is possible."),
    R("PH-D11", "defect", "The referral waits until the hand-off sentence has been played, and nothing is said after it."),
    R("PH-D12", "defect", "The Realtime tool choice is auto, none, required, or `{type: function, name}`, never a bare name."),
    R("PH-D13", "defect", "Any exception in one builder costs that builder's tool, never the phone call."),
    R("PH-D14", "defect", "Timeout, concurrency and output have limits; failures are logged above INFO; no log holds a tenant's configuration."),
    R("PH-D15", "defect", "The executor knows no tool by name: dependencies reach every tool in the same way."),
    R("PH-D16", "defect", "Every text that a caller or a model gets comes from the tenant's configuration and locale; none in the code is in one tenant's language."),
    R("PH-D17", "defect", "What is remembered of executed calls is bounded, and with a store it is shared between processes."),
    R("PH-D18", "defect", "`session_id` is the phone call and `ToolCall.id` the tool call; no value has one name for both."),
    R("PH-D19", "defect", "A mangled target (`sip:[email protected]`) is refused when the configuration is loaded; the transfer tool has no argument `target_uri`."),
    R("PH-D20", "defect", "When a phone call ends, reads are cancelled, writes are finished or settled within a bound, and the outcome of each is recorded."),
    R("PH-D21", "defect", "One side announces the hand-off, and the caller hears it once."),
    R("PH-D22", "defect", "What only one capture of the page shows holds too: the six steps in order, a dash between label and description, instructions and tools per tenant."),
)

GUIDED = (
    # independence of providers
    R("GC-01", "guided", "The same tools go out to every provider without a change to any of them."),
    R("GC-02", "guided", "Another provider, or none but a scripted judge, changes neither the tools nor the guidelines of an agent."),
    # guidelines and their tools
    R("GC-03", "guided", "`agent.create_guideline(condition, action)` gives a guideline with an id."),
    R("GC-04", "guided", "`agent.create_tool(name, description, parameters)` gives a tool; its `id` is its name."),
    R("GC-05", "guided", "`agent.associate_tool_with_guideline(tool_id, guideline_id)` ties the two, and an unknown id is an error that names it."),
    R("GC-06", "guided", "A tool has an `id`, which is its name."),
    R("GC-07", "guided", "Only the tools of guidelines that match the conversation are candidates."),
    R("GC-08", "guided", "The judge sees only the tools of the guidelines in its request; above a number of tools guidelines are matched first, and only the tools of those that match are sent."),
    R("GC-09", "guided", "A candidate is one tool with every guideline that asked for it and the reason; a tool that two guidelines want is judged once."),
    R("GC-10", "guided", "A `ToolCall` can carry the ids of the guidelines that led to it."),
    R("GC-11", "guided", "The same conversation and the same verdicts give the same calls."),
    # inference
    R("GC-12", "guided", "NEEDS_TO_RUN: what the tool gives is needed and absent, and its arguments can be inferred; it becomes a call."),
    R("GC-13", "guided", "The arguments of a call are inferred from the conversation and the context."),
    R("GC-14", "guided", "DATA_ALREADY_IN_CONTEXT: what the tool would give is known from an earlier call or from the conversation; it is not called."),
    R("GC-15", "guided", "CANNOT_RUN: a required argument cannot be determined; the tool is not called."),
    R("GC-16", "guided", "Every CANNOT_RUN gives an insight, and a plan has the calls and the insights together."),
    R("GC-17", "guided", "A matched guideline with a tool that is not needed calls nothing and still guides the reply."),
    # execution
    R("GC-18", "guided", "A Python function is a tool: it is called with the arguments under their names and types."),
    R("GC-19", "guided", "An operation of an OpenAPI document is a tool: calling it makes the HTTP request."),
    R("GC-20", "guided", "A tool of an MCP server is a tool: calling it speaks MCP."),
    R("GC-21", "guided", "Wherever a tool lives, its call passes the same executor, policy and events."),
    R("GC-22", "guided", "Every call is told when it starts."),
    R("GC-23", "guided", "Every call is told when it ends, with its result."),
    R("GC-24", "guided", "Independent calls of one iteration run together, as their declared safety allows."),
    R("GC-25", "guided", "All results of a turn are in its record, in order."),
    # context and results
    R("GC-26", "guided", "`ToolContext` has `agent_id`, `session_id`, `customer_id` and `plugin_data`, and a handler that asks for the context gets it."),
    R("GC-27", "guided", "`ToolResult` has `output`, `metadata` and `control`."),
    R("GC-28", "guided", "`metadata` is for people and screens; no rendering for a model holds it."),
    R("GC-29", "guided", "`Control` has `mode` (auto, manual, or None, the default) and `lifespan` (response, or session, the default)."),
    R("GC-30", "guided", "A result with `control.mode` manual hands the session to a person: the next customer message gets no reply."),
    R("GC-31", "guided", "A result with `control.lifespan` response is used for this reply and is not in the session's history afterwards; session keeps it."),
    # insights
    R("GC-32", "guided", "The insights of a turn have the evaluation of every candidate: tool and verdict."),
    R("GC-33", "guided", "The insights of a turn have the missing values, by tool and parameter."),
    R("GC-34", "guided", "The insights of a turn have the invalid values, by tool and parameter, with what would be valid."),
    R("GC-35", "guided", "The reply gets the insights and asks for what is missing: a transfer without a recipient is answered with the question who it is for."),
    R("GC-36", "guided", "The reply is written from the results of the turn's calls."),
    # consequential tools
    R("GC-37", "guided", "A tool is marked when it is made, by `read_only`; `tool.consequential` is the opposite of it."),
    R("GC-38", "guided", "`create_tool(consequential=True)` and `consequential=False` mark a tool the same way."),
    R("GC-39", "guided", "A read-only tool runs without confirmation unless policy says otherwise."),
    R("GC-40", "guided", "Whether a consequential tool needs a confirmation, and whose, is set by policy; the default asks the customer."),
    R("GC-41", "guided", "A consequential tool is validated more strictly: duplicate keys and non-finite numbers in its arguments are refused, where for a read-only tool the last one wins."),
    R("GC-42", "guided", "Types, enums, patterns and ranges are checked before a handler runs, whichever way its tool was written, and the answer names the place."),
    R("GC-43", "guided", "The text \"False\" for a boolean argument is not true, and an argument that is left out has the default of the Python function."),
    R("GC-44", "guided", "With a consequential tool in the turn the reply is checked more strictly before it is sent."),
    # iterations
    R("GC-45", "guided", "A turn goes round: match, infer, run, and match again with the results, until nothing new is to run; then the reply."),
    R("GC-46", "guided", "A guideline that matches only because of a result brings its own tools into the same turn, in the next iteration."),
    R("GC-47", "guided", "The number of iterations of a turn has a limit, and reaching it still gives a reply."),
    R("GC-48", "guided", "A call that equals one already made in this turn is not made again."),
    # accountability
    R("GC-49", "guided", "The record of a turn leads from iteration to guideline, candidate, verdict with reason, call, decision and result."),
    R("GC-50", "guided", "The number of model calls of a turn is counted and told (`TurnPlanned`)."),
    R("GC-51", "guided", "A person can follow a tool's run or failure from the conversation: which guideline, which verdict, which error."),
)

GUIDED_DEFECTS = (
    R("GC-D1", "defect", "Results flow back into matching with no configuration: a high balance leads to the investment options in the same turn."),
    R("GC-D2", "defect", "Several candidate tools are evaluated in one model call."),
    R("GC-D3", "defect", "Every tool has a start and an end event, and every call and event names the guidelines that led to it."),
    R("GC-D4", "defect", "An insight names the tool, the reason, and the missing or invalid values."),
    R("GC-D5", "defect", "Confirmation before a consequential tool is configurable, and code enforces it."),
    R("GC-D6", "defect", "Calls run in the order of the criticality of their guidelines."),
    R("GC-D7", "defect", "Invalid means invalid, by type, enum, pattern and range, on every path into a tool, before anything runs."),
    R("GC-D8", "defect", "DATA_ALREADY_IN_CONTEXT and NOT_APPLICABLE are different verdicts."),
    R("GC-D9", "defect", "A consequential tool whose required argument is absent from the judge's answer never runs."),
    R("GC-D10", "defect", "A message that arrives while a consequential tool runs never makes it run twice."),
    R("GC-D11", "defect", "In a guided turn too \"False\" is false and Python's defaults are kept; identical calls in one answer run once."),
    R("GC-D12", "defect", "A missing-value insight is gone once a later iteration supplies the value."),
    R("GC-D13", "defect", "Manual mode is not undone by a later tool of the same turn, and the agent stops talking."),
    R("GC-D14", "defect", "The judge and the reply read why a tool failed, in a sentence made for them."),
    R("GC-D15", "defect", "A tool that says nothing of itself is consequential, whichever way it was written."),
    R("GC-D16", "defect", "A reply that claims an effect without a committed result is written again, and replaced by a plain text if it still claims too much."),
)

TOOLCALL = (
    # the two modules
    R("TC-01", "toolcall", "`handrail.openai.core` is the sync API: handlers are plain methods, and running a call returns its result."),
    R("TC-02", "toolcall", "`handrail.openai.aio` is the async API: handlers are coroutines, and running a call is awaited."),
    R("TC-03", "toolcall", "Both modules export the same 13 names."),
    R("TC-04", "toolcall", "Neither module imports `openai` when it runs."),
    # the programs
    R("TC-05", "toolcall", "The grouped Chat Completions program runs, sync and async, changed only in the root of its import."),
    R("TC-06", "toolcall", "The grouped Responses program runs, sync and async, changed only in the root of its import."),
    R("TC-07", "toolcall", "The standalone Chat Completions program runs, sync and async, changed only in the root of its import."),
    R("TC-08", "toolcall", "The standalone Responses program runs, sync and async, changed only in the root of its import."),
    R("TC-09", "toolcall", "All eight programs pass the type checker."),
    R("TC-10", "toolcall", "`run_until_done` answers parallel and repeated calls of one turn, until the model answers in text."),
    # LLMFunctionTool: what it is
    R("TC-11", "toolcall", "An `LLMFunctionTool` is a Pydantic model, and its fields are the arguments."),
    R("TC-12", "toolcall", "It is written bare, `LLMFunctionTool`, or with its contexts, `LLMFunctionTool[ContextIn, ContextOut]`."),
    R("TC-13", "toolcall", "`as_tool()` takes the class: `ContextIn` is `context.deps`, and `ContextOut` is `ToolResult.context`."),
    R("TC-14", "toolcall", "As in toolcall, a number for a text argument is taken as its text, and a field with an alias is filled by either name."),
    # name, description, schema
    R("TC-15", "toolcall", "`model_tool_name()` is the class name by default."),
    R("TC-16", "toolcall", "`model_tool_name_generator` makes the name from the class name."),
    R("TC-17", "toolcall", "`model_tool_custom_name` is the name, before the generator and the class name."),
    R("TC-18", "toolcall", "The class docstring, without its indentation, is the description by default; with no docstring there is none."),
    R("TC-19", "toolcall", "`model_tool_custom_description` is used in place of the docstring."),
    R("TC-20", "toolcall", "A docstring under a field is the description of that argument."),
    R("TC-21", "toolcall", "Pydantic makes the schema by default: types, titles, required fields, a `Literal` as an enum."),
    R("TC-22", "toolcall", "`model_tool_custom_json_schema` is sent in place of the generated schema; the fields still validate."),
    R("TC-23", "toolcall", "`model_tool_generate_json_schema()` can be overridden, and is asked when there is no custom schema."),
    R("TC-24", "toolcall", "`model_tool_json_schema()` gives the schema in use, and a generated one is generated once per class."),
    R("TC-25", "toolcall", "A tool with name, description and schema written out behaves like the one that takes them from the class."),
    # definitions
    R("TC-26", "toolcall", "`model_tool_definition(api=\"chat.completions\")` is `type: function` around `name`, `description` and `parameters`, with `strict` only when it is on."),
    R("TC-27", "toolcall", "`model_tool_definition(api=\"responses\")` is flat: `type`, `name`, `description`, `parameters` and `strict`."),
    R("TC-28", "toolcall", "`parameters` has the arguments without the title and description of the class, and keeps `$defs` and `additionalProperties`."),
    R("TC-29", "toolcall", "The type of a definition follows from `api`: `ChatCompletionToolParam` or `FunctionToolParam`."),
    R("TC-30", "toolcall", "`model_tool_strict` is False by default; True gives a definition that OpenAI's strict mode accepts, and its arguments come back as the fields want them."),
    R("TC-31", "toolcall", "`model_tool_pretty_definition(api)` is the whole definition as text for people."),
    R("TC-32", "toolcall", "`tool_def_for_chat_completions_api` and `tool_def_for_responses_api` make the same definitions from name, description, strict and schema."),
    # running a call
    R("TC-33", "toolcall", "`model_tool_run_tool_call(call, context)` validates, runs the handler and wraps what it gives, for a call of either API, a `StandardToolCall` or a plain dict."),
    R("TC-34", "toolcall", "`standardize_tool_call` gives `id`, `name` and `arguments`, where the id of a Responses call is its `call_id`; anything else is a `TypeError`."),
    R("TC-35", "toolcall", "`model_tool_handler` gets the validated arguments as `self` and the caller's context, the very object."),
    R("TC-36", "toolcall", "A handler may return a tuple of text and context."),
    R("TC-37", "toolcall", "A handler may return a `ToolHandlerResult(result_content, context)`."),
    R("TC-38", "toolcall", "A handler that returns anything else is a `TypeError` that names the class."),
    R("TC-39", "toolcall", "A class without a handler can be defined and sent; running it is a `NotImplementedError` that names it."),
    R("TC-40", "toolcall", "`model_tool_validate_tool_call(name, arguments)` makes the instance, and can be overridden."),
    R("TC-41", "toolcall", "Arguments that do not validate fail with `invalid_arguments`, and the handler does not run."),
    R("TC-42", "toolcall", "The model reads `str(ValidationError)` for bad arguments, or what an override of `model_tool_format_invalid_arguments_error` makes of it."),
    R("TC-43", "toolcall", "`ToolErrorMessageForLLMToSee`, raised anywhere under the handler, fails with `explicit_handler_error`."),
    R("TC-44", "toolcall", "The model reads the text of that error, or what an override of `model_tool_format_explicit_error` makes of it."),
    # results
    R("TC-45", "toolcall", "A `ToolCallSuccess` has `call_id`, `result_content`, the handler's `context`, and `fail_reason` None."),
    R("TC-46", "toolcall", "A `ToolCallFailure` has `call_id`, `result_content`, its `fail_reason`, and `context` None."),
    R("TC-47", "toolcall", "`fail_reason` is None, `invalid_name`, `invalid_arguments` or `explicit_handler_error`, and nothing else."),
    R("TC-48", "toolcall", "For a type checker `fail_reason is None` narrows `context` to `ContextOut`."),
    R("TC-49", "toolcall", "`tool_message` is the Chat Completions message: `role: tool`, `tool_call_id`, `content`."),
    R("TC-50", "toolcall", "`output_item` is the Responses item: `type: function_call_output`, `call_id`, `output`."),
    R("TC-51", "toolcall", "The context that a handler gives back reaches the caller and is in nothing that a model reads."),
    # the group
    R("TC-52", "toolcall", "`LLMFunctionToolGroup[ContextIn, ContextOut]` is a dict from tool name to tool class."),
    R("TC-53", "toolcall", "`@group.add_tool` adds the class under its tool name and gives the class back."),
    R("TC-54", "toolcall", "For a type checker a tool whose contexts do not fit its group is an error."),
    R("TC-55", "toolcall", "`from_list` makes a group of tool classes."),
    R("TC-56", "toolcall", "`tool_definitions(api=…)` has the definition of every tool, in the order they were added, typed by `api`."),
    R("TC-57", "toolcall", "`run_tool_call(call, context)` runs the tool that the call names."),
    R("TC-58", "toolcall", "An unknown name answers ``Function `X` not found.`` with `invalid_name`."),
    R("TC-59", "toolcall", "`run_tool_calls(calls, context)` answers every call under its id, in the order of the calls; the sync group runs them one after the other."),
    R("TC-60", "toolcall", "The async group runs the calls together and answers in the order of the calls."),
    R("TC-61", "toolcall", "When one call of an async group raises, its siblings are not left running behind the caller's back."),
    R("TC-62", "toolcall", "As in toolcall, a group has `tool_names`, `tool_classes`, `pretty_definition(api)`, and `in` takes a name or a class."),
)

TOOLCALL_DEFECTS = (
    R("TC-D1", "defect", "Every exception but the handler's explicit error and a validation error reaches the caller of the facade as it was raised."),
    R("TC-D2", "defect", "A call to an unknown tool, arguments that are no JSON (empty text too) and JSON that is no object each get a clear failure under the call's id."),
    R("TC-D3", "defect", "The transcripts of the programs are the printed ones with the system message, the line of a standalone tool that raised, and the last blank line."),
    R("TC-D4", "defect", "`model_tool_pretty_definition` prints `get_weather({…})`."),
    R("TC-D5", "defect", "The group is `LLMFunctionToolGroup`; there is no `LLMToolGroup`."),
    R("TC-D6", "defect", "A `model_tool_*` setting with an annotation is refused when the class is defined, with the reason."),
)

GATEWAY = (
    R("GW-01", "gateway", "A gateway serves the tools of several sources as one MCP server; a source that is down appears when it is back."),
    R("GW-02", "gateway", "Only a key of a caller can call, as its holder and for its tenant, whatever the client says; a revoked key cannot."),
    R("GW-03", "gateway", "A call that an operator has to approve waits for it, for 55 seconds at most, and gets its result in the same request if it is approved in time."),
    R("GW-04", "gateway", "A call whose approval came too late for its request runs when it is sent again, once."),
    R("GW-05", "gateway", "A client that lost the response and sends the call again gets the recorded result; equal calls at once are one question and one effect."),
    R("GW-06", "gateway", "A gateway that is killed at any point loses no call and repeats no effect."),
    R("GW-07", "gateway", "What the policy denies is not listed, and a call of it is an ordinary failed result."),
    R("GW-08", "gateway", "A yes given at the client is the customer's, and never an operator's."),
    R("GW-09", "gateway", "A tool whose definition has changed is held until somebody agrees to it, and the pages show what changed."),
    R("GW-10", "gateway", "A policy file that is changed counts from the next call on; a broken one changes nothing."),
    R("GW-11", "gateway", "With a policy file, an operator is asked where no rule applies."),
    R("GW-12", "gateway", "An error in the gateway's file names the line and the field; a secret in it is refused and not repeated."),
    R("GW-13", "gateway", "The console shows nothing without a key, and then only what belongs to the key's tenant; a viewer changes nothing."),
    R("GW-14", "gateway", "Who decides in the console is the key's holder; the second of two is told who was faster, and nothing is decided twice."),
    R("GW-15", "gateway", "A form of another page, site or session changes nothing, and a hostile text is text on every page."),
    R("GW-16", "gateway", "A question and a doubt are sent to whoever is configured, without their arguments unless that is wanted; a receiver that hangs delays no call."),
    R("GW-17", "gateway", "`handrail why` says of a call which rule, person or entry decided it, and tells nothing about another tenant's."),
)

SERVICE = (
    R("SV-01", "service", "A tenant never sees another tenant's row, id or count, and changes nothing of it: on no route, with no role, over HTTP, over MCP or in conversations."),
    R("SV-02", "service", "No input is answered with 500, and every answer has a status, a type and a form that the OpenAPI document names."),
    R("SV-03", "service", "Each route takes the roles that are documented and no other; an admin decides nothing, and a caller decides for its customer only."),
    R("SV-04", "service", "Replicas share approvals, ledger, audit, tenants and keys: what one asked another decides, and it runs once."),
    R("SV-05", "service", "A replica that is killed at any point loses no call and repeats no effect."),
    R("SV-06", "service", "A body that is too long, never ends or is no JSON is refused, each key has a rate of its own, and a request that takes too long is answered while its call goes on."),
    R("SV-07", "service", "No secret is in any answer or log, and no answer lets another site read it."),
    R("SV-08", "service", "The `X-Request-ID` of a request is in its answer, and in the audit of what it began or changed."),
    R("SV-09", "service", "The tools and rules of a tenant apply to its calls over HTTP, MCP and in conversations, its rules also to its stored calls when they run; a revision that cannot be built leaves the one before, or nothing; a tenant that is turned off or removed calls nothing."),
    R("SV-10", "service", "An old revision of a tenant is put in force again, and the history says who did what."),
    R("SV-11", "service", "What a tenant does not keep is deleted, and what is another's stays; a customer is erased over HTTP."),
    R("SV-12", "service", "A service that is stopped takes nothing more, lets calls finish for a while, settles those that do not, and writes the audit."),
    R("SV-13", "service", "A turn of a conversation is streamed or answered whole, waits for approvals, and is resumed at any replica."),
    R("SV-14", "service", "One turn of a conversation runs at a time in all replicas, and any of them interrupts it."),
    R("SV-15", "service", "A client that leaves, or never reads its stream, does not end the turn, and costs little memory."),
    R("SV-16", "service", "An operator tries the agent on a page, where the customer's yes is never an operator's."),
)

DURABLE = (
    R("DU-01", "durable", "A stored call whose worker is killed or frozen gets an answer from another one, and the answer is true."),
    R("DU-02", "durable", "However often workers are killed and frozen, no call takes effect twice; an idempotency key counts once."),
    R("DU-03", "durable", "Of two owners of a stored call one has it: the other one changes nothing, whatever it does and in whatever order."),
    R("DU-04", "durable", "One id that is delivered a hundred times runs once, and one without a row is dropped."),
    R("DU-05", "durable", "A stored call that was changed by hand is refused."),
    R("DU-06", "durable", "A call that somebody has to agree to holds no worker; their answer queues it or ends it."),
    R("DU-07", "durable", "A worker checks denials again and asks nobody again."),
    R("DU-08", "durable", "Tenants take turns, however many calls one of them has queued."),
    R("DU-09", "durable", "A call whose tool no worker has stays stored, is reported as such, and runs once one has it."),
    R("DU-10", "durable", "A `Doubt` names the worker that had the call; the audit and `handrail why` name each takeover with both owners, and how often it was taken."),
    R("DU-11", "durable", "`handrail worker module:executor --store URL` works for a function of the store, and for an executor that was built with a URL or in memory; another store of its own is a clear error."),
    R("DU-12", "durable", "Progress and events of a durable call reach the listeners of the process that submitted it, where the store can notify; at most once, redacted, and counted by nobody twice."),
    R("DU-13", "durable", "A worker that was frozen between any two steps of a call (taken, claimed, before its handler, after it, before its outcome is written) does nothing twice when it is thawed."),
    R("DU-14", "durable", "A database that is away at the start, in the middle for longer than a lease, or at a commit, a clock that jumps back, and a sync handler that outlives timeout and lease lose nothing and repeat nothing."),
)

# fmt: on

REQUIREMENTS: tuple[Requirement, ...] = (
    *HARNESS,
    *HARNESS_DEFECTS,
    *PHONE,
    *PHONE_DEFECTS,
    *GUIDED,
    *GUIDED_DEFECTS,
    *TOOLCALL,
    *TOOLCALL_DEFECTS,
    *GATEWAY,
    *DURABLE,
    *SERVICE,
)
