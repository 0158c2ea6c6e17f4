"""About how many tokens a text is, when nobody has counted. Trusted side. Pure.

A tokeniser would have to be the model's own and its vocabulary fetched; a quarter of the code
points is within a factor of two for prose and code, and is always marked as an estimate.
"""

from __future__ import annotations

from rambarde.models.base import AssistantMessage, ModelRequest


def estimate_tokens(*texts: str) -> int:
    """Return a quarter of the texts' code points, rounded up."""
    return (sum(len(text) for text in texts) + 3) // 4


def estimate_request(request: ModelRequest) -> int:
    """Return about how many tokens a request's input is; used before it is sent, too."""
    size = len(request.system)
    for tool in request.tools:
        size += len(tool.name) + len(tool.description) + len(str(tool.schema))
    for message in request.messages:
        size += len(message.text)
        if isinstance(message, AssistantMessage):
            size += sum(len(call.name) + len(call.arguments) for call in message.calls)
    return (size + 3) // 4
