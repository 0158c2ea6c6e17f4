"""Policy and facts to plans: the resolved data that the zygote and a child apply. Trusted side.

Nothing here judges and nothing here touches the kernel; what a plan says is what happens. The
policy was narrowed before; every right that is not in it is in no plan.

Source: ADR 0003; getrlimit(2); setpriority(2); proc_pid_oom_score_adj(5).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from functools import cache
from typing import Literal

from rambarde.host.around import all_but
from rambarde.host.facts import HostFacts
from rambarde.host.workspace import Workspace
from rambarde.policy.environment import child_environment
from rambarde.policy.landlock import ruleset
from rambarde.policy.model import Limits, Policy
from rambarde.policy.mounts import (
    HOME_INSIDE,
    HOSTNAME,
    PRIVATE,
    RG_INSIDE,
    interpreter_folders,
    private_links,
    template_entries,
)
from rambarde.policy.seccomp import assemble, load_table
from rambarde.policy.source import shipped_folder
from rambarde_wire.orders import (
    ORDERS_VERSION,
    CommandPlan,
    Landlock,
    Rlimit,
    SandboxPlan,
    Tier,
    Tmpfs,
    ZygoteSetup,
)

__all__ = ["HOME_INSIDE", "RG_INSIDE", "compile_agent", "compile_command", "compile_setup"]

INNER_UID = 1000
"""What a child of a supervisor that is uid 0 sees as its own uid and gid."""
AGENT_OOM_SCORE = 500
COMMAND_OOM_SCORE = 800
"""The kernel takes commands before agents, and agents before the supervisor."""
_AGENT_MEMORY_ROOM = 512 << 20
_SYSTEM = (
    b"/usr", b"/bin", b"/sbin", b"/lib", b"/lib32", b"/lib64", b"/libx32", b"/opt", b"/nix",
    b"/etc", b"/rambarde",
)  # fmt: skip


def compile_setup(
    space: Workspace, facts: HostFacts, *, supervisor_pid: int, tier: Tier, git_config: bytes
) -> ZygoteSetup:
    """Return the zygote's first order. `git_config`: identity for commits inside, nothing else."""
    inner_uid, inner_gid = (INNER_UID, INNER_UID) if facts.uid == 0 else (facts.uid, facts.gid)
    return ZygoteSetup(
        version=ORDERS_VERSION,
        supervisor_pid=supervisor_pid,
        tier=tier,
        started_by_root=facts.is_root,
        owner_uid=space.owner_uid,
        owner_gid=space.owner_gid,
        inner_uid=inner_uid,
        inner_gid=inner_gid,
        workspace=space.root,
        hostname=HOSTNAME,
        entries=template_entries(
            space, facts, inner_uid=inner_uid, inner_gid=inner_gid, git_config=git_config
        ),
        beside=list(space.beside),
    )


def compile_agent(
    policy: Policy,
    space: Workspace,
    facts: HostFacts,
    *,
    agent_id: str,
    title: str,
    tier: Tier,
    kuid: int,
    cgroup_procs: list[bytes],
    environment: Mapping[str, str],
) -> SandboxPlan:
    """Return the plan of one agent.

    Args:
        policy: the agent's effective rights.
        space: the workspace with its protected paths.
        facts: the host's.
        agent_id: joins later orders to this child.
        title: shown by ps.
        tier: chosen by the person.
        kuid: an unused uid of the host; used when started by root.
        cgroup_procs: of the agent's groups.
        environment: the supervisor's, of which listed names are passed on.
    """
    limits = policy.limits
    return SandboxPlan(
        agent_id=agent_id,
        title=title,
        tier=tier,
        workspace=space.root,
        workspace_writable=policy.writable and tier != "C",
        kuid=kuid if facts.is_root else 0,
        tmpfs=_tmpfs(limits) if tier != "C" else [],
        pins=list(space.pins),
        read_only=list(space.read_only),
        masks=list(space.masks),
        landlock=_landlock(policy, space, facts, tier, executes=False),
        seccomp=_filter(facts.machine, "agent", tier, debug=False),
        rlimits=_rlimits(limits, tier, data_bytes=_AGENT_MEMORY_ROOM),
        oom_score_adj=AGENT_OOM_SCORE,
        environment=child_environment(shipped_folder(), environment),
        cgroup_procs=cgroup_procs,
        links=private_links(space) if tier != "C" else [],
    )


def compile_command(
    policy: Policy,
    sandbox: SandboxPlan,
    space: Workspace,
    facts: HostFacts,
    *,
    command_id: str,
    argv: list[bytes],
    cwd: bytes,
) -> CommandPlan:
    """Return the plan of one command in the sandbox of an agent: never wider than its agent's.

    Its memory is bounded by the agent's group, or else by RLIMIT_DATA of each process; not so with
    the policy bit debug, for a sanitizer maps terabytes that it never touches: then the watch of
    resident memory is what bounds it.
    """
    grouped = _has_memory_group(facts, sandbox.cgroup_procs)
    return CommandPlan(
        command_id=command_id,
        agent_id=sandbox.agent_id,
        argv=argv,
        cwd=cwd,
        environment=_with_folder(sandbox.environment, cwd),
        landlock=_landlock(policy, space, facts, sandbox.tier, executes=True),
        seccomp=_filter(facts.machine, "command", sandbox.tier, debug=policy.debug),
        rlimits=_rlimits(
            policy.limits,
            sandbox.tier,
            data_bytes=None if policy.debug or grouped else policy.limits.memory_bytes,
        ),
        oom_score_adj=COMMAND_OOM_SCORE,
        nice=policy.limits.nice,
        cgroup_procs=sandbox.cgroup_procs,
    )


def _tmpfs(limits: Limits) -> list[Tmpfs]:
    inodes = limits.tmp_inodes
    return [
        Tmpfs(b"/tmp", limits.tmp_bytes, inodes, 0o1777),
        Tmpfs(b"/var/tmp", limits.tmp_bytes, inodes, 0o1777),
        Tmpfs(b"/dev/shm", limits.shm_bytes, inodes, 0o1777),
        Tmpfs(HOME_INSIDE, limits.home_bytes, inodes, 0o700),
    ]


def _landlock(
    policy: Policy, space: Workspace, facts: HostFacts, tier: Tier, *, executes: bool
) -> Landlock:
    around = all_but(space.root, space.masks if tier == "C" else ())
    return ruleset(
        facts.landlock_abi,
        tier,
        workspace=(*around.granted, *space.beside),
        listed=around.listed,
        writable=policy.writable and tier != "C",
        executes=executes,
        system=(*_SYSTEM, *interpreter_folders(space, facts)),
        private=PRIVATE if tier != "C" else (),
    )


def _has_memory_group(facts: HostFacts, cgroup_procs: list[bytes]) -> bool:
    places = [os.fsencode(one.path) + b"/" for one in facts.cgroups if "memory" in one.controllers]
    return any(path.startswith(place) for path in cgroup_procs for place in places)


def _rlimits(limits: Limits, tier: Tier, *, data_bytes: int | None) -> list[Rlimit]:
    """Rlimits of one process.

    RLIMIT_NPROC counts per user namespace, so it is the agent's own; without one it would count
    whatever else the person runs. RLIMIT_DATA and not RLIMIT_AS: WebAssembly reserves address
    space by the gigabyte and never touches it.
    """
    made = [
        Rlimit(resource.RLIMIT_CORE, 0, 0),
        Rlimit(resource.RLIMIT_NOFILE, limits.open_files, limits.open_files),
        Rlimit(resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes),
        Rlimit(resource.RLIMIT_MEMLOCK, 8 << 20, 8 << 20),
        Rlimit(resource.RLIMIT_MSGQUEUE, 819_200, 819_200),
        Rlimit(resource.RLIMIT_SIGPENDING, 4096, 4096),
    ]
    if tier != "C":
        made.append(Rlimit(resource.RLIMIT_NPROC, limits.processes, limits.processes))
    if data_bytes is not None:
        made.append(Rlimit(resource.RLIMIT_DATA, data_bytes, data_bytes))
    return made


def _with_folder(environment: Mapping[str, str], cwd: bytes) -> dict[str, str]:
    """Add PWD, by which a shell keeps the person's spelling; none for a name that is no text."""
    try:
        return {**environment, "PWD": cwd.decode()}
    except UnicodeDecodeError:
        return dict(environment)


@cache
def _filter(
    machine: str, profile: Literal["agent", "command"], tier: Tier, *, debug: bool
) -> bytes:
    table = load_table(os.path.join(shipped_folder(), "seccomp"), machine)
    return assemble(table, profile=profile, tier=tier, debug=debug)
