"""Everything that the README and the docs import is public: in the `__all__` of the module that they import it from."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.public_names import PAGES, ROOT, find_documented_names, find_public_names
from tests.docs.test_snippets import find_snippets

PUBLIC = find_public_names()
STILL_OPEN = set(
    re.findall(
        r"\w+",
        """
    ANTHROPIC ApprovalDecided ApprovalError ApprovalRequested Approvals ApprovalUsed AssistantMessage
    CallAccepted CallCancelled CallControl CallMachine CallPausedError CallSession Cancellation Cancelling
    CandidateTool ChatEvent ClaimChecker Sideband ConnectionLost ControlResponse Conversation Decision
    DecisionMade Destination BuildDiagnostic Diagnostic Dialect Digits DoubtResolved DuplicateToolError EmbeddedJudge
    EmbeddingPrefilter TimelineEntry ScriptedRequest ProtocolRule
    ExpectationResult CallReport Report TenantLimits Error ErrorRecord evaluate evaluate_guided
    Event Features FinishReason Frame
    FunctionCall GuidedCase GuidedReport GuidedScore GuidedSession GuidedStrategy GuidedTurnResult Guideline
    HandrailError HttpRecord InvalidArgumentsError InvalidData Journey Judge Ledger LexicalPrefilter Limits
    LiveCall load_guided_cases load_policy load_prompts LogEvent LoopResult lower Lowered make_judge
    MemoryApprovals MissingData MissingExtraError Native NotRepresentable OPENAI OpenSource Outcome PendingCall
    Percentiles PermissionDeniedError PhoneCallEnded PhoneStore PinDifference PlanRequest Plugins PolicyProblem
    Prefilter Prompt Provider ProviderJudge raw Raw RealtimeTransport RecordedCall CallRecorder TransferFeature Refused
    Replay Reply ReplyRequest ResultSpoken RetryPolicy Score Script SearchResult SessionStore sign_webhook
    SkippedTool Source SourceError Sources SourceStatus standardize_tool_call StandardToolCall StopReason
    StreamEvent summarise Summary Tenants text_and_calls Texts to_history_result
    tool_def_for_chat_completions_api tool_def_for_responses_api ToolArgsParseError ToolBuildError
    ToolBuildResult ToolCallFailReason ToolCallFailure ToolCallRecord ToolCallResult ToolCallSuccess
    ToolDefinitionError ToolEvaluation ToolExecutionError ToolHandlerResult ToolInsights ToolMessageContent
    ToolNotFoundError ToolsBuilt Totals TranscriptLine Transport truncated TurnFinished TurnStarted TurnTrace
    WarpedLoop WebhookClaims WebhookRecord WebhookResponse
    """,
    )
)
"""Names that no page has yet: to be documented, private or gone. This list only shrinks."""


def find_private_names(page: Path) -> list[str]:
    """The names that a page imports from Handrail and that no `__all__` lists."""
    private: list[str] = []
    for snippet in find_snippets(page):
        for node in ast.walk(ast.parse(snippet.source)):
            if isinstance(node, ast.Import):
                private += [alias.name for alias in node.names if alias.name.partition(".")[0] == "handrail"]
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "handrail":
                public = getattr(import_module(node.module or ""), "__all__", ())
                private += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in public]
    return private


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_imports_only_public_names(page: Path) -> None:
    assert find_private_names(page) == []


@pytest.mark.parametrize(
    ("source", "private"),
    [
        ("from handrail import Executor, tool", []),
        ("from handrail.core.redact import Redactor", ["handrail.core.redact.Redactor"]),
        ("from handrail.chat.turn import TurnState", ["handrail.chat.turn.TurnState"]),
        ("import handrail.core.redact", ["handrail.core.redact"]),
    ],
)
def test_a_private_name_is_noticed(source: str, private: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```python\n{source}\n```\n")
    assert find_private_names(page) == private


@pytest.mark.parametrize("module", [one for one in PUBLIC if not one.startswith("handrail.adapters.")])
def test_every_public_name_exists_and_has_a_docstring(module: str) -> None:
    loaded = import_module(module)
    for name in PUBLIC[module]:
        value = getattr(loaded, name)
        assert value is not None
        if inspect.isclass(value) or inspect.isroutine(value):
            assert inspect.getdoc(value), f"{module}.{name} has no docstring"


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_a_page(module: str) -> None:
    missing = set(PUBLIC[module]) - find_documented_names()

    assert sorted(missing - STILL_OPEN) == []


def test_every_package_lists_its_public_names() -> None:
    folders = [path for path in sorted((ROOT / "src/handrail").iterdir()) if path.is_dir() and path.name[0] != "_"]

    assert [
        path.name for path in folders if not any(module.startswith(f"handrail.{path.name}") for module in PUBLIC)
    ] == []
