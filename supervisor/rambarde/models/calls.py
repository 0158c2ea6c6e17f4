"""The tool calls of a reply as they arrive in pieces. Trusted side. No I/O.

Servers that call themselves compatible differ: some leave out `index`, some give every call index 0
but a new id, some repeat the name in each piece, some send arguments as an object, some send no id
at all. The rules here tell the calls apart in all these cases; what the arguments say is judged
later, by the broker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from rambarde.ids import new_call_id
from rambarde.models.base import ToolCall
from rambarde.models.shapes import as_map, as_text, parse_object


@dataclass(slots=True)
class PartialCall:
    """A call under way: `arguments` are the pieces of its JSON text."""

    call_id: str = ""
    name: str = ""
    index: int | None = None
    arguments: list[str] = field(default_factory=list)


class CallPieces:
    """Puts the pieces of chat completions' `tool_calls` together."""

    def __init__(self) -> None:
        self._calls: list[PartialCall] = []

    def __len__(self) -> int:
        """Return how many calls have begun."""
        return len(self._calls)

    def add(self, piece: Mapping[str, object]) -> str:
        """Take one piece of a call; return the name of the call if the piece begins one."""
        function = as_map(piece.get("function"))
        call_id, name = as_text(piece.get("id")), as_text(function.get("name"))
        index = piece.get("index")
        before = len(self._calls)
        call = self._find(index if isinstance(index, int) else None, call_id, name)
        if name and name != call.name and not call.arguments:
            call.name += name
        call.call_id = call.call_id or call_id
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            call.arguments.append(json.dumps(arguments, ensure_ascii=False))
        elif text := as_text(arguments):
            call.arguments.append(text)
        return call.name if len(self._calls) > before else ""

    def _find(self, index: int | None, call_id: str, name: str) -> PartialCall:
        """Return the call a piece belongs to, a new one when it belongs to none."""
        for call in self._calls:
            if call_id and call.call_id == call_id and call.index == index:
                return call
        if not (call_id and name):
            if index is not None:
                same = [call for call in self._calls if call.index == index]
            else:
                same = [call for call in self._calls[-1:] if _goes_on(call, name)]
            if same:
                return same[-1]
        call = PartialCall(index=index)
        self._calls.append(call)
        return call

    def finish(self) -> tuple[ToolCall, ...]:
        """Return the calls in the order they began; empty ones are left out."""
        return finish_calls(self._calls)


def _goes_on(call: PartialCall, name: str) -> bool:
    """Say whether a piece without id and index goes on with `call`, or begins the next one."""
    if not name:
        return True
    return name == call.name and parse_object("".join(call.arguments)) is None


def finish_calls(calls: list[PartialCall]) -> tuple[ToolCall, ...]:
    """Return whole calls; a missing or repeated id is replaced, no arguments mean `{}`."""
    finished: list[ToolCall] = []
    seen: set[str] = set()
    for call in calls:
        arguments = "".join(call.arguments)
        if not call.name and not arguments:
            continue
        call_id = call.call_id if call.call_id and call.call_id not in seen else new_call_id()
        seen.add(call_id)
        finished.append(ToolCall(call_id, call.name, arguments if arguments.strip() else "{}"))
    return tuple(finished)


def sendable_arguments(arguments: str) -> dict[str, object]:
    """Return a past call's arguments as a server accepts them: an object, `{}` if they were broken.

    A call that was cut off stays in the history with half its JSON; llama.cpp's server answers 500
    to every later request that repeats it.
    """
    return parse_object(arguments) or {}
