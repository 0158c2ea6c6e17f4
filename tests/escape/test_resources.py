"""What a child may take of the machine is bounded, and what takes more ends alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from support.limited_program import run_limited
from support.probes import probe_script
from support.program import Program
from support.scripted import ScriptedEngine
from support.scripted_answers import Call
from support.tries import script_for, tried

MIB = 1 << 20
LIMITS = {
    "memory_bytes": 256 * MIB,
    "processes": 60,
    "open_files": 64,
    "file_bytes": 8 * MIB,
    "tmp_bytes": 8 * MIB,
    "home_bytes": 8 * MIB,
    "shm_bytes": 4 * MIB,
    "tmp_inodes": 200,
    "output_hard_bytes": 8 * MIB,
}
_FILL = "(lambda fd: [os.write(fd, bytes(1 << 20)) for _ in range(64)])(os.open({0}, 0o102, 0o600))"


def alive(mark: str) -> list[int]:
    """Every process of this machine whose command line holds the mark."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                found.append(int(entry))
        except OSError:
            continue
    return found


def test_each_bound_is_met_where_it_stands(program: Program, engine: ScriptedEngine) -> None:
    """RES-06, 08, 10, 11: the kernel's own refusal at each bound; the next command works."""
    acts = {
        "file": "(signal.signal(signal.SIGXFSZ, signal.SIG_IGN), "
        + _FILL.format("'big'")
        + ") and None",
        "fallocate": "(signal.signal(signal.SIGXFSZ, signal.SIG_IGN),"
        " os.posix_fallocate(os.open('sparse', 0o102), 0, 64 << 20)) and None",
        "tmp": _FILL.format("'/tmp/x'"),
        "var_tmp": _FILL.format("'/var/tmp/x'"),
        "shm": _FILL.format("'/dev/shm/x'"),
        "home": _FILL.format("'/home/agent/x'"),
        "inodes": "[os.close(os.open(f'/dev/shm/i{n}', 0o102)) for n in range(300)]",
        "raise_limit": "resource.setrlimit(resource.RLIMIT_NOFILE, (9999, 9999))",
        "core": "resource.getrlimit(resource.RLIMIT_CORE)",
        "descriptors": "[os.dup(0) for _ in range(100)]",
    }
    zombies = (
        'python3 -c "import os; [os.fork() or os._exit(0) for _ in range(40)];'
        ' print(40)"; for i in $(seq 150); do (true &); done; sleep 0.2;'
        " grep -l '^State:.Z' /proc/[0-9]*/status | wc -l"
    )
    engine.call("bash", command=f"ulimit -f 999999; {script_for(program, acts)}")
    engine.call("bash", command=probe_script({"zombies": zombies, "after": "echo fine"}))
    engine.say("done")
    ran = run_limited(program, engine.url, LIMITS)
    assert ran.code == 0, ran.err + ran.out
    found = tried(engine.requests[1].last)
    assert found["descriptors"] == "EMFILE"
    assert found["file"] == found["fallocate"] == "EFBIG"
    assert {found[name] for name in ("tmp", "var_tmp", "shm", "home")} <= {"ENOSPC", "EFBIG"}, found
    assert found["shm"] == "ENOSPC"
    assert found["inodes"] == "ENOSPC"
    assert found["raise_limit"].startswith("ValueError"), found["raise_limit"]
    assert found["core"] == "ok (0, 0)"
    assert (program.workspace / "big").stat().st_size <= 8 * MIB
    assert "zombies: 0 40|0" in engine.requests[2].last
    assert "after: 0 fine" in engine.requests[2].last


def test_a_fork_bomb_and_a_daemon_end_with_their_call(
    program: Program, engine: ScriptedEngine
) -> None:
    """RES-01, RES-05: a bomb is held by its bound while a sibling works; nothing is left of it."""
    mark = f"47{os.getpid()}"
    bomb = engine.when(no_tool="Task", last="bomb")
    bomb.call("bash", command=f":(){{ :|:& }};:; sleep {mark}", timeout_s=2)
    sibling = engine.when(no_tool="Task", last="work")
    sibling.call("bash", command="for i in 1 2 3 4 5; do sleep 0.1; echo $i; done")
    daemon = (
        f"setsid sh -c \"trap '' TERM HUP INT; sleep {mark}1\" & "
        f"(setsid nohup sleep {mark}2 >/dev/null 2>&1 &); echo started"
    )
    engine.when(no_tool="Task").call("bash", command=daemon)
    engine.when(no_tool="Task").call("bash", command="echo next")
    engine.when(no_tool="Task").always = None
    engine.when(no_tool="Task").say("one done")
    engine.when(no_tool="Task").say("other done")
    briefs = [Call("Task", {"agent": "general", "prompt": name}) for name in ("bomb", "work")]
    engine.calls(*briefs)
    engine.say("Merged.")
    started = time.monotonic()
    ran = run_limited(program, engine.url, LIMITS, "--set", "execution.subagentMaxDepth=1")
    assert ran.code == 0, ran.err + ran.out
    assert time.monotonic() - started < 25
    assert [one["status"] for one in ran.json["subagents"]] == ["done", "done"], ran.out
    texts = [seen.last for seen in engine.requests]
    assert any("started" in text for text in texts)
    assert any("1\n2\n3\n4\n5" in text for text in texts), texts
    assert alive(mark) == []


def test_a_memory_hog_ends_alone(program: Program, engine: ScriptedEngine) -> None:
    """RES-03: shared memory that no process limit counts ends its agent as error:memory, alone."""
    hog = engine.when(no_tool="Task", last="hog")
    hog.call(
        "bash",
        command='python3 -c "import mmap; m = mmap.mmap(-1, 800 << 20);'
        " [m.__setitem__(i, 1) for i in range(0, 800 << 20, 4096)];"
        ' import time; time.sleep(20)"',
        timeout_s=20,
    )
    hog.say("survived")
    sibling = engine.when(no_tool="Task", last="work")
    sibling.call("bash", command="sleep 0.5; echo on")
    engine.when(no_tool="Task").always = None
    engine.when(no_tool="Task", last="on").say("worked")
    engine.when(no_tool="Task").say("survived")
    briefs = [Call("Task", {"agent": "general", "prompt": name}) for name in ("hog", "work")]
    engine.calls(*briefs)
    engine.say("Merged.")
    ran = run_limited(program, engine.url, LIMITS, "--set", "execution.subagentMaxDepth=1")
    assert ran.code == 0, ran.err + ran.out
    statuses = [one["status"] for one in ran.json["subagents"]]
    assert statuses == ["error:memory", "done"], (statuses, ran.err)
    assert ran.json["result"] == "Merged."


def test_a_flood_costs_the_supervisor_nothing(program: Program, engine: ScriptedEngine) -> None:
    """RES-04, RES-18: endless output, a huge file and deep patterns end by themselves, cut."""
    with open(program.workspace / "huge", "wb") as huge:
        huge.truncate(10 << 30)
    (program.workspace / "a").write_text("a" * 200_000 + "b\n")
    engine.call("bash", command="yes out & yes err >&2 & wait")
    engine.call("bash", command="base64 -w0 /dev/urandom")
    engine.call("read", path="huge")
    engine.call("grep", pattern="(a+)+$", path="a")
    engine.call("glob", pattern="**/**/**/**/x*")
    engine.call("bash", command="sleep 1000000", timeout_s=1)
    engine.say("done")
    started = time.monotonic()
    ran = run_limited(program, engine.url, LIMITS)
    assert time.monotonic() - started < 25
    assert ran.code == 0, ran.err + ran.out
    for number in (1, 2):
        assert len(engine.requests[number].last) < 70_000
        assert str(8 * MIB) in engine.requests[number].last, engine.requests[number].last[-300:]
    assert "timeout" in engine.requests[6].last.lower() or "1 s" in engine.requests[6].last
    peak = re.search(r"peak (\d+) kB, (\d+) descriptors", ran.err)
    assert peak
    assert int(peak[1]) < 130_000
    assert int(peak[2]) < 12


def test_the_clock_ends_what_does_not_end(program: Program, engine: ScriptedEngine) -> None:
    """RES-13, SUP-07: a stopped tree and a stopped agent end on time; the report says which."""
    engine.call("bash", command="touch here; (kill -STOP $BASHPID & ); sleep 1000")
    engine.say("never")
    running = program.start(
        "-p", "x", "--engine", engine.url, "--model", "m", "--max-duration", "3",
        "--output-format", "json",
    )  # fmt: skip
    started = time.monotonic()
    while not (program.workspace / "here").exists():
        assert time.monotonic() - started < 15
        time.sleep(0.01)
    agents = [pid for pid in alive("rambarde: child") if _is_below(pid, running.pid)]
    assert agents
    for pid in agents:
        os.kill(pid, signal.SIGSTOP)
    out, err = running.communicate(timeout=20)
    assert time.monotonic() - started < 12
    assert running.returncode == 3, err
    assert b'"limit:duration"' in out, out
    assert not [pid for pid in agents if os.path.exists(f"/proc/{pid}")]


def _is_below(pid: int, ancestor: int) -> bool:
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        pid = int(stat.rpartition(")")[2].split()[1])
        if pid == ancestor:
            return True
    return False


def test_the_supervisor_takes_few_descriptors(program: Program, engine: ScriptedEngine) -> None:
    """SUP-08: under `ulimit -n 64` a run works; with too few it is refused in words."""
    engine.always = None
    engine.call("bash", command="echo fine")
    engine.say("done")
    arguments = ["-p", "x", "--engine", engine.url, "--model", "m"]
    ran = _with_files(program, 64, arguments)
    assert ran.returncode == 0, ran.stderr
    assert "fine" in engine.requests[1].last
    ran = _with_files(program, 14, arguments)
    assert ran.returncode not in (0, 70), ran.stderr
    assert b"Traceback" not in ran.stderr, ran.stderr
    assert b"descriptor" in ran.stderr or b"open files" in ran.stderr, ran.stderr


def _with_files(
    program: Program, count: int, arguments: list[str]
) -> subprocess.CompletedProcess[bytes]:
    from support.program import COMMAND

    script = f'ulimit -n {count}; exec "$@"'
    return subprocess.run(
        ["/bin/bash", "-c", script, "bash", *COMMAND, *arguments],
        cwd=program.workspace,
        env=program.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=40,
        check=False,
    )
