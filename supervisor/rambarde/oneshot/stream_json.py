"""Project events to the line-by-line JSON that scripts of this field parse. Trusted side. Pure.

One object a line: `system/init` first, `assistant` and `user` messages with `parent_tool_use_id`,
`system/task_started` and `task_notification`, `permission_denied`, and last the `result`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rambarde.events import Event

_TASK_WORDS = {"done": "completed", "interrupted": "stopped"}


class StreamJson:
    """A listener that hands each projected object to `emit`."""

    def __init__(
        self, emit: Callable[[dict[str, object]], None], head: Mapping[str, object]
    ) -> None:
        """`head` holds what `system/init` tells: cwd, model, tools, session, tier."""
        self._emit = emit
        self._head = head
        self._number = 0

    def __call__(self, event: Event) -> None:
        """Take one event."""
        projected = self._project(event)
        if projected is not None:
            self._number += 1
            self._emit({**projected, "session_id": event.session_id, "seq": self._number})

    def _project(self, event: Event) -> dict[str, object] | None:
        data = dict(event.data)
        parent = None if event.agent_path == "root" else event.agent_path
        match event.kind:
            case "session/started":
                return {"type": "system", "subtype": "init", **self._head, **data}
            case "model/settled":
                return {
                    "type": "assistant",
                    "parent_tool_use_id": parent,
                    "message": {"role": "assistant", "content": _content(data)},
                }
            case "tool/settled":
                return {"type": "user", "parent_tool_use_id": parent, "tool_result": data}
            case "task/started":
                return {"type": "system", "subtype": "task_started", **data}
            case "task/settled":
                word = _TASK_WORDS.get(str(data.get("status")), "failed")
                return {"type": "system", "subtype": "task_notification", **data, "state": word}
            case "approval/decided" if data.get("decision") == "no":
                return {"type": "system", "subtype": "permission_denied", **data}
            case "agent/loop" | "agent/limit" | "notice":
                return {"type": "system", "subtype": event.kind.replace("/", "_"), **data}
            case _:
                return None


def _content(data: dict[str, object]) -> list[dict[str, object]]:
    content: list[dict[str, object]] = []
    if data.get("text"):
        content.append({"type": "text", "text": data["text"]})
    calls = data.get("calls")
    if isinstance(calls, list):
        content += [_tool_use(call) for call in calls]
    return content


def _tool_use(call: Mapping[str, str]) -> dict[str, object]:
    """A call as the model wrote it; arguments that are no JSON stay a text."""
    try:
        arguments: Any = msgspec.json.decode(call["arguments"] or "{}")
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        arguments = call["arguments"]
    return {"type": "tool_use", "id": call["id"], "name": call["name"], "input": arguments}
