"""List files by a path pattern, newest first. Inside the sandbox.

The walk holds one descriptor per level, opens each folder from the one above it and follows no
link, so neither a cycle of links nor a folder swapped for one leads it elsewhere. It ends after
BUSY_S with what it has. Ignored folders are not entered unless the call names them.
"""

from __future__ import annotations

import heapq
import os
import re
import time
from collections.abc import Sequence
from hashlib import sha256
from itertools import islice

from rambarde_child.outcome import Outcome, ToolError, done
from rambarde_child.tools import ignore, paths
from rambarde_child.tools.ignore import IgnoreRules
from rambarde_child.tools.paths import Names, Place
from rambarde_child.tools.pattern import compile_pattern, expand_braces
from rambarde_wire import tools

BUSY_S = 10.0
MOST_LEVELS = 100
MOST_ENTRIES = 100_000
"""Entries looked at in one folder."""
SKIPPED = frozenset({b".git", b"node_modules", b"__pycache__", b".venv"})
"""Folders that are not entered unless named: no source of the project's own is in them."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAGIC = re.compile(rb"[*?\[{\\]")


def perform(arguments: tools.Glob, place: Place) -> Outcome:
    """Return the newest paths that match, relative to the workspace, and how many more there are.

    A pattern is relative to `path`; one without a slash matches names at any depth.
    """
    fixed, pattern = split_fixed(paths.parse_path(arguments.pattern))
    # A pattern that is absolute says itself where to look.
    start = fixed if fixed.startswith(b"/") else paths.parse_path(arguments.path) + b"/" + fixed
    try:
        patterns = [compile_pattern(one) for one in expand_braces(pattern)]
    except re.error as exc:
        raise ToolError("bad_pattern", f"{arguments.pattern}: {exc.msg}") from None
    walk = _Walk(place, patterns)
    walk.run(paths.locate(place, start))
    return done(walk.text(), place.limits.result_bytes, fingerprint=walk.seen.hexdigest())


def split_fixed(pattern: bytes) -> tuple[bytes, bytes]:
    """Split a pattern into the folder it names and what is matched below it."""
    if b"/" not in pattern:
        return b".", b"**/" + pattern
    parts = pattern.split(b"/")
    count = 0
    while count < len(parts) - 1 and not _MAGIC.search(parts[count]):
        count += 1
    fixed = b"/".join(parts[:count]) or (b"/" if pattern.startswith(b"/") else b".")
    rest = b"/".join(part for part in parts[count:] if part)
    return fixed, rest or b"**"


class _Walk:
    """One walk over a folder; holds the newest hits, a count and a hash of all of them."""

    def __init__(self, place: Place, patterns: Sequence[re.Pattern[bytes]]) -> None:
        self._place = place
        self._patterns = patterns
        self._base_bytes = 0
        self._newest: list[tuple[int, bytes]] = []
        self._count = 0
        self._notes: set[str] = set()
        self._skipped: set[bytes] = set()
        self._give_up_at = time.monotonic() + BUSY_S
        self.seen = sha256()

    def run(self, base: Names) -> None:
        """Walk the folder; the ignore files above it hold as well."""
        self._base_bytes = len(_prefix(base))
        layers: list[IgnoreRules] = []
        for depth in range(len(base)):
            with paths.opened(paths.open_folder(self._place, base[:depth])) as fd:
                layers += _load_rules(fd, _prefix(base[:depth]), ignore.FILES)
        with paths.opened(paths.open_folder(self._place, base)) as path_fd:
            self._enter(path_fd, b".", _prefix(base), layers, level=0)

    def _enter(
        self, above_fd: int, name: bytes, prefix: bytes, layers: list[IgnoreRules], *, level: int
    ) -> None:
        if level > MOST_LEVELS:
            self._notes.add(f"folders deeper than {MOST_LEVELS} levels were not searched")
            return
        try:
            fd = os.open(name, _FOLDER, dir_fd=above_fd)
        except OSError:
            self._notes.add("some folders could not be opened")
            return
        with paths.opened(fd):
            self._search(fd, prefix, layers, level=level)

    def _search(self, fd: int, prefix: bytes, layers: list[IgnoreRules], *, level: int) -> None:
        with os.scandir(fd) as listing:
            entries = {os.fsencode(entry.name): entry for entry in islice(listing, MOST_ENTRIES)}
        if len(entries) == MOST_ENTRIES:
            self._notes.add(f"of one folder only {MOST_ENTRIES} entries were looked at")
        present = [name for name in ignore.FILES if name in entries]
        layers = [*layers, *_load_rules(fd, prefix, present)]
        for name in sorted(entries):
            if time.monotonic() > self._give_up_at:
                self._notes.add(f"stopped after {BUSY_S:.0f} s: search a smaller folder")
                return
            path = prefix + name
            if not entries[name].is_dir(follow_symlinks=False):
                self._consider(path, entries[name], layers)
            elif name in SKIPPED:
                self._skipped.add(name)
            elif not ignore.is_ignored(layers, path, is_folder=True):
                self._enter(fd, name, path + b"/", layers, level=level + 1)

    def _consider(
        self, path: bytes, entry: os.DirEntry[str], layers: Sequence[IgnoreRules]
    ) -> None:
        relative = path[self._base_bytes :]
        if not any(pattern.match(relative) for pattern in self._patterns):
            return
        if not (entry.is_file(follow_symlinks=False) or entry.is_symlink()):
            return
        if ignore.is_ignored(layers, path, is_folder=False):
            return
        try:
            changed = entry.stat(follow_symlinks=False).st_mtime_ns
        except OSError:
            # Gone since it was listed.
            return
        self._count += 1
        self.seen.update(path + b"\0")
        heapq.heappush(self._newest, (changed, path))
        if len(self._newest) > self._place.limits.glob_hits:
            heapq.heappop(self._newest)

    def text(self) -> str:
        """Return one path a line, newest first, then notes in parentheses."""
        newest = sorted(self._newest, key=lambda hit: (-hit[0], hit[1]))
        lines = [paths.show(path) for _, path in newest] or ["(no file matches)"]
        if self._count > len(newest):
            lines.append(f"({self._count - len(newest)} more; narrow the pattern)")
        if self._skipped:
            names = ", ".join(paths.show(name) for name in sorted(self._skipped))
            lines.append(f"(not searched: {names}; name one in the pattern to search it)")
        return "\n".join(lines + [f"({note})" for note in sorted(self._notes)])


def _prefix(names: Names) -> bytes:
    return b"".join(name + b"/" for name in names)


def _load_rules(folder_fd: int, prefix: bytes, names: Sequence[bytes]) -> list[IgnoreRules]:
    rules = []
    for name in names:
        try:
            fd = paths.open_regular(folder_fd, name, paths.show_names((prefix + name,)))
        except ToolError:
            continue
        with paths.opened(fd):
            rules.append(IgnoreRules(os.read(fd, ignore.MOST_BYTES), prefix))
    return rules
