"""A call's arguments on a progress line: redacted, then cut. Trusted side. Pure."""

from __future__ import annotations

from rambarde.broker.caller import OpenCall
from rambarde.broker.ports import Ports

SHOWN_CHARS = 160
_FROM_BYTES = 64 << 10
"""Redacted for it: a secret that begins on the line ends in here."""


def shown_arguments(call: OpenCall, ports: Ports) -> str:
    """Return the start of a call's arguments; of one that could not be read the model's words."""
    is_unread = call.result is not None and call.result.code == "bad_arguments"
    raw = call.wrote.arguments.encode(errors="replace") if is_unread else call.arguments
    return ports.redactor.text(raw[:_FROM_BYTES].decode(errors="replace"))[:SHOWN_CHARS]
