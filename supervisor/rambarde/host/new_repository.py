"""Tell a repository that does nothing by itself from one that runs programs. Trusted side.

An agent may rightly make a repository where there was none. The next `git status` of the person
would then run what its hooks and its configuration name. Only settings from a short list, of which
none names a program, a path or another file, leave it plain.

Source: git-config(1), githooks(5), gitrepository-layout(5). Git itself is never run.
"""

from __future__ import annotations

import os
import re

from rambarde.host.beneath import open_beneath, read_beneath

_CONFIG_BYTES = 64 << 10
_PLAIN = re.compile(
    rb"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode"
    rb"|symlinks|autocrlf|eol)|user\.(name|email)|remote\.(url|fetch)|branch\.(remote|merge|rebase)"
    rb"|init\.defaultbranch|pull\.rebase|extensions\.objectformat"
)
_SECTION = re.compile(rb'\[([a-z0-9-]+)(?: "[^"\\\n]*")?\]')
_KEY = re.compile(rb"([A-Za-z][A-Za-z0-9-]*)(?:[ \t]*=.*)?")
_STRANGE = (b"commondir", b"config.worktree", b"info/attributes", b"modules", b"worktrees")


def is_plain_repository(git_folder: bytes) -> bool:
    """Tell whether git would run nothing and read no other file because of this folder.

    Args:
        git_folder: canonical path of a `.git`; anything else than a folder is not plain.
    """
    folder, name = os.path.split(git_folder)
    try:
        folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        git_fd = open_beneath(folder_fd, name, flags=flags)
    except OSError:
        return False
    finally:
        os.close(folder_fd)
    try:
        if any(os.path.lexists(f"/proc/self/fd/{git_fd}/{os.fsdecode(one)}") for one in _STRANGE):
            return False
        return _only_samples(git_fd)
    finally:
        os.close(git_fd)


def _only_samples(git_fd: int) -> bool:
    config = read_beneath(b"/proc/self/fd/%d" % git_fd, b"config", max_bytes=_CONFIG_BYTES)
    if config is None or not _is_plain_config(config):
        return False
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        hooks_fd = open_beneath(git_fd, b"hooks", flags=flags)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        return all(name.endswith(".sample") for name in os.listdir(hooks_fd))
    finally:
        os.close(hooks_fd)


def _is_plain_config(config: bytes) -> bool:
    """Every line is empty, a comment, a section or a listed key; no line goes on in the next."""
    section = b""
    for raw in config.split(b"\n"):
        line = raw.strip()
        if line.endswith(b"\\"):
            return False
        if not line or line[:1] in (b"#", b";"):
            continue
        if found := _SECTION.fullmatch(line):
            section = found[1]
        elif not (key := _KEY.fullmatch(line)) or not _PLAIN.fullmatch(
            section + b"." + key[1].lower()
        ):
            return False
    return True
