"""Folders outside the workspace that its virtual environments need to run. Trusted side.

A venv's `python` may reach its interpreter over several links (uv, pyenv, conda); every hop must
exist inside the sandbox, and the standard library lies beside the last one.

Source: PEP 405; path_resolution(7).
"""

from __future__ import annotations

import os
from collections.abc import Iterable

_HOPS = 40
_SYSTEM = (b"/usr/", b"/bin/", b"/opt/", b"/nix/", b"/lib/")


def interpreter_folders(venvs: Iterable[bytes], root: bytes) -> tuple[bytes, ...]:
    """Return the folders to show read-only, for venvs of the workspace; sorted, without doubles."""
    found: set[bytes] = set()
    for venv in venvs:
        for folder in _hops(os.path.join(venv, b"bin", b"python")):
            outside = not (folder + b"/").startswith(root + b"/")
            if outside and not (folder + b"/").startswith(_SYSTEM) and folder.count(b"/") > 1:
                found.add(folder)
    return tuple(sorted(found))


def _hops(path: bytes) -> Iterable[bytes]:
    for _hop in range(_HOPS):
        if not os.path.islink(path):
            break
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        yield os.path.dirname(os.path.dirname(path))
    yield os.path.dirname(os.path.dirname(os.path.realpath(path)))
