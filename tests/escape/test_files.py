"""What lies outside the workspace can be neither read nor written from a session."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from support.probes import (
    Outcome,
    make_repository,
    probe_inside,
    probe_outside,
    probe_script,
    session,
    tree_state,
)
from support.program import Program
from support.scripted import ScriptedEngine
from support.scripted_answers import Answer, Call

CANARY = "canary-7f3a9c51d0e2"
ABSENT = "No such file or directory"
READ_ONLY = "Read-only file system"
NUMBERS = ("one", "two")
CREDENTIALS = (".ssh/id_ed25519", ".aws/credentials", ".netrc", ".config/gh/hosts.yml")


def refused(outcome: Outcome, *words: str) -> bool:
    """True when a probe failed with one of the kernel's words."""
    return not outcome.ok and any(word in outcome.text for word in words)


def plant_home(home: Path) -> None:
    """Put credentials with the canary in a home."""
    for name in (*CREDENTIALS, ".bashrc"):
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{CANARY}\n")


def test_files_of_the_home_cannot_be_read_by_any_path(
    program: Program, engine: ScriptedEngine
) -> None:
    """FSR-01, -03, -04, -11, -12: credentials, the record and other homes are absent."""
    plant_home(program.home)
    config = program.config / "config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(f"# {CANARY}\n")
    home = program.home
    probes = {
        "credentials": "cat " + " ".join(str(home / name) for name in CREDENTIALS),
        "settings": f"cat {config}",
        "through_root": f"cat /proc/self/root{home}/.netrc",
        "through_dots": f"cat ../home/.netrc; cat {program.workspace}/../home/.netrc",
        "through_link": f"ln -s {home} h && cat h/.netrc",
    }
    skipped = " ".join(f"--exclude-dir={name}" for name in ("proc", "usr", "opt", "root"))
    # The backslash keeps the word itself out of the command, and so out of what is said.
    search = f"cd {'{0}'}; grep -rs {CANARY[:10]}\\{CANARY[10:]} . {skipped} | cat; echo end"
    twin = {**probes, "search": search.format(home)}
    for name, outcome in probe_outside(program.workspace, twin).items():
        assert outcome.ok, (name, outcome)
        assert CANARY in outcome.text
    (program.workspace / "h").unlink()
    asks = {
        **probes,
        "state": f"ls {program.state}",
        "own_record": "ls -d ~/.local/state/rambarde ~/.config/rambarde",
        "others_home": "ls -A /root 2>/dev/null | grep -vx .pyenv; ls -A /home",
        "roots": "for d in /proc/[0-9]*/root; do ls $d/; done | sort -u | tr '\\n' ' '",
        "cwds": f"ls /proc/*/cwd/../home; cat /proc/*/cwd/../../..{home}/.netrc",
        "shadow": "cat /etc/shadow /etc/sudoers /root/.bashrc",
        "oracle": f"stat {home}/.aws; test -d {home} || echo none; ls -d /srv /mnt /run /var/log",
        "search": search.format("/"),
    }
    result = session_of(program, engine, asks)
    found, ran_out = result
    for name in (*probes, "state", "own_record", "shadow", "oracle"):
        assert refused(found[name], ABSENT), (name, found[name])
    assert found["others_home"].text == "agent", found["others_home"]
    assert "srv" not in found["roots"].text
    assert "none" in found["oracle"].text
    assert found["search"].text == "end"
    assert CANARY not in ran_out
    assert CANARY not in "".join(path.read_text() for path in program.sessions())


def session_of(
    program: Program, engine: ScriptedEngine, probes: dict[str, str]
) -> tuple[dict[str, Outcome], str]:
    """Run probes in a session; return outcomes, and all the session gave out."""
    one = session(program, engine, probe_script(probes))
    assert one.outcomes.keys() == probes.keys(), one.said
    everything = "".join(str(seen.body) for seen in engine.requests) + one.ran.out + one.ran.err
    return one.outcomes, everything


def test_nothing_outside_the_workspace_can_be_written(
    program: Program, engine: ScriptedEngine
) -> None:
    """FSW-01, -02, -04: siblings, same-prefix folders, home and system stand still."""
    plant_home(program.home)
    space = program.workspace
    siblings = [space.parent / name for name in ("ws-evil", "ws2", "sibling")]
    for sibling in siblings:
        sibling.mkdir()
        (sibling / "f").write_text("before\n")
    harmless = {
        "bashrc": f"echo x >> {program.home}/.bashrc",
        "sibling": "echo x > ../sibling/f",
        "same_prefix": f"echo x > {space}-evil/f",
        "dots": f"echo x > {space}/../ws2/f",
        "slashes": f"echo x > /{space.parent}//ws2/f",
        "make": "mkdir ../made && touch ../made/f",
        "move_out": "touch m && mv m ../sibling/m",
        "python": "python3 -c \"open('../sibling/f', 'w').write('x')\"",
    }
    for name, outcome in probe_outside(space, harmless).items():
        assert outcome.ok, (name, outcome)
    for sibling in siblings:
        (sibling / "f").write_text("before\n")
    plant_home(program.home)
    before = {str(folder): tree_state(folder) for folder in (program.home, *siblings)}
    system = [Path("/usr/bin/env"), Path("/etc/profile"), Path("/etc/passwd"), Path("/usr/bin")]
    stamps = [os.stat(path) for path in system]
    asks = {
        **harmless,
        "program": "echo x > /usr/local/bin/ls",
        "profile": "echo x > /etc/profile.d/x.sh",
        "append": "echo x >> /usr/bin/env",
        "passwd": "echo x >> /etc/passwd",
        "root": "touch /x",
        "dev": "touch /dev/x",
        "chmod": "chmod 777 /usr/bin/env",
        "utime": "touch -d @1 /usr/bin/env",
        "chown": "chown 1000 /etc/profile",
        "setxattr": "python3 -c \"import os; os.setxattr('/usr/bin/env', 'user.x', b'1')\"",
        "chmod_folder": "chmod 777 /usr/bin /etc /",
    }
    found = probe_inside(program, engine, asks)
    for name, outcome in found.items():
        words = [READ_ONLY, ABSENT]
        if name in ("chmod", "utime", "chown", "setxattr", "chmod_folder"):
            words = [READ_ONLY, "Operation not permitted"]
        assert refused(outcome, *words, "Permission denied"), (name, outcome)
    for folder in (program.home, *siblings):
        after = tree_state(folder)
        old = before[str(folder)]
        assert {k: v for k, v in after.items() if ".local/state" not in k and k in old} == old
        assert {k for k in after if ".local" not in k} == {k for k in old if ".local" not in k}
    for path, old_stat in zip(system, stamps, strict=True):
        new = os.stat(path)
        fields = ("st_mtime_ns", "st_ctime_ns", "st_mode", "st_size")
        assert [getattr(new, f) for f in fields] == [getattr(old_stat, f) for f in fields]
    assert not (space.parent / "made" / "f2").exists()


def test_a_read_only_mount_stays_read_only(program: Program, engine: ScriptedEngine) -> None:
    """FSW-03: neither mount nor umount nor the system calls themselves lift a cover."""
    hooks = program.workspace / ".git" / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "pre-commit").write_text("#!/bin/sh\n")
    call = (
        'python3 -c "import ctypes,os,errno; c=ctypes.CDLL(None,use_errno=True);'
        ' r=c.{0}; print(r, errno.errorcode.get(ctypes.get_errno()))"'
    )
    probes = {
        "remount": "mount -o remount,rw,bind /usr",
        "umount": f"umount -l {hooks}",
        "umount2": call.format(f"umount2(b'{hooks}', 8)"),
        "remount_call": call.format("mount(None, b'/usr', None, 4096|32, None)"),
        "tmpfs": call.format("mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None)"),
        "bind_over": call.format(f"mount(b'/tmp', b'{hooks}', None, 4096, None)"),
        "setattr": call.format("syscall(442, -100, b'/usr', 0, b'\\\\0'*8+b'\\\\0'*24, 32)"),
        "open_tree": call.format("syscall(428, -100, b'/usr', 1)"),
        "pivot": call.format("syscall(155, b'.', b'.')"),
        "chroot": call.format("chroot(b'.')"),
        "userns": "unshare -Urm true",
        "still": f"touch {hooks}/x /usr/x",
    }
    found = probe_inside(program, engine, probes)
    for name in ("umount2", "remount_call", "tmpfs", "bind_over", "setattr", "open_tree"):
        assert found[name].text in ("-1 EPERM", "-1 ENOSYS"), (name, found[name])
    assert found["chroot"].text == "-1 EPERM"
    assert found["pivot"].text in ("-1 EPERM", "-1 EINVAL")
    for name in ("remount", "umount"):
        assert not found[name].ok, (name, found[name])
    assert refused(found["userns"], "Operation not permitted", "No space left"), found["userns"]
    assert refused(found["still"], READ_ONLY)
    assert found["still"].text.count(READ_ONLY) == 2


READ_ONLY_WRITES = {
    "touch": "touch new",
    "redirect": "echo x > a.txt",
    "sed": "sed -i s/one/two/ a.txt",
    "truncate": "truncate -s0 a.txt",
    "mkdir": "mkdir d",
    "link": "ln a.txt b",
    "symlink": "ln -s a.txt s",
    "rename": "mv a.txt b",
    "remove": "rm -f a.txt",
    "fifo": "mkfifo p",
    "chmod": "chmod 777 a.txt",
    "utime": "touch -d @1 a.txt",
    "tmpfile": "python3 -c \"import os; os.open('.', os.O_TMPFILE | os.O_WRONLY)\"",
    "shared_map": "python3 -c \"import mmap,os; f=os.open('a.txt', os.O_RDWR);"
    " mmap.mmap(f, 3)[:1]=b'X'\"",
    "python": "python3 -c \"open('p.txt', 'w')\"",
    "reopen": "exec 3<a.txt; echo x > /proc/self/fd/3",
    "commit": "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x",
}


def test_a_read_only_agent_writes_by_no_system_call(
    program: Program, engine: ScriptedEngine
) -> None:
    """FSW-06, POL-10: plan mode and the explorer leave the tree as it was, hash for hash."""
    make_repository(program.workspace)
    twin = program.base / "twin"
    for name, script in READ_ONLY_WRITES.items():
        make_repository(twin / name)
        outcome = probe_outside(twin / name, {name: script})[name]
        assert outcome.ok, (name, outcome)
    before = tree_state(program.workspace)
    for flags in ({"plan": True}, {"agent": "explore"}):
        found = probe_inside(program, engine, READ_ONLY_WRITES, **flags)
        for name, outcome in found.items():
            assert refused(outcome, READ_ONLY, "Permission denied"), (flags, name, outcome)
        assert tree_state(program.workspace) == before


def test_introspection_of_the_kernel_is_empty_or_refused(
    program: Program, engine: ScriptedEngine
) -> None:
    """FSR-10, FSR-13: no kernel memory, log or hardware table; mounts name no other project."""
    other = program.base / "other-project"
    other.mkdir()
    found = probe_inside(
        program,
        engine,
        {
            "kcore": "head -c 16 /proc/kcore",
            "keys": "cat /proc/keys /proc/kallsyms /proc/timer_list | wc -c",
            "sys": "ls /sys",
            "dmesg": "dmesg",
            "sysrq": "echo h > /proc/sysrq-trigger",
            "core_pattern": "echo x > /proc/sys/kernel/core_pattern",
            "mounts": "grep -c other-project /proc/self/mountinfo",
            "devices": "ls /dev/mem /dev/kmsg /dev/vda /dev/sda /dev/fuse /dev/kvm",
        },
    )
    assert refused(found["kcore"], "Permission denied", ABSENT, "not permitted"), found["kcore"]
    assert found["keys"].text.split("|")[-1] == "0", found["keys"]
    assert refused(found["sys"], ABSENT)
    assert refused(found["dmesg"], "not permitted", "Permission denied"), found["dmesg"]
    assert refused(found["sysrq"], "Permission denied", READ_ONLY, ABSENT)
    assert refused(found["core_pattern"], READ_ONLY, "Permission denied")
    assert found["mounts"].text == "0"
    assert found["devices"].text.count(ABSENT) == 6, found["devices"]


def test_ordinary_work_goes_on_beside_the_refusals(
    program: Program, engine: ScriptedEngine
) -> None:
    """The same session that is refused the host can build, commit and run a server."""
    make_repository(program.workspace)
    found = probe_inside(
        program,
        engine,
        {
            "commit": "echo two >> a.txt && git commit -qam second && git log --oneline | wc -l",
            "home": "echo x > ~/f && cat ~/f && echo y > /tmp/f && echo z > /dev/shm/f",
            "pipe": "cat <(echo via) > out.txt && cat out.txt",
            "server": "python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 &"
            " for i in $(seq 50); do (exec 3<>/dev/tcp/127.0.0.1/8123) 2>/dev/null && break;"
            ' sleep 0.1; done; python3 -c "import urllib.request as u;'
            " print(u.urlopen('http://127.0.0.1:8123/out.txt').read())\"; kill %1 || kill $!",
        },
    )
    assert found["commit"].text == "2", found["commit"]
    assert found["home"].ok, found["home"]
    assert found["pipe"].text == "via"
    assert "via" in found["server"].text, found["server"]
    assert stat.S_IMODE((program.workspace / "out.txt").stat().st_mode) & 0o600 == 0o600


def test_temporary_files_of_a_sibling_are_not_there(
    program: Program, engine: ScriptedEngine
) -> None:
    """FSR-07: two subagents alive at once share the workspace, not /tmp, /dev/shm or the home."""
    places = "/tmp/x /var/tmp/x /dev/shm/x ~/x"
    first, second = engine.when(last="brief-one"), engine.when(last="brief-two")
    wait = "for i in $(seq 200); do [ -e {0} ] && break; sleep 0.05; done; "
    first.call(
        "bash",
        command=f"for f in {places}; do echo {CANARY} > $f; done; cat {places} | wc -l;"
        f" touch made; {wait.format('looked')} ls looked",
    )
    second.call("bash", command=f"{wait.format('made')} ls made; cat {places}; touch looked")
    engine.when(no_tool="Task").always = Answer(text="done")
    engine.calls(*[Call("Task", {"agent": "general", "prompt": f"brief-{n}"}) for n in NUMBERS])
    engine.say("done")
    ran = program.ask(engine.url, "--set", "subagentMaxDepth=1")
    assert ran.code == 0, ran.err
    said = [seen.last for seen in engine.requests]
    assert any(text.startswith("4\nlooked") for text in said), said
    theirs = next(text for text in said if text.startswith("made"))
    assert theirs.count(ABSENT) == 4, theirs
