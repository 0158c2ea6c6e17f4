"""Other processes are not there: not to be seen, signalled, traced, tuned or outnumbered."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.probes import probe_inside, session
from support.program import Program
from support.scripted import ScriptedEngine
from support.scripted_answers import Call
from support.tries import try_inside, try_outside

CANARY = "CANARY-7f3a91c2"
_X86 = os.uname().machine == "x86_64"
_VM_READV, _VM_WRITEV, _KCMP = (310, 311, 312) if _X86 else (270, 271, 272)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the tester with a secret in its environment and in its arguments."""
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)", f"arg-{CANARY}"],
        env={"SECRET": f"env-{CANARY}", "PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
    ) as process:
        yield process
        process.kill()


def test_no_process_outside_can_be_seen_or_touched(
    program: Program, engine: ScriptedEngine, bystander: subprocess.Popen[bytes]
) -> None:
    """PRC-01, 03, 04, 10, SIG-01, SIG-02: by number, every act on a pid finds nobody."""
    acts = {}
    for who, pid in (("bystander", bystander.pid), ("parent", os.getpid())):
        acts |= {
            f"{who}_environ": f"get('/proc/{pid}/environ') and None",
            f"{who}_cmdline": f"get('/proc/{pid}/cmdline') and None",
            f"{who}_fds": f"len(os.listdir('/proc/{pid}/fd')) and None",
            f"{who}_root": f"len(os.listdir('/proc/{pid}/root/')) and None",
            f"{who}_mem": f"os.close(os.open('/proc/{pid}/mem', os.O_RDONLY))",
            f"{who}_exists": f"os.kill({pid}, 0)",
            f"{who}_pidfd": f"os.close(os.pidfd_open({pid}))",
            f"{who}_affinity": f"os.sched_setaffinity({pid}, os.sched_getaffinity({pid}))",
            f"{who}_nice": f"os.setpriority(os.PRIO_PROCESS, {pid},"
            f" os.getpriority(os.PRIO_PROCESS, {pid}))",
            f"{who}_prlimit": f"resource.prlimit({pid}, resource.RLIMIT_NOFILE) and None",
            f"{who}_group": f"os.getpgid({pid}) and None",
        }
    outside = try_outside(program, acts)
    assert set(outside.values()) == {"ok"}, outside
    inside = try_inside(program, engine, acts)
    assert set(inside.values()) <= {"ENOENT", "ESRCH"}, inside
    assert bystander.poll() is None


def test_nothing_of_other_processes_shows_in_proc(
    program: Program, engine: ScriptedEngine, bystander: subprocess.Popen[bytes]
) -> None:
    """PRC-01, PRC-08, PRC-13: /proc holds the command's own tree; its init yields nothing."""
    probes = {
        "canary": "cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n' | grep -c 7f3a9[1]c2; true",
        "first": "tr '\\0' ' ' < /proc/1/cmdline",
        "count": "ls -d /proc/[0-9]* | wc -l",
        "init_environ": "cat /proc/1/environ",
        "init_fd": "ls /proc/1/fd",
        "init_mem": "head -c1 /proc/1/mem",
        "init_root": "ls /proc/1/root/",
        "init_cwd": "ls /proc/1/cwd/",
        "init_maps": "cat /proc/1/maps",
        "init_ns": "readlink -v /proc/1/ns/pid",
        "init_pagemap": "head -c8 /proc/1/pagemap",
        "init_stack": "cat /proc/1/stack",
        "init_oom": "echo 0 > /proc/1/oom_score_adj",
        "namespaces": "cd /proc/$$/ns && readlink user mnt pid net ipc uts cgroup",
        "status": "grep -E '^(Cap|NoNew|Seccomp:|Groups|Uid)' /proc/self/status",
        "oom_score": "echo -500 > /proc/self/oom_score_adj",
        "suid": "find / -xdev -perm /6000 -type f 2>/dev/null | head -1 | xargs -r ls -l; "
        "su -c id </dev/null; unshare -Ur id",
        "mounts": "awk '{print $6}' /proc/self/mountinfo | grep -vc nosuid; true",
    }
    found = probe_inside(program, engine, probes)
    assert found["canary"].text.split("|")[-1] == "0", found["canary"]
    assert re.match(r"rambarde: init", found["first"].text), found["first"]
    assert int(found["count"].text) < 12
    for name in probes:
        if name.startswith("init_") or name == "oom_score":
            assert re.search(r"ermission denied|not permitted", found[name].text), (name, found)
    own = {os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}
    inside = set(found["namespaces"].text.split("|"))
    assert len(inside) == 7
    assert not own & inside
    status = found["status"].text.replace("\t", " ")
    for name in ("Inh", "Prm", "Eff", "Bnd", "Amb"):
        assert f"Cap{name}: 0000000000000000" in status
    assert "NoNewPrivs: 1" in status
    assert "Seccomp: 2" in status
    groups = re.search(r"Groups:([^|]*)", status)
    assert groups
    assert set(groups[1].split()) <= {"65534", "1000", str(os.getgid())}, status
    assert "uid=0" not in found["suid"].text
    assert found["mounts"].text == "0"
    assert bystander.poll() is None


def test_a_debugger_reaches_its_own_tree_and_no_further(
    program: Program, engine: ScriptedEngine
) -> None:
    """PRC-03, PRC-08: own children may be traced; the init may not, and no descriptor is taken."""
    seize = "call(libc.ptrace(0x4206, {0}, None, None))"
    vectors = "system({1}, {0}, one_vector(), 1, one_vector(), 1, 0)"
    getfd = "system(438, os.pidfd_open({0}), 0, 0)"
    kcmp = f"system({_KCMP}, {{0}}, {{0}}, 1, 0, 0)"
    acts = {}
    for who, target in (("own", "pid"), ("init", "1")):
        acts |= {
            f"{who}_seize": f"with_child(lambda pid: {seize.format(target)})",
            f"{who}_read": f"with_child(lambda pid: {vectors.format(target, _VM_READV)})",
            f"{who}_write": f"with_child(lambda pid: {vectors.format(target, _VM_WRITEV)})",
            f"{who}_getfd": f"with_child(lambda pid: {getfd.format(target)})",
            f"{who}_kcmp": f"with_child(lambda pid: {kcmp.format(target)})",
        }
    outside = try_outside(program, {name: act for name, act in acts.items() if "own" in name})
    assert set(outside.values()) == {"ok"}, outside
    inside = try_inside(program, engine, acts)
    for name in ("own_seize", "own_read", "own_write"):
        assert inside.pop(name) == "ok", name
    assert set(inside.values()) == {"EPERM"}, inside


_SIGNALS = """\
touch before
trap '' TERM HUP INT
kill -STOP $PPID; kill -9 $PPID
python3 - <<'END'
import os, signal
for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP):
    try:
        os.kill(1, number)
    except OSError as exc:
        print("refused", number, exc.strerror)
for pid in range(2, 3000):
    if pid not in (os.getpid(), os.getppid()):
        try:
            os.kill(pid, 0)
            print("found", pid)
        except OSError:
            pass
print("looked", flush=True)
END
pkill -9 -f rambarde; pkill -STOP python
kill -9 0
"""


def test_signals_to_everybody_reach_the_own_tree_only(
    program: Program, engine: ScriptedEngine, bystander: subprocess.Popen[bytes]
) -> None:
    """SIG-01: `kill -9 -1`, `kill -9 0`, STOP to the parent: agent, sibling and we live on."""
    sibling = engine.when(no_tool="Task")
    sibling.call("bash", command="for i in 1 2 3 4; do sleep 0.2; done; echo survived")
    sibling.say("sibling done")
    engine.calls(Call("Task", {"agent": "explore", "prompt": "b"}))
    engine.call("bash", command=_SIGNALS)
    engine.call("bash", command="kill -9 -1; echo unreached; kill -9 $$")
    engine.call("bash", command="echo alive")
    engine.say("done")
    ran = program.ask(engine.url)
    assert ran.code == 0, ran.err + ran.out
    said = [seen.last for seen in engine.requests]
    assert any("survived" in text for text in said)
    assert said[-1].startswith("alive"), said[-1]
    assert (program.workspace / "before").exists()
    signalled = next(text for text in said if "looked" in text)
    assert signalled.count("refused") == 4, signalled
    assert "found" not in signalled, signalled
    assert bystander.poll() is None
    assert ran.json["status"] == "done"


def test_the_initial_environment_holds_no_secret(program: Program, engine: ScriptedEngine) -> None:
    """PRC-01, PRC-02: not even what was in memory at the start of any process shows the key."""
    script = (
        "cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | sort -u; env;"
        " python3 -c \"print(open('/proc/self/environ').read().count('CANARY'))\""
    )
    secrets = {
        "OPENAI_API_KEY": f"sk-{CANARY}",
        "AWS_SECRET_ACCESS_KEY": f"aws-{CANARY}",
        "HARMLESS": f"harmless-{CANARY}",
    }
    found = session(program, engine, script, env=secrets)
    assert CANARY not in found.said
    assert "[redacted" not in found.said.lower()
    assert "PATH=" in found.said
    assert found.said.rstrip().splitlines()[-1] == "0"
    assert f"Bearer sk-{CANARY}" == engine.requests[0].headers["authorization"]


def test_the_zygote_and_agents_hold_no_secret_while_they_run(
    program: Program, engine: ScriptedEngine
) -> None:
    """PRC-02: seen from outside by the same user, no environment below the supervisor has a key."""
    engine.call("bash", command="touch here; sleep 30")
    engine.say("never")
    running = program.start(
        "-p", "x", "--engine", engine.url, "--model", "m",
        env={"OPENAI_API_KEY": f"sk-{CANARY}", "OTHER": CANARY},
    )  # fmt: skip
    try:
        _wait_for(program.workspace / "here")
        below = _below(running.pid)
        titles = [_text(pid, "cmdline").replace("\0", " ") for pid in below]
        assert any("zygote" in title for title in titles), titles
        assert any("child" in title for title in titles), titles
        readable = 0
        for pid in below:
            try:
                assert CANARY not in _text(pid, "environ")
                readable += 1
            except PermissionError:
                continue
        assert readable >= 1
        assert CANARY in _text(running.pid, "environ")
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=20)
    assert [pid for pid in below if os.path.exists(f"/proc/{pid}")] == []


def _wait_for(path: Path, seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)


def _text(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")


def _below(pid: int) -> list[int]:
    found = []
    waiting = [pid]
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            children = [int(word) for word in task.read_text().split()]
            found += children
            waiting += children
    return found
