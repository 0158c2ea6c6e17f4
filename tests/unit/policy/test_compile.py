"""From policy and facts to plans: nothing is in a plan that the policy does not hold."""

from __future__ import annotations

import os
import resource
from dataclasses import replace

import pytest

from rambarde.host.facts import CgroupPlace, HostFacts
from rambarde.host.workspace import Workspace
from rambarde.policy import landlock
from rambarde.policy.compile import INNER_UID, compile_agent, compile_command, compile_setup
from rambarde.policy.mounts import HOME_INSIDE, PRIVATE, RG_INSIDE
from rambarde_wire.orders import Landlock, Mask, Tier
from support.policies import WORKSPACE_WRITE, policy

ROOT = b"/srv/proj"
SPACE = Workspace(
    root=ROOT, cwd=ROOT, shown="/srv/proj", links=(), owner_uid=1000, owner_gid=1000,
    read_only=(ROOT + b"/.git/hooks",), pins=(ROOT + b"/.git",),
    masks=(Mask(ROOT + b"/.env", is_dir=False),), beside=(), interpreters=(),
    holds_installation="", agent_files=(), absent=(), warnings=(),
)  # fmt: skip
FACTS = HostFacts(
    kernel="6.18", machine="x86_64", uid=1000, gid=1001, landlock_abi=7, landlock_errata=7,
    seccomp=True, interpreter="/usr/bin/python3.11", prefix="/usr", rg="/usr/bin/rg", cgroups=(),
)  # fmt: skip
TIERS: tuple[Tier, ...] = ("A", "A-proc", "B", "C")
_WRITES = (
    landlock.WRITE_FILE | landlock.REMOVE_DIR | landlock.REMOVE_FILE | landlock.MAKE_DIR
    | landlock.MAKE_REG | landlock.MAKE_SOCK | landlock.MAKE_FIFO | landlock.MAKE_SYM
    | landlock.TRUNCATE
)  # fmt: skip


def agent(rights=WORKSPACE_WRITE, space=SPACE, facts=FACTS, tier: Tier = "A", **changes):
    """The plan of an agent."""
    given = {"cgroup_procs": [], "environment": {}, "kuid": 77, **changes}
    return compile_agent(rights, space, facts, agent_id="a1", title="t", tier=tier, **given)


def command(rights=WORKSPACE_WRITE, space=SPACE, facts=FACTS, tier: Tier = "A", **changes):
    """The plan of a command in the sandbox of such an agent."""
    cwd = changes.pop("cwd", space.root)
    sandbox = agent(rights, space, facts, tier, **changes)
    return compile_command(rights, sandbox, space, facts, command_id="c1", argv=[b"true"], cwd=cwd)


def setup(space=SPACE, facts=FACTS, tier: Tier = "A"):
    return compile_setup(space, facts, supervisor_pid=1, tier=tier, git_config=b"[user]\n")


def rights_of(rules: Landlock) -> dict[bytes, int]:
    """Access by path."""
    return {rule.path: rule.access for rule in rules.rules}


def limits_of(plan) -> dict[int, int]:
    return {one.resource: one.hard for one in plan.rlimits}


# ── the template ─────────────────────────────────────────────────────────────────────────────


def test_the_template_holds_nothing_of_a_person(tmp_path):
    """No home, no /run, no /sys, no host identity; what is in /etc is listed or generated."""
    targets = [entry.target for entry in setup().entries]
    for gone in (b"/root", b"/home", b"/run", b"/sys", b"/var", b"/etc/shadow", b"/etc/passwd-"):
        assert not any(target == gone or target.startswith(gone + b"/") for target in targets)
    by_target = {entry.target: entry for entry in setup().entries}
    assert by_target[b"/etc/resolv.conf"].source == b""
    assert b":1000:1001:" in by_target[b"/etc/passwd"].source
    assert by_target[b"/etc/gitconfig"].source.startswith(b"[user]\n")
    assert b"/etc" not in targets


def test_parents_stand_before_their_children():
    """An entry made after its child would cover it."""
    seen: list[bytes] = []
    for entry in setup().entries:
        assert not any(one.startswith(entry.target + b"/") for one in seen), entry.target
        seen.append(entry.target)
    assert len(seen) == len(set(seen))


def test_devices_are_the_harmless_ones():
    """No tty, no memory, no disk, no vsock."""
    devices = {entry.target for entry in setup().entries if entry.kind == "device"}
    assert devices == {b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom"}


def test_the_system_folders_are_as_on_this_host():
    """Links of a merged /usr stay links, so programs find their loader on either layout."""
    by_target = {entry.target: entry for entry in setup().entries}
    for name in (b"/bin", b"/lib"):
        linked = os.path.islink(name)
        assert by_target[name].kind == ("symlink" if linked else "tree")


def test_ripgrep_is_bound_at_its_own_place():
    """The last folder of PATH; without ripgrep there is no entry."""
    assert any(entry.target == RG_INSIDE for entry in setup().entries)
    without = setup(facts=replace(FACTS, rg=""))
    assert not any(entry.target == RG_INSIDE for entry in without.entries)
    assert command().environment["PATH"].endswith(":" + os.fsdecode(os.path.dirname(RG_INSIDE)))


def test_started_by_root_a_child_sees_an_ordinary_id():
    """An ordinary user sees his own, so that git trusts what he owns."""
    root = setup(facts=replace(FACTS, uid=0, gid=0))
    assert (root.started_by_root, root.inner_uid, root.inner_gid) == (True, INNER_UID, INNER_UID)
    own = setup()
    assert (own.started_by_root, own.inner_uid, own.inner_gid) == (False, 1000, 1001)
    assert agent(facts=replace(FACTS, uid=0)).kuid == 77
    assert agent().kuid == 0


def test_an_interpreter_is_shown_by_its_parts(tmp_path):
    """Ours, below a home perhaps: its bin and lib, never the folder around."""
    for name in ("bin", "lib", "share"):
        (tmp_path / name).mkdir()
    facts = replace(FACTS, prefix=str(tmp_path))
    shown = {entry.target for entry in setup(facts=facts).entries}
    assert {os.fsencode(tmp_path / "bin"), os.fsencode(tmp_path / "lib")} <= shown
    assert not {os.fsencode(tmp_path), os.fsencode(tmp_path / "share")} & shown
    allowed = rights_of(command(facts=facts).landlock)
    assert allowed[os.fsencode(tmp_path / "lib")] & landlock.EXECUTE


def test_links_are_made_where_they_can_be():
    """In the template, in a child's own tmpfs, or not at all where the host's folder is shown."""
    links = (
        (b"/link/proj", ROOT), (b"/tmp/x/proj", ROOT), (b"/usr/share/p", ROOT),
        (ROOT + b"/self", ROOT), (b"/etc/passwd", b"/x"),
    )  # fmt: skip
    space = replace(SPACE, links=links)
    made = {e.target: e.source for e in setup(space).entries if e.kind == "symlink"}
    assert made[b"/link/proj"] == ROOT
    assert not {path for path, _text in links[1:]} & set(made)
    assert [(one.path, one.target) for one in agent(space=space).links] == [links[1]]
    assert agent(space=space, tier="C").links == []


# ── agents and commands ──────────────────────────────────────────────────────────────────────


def test_no_agent_may_execute_by_landlock_either():
    """Commands may; the filter says the same of agents once more."""
    for tier in TIERS:
        assert not any(rule.access & landlock.EXECUTE for rule in agent(tier=tier).landlock.rules)
        assert rights_of(command(tier=tier).landlock)[b"/usr"] & landlock.EXECUTE


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("writable", [True, False])
def test_what_is_written_is_the_workspace_and_the_childs_own(tier, writable):
    """Outside of both nothing can be made or removed; in tier C nothing can be written at all."""
    rights = policy(writable=writable)
    space = replace(SPACE, masks=())
    for plan in (agent(rights, space, tier=tier), command(rights, space, tier=tier)):
        made = {path for path, access in rights_of(plan.landlock).items() if access & _WRITES}
        devices = {b"/proc", b"/dev", b"/dev/pts", b"/dev/null"}
        own = set(PRIVATE) if tier != "C" else set()
        work = {ROOT} if writable and tier != "C" else set()
        assert made == devices | own | work
    assert agent(rights, space, tier=tier).workspace_writable is (writable and tier != "C")


def test_writable_places_can_rename_across_folders_and_make_no_devices():
    """REFER and REMOVE_DIR are what cargo, npm and editors need; device nodes nobody does."""
    allowed = rights_of(command().landlock)
    for path in (ROOT, *PRIVATE):
        assert allowed[path] & landlock.REFER
        assert allowed[path] & landlock.TRUNCATE
        assert not allowed[path] & (landlock.MAKE_CHAR | landlock.MAKE_BLOCK | landlock.IOCTL_DEV)


def test_each_landlock_abi_is_asked_only_for_what_it_knows():
    """An unknown right would be refused by the kernel; TCP is left alone where there is lo."""
    for abi, bits in ((1, 13), (2, 14), (3, 15), (4, 15), (5, 16), (7, 16)):
        for tier in TIERS:
            plan = command(facts=replace(FACTS, landlock_abi=abi), tier=tier)
            handled = (1 << bits) - 1
            assert plan.landlock.handled_fs == handled
            assert all(rule.access & ~handled == 0 for rule in plan.landlock.rules)
            assert plan.landlock.scoped == (3 if abi >= 6 else 0)
            assert plan.landlock.handled_net == (3 if abi >= 4 and tier in ("B", "C") else 0)


def test_what_is_beside_the_workspace_is_allowed_like_it():
    """The repository of a worktree: writable for a writer, readable for a reader."""
    space = replace(SPACE, beside=(b"/srv/main/.git",))
    allowed = rights_of(command(space=space).landlock)
    assert allowed[b"/srv/main/.git"] == allowed[ROOT]
    allowed = rights_of(command(policy(writable=False), space).landlock)
    assert not allowed[b"/srv/main/.git"] & _WRITES
    assert setup(space).beside == [b"/srv/main/.git"]


def test_without_mounts_secret_files_are_not_allowed(tmp_path):
    """Tier C: the root is listed only, and each entry but the secret one is granted."""
    for name in (".env", "a", "sub/b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    root = os.fsencode(tmp_path)
    space = replace(SPACE, root=root, masks=(Mask(root + b"/.env", is_dir=False),))
    allowed = rights_of(command(space=space, tier="C").landlock)
    assert allowed[root] == landlock.READ_DIR
    assert allowed[root + b"/a"] & landlock.READ_FILE
    assert allowed[root + b"/sub"] & landlock.READ_FILE
    assert root + b"/.env" not in allowed


def test_protection_is_the_workspaces():
    """Pins, read-only leaves and masks are laid as the scan found them."""
    plan = agent()
    assert (plan.pins, plan.read_only) == (list(SPACE.pins), list(SPACE.read_only))
    assert plan.masks == list(SPACE.masks)


def test_limits_come_from_the_policy():
    """Sizes of tmpfs, descriptors, file size; no core anywhere; processes by user namespace."""
    plan, limits = command(), WORKSPACE_WRITE.limits
    found = limits_of(plan)
    assert found[resource.RLIMIT_CORE] == 0
    assert found[resource.RLIMIT_NOFILE] == limits.open_files
    assert found[resource.RLIMIT_FSIZE] == limits.file_bytes
    assert found[resource.RLIMIT_NPROC] == limits.processes
    assert plan.nice == limits.nice
    assert plan.oom_score_adj > agent().oom_score_adj > 0
    sizes = {one.target: one.size_bytes for one in agent().tmpfs}
    assert sizes == {
        b"/tmp": limits.tmp_bytes, b"/var/tmp": limits.tmp_bytes,
        b"/dev/shm": limits.shm_bytes, HOME_INSIDE: limits.home_bytes,
    }  # fmt: skip


def test_without_a_user_namespace_processes_are_not_counted():
    """There the count is of all that the person runs: a busy desktop could start nothing."""
    assert resource.RLIMIT_NPROC not in limits_of(command(tier="C"))


def test_data_is_bounded_where_nothing_else_bounds_memory():
    """Not under a memory group, nor for sanitizers, which map terabytes and never touch them."""
    plain = policy(debug=False)
    place = CgroupPlace(1, "/sys/fs/cgroup/memory/x", frozenset({"memory"}))
    facts = replace(FACTS, cgroups=(place,))
    procs = [b"/sys/fs/cgroup/memory/x/rambarde-1/a1/cgroup.procs"]
    bound = WORKSPACE_WRITE.limits.memory_bytes
    assert limits_of(command(plain)).get(resource.RLIMIT_DATA) == bound
    assert limits_of(command(plain, facts=facts)).get(resource.RLIMIT_DATA) == bound
    grouped = command(plain, facts=facts, cgroup_procs=procs)
    assert resource.RLIMIT_DATA not in limits_of(grouped)
    assert grouped.cgroup_procs == procs
    assert resource.RLIMIT_DATA not in limits_of(command(policy(debug=True)))
    assert resource.RLIMIT_DATA in limits_of(agent(policy(debug=True)))


def test_the_debug_bit_changes_a_commands_filter_and_no_agents():
    """It lets a command trace; an agent does what it did."""
    assert command(policy(debug=True)).seccomp != command(policy(debug=False)).seccomp
    assert agent(policy(debug=True)).seccomp == agent(policy(debug=False)).seccomp
    assert agent().seccomp != command().seccomp


# ── the environment ──────────────────────────────────────────────────────────────────────────


def test_nothing_of_the_persons_environment_passes_but_language_and_zone():
    """Keys, sockets, variables that execute, odd values: all stay outside."""
    own = {
        "OPENAI_API_KEY": "k", "GITHUB_TOKEN": "k", "AWS_SECRET_ACCESS_KEY": "k", "LC_SECRET": "k",
        "SSH_AUTH_SOCK": "/x", "DBUS_SESSION_BUS_ADDRESS": "x", "XDG_RUNTIME_DIR": "/x",
        "LD_PRELOAD": "/x", "BASH_ENV": "/x", "PYTHONPATH": "/x", "NODE_OPTIONS": "x",
        "GIT_SSH_COMMAND": "x", "HOME": "/home/ann", "PATH": "/evil", "USER": "ann",
        "LANG": "fr_FR.UTF-8", "TZ": "Europe/Paris", "LC_TIME": "x\x1b]0;y", "LC_ALL": "x" * 300,
    }  # fmt: skip
    bare, made = command().environment, command(environment=own).environment
    assert {name: value for name, value in made.items() if bare.get(name) != value} == {
        "LANG": "fr_FR.UTF-8", "TZ": "Europe/Paris",
    }  # fmt: skip
    assert made["HOME"] == os.fsdecode(HOME_INSIDE)


def test_nothing_asks_or_pages_and_caches_are_in_the_home():
    """Prompts would wait for ever; caches elsewhere could not be written."""
    made = command().environment
    assert made["GIT_TERMINAL_PROMPT"] == "0"
    assert made["PAGER"] == "cat"
    for name in ("PIP_CACHE_DIR", "UV_CACHE_DIR", "npm_config_cache", "GOCACHE", "CARGO_HOME"):
        assert made[name].startswith(os.fsdecode(HOME_INSIDE) + "/")
    count = int(made["GIT_CONFIG_COUNT"])
    keys = [made[f"GIT_CONFIG_KEY_{number}"] for number in range(count)]
    assert {"safe.directory", "commit.gpgsign"} <= set(keys)
    assert f"GIT_CONFIG_KEY_{count}" not in made


def test_the_working_folder_keeps_the_persons_spelling():
    """By PWD, which a shell believes if it is right; a name that is no text goes without."""
    assert command(cwd=b"/link/proj").environment["PWD"] == "/link/proj"
    assert "PWD" not in command(cwd=b"/caf\xe9").environment
