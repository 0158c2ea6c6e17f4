"""Rules of .gitignore and .ignore files. Inside the sandbox. No I/O.

The last rule that matches wins, a deeper file beats a higher one, `.ignore` beats `.gitignore`
beside it. A folder that is ignored is not entered, so nothing below it can be taken back by `!`.

Source: gitignore(5); precedence of .ignore as in ripgrep.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rambarde_child.tools.pattern import translate

FILES = (b".gitignore", b".ignore")
"""Names of rule files, the stronger last."""
MOST_BYTES = 256 << 10
"""Longest rule file that is read; of a longer one, the rest does not count."""
_MOST_RULES = 2000

_Rule = tuple[re.Pattern[bytes], bool, bool]


class IgnoreRules:
    """The rules of one file."""

    def __init__(self, data: bytes, base: bytes) -> None:
        """`data`: the file's bytes; `base`: path of its folder below the workspace, with `/`."""
        self._base_bytes = len(base)
        rules = [_parse(line) for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
        # Strongest first.
        self._rules = [rule for rule in reversed(rules) if rule is not None][:_MOST_RULES]
        # Most paths match no rule at all: one expression for all of them settles that at once.
        sources = b"|".join(b"(?:" + pattern.pattern + b")" for pattern, _, _ in self._rules)
        self._any = re.compile(sources, re.DOTALL) if sources else None

    def verdict(self, path: bytes, *, is_folder: bool) -> bool | None:
        """Return whether a path below the workspace is ignored, None when no rule matches."""
        relative = path[self._base_bytes :]
        if self._any is None or not self._any.match(relative):
            return None
        for pattern, ignores, folders_only in self._rules:
            if (is_folder or not folders_only) and pattern.match(relative):
                return ignores
        return None


def is_ignored(layers: Sequence[IgnoreRules], path: bytes, *, is_folder: bool) -> bool:
    """Ask the rule files above a path, the strongest (last) first."""
    for rules in reversed(layers):
        verdict = rules.verdict(path, is_folder=is_folder)
        if verdict is not None:
            return verdict
    return False


def _parse(line: bytes) -> _Rule | None:
    line = line.removesuffix(b"\r")
    stripped = line.rstrip(b" ")
    # A backslash keeps the one space after it.
    if stripped.endswith(b"\\") and len(stripped) < len(line):
        stripped += b" "
    if not stripped or stripped.startswith(b"#"):
        return None
    ignores = not stripped.startswith(b"!")
    rule = stripped if ignores else stripped[1:]
    folders_only = rule.endswith(b"/")
    rule = rule.rstrip(b"/") if folders_only else rule
    if not rule:
        return None
    if b"/" not in rule:
        rule = b"**/" + rule
    try:
        return re.compile(translate(rule.removeprefix(b"/")), re.DOTALL), ignores, folders_only
    except re.error:
        return None
