"""`rambarde doctor`: what this machine can enforce, found by doing. Trusted side.

For each tier a zygote is started over an empty folder and makes a whole trial child; what the
kernel refused is named with its step. Nothing of the workspace is touched.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import anyio

from rambarde import __version__
from rambarde.app.ground import scan
from rambarde.app.start import zygote_over
from rambarde.children.zygote import Zygote
from rambarde.errors import HostError, RambardeError
from rambarde.host.facts import HostFacts
from rambarde.host.probe import probe_host
from rambarde.host.tiers import check_tier
from rambarde.host.workspace import Workspace
from rambarde.policy.load import load_policies
from rambarde.policy.source import shipped_folder
from rambarde_wire.orders import Tier

_MENDS = {
    "userns": "sysctl -w user.max_user_namespaces=15000; on Ubuntu 24.04"
    " also sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 or an AppArmor profile",
    "proc": "a container masks /proc: use --security-opt systempaths=unconfined, or"
    " use --tier A-proc",
    "idmap": "the file system cannot be id-mapped: start as the workspace's owner, not as root",
}


@dataclass(frozen=True, slots=True)
class TierReport:
    """One tier: `works` with a trial child's time, or the step that failed and what mends it."""

    tier: Tier
    works: bool
    trial_ms: float = 0.0
    failed: str = ""
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that doctor says."""

    facts: HostFacts
    tiers: tuple[TierReport, ...]
    workspace: str
    workspace_fault: str
    holds_installation: str = ""

    @property
    def tier(self) -> str:
        """The best tier that works, empty when none does."""
        return next((one.tier for one in self.tiers if one.works), "")

    def limits(self) -> dict[str, str]:
        """Return how each resource is bounded here."""
        controls = frozenset().union(*(place.controllers for place in self.facts.cgroups))
        return {
            "processes": "cgroup pids.max" if "pids" in controls
            else "RLIMIT_NPROC of the agent's user namespace, and a watch",
            "memory": "cgroup memory limit" if "memory" in controls
            else "RLIMIT_DATA per process, and a watch of the tree's resident memory",
            "disk": "size of each tmpfs, RLIMIT_FSIZE, watermark of free space",
            "cpu": "nice",
            "kill": "SIGKILL of the namespace's init",
        }  # fmt: skip

    def as_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        facts = self.facts
        return {
            "version": __version__,
            "tier": self.tier,
            "kernel": facts.kernel,
            "machine": facts.machine,
            "uid": facts.uid,
            "landlock_abi": facts.landlock_abi,
            "landlock_errata": facts.landlock_errata,
            "seccomp": facts.seccomp,
            "interpreter": facts.interpreter,
            "ripgrep": facts.rg,
            "limits": self.limits(),
            "tiers": [
                {
                    "tier": one.tier,
                    "works": one.works,
                    "trial_ms": round(one.trial_ms, 1),
                    "failed": one.failed,
                    "mend": one.mend,
                }
                for one in self.tiers
            ],
            "workspace": self.workspace,
            "workspace_fault": self.workspace_fault,
            "holds_installation": self.holds_installation,
        }

    def as_text(self) -> str:
        """Return everything as lines for a person."""
        facts = self.facts
        lines = [
            f"rambarde {__version__} on Linux {facts.kernel} {facts.machine}, uid {facts.uid}",
            f"best tier here: {self.tier or 'none: agents cannot be started'}",
            f"landlock ABI {facts.landlock_abi}, seccomp {'yes' if facts.seccomp else 'no'}",
            f"ripgrep: {facts.rg or 'none: the grep tool will say so'}",
        ]
        for one in self.tiers:
            if one.works:
                lines.append(
                    f"  tier {one.tier:<7} works ({one.trial_ms:.1f} ms for a trial child)"
                )
            else:
                lines.append(f"  tier {one.tier:<7} cannot be had: {one.failed}")
                lines += [f"    mend: {one.mend}"] if one.mend else []
        lines.append("limits:")
        lines += [f"  {name}: {how}" for name, how in self.limits().items()]
        lines.append(f"workspace {self.workspace}: {self._workspace_words()}")
        return "\n".join(lines)

    def _workspace_words(self) -> str:
        if self.workspace_fault:
            return self.workspace_fault
        if self.holds_installation:
            return "can be used read-only (--plan): it holds the running installation of rambarde"
        return "can be used"


def diagnose(repo: str, environment: Mapping[str, str]) -> Diagnosis:  # noqa: ARG001 - same call shape as the other commands
    """Try every tier on this host."""
    facts = probe_host()
    policies = load_policies(shipped_folder())
    fault = held = ""
    try:
        held = scan(repo, policies).holds_installation
    except RambardeError as exc:
        fault = exc.message
    with tempfile.TemporaryDirectory(prefix="rambarde-doctor-") as folder:
        space = scan(folder, policies)
        tiers = tuple(_try_tier(facts, space, tier) for tier in get_args(Tier))
    return Diagnosis(facts, tiers, os.path.abspath(repo), fault, held)


def _try_tier(facts: HostFacts, space: Workspace, tier: Tier) -> TierReport:
    try:
        check_tier(facts, tier)
        started_s = time.monotonic()
        zygote = zygote_over(space, facts, tier)
        trial_ms = anyio.run(_trial, zygote)
    except HostError as exc:
        mend = next((text for word, text in _MENDS.items() if word in exc.message), exc.advice)
        return TierReport(tier, works=False, failed=exc.message, mend=mend)
    return TierReport(tier, works=True, trial_ms=trial_ms or (time.monotonic() - started_s) * 1000)


async def _trial(zygote: Zygote) -> float:
    try:
        return (await zygote.wait_ready()).trial_ms
    finally:
        await zygote.aclose()
