"""A child has no terminal, and no text of a child or a model drives the person's."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import termios
import time
from pathlib import Path

from support.program import COMMAND, Program
from support.scripted import ScriptedEngine
from support.scripted_answers import Call
from support.tries import script_for, tried

EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b]0;title\x07\x1b[6n\x1b[?1049h\x1b[201~rm -rf ~\r\x9b2J\x08\x7f"
_FORBIDDEN = (b"\x1b]", b"\x1b[6n", b"\x1b[?1049h", b"\x1b[201~", b"\x07", b"\x08", b"\xc2\x9b")
_INJECT = {
    name: f"fcntl.ioctl({target}, {number}, b'x') and None"
    for name, target, number in (
        ("sti0", 0, 0x5412),
        ("sti1", 1, 0x5412),
        ("sti2", 2, 0x5412),
        ("sti_high", 0, 0x5412),
        ("linux2", 0, 0x541C),
        ("sctty", 0, 0x540E),
        ("cons", 1, 0x541D),
        ("setd", 1, 0x5423),
    )
}
_THEFT = {
    "tty": "os.close(os.open('/dev/tty', os.O_RDWR))",
    "console": "os.close(os.open('/dev/console', os.O_RDWR))",
    "host_pts": "len(os.listdir('/dev/pts')) - 1",
    "isatty": "sum(map(os.isatty, range(3)))",
    "foreground": "os.tcgetpgrp(0)",
    "raw": "__import__('tty').setraw(0)",
    "sti_own": "(lambda p: fcntl.ioctl(p[1], 0x5412, b'x'))(__import__('pty').openpty()) and None",
    "sctty_own": "(lambda p: (os.setsid() if False else 0,"
    " fcntl.ioctl(p[1], 0x540E, 0)))(__import__('pty').openpty()) and None",
    "own_pty": "(lambda p: (os.write(p[0], b'hi\\n'), None)[-1])(__import__('pty').openpty())",
}
_TERMINAL_ACTS = _INJECT | _THEFT


class Terminal:
    """A pseudo-terminal with the program in the foreground of a session of its own."""

    def __init__(self, program: Program, *arguments: str, stderr_too: bool = True) -> None:
        """Start the program with its three descriptors on the terminal."""
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(self.master)
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *COMMAND, *arguments],
            cwd=program.workspace,
            env=program.env({"TERM": "xterm-256color"}),
            stdin=slave,
            stdout=slave,
            stderr=slave if stderr_too else subprocess.PIPE,
        )
        os.close(slave)
        self.shown = b""

    def finish(self, seconds: float = 30) -> int:
        """Read what is shown until the program has ended; return its exit code."""
        deadline = time.monotonic() + seconds
        while True:
            assert time.monotonic() < deadline, self.shown
            if select.select([self.master], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    if data := os.read(self.master, 65536):
                        self.shown += data
                        continue
            if self.process.poll() is not None:
                return self.process.returncode

    def close(self) -> None:
        """Let go of the terminal."""
        os.close(self.master)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def test_a_child_cannot_type_into_or_take_the_terminal(
    program: Program, engine: ScriptedEngine
) -> None:
    """TTY-01, TTY-05, TTY-06, SIG-06: under a real terminal every ioctl and open is refused."""
    engine.call("bash", command=script_for(program, _TERMINAL_ACTS))
    engine.say("done")
    terminal = Terminal(program, "-p", "x", "--engine", engine.url, "--model", "m")
    try:
        assert terminal.finish() == 0, terminal.shown
        assert termios.tcgetattr(terminal.master) == terminal.before
        # Nothing was typed: there is no input for a shell that reads on.
        assert not select.select([terminal.master], [], [], 0)[0] or not _rest(terminal)
    finally:
        terminal.close()
    found = tried(engine.requests[1].last)
    assert {found[name] for name in _INJECT} == {"EPERM"}, found
    assert found["tty"] in ("ENXIO", "ENOENT")
    assert found["console"] == "ENOENT"
    assert found["host_pts"] == "ok 0"
    assert found["isatty"] == "ok 0"
    assert found["foreground"] == "ENOTTY"
    assert "ENOTTY" in found["raw"] or "Inappropriate" in found["raw"]
    assert found["sti_own"] == found["sctty_own"] == "EPERM"
    assert found["own_pty"] == "ok"


def _rest(terminal: Terminal) -> bytes:
    try:
        return os.read(terminal.master, 4096)
    except OSError:
        return b""


def test_no_text_drives_the_terminal(program: Program, engine: ScriptedEngine) -> None:
    """TTY-03: output, names, agents, arguments, errors, report and answer are written out."""
    agents = program.workspace / ".rambarde" / "agents"
    agents.mkdir(parents=True)
    (agents / "odd.md").write_text(
        f'---\nname: odd\ndescription: "{_yaml(EVIL)}"\nmode: subagent\n---\nBe odd.\n'
    )
    name = "f" + EVIL.replace("/", "").replace("\r", "")
    (program.workspace / name).write_text(EVIL)
    child = engine.when(no_tool="Task")
    child.say(f"report {EVIL}")
    engine.calls(
        Call("bash", {"command": f"printf '%s' '{EVIL}'; ls; cat f*"}),
        Call("read", {"path": EVIL}),
        Call(EVIL, {"x": EVIL}),
        Call("Task", {"agent": EVIL, "prompt": EVIL}),
        Call("Task", {"agent": "explore", "prompt": EVIL}),
        text=EVIL,
    )
    engine.say(f"answer {EVIL} end")
    setting = ("--set", "execution.subagentMaxDepth=1")
    terminal = Terminal(program, "-p", "x", "--engine", engine.url, "--model", "m", *setting)
    try:
        assert terminal.finish() == 0, terminal.shown
    finally:
        terminal.close()
    _check(terminal.shown)
    assert b"answer" in terminal.shown
    assert b"end" in terminal.shown
    session = program.sessions()[0].stem
    for arguments in (
        ("sessions", "list"),
        ("sessions", "show", session),
        ("agents", "list"),
        ("-p", "x", "--agent", EVIL, "--engine", engine.url, "--model", "m"),
        ("-p", "x", "--engine", EVIL),
        ("-p", "x", "--repo", EVIL, "--engine", "offline"),
        ("-p", "x", "--set", EVIL, "--engine", "offline"),
        (EVIL,),
        ("policy", "explain", "bash", f"git {EVIL}"),
    ):
        ran = subprocess.run(
            [*COMMAND, *arguments],
            cwd=program.workspace,
            env=program.env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
        assert b"Traceback" not in ran.stderr, (arguments, ran.stderr)
        _check(ran.stdout + ran.stderr)


def _yaml(text: str) -> str:
    return "".join(f"\\x{ord(one):02x}" if not one.isprintable() else one for one in text)


def _check(shown: bytes) -> None:
    for sequence in _FORBIDDEN:
        at = shown.find(sequence)
        assert at < 0, shown[max(0, at - 300) : at + 100]


def test_a_model_that_fails_with_escapes_is_told_in_plain_text(
    program: Program, engine: ScriptedEngine
) -> None:
    """TTY-03: the words of an engine's error, and of a cut reply, are written out as well."""
    engine.fail(400, error={"error": {"message": f"bad {EVIL}"}})
    ran = program("-p", "x", "--engine", engine.url, "--model", "m")
    assert ran.code == 1
    _check((ran.out + ran.err).encode())
    assert "bad" in ran.err
    assert Path(program.workspace).exists()
