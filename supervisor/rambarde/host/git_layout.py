"""Where a repository keeps its things, read as git reads it, without running git. Trusted side.

Theory of operation
-------------------
A linked worktree or a submodule has a `.git` *file* that names its git folder; that folder may
name a common one. Git needs to write there, so agents are given it. The file is the workspace's
own word, and an archive from anywhere can hold one that names some other project's repository. So
it counts only if the git folder, which the workspace cannot write, names the workspace in turn: a
worktree's by its `gitdir` file, a submodule's by `core.worktree` of its config.

Source: gitrepository-layout(5), git-worktree(1), gitsubmodules(7).
"""

from __future__ import annotations

import os
import re

from rambarde.host.beneath import read_beneath

_MAX_BYTES = 64 << 10
_WORKTREE = re.compile(rb'^[ \t]*worktree[ \t]*=[ \t]*"?([^"\r\n#;]+?)"?[ \t]*$', re.MULTILINE)
_PARTS = (b"HEAD", b"objects", b"refs")


def outside_repository(root: bytes) -> bytes | None:
    """Return the git folder outside the workspace that its `.git` file rightly leads to.

    It holds all that git needs: for a worktree the common folder, in which its own lies.
    """
    named = _line_of(root, b".git", b"gitdir:")
    if named is None:
        return None
    git_folder = os.path.realpath(os.path.join(root, named))
    if is_below(git_folder, root) or not _names_back(git_folder, root):
        return None
    common = git_folder
    if (common_named := _line_of(git_folder, b"commondir", b"")) is not None:
        common = os.path.realpath(os.path.join(git_folder, common_named))
    # A common folder holds the worktree's own one; any other would be somebody's claim again.
    rightful = is_below(git_folder, common) and not is_below(common, root)
    return common if rightful and _is_repository(common) else None


def inside_repositories(folder: bytes, root: bytes) -> tuple[bytes, ...]:
    """Return the git folders within the workspace that a folder's `.git` file leads to, or none.

    Both its own and the common one, as of worktrees of a bare repository in the same tree. They
    are there to be protected, so the file's word is enough. A `.git` that is a link is read where
    it lands.
    """
    git = os.path.realpath(os.path.join(folder, b".git"))
    if not is_below(git, root):
        return ()
    found = [git] if os.path.isdir(git) else []
    if (named := _line_of(os.path.dirname(git), os.path.basename(git), b"gitdir:")) is not None:
        found.append(os.path.realpath(os.path.join(os.path.dirname(git), named)))
    commons = [(one, _line_of(one, b"commondir", b"")) for one in found]
    found += [os.path.realpath(os.path.join(one, text)) for one, text in commons if text]
    return tuple(one for one in found if is_below(one, root) and one != root)


def is_below(path: bytes, folder: bytes) -> bool:
    """Tell whether a path is the folder or lies in it."""
    return (path + b"/").startswith(folder.rstrip(b"/") + b"/")


def _names_back(git_folder: bytes, root: bytes) -> bool:
    back = _line_of(git_folder, b"gitdir", b"")
    if back is not None:
        return os.path.realpath(os.path.join(git_folder, back)) == os.path.join(root, b".git")
    config = read_beneath(git_folder, b"config", max_bytes=_MAX_BYTES) or b""
    return any(
        os.path.realpath(os.path.join(git_folder, found)) == root
        for found in _WORKTREE.findall(config)
    )


def _is_repository(folder: bytes) -> bool:
    return all(os.path.lexists(os.path.join(folder, part)) for part in _PARTS)


def _line_of(folder: bytes, name: bytes, prefix: bytes) -> bytes | None:
    """Return the first line of a small file without its prefix; None when there is none."""
    data = read_beneath(folder, name, max_bytes=_MAX_BYTES)
    if data is None:
        return None
    line = data.split(b"\n", 1)[0].strip()
    if not line.startswith(prefix) or b"\0" in line:
        return None
    return line.removeprefix(prefix).strip() or None
