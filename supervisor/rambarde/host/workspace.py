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
import itertools
import os
import stat
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import rambarde
import rambarde_wire
from rambarde.host.beneath import read_beneath
from rambarde.host.expand import expand
from rambarde.host.git_layout import inside_repositories, is_below, outside_repository
from rambarde.host.git_named import named_by_config
from rambarde.host.patterns import Patterns, compile_patterns
from rambarde.host.refusals import check_workspace
from rambarde.host.shown import shown_path
from rambarde.host.venvs import find_interpreters
from rambarde_wire.orders import Mask

MOST_ENTRIES = 20_000
MOST_S = 0.25
MOST_IN_ROOT = 100_000
MOST_FINE = 50
_SKIPPED = frozenset({b".git", b"__pycache__", b".mypy_cache", b".ruff_cache"})
_LAST = frozenset({b"node_modules", b"bower_components", b"site-packages", b".tox", b".nox"})
"""Big folders of packages that a person rarely writes in: looked at after all others."""
_BARE = frozenset({b"HEAD", b"objects", b"refs", b"config"})
"""What makes git take a folder of any name for a repository."""
_KEY_SUFFIXES = (b".pem", b".key")
_KEY_BYTES = 1 << 20
"""The bundle of public certificates that programs bring along is about 300 kB."""


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


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder to look at. `is_leaf`: it is in a protected one, so only secrets matter there."""

    path: bytes
    is_leaf: bool = False


@dataclass(slots=True)
class _Found:
    leaves: set[bytes] = field(default_factory=set)
    absent: list[bytes] = field(default_factory=list)
    masks: dict[bytes, Mask] = field(default_factory=dict)
    git_folders: set[bytes] = field(default_factory=set)
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
    root = os.path.realpath(os.fsencode(path))
    given = os.path.abspath(os.fsencode(path))
    status = check_workspace(root, given, home)
    if os.path.realpath(given) != root:
        # `link/..` is what is above the link's landing, not what is above the link.
        given = root
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
    _inside_git(root, protect, found)
    for path in _named(root, mask.anchored + mask.plain):
        _mask(root, path, found)
    leaves = _landings((root, *beside), found)
    interpreters = find_interpreters(found.venvs, root)
    return Workspace(
        root=root,
        cwd=given,
        shown=shown_path(root),
        links=(*(() if given == root else ((given, root),)), *interpreters.links),
        owner_uid=status.st_uid,
        owner_gid=status.st_gid,
        read_only=tuple(sorted(leaves)),
        pins=_pins((root, *beside), (*leaves, *found.masks)),
        masks=tuple(found.masks[path] for path in sorted(found.masks)),
        beside=beside,
        interpreters=interpreters.folders,
        holds_installation=_installation_in(root),
        agent_files=_names(os.path.join(root, b".rambarde", b"agents")),
        absent=tuple(sorted(set(found.absent))),
        warnings=tuple(found.warnings),
    )


def _walk(root: bytes, protect: Patterns, mask: Patterns, found: _Found) -> None:
    deadline = time.monotonic() + MOST_S
    left = MOST_ENTRIES
    waiting, last = deque([_Folder(root)]), deque[_Folder]()
    while waiting or last:
        queue = waiting or last
        folder = queue.popleft()
        # The root is listed further than the budget: what people call by name is mostly there.
        most = MOST_IN_ROOT if folder.path == root else left
        entries = _list(folder.path, most + 1)
        left -= len(entries)
        late = time.monotonic() > deadline
        for inner in _look_at(root, folder, entries, protect, mask, found):
            (last if os.path.basename(inner.path) in _LAST else queue).append(inner)
        if len(entries) > most or ((left <= 0 or late) and (waiting or last)):
            _tell_stop(folder.path, is_last=queue is last, found=found)
            return


def _tell_stop(path: bytes, *, is_last: bool, found: _Found) -> None:
    what = "what lies as deep or deeper may be neither protected nor masked"
    if is_last:
        what = "the rest of that folder of packages was not looked at"
    found.warnings.append(
        f"the scan for nested repositories and secret files stopped at {shown_path(path)}: {what}"
    )


def _look_at(
    root: bytes,
    folder: _Folder,
    entries: Sequence[os.DirEntry[bytes]],
    protect: Patterns,
    mask: Patterns,
    found: _Found,
) -> Iterator[_Folder]:
    """Note what matters of a folder's entries; yield the folders to go into."""
    if not folder.is_leaf and {entry.name for entry in entries} >= _BARE:
        found.git_folders.add(folder.path)
    for entry in entries:
        is_folder = entry.is_dir(follow_symlinks=False)
        if not folder.is_leaf and protect.has_name(entry.name):
            found.leaves.add(entry.path)
            if is_folder:
                yield _Folder(entry.path, is_leaf=True)
        elif mask.has_name(entry.name) and _mask(root, entry.path, found):
            continue
        elif entry.name == b"pyvenv.cfg":
            found.venvs.append(folder.path)
        elif entry.name == b".git" and not folder.is_leaf:
            _mask_sockets(entry.path, found)
            _note_git(root, entry, is_folder, found)
        elif is_folder and entry.name not in _SKIPPED:
            yield _Folder(entry.path, is_leaf=folder.is_leaf)
        elif _is_socket(entry):
            found.masks[entry.path] = Mask(entry.path, is_dir=False)


def _note_git(root: bytes, git: os.DirEntry[bytes], is_folder: bool, found: _Found) -> None:
    """Note a `.git`: a folder's parts, or the file, or link, that leads to the folder."""
    folder = os.path.dirname(git.path)
    if is_folder:
        if folder == root:
            return
        found.repositories += 1
        if found.repositories <= MOST_FINE:
            found.git_folders.add(git.path)
        else:
            found.leaves.add(git.path)
        return
    if git.is_file(follow_symlinks=False):
        found.leaves.add(git.path)
    elif git.is_symlink():
        found.warnings.append(
            f"{shown_path(git.path)} is a link: the repository is protected, the link itself is not"
        )
    found.git_folders.update(inside_repositories(folder, root))


def _list(folder: bytes, most: int) -> list[os.DirEntry[bytes]]:
    """Return a folder's entries, at most `most`; none of one that cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return list(itertools.islice(entries, most))
    except OSError:
        return []


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


def _inside_git(root: bytes, protect: Patterns, found: _Found) -> None:
    """Add the leaves of every git folder of the tree: all that git is configured by or runs."""
    for folder in sorted(found.git_folders):
        if is_below(folder, root):
            _look_at_names(folder, protect.in_git, found)


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
        if not os.path.isdir(git) and not inside_repositories(root, root):
            found.warnings.append(
                ".git leads to a repository that does not name this workspace in turn: git will"
                " not work inside"
            )
        return ()
    _look_at_names(common, protect.in_git, found)
    return (common,)


def _mask(root: bytes, path: bytes, found: _Found) -> bool:
    """Note a path to hide; a link is hidden where it lands. False when there is nothing to hide."""
    landing = os.path.realpath(path)
    try:
        status = os.stat(landing)
    except OSError:
        return False
    is_folder = stat.S_ISDIR(status.st_mode)
    if landing == root or not is_below(landing, root):
        return False
    if is_folder and os.path.exists(os.path.join(landing, b"pyvenv.cfg")):
        # `.env` is also a common name of a virtual environment.
        return False
    if path.endswith(_KEY_SUFFIXES) and not is_folder and not _holds_key(root, landing):
        return False
    if landing not in found.masks and not is_folder and status.st_nlink > 1:
        found.warnings.append(
            f"{shown_path(path)} has a second name (hard link), under which it may not be hidden"
        )
    found.masks[landing] = Mask(landing, is_dir=is_folder)
    return True


def _holds_key(root: bytes, path: bytes) -> bool:
    """Tell whether a .pem or .key file may be secret: it is not if all its parts are public.

    What is not in PEM form may be a key in binary form (DER), or the bare words of one.
    """
    data = read_beneath(root, os.path.relpath(path, root), max_bytes=_KEY_BYTES)
    if data is None:
        return True
    return b"PRIVATE KEY" in data or (data.strip() != b"" and b"-----BEGIN " not in data)


def _landings(roots: tuple[bytes, ...], found: _Found) -> set[bytes]:
    """Return the leaves with links replaced by where they land, if that is within the roots."""
    leaves = set()
    for leaf in found.leaves:
        landing = os.path.realpath(leaf)
        if landing in roots or not any(is_below(landing, root) for root in roots):
            found.warnings.append(
                f"{shown_path(leaf)} leads outside: not protected, and not reachable"
            )
            continue
        if landing != leaf and os.path.islink(leaf):
            if not os.path.lexists(landing):
                # Whoever makes the landing makes what the link stands for.
                found.absent.append(landing)
            found.warnings.append(
                f"{shown_path(leaf)} is a link: where it leads is protected, the link itself is not"
            )
        if os.path.exists(landing):
            leaves.add(landing)
            if os.path.isfile(landing) and os.lstat(landing).st_nlink > 1:
                found.warnings.append(
                    f"{shown_path(leaf)} has a second name (hard link) unprotected"
                )
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
    packages = (rambarde.__file__, rambarde_wire.__file__)
    places = (*(os.path.dirname(one or "") for one in packages), sys.prefix, sys.base_prefix)
    for place in places:
        real = os.path.realpath(os.fsencode(place))
        if is_below(real, root):
            return shown_path(real)
    return ""


def _names(folder: bytes) -> tuple[bytes, ...]:
    try:
        return tuple(sorted(os.listdir(folder)))
    except OSError:
        return ()
