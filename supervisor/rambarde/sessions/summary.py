"""What a listing shows of a session, read from the two ends of its journal. Trusted side.

The chain is not checked here: a listing of a thousand sessions has to be quick, and it decides
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from rambarde.sessions.journal import is_locked
from rambarde.sessions.record import decode_record

HEAD_BYTES = 64 << 10
"""Read from the start: header and first message."""
TAIL_BYTES = 64 << 10
"""Read from the end at first; doubled up to MOST_TAIL_BYTES while the last line is longer."""
MOST_TAIL_BYTES = 8 << 20
TITLE_CHARS = 200


class Summary(msgspec.Struct, frozen=True):
    """One session in a listing. `status` is an outcome's, or `running`, or `open` (no end yet).

    `started_at`, `ended_at` are seconds since the epoch, 0.0 when there is none; `title` is the
    start of the first message; `size_bytes` and `changed_ns` are the file's.
    """

    session_id: str
    parent_id: str = ""
    root_id: str = ""
    depth: int = 0
    agent: str = ""
    agent_path: str = ""
    workspace: str = ""
    model: str = ""
    tier: str = ""
    title: str = ""
    status: str = "open"
    error: str = ""
    actions: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0
    size_bytes: int = 0
    changed_ns: int = 0

    @property
    def has_end(self) -> bool:
        """True when the journal's last record is an end."""
        return self.ended_at > 0


def summarize(path: str, session_id: str) -> Summary | None:
    """Return the summary of a journal; None when it has no header that can be read."""
    try:
        with open(path, "rb") as file:
            stat = os.fstat(file.fileno())
            head = file.read(HEAD_BYTES).split(b"\n")
            header = decode_record(head[0])
            if header is None or header.kind != "session":
                return None
            last = _last_line(file.fileno(), stat.st_size)
    except OSError:
        return None
    data = header.data
    first = next((one for line in head[1:8] if (one := decode_record(line))
                  and one.kind == "message"), None)  # fmt: skip
    end = decode_record(last)
    ended = end.data if end is not None and end.kind == "end" else {}
    return Summary(
        session_id=session_id,
        parent_id=_text(data, "parent_id"),
        root_id=_text(data, "root_id") or session_id,
        depth=_count(data, "depth"),
        agent=_text(data, "agent"),
        agent_path=_text(data, "agent_path"),
        workspace=_text(data, "workspace"),
        model=_text(data, "model"),
        tier=_text(data, "tier"),
        title=" ".join(_text(first.data, "text").split())[:TITLE_CHARS] if first else "",
        status=_text(ended, "status") or "open",
        error=_text(ended, "error"),
        actions=_count(ended, "actions"),
        started_at=header.at,
        ended_at=end.at if ended and end is not None else 0.0,
        size_bytes=stat.st_size,
        changed_ns=stat.st_mtime_ns,
    )


def with_life(summary: Summary, path: str) -> Summary:
    """Return the summary with status `running` or `lost` in place of `open`."""
    if summary.has_end:
        return summary
    return msgspec.structs.replace(summary, status="running" if is_locked(path) else "lost")


def _last_line(fd: int, size: int) -> bytes:
    wanted = TAIL_BYTES
    while True:
        start = max(0, size - wanted)
        tail = os.pread(fd, size - start, start)
        lines = tail.rsplit(b"\n", 2)
        # A whole last line lies between two newlines, or between the file's start and one.
        if len(lines) > 2 or start == 0 or wanted >= MOST_TAIL_BYTES:
            return lines[-2] if len(lines) > 1 else b""
        wanted *= 2


def _text(data: Mapping[str, object], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _count(data: Mapping[str, object], key: str) -> int:
    value = data.get(key)
    return value if isinstance(value, int) else 0
