"""Judge one call by a policy. Trusted side. Pure, save for one read of the catastrophic forms.

Every axis that has something to say is asked, and the strictest answer wins; among equals the
first in the order below. Each axis can only add a refusal when a policy is narrowed, so whatever
is refused to an agent is refused to all it delegates to. The order keeps codes stable: what
narrowing cannot change (catastrophic forms, the path's own words) is asked before what it can.

What is judged here is the words of a call. A path's links are judged by the kernel, at the mounts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rambarde.policy.catastrophic import find_form, shipped_forms
from rambarde.policy.model import Decision, Policy, Rule, Verdict
from rambarde.policy.shellwords import MAX_COMMANDS
from rambarde.policy.subject import (
    PATH_TOOLS,
    WRITE_TOOLS,
    Subject,
    any_path_hit,
    lies_in,
    subject_of,
    touches,
)

GRANTED = Verdict(Decision.ALLOW, "granted", "the policy grants this tool", "tools", "")
MCP_PREFIX = "mcp__"


def decide(policy: Policy, tool: str, arguments: Mapping[str, object]) -> Verdict:
    """Return the verdict on a call.

    Args:
        policy: the effective policy of the agent that calls.
        tool: the tool's name as the model wrote it; compared exactly.
        arguments: the call's arguments, aliases folded, checked against the tool's schema.

    Returns:
        The strictest of verdicts(); GRANTED when there is none.

    Raises:
        PolicyError: the installation's catastrophic forms do not load; nothing is granted then.
    """
    strictest = GRANTED
    for verdict in verdicts(policy, tool, arguments):
        if verdict.decision > strictest.decision:
            strictest = verdict
    return strictest


def verdicts(policy: Policy, tool: str, arguments: Mapping[str, object]) -> Iterator[Verdict]:
    """Yield every refusal and question a policy has for a call, in the order of precedence."""
    absent = _absent(policy, tool)
    if absent is not None:
        yield absent
        return
    subject = subject_of(tool, arguments)
    yield from _catastrophic(subject)
    if subject.escapes:
        yield _deny("outside_workspace", f"{subject.text} leads outside the workspace", "paths", "")
    yield from (v for rule in policy.rules if (v := _by_rule(rule, subject)) is not None)
    if tool in WRITE_TOOLS and not policy.writable:
        yield _deny("read_only", "this agent may not change files", "writable", "")
    if tool in PATH_TOOLS and any_path_hit(policy.masks, subject.paths):
        yield _deny("masked_path", f"{subject.text} is hidden from agents", "masks", "")
    if tool in WRITE_TOOLS and any_path_hit(policy.protected, subject.paths):
        yield _deny("protected_path", f"{subject.text} is protected from writing", "protected", "")
    if tool == "Task" and subject.text not in policy.delegates:
        yield _deny(
            "unknown_agent",
            f"{subject.text} is no agent that work may be given to",
            "delegates",
            "",
        )


def usable_tools(policy: Policy) -> frozenset[str]:
    """Return the tools that are worth a description: one that every call is refused is not."""
    return policy.tools if policy.writable else policy.tools - WRITE_TOOLS


def mcp_server_of(tool: str) -> str:
    """Return the server's name in `mcp__server__tool`, empty for other tools."""
    if not tool.startswith(MCP_PREFIX):
        return ""
    return tool.removeprefix(MCP_PREFIX).partition("__")[0]


def _absent(policy: Policy, tool: str) -> Verdict | None:
    if server := mcp_server_of(tool):
        if server in policy.mcp_servers:
            return None
        return _deny("server_absent", f"the MCP server {server} is not declared", "mcp_servers", "")
    if tool in policy.tools:
        return None
    return _deny("tool_absent", f"this agent has no tool named {tool}", "tools", "")


def _catastrophic(subject: Subject) -> Iterator[Verdict]:
    if subject.unwrapped is None:
        return
    if subject.unwrapped.excess:
        reason = (
            f"it nests too deep or holds more than {MAX_COMMANDS} commands, more than can be "
            "judged; write a script file and run that"
        )
        yield _deny("denied_rule", reason, "commands", "")
    form = find_form(shipped_forms(), subject.text, subject.unwrapped)
    if form is not None:
        yield _deny("catastrophic", form.reason, "catastrophic", form.origin)


def _by_rule(rule: Rule, subject: Subject) -> Verdict | None:
    if rule.right != subject.tool:
        return None
    if rule.decision is Decision.ALLOW:
        if lies_in(rule.scope, subject):
            return None
        reason = f"only {', '.join(rule.scope)} is granted: {rule.reason}"
        return _deny("denied_rule", reason, "rules", rule.origin)
    if not touches(rule.scope, subject):
        return None
    code = "denied_rule" if rule.decision is Decision.DENY else "asked"
    return Verdict(rule.decision, code, rule.reason, "rules", rule.origin)


def _deny(code: str, reason: str, layer: str, rule: str) -> Verdict:
    return Verdict(Decision.DENY, code, reason, layer, rule)
