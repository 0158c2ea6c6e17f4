"""Keep agents from overwriting what they have not seen. Trusted side.

Theory of operation
-------------------
All agents of a session work on the same files. Before one replaces a file, the supervisor hashes
the file itself and compares the hash with what this agent last read or wrote there: an existing
file never read, or one that changed since, is refused, and the writer is named where it is known.
Only content counts: touching a file changes nothing, and a change that keeps size and time is seen.

Check and write are one: an allowed check takes the path's lock, which the agent holds until it
tells that the write took place (or did not), or until it ends. The lock passes in order of arrival.
An agent writes one file at a time and holds one lock, so two agents never wait for each other in a
circle; one that holds a lock and falls silent costs the others at most WAIT_S.

This guards honest agents against each other. What a hostile one may write is the kernel's matter:
a lie about a hash lets it overwrite only what its sandbox lets it write anyway. Writes of commands
are seen as changes by someone outside the file tools.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Literal

import anyio
import anyio.lowlevel

from rambarde.errors import HostError
from rambarde.host.digest import NotRegularError
from rambarde.host.shown import shown_path

Digest = Callable[[bytes], Awaitable[str]]
"""Hash of the file at a path relative to the workspace, "" when absent (host.digest)."""

OUTSIDE = "someone outside"
"""Named as the writer when no agent's file tool wrote what is there now."""
WAIT_S = 30.0
"""Longest wait for another agent's write to the same file."""
MOST_READS = 50_000
"""Paths kept per agent; of more, the oldest count as not read."""

WriteCode = Literal["", "not_read", "stale", "busy", "outside", "not_regular", "unreadable"]


@dataclass(frozen=True, slots=True)
class WriteVerdict:
    """May the agent replace the file now? `by` names the other writer for `stale` and `busy`."""

    allowed: bool
    code: WriteCode
    shown: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """One file that agents wrote: its hash before the first write, after the last, and now.

    An empty hash means that there was no file. `stands` is False when the tree holds something
    else than the last write left, as after a later change by a command or a person.
    """

    path: bytes
    shown: str
    before: str
    after: str
    by: str
    stands: bool


@dataclass(frozen=True, slots=True)
class Changed:
    """A file an agent had read that is not any more what it read; `by` names who changed it."""

    path: bytes
    shown: str
    by: str


@dataclass(frozen=True, slots=True)
class _Write:
    number: int
    agent: str
    path: bytes
    before: str
    after: str


@dataclass(slots=True)
class _Hold:
    path: bytes
    before: str
    gate: _Gate


class _Gate:
    """One path's lock. A semaphore, for it is let go by another task when its holder's ends."""

    def __init__(self) -> None:
        self.semaphore = anyio.Semaphore(1, max_value=1)
        self.users = 0
        self.holder = ""


class ReadTracker:
    """What each agent has seen of each file, and who wrote what, for one session tree."""

    def __init__(
        self,
        workspace: bytes,
        digest: Digest,
        *,
        name_of: Callable[[str], str] = str,
        wait_s: float = WAIT_S,
    ) -> None:
        """Start with nothing read.

        Args:
            workspace: absolute canonical path of the work copy, without a slash at its end.
            digest: hashes a file of it (host.digest.WorkspaceDigest).
            name_of: the name of an agent as others are told it, from its id.
            wait_s: longest wait for a path's lock.
        """
        self._prefix = workspace.rstrip(b"/") + b"/"
        self._digest = digest
        self._name_of = name_of
        self._wait_s = wait_s
        self._known: dict[str, dict[bytes, str]] = {}
        self._gates: dict[bytes, _Gate] = {}
        self._holds: dict[str, _Hold] = {}
        self._writes: list[_Write] = []

    def note_read(self, agent: str, path: bytes, sha256: str) -> None:
        """Note that the agent was shown the whole content with this hash; "" is ignored."""
        relative = self._relative(path)
        if relative is not None and sha256:
            self._learn(agent, relative, sha256)

    async def check_write(self, agent: str, path: bytes) -> WriteVerdict:
        """Decide whether the agent may replace the file at this absolute path now.

        When allowed, the path's lock is the agent's until `note_wrote` or `abandon`.

        Returns:
            A verdict whose code is `not_read` (exists, never read), `stale` (changed since), `busy`
            (another agent's write there does not end), `outside` (not in the workspace),
            `not_regular`, `unreadable`, or "" when allowed. An absent file may always be written.

        Trusts:
            Nothing: the file is opened beneath the workspace and hashed here.
        """
        relative = self._relative(path)
        if relative is None:
            return WriteVerdict(False, "outside", shown_path(path))
        self.abandon(agent)
        shown = shown_path(relative)
        gate = self._gates.setdefault(relative, _Gate())
        gate.users += 1
        taken = allowed = False
        try:
            with anyio.move_on_after(self._wait_s):
                await gate.semaphore.acquire()
                taken = True
            if not taken:
                return WriteVerdict(False, "busy", shown, self._name_of(gate.holder))
            verdict, before = await self._compare(agent, relative, shown)
            if verdict.allowed:
                gate.holder = agent
                self._holds[agent] = _Hold(relative, before, gate)
                allowed = True
            return verdict
        finally:
            if not allowed:
                self._leave(relative, gate, taken=taken)

    async def note_wrote(self, agent: str, path: bytes, sha256: str) -> bool:
        """Note that an allowed write took place and give its lock back.

        Args:
            agent: who wrote.
            path: absolute, as in the check.
            sha256: hash of what the agent says it wrote; "" when it wrote nothing after all.

        Returns:
            False when the agent was not allowed to write there; then nothing is noted.
        """
        hold = self._holds.get(agent)
        if hold is None or hold.path != self._relative(path):
            return False
        try:
            if sha256:
                await self._record(agent, hold, sha256)
        finally:
            self.abandon(agent)
        return True

    def abandon(self, agent: str) -> None:
        """Give back the lock the agent holds, if any: it ended, or will not write after all."""
        hold = self._holds.pop(agent, None)
        if hold is not None:
            self._leave(hold.path, hold.gate, taken=True)

    def forget(self, agent: str) -> None:
        """The agent ended: drop what it had read. What it wrote stays on record."""
        self.abandon(agent)
        self._known.pop(agent, None)

    def mark(self) -> int:
        """Return the present point in the order of writes, for `changed_since`."""
        return len(self._writes)

    async def changed_since(self, agent: str, since: int) -> tuple[Changed, ...]:
        """Return the files the agent had read which others changed after the mark, by path.

        A change that was there before the mark is left out: it was told before.
        """
        changed = []
        for path, known in sorted(self._known.get(agent, {}).items()):
            now = await self._digest_or_none(path)
            if now is None or now == known:
                continue
            last = self._last_write(path, now)
            if last is not None and last.number < since:
                continue
            by = OUTSIDE if last is None else self._name_of(last.agent)
            changed.append(Changed(path, shown_path(path), by))
        return tuple(changed)

    async def files_written(self, agent: str, subtree: Collection[str] = ()) -> tuple[Written, ...]:
        """Return what the file tools of the agent and of its subtree wrote, by path.

        Each record is compared with the tree as it is now.
        """
        writers = {agent, *subtree}
        first: dict[bytes, _Write] = {}
        last: dict[bytes, _Write] = {}
        for write in self._writes:
            if write.agent in writers:
                first.setdefault(write.path, write)
                last[write.path] = write
        return tuple(
            [
                Written(
                    path=path,
                    shown=shown_path(path),
                    before=first[path].before,
                    after=write.after,
                    by=self._name_of(write.agent),
                    stands=await self._digest_or_none(path) == write.after,
                )
                for path, write in sorted(last.items())
            ]
        )

    async def _compare(self, agent: str, relative: bytes, shown: str) -> tuple[WriteVerdict, str]:
        try:
            now = await self._digest(relative)
        except NotRegularError:
            return WriteVerdict(False, "not_regular", shown), ""
        except HostError:
            return WriteVerdict(False, "unreadable", shown), ""
        known = self._known.get(agent, {}).get(relative)
        if not now or now == known:
            return WriteVerdict(True, "", shown), now
        if known is None:
            return WriteVerdict(False, "not_read", shown), now
        last = self._last_write(relative, now)
        by = OUTSIDE if last is None else self._name_of(last.agent)
        return WriteVerdict(False, "stale", shown, by), now

    async def _record(self, agent: str, hold: _Hold, sha256: str) -> None:
        # The agent knows what it wrote; if the tree holds something else already, its next write
        # there is stale, as it should be.
        self._learn(agent, hold.path, sha256)
        now = await self._digest_or_none(hold.path)
        if now == hold.before != sha256:
            return
        number = len(self._writes)
        self._writes.append(_Write(number, agent, hold.path, hold.before, sha256))

    def _last_write(self, path: bytes, now: str) -> _Write | None:
        """Return the newest write to the path if it left what is there now."""
        for write in reversed(self._writes):
            if write.path == path:
                return write if write.after == now else None
        return None

    async def _digest_or_none(self, path: bytes) -> str | None:
        # Many small files in a row are hashed without a wait: let the other agents in between.
        await anyio.lowlevel.checkpoint()
        try:
            return await self._digest(path)
        except HostError:
            return None

    def _learn(self, agent: str, path: bytes, sha256: str) -> None:
        known = self._known.setdefault(agent, {})
        known.pop(path, None)
        known[path] = sha256
        if len(known) > MOST_READS:
            del known[next(iter(known))]

    def _leave(self, path: bytes, gate: _Gate, *, taken: bool) -> None:
        gate.users -= 1
        if taken:
            gate.holder = ""
            gate.semaphore.release()
        if gate.users == 0:
            self._gates.pop(path, None)

    def _relative(self, path: bytes) -> bytes | None:
        """Return the path below the workspace, None when it is not canonical or not there."""
        if not path.startswith(self._prefix):
            return None
        relative = path[len(self._prefix) :]
        if any(part in (b"", b".", b"..") for part in relative.split(b"/")):
            return None
        return relative
