"""What a scan of a workspace finds, on real trees, hostile ones among them."""

from __future__ import annotations

import os
import socket
import stat
import time

import pytest

from rambarde.errors import Exit, UsageError
from rambarde.host import workspace as module
from rambarde.host.workspace import Workspace, scan_workspace
from support.policies import WORKSPACE_WRITE


@pytest.fixture
def root(tmp_path):
    """An empty workspace."""
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


def scan(path, home="/nonexistent") -> Workspace:
    """Scan with the shipped patterns."""
    return scan_workspace(
        os.fspath(path),
        protected=WORKSPACE_WRITE.protected,
        masks=WORKSPACE_WRITE.masks,
        home=str(home),
    )


def put(root, *names, text="x\n"):
    """Make files with their folders."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def repository(folder):
    """The least that looks like a repository."""
    put(folder, ".git/HEAD", ".git/config", ".git/hooks/pre-commit.sample")
    (folder / ".git" / "objects").mkdir()
    (folder / ".git" / "refs").mkdir()


def inside(space, paths):
    """Paths relative to the workspace, as text."""
    return [os.fsdecode(os.path.relpath(path, space.root)) for path in paths]


def test_leaves_are_protected_and_every_folder_above_is_pinned(root):
    """A read-only leaf below a folder that can be renamed protects nothing."""
    repository(root)
    put(root, "a/b/.git/config", "a/b/.git/hooks/x", "c/.envrc")
    space = scan(root)
    assert inside(space, space.read_only) == [
        ".git/config", ".git/hooks", "a/b/.git/config", "a/b/.git/hooks", "c/.envrc",
    ]  # fmt: skip
    assert inside(space, space.pins) == [".git", "a", "c", "a/b", "a/b/.git"]


def test_what_could_be_planted_is_listed_as_absent(root):
    """Names that are not there now, where an agent could make them; no longer those that are."""
    repository(root)
    put(root, ".vscode/settings.json", "sub/.git/config")
    absent = inside(scan(root), scan(root).absent)
    assert {".git/commondir", ".git/config.worktree", ".claude", ".mcp.json"} <= set(absent)
    assert {"sub/.git/hooks", "sub/.git/config.worktree"} <= set(absent)
    assert ".vscode" not in absent
    assert ".git/config" not in absent
    assert ".git/info/attributes" not in absent, "its folder is not there"


def test_without_a_repository_one_that_is_made_is_looked_at(root):
    """The name .git itself is then absent."""
    assert ".git" in inside(scan(root), scan(root).absent)


def test_secret_files_are_masked_and_their_examples_are_not(root):
    """Names at any depth, names with a folder at the root, keys by what they hold."""
    put(root, ".env", "a/.env.production", ".env.example", "a/.env.sample", ".aws/credentials",
        "a/.aws/credentials", "a/id_rsa", "a/id_rsa.pub", "environment.py")  # fmt: skip
    put(root, "server.pem", text="-----BEGIN PRIVATE KEY-----\n")
    put(root, "ca.pem", text="-----BEGIN CERTIFICATE-----\n")
    space = scan(root)
    masked = inside(space, [mask.path for mask in space.masks])
    assert masked == [".aws/credentials", ".env", "a/.env.production", "a/id_rsa", "server.pem"]
    assert not any(mask.is_dir for mask in space.masks)


def test_a_secret_is_masked_where_its_link_lands(root):
    """The link's own name hides nothing: the file it leads to has another."""
    put(root, "config/values")
    (root / ".env").symlink_to("config/values")
    (root / "a.pem").symlink_to("/etc/passwd")
    (root / "b.pem").symlink_to("nowhere")
    space = scan(root)
    assert inside(space, [mask.path for mask in space.masks]) == ["config/values"]


def test_a_virtual_environment_named_env_is_no_secret(root):
    """It is a folder with a pyvenv.cfg; any other folder of that name is hidden."""
    put(root, ".env/pyvenv.cfg", "sub/.env/key")
    space = scan(root)
    assert [(inside(space, [m.path]), m.is_dir) for m in space.masks] == [(["sub/.env"], True)]


def test_a_socket_of_the_host_is_masked(root, monkeypatch):
    """No namespace keeps a child from a socket it can name, nor does a read-only mount."""
    put(root, ".git/HEAD", ".vscode/x", "a/b")
    monkeypatch.chdir(root)
    names = [".git/fsmonitor--daemon.ipc", ".vscode/ipc", "a/s"]
    for name in names:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(name)
    assert inside(scan(root), [m.path for m in scan(root).masks]) == names


def test_a_protected_link_is_protected_where_it_lands(root, tmp_path):
    """Inside: the landing. Outside or the root itself: nothing, and the person is told."""
    put(root, "shared/rules", "hooks/pre-commit")
    repository(root)
    (root / ".claude").symlink_to("shared")
    (root / ".codex").symlink_to(tmp_path / "elsewhere")
    (root / ".cursor").symlink_to(".")
    space = scan(root)
    assert "shared" in inside(space, space.read_only)
    assert not {".", ".cursor", ".codex"} & set(inside(space, space.read_only))
    told = " ".join(space.warnings)
    assert ".codex leads outside" in told
    assert ".cursor leads outside" in told
    assert ".claude is a link" in told


def test_a_git_folder_behind_a_link_keeps_working(root):
    """Its hooks and config are protected where they lie; the folder itself stays writable."""
    repository(root)
    (root / ".git").rename(root / "meta")
    (root / ".git").symlink_to("meta")
    space = scan(root)
    assert inside(space, space.read_only) == ["meta/config", "meta/hooks"]
    assert inside(space, space.pins) == ["meta"]


def test_a_second_name_of_a_protected_file_is_told(root):
    """A hard link is another way to the same bytes, which no mount covers."""
    put(root, ".envrc")
    os.link(root / ".envrc", root / "other")
    assert any("hard link" in line for line in scan(root).warnings)


def test_modules_of_submodules_are_protected(root):
    """Their hooks and configuration lie below .git/modules, at any depth."""
    repository(root)
    put(root, ".git/modules/a/b/config", ".git/modules/a/b/hooks/x", ".git/modules/c/config")
    leaves = inside(scan(root), scan(root).read_only)
    assert {".git/modules/a/b/config", ".git/modules/a/b/hooks", ".git/modules/c/config"} <= set(
        leaves
    )


def test_links_in_a_circle_do_not_hold_the_scan(root):
    """Two links to their own folder, below a pattern with **, are not walked."""
    put(root, ".git/modules/a/config")
    for name in ("x", "y", "z"):
        (root / ".git" / "modules" / name).symlink_to(".")
        (root / name).symlink_to(".")
    started = time.monotonic()
    assert ".git/modules/a/config" in inside(scan(root), scan(root).read_only)
    assert time.monotonic() - started < 10


def test_many_repositories_are_protected_as_a_whole(root, monkeypatch):
    """After some, a nested .git is one leaf: mounts are not without price."""
    monkeypatch.setattr(module, "MOST_FINE", 2)
    for number in range(4):
        put(root, f"r{number}/.git/config", f"r{number}/.git/hooks/x")
    leaves = inside(scan(root), scan(root).read_only)
    assert sum(leaf.endswith("/.git") for leaf in leaves) == 2
    assert sum(leaf.endswith("/.git/config") for leaf in leaves) == 2


def test_what_the_scan_did_not_reach_is_told(root, monkeypatch):
    """Over the budget the walk ends, level by level, with a warning; the root's own names hold."""
    monkeypatch.setattr(module, "MOST_ENTRIES", 30)
    repository(root)
    put(root, ".env", *(f"many/{number}" for number in range(40)), "many/deep/.env")
    space = scan(root)
    assert inside(space, [mask.path for mask in space.masks]) == [".env"]
    assert ".git/hooks" in inside(space, space.read_only)
    assert any("the scan" in line and "stopped at" in line for line in space.warnings)


def test_the_persons_spelling_is_kept_as_a_link(root, tmp_path):
    """Started behind a link: the root is canonical, the other spelling is made inside."""
    link = tmp_path / "link"
    link.symlink_to(root)
    space = scan(link)
    assert (space.root, space.cwd) == (os.fsencode(root), os.fsencode(link))
    assert space.links == ((os.fsencode(link), os.fsencode(root)),)
    assert scan(root).links == ()


def test_names_that_are_no_text_are_bytes_throughout(root):
    """A name with an invalid byte is found, protected and shown escaped."""
    odd = os.fsencode(root) + b"/caf\xe9"
    os.makedirs(odd + b"/.git/hooks")
    space = scan(root)
    assert odd + b"/.git/hooks" in space.read_only
    shown = scan_workspace(odd, protected=(), masks=(), home="/nonexistent").shown
    assert shown == f"$'{root}/caf\\xe9'"


@pytest.mark.parametrize("name", ["missing", "file", "fifo"])
def test_what_is_no_folder_is_refused(root, name):
    """The text says what it is and what to give; nothing waits on a pipe."""
    put(root, "file")
    os.mkfifo(root / "fifo")
    with pytest.raises(UsageError, match=r"does not exist|not a directory") as caught:
        scan(root / name)
    assert caught.value.exit_code == Exit.USAGE
    assert "--repo" in caught.value.advice


@pytest.mark.parametrize("path", ["/", "/usr", "/etc/ssl", "/proc", "/dev"])
def test_the_system_is_no_workspace(path):
    """An agent is given a project, not the machine."""
    with pytest.raises(UsageError, match="system"):
        scan(path)


def test_the_home_and_what_holds_it_are_no_workspace(tmp_path):
    """Links and spellings do not help; a folder in the home is one."""
    home = tmp_path / "users" / "ann"
    (home / "project").mkdir(parents=True)
    (tmp_path / "link").symlink_to(home)
    for path in (home, home.parent, tmp_path / "link", home / "project" / ".."):
        with pytest.raises(UsageError, match="your home"):
            scan(path, home)
    assert scan(home / "project", home).root == os.fsencode(home / "project")


def test_a_folder_with_the_homes_prefix_is_another(tmp_path):
    """Paths are compared by parts, never by letters."""
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann-project").mkdir()
    assert scan(tmp_path / "ann-project", tmp_path / "ann").shown.endswith("ann-project")


def test_the_running_program_in_the_workspace_is_noticed(root, monkeypatch):
    """An agent could rewrite its guard: the caller is told where it lies."""
    assert scan(root).holds_installation == ""
    monkeypatch.setattr(module.sys, "prefix", str(root / ".venv"))
    assert scan(root).holds_installation == str(root / ".venv")


def test_agent_files_are_listed_by_name(root):
    """Only names; what they hold is read by whoever wants it, beneath the root."""
    put(root, ".rambarde/agents/b.md", ".rambarde/agents/a.md")
    assert scan(root).agent_files == (b"a.md", b"b.md")


def test_the_owner_on_disk_is_told(root):
    """A root-started supervisor maps this owner to its children."""
    status = os.stat(root)
    assert (scan(root).owner_uid, scan(root).owner_gid) == (status.st_uid, status.st_gid)
    assert stat.S_ISDIR(status.st_mode)
