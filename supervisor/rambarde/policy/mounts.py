"""The template root of a session: what of the system children see, read-only. Trusted side.

The template is made once by the zygote and holds nothing of the person: programs, libraries, a few
files of /etc, generated identity files, harmless devices. Everything else of the host is absent,
which is stronger than forbidden.

Source: hier(7), pivot_root(2); systemd-resolved's /etc/resolv.conf is a link into /run, so ours is
generated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from rambarde.host.facts import HostFacts
from rambarde.host.venvs import installation_parts
from rambarde.host.workspace import Workspace
from rambarde_wire.orders import Entry, Link

RG_INSIDE = b"/rambarde/bin/rg"
GIT_EXCLUDES = b"/rambarde/git-excludes"
_GIT_SPECIAL = re.compile(rb"[\\*?\[\]!#]| (?= *$)")
"""Characters that gitignore(5) reads otherwise than as themselves."""
HOME_INSIDE = b"/home/agent"
HOSTNAME = b"rambarde"
PRIVATE = (b"/tmp", b"/var/tmp", b"/dev/shm", HOME_INSIDE)
"""Where each child has a tmpfs of its own."""

_ROOT_LINKS = (b"/bin", b"/sbin", b"/lib", b"/lib32", b"/lib64", b"/libx32")
_TREES = (b"/usr", b"/opt", b"/nix")
_ETC = (
    b"alternatives", b"bash.bashrc", b"ca-certificates", b"ca-certificates.conf",
    b"crypto-policies", b"debian_version", b"fonts", b"host.conf", b"inputrc",
    b"java-17-openjdk", b"ld.so.cache", b"ld.so.conf",
    b"ld.so.conf.d", b"localtime", b"locale.alias", b"magic", b"mime.types",
    b"nsswitch.conf", b"os-release", b"pki", b"profile", b"profile.d", b"protocols", b"python3",
    b"python3.11", b"services", b"ssl", b"terminfo", b"timezone",
)  # fmt: skip
_DEVICES = (b"null", b"zero", b"full", b"random", b"urandom")
_MACHINE_ID = b"0" * 31 + b"1\n"


def template_entries(
    space: Workspace, facts: HostFacts, *, inner_uid: int, inner_gid: int, git_config: bytes
) -> list[Entry]:
    """Return the entries of the template, parents before children.

    Args:
        space: interpreters that virtual environments of the workspace point to, and links that
            lead to them or spell its path otherwise.
        facts: our own interpreter's prefix and ripgrep.
        inner_uid: the uid a child sees as its own; named `agent` inside.
        inner_gid: likewise.
        git_config: the generated ~/.gitconfig, identity only.
    """
    entries = [Entry("tree", path, path) for path in _TREES if os.path.isdir(path)]
    entries += _root_links()
    entries += [_etc_entry(name) for name in _ETC if os.path.lexists(b"/etc/" + name)]
    entries += _generated(inner_uid, inner_gid)
    entries += [Entry("device", b"/dev/" + name, b"/dev/" + name) for name in _DEVICES]
    entries += [
        Entry("symlink", b"/dev/fd", b"/proc/self/fd"),
        Entry("symlink", b"/dev/stdin", b"/proc/self/fd/0"),
        Entry("symlink", b"/dev/stdout", b"/proc/self/fd/1"),
        Entry("symlink", b"/dev/stderr", b"/proc/self/fd/2"),
        Entry("symlink", b"/dev/ptmx", b"pts/ptmx"),
    ]
    entries += _git_files(space, git_config)
    if facts.rg:
        entries.append(Entry("file", RG_INSIDE, os.path.realpath(os.fsencode(facts.rg))))
    entries += _interpreters(space, facts)
    taken = {entry.target for entry in entries}
    entries += [
        Entry("symlink", path, text)
        for path, text in space.links
        if path not in taken and not is_private(path) and not _is_covered(path, entries, space)
    ]
    return entries


def _git_files(space: Workspace, git_config: bytes) -> Iterable[Entry]:
    """Git's system-wide file, with masked paths excluded: `git add -A` would add them as empty."""
    relative = [mask.path.removeprefix(space.root + b"/") for mask in space.masks]
    inside = [path for path in relative if not path.startswith(b"/") and b"\n" not in path]
    if inside:
        git_config += b"[core]\n\texcludesFile = " + GIT_EXCLUDES + b"\n"
        lines = b"".join(b"/" + _GIT_SPECIAL.sub(rb"\\\g<0>", path) + b"\n" for path in inside)
        yield Entry("text", GIT_EXCLUDES, lines)
    yield Entry("text", b"/etc/gitconfig", git_config)


def private_links(space: Workspace) -> list[Link]:
    """Return the links that lie in a child's own tmpfs, which no template can hold."""
    return [Link(path, text) for path, text in space.links if is_private(path)]


def is_private(path: bytes) -> bool:
    """Tell whether a path lies below a tmpfs that each child has to itself."""
    return path.startswith(tuple(one + b"/" for one in PRIVATE))


def _is_covered(path: bytes, entries: Iterable[Entry], space: Workspace) -> bool:
    """Tell whether the host's own folder is shown there, with the link in it."""
    shown = [entry.target for entry in entries if entry.kind == "tree"]
    return path.startswith(tuple(one + b"/" for one in (*shown, space.root, *space.beside)))


def _root_links() -> Iterable[Entry]:
    """Merged-usr systems link /bin into /usr; split ones have directories of their own."""
    for path in _ROOT_LINKS:
        if os.path.islink(path):
            yield Entry("symlink", path, os.readlink(path))
        elif os.path.isdir(path):
            yield Entry("tree", path, path)


def _etc_entry(name: bytes) -> Entry:
    path = b"/etc/" + name
    if os.path.islink(path) and os.path.realpath(path).startswith(b"/usr/"):
        return Entry("symlink", path, os.readlink(path))
    real = os.path.realpath(path)
    return Entry("tree" if os.path.isdir(real) else "file", path, real)


def _generated(uid: int, gid: int) -> Iterable[Entry]:
    passwd = (
        b"root:x:0:0:root:/root:/usr/sbin/nologin\n"
        b"agent:x:%d:%d:agent:/home/agent:/bin/bash\n"
        b"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n" % (uid, gid)
    )
    group = b"root:x:0:\nagent:x:%d:\nnogroup:x:65534:\n" % gid
    yield Entry("text", b"/etc/passwd", passwd)
    yield Entry("text", b"/etc/group", group)
    yield Entry("text", b"/etc/hosts", b"127.0.0.1 localhost rambarde\n::1 localhost\n")
    yield Entry("text", b"/etc/hostname", HOSTNAME + b"\n")
    yield Entry("text", b"/etc/resolv.conf", b"")
    yield Entry("text", b"/etc/machine-id", _MACHINE_ID)


def interpreter_folders(space: Workspace, facts: HostFacts) -> tuple[bytes, ...]:
    """Return the folders that Pythons run from: our own, and those of virtual environments."""
    own = installation_parts(os.fsencode(facts.prefix))
    return tuple(sorted({*space.interpreters, *own}))


def _interpreters(space: Workspace, facts: HostFacts) -> Iterable[Entry]:
    """Interpreters outside /usr: ours, and every hop of the workspace's virtual environments."""
    shown = set(_TREES)
    for path in interpreter_folders(space, facts):
        inside = any(path == tree or path.startswith(tree + b"/") for tree in shown)
        in_workspace = (path + b"/").startswith(space.root + b"/")
        if not inside and not in_workspace and os.path.isdir(path):
            shown.add(path)
            yield Entry("tree", path, path)
