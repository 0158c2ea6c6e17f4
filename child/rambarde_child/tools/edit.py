"""Replace an exact text in a file, on bytes. Inside the sandbox.

No byte outside the places replaced changes: nothing is decoded, no line end rewritten. There is no
approximate match: a text that is not there, or is there twice, is refused with what is known.
"""

from __future__ import annotations

from rambarde_child.outcome import Outcome, ToolError, done
from rambarde_child.tools.folded import FoldedText
from rambarde_child.tools.paths import Place, locate, parse_path, show_names
from rambarde_child.tools.replacing import read_whole, replace_file
from rambarde_wire import tools

_MOST_NAMED = 10


def perform(arguments: tools.Edit, place: Place) -> Outcome:
    """Replace the one place where the old text stands, or with `replace_all` every one.

    Returns:
        Code `up_to_date` when the old text is not there and the new one is.

    Raises:
        ToolError: `not_found`, `no_match`, `not_unique`, `no_change`, or as `replace_file`.
    """
    names = locate(place, parse_path(arguments.path))
    shown = show_names(names)
    needle, new = _encode(arguments.old_string), _encode(arguments.new_string)
    if needle == new:
        raise ToolError("no_change", "old_string and new_string are the same")
    old = read_whole(place, names)
    if old is None:
        raise ToolError("not_found", f"{shown}: there is no such file; create it with write")
    text = FoldedText(old)
    count = text.count(needle)
    if not count:
        if new and text.count(new):
            words = f"{shown} is already up to date: new_string is there, old_string is not"
            return done(words, place.limits.result_bytes, code="up_to_date")
        raise ToolError("no_match", _no_match(shown, text, arguments.old_string))
    if count > 1 and not arguments.replace_all:
        raise ToolError("not_unique", _not_unique(shown, text, needle, count))
    spots = text.spots(needle, most=count)
    replace_file(place, names, old, text.replaced(spots, needle, new))
    lines = ", ".join(str(text.line(spot)) for spot in spots[:_MOST_NAMED])
    more = f" and {len(spots) - _MOST_NAMED} more" if len(spots) > _MOST_NAMED else ""
    words = f"edited {shown}: replaced {len(spots)} at line {lines}{more}"
    return done(words, place.limits.result_bytes)


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolError("bad_arguments", "the text holds half of a surrogate pair") from None


def _no_match(shown: str, text: FoldedText, needle: str) -> str:
    words = f"{shown}: old_string is not there"
    if "\N{REPLACEMENT CHARACTER}" in needle:
        words += "; \N{REPLACEMENT CHARACTER} stands for bytes that are not UTF-8, leave them out"
    first = next((line.strip() for line in needle.splitlines() if line.strip()), "")
    if first and (spots := text.spots(first.encode(), most=1)):
        words += f"; its first line is at line {text.line(spots[0])}, but what follows, or the"
        words += " spacing, differs"
    return words + "; read the file again and copy the text exactly, without the line numbers"


def _not_unique(shown: str, text: FoldedText, needle: bytes, count: int) -> str:
    lines = ", ".join(str(text.line(spot)) for spot in text.spots(needle, most=_MOST_NAMED))
    more = " and further ones" if count > _MOST_NAMED else ""
    words = f"{shown}: old_string is there {count} times, at line {lines}{more}"
    return f"{words}; add lines around it until it is unique, or set replace_all"
