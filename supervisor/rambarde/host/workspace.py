"""Look at a workspace before anything runs in it. Trusted side.

Theory of operation
-------------------
One bounded walk finds what a plan needs: protected leaves that exist, every directory between them
and the root (pins: a read-only leaf below a directory that can be renamed protects nothing), files
to mask, sockets of the host, virtual environments. Names are bytes and are only listed; nothing is
followed, nothing is run, git least of all. A protected entry that is a link is protected where it
lands, if that is inside; what lies outside is not in the sandbox at all.

The walk goes by level, so that what it does not reach is far from the root; that is told, never
passed over in silence. Names anchored at the root are looked at whatever the budget. After
MOST_FINE repositories within the tree, further ones are protected as a whole.

Source: rename(2) (EBUSY on a mount point), mount_namespaces(7).
"""

from __future__ import annotations

import glob
import os
import stat
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import rambarde
from rambarde.errors import UsageError
from rambarde.host.beneath import read_beneath
from rambarde.host.expand import expand
from rambarde.host.git_layout import is_below, outside_repository
from rambarde.host.git_named import named_by_config
from rambarde.host.patterns import Patterns, compile_patterns
from rambarde.host.venvs import find_interpreters
from rambarde_wire.orders import Mask

MOST_ENTRIES = 20_000
MOST_S = 0.25
MOST_FINE = 50
_SKIPPED = frozenset({b".git", b"node_modules", b"__pycache__", b".mypy_cache", b".ruff_cache"})
_KEY_SUFFIXES = (b".pem", b".key")
_KEY_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace as it was at the start. Paths are absolute bytes, canonical.

    Fields: `cwd` the spelling the person used; `shown` the root as text; `links` to make inside,
    each with what it says: other spellings of the root, hops to interpreters; `read_only` leaves,
    `pins` and `masks` to lay; `beside` folders outside that belong to the workspace (git's common
    folder), writable as it is; `interpreters` folders to show; `holds_installation` the part of
    the running program that lies inside, "" for none; `absent` protected names that do not exist
    now; `warnings` for a person.
    """

    root: bytes
    cwd: bytes
    shown: str
    links: tuple[tuple[bytes, bytes], ...]
    owner_uid: int
    owner_gid: int
    read_only: tuple[bytes, ...]
    pins: tuple[bytes, ...]
    masks: tuple[Mask, ...]
    beside: tuple[bytes, ...]
    interpreters: tuple[bytes, ...]
    holds_installation: str
    agent_files: tuple[bytes, ...]
    absent: tuple[bytes, ...]
    warnings: tuple[str, ...]


@dataclass(slots=True)
class _Found:
    leaves: set[bytes] = field(default_factory=set)
    absent: list[bytes] = field(default_factory=list)
    masks: dict[bytes, Mask] = field(default_factory=dict)
    repositories: int = 0
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
    _look_at_names(root, protect.anchored + protect.plain, found)
    for path in named_by_config(root):
        if os.path.lexists(path):
            found.leaves.add(path)
        else:
            found.absent.append(path)
    beside = _outside_git(root, protect, found)
    for path in _named(root, mask.anchored):
        _mask(root, path, found)
    leaves = _landings((root, *beside), found)
    interpreters = find_interpreters(found.venvs, root)
    status = os.stat(root)
    return Workspace(
        root=root,
        cwd=given,
        shown=_shown(root),
        links=(*(() if given == root else ((given, root),)), *interpreters.links),
        owner_uid=status.st_uid,
        owner_gid=status.st_gid,
        read_only=tuple(sorted(leaves)),
        pins=_pins((root, *beside), leaves),
        masks=tuple(found.masks[path] for path in sorted(found.masks)),
        beside=beside,
        interpreters=interpreters.folders,
        holds_installation=_installation_in(root),
        agent_files=_names(os.path.join(root, b".rambarde", b"agents")),
        absent=tuple(sorted(set(found.absent))),
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
    waiting = deque([root])
    while waiting:
        folder = waiting.popleft()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        left -= len(entries)
        if left < 0 or time.monotonic() > deadline:
            found.warnings.append(
                f"the scan for nested repositories and secret files stopped at {_shown(folder)}:"
                " what lies as deep or deeper may be neither protected nor masked"
            )
            return
        waiting += _look_at(root, entries, protect, mask, found)


def _look_at(
    root: bytes,
    entries: Iterable[os.DirEntry[bytes]],
    protect: Patterns,
    mask: Patterns,
    found: _Found,
) -> Iterator[bytes]:
    """Note what matters of a folder's entries; yield the folders to go into."""
    for entry in entries:
        is_folder = entry.is_dir(follow_symlinks=False)
        if protect.has_name(entry.name):
            found.leaves.add(entry.path)
            _mask_sockets(entry.path, found)
            continue
        if mask.has_name(entry.name) and _mask(root, entry.path, found):
            continue
        if entry.name == b"pyvenv.cfg":
            found.venvs.append(os.path.dirname(entry.path))
        elif entry.name == b".git":
            _mask_sockets(entry.path, found)
            if os.path.dirname(entry.path) != root:
                _nested_repository(entry.path, is_folder, protect, found)
            elif entry.is_file(follow_symlinks=False):
                found.leaves.add(entry.path)
        elif is_folder and entry.name not in _SKIPPED:
            yield entry.path
        elif _is_socket(entry):
            found.masks[entry.path] = Mask(entry.path, is_dir=False)


def _mask_sockets(folder: bytes, found: _Found) -> None:
    """Hide the sockets of a folder that the walk does not enter (git has one for its monitor).

    No namespace and no read-only mount keeps a process from a socket it can see by name: it would
    reach the host's program behind it.
    """
    if os.path.islink(folder):
        return
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if _is_socket(entry):
            found.masks[entry.path] = Mask(entry.path, is_dir=False)


def _is_socket(entry: os.DirEntry[bytes]) -> bool:
    if entry.is_file(follow_symlinks=False) or entry.is_symlink():
        return False
    try:
        return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False


def _nested_repository(git: bytes, is_folder: bool, protect: Patterns, found: _Found) -> None:
    found.repositories += 1
    if not is_folder or found.repositories > MOST_FINE:
        found.leaves.add(git)
    else:
        _look_at_names(git, protect.below_git, found)


def _look_at_names(folder: bytes, patterns: Iterable[str], found: _Found) -> None:
    """Add the leaves that patterns anchored at a folder name, and the plain ones not there."""
    patterns = tuple(patterns)
    found.leaves.update(_named(folder, patterns))
    for pattern in patterns:
        path = os.path.join(folder, os.fsencode(pattern))
        plain = not glob.has_magic(pattern)
        if plain and not os.path.lexists(path) and os.path.isdir(os.path.dirname(path)):
            found.absent.append(path)


def _named(folder: bytes, patterns: Iterable[str]) -> Iterator[bytes]:
    """Yield what exists of the paths that patterns anchored at a folder name."""
    for pattern in patterns:
        yield from expand(folder, os.fsencode(pattern))


def _outside_git(root: bytes, protect: Patterns, found: _Found) -> tuple[bytes, ...]:
    """Return the repository outside that the workspace's `.git` file leads to, with its leaves."""
    git = os.path.join(root, b".git")
    if not os.path.lexists(git):
        # One that an agent makes may stay if it is plain (new_repository.py).
        found.absent.append(git)
        return ()
    common = outside_repository(root) if os.path.isfile(git) else None
    if common is None:
        if not os.path.isdir(git):
            found.warnings.append(
                ".git leads to a repository that does not name this workspace in turn: git will"
                " not work inside"
            )
        return ()
    inner = tuple(name.removeprefix(".git/") for name in protect.anchored if name[:5] == ".git/")
    _look_at_names(common, inner, found)
    return (common,)


def _mask(root: bytes, path: bytes, found: _Found) -> bool:
    """Note a path to hide; a link is hidden where it lands. False when there is nothing to hide."""
    landing = os.path.realpath(path)
    try:
        is_folder = stat.S_ISDIR(os.stat(landing).st_mode)
    except OSError:
        return False
    if landing == root or not is_below(landing, root):
        return False
    if is_folder and os.path.exists(os.path.join(landing, b"pyvenv.cfg")):
        # `.env` is also a common name of a virtual environment.
        return False
    if path.endswith(_KEY_SUFFIXES) and not is_folder and not _holds_key(root, landing):
        return False
    found.masks[landing] = Mask(landing, is_dir=is_folder)
    return True


def _holds_key(root: bytes, path: bytes) -> bool:
    """A certificate in a .pem file is public; only what holds a private key is hidden."""
    data = read_beneath(root, os.path.relpath(path, root), max_bytes=_KEY_BYTES)
    return data is None or b"PRIVATE KEY" in data


def _landings(roots: tuple[bytes, ...], found: _Found) -> set[bytes]:
    """Return the leaves with links replaced by where they land, if that is within the roots."""
    leaves = set()
    for leaf in found.leaves:
        landing = os.path.realpath(leaf)
        if landing in roots or not any(is_below(landing, root) for root in roots):
            found.warnings.append(f"{_shown(leaf)} leads outside: not protected, and not reachable")
            continue
        if landing != leaf and os.path.islink(leaf):
            found.warnings.append(
                f"{_shown(leaf)} is a link: where it leads is protected, the link itself is not"
            )
        if os.path.exists(landing):
            leaves.add(landing)
            if os.path.isfile(landing) and os.lstat(landing).st_nlink > 1:
                found.warnings.append(f"{_shown(leaf)} has a second name (hard link) unprotected")
    return leaves


def _pins(roots: tuple[bytes, ...], leaves: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return every folder between a root and a leaf: one that can be renamed protects nothing."""
    pins = set()
    for leaf in leaves:
        folder = os.path.dirname(leaf)
        while folder not in roots and any(is_below(folder, root) for root in roots):
            pins.add(folder)
            folder = os.path.dirname(folder)
    return tuple(sorted(pins, key=lambda path: (path.count(b"/"), path)))


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
