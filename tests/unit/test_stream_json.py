"""Events become the lines that scripts of this field parse."""

from __future__ import annotations

from typing import Any

from rambarde.events import Event
from rambarde.oneshot.stream_json import StreamJson


def lines(*events: Event) -> list[dict[str, Any]]:
    """What is emitted for these events."""
    found: list[dict[str, Any]] = []
    stream = StreamJson(found.append, {"cwd": "/w"})
    for event in events:
        stream(event)
    return found


def test_calls_are_told_with_their_arguments() -> None:
    """A tool_use has the model's id and an object; broken arguments stay a text."""
    calls = [
        {"id": "m1", "name": "read", "arguments": '{"path":"a"}'},
        {"id": "m2", "name": "bash", "arguments": '{"command":'},
        {"id": "m3", "name": "glob", "arguments": ""},
    ]
    (line,) = lines(Event("model/settled", "s", "root", {"text": "Look.", "calls": calls}))
    text, first, second, third = line["message"]["content"]
    assert text == {"type": "text", "text": "Look."}
    assert first == {"type": "tool_use", "id": "m1", "name": "read", "input": {"path": "a"}}
    assert second["input"] == '{"command":'
    assert third["input"] == {}
    assert line["parent_tool_use_id"] is None


def test_a_refusal_by_approval_is_told() -> None:
    """A no is permission_denied with its actor; a yes is no line."""
    no = {"tool": "bash", "decision": "no", "actor": "automaton"}
    (line,) = lines(
        Event("approval/decided", "s", "root", no),
        Event("approval/decided", "s", "root", no | {"decision": "once"}),
    )
    assert (line["subtype"], line["actor"]) == ("permission_denied", "automaton")
