"""What an agent is told before its brief: its persona, the machine, its bounds. Trusted side. Pure.

Nothing of a parent's conversation goes down; a subagent starts from this and its brief alone.
"""

from __future__ import annotations

from rambarde.personas import Persona
from rambarde.policy.model import Policy


def system_prompt(
    persona: Persona, policy: Policy, *, workspace: str, machine: str, is_subagent: bool
) -> str:
    """Return the system prompt.

    Args:
        persona: its prompt comes first.
        policy: rights in force after narrowing, said in words so that no call is wasted.
        workspace: path as the agent sees it.
        machine: operating system and architecture.
        is_subagent: then nobody can be asked, and the last text is the report.
    """
    lines = [
        persona.prompt.strip(),
        "",
        "# Machine",
        f"System: {machine}. Workspace: {workspace}; relative paths start there.",
        "You work in a sandbox: no network, no secrets, no system folders; only the workspace,"
        " /tmp and your home are writable."
        if policy.writable
        else "You work in a sandbox: no network, no secrets; the workspace is read-only, enforced"
        " by the kernel. Only /tmp and your home are writable.",
        "A refusal says why and what to do instead; saying the same in other words does not help.",
    ]
    if is_subagent:
        lines.append(
            "Nobody can answer questions: choose the most reasonable reading and say which."
            " Your last message, without a tool call, is your report."
        )
    return "\n".join(lines)
