"""Names of sessions, agents, tasks and calls as distinct types. Trusted side.

All are made here, never taken from a child. A session id sorts by time and is safe as a file name.
"""

from __future__ import annotations

import secrets
import time
from typing import NewType

SessionId = NewType("SessionId", str)
AgentId = NewType("AgentId", str)
TaskId = NewType("TaskId", str)
CallId = NewType("CallId", str)


def new_session_id(now: float | None = None) -> SessionId:
    """Return `YYYYMMDD-HHMMSS-` (UTC) and eight random hex digits."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    return SessionId(f"{stamp}-{secrets.token_hex(4)}")


def new_agent_id() -> AgentId:
    """Return `a` and ten random hex digits."""
    return AgentId("a" + secrets.token_hex(5))


def new_task_id() -> TaskId:
    """Return `t` and eight random hex digits."""
    return TaskId("t" + secrets.token_hex(4))


def new_call_id() -> CallId:
    """Return `c` and ten random hex digits; unique within a process, unlike a model's own ids."""
    return CallId("c" + secrets.token_hex(5))
