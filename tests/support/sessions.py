"""Journals to try things on."""

from __future__ import annotations

from pathlib import Path

from rambarde.ids import SessionId
from rambarde.models.base import AssistantMessage, ToolCall, ToolMessage, UserMessage
from rambarde.sessions.journal import Journal
from rambarde.sessions.store import Store


class Ticks:
    """A time of day that moves on by a second at each look."""

    def __init__(self, start: float = 1.8e9) -> None:
        self.at = start

    def __call__(self) -> float:
        self.at += 1.0
        return self.at


def session_id(number: int) -> SessionId:
    """An id that sorts by its number."""
    return SessionId(f"20261201-{number:06d}-0000abcd")


def conversation(journal: Journal) -> None:
    """Write a small conversation: a brief, two calls with results, an answer."""
    journal.write_message(UserMessage("count the files"))
    calls = (ToolCall("c1", "glob", '{"pattern":"*"}'), ToolCall("c2", "bash", '{"command":"ls"}'))
    journal.write_message(AssistantMessage("I look.", calls), finish_reason="tool_calls")
    journal.write("verdict", {"call_id": "x1", "tool": "glob", "verdict": "allow"})
    journal.write("verdict", {"call_id": "x2", "tool": "bash", "verdict": "deny"})
    journal.write_message(ToolMessage("c1", "glob", "a.txt"), call_id="x1")
    journal.write_message(
        ToolMessage("c2", "bash", "no", is_error=True), call_id="x2", code="asked"
    )
    journal.write_message(AssistantMessage("One file, é."), finish_reason="stop")


def finished(store: Store, number: int = 1, **header: object) -> Path:
    """Make a session with a conversation and an end."""
    journal = store.create(session_id(number), {"agent": "general", "depth": 0, **header})
    conversation(journal)
    journal.write("end", {"status": "done", "actions": 2})
    journal.close()
    return Path(journal.path)
