"""Look at a workspace before anything runs in it. Trusted side.

Theory of operation
-------------------
One bounded walk finds what a plan needs: protected leaves that exist, every directory between them
and the root (pins: a read-only leaf below a directory that can be renamed protects nothing), files
to mask, virtual environments. Names are bytes and are only listed; nothing is followed, nothing is
run, git least of all. A protected entry that is a link is protected where it lands, if that is
inside; what lies outside is not in the sandbox at all.

What the budget did not reach is told, never passed over: the walk is a convenience for nested
repositories and masks, the anchored names of the root are always looked at.

Source: rename(2) (EBUSY on a mount point), mount_namespaces(7).
"""

from __future__ import annotations

import glob
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import rambarde
from rambarde.errors import UsageError
from rambarde.host.beneath import read_beneath
from rambarde.host.git_layout import outside_folders
from rambarde.host.patterns import Patterns, compile_patterns
from rambarde.host.venvs import interpreter_folders
from rambarde_wire.orders import Mask

MOST_ENTRIES = 20_000
MOST_S = 0.25
MOST_LEAVES = 400
_SKIPPED = frozenset({b".git", b"node_modules", b"__pycache__", b".mypy_cache", b".ruff_cache"})
_KEY_SUFFIXES = (b".pem", b".key")
_KEY_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace as it was at the start. Paths are absolute bytes, canonical.

    Fields: `cwd` the spelling the person used; `shown` the root as text; `aliases` links that spell
    it otherwise, with their targets; `read_only` leaves, `pins` and `masks` to lay; `outside_git`
    git folders outside that git needs; `interpreters` folders to show; `holds_installation` the
    part of the running program that lies inside, "" for none; `absent` protected names of the root
    that do not exist now; `warnings` for a person.
    """

    root: bytes
    cwd: bytes
    shown: str
    aliases: tuple[tuple[bytes, bytes], ...]
    owner_uid: int
    owner_gid: int
    read_only: tuple[bytes, ...]
    pins: tuple[bytes, ...]
    masks: tuple[Mask, ...]
    outside_git: tuple[bytes, ...]
    interpreters: tuple[bytes, ...]
    holds_installation: str
    agent_files: tuple[bytes, ...]
    absent: tuple[bytes, ...]
    warnings: tuple[str, ...]


@dataclass(slots=True)
class _Found:
    leaves: set[bytes] = field(default_factory=set)
    masks: list[Mask] = field(default_factory=list)
    venvs: list[bytes] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def scan_workspace(
    path: str | bytes, *, protected: Iterable[str], masks: Iterable[str], home: str
) -> Workspace:
    """Return what stands in a workspace.

    Args:
        path: as the person wrote it.
        protected: patterns of paths that agents may see and never write.
        masks: patterns of paths whose content is hidden.
        home: the person's home; it and what is above it is no workspace.

    Raises:
        UsageError: it is missing, no directory, cannot be read, or is too much to hand out.
    """
    given = os.path.abspath(os.fsencode(path))
    root = os.path.realpath(given)
    _check_root(root, given, home)
    protect, mask = compile_patterns(protected), compile_patterns(masks)
    found = _Found()
    _walk(root, protect, mask, found)
    absent = _anchored(root, protect, found.leaves)
    if os.path.isfile(os.path.join(root, b".git")):
        found.leaves.add(os.path.join(root, b".git"))
    outside = outside_folders(root)
    leaves = _landings(root, found)
    status = os.stat(root)
    return Workspace(
        root=root,
        cwd=given,
        shown=_shown(root),
        aliases=_aliases(given, root),
        owner_uid=status.st_uid,
        owner_gid=status.st_gid,
        read_only=(*sorted(leaves), *outside.read_only),
        pins=_pins(root, leaves),
        masks=tuple(sorted(found.masks, key=lambda one: one.path)),
        outside_git=outside.writable,
        interpreters=interpreter_folders(found.venvs, root),
        holds_installation=_installation_in(root),
        agent_files=_names(os.path.join(root, b".rambarde", b"agents")),
        absent=absent,
        warnings=tuple(found.warnings),
    )


def _check_root(root: bytes, given: bytes, home: str) -> None:
    shown = _shown(given)
    advice = "Give a project's folder with --repo DIR."
    try:
        status = os.stat(root)
        os.listdir(root)
    except FileNotFoundError:
        raise UsageError(f"the workspace {shown} does not exist", advice=advice) from None
    except NotADirectoryError:
        raise UsageError(f"the workspace {shown} is not a directory", advice=advice) from None
    except OSError as exc:
        text = f"the workspace {shown} cannot be read: {exc.strerror}"
        raise UsageError(text, advice=advice) from None
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"the workspace {shown} is not a directory", advice=advice)
    real_home = os.path.realpath(os.fsencode(home)) if home else b"/nonexistent"
    if root == b"/" or (real_home + b"/").startswith(root.rstrip(b"/") + b"/"):
        raise UsageError(
            f"the workspace {shown} is your home, holds it, or is the whole system", advice=advice
        )
    for system in (b"/usr", b"/etc", b"/proc", b"/sys", b"/dev", b"/bin", b"/lib"):
        if (root + b"/").startswith(system + b"/"):
            raise UsageError(f"the workspace {shown} is a part of the system", advice=advice)


def _walk(root: bytes, protect: Patterns, mask: Patterns, found: _Found) -> None:
    deadline = time.monotonic() + MOST_S
    left = MOST_ENTRIES
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        left -= len(entries)
        if left < 0 or time.monotonic() > deadline or len(found.leaves) > MOST_LEAVES:
            found.warnings.append(
                f"the scan for nested repositories and secret files stopped at {_shown(folder)}:"
                " what lies beyond is neither protected nor masked"
            )
            return
        waiting += _look_at(entries, folder == root, protect, mask, found)


def _look_at(
    entries: Iterable[os.DirEntry[bytes]],
    is_root: bool,
    protect: Patterns,
    mask: Patterns,
    found: _Found,
) -> Iterator[bytes]:
    """Note what matters of a folder's entries; yield the folders to go into."""
    for entry in entries:
        is_folder = entry.is_dir(follow_symlinks=False)
        if protect.has_name(entry.name):
            found.leaves.add(entry.path)
        elif mask.has_name(entry.name) and _is_secret(entry):
            found.masks.append(Mask(entry.path, is_dir=is_folder))
        elif entry.name == b"pyvenv.cfg":
            found.venvs.append(os.path.dirname(entry.path))
        if is_folder and entry.name == b".git" and not is_root:
            leaves = (os.path.join(entry.path, leaf) for leaf in protect.below_git)
            found.leaves.update(leaf for leaf in leaves if os.path.lexists(leaf))
        elif is_folder and entry.name not in _SKIPPED and not protect.has_name(entry.name):
            yield entry.path


def _is_secret(entry: os.DirEntry[bytes]) -> bool:
    """A certificate in a .pem file is public; only what holds a private key is hidden."""
    if entry.is_symlink():
        return False
    if not entry.name.endswith(_KEY_SUFFIXES):
        return True
    folder, name = os.path.split(entry.path)
    data = read_beneath(folder, name, max_bytes=_KEY_BYTES)
    return data is None or b"PRIVATE KEY" in data


def _anchored(root: bytes, protect: Patterns, leaves: set[bytes]) -> tuple[bytes, ...]:
    """Add the leaves that patterns anchored at the root name; return the plain ones not there."""
    absent = []
    for pattern in protect.anchored:
        if glob.has_magic(pattern):
            hits = glob.iglob(os.fsencode(pattern), root_dir=root, recursive=True)
            leaves.update(os.path.join(root, hit) for hit in hits)
            continue
        path = os.path.join(root, os.fsencode(pattern))
        if os.path.lexists(path):
            leaves.add(path)
        elif os.path.isdir(os.path.dirname(path)):
            absent.append(path)
    return tuple(absent)


def _landings(root: bytes, found: _Found) -> set[bytes]:
    """Return the leaves with links replaced by where they land, if that is inside the tree."""
    leaves = set()
    for leaf in found.leaves:
        landing = os.path.realpath(leaf)
        if not (landing + b"/").startswith(root + b"/") or landing == root:
            found.warnings.append(f"{_shown(leaf)} leads outside: not protected, and not reachable")
        elif os.path.exists(landing):
            leaves.add(landing)
            if os.path.isfile(landing) and os.lstat(landing).st_nlink > 1:
                found.warnings.append(f"{_shown(leaf)} has a second name (hard link) unprotected")
    return leaves


def _pins(root: bytes, leaves: Iterable[bytes]) -> tuple[bytes, ...]:
    pins = set()
    for leaf in leaves:
        folder = os.path.dirname(leaf)
        while folder != root and len(folder) > len(root):
            pins.add(folder)
            folder = os.path.dirname(folder)
    return tuple(sorted(pins, key=lambda path: (path.count(b"/"), path)))


def _aliases(given: bytes, root: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Return links to make so that the person's own spelling of the path works inside."""
    if given == root:
        return ()
    return ((given, root),)


def _installation_in(root: bytes) -> str:
    places = (os.path.dirname(rambarde.__file__ or ""), sys.prefix)
    for place in places:
        real = os.path.realpath(os.fsencode(place))
        if (real + b"/").startswith(root + b"/"):
            return _shown(real)
    return ""


def _names(folder: bytes) -> tuple[bytes, ...]:
    try:
        return tuple(sorted(os.listdir(folder)))
    except OSError:
        return ()


def _shown(path: bytes) -> str:
    try:
        return path.decode()
    except UnicodeDecodeError:
        return path.decode(errors="backslashreplace")
