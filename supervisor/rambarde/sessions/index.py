"""A listing of sessions that need not read a thousand files. Trusted side.

Never the truth: each row is a copy of a journal's two ends, kept while the file's size and time are
what they were. A file that is gone, locked, damaged or of another version is made anew; where
none can be made, the rows live in memory for this call.

Source: sqlite.org/pragma.html (user_version, journal_mode), sqlite.org/wal.html.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress

from rambarde.sessions.summary import Summary

VERSION = 2
BUSY_MS = 2000
_COLUMNS = Summary.__struct_fields__
_TYPES = {"depth": "INTEGER", "actions": "INTEGER", "size_bytes": "INTEGER",
          "changed_ns": "INTEGER", "started_at": "REAL", "ended_at": "REAL"}  # fmt: skip
_CREATE = (
    "CREATE TABLE sessions ("
    + ", ".join(f"{name} {_TYPES.get(name, 'TEXT')} NOT NULL" for name in _COLUMNS)
    + ", PRIMARY KEY (session_id)) WITHOUT ROWID"
)
_INSERT = (
    f"INSERT OR REPLACE INTO sessions ({', '.join(_COLUMNS)}) "  # noqa: S608 - our own names
    f"VALUES ({', '.join('?' * len(_COLUMNS))})"
)
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM sessions"  # noqa: S608 - our own names

Stamp = tuple[int, int]
"""Size in bytes and time of change in nanoseconds."""
Read = Callable[[str], Summary | None]


class Index:
    """The file `index.sqlite` of a folder of sessions. Opened for each use; holds no descriptor."""

    def __init__(self, path: str) -> None:
        """`path` of the file; it need not be there."""
        self._path = path

    def refresh(self, files: dict[str, Stamp], read: Read) -> list[Summary]:
        """Bring the rows up to date with the files and return them, newest first.

        Args:
            files: session id to the stamp of its journal, for every journal there is.
            read: makes the summary of a session; None leaves it out.
        """
        try:
            return self._refresh(self._path, files, read)
        except sqlite3.DatabaseError:
            self._remove()
        try:
            return self._refresh(self._path, files, read)
        except sqlite3.DatabaseError:
            return self._refresh(":memory:", files, read)

    def _refresh(self, path: str, files: dict[str, Stamp], read: Read) -> list[Summary]:
        with _opened(path) as database:
            known = {
                str(row[0]): (int(row[1]), int(row[2]))
                for row in database.execute(
                    "SELECT session_id, size_bytes, changed_ns FROM sessions"
                )
            }
            gone = [(one,) for one in known.keys() - files.keys()]
            changed = [one for one, stamp in files.items() if known.get(one) != stamp]
            with database:
                database.executemany("DELETE FROM sessions WHERE session_id = ?", gone)
                database.executemany(_INSERT, _rows(changed, read))
            found = database.execute(f"{_SELECT} ORDER BY started_at DESC, session_id DESC")
            return [Summary(*row) for row in found if row[0] in files]

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                os.unlink(self._path + suffix)


def _rows(changed: Iterable[str], read: Read) -> Iterator[tuple[object, ...]]:
    for session_id in changed:
        summary = read(session_id)
        if summary is not None:
            yield tuple(getattr(summary, name) for name in _COLUMNS)


@contextmanager
def _opened(path: str) -> Iterator[sqlite3.Connection]:
    if path != ":memory:":
        _make_private(path)
    with closing(sqlite3.connect(path, timeout=BUSY_MS / 1000)) as database:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError("an index of another version")
        if path != ":memory:":
            database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = OFF")
        if version == 0:
            with database:
                database.execute(_CREATE)
                database.execute(f"PRAGMA user_version = {VERSION}")
        yield database


def _make_private(path: str) -> None:
    """Create the file with mode 0600 before SQLite would with a wider one."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags, 0o600)
        try:
            os.fchmod(fd, 0o600)
        finally:
            os.close(fd)
    except OSError as exc:
        raise sqlite3.DatabaseError(str(exc)) from exc
