"""The tools that a child performs itself, and the one way to perform a call. Inside the sandbox.

The kernel decides what they can reach; they only choose good words for its refusals.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from rambarde_child.outcome import Outcome, ToolError, done, error_of
from rambarde_child.pipe import ChannelClosedError, StopError
from rambarde_child.tools import edit, glob, read, write
from rambarde_child.tools.paths import Place, show
from rambarde_wire import tools
from rambarde_wire.frames import BreachError, Call

_DECODERS = {name: msgspec.json.Decoder(tools.TOOLS[name]) for name in tools.CHILD_TOOLS}


def perform_call(call: Call, place: Place) -> Outcome:
    """Perform one judged call. What goes wrong in it is its outcome.

    Raises:
        ChannelClosedError, StopError, BreachError: about the channel, not about the call.
    """
    try:
        return _perform(call, replace(place, call_id=call.call_id))
    except (ChannelClosedError, StopError, BreachError):
        raise
    except ToolError as exc:
        code, text = exc.code, exc.text
    except msgspec.MsgspecError as exc:
        code, text = "bad_arguments", f"{call.tool}: {exc}"
    except OSError as exc:
        named = show(exc.filename) if isinstance(exc.filename, bytes) else call.tool
        code, text = "tool_failed", error_of(exc, named).text
    except Exception as exc:  # noqa: BLE001 - one call that fails must not end the agent
        code, text = "tool_failed", f"{call.tool} failed: {type(exc).__name__}: {exc}"
    return done(text, place.limits.result_bytes, ok=False, code=code)


def _perform(call: Call, place: Place) -> Outcome:
    decoder = _DECODERS.get(call.tool)
    match None if decoder is None else decoder.decode(call.arguments):
        case tools.Read() as arguments:
            return read.perform(arguments, place)
        case tools.Glob() as arguments:
            return glob.perform(arguments, place)
        case tools.Write() as arguments:
            return write.perform(arguments, place)
        case tools.Edit() as arguments:
            return edit.perform(arguments, place)
    raise ToolError("tool_absent", f"{call.tool} is not a tool that an agent performs itself")
