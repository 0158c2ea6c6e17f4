"""Ordinary work of the shell and of files works inside: what protects leaves no trace on it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from support.probes import Outcome, outside, probe_inside, probe_outside, session, tree_state
from support.program import COMMAND, Program
from support.scripted import ScriptedEngine

SHELL = {
    "pipe": ("printf 'b\\na\\n' | sort | head -1", "a"),
    "files": ("echo one > f; echo two >> f; wc -l < f; rm f", "2"),
    "both": ("ls /nowhere > f 2>&1; grep -c nowhere f; rm f", "1"),
    "numbered": ("echo x > f; exec 3< f; cat <&3; exec 3<&-; rm f", "x"),
    "substitution": ("diff <(echo a) <(echo a) && echo same; cat <(echo out)", "same|out"),
    "here": ("cat <<E\n$((1+1))\nE", "2"),
    "coproc": ("coproc cat; echo hi >&${COPROC[1]}; read -u ${COPROC[0]} a; echo $a", "hi"),
    "jobs": ("sleep 0.01 & wait $!; echo $?; (exit 3); echo $?", "0|3"),
    "trap": ("trap 'echo caught' TERM; kill $$; trap 'echo out' EXIT", "caught|out"),
    "timeout": ("timeout 0.1 sleep 9; echo $?", "124"),
    "fifo": ("mkfifo p && (echo through > p &) && cat p; rm p", "through"),
    "xargs": ("seq 9 | xargs -P 4 -n 3 echo | wc -l", "3"),
    "stdout": ("echo a > /dev/stdout; echo b > /dev/stderr; echo c | tee /dev/stderr", "a|b|c|c"),
    "descriptor": ("echo d > /dev/fd/1; echo e > /proc/self/fd/2", "d|e"),
    "terminal": ("tty; test -t 0 || echo none", "not a tty|none"),
    "script": ("printf '#!/bin/sh\\necho $0\\n' > s; chmod +x s; ./s; rm s", "./s"),
    "lock": ("flock f -c 'echo held'; rm f", "held"),
    "find": ("mkdir d; touch d/x; find . -name x -exec echo {} +; rm -r d", "./d/x"),
    "python": ("python3 -c 'print(1)'; env python3 -c 'print(2)'; perl -e 'print 3'", "1|2|3"),
    "null": ("echo x > /dev/null; cat /dev/zero /dev/urandom | head -c 2 | wc -c", "2"),
    "full": ("head -c 3 /dev/random | wc -c; (echo > /dev/full) 2> f || echo full; rm f", "3|full"),
    "pty": ("script -qec 'tty; stty size > /dev/null && echo has' /dev/null | tr -d '\\r'",
            "/dev/pts/0|has"),
}  # fmt: skip


def test_the_shell_does_inside_what_it_does_outside(
    program: Program, engine: ScriptedEngine
) -> None:
    """U-23, U-34, U-46, U-50: redirections, devices, jobs and pipes; no warning of a terminal."""
    probes = {name: script for name, (script, _) in SHELL.items()}
    twin = probe_outside(program.workspace, probes)
    found = probe_inside(program, engine, probes)
    for name, (_, text) in SHELL.items():
        assert found[name].text == text, (name, found[name])
        if name != "pty":
            assert twin[name].text == text, (name, twin[name])
    assert list(program.workspace.iterdir()) == []


def test_output_to_files_and_a_background_process_do_not_hold_a_call(
    program: Program, engine: ScriptedEngine
) -> None:
    """U-50: a server left behind answers the next call's client only if it lives in that call."""
    began = time.monotonic()
    one = session(program, engine, "sleep 600 & disown; nohup sleep 600 & echo back")
    assert "back" in one.said
    assert time.monotonic() - began < 10


FILES = {
    "atomic": "echo new > .f.tmp && sync .f.tmp && mv .f.tmp f && cat f",
    "folder": "mkdir -p a/b && echo x > a/b/c && mv a z && mv z/b/c z/c && rmdir z/b && cat z/c",
    "truncate": "echo long > t && truncate -s 2 t && cat t && : > t && wc -c < t",
    "links": "ln -s f s && ln f h && cat s h && rm s h && cp -al z y && rm -r y",
    "modes": "touch m && chmod 600 m && chmod +x m && stat -c %a m; touch -d @5 m; date -r m +%s",
    "overwrite": "echo 1 > o && echo 2 > n && mv o n && cat n && cp -p n o && rm -f o n m t",
    "sed": "sed -i s/new/newer/ f && cat f && perl -pi -e s/newer/newest/ f && cat f",
    "tree": "cp -r z w && rm -rf w && tar cf t.tar z && tar xf t.tar && cmp z/c z/c",
    "tmp": "echo x > /tmp/x && cp /tmp/x /var/tmp/ && mv /var/tmp/x ./from_tmp && cat from_tmp",
    "home": "mkdir -p ~/.cache/x && echo y > ~/.cache/x/y && cat ~/.cache/x/y && cd && pwd",
    "space": "df -k . /tmp ~ | wc -l; du -s . > /dev/null && stat -f -c ok .",
    "attributes": "cp --preserve=all f g 2>&1; cat g; install -m 755 f i && ls -l i | cut -c1-10",
}
FILE_TEXTS = {
    "atomic": "new", "folder": "x", "truncate": "lo0", "sed": "newer|newest", "tmp": "x",
    "home": "y|/home/agent", "modes": "711|5", "attributes": "newest|-rwxr-xr-x",
}  # fmt: skip


def test_files_are_made_replaced_moved_and_removed(
    program: Program, engine: ScriptedEngine
) -> None:
    """U-14, U-22, U-40: atomic saves, renames of folders, truncation; the owner stays the owner."""
    space = program.workspace
    if os.geteuid() == 0:
        os.chown(space, 4321, 4321)
    found = probe_inside(program, engine, FILES)
    for name, text in FILE_TEXTS.items():
        assert found[name].ok, (name, found[name])
        assert found[name].text == text, (name, found[name])
    for name, outcome in found.items():
        assert outcome.ok, (name, outcome)
    owners = {path.lstat().st_uid for path in (space, *space.rglob("*"))}
    assert owners == {space.stat().st_uid}
    assert (space / "f").read_text() == "newest\n"


def test_a_workspace_reached_by_a_link_is_known_by_both_names(
    program: Program, engine: ScriptedEngine
) -> None:
    """U-25, U-26: both spellings work in the shell and in the file tools, as does /bin."""
    (program.workspace / "sub").mkdir()
    (program.workspace / "sub/a.txt").write_text("text of a\n")
    link = program.base / "link"
    link.symlink_to(program.workspace)
    engine.call("bash", command=f"pwd; pwd -P; cat {link}/sub/a.txt; cd sub && pwd && cat a.txt")
    engine.call("read", path=str(link / "sub/a.txt"))
    engine.call("read", path=str(program.workspace / "sub/a.txt"))
    engine.call("write", path=str(link / "sub/b.txt"), content="b\n")
    engine.call("bash", command=f"cat {program.workspace}/sub/b.txt; /bin/echo ok; ls -d /lib64")
    engine.say("done")
    ran = program(
        *("-p", "x", "--engine", engine.url, "--model", "scripted", "--json"),
        cwd=link,
        env={"PWD": str(link)},
    )
    assert ran.code == 0, ran.err
    said = [seen.last for seen in engine.requests[1:]]
    lines = said[0].splitlines()
    assert lines[:5] == [str(link), str(program.workspace), "text of a", f"{link}/sub", "text of a"]
    assert "text of a" in said[1], said[1]
    assert "text of a" in said[2], said[2]
    assert said[4].startswith("b\nok\n/lib64"), said[4]
    assert ran.json["files_changed"] == ["sub/b.txt"]


def test_names_that_are_no_text_are_listed_read_changed_and_reported(
    program: Program, engine: ScriptedEngine
) -> None:
    """U-28: a workspace and files whose names are no UTF-8 are used by shell and tools alike."""
    space = Path(os.fsdecode(os.fsencode(program.base) + b"/w\xe9\xff"))
    space.mkdir()
    odd = os.fsencode(space) + b"/caf\xe9.txt"
    Path(os.fsdecode(odd)).write_text("needle one\n")
    (space / "plain.txt").write_text("needle two\n")
    engine.call(
        "bash", command="cat caf*.txt; pwd | od -c | grep -c 377; cp caf* copy.txt; ls | wc -l"
    )
    engine.call("grep", pattern="needle")
    engine.call("glob", pattern="*.txt")
    engine.call("read", path="plain.txt")
    engine.call("edit", path="plain.txt", old_string="two", new_string="three")
    engine.call("bash", command="mv copy.txt $'new\\xfe'; echo x >> caf*.txt")
    engine.say("done")
    ran = program(*("-p", "x", "--engine", engine.url, "--model", "scripted", "--json"), cwd=space)
    assert ran.code == 0, ran.err
    said = [seen.last for seen in engine.requests[1:]]
    assert said[0].startswith("needle one\n1\n3"), said[0]
    assert "plain.txt" in said[1], said[1]
    assert said[1].count("needle") >= 3, said[1]
    assert "caf" in said[2], said[2]
    assert Path(os.fsdecode(odd)).read_text() == "needle one\nx\n"
    assert (space / "plain.txt").read_text() == "needle three\n"
    changed = ran.json["files_changed"]
    assert len(changed) == 3, changed
    assert "plain.txt" in changed


def test_nothing_is_left_in_the_workspace_by_a_session_that_is_killed(
    program: Program, engine: ScriptedEngine
) -> None:
    """U-05: during a run and after SIGKILL the host sees what the agent wrote and nothing else."""
    space = program.workspace
    (space / "kept.txt").write_text("kept\n")
    (space / ".env").write_text("TOKEN=1\n")
    (space / ".git").mkdir()
    (space / ".git/config").write_text("")
    before = tree_state(space)
    engine.call("bash", command="echo x > made; while :; do sleep 0.05; done")
    started = program.start("-p", "x", "--engine", engine.url, "--model", "scripted")
    try:
        deadline = time.monotonic() + 20
        while not (space / "made").exists():
            assert time.monotonic() < deadline, "the command never ran"
            time.sleep(0.02)
        during = tree_state(space)
    finally:
        started.send_signal(signal.SIGKILL)
        started.communicate(timeout=10)
    after = tree_state(space)
    assert set(during) - set(before) == {"made"}
    assert set(after) - set(before) == {"made"}
    assert {name: after[name] for name in before} == before


FILL = """\
import errno, os, signal
for made in range(2000):
    try:
        if os.fork() == 0:
            signal.pause()
    except OSError as exc:
        print(made, errno.errorcode[exc.errno], flush=True)
        break
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.killpg(0, signal.SIGKILL)
"""


def test_the_bound_of_processes_counts_a_childs_own_only(
    program: Program, engine: ScriptedEngine
) -> None:
    """U-44: more processes of the person than the bound do not keep a child from its own."""
    crowd = subprocess.Popen(
        ["/bin/sh", "-c", "for i in $(seq 600); do sleep 60 & done; echo up; wait"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        with crowd.stdout or open(os.devnull, "rb") as said:
            assert said.readline() == b"up\n"
        (program.workspace / "fill.py").write_text(FILL)
        found = probe_inside(
            program,
            engine,
            {
                "forty": "for i in $(seq 40); do sleep 5 & done; jobs | wc -l",
                "all": "/usr/bin/python3 fill.py",
            },
        )
    finally:
        os.killpg(crowd.pid, signal.SIGKILL)
        crowd.wait()
    assert found["forty"] == Outcome(0, "40")
    made, why = found["all"].text.split()
    assert 400 < int(made) < 512
    assert why == "EAGAIN"


def test_identity_and_places_are_plain(program: Program, engine: ScriptedEngine) -> None:
    """U-29, U-31, U-37, U-40: ids, capabilities, name look-ups and mounts of a child."""
    found = probe_inside(
        program,
        engine,
        {
            "ids": "test $(id -u) = $(stat -c %u .) && echo own; id -un",
            "root_owned": "stat -c %u /usr/bin | grep -vc '^0$'; touch /usr/x",
            "capabilities": "grep -E 'Cap(Eff|Prm|Bnd|Amb|Inh)' /proc/self/status | sort -u -k2",
            "no_new_privileges": "grep NoNewPrivs /proc/self/status | tr -d '\\t'",
            "look_up": "time -p getent hosts example.invalid; getent hosts localhost | head -1",
            "memory": "head -1 /proc/meminfo | cut -d: -f1; nproc; ps | wc -l",
            "locale": "locale charmap; date > /dev/null; printf 'é' | wc -m",
        },
    )
    assert found["ids"].text.startswith("own|"), found["ids"]
    assert not found["root_owned"].ok
    assert found["capabilities"].text.count("|") == 0
    assert "0000000000000000" in found["capabilities"].text
    assert found["no_new_privileges"].text == "NoNewPrivs:1"
    assert "real 0." in found["look_up"].text, found["look_up"]
    assert "localhost" in found["look_up"].text
    assert found["memory"].text.startswith("MemTotal|")
    assert found["locale"] == Outcome(0, "UTF-8|1")
    assert outside("echo x", program.workspace) == "x\n"


def test_the_root_of_a_rootless_container_is_served_as_the_user_it_is(program: Program) -> None:
    """U-40: uid 0 with one id only gives children no root; a root outside as well is refused."""
    probe = "id -u; touch made; stat -c %u made; grep -c '^Cap.*0000000000000000' /proc/self/status"
    command = [*COMMAND, "exec", "--repo", str(program.workspace), "--", "sh", "-c", probe]
    done = subprocess.run(
        ["unshare", "-Ur", *command],
        env=program.env(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    if os.geteuid() == 0:
        assert done.returncode == 5, done.stdout
        assert "root outside of it" in done.stderr
        assert not (program.workspace / "made").exists()
    else:
        assert done.returncode == 0, done.stderr
        assert done.stdout == "1000\n1000\n5\n"
        assert (program.workspace / "made").stat().st_uid == os.geteuid()


def test_a_host_without_namespaces_is_told_at_once_and_once(
    program: Program, engine: ScriptedEngine
) -> None:
    """U-47: no model is asked, nothing waits; one message says what to do, with its own code."""
    engine.say("never")
    arguments = ["-p", "x", "--engine", engine.url, "--model", "m", "--repo", "."]
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    began = time.monotonic()
    done = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", script, "sh", *COMMAND, *arguments],
        cwd=program.workspace,
        env=program.env(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 5, done.stderr
    assert time.monotonic() - began < 10
    assert done.stdout == ""
    assert done.stderr.count("rambarde:") == 1, done.stderr
    assert "rambarde doctor" in done.stderr or "ordinary user" in done.stderr
    assert engine.requests == []
