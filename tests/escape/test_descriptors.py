"""No descriptor of the supervisor, the zygote or a neighbour is open in a sandbox."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from rambarde.children.zygote import Zygote
from support import plans, spawns
from support.probes import session
from support.program import COMMAND, Program
from support.scripted import ScriptedEngine

_LIST = (
    "for p in /proc/[0-9]*; do for f in $p/fd/*; do"
    ' echo "fd ${p#/proc/} ${f##*/} $(readlink $f)"; done; done 2>/dev/null;'
    " for f in /proc/self/fd/*; do printf x >$f; done 2>/dev/null; echo; echo end"
)


def test_a_command_holds_three_descriptors_whatever_the_caller_left_open(
    program: Program, engine: ScriptedEngine
) -> None:
    """PRC-07, IPC-10: files, sockets and pipes that the caller left open are not inside."""
    secret = program.base / "secret"
    secret.write_text("s")
    fds = [os.open(secret, os.O_RDWR), *os.pipe()]
    engine.call("bash", command=_LIST)
    engine.say("done")
    for fd in fds:
        os.set_inheritable(fd, True)
    try:
        running = program.start(
            "-p", "x", "--engine", engine.url, "--model", "m", pass_fds=tuple(fds)
        )
        out, err = running.communicate(timeout=30)
    finally:
        for fd in fds:
            os.close(fd)
    assert running.returncode == 0, out + err
    said = engine.requests[1].last
    # A shell opens further ones itself, on its own script of loops and redirections.
    lines = [line.split(" ", 3)[1:] for line in said.splitlines() if line.startswith("fd ")]
    assert {number for pid, number, _ in lines if pid == "2"} >= {"0", "1", "2"}
    assert "end" in said
    assert ["1", "*", ""] in lines, "the init's descriptors can be listed"
    for pid, number, target in lines:
        if pid == "1":
            continue
        assert target.startswith(("pipe:", "/dev/null", "/proc/")), (pid, number, target)
        assert "socket" not in target
        assert "secret" not in target
    assert secret.read_text() == "s"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_caller_with_closed_streams_loses_nothing_inside(
    program: Program, engine: ScriptedEngine, closed: str
) -> None:
    """PRC-07: when 0, 1 or 2 are closed, no pipe of a child lands in their place."""
    engine.call("bash", command="echo out; echo err >&2; wc -c; ls /proc/self/fd | wc -l")
    engine.say("answer")
    arguments = ["-p", "x", "--engine", engine.url, "--model", "m"]
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, *arguments],
        cwd=program.workspace,
        env=program.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert b"Traceback" not in done.stderr, done.stderr
    assert len(engine.requests) == 2, (done.returncode, done.stderr)
    said = engine.requests[1].last
    assert said.split() == ["out", "0", "4", "[stderr]", "err"], said
    if ">&-" not in closed.split():
        assert done.stdout == b"answer\n"


def test_a_session_of_many_calls_keeps_its_descriptors(
    program: Program, engine: ScriptedEngine
) -> None:
    """SUP-08, RES-10: after a hundred commands the supervisor and the zygote hold what they did."""
    for number in range(40):
        engine.call("bash", command=f"echo {number}; exec 9</dev/null; sleep 0 & disown")
    engine.call("bash", command="touch here; while [ -e here ]; do sleep 0.01; done")
    engine.say("done")
    running = program.start("-p", "x", "--engine", engine.url, "--model", "m")
    deadline = time.monotonic() + 30
    counts: dict[int, int] = {}
    while not (program.workspace / "here").exists():
        assert time.monotonic() < deadline
        if len(engine.requests) in (3, 4) and not counts:
            counts = _counts(running.pid)
        time.sleep(0.005)
    after = _counts(running.pid)
    (program.workspace / "here").unlink()
    out, err = running.communicate(timeout=30)
    assert running.returncode == 0, out + err
    assert counts
    for pid, count in counts.items():
        assert after[pid] <= count + 8, (counts, after)


def _counts(pid: int) -> dict[int, int]:
    """Open descriptors of a process and its first child, the zygote."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {one: len(os.listdir(f"/proc/{one}/fd")) for one in (pid, *map(int, children[:1]))}


@pytest.mark.anyio
async def test_an_agent_holds_its_pipes_and_its_log(tmp_path: Path) -> None:
    """PRC-07: an agent has five descriptors: no socket, no epoll, no folder."""
    async with (
        spawns.zygote_for(plans.setup(str(tmp_path))) as zygote,
        spawns.agent_for(zygote, plans.agent(str(tmp_path))) as agent,
        spawns.agent_for(zygote, plans.agent(str(tmp_path), "a2")) as second,
    ):
        assert isinstance(zygote, Zygote)
        for one in (agent, second):
            held = eval(
                await one.ask(
                    "{n: os.readlink(f'/proc/self/fd/{n}') for n in range(64)"
                    " if os.path.lexists(f'/proc/self/fd/{n}')}"
                )
            )
            assert sorted(held) == [0, 1, 2, 3, 4]
            assert held[0] == "/dev/null"
            assert held[1] == held[2]
            assert all(held[n].startswith("pipe:") for n in (1, 3, 4)), held
            assert len({held[n] for n in (1, 3, 4)}) == 3


def test_a_command_cannot_write_into_its_agents_pipes(
    program: Program, engine: ScriptedEngine
) -> None:
    """PRC-04, PRC-08, IPC-10: no number and no /proc entry leads to a frame pipe."""
    (program.workspace / "stray.py").write_text(
        "import glob, os\n"
        "for path in glob.glob('/proc/[0-9]*/fd/*'):\n"
        "    try:\n"
        "        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)\n"
        "    except OSError:\n"
        "        continue\n"
        "    print('opened', path, os.fstat(fd).st_ino in OWN)\n"
        "    os.close(fd)\n"
        "for number in range(3, 300):\n"
        "    try:\n"
        "        os.write(number, b'x')\n"
        "        print('wrote', number)\n"
        "    except OSError:\n"
        "        pass\n".replace("OWN", "{os.fstat(n).st_ino for n in (0, 1, 2)}")
    )
    script = "python3 stray.py; echo on"
    found = session(program, engine, script)
    assert "wrote" not in found.said
    assert "opened" in found.said
    assert "False" not in found.said, found.said
    assert found.said.rstrip().endswith("on")
    assert found.ran.json["status"] == "done"
