"""What lies outside the workspace that its virtual environments need to run. Trusted side.

Theory of operation
-------------------
A venv's `python` may reach its interpreter over several links (uv, pyenv, conda). Each hop must
exist inside the sandbox, and the standard library lies beside the last one. But whoever wrote the
workspace wrote those links, and a folder they lead to is shown to agents: a link to
`~/x/python` must not show the home. So nothing is believed by its name:

* a chain of links counts only if it ends at a program that lies in `bin` of a Python installation,
  known by its standard library;
* of the installation only the folders that a Python runs from are shown, not the folder around
  them, which may be somebody's `~/.local`;
* a hop is made anew as a link, so the folder that holds it stays hidden.

Source: PEP 405; path_resolution(7).
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from rambarde.host.beneath import read_beneath

_MOST_HOPS = 40
_CFG_BYTES = 16 << 10
_SYSTEM = (b"/usr/", b"/bin/", b"/sbin/", b"/lib/", b"/lib64/", b"/opt/", b"/nix/")
_PARTS = (b"bin", b"lib", b"lib64", b"include")
_PROGRAM = re.compile(rb"(python|pypy)[0-9.]*t?d?")
_HOME = re.compile(rb"^home[ \t]*=[ \t]*(/[^\r\n\0]+?)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Interpreters:
    """`folders` to show read-only; `links` (path, what it says) to make anew. Both sorted."""

    folders: tuple[bytes, ...] = ()
    links: tuple[tuple[bytes, bytes], ...] = ()


def find_interpreters(venvs: Iterable[bytes], root: bytes) -> Interpreters:
    """Return what the venvs of a workspace need of the host.

    Args:
        venvs: folders of the workspace that hold a pyvenv.cfg.
        root: the workspace.
    """
    folders: set[bytes] = set()
    links: dict[bytes, bytes] = {}
    for venv in venvs:
        for start in _starts(venv):
            program, hops = _follow(start)
            prefix = _prefix_of(program)
            if prefix is None:
                continue
            links.update((link, text) for link, text in hops if not _is_shown(link, root))
            if not _is_shown(prefix, root):
                folders.update(installation_parts(prefix))
    return Interpreters(tuple(sorted(folders)), tuple(sorted(links.items())))


def installation_parts(prefix: bytes) -> tuple[bytes, ...]:
    """Return the folders of a Python installation that programs run from."""
    parts = (os.path.join(prefix, name) for name in _PARTS)
    return tuple(part for part in parts if os.path.isdir(part) and not os.path.islink(part))


def _starts(venv: bytes) -> Iterable[bytes]:
    """The venv's program, and the same name in the folder that its pyvenv.cfg calls home."""
    yield os.path.join(venv, b"bin", b"python")
    data = read_beneath(venv, b"pyvenv.cfg", max_bytes=_CFG_BYTES) or b""
    if home := _HOME.search(data):
        yield os.path.join(home[1], b"python3")


def _follow(path: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Walk a path part by part; return where it ends and every link met, with what it says.

    A loop, or more links than the kernel follows, ends nowhere (b"").
    """
    hops: list[tuple[bytes, bytes]] = []
    waiting = path.split(b"/")[::-1]
    here = b""
    while waiting:
        part = waiting.pop()
        if part in (b"", b"."):
            continue
        if part == b"..":
            here = os.path.dirname(here)
            continue
        here = here.rstrip(b"/") + b"/" + part
        if not os.path.islink(here):
            continue
        if len(hops) == _MOST_HOPS:
            return b"", []
        text = os.readlink(here)
        hops.append((here, text))
        here = b"" if text.startswith(b"/") else os.path.dirname(here)
        waiting += text.split(b"/")[::-1]
    return here, hops


def _prefix_of(program: bytes) -> bytes | None:
    """Return the installation a program belongs to; None when it is no Python in one."""
    folder, name = os.path.split(program)
    prefix, inner = os.path.split(folder)
    if inner != b"bin" or prefix in (b"", b"/") or not _PROGRAM.fullmatch(name):
        return None
    if not os.path.isfile(program) or not os.access(program, os.X_OK):
        return None
    library = os.path.join(glob.escape(prefix), b"lib*", b"p*[0-9].*", b"os.py")
    return prefix if glob.glob(library) else None


def _is_shown(path: bytes, root: bytes) -> bool:
    """Tell whether a path is in the sandbox anyway: of the workspace or of the system."""
    return (path + b"/").startswith((root + b"/", *_SYSTEM))
