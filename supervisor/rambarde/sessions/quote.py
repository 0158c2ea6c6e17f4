"""Put the words of a subagent in a fence as data. Trusted side. Pure.

Theory of operation
-------------------
A report goes from one model to another. Its author has read files of strangers, so it may hold
text made to look like the harness: tags, role markers, marks of ours, escape sequences. Three
things are done to it, each visible so that nobody is misled about what was there:

    controls  ANSI and OSC sequences are removed; every other control, direction and invisible
              character is shown by its number
    marks     the opening bracket of a harness tag, of a chat template's token and of our own marks
              becomes a look-alike; a role marker at the start of a line is put behind `›`
    fence     a first and a last line that carry a hash of the text between them, which the text
              cannot foretell

What the reader is to believe (status, counts, files, session) stands outside the fence and is
never taken from inside it.

Source: ECMA-48 §5.4 (control sequences), Unicode 15 general category Cf.
"""

from __future__ import annotations

import hashlib
import re

from rambarde import texts

_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*+[ -/]*+[@-~]"
    r"|\x9b[0-?]*+[ -/]*+[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]{0,4096}+(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]++[0-~]"
)
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufe00-\ufe0e\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
    r"|(?<=[\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?=[\x00-\x7f])"
)
_WORDS = (
    "system|user|assistant|human|developer|tools?|functions?|invoke|parameters?|task|report"
    "|instructions?|thinking|s"
)
_TAGS = re.compile(
    r"<(?=\s{0,8}+(?:/\s{0,8}+)?+(?:"
    r"(?i:(?:system|user|assistant|tool|function|task|command|local-command|agent)[-_][a-z_-]+"
    r"|antml[:a-z_-]*)"
    # Not `<User>`: capitalised it is a type's parameter in half of all languages.
    rf"|{_WORDS}|{_WORDS.upper().replace('S?', 's?')})(?![a-zA-Z0-9]))"
)
_TOKENS = re.compile(r"<(?=[|｜▁]|</?SYS>>|(?:start|end)_of_turn>|(?:bos|eos|pad)>)")
_MARKS = re.compile(
    r"\[(?=/?(?:INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]|tronqué\])"
    r"|^(?P<indent>[ \t]{0,8}+)\[(?=(?:error|erreur|notice|avis|interrupted|interrompu|limite?"
    r"|loop|boucle|lost|perdu|refused|refus|timeout|délai|stopped|arrêt|system|système)\b)",
    re.IGNORECASE | re.MULTILINE,
)
_ROLES = re.compile(
    r"^(?=[ \t>*_#]{0,12}+(?:human|assistant|user|system|developer|tool|instruction|response|H|A)"
    r"[*_]{0,3}+ ?[:：])",
    re.IGNORECASE | re.MULTILINE,
)
_IDS = re.compile(
    r"^(?=[ \t]{0,8}+(?:task_id|session(?:_id)?)\s?[=:])", re.IGNORECASE | re.MULTILINE
)


class Fenced(str):
    """Text that holds a subagent's words only inside fences. Never fenced again."""

    __slots__ = ()


def fence(text: str, locale: str = "en") -> Fenced:
    """Return the text between two lines it cannot imitate, with all that misleads made visible.

    A text that is Fenced already is returned as it is.
    """
    if isinstance(text, Fenced):
        return text
    return wrapped(plain(text), locale)


def wrapped(quoted: str, locale: str = "en") -> Fenced:
    """Return a text that went through `plain` between the fence's two lines."""
    mark = hashlib.sha256(quoted.encode("utf-8", "replace")).hexdigest()[:12]
    note = texts.text("report_fence", locale)
    return Fenced(f'<agent-report id="{mark}"> ({note})\n{quoted}\n</agent-report {mark}>')


def plain(text: str) -> str:
    """Return the text without control sequences and with imitated marks made harmless."""
    shown = unseen_shown(_SEQUENCES.sub("", text.replace("\r\n", "\n")))
    shown = _TOKENS.sub("‹", _TAGS.sub("‹", shown))
    shown = _MARKS.sub(lambda match: f"{match['indent'] or ''}⟦", shown)
    return _IDS.sub("› ", _ROLES.sub("› ", shown))


def line(text: str, most_chars: int = 500) -> str:
    """Return the text as one harmless line of at most that many code points."""
    short = plain(" ".join(text[: 4 * most_chars].split()))
    return short if len(short) <= most_chars else short[: most_chars - 1] + "…"


def unseen_shown(text: str) -> str:
    """Return the text with control, direction and invisible characters shown by their number."""
    return _UNSEEN.sub(lambda match: _number(ord(match[0])), text)


def _number(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
