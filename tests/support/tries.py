"""Acts tried by a Python script, the same outside and inside: `ok` or the name of the errno.

A script of acts is text: one expression per name, evaluated with the modules below at hand. It
prints one JSON object. The supervisor's own code takes no part, so an outcome is the kernel's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.probes import session
from support.program import Program
from support.scripted import ScriptedEngine

_SCRIPT = """\
import ctypes, errno, fcntl, json, os, resource, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p

def call(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result

def system(number, *arguments):
    wide = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return call(libc.syscall(ctypes.c_long(number), *wide))

def with_child(act):
    pid = os.fork()
    if not pid:
        time.sleep(20)
        os._exit(0)
    try:
        act(pid)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)

def one_vector():
    room = ctypes.create_string_buffer(8)
    return struct.pack("QQ", ctypes.addressof(room), 8)

def connect(family, kind, address, data=b""):
    with socket.socket(family, kind) as made:
        made.settimeout(2)
        if kind == socket.SOCK_DGRAM:
            made.sendto(data or b"x", address)
        else:
            made.connect(address)
            if data:
                made.sendall(data)

def put(path, data=b"x", flags=os.O_WRONLY):
    fd = os.open(path, flags)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)

def get(path, size=100):
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)

found = {}
for name, act in json.loads(sys.argv[1]).items():
    try:
        value = eval(act)
        found[name] = "ok" if value is None else f"ok {value}"
    except socket.gaierror as exc:
        found[name] = f"EAI {exc.errno}"
    except TimeoutError:
        found[name] = "timeout"
    except OSError as exc:
        found[name] = errno.errorcode.get(exc.errno, str(exc))
    except Exception as exc:
        found[name] = repr(exc)
print("FOUND " + json.dumps(found))
"""


def script_for(program: Program, acts: Mapping[str, str]) -> str:
    """Return a bash line that tries the acts; the script is put into the workspace."""
    place = program.workspace / "tries.py"
    place.write_text(_SCRIPT)
    text = json.dumps(dict(acts)).replace("'", "'\\''")
    return f"python3 {place} '{text}'"


def tried(text: str) -> dict[str, str]:
    """Return the outcomes printed by a script of acts."""
    lines = [line for line in text.splitlines() if line.startswith("FOUND ")]
    assert lines, text
    found: dict[str, str] = json.loads(lines[0].removeprefix("FOUND "))
    return found


def try_inside(
    program: Program,
    engine: ScriptedEngine,
    acts: Mapping[str, str],
    *,
    agent: str = "general",
    plan: bool = False,
) -> dict[str, str]:
    """Try the acts by a session's bash tool."""
    return tried(session(program, engine, script_for(program, acts), agent=agent, plan=plan).said)


def try_outside(program: Program, acts: Mapping[str, str]) -> dict[str, str]:
    """Try the acts on the host, as the tester."""
    script_for(program, acts)
    done = subprocess.run(
        [sys.executable, str(Path(program.workspace, "tries.py")), json.dumps(dict(acts))],
        cwd=program.workspace,
        env={"PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return tried(done.stdout.decode())
