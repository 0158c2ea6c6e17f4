"""Files of the workspace that its git configuration names: as good as configuration. Trusted side.

`include.path` (and `includeIf`) makes a file of the tree a part of `.git/config`; `core.hooksPath`
makes a folder of it the hooks. Who may write there may have git run anything, so they are protected
with the configuration itself. Git is not run: the few lines are read as text, bounded, and believed
only as names to look at. A command that the configuration names (`core.fsmonitor`, a filter, an
alias) is no name of a file, and stays the person's to judge.

Source: git-config(1), "Includes", core.hooksPath.
"""

from __future__ import annotations

import os
import re

from rambarde.host.beneath import read_beneath
from rambarde.host.git_layout import is_below

_MOST_FILES = 16
_MAX_BYTES = 64 << 10
_SECTION = re.compile(rb"^[ \t]*\[[ \t]*([A-Za-z.-]+)[^\]\r\n]*\]", re.MULTILINE)
_KEY = re.compile(
    rb'(?im)^[ \t]*(path|hookspath)[ \t]*=[ \t]*"?([^"\r\n#;]+?)"?[ \t\r]*(?:[#;].*)?$'
)


def named_by_config(root: bytes) -> tuple[bytes, ...]:
    """Return what of the workspace `.git/config` includes or takes hooks from, absolute.

    They need not exist.
    """
    waiting = [os.path.join(root, b".git", b"config")]
    found: dict[bytes, None] = {}
    for _ in range(_MOST_FILES):
        if not waiting:
            break
        config = waiting.pop(0)
        data = read_beneath(root, os.path.relpath(config, root), max_bytes=_MAX_BYTES) or b""
        for section, key, value in _settings(data):
            is_hooks = (section, key) == (b"core", b"hookspath")
            if not is_hooks and (key != b"path" or section not in (b"include", b"includeif")):
                continue
            path = os.path.normpath(
                os.path.join(root if is_hooks else os.path.dirname(config), value)
            )
            if path != root and is_below(path, root) and path not in found:
                found[path] = None
                waiting += [] if is_hooks else [path]
    return tuple(found)


def _settings(data: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Return section, key and value of the lines that may matter, names in lower case."""
    heads = [(match.end(), match[1].lower()) for match in _SECTION.finditer(data)]
    found = []
    # A value may stand on the line of its section, so each section's text begins at its bracket.
    for number, (start, section) in enumerate(heads):
        end = heads[number + 1][0] if number + 1 < len(heads) else len(data)
        found += [(section, m[1].lower(), m[2]) for m in _KEY.finditer(data[start:end])]
    return found
