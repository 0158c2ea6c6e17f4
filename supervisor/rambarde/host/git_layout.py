"""Where a repository keeps its things, read as git reads it, without running git. Trusted side.

A linked worktree or a submodule has a `.git` *file* that names its git folder; that folder may
name a common one. All are read bounded and believed only as paths to look at.

Source: gitrepository-layout(5), git-worktree(1).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

_MAX_BYTES = 4096
_RUN_BY_GIT = (b"hooks", b"config", b"config.worktree", b"info/attributes")


@dataclass(frozen=True, slots=True)
class GitFolders:
    """Git's folders of a workspace that lie outside of it.

    `writable` must be there for git to work; `read_only` are the parts that git runs or reads
    commands from.
    """

    writable: tuple[bytes, ...] = ()
    read_only: tuple[bytes, ...] = ()


def outside_folders(root: bytes) -> GitFolders:
    """Return the outside git folders of a workspace whose `.git` is a file; none otherwise."""
    git_folder = _named_by(os.path.join(root, b".git"), b"gitdir:")
    if git_folder is None:
        return GitFolders()
    git_folder = os.path.realpath(os.path.join(root, git_folder))
    named = _named_by(os.path.join(git_folder, b"commondir"), b"")
    common = os.path.realpath(os.path.join(git_folder, named)) if named else git_folder
    if _is_below(common, root) or not os.path.isdir(common):
        return GitFolders()
    if not _looks_like_git(common):
        return GitFolders()
    leaves = [os.path.join(common, name) for name in _RUN_BY_GIT]
    leaves += [os.path.join(git_folder, name) for name in (b"commondir", b"gitdir")]
    return GitFolders((common,), tuple(leaf for leaf in leaves if os.path.lexists(leaf)))


def _looks_like_git(folder: bytes) -> bool:
    """A `.git` file may name any folder; only one that is a repository is opened to agents."""
    parts = (b"HEAD", b"objects", b"refs")
    return all(os.path.lexists(os.path.join(folder, part)) for part in parts)


def _named_by(path: bytes, prefix: bytes) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        line = os.read(fd, _MAX_BYTES).split(b"\n", 1)[0].strip()
    except OSError:
        return None
    finally:
        os.close(fd)
    if not line.startswith(prefix) or b"\0" in line:
        return None
    return line.removeprefix(prefix).strip() or None


def _is_below(path: bytes, root: bytes) -> bool:
    return (path + b"/").startswith(root.rstrip(b"/") + b"/")
