"""Write a whole file, bytes as given. Inside the sandbox."""

from __future__ import annotations

from rambarde_child.outcome import Outcome, ToolError, done
from rambarde_child.tools.diff import count_lines
from rambarde_child.tools.paths import Place, locate, parse_path, show_names
from rambarde_child.tools.replacing import read_whole, replace_file
from rambarde_wire import tools


def perform(arguments: tools.Write, place: Place) -> Outcome:
    """Create the file, with the folders on its way, or replace what is in it.

    Raises:
        ToolError: see `replace_file`; `bad_arguments` for text that has no UTF-8 form.
    """
    names = locate(place, parse_path(arguments.path))
    try:
        new = arguments.content.encode()
    except UnicodeEncodeError:
        raise ToolError("bad_arguments", "content holds half of a surrogate pair") from None
    old = read_whole(place, names)
    replace_file(place, names, old, new)
    lines = count_lines(new)
    how = "a new file" if old is None else f"before: {len(old)} bytes, {count_lines(old)} lines"
    text = f"wrote {show_names(names)}: {len(new)} bytes, {lines} lines ({how})"
    return done(text, place.limits.result_bytes)
