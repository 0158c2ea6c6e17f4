"""A kernel that refuses one step of the sandbox gets no agent: exit 5, and the step by name."""

from __future__ import annotations

import errno
import platform
import struct
import subprocess
import sys
from collections.abc import Mapping

import pytest

from support.program import COMMAND, Program
from support.scripted import ScriptedEngine

_X86 = platform.machine() == "x86_64"
NUMBERS = {
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    "seccomp": 317 if _X86 else 277,
    "unshare": 272 if _X86 else 97,
    "clone3": 435,
    "mount": 165 if _X86 else 40,
    "pivot_root": 155 if _X86 else 41,
    "setns": 308 if _X86 else 268,
    "capset": 126 if _X86 else 91,
    "close_range": 436,
    "none": 1000,
}
_LAUNCHER = """\
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
code = bytes.fromhex(sys.argv[1])
room = ctypes.create_string_buffer(code, len(code))
program = Program(len(code) // 8, ctypes.addressof(room))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
"""


def _filter(call: str, number: int) -> bytes:
    code = [
        (0x20, 0, 0, 0),
        (0x15, 0, 1, NUMBERS[call]),
        (0x06, 0, 0, 0x00050000 | number),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    return b"".join(struct.pack("=HBBI", *one) for one in code)


def run_without(
    program: Program, engine: ScriptedEngine, refused: Mapping[str, int]
) -> subprocess.CompletedProcess[bytes]:
    """Run the program on a kernel that answers one call with an errno."""
    [(call, number)] = refused.items()
    return subprocess.run(
        [
            *(sys.executable, "-c", _LAUNCHER, _filter(call, number).hex()),
            *COMMAND,
            *("-p", "x", "--engine", engine.url, "--model", "m", "--output-format", "json"),
        ],
        cwd=program.workspace,
        env=program.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=40,
        check=False,
    )


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("landlock_create_ruleset", errno.ENOSYS),
        ("landlock_create_ruleset", errno.EOPNOTSUPP),
        ("landlock_add_rule", errno.EINVAL),
        ("landlock_restrict_self", errno.E2BIG),
        ("seccomp", errno.EINVAL),
        ("unshare", errno.EPERM),
        ("clone3", errno.ENOSYS),
        ("mount", errno.EPERM),
        ("pivot_root", errno.EPERM),
        ("capset", errno.EPERM),
        ("close_range", errno.ENOSYS),
    ],
)
def test_a_step_that_is_refused_ends_the_run_before_a_model_is_asked(
    program: Program, engine: ScriptedEngine, call: str, number: int
) -> None:
    """POL-06: no agent, no request to the model, exit 5, the step and what to do in words."""
    engine.call("bash", command="touch ran")
    engine.say("done")
    done = run_without(program, engine, {call: number})
    text = done.stdout + done.stderr
    assert b"Traceback" not in text, text
    assert engine.requests == [], text
    assert not (program.workspace / "ran").exists()
    assert done.returncode == 5, (done.returncode, text)
    assert b"rambarde: " in done.stderr
    assert call.split("_")[0].rstrip("3").encode() in done.stderr.lower(), text
    assert b"doctor" in done.stderr or b"Linux" in done.stderr, text


def test_the_same_kernel_without_the_refusal_runs(program: Program, engine: ScriptedEngine) -> None:
    """The launcher is no hindrance: with a filter of a call nobody makes, the run is well."""
    engine.call("bash", command="touch ran")
    engine.say("done")
    done = run_without(program, engine, {"none": errno.EPERM})
    assert done.returncode == 0, done.stderr
    assert (program.workspace / "ran").exists()


def test_a_command_that_cannot_join_its_sandbox_does_not_run_outside_it(
    program: Program, engine: ScriptedEngine
) -> None:
    """POL-06: with setns refused, a command is told as not started and has done nothing."""
    engine.call("bash", command="touch ran")
    engine.say("done")
    done = run_without(program, engine, {"setns": errno.EPERM})
    assert not (program.workspace / "ran").exists()
    assert b"Traceback" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
    assert "setns" in engine.requests[1].last or "namespace" in engine.requests[1].last, (
        engine.requests[1].last
    )
