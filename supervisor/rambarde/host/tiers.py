"""Which tier this host can be asked for, and why not a better one. Trusted side. Pure.

Only what facts can decide is decided here; whether the kernel gives the namespaces shows when the
zygote makes its trial child. A tier is never stepped down by the program.
"""

from __future__ import annotations

from rambarde.errors import SandboxUnavailable
from rambarde.host.facts import HostFacts
from rambarde_wire.orders import Tier

LEAST_LANDLOCK: dict[Tier, int] = {"A": 3, "A-proc": 3, "B": 6, "C": 6}
"""Landlock ABI: 3 truncation; 6 scopes, without which
`B` and `C` would reach the host's abstract sockets."""
MACHINES = frozenset({"x86_64", "aarch64"})


def check_tier(facts: HostFacts, tier: Tier) -> None:
    """Raise SandboxUnavailable when the facts alone rule the tier out."""
    if facts.machine not in MACHINES:
        raise SandboxUnavailable(
            f"no system call table for {facts.machine}",
            advice="rambarde runs on x86_64 and aarch64.",
        )
    if not facts.seccomp:
        raise SandboxUnavailable(
            "this kernel has no seccomp filters", advice="Use a kernel with CONFIG_SECCOMP_FILTER."
        )
    least = LEAST_LANDLOCK[tier]
    if facts.landlock_abi < least:
        raise SandboxUnavailable(
            f"tier {tier} needs Landlock ABI {least}; this kernel ({facts.kernel}) has"
            f" {facts.landlock_abi or 'none'}",
            advice="Use Linux 6.2 or newer (6.12 for tier C) with landlock in the lsm= list.",
        )
    if facts.uid == 0 and not facts.has_all_ids and facts.uid_outside == 0:
        raise SandboxUnavailable(
            "root of a user namespace that is root outside of it as well has no other id to give",
            advice="Start rambarde as an ordinary user, or outside of this namespace.",
        )
    if tier == "C" and facts.uid == 0:
        raise SandboxUnavailable(
            "tier C does not hold for root: without a user namespace its uid is the machine's",
            advice="Start rambarde as an ordinary user, or use tier A.",
        )
