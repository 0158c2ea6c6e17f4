"""`rambarde exec`: any program under the same sandbox, with its own status, streams and end."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from support.program import Program


def _exec(program: Program, *arguments: str, **more: Any) -> Any:
    return program.start("exec", *arguments, **more)


def _text_once(stream: Any, timeout_s: float = 30) -> bytes:
    """Return what comes next on a pipe; fails when nothing comes."""
    assert select.select([stream], [], [], timeout_s)[0], "nothing came"
    return os.read(stream.fileno(), 65536)


def _gone(marker: str) -> bool:
    """True when no process has this word in its command line, within some seconds."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if not any(marker.encode() in _command_line(pid) for pid in os.listdir("/proc")):
            return True
        time.sleep(0.02)
    return False


def _command_line(pid: str) -> bytes:
    if not pid.isdigit() or int(pid) == os.getpid():
        return b""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [("exit 0", 0, 0), ("exit 7", 7, 0), ("kill -9 $$", 137, 9), ("kill -TERM $$", 143, 15)],
)
def test_the_exit_status_is_the_commands_and_a_signal_is_128_more(
    program: Program, script: str, code: int, number: int
) -> None:
    """Status, signal and sizes are told by --json, as one object on standard error."""
    ran = program("exec", "--json", "--", "bash", "-c", f"echo out; echo err >&2; {script}")
    assert ran.code == code
    assert ran.out == "out\n"
    err, told = ran.err.splitlines()
    assert err == "err"
    result = json.loads(told)
    assert result.pop("duration_ms") >= 0
    assert result == {
        "status": "done",
        "exit_code": code,
        "signal": number,
        "stdout_bytes": 4,
        "stderr_bytes": 4,
        "tier": "A",
    }


def test_what_cannot_be_executed_is_127_or_126_with_its_name(program: Program) -> None:
    """As of a shell: not found, or found and not executable; the words name it."""
    (program.workspace / "plain.txt").write_text("x")
    missing = program("exec", "--", "nosuchcommand")
    assert missing.code == 127
    assert "nosuchcommand" in missing.err
    plain = program("exec", "--", "./plain.txt")
    assert plain.code == 126
    assert "./plain.txt" in plain.err
    assert missing.out == plain.out == ""


def test_a_command_past_its_time_is_killed_with_all_it_started_and_exits_3(
    program: Program,
) -> None:
    """A daemon in a session of its own dies with it; the exit code tells a guard rail."""
    script = "setsid sleep 4711.1 & echo started; sleep 4711.1"
    ran = program("exec", "--json", "--max-duration", "0.8", "--", "bash", "-c", script)
    assert ran.code == 3
    assert ran.out == "started\n"
    assert json.loads(ran.err)["status"] == "limit:duration"
    assert _gone("4711.1")


def test_standard_input_and_output_pass_every_byte(program: Program) -> None:
    """Three megabytes of all byte values come back as they went in, from a pipe and from a file."""
    data = os.urandom(1 << 20) + bytes(range(256)) * 8192 + b"\xff\x00\n"
    digest = hashlib.sha256(data).hexdigest()
    process = _exec(program, "--", "tee", "/dev/stderr", stdin=subprocess.PIPE)
    out, err = process.communicate(data, timeout=50)
    assert process.returncode == 0
    assert hashlib.sha256(out).hexdigest() == hashlib.sha256(err).hexdigest() == digest
    path = program.base / "input"
    path.write_bytes(data)
    with path.open("rb") as file:
        summed = _exec(program, "--", "sha256sum", stdin=file)
        out, _err = summed.communicate(timeout=50)
    assert out.split()[0].decode() == digest
    named = "cat /dev/stdin > /dev/stdout; echo named > /dev/stderr"
    by_name = program("exec", "--", "bash", "-c", named, stdin=b"in\n")
    assert (by_name.code, by_name.out, by_name.err) == (0, "in\n", "named\n")


def test_input_is_passed_while_it_comes_and_an_open_one_holds_nothing_up(
    program: Program,
) -> None:
    """A dialogue over two pipes works; a command that reads nothing ends beside an open pipe."""
    process = _exec(
        program, "--", "sed", "-u", "s/^/got /;/end/q", stdin=subprocess.PIPE, bufsize=0
    )
    process.stdin.write(b"one\n")
    assert _text_once(process.stdout) == b"got one\n"
    process.stdin.write(b"end\n")
    assert _text_once(process.stdout) == b"got end\n"
    assert process.wait(20) == 0
    process.stdin.close()
    process.stdout.close()
    process.stderr.close()
    idle = _exec(program, "--", "true", stdin=subprocess.PIPE)
    assert idle.wait(20) == 0
    idle.communicate()


def test_a_reader_that_leaves_ends_the_command_as_a_broken_pipe_would(program: Program) -> None:
    """`exec -- yes | head -1` ends, with 141 and no words, and `yes` is gone."""
    process = _exec(program, "--", "yes", "canary-4712")
    assert b"canary-4712" in _text_once(process.stdout)
    process.stdout.close()
    assert process.wait(20) == 128 + signal.SIGPIPE
    assert process.stderr.read() == b""
    process.stderr.close()
    assert _gone("canary-4712")


def test_an_output_that_takes_nothing_is_a_failure_with_its_cause(program: Program) -> None:
    """A full device: exit 1 and the system's words, though the command itself succeeded."""
    with open("/dev/full", "wb") as full:
        process = _exec(program, "--", "echo", "lost", stdout=full)
        _out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert b"cannot be written: No space left on device" in err
    assert b"Traceback" not in err


def test_a_reader_that_is_slow_does_not_stop_the_clock_or_the_signals(program: Program) -> None:
    """With a full pipe and nobody reading, time and SIGTERM still end the command."""
    timed = _exec(program, "--max-duration", "1", "--", "yes", "canary-4713")
    stopped = _exec(program, "--", "yes", "canary-4713")
    _text_once(stopped.stdout)
    stopped.send_signal(signal.SIGTERM)
    assert timed.wait(30) == 3
    assert stopped.wait(30) == 143
    timed.communicate()
    stopped.communicate()
    assert _gone("canary-4713")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_and_is_the_exit_code(
    program: Program, number: signal.Signals
) -> None:
    """130, 143 and 129; nothing of the command is left, and the object says interrupted."""
    script = "trap '' INT TERM HUP; echo ready; sleep 4714.1"
    process = _exec(program, "--json", "--", "bash", "-c", script)
    assert _text_once(process.stdout) == b"ready\n"
    process.send_signal(number)
    _out, err = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert json.loads(err)["status"] == "interrupted"
    assert _gone("4714.1")


def test_the_supervisors_own_death_takes_the_command_with_it(program: Program) -> None:
    """SIGKILL of the supervisor leaves no process within two seconds."""
    process = _exec(program, "--", "bash", "-c", "setsid sleep 4715.1 & echo ready; sleep 4715.1")
    assert _text_once(process.stdout) == b"ready\n"
    process.kill()
    process.communicate(timeout=20)
    assert _gone("4715.1")


def test_it_is_the_same_sandbox_and_the_policy_is_obeyed(program: Program) -> None:
    """No network, no home, no canary; read-only refuses a write that workspace-write allows."""
    (program.home / "secret").write_text("canary-home")
    script = f"cat {program.home}/secret; env; cat /proc/net/route | wc -l; touch made"
    canary = {"SOME_TOKEN": "canary-environment"}
    free = program("exec", "--", "bash", "-c", script, env=canary)
    assert free.code == 0, free.err
    assert "canary" not in free.out
    assert "No such file" in free.err
    assert (program.workspace / "made").exists()
    (program.workspace / "made").unlink()
    bound = program("exec", "--policy", "read-only", "--", "touch", "made")
    assert bound.code == 1
    assert "Read-only file system" in bound.err
    assert not (program.workspace / "made").exists()
    options = program("exec", "--", "printf", "%s|", "--json", "-p", "--", "--max-duration", "x")
    assert options.out == "--json|-p|--|--max-duration|x|"
    assert not program.state.exists() or program.sessions() == []


def test_protected_names_that_a_command_makes_are_put_aside_and_told(program: Program) -> None:
    """What others would run, and was not there before, is renamed; the notice names it."""
    ran = program("exec", "--repo", str(program.workspace), "--", "sh", "-c", "echo x > .mcp.json")
    assert ran.code == 0
    assert not (program.workspace / ".mcp.json").exists()
    assert (program.workspace / ".mcp.json.rambarde-quarantine").read_text() == "x\n"
    assert ".mcp.json appeared during the run" in ran.err
