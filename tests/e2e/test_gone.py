"""Readers and terminals that go away, outputs that take nothing: told, recorded, nothing left."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import termios
import time
from pathlib import Path
from typing import Any

import psutil

from support.program import COMMAND, Program
from support.scripted import ScriptedEngine

MARK = "4721.5"
"""A time to sleep that no other process has."""


def _left() -> list[str]:
    """Return the processes that still sleep for us, once they had time to go."""
    found = [one for one in psutil.process_iter(["cmdline"]) if MARK in (one.info["cmdline"] or ())]
    _gone, alive = psutil.wait_procs(found, timeout=5)
    return [str(one) for one in alive]


def _sleeping(program: Program, engine: ScriptedEngine, *arguments: str, **more: Any) -> Any:
    """Start a run whose agent sleeps in a command."""
    engine.call("bash", command=f"touch here; sleep {MARK}")
    return program.start("-p", "go", "--engine", engine.url, "--model", "m", *arguments, **more)


def _wait_file(path: Path, process: Any) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert process.poll() is None, "it ended before its command ran"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _end(program: Program) -> dict[str, Any]:
    (path,) = program.sessions()
    last = program.journal(path.stem)[-1]
    assert last["kind"] == "end"
    data: dict[str, Any] = last["data"]
    return data


def test_a_reader_of_events_that_leaves_stops_the_run(
    program: Program, engine: ScriptedEngine
) -> None:
    """`--output-format stream-json | head -1`: interrupted on the record, exit 1, no traceback."""
    engine.call("bash", command="true")
    process = _sleeping(program, engine, "--output-format", "stream-json")
    assert b'"init"' in process.stdout.readline()
    process.stdout.close()
    assert process.wait(20) == 1
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert _end(program)["status"] == "interrupted"
    assert _left() == []


def test_an_answer_that_cannot_be_printed_is_told_with_where_it_is_recorded(
    program: Program, engine: ScriptedEngine
) -> None:
    """To a full device: 1, the cause, the record; to a reader that left: 1 without words."""
    for output_format in ("text", "json", "stream-json"):
        engine.say("a result")
        with open("/dev/full", "wb") as full:
            process = program.start(
                "-p", "go", "--engine", engine.url, "--model", "m",
                "--output-format", output_format, stdout=full,
            )  # fmt: skip
            err = process.communicate(timeout=30)[1].decode()
        assert process.returncode == 1, output_format
        assert "cannot write to standard output: No space left on device" in err
        assert "Traceback" not in err
        assert output_format != "text" or "record: " in err
    engine.answers.clear()
    engine.say("a result")
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = program.start(
        "-p", "go", "--engine", engine.url, "--model", "m", "-q", stdout=write_end
    )
    os.close(write_end)
    err = process.communicate(timeout=30)[1]
    assert (process.returncode, err) == (1, b"")
    kinds = [program.journal(path.stem)[-1]["data"]["status"] for path in program.sessions()]
    assert kinds.count("done") >= 3


def test_commands_that_only_print_fail_in_words_on_a_full_device(program: Program) -> None:
    """Help, version, settings and completion: exit 1 and a sentence."""
    for arguments in (["--help"], ["--version"], ["config", "show"], ["completion", "bash"]):
        with open("/dev/full", "wb") as full:
            process = program.start(*arguments, stdout=full)
            err = process.communicate(timeout=30)[1].decode()
        assert process.returncode == 1, (arguments, err)
        assert "cannot write to standard output" in err
        assert "Traceback" not in err


def test_closed_standard_streams_stop_nothing(program: Program, engine: ScriptedEngine) -> None:
    """Without any of the three the work is done, and no file of ours gets their numbers."""
    engine.call("write", path="made.txt", content="x")
    engine.say("done")
    line = [*COMMAND, "-p", "go", "--engine", engine.url]
    shell = '"$@" --model m <&- >&- 2>&-'
    done = subprocess.run(
        ["sh", "-c", shell, "sh", *line],
        cwd=program.workspace,
        env=program.env(),
        timeout=50,
        check=False,
    )
    assert done.returncode == 0
    assert (program.workspace / "made.txt").read_text() == "x"
    assert _end(program)["status"] == "done"


def test_a_terminal_that_goes_away_ends_the_run_and_all_it_started(
    program: Program, engine: ScriptedEngine
) -> None:
    """Its window is closed: SIGHUP, writes fail with EIO; 129, interrupted, nothing runs on."""
    master, slave = os.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = _sleeping(
        program, engine,
        stdin=slave, stdout=slave, stderr=slave,
        start_new_session=True, preexec_fn=take_terminal, env={"TERM": "xterm"},
    )  # fmt: skip
    os.close(slave)
    os.set_blocking(master, False)
    _wait_file(program.workspace / "here", process)
    assert b"root: bash" in os.read(master, 65536)
    os.close(master)
    assert process.wait(20) == 128 + signal.SIGHUP
    end = _end(program)
    assert (end["status"], end["error"]) == ("interrupted", "SIGHUP")
    assert _left() == []
    ran = program("sessions", "list")
    assert "interrupted" in ran.out
