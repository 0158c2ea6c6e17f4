"""Whatever ends a supervisor, nothing of its run stays, and another's run goes on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from support.program import Program
from support.scripted import ScriptedEngine
from support.scripted_answers import Call

AGENTS = 3


def _below(pid: int) -> list[int]:
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            children = [int(word) for word in task.read_text().split()]
            found += children
            waiting += children
    return found


def _title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _until(seconds: float, holds: Any) -> float:
    """Wait until something holds; return the seconds it took."""
    started = time.monotonic()
    while not holds():
        assert time.monotonic() - started < seconds, "it did not come to hold"
        time.sleep(0.005)
    return time.monotonic() - started


def _gone(pids: list[int]) -> bool:
    return not any(map(_lives, pids))


def _lives(pid: int) -> bool:
    """False for what has ended, whether or not the machine's own init has reaped it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def start(program: Program, engine: ScriptedEngine, mark: str) -> Any:
    """Start a run of three subagents, each with a daemon and a command that do not end."""
    for number in range(AGENTS):
        lane = engine.when(no_tool="Task", last=f"brief-{mark}-{number}")
        lane.call(
            "bash",
            command=f"setsid sh -c \"trap '' TERM HUP INT; sleep {mark}1\" & touch {mark}-{number};"
            f" sleep {mark}2",
        )
        lane.say("ended")
    briefs = [{"agent": "general", "prompt": f"brief-{mark}-{n}"} for n in range(AGENTS)]
    engine.calls(*[Call("Task", brief) for brief in briefs])
    engine.say("Merged.")
    flags = ("--set", "execution.subagentMaxDepth=1", "--output-format", "json")
    running = program.start("-p", mark, "--engine", engine.url, "--model", "m", *flags)
    _until(20, lambda: all((program.workspace / f"{mark}-{n}").exists() for n in range(AGENTS)))
    return running


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_no_process_group_or_mount_outlives_a_supervisor(
    program: Program, engine: ScriptedEngine, number: signal.Signals
) -> None:
    """SUP-01, SUP-11: after SIGKILL all is gone within a second; after others in good order."""
    mark = f"58{os.getpid()}"
    mounts = Path("/proc/self/mountinfo").read_text()
    running = start(program, engine, mark)
    below = _below(running.pid)
    assert len(below) >= 1 + 4 + 3 * AGENTS, [_title(pid) for pid in below]
    running.send_signal(number)
    if number == signal.SIGKILL:
        assert _until(5, lambda: _gone(below)) < 2
        running.communicate(timeout=5)
    else:
        out, err = running.communicate(timeout=20)
        assert _gone(below)
        assert b"Traceback" not in err, err
        expected = 128 + number
        assert running.returncode in (expected, 130), (running.returncode, err)
        assert b'"interrupted"' in out
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert not [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
                if mark.encode() + b"1" in _title(pid)]  # fmt: skip
    if number != signal.SIGKILL:
        assert _groups(running.pid) == []


def _groups(pid: int) -> list[Path]:
    return list(Path("/sys/fs/cgroup").rglob(f"rambarde-{pid}"))


def test_a_killed_zygote_ends_the_run_in_words(program: Program, engine: ScriptedEngine) -> None:
    """SUP-02: the death of the zygote is an error of the sandbox, told at once; nothing is left."""
    running = start(program, engine, f"59{os.getpid()}")
    below = _below(running.pid)
    [zygote] = [pid for pid in below if b"rambarde: zygote" in _title(pid)]
    os.kill(zygote, signal.SIGKILL)
    started = time.monotonic()
    out, err = running.communicate(timeout=20)
    assert time.monotonic() - started < 12
    assert running.returncode in (1, 5), (running.returncode, err)
    assert b"error:sandbox" in out, (out, err)
    assert b"Traceback" not in err, err
    assert _gone(below)


def test_two_supervisors_of_one_tree_do_not_disturb_each_other(
    program: Program, engine: ScriptedEngine
) -> None:
    """SUP-09: one is killed, the other's agents, protections and areas stay as they were."""
    hooks = program.workspace / ".git" / "hooks"
    hooks.mkdir(parents=True)
    (program.workspace / ".env").write_text("SECRET=x\n")
    with ScriptedEngine() as second:
        second.call(
            "bash",
            command="echo mine > /tmp/mine; touch up; while [ ! -e go ]; do sleep 0.02; done;"
            " cat /tmp/mine; touch .git/hooks/x; cat .env; echo after",
        )
        second.say("second done")
        lasting = program.start("-p", "x", "--engine", second.url, "--model", "m")
        _until(15, (program.workspace / "up").exists)
        running = start(program, engine, f"60{os.getpid()}")
        below = _below(running.pid)
        running.kill()
        running.communicate(timeout=5)
        _until(5, lambda: _gone(below))
        (program.workspace / "go").touch()
        out, err = lasting.communicate(timeout=20)
        assert lasting.returncode == 0, err
        assert b"second done" in out
        said = second.requests[1].last
        assert "mine" in said
        assert "after" in said
        assert "Read-only file system" in said
        assert "SECRET" not in said
    assert list(hooks.iterdir()) == []
