"""Landlock rulesets of agents and commands, as plain data. Trusted side. Pure.

The second wall behind the mounts: rules are by area of the minimal root, never "deny inside allow",
which Landlock cannot say. Every writable area grants REFER, or renames between folders fail.

Source: linux/landlock.h; landlock(7): ABI 2 REFER, 3 TRUNCATE, 4 TCP, 5 IOCTL_DEV, 6 scopes.
"""

from __future__ import annotations

from collections.abc import Iterable

from rambarde_wire.orders import Landlock, LandlockRule, Tier

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
REMOVE_DIR = 1 << 4
REMOVE_FILE = 1 << 5
MAKE_CHAR = 1 << 6
MAKE_DIR = 1 << 7
MAKE_REG = 1 << 8
MAKE_SOCK = 1 << 9
MAKE_FIFO = 1 << 10
MAKE_BLOCK = 1 << 11
MAKE_SYM = 1 << 12
REFER = 1 << 13
TRUNCATE = 1 << 14
IOCTL_DEV = 1 << 15

ABSTRACT_UNIX = 1 << 0
SIGNAL = 1 << 1
NET_TCP = 0b11

_BITS_BY_ABI = ((1, 13), (2, 14), (3, 15), (5, 16))
_READ = READ_FILE | READ_DIR
_OWN = (
    _READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO
    | MAKE_SYM | REFER | TRUNCATE
)  # fmt: skip


def handled_fs(abi: int) -> int:
    """Return all file rights this ABI knows; what is handled and not granted is refused."""
    return (1 << max(bits for least, bits in _BITS_BY_ABI if abi >= least)) - 1


def ruleset(
    abi: int,
    tier: Tier,
    *,
    workspace: Iterable[bytes],
    writable: bool,
    executes: bool,
    listed: Iterable[bytes] = (),
    system: Iterable[bytes],
    private: Iterable[bytes],
) -> Landlock:
    """Return the rules of one process.

    Args:
        abi: the kernel's.
        tier: with a net namespace TCP is left alone, or local test servers would break.
        workspace: its path inside, and those of what belongs to it.
        writable: whether the workspace may be written.
        listed: folders of which only the names are told.
        executes: commands may, agents may not (they cannot exec anyway).
        system: read-only areas (programs, libraries, files of /etc).
        private: the child's own writable areas (its tmpfs).
    """
    handled = handled_fs(abi)
    run = EXECUTE if executes else 0
    rules = [LandlockRule(path, (_READ | run) & handled, optional=True) for path in system]
    work = ((_OWN if writable else _READ) | run) & handled
    rules += [LandlockRule(path, work) for path in workspace]
    rules += [LandlockRule(path, READ_DIR) for path in listed]
    rules += [LandlockRule(path, (_OWN | run) & handled, optional=True) for path in private]
    rules.append(LandlockRule(b"/proc", (_READ | WRITE_FILE) & handled, optional=True))
    rules.append(LandlockRule(b"/dev", (_READ | WRITE_FILE) & handled))
    rules.append(
        LandlockRule(b"/dev/pts", (_READ | WRITE_FILE | IOCTL_DEV) & handled, optional=True)
    )
    rules.append(LandlockRule(b"/dev/null", (READ_FILE | WRITE_FILE | IOCTL_DEV) & handled))
    if tier != "C":
        # The minimal root holds nothing to hide; without this `ls /` fails.
        rules.append(LandlockRule(b"/", READ_DIR))
    return Landlock(
        handled_fs=handled,
        handled_net=NET_TCP if tier in ("B", "C") and abi >= 4 else 0,
        scoped=(ABSTRACT_UNIX | SIGNAL) if abi >= 6 else 0,
        rules=rules,
    )
