"""Orders of the supervisor to the zygote, and the plans they carry. Both sides. No I/O.

They travel on one SOCK_SEQPACKET pair that only the supervisor and the zygote hold; descriptors
ride along by SCM_RIGHTS. A message longer than INLINE_BYTES is put in a memfd, passed as the first
descriptor, and the datagram itself is empty (unix(7): a datagram is bounded by the send buffer).

A plan is resolved data: nothing in it is looked up, expanded or judged by the zygote.
All paths are absolute bytes. Modes of Landlock rights are kernel bits (linux/landlock.h).

Source: ADR 0002 (exec'ed zygote), ADR 0003 (policy compiled outside, applied inside).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, Union

import msgspec

ORDERS_VERSION = 1
INLINE_BYTES = 64 << 10
MAX_ORDER_BYTES = 16 << 20

Tier = Literal["A", "A-proc", "B", "C"]
Kind = Literal["tree", "file", "symlink", "dir", "text", "device"]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t"):
    """Base of every order and answer."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the template root, made once by the zygote, read-only for every child.

    kind tree/file: read-only bind of `source` (tree is recursive); symlink: link to `source`;
    dir: an empty directory; text: a generated file holding `source`; device: bind of a node.
    """

    kind: Kind
    target: bytes
    source: bytes = b""


class Mask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A path of the workspace hidden behind an empty read-only file or directory."""

    path: bytes
    is_dir: bool


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link made in a child's own tmpfs, as another spelling of a path."""

    path: bytes
    target: bytes


class LandlockRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`access` (LANDLOCK_ACCESS_FS_* bits) below `path` as seen inside the sandbox.

    A path that does not exist there is an error unless `optional`.
    """

    path: bytes
    access: int
    optional: bool = False


class Landlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ruleset: handled rights, scopes (bit 0 abstract sockets, bit 1 signals), rules."""

    handled_fs: int
    handled_net: int
    scoped: int
    rules: list[LandlockRule]


class Rlimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`resource` is a RLIMIT_* number of getrlimit(2)."""

    resource: int
    soft: int
    hard: int


class Tmpfs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A private tmpfs of one child at `target`."""

    target: bytes
    size_bytes: int
    inodes: int
    mode: int


class ZygoteSetup(Message, frozen=True, tag="setup"):
    """First message to the zygote.

    `started_by_root`: the supervisor's euid is 0, so each child gets a userns mapped to an unused
    kuid and an id-mapped workspace. `owner_uid/gid`: owner of the workspace on disk.
    `inner_uid/gid`: ids a child sees as its own (its real ids for an ordinary user).
    `beside`: folders that belong to the workspace and lie outside of it (the repository of a
    linked worktree); each is attached at its own path, writable when the workspace is.
    """

    version: int
    supervisor_pid: int
    tier: Tier
    started_by_root: bool
    owner_uid: int
    owner_gid: int
    inner_uid: int
    inner_gid: int
    workspace: bytes
    hostname: bytes
    entries: list[Entry]
    beside: list[bytes] = []
    probe: bool = True
    """Make a whole trial child before answering ReplyReady."""


class SandboxPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that a child needs to build and seal its sandbox."""

    agent_id: str
    title: str
    tier: Tier
    workspace: bytes
    workspace_writable: bool
    kuid: int
    """Host uid and gid the child runs as when started by root; else ignored (0)."""
    tmpfs: list[Tmpfs]
    pins: list[bytes]
    read_only: list[bytes]
    masks: list[Mask]
    landlock: Landlock
    seccomp: bytes
    rlimits: list[Rlimit]
    oom_score_adj: int
    environment: dict[str, str]
    cgroup_procs: list[bytes]
    """Host paths of cgroup.procs files the child is put in; empty where there are none."""
    links: list[Link] = []


class CommandPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One judged command inside the sandbox of `agent_id`."""

    command_id: str
    agent_id: str
    argv: list[bytes]
    cwd: bytes
    environment: dict[str, str]
    landlock: Landlock
    seccomp: bytes
    rlimits: list[Rlimit]
    oom_score_adj: int
    nice: int
    cgroup_procs: list[bytes]


class OrderAgent(Message, frozen=True, tag="agent"):
    """Fork an agent. Descriptors: frames in (read end), frames out (write end), log (write end)."""

    request_id: int
    plan: SandboxPlan


class OrderCommand(Message, frozen=True, tag="command"):
    """Fork a command. Descriptors: stdin (read), stdout, stderr, status (write ends)."""

    request_id: int
    plan: CommandPlan


class OrderRelease(Message, frozen=True, tag="release"):
    """The agent is gone: close what is kept for joining its namespaces. Not answered."""

    agent_id: str


class OrderRemask(Message, frozen=True, tag="remask"):
    """Covered paths were replaced on the host: cover them again inside the live child."""

    request_id: int
    agent_id: str
    masks: list[Mask]
    read_only: list[bytes]


class ReplyReady(Message, frozen=True, tag="ready"):
    """The template is made and, if asked, a trial child started. `trial_ms` tells how long."""

    landlock_abi: int
    landlock_errata: int
    trial_ms: float
    threads: int


class ReplySpawned(Message, frozen=True, tag="spawned"):
    """With one descriptor: the pidfd of the namespace's init. `pid` is in the host's numbering."""

    request_id: int
    pid: int


class ReplyDone(Message, frozen=True, tag="done"):
    """An order without a process is carried out."""

    request_id: int


class ReplyFailed(Message, frozen=True, tag="failed"):
    """An order failed at `step`; request 0 is the setup. Nothing of it is left."""

    request_id: int
    step: str
    errno: int
    text: str


class TellEnded(Message, frozen=True, tag="ended"):
    """The zygote reaped the init of an agent or a command: exactly one of code, signal is >= 0."""

    pid: int
    code: int
    signal: int


class CommandStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Written once to a command's status pipe: how its first process ended.

    A `step` that is not empty means the command was never executed (`errno` says why). An end of
    the pipe without this message means the whole command was killed.
    """

    code: int
    signal: int
    step: str = ""
    errno: int = 0


Order: TypeAlias = Union[ZygoteSetup, OrderAgent, OrderCommand, OrderRelease, OrderRemask]
Answer: TypeAlias = Union[ReplyReady, ReplySpawned, ReplyDone, ReplyFailed, TellEnded]

_encoder = msgspec.msgpack.Encoder()
order_decoder = msgspec.msgpack.Decoder(Order, strict=True)
answer_decoder = msgspec.msgpack.Decoder(Answer, strict=True)
status_decoder = msgspec.msgpack.Decoder(CommandStatus, strict=True)


def encode(value: msgspec.Struct) -> bytes:
    """Return the msgpack of an order, an answer or a status."""
    return _encoder.encode(value)
