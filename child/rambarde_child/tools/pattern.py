"""Path patterns to regular expressions that cannot blow up. Inside the sandbox. No I/O.

`*` and `?` stay within a name, `**` as a whole name stands for any number of folders, `[a-z]` and
`[!a]` are sets, a backslash takes the next byte as it is.

Between two stars the leftmost match is always good enough, so what follows a star is an atomic
group: once matched it is not tried elsewhere, and the time grows with pattern times path, not with
its power. The same holds between two `**`, where each name of the pattern takes exactly one.

Source: gitignore(5), glob(7); atomic groups: Python 3.11, re.
"""

from __future__ import annotations

import re

_STEP = b"(?:[^/]+/)*"
_BRACES = re.compile(rb"\{([^{}]*,[^{}]*)\}")
# A bracket first among the members is one of them.
_SET = re.compile(rb"\[([!^]?(?:\]|\\.|[^\]\\])(?:\\.|[^\]\\])*)\]", re.DOTALL)
_MOST_ALTERNATIVES = 64


def compile_pattern(pattern: bytes) -> re.Pattern[bytes]:
    """Return an expression for whole relative paths. Raises re.error on a set such as `[z-a]`."""
    return re.compile(translate(pattern), re.DOTALL)


def translate(pattern: bytes) -> bytes:
    """Return the source of the expression, for use with `match` and DOTALL."""
    groups: list[list[bytes]] = [[]]
    for part in pattern.split(b"/"):
        if part == b"**":
            groups.append([])
        else:
            groups[-1].append(_name(part))
    first, *others = [b"/".join(group) for group in groups]
    if not others:
        return first + rb"\Z"
    *between, last = others
    source = first + b"/" if first else b""
    for group in between:
        if group:
            source += b"(?>" + _STEP + b"?" + group + b"/)"
    return source + (_STEP + last + rb"\Z" if last else rb".+\Z")


def _name(part: bytes) -> bytes:
    """Translate one name: fixed runs with stars between them."""
    runs = [b""]
    at = 0
    while at < len(part):
        token, at = _token(part, at)
        if token == b"*":
            runs.append(b"")
        else:
            runs[-1] += token
    first, *others = runs
    if not others:
        return first
    between = b"".join(b"(?>[^/]*?" + run + b")" for run in others[:-1] if run)
    return first + between + b"[^/]*" + others[-1]


def _token(part: bytes, at: int) -> tuple[bytes, int]:
    byte = part[at : at + 1]
    if byte == b"*":
        return b"*", at + 1
    if byte == b"?":
        return b"[^/]", at + 1
    if found := _SET.match(part, at):
        return _set(found[1]), found.end()
    if byte == b"\\" and at + 1 < len(part):
        at += 1
    return re.escape(part[at : at + 1]), at + 1


def _set(inside: bytes) -> bytes:
    negated = inside[:1] in (b"!", b"^") and len(inside) > 1
    members = inside[1:] if negated else inside
    out = b"[^/" if negated else b"["
    at = 0
    while at < len(members):
        if members[at : at + 1] == b"\\" and at + 1 < len(members):
            at += 1
        out += rb"\x%02x" % members[at]
        at += 1
        if members[at : at + 1] == b"-" and at + 1 < len(members):
            out += rb"-\x%02x" % members[at + 1]
            at += 2
    return out + b"]"


def expand_braces(pattern: bytes) -> list[bytes]:
    """Return the patterns that `{a,b}` stands for, at most 64, the rest of them left out."""
    whole: list[bytes] = []
    waiting = [pattern]
    while waiting and len(waiting) + len(whole) <= _MOST_ALTERNATIVES:
        now = waiting.pop()
        found = _BRACES.search(now)
        if found is None:
            whole.append(now)
            continue
        waiting += [now[: found.start()] + one + now[found.end() :] for one in found[1].split(b",")]
    return list(dict.fromkeys(whole + waiting))[:_MOST_ALTERNATIVES]
