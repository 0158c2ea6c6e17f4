"""The folder of sessions: make, open, list, find, and close what a crash left open. Trusted side.

Files: `<session id>.jsonl` (journal), `<session id>.jsonl.cut` (what a crash left of a last line),
`index.sqlite` (can be removed at any time), `.new-…` (a journal that is being made).

A session is `running` while its journal is locked, `lost` when it has no end and nobody holds the
lock. No child ever sees this folder: it is not in any sandbox.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from rambarde.errors import RecordError, UsageError
from rambarde.ids import SessionId
from rambarde.sessions.index import Index, Stamp
from rambarde.sessions.journal import Journal, failure, is_locked
from rambarde.sessions.record import Record, Redact
from rambarde.sessions.summary import Summary, summarize, with_life
from rambarde.texts import text as say

_ID = re.compile(r"[0-9a-z][0-9a-z-]{2,63}", re.ASCII)
_SUFFIX = ".jsonl"
MOST_LISTED = 10_000


class Store:
    """Sessions in one folder, which several processes may use at once."""

    def __init__(
        self,
        folder: str,
        *,
        redact: Redact | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Make the folder where it is missing, and close it to all others.

        Args:
            folder: absolute path; `sessions` below the state folder of the user.
            redact: applied to each text that goes on the record.
            now: time of day in seconds.

        Raises:
            RecordError: it cannot be made, is no folder, or belongs to somebody else.
        """
        self.folder = folder
        self._redact = redact
        self._now = now
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            found = os.lstat(folder)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise RecordError(
                    f"{folder} is no folder of this user",
                    advice="Remove it, or point the state folder elsewhere (XDG_STATE_HOME).",
                )
            if found.st_mode & 0o077:
                os.chmod(folder, 0o700)
        except OSError as exc:
            raise failure("use", folder, exc) from exc

    def path(self, session_id: str) -> str:
        """Return where a session's journal is or would be.

        Raises:
            UsageError: not the form of an id.
        """
        if not _ID.fullmatch(session_id):
            raise UsageError(
                f"{session_id!r} is no session id", advice="See `rambarde sessions list`."
            )
        return os.path.join(self.folder, session_id + _SUFFIX)

    def create(self, session_id: SessionId, header: Mapping[str, object]) -> Journal:
        """Make a session's journal; its first record holds the id and the header.

        Args:
            session_id: a new one (ids.new_session_id).
            header: parent_id, root_id, depth, agent, hashes of policy and persona, tier, version,
                workspace, landlock_abi, model, facts of the host.

        Raises:
            RecordError: the disk refuses.
        """
        data = {"session_id": session_id, **header}
        return Journal.create(self.path(session_id), data, redact=self._redact, now=self._now)

    def open(self, session_id: str) -> tuple[Journal, Sequence[Record]]:
        """Open a session to go on with it; return its journal, locked, and its records.

        Raises:
            RecordError: it is running elsewhere, was changed, or cannot be read.
            UsageError: there is no such session.
        """
        path = self._existing(session_id)
        return Journal.reopen(path, redact=self._redact, now=self._now)

    def find(self, text: str) -> SessionId:
        """Return the id of the one session whose id starts or ends with a text.

        Raises:
            UsageError: there is none, or more than one.
        """
        ids = sorted(self._files())
        if text in ids:
            return SessionId(text)
        found = [one for one in ids if text and (one.startswith(text) or one.endswith(text))]
        if len(found) == 1:
            return SessionId(found[0])
        few = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
        raise UsageError(
            f"{len(found)} sessions are meant by {text!r}" if found else f"no session {text!r}",
            advice=f"Say which: {few}." if found else "See `rambarde sessions list`.",
        )

    def summary(self, session_id: str) -> Summary:
        """Return what a listing shows of one session, read from its journal.

        Raises:
            UsageError: there is no such session.
            RecordError: its journal has no header.
        """
        path = self._existing(session_id)
        found = summarize(path, session_id)
        if found is None:
            raise RecordError(f"{path} has no header", advice="It can be removed.")
        return with_life(found, path)

    def list(self, limit: int = 50, *, roots_only: bool = False) -> Sequence[Summary]:
        """Return up to `limit` sessions, newest first."""
        return self._first(limit, lambda one: not roots_only or one.depth == 0)

    def latest(self, workspace: str) -> Summary | None:
        """Return the newest session of a person in a workspace; None when there is none."""
        found = self._first(1, lambda one: one.depth == 0 and one.workspace == workspace)
        return found[0] if found else None

    def children(self, session_id: str) -> Sequence[Summary]:
        """Return the sessions of the subagents that a session started, oldest first."""
        return self._first(MOST_LISTED, lambda one: one.parent_id == session_id)[::-1]

    def tree(self, root_id: str) -> Sequence[Summary]:
        """Return a session with all below it, oldest first."""
        return self._first(MOST_LISTED, lambda one: one.root_id == root_id)[::-1]

    def mark_lost(self) -> Sequence[Summary]:
        """Give each session without an end and without a writer its end; return those, once.

        Called at the start of a supervisor. What cannot be opened is left as it is.
        """
        self._remove_unfinished()
        lost: deque[Summary] = deque()
        for one in self._summaries():
            path = self.path(one.session_id)
            if not one.has_end and not is_locked(path):
                with suppress(RecordError):
                    if self._end_as_lost(one.session_id):
                        lost.appendleft(self.summary(one.session_id))
        return lost

    def remove(self, session_id: str) -> None:
        """Remove one session's files; those of its subagents stay.

        Raises:
            RecordError: it is running, or the disk refuses.
            UsageError: not the form of an id.
        """
        path = self.path(session_id)
        if is_locked(path):
            raise RecordError(f"{path} is in use", advice="Stop that session first.")
        for name in (path, path + ".cut"):
            try:
                os.unlink(name)
            except FileNotFoundError:
                continue
            except OSError as exc:
                raise failure("remove", name, exc) from exc

    def remove_tree(self, root_id: str) -> None:
        """Remove a session with all below it, the youngest first.

        Raises:
            RecordError: one of them is running, or the disk refuses; older ones stay then.
            UsageError: not the form of an id.
        """
        below = [one.session_id for one in self.tree(root_id) if one.session_id != root_id]
        for session_id in (*reversed(below), root_id):
            self.remove(session_id)

    def _end_as_lost(self, session_id: str) -> bool:
        journal, records = self.open(session_id)
        try:
            if records[-1].kind == "end":
                return False
            journal.write("end", _lost(session_id, records))
            journal.settle_nowait()
        finally:
            journal.close()
        return True

    def _first(self, limit: int, wanted: Callable[[Summary], bool]) -> Sequence[Summary]:
        found = (
            with_life(one, self.path(one.session_id)) for one in self._summaries() if wanted(one)
        )
        return [*islice(found, min(limit, MOST_LISTED))]

    def _summaries(self) -> Sequence[Summary]:
        index = Index(os.path.join(self.folder, "index.sqlite"))
        return index.refresh(self._files(), lambda one: summarize(self.path(one), one))

    def _files(self) -> dict[str, Stamp]:
        files = {}
        for entry in self._entries():
            session_id, suffix = entry.name[: -len(_SUFFIX)], entry.name[-len(_SUFFIX) :]
            if suffix == _SUFFIX and _ID.fullmatch(session_id):
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        files[session_id] = (found.st_size, found.st_mtime_ns)
        return files

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self.folder) as entries:
                yield from entries
        except OSError as exc:
            raise failure("list", self.folder, exc) from exc

    def _remove_unfinished(self) -> None:
        for entry in self._entries():
            if entry.name.startswith(".new-") and not is_locked(entry.path):
                with suppress(OSError):
                    # A journal is locked at once after it is made; a minute is an age.
                    if time.time() - entry.stat().st_mtime > 60:
                        os.unlink(entry.path)

    def _existing(self, session_id: str) -> str:
        path = self.path(session_id)
        if not os.path.lexists(path):
            raise UsageError(
                f"there is no session {session_id}", advice="See `rambarde sessions list`."
            )
        return path


def _lost(session_id: str, records: Sequence[Record]) -> dict[str, object]:
    """Return the end of a session whose supervisor is gone, as far as its records tell."""
    header = records[0].data
    base = f"{header.get('workspace', '')}/"
    wrote = [str(one.data.get("path", "")) for one in records if one.kind == "wrote"]
    return {
        "session_id": session_id,
        "agent": header.get("agent", ""),
        "depth": header.get("depth", 0),
        "status": "lost",
        "error": say("session_lost"),
        "actions": sum(one.kind == "verdict" for one in records),
        "duration_ms": round(1000 * (records[-1].at - records[0].at)),
        "files_written": list(dict.fromkeys(path.removeprefix(base) for path in wrote)),
    }
