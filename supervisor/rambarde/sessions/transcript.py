"""From a journal's records back to the messages of its conversation. Trusted side. Pure.

Providers refuse a history in which a call has no result, and then refuse every later request. A
journal may end anywhere, so each call without a result gets one that says `interrupted`, and a
result without a call is left out. Whatever the records hold, what comes out can be sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rambarde.models.base import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from rambarde.sessions.record import Record
from rambarde.texts import text as say


def transcript(records: Iterable[Record], locale: str = "en") -> list[Message]:
    """Return the conversation that the records of one session hold, fit to be sent.

    Args:
        records: in the journal's order, from any part of it.
        locale: language of the results put in for calls that have none.

    Returns:
        Messages in order; after each assistant's message the results of its calls, in the order of
        the calls, one for each.
    """
    messages: list[Message] = []
    waiting: list[ToolCall] = []
    results: list[ToolMessage] = []
    for record in records:
        message = _message(record)
        if isinstance(message, ToolMessage):
            results.append(message)
        elif message is not None:
            messages += _answered(waiting, results, locale)
            messages.append(message)
            waiting = list(message.calls) if isinstance(message, AssistantMessage) else []
            results = []
    return messages + _answered(waiting, results, locale)


def _answered(calls: list[ToolCall], results: list[ToolMessage], locale: str) -> list[ToolMessage]:
    """Return one result for each call: its own, by id, or a made one."""
    left = list(results)
    answers = []
    for call in calls:
        # Some models give two calls of one reply the same id: results are then taken in order.
        own = next((one for one in left if one.call_id == call.call_id), None)
        if own is None:
            own = ToolMessage(call.call_id, call.name, say("interrupted", locale), is_error=True)
        else:
            left.remove(own)
        answers.append(own)
    return answers


def _message(record: Record) -> Message | None:
    """Return the message of a record; None for other kinds and for a message that says nothing."""
    if record.kind != "message":
        return None
    data = record.data
    text = _text(data, "text")
    match data.get("role"):
        case "user" if text:
            return UserMessage(text)
        case "assistant":
            calls = _calls(data.get("calls"))
            return (
                AssistantMessage(text, calls, _text(data, "reasoning")) if text or calls else None
            )
        case "tool":
            is_error = data.get("is_error") is True
            return ToolMessage(_text(data, "id"), _text(data, "name"), text, is_error)
        case _:
            return None


def _calls(value: object) -> tuple[ToolCall, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(
        ToolCall(_text(one, "id"), _text(one, "name"), _text(one, "arguments"))
        for one in value
        if isinstance(one, dict)
    )


def _text(data: Mapping[str, object], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""
