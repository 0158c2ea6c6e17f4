"""Links, swapped folders and odd files lead neither the tools nor the supervisor outside."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rambarde.errors import HostError
from rambarde.host.beneath import read_beneath
from rambarde.host.digest import WorkspaceDigest
from support.probes import make_repository, probe_inside, probe_outside
from support.program import Program
from support.scripted import ScriptedEngine
from support.scripted_answers import Call

CANARY = "canary-link-90b2e4"
RACES = 3000
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_libc = ctypes.CDLL(None, use_errno=True)
NAMES = ("passwd", "group", "hosts", "profile", "services", "protocols", "hostname", "config")


def everything_said(program: Program, engine: ScriptedEngine, *more: str) -> str:
    """Return all that left the supervisor: to the model, to the screen, to the record."""
    said = [str(seen.body) for seen in engine.requests]
    said += [path.read_text() for path in program.sessions()]
    return "".join([*said, *more])


def _exchange(first: Path, second: Path) -> None:
    """Exchange two names at once, so that neither is ever missing."""
    names = os.fsencode(first), os.fsencode(second)
    # SAFETY: two NUL-terminated paths that live until the call returns; no memory is written.
    if _libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), "renameat2")


@contextlib.contextmanager
def swapping(path: Path, targets: list[str]) -> Iterator[list[int]]:
    """Exchange a folder or file with links to the targets, without pause; count the swaps."""
    over = threading.Event()
    count = [0]
    other = path.with_name(path.name + ".other")

    def swap() -> None:
        while not over.is_set():
            os.symlink(targets[count[0] % len(targets)], other)
            _exchange(path, other)
            _exchange(path, other)
            os.unlink(other)
            count[0] += 1

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield count
    finally:
        over.set()
        thread.join()


def test_a_planted_link_is_followed_by_no_part_of_the_supervisor(
    program: Program, engine: ScriptedEngine
) -> None:
    """LNK-01: links to a key at every name that the supervisor reads give nothing away."""
    key = program.home / ".ssh" / "id_rsa"
    key.parent.mkdir()
    key.write_text(f"{CANARY}\n")
    space = program.workspace
    (space / ".rambarde" / "agents").mkdir(parents=True)
    names = (
        "notes.txt", "AGENTS.md", "CLAUDE.md", ".env", ".git", "server.pem",
        ".rambarde/config.toml", ".rambarde/agents/spy.md",
    )  # fmt: skip
    for name in names:
        (space / name).symlink_to(key)
        assert CANARY in (space / name).read_text()
    engine.calls(
        Call("read", {"path": "notes.txt"}),
        Call("grep", {"pattern": "canary|a"}),
        Call("glob", {"pattern": "**/*"}),
        Call("bash", {"command": f"ln -s {key} later.txt; cat notes.txt AGENTS.md .env later.txt"}),
        Call("write", {"path": "notes.txt", "content": "x"}),
    )
    engine.say("done")
    ran = program.ask(engine.url, prompt="look at @notes.txt and report later.txt")
    assert ran.code == 0, ran.err
    assert CANARY not in everything_said(program, engine, ran.out, ran.err)
    assert key.read_text() == f"{CANARY}\n"
    listed = program("agents", "list", "--repo", str(space))
    shown = program("config", "show", "--repo", str(space))
    assert CANARY not in listed.out + listed.err + shown.out + shown.err


def test_a_folder_swapped_for_a_link_leads_no_tool_outside(
    program: Program, engine: ScriptedEngine
) -> None:
    """LNK-02, LNK-08: while a folder turns into a link and back, tools stay in the tree.

    The outside content and git's own files are never shown and never written.
    """
    space, outside = program.workspace, program.base / "outside"
    make_repository(space)
    outside.mkdir()
    folder = space / "d"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text("inside\n")
        (outside / name).write_text(f"{CANARY}\n")
    config = (space / ".git/config").read_bytes()
    kinds: list[tuple[str, dict[str, object]]] = [("read", {"limit": n + 1}) for n in range(4)]
    kinds += [("edit", {"old_string": "inside", "new_string": "inside x"})]
    kinds += [("write", {"content": "inside w\n"}), ("grep", {"pattern": "."})]
    for kind, more in kinds:
        engine.calls(*[Call(kind, {"path": f"d/{name}", **more}) for name in NAMES])
    engine.say("done")
    with swapping(folder, [str(outside), "/etc", ".git"]) as swaps:
        ran = program.ask(engine.url)
    assert ran.code == 0, ran.err
    assert swaps[0] > 100
    said = everything_said(program, engine, ran.out, ran.err)
    assert CANARY not in said
    tools = [str(m["content"]) for m in engine.requests[-1].messages if m["role"] == "tool"]
    searches = len(NAMES)
    shown = "".join(tools[:-searches])
    assert "inside" in shown
    for foreign in ("root:x:0", "nologin", "localhost"):
        assert foreign not in shown
    assert {path.read_text() for path in outside.iterdir()} == {f"{CANARY}\n"}
    assert (space / ".git/config").read_bytes() == config
    assert sorted(os.listdir(outside)) == sorted(NAMES)
    assert {path.read_text()[:6] for path in folder.iterdir()} == {"inside"}


@pytest.mark.anyio
async def test_the_supervisors_own_reads_stay_in_the_tree_at_every_swap(tmp_path: Path) -> None:
    """LNK-02: thousands of reads and digests beside a swapper see the inside or a refusal."""
    space, outside = tmp_path / "ws", tmp_path / "outside"
    for folder, text in ((space / "d", "inside"), (outside, CANARY)):
        folder.mkdir(parents=True)
        (folder / "passwd").write_text(text)
    foreign = hashlib.sha256(CANARY.encode()).hexdigest()
    seen: set[bytes | str | None] = set()
    root_fd = os.open(space, os.O_PATH | os.O_DIRECTORY)
    digest = WorkspaceDigest(root_fd)
    followed = 0
    with swapping(space / "d", [str(outside), "/etc"]):
        for _ in range(RACES):
            with contextlib.suppress(OSError):
                followed += (space / "d" / "passwd").read_text() != "inside"
            seen.add(read_beneath(os.fsencode(space), b"d/passwd", max_bytes=100))
            with contextlib.suppress(HostError):
                seen.add(await digest(b"d/passwd"))
    os.close(root_fd)
    assert followed, "the race never happened: a plain open was never led outside"
    assert seen <= {None, b"inside", "", hashlib.sha256(b"inside").hexdigest()}
    assert foreign not in seen


def test_a_file_swapped_under_an_edit_is_written_inside_or_not_at_all(
    program: Program, engine: ScriptedEngine
) -> None:
    """LNK-08: a target replaced by a link between check and rename takes no write outside."""
    victim = program.base / "victim"
    victim.write_text("before\n")
    target = program.workspace / "t"
    target.write_text("n0\n")
    target.chmod(0o640)
    for number in range(30):
        engine.calls(
            Call("read", {"path": "t", "limit": number + 1}),
            Call("edit", {"path": "t", "old_string": "n", "new_string": f"n{number}"}),
        )
    engine.say("done")
    with swapping(target, [str(victim), "/etc/passwd"]) as swaps:
        ran = program.ask(engine.url)
    assert ran.code in (0, 3), ran.err
    assert swaps[0] > 100
    assert victim.read_text() == "before\n"
    assert not target.is_symlink()
    assert target.read_text().startswith("n")
    assert target.stat().st_uid == victim.stat().st_uid


def test_hard_links_and_reopened_files_give_no_further_right(
    program: Program, engine: ScriptedEngine
) -> None:
    """LNK-04, LNK-06: no link to what is read-only, no write by its descriptor or its map."""
    space = program.workspace
    make_repository(space)
    (program.home / ".netrc").write_text(f"{CANARY}\n")
    before = (space / ".git/config").read_bytes()
    remap = (
        "python3 -c \"import mmap,ctypes; f=open('{0}','rb'); m=mmap.mmap(f.fileno(), 0,"
        " prot=mmap.PROT_READ); c=ctypes.CDLL(None, use_errno=True);"
        " b=(ctypes.c_char*1).from_buffer_copy(m); p=c.mmap; p.restype=ctypes.c_void_p;"
        " a=p(None, ctypes.c_size_t(4096), 1, 1, f.fileno(), ctypes.c_long(0));"
        " r=c.mprotect(ctypes.c_void_p(a), ctypes.c_size_t(4096), 3);"
        ' print(r, ctypes.get_errno())"'
    )
    linked = (
        "python3 -c \"import os; os.link('{0}', 'z', follow_symlinks=False)\" 2>&1 | tail -1;"
        " test -e z && rm z"
    )
    twins = {
        "link": f"ln {program.home}/.netrc y && rm y",
        "reopen": "exec 3<a.txt; printf 'one\\n' > /proc/self/fd/3",
    }
    for name, outcome in probe_outside(space, twins).items():
        assert outcome.ok, (name, outcome)
    found = probe_inside(
        program,
        engine,
        {
            "link": twins["link"],
            "link_system": "ln /etc/passwd x",
            "link_profile": "ln /etc/profile x",
            "link_config": "ln .git/config x",
            "link_python": linked.format("/usr/bin/env"),
            "reopen_own": twins["reopen"],
            "reopen_config": "exec 3<.git/config; echo x > /proc/self/fd/3",
            "reopen_system": "exec 3</usr/bin/env; echo x > /proc/self/fd/3",
            "map_own": remap.format("a.txt"),
            "map_config": remap.format(".git/config"),
            "hidden": f"ls {program.home}",
        },
    )
    assert "No such file or directory" in found["link"].text, found["link"]
    for name in ("link_system", "link_profile", "link_config"):
        words = ("cross-device", "Read-only file system", "not permitted", "Permission denied")
        assert any(word in found[name].text for word in words), (name, found[name])
    assert "Error" in found["link_python"].text
    assert found["reopen_own"].ok
    for name in ("reopen_config", "reopen_system"):
        assert not found[name].ok, found[name]
        assert "Read-only file system" in found[name].text, (name, found[name])
    assert found["map_config"].text == "-1 13"
    assert (space / ".git/config").read_bytes() == before
    assert found["hidden"].code != 0


def test_files_that_are_no_files_hold_the_supervisor_up_nowhere(
    program: Program, engine: ScriptedEngine
) -> None:
    """FSW-09: pipes, sockets, folders and sparse giants at names it reads are told, not waited for.

    A run with all of them ends as quickly as without.
    """
    space = program.workspace
    agents = space / ".rambarde" / "agents"
    agents.mkdir(parents=True)
    os.mkfifo(space / ".rambarde" / "config.toml")
    os.mkfifo(space / "AGENTS.md")
    os.mkfifo(space / ".env")
    os.mkfifo(space / ".git")
    os.mkfifo(agents / "pipe.md")
    (agents / "folder.md").mkdir()
    with open(agents / "giant.md", "wb") as giant:
        giant.truncate(1 << 40)
    with open(space / "server.pem", "wb") as giant:
        giant.truncate(1 << 40)
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(agents)
        try:
            listener.bind("sock.md")
        finally:
            os.chdir(here)
        engine.calls(
            Call("read", {"path": "AGENTS.md"}),
            Call("read", {"path": ".rambarde/agents/giant.md"}),
            Call("write", {"path": "AGENTS.md", "content": "x"}),
            Call("grep", {"pattern": "x"}),
            Call("bash", {"command": "rm AGENTS.md; mkfifo AGENTS.md; echo made"}),
        )
        engine.say("done")
        ran = program.ask(engine.url, timeout=20)
    assert ran.code == 0, ran.err
    assert ran.json["duration_ms"] < 5000
    notices = "\n".join(ran.json["notices"])
    for name in ("pipe.md", "folder.md", "giant.md", "sock.md"):
        assert name in notices, (name, notices)
    tools = [str(m["content"]) for m in engine.requests[-1].messages if m["role"] == "tool"]
    assert len(tools) == 5
    assert "regular" in tools[0], tools[0]
    assert "made" in tools[4]


def test_hostile_names_are_listed_read_and_shown_without_effect(
    program: Program, engine: ScriptedEngine
) -> None:
    """FSW-10: names with newlines, escapes, dashes and bytes that are no text are names."""
    space = os.fsencode(program.workspace)
    names = [
        b"new\nline", b"\x1b]52;c;ZXZpbA==\a", b"-rf", b"trailing ", b"caf\xe9", b"n" * 255,
        b"$(touch pwned)", b"`id`", b"--pre=touch",
    ]  # fmt: skip
    for name in names:
        with open(os.path.join(space, name), "wb") as file:
            file.write(b"needle\n")
    deep = space
    for _ in range(40):
        deep += b"/" + b"d" * 80
        os.mkdir(deep)
    engine.calls(
        Call("glob", {"pattern": "*"}),
        Call("grep", {"pattern": "needle"}),
        Call("read", {"path": "-rf"}),
        Call("read", {"path": "$'caf\\xe9'"}),
        Call("bash", {"command": "ls -1 | wc -l; ls; touch \"$(printf 'out\\033[2Jx')\""}),
        Call("grep", {"pattern": "--pre=touch pwned", "glob": "--pre=touch"}),
    )
    engine.say("done")
    ran = program.ask(engine.url)
    assert ran.code == 0, ran.err
    tools = [str(m["content"]) for m in engine.requests[-1].messages if m["role"] == "tool"]
    assert "-rf" in tools[0]
    assert "needle" in tools[1]
    assert "needle" in tools[2]
    assert "needle" in tools[3], tools[3]
    assert not os.path.exists(os.path.join(space, b"pwned"))
    assert "\x1b" not in ran.err
    assert "\x1b" not in ran.out
