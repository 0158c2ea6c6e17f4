"""Judgement of calls."""

from __future__ import annotations

import pytest

from rambarde.policy.decide import decide
from rambarde.policy.model import Decision
from support.policies import SHIPPED, WORKSPACE_WRITE, policy, rule

READ_ONLY = SHIPPED.base("read-only")


def code(chosen, tool, **arguments):
    return decide(chosen, tool, arguments).code


@pytest.mark.parametrize("tool", ["Bash", "shell", "bash ", "mcp__x__bash", "write_file", ""])
def test_tool_by_another_name_is_absent(tool):
    """A tool is known by its exact name; every other spelling is refused."""
    verdict = decide(WORKSPACE_WRITE, tool, {"command": "ls"})
    assert verdict.decision is Decision.DENY
    assert verdict.code in ("tool_absent", "server_absent")


def test_declared_server_only_is_granted():
    """An MCP tool is granted when its server is declared, and absent otherwise."""
    assert code(WORKSPACE_WRITE, "mcp__docs__find") == "granted"
    assert code(WORKSPACE_WRITE, "mcp__db__query") == "server_absent"


def test_read_only_refuses_file_tools_by_their_own_code():
    """Under a policy with the tool and without write, the code says why."""
    plan = policy(writable=False)
    assert code(plan, "write", path="a", content="") == "read_only"
    assert code(plan, "edit", path="a") == "read_only"
    assert code(plan, "read", path="a") == "granted"
    assert code(READ_ONLY, "write", path="a") == "tool_absent"


@pytest.mark.parametrize(
    "path", [".git/hooks/pre-commit", "./.git/config", "sub/.git/hooks", "x/../.mcp.json",
             "/any/where/.git/hooks/x", "$'.git/hooks/\\x61'", "a/.claude/settings.json"],
)  # fmt: skip
def test_protected_path_is_read_and_not_written(path):
    """A protected path is refused to write tools however it is spelled, and may be read."""
    assert code(WORKSPACE_WRITE, "write", path=path, content="") == "protected_path"
    assert code(WORKSPACE_WRITE, "read", path=path) == "granted"


@pytest.mark.parametrize("path", [".env", "a/.env", ".env.production", "k/id_rsa", "$'\\x2eenv'"])
def test_masked_path_is_refused_to_every_path_tool(path):
    """A hidden path is neither read nor written."""
    assert code(WORKSPACE_WRITE, "read", path=path) == "masked_path"
    assert code(WORKSPACE_WRITE, "edit", path=path) == "masked_path"


@pytest.mark.parametrize(
    "path", [".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults", "env"]
)
def test_example_environment_file_is_not_masked(path):
    """Files that hold no secret by convention can be read."""
    assert code(WORKSPACE_WRITE, "read", path=path) == "granted"


@pytest.mark.parametrize("path", ["..", "../x", "a/../../b", "./../x"])
def test_path_that_leads_out_by_its_words_is_refused(path):
    """A relative path above the workspace is refused before anything opens it."""
    assert code(WORKSPACE_WRITE, "read", path=path) == "outside_workspace"


@pytest.mark.parametrize("command", ["grep halt src", "echo 'rm -rf /'", "git commit -m 'reboot'"])
def test_words_that_only_name_a_catastrophe_pass(command):
    """What is an argument or quoted is no command."""
    assert code(WORKSPACE_WRITE, "bash", command=command) == "granted"


@pytest.mark.parametrize(
    "command", ["rm -rf /", "true && sudo halt", "bash -c 'rm -rf ~'", "x=$(shutdown now)",
                "if true; then reboot; fi", "find / -exec mkfs.ext4 {} \\;", "rm -rf \"/\"",
                "env -S 'rm -rf /'", "timeout 5 rm -rf /", "eval 'rm -rf /'", "(:(){ :|:& };:)"],
)  # fmt: skip
def test_catastrophe_is_refused_to_the_widest_policy(command):
    """No policy grants a catastrophic command, plain or wrapped."""
    verdict = decide(WORKSPACE_WRITE, "bash", {"command": command})
    assert (verdict.decision, verdict.code) == (Decision.DENY, "catastrophic")
    assert verdict.rule.startswith("catastrophic.toml:")


def test_allow_rule_wants_every_command_of_a_compound():
    """One command out of scope refuses the call; so do variables, redirections and doubt."""
    only_git = policy(rules=(rule("bash", "git diff *", decision=Decision.ALLOW),))
    for admitted in ("git diff", "git diff HEAD~1 && git diff", "git diff | git diff 2>/dev/null"):
        assert code(only_git, "bash", command=admitted) == "granted"
    for refused in (
        "git diff; rm a",
        "git diff > a",
        "X=1 git diff",
        "git diff $(rm a)",
        "git",
        "./git diff",
        "git diff 'unended",
        "",
        "# git diff",
        "git diff `x`",
    ):
        assert code(only_git, "bash", command=refused) == "denied_rule"


def test_deny_rule_wants_one_command_of_a_compound():
    """A refused command is found behind wrappers and in substitutions."""
    no_push = policy(rules=(rule("bash", "git push *"),))
    for refused in ("git push", "ls; git push -f", "sudo git push", "echo $(git push)",
                    "/usr/bin/git push", "xargs git push", "sh -c 'git push'"):  # fmt: skip
        assert code(no_push, "bash", command=refused) == "denied_rule"
    assert code(no_push, "bash", command="git pushd; echo git push") == "granted"


def test_strictest_rule_wins():
    """deny beats ask, ask beats nothing, whatever the order."""
    asks = rule("bash", "*", decision=Decision.ASK, origin="a:1")
    denies = rule("bash", "make *", origin="b:1")
    for rules in ((asks, denies), (denies, asks)):
        both = policy(rules=rules)
        assert decide(both, "bash", {"command": "make"}).decision is Decision.DENY
        assert decide(both, "bash", {"command": "ls"}).decision is Decision.ASK


def test_path_rule_of_unknown_place_is_read_strictly():
    """An absolute path is refused if any reading is refused, admitted if all are admitted."""
    no_docs = policy(rules=(rule("write", "/docs/"),))
    assert code(no_docs, "write", path="/home/me/w/docs/a") == "denied_rule"
    only_docs = policy(rules=(rule("write", "/docs/", decision=Decision.ALLOW),))
    assert code(only_docs, "write", path="docs/a") == "granted"
    assert code(only_docs, "write", path="/home/me/w/docs/a") == "denied_rule"


def test_task_wants_a_delegable_agent():
    """Work is given to known agents, by exact name, and rules can refuse some."""
    assert code(WORKSPACE_WRITE, "Task", agent="explore", prompt="x") == "granted"
    assert code(WORKSPACE_WRITE, "Task", agent="Explore", prompt="x") == "unknown_agent"
    no_explore = policy(rules=(rule("Task", "explore"),))
    assert code(no_explore, "Task", agent="explore") == "denied_rule"
    assert code(no_explore, "Task", agent="general") == "granted"


def test_ask_policy_asks_for_what_is_not_known_to_look_only():
    """workspace-ask lets looking pass and asks for writes and other commands."""
    ask = SHIPPED.base("workspace-ask")
    assert decide(ask, "bash", {"command": "ls -l | wc -l"}).decision is Decision.ALLOW
    assert decide(ask, "bash", {"command": "make"}).code == "asked"
    assert decide(ask, "write", {"path": "a", "content": ""}).decision is Decision.ASK
    assert decide(ask, "read", {"path": "a"}).decision is Decision.ALLOW


def test_command_with_more_than_can_be_judged_is_refused():
    """Padding does not carry a command past the judgement."""
    assert code(WORKSPACE_WRITE, "bash", command="a;" * 5000 + "rm -rf /") == "denied_rule"
    assert code(WORKSPACE_WRITE, "bash", command="sudo " * 20 + "rm -rf /") == "denied_rule"
