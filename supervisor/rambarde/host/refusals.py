"""Folders that are no workspace: too much to hand out, or the supervisor's own. Trusted side.

Whoever may write the supervisor's configuration sets its rules; whoever may write its records can
deny what was done. So neither lies in a workspace, nor a workspace in them.

Source: hier(7); XDG Base Directory Specification.
"""

from __future__ import annotations

import os
import stat

import platformdirs

from rambarde.errors import UsageError
from rambarde.host.git_layout import is_below
from rambarde.host.shown import shown_path

_ADVICE = "Give a project's folder with --repo DIR."
_SYSTEM = (
    b"/usr", b"/etc", b"/proc", b"/sys", b"/dev", b"/boot", b"/bin", b"/sbin", b"/lib", b"/lib32",
    b"/lib64", b"/libx32", b"/rambarde",
)  # fmt: skip
"""With all that is in them; the last is where children have their own programs."""
_SHARED = frozenset(
    {b"/home", b"/var", b"/run", b"/tmp", b"/var/tmp", b"/opt", b"/srv", b"/mnt", b"/media",
     b"/nix", b"/root"}
)  # fmt: skip
"""Themselves only: they hold what belongs to many."""


def check_workspace(root: bytes, given: bytes, home: str) -> os.stat_result:
    """Return the status of a folder that can be a workspace.

    Args:
        root: canonical path.
        given: as the person spelled it, for the texts.
        home: the person's home; empty when there is none.

    Raises:
        UsageError: it is missing, no directory, cannot be read, or must not be handed out.
    """
    shown = shown_path(given)
    status = _readable_folder(root, shown)
    if root == b"/":
        raise UsageError(f"the workspace {shown} is the whole system", advice=_ADVICE)
    if home and is_below(os.path.realpath(os.fsencode(home)), root):
        raise UsageError(f"the workspace {shown} is your home, or holds it", advice=_ADVICE)
    if root in _SHARED or any(is_below(root, system) for system in _SYSTEM):
        raise UsageError(f"the workspace {shown} is a part of the system", advice=_ADVICE)
    for own in _own_folders():
        if is_below(own, root) or is_below(root, own):
            raise UsageError(
                f"the workspace {shown} holds, or lies in, rambarde's own {shown_path(own)}:"
                " an agent could write its own rules or records",
                advice=_ADVICE,
            )
    return status


def _readable_folder(root: bytes, shown: str) -> os.stat_result:
    try:
        status = os.stat(root)
    except FileNotFoundError:
        raise UsageError(f"the workspace {shown} does not exist", advice=_ADVICE) from None
    except NotADirectoryError:
        raise UsageError(f"the workspace {shown} is not a directory", advice=_ADVICE) from None
    except OSError as exc:
        text = f"the workspace {shown} cannot be read: {exc.strerror}"
        raise UsageError(text, advice=_ADVICE) from None
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"the workspace {shown} is not a directory", advice=_ADVICE)
    if not os.access(root, os.R_OK | os.X_OK, effective_ids=True):
        text = f"the workspace {shown} cannot be read: you may not list or enter it"
        raise UsageError(text, advice=_ADVICE)
    return status


def _own_folders() -> tuple[bytes, ...]:
    """Return where configuration and records are kept, canonical; they need not exist."""
    folders = (
        platformdirs.user_config_dir("rambarde", appauthor=False),
        platformdirs.user_state_dir("rambarde", appauthor=False),
    )
    return tuple(os.path.realpath(os.fsencode(folder)) for folder in folders)
