"""Decides who may run what: policy, conditions, approvals."""

from typing import TYPE_CHECKING

from handrail.core.lazy_loading import build_getattr

if TYPE_CHECKING:
    from handrail.authorize.approvals import Approvals, MemoryApprovals
    from handrail.authorize.hooks import Hook, blocking
    from handrail.authorize.policy import Policy, PolicyProblem, Rule
    from handrail.authorize.policy_file import load_policy, parse_policy

__all__ = [
    "Approvals",
    "Hook",
    "MemoryApprovals",
    "Policy",
    "PolicyProblem",
    "Rule",
    "blocking",
    "load_policy",
    "parse_policy",
]

# Loaded on first use, so that importing one module of this package does not import the others.
_ON_FIRST_USE = {
    "Approvals": "handrail.authorize.approvals",
    "Hook": "handrail.authorize.hooks",
    "MemoryApprovals": "handrail.authorize.approvals",
    "Policy": "handrail.authorize.policy",
    "PolicyProblem": "handrail.authorize.policy",
    "Rule": "handrail.authorize.policy",
    "blocking": "handrail.authorize.hooks",
    "load_policy": "handrail.authorize.policy_file",
    "parse_policy": "handrail.authorize.policy_file",
}

__getattr__ = build_getattr(__name__, _ON_FIRST_USE)
