"""Nothing of the network, no socket of the host and no sibling is in reach of a sandbox."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.probes import probe_inside, session
from support.program import Program
from support.scripted import ScriptedEngine
from support.scripted_answers import Call
from support.tries import script_for, tried, try_inside, try_outside

UNREACHABLE = ("ENETUNREACH", "EADDRNOTAVAIL", "ECONNREFUSED", "EHOSTUNREACH")


@dataclass
class Canaries:
    """Listening sockets of the host, one of each kind; `seen` says which were reached."""

    tcp4: socket.socket
    tcp6: socket.socket
    udp: socket.socket
    abstract: socket.socket
    abstract_dgram: socket.socket
    pathname: socket.socket
    folder: str
    acts: dict[str, str] = field(default_factory=dict)

    def seen(self) -> set[str]:
        """Return the names of those that something reached since the last look."""
        found = set()
        for name in ("tcp4", "tcp6", "udp", "abstract", "abstract_dgram", "pathname"):
            one: socket.socket = getattr(self, name)
            with contextlib.suppress(BlockingIOError):
                while True:
                    if one.type == socket.SOCK_DGRAM:
                        one.recv(100)
                    else:
                        one.accept()[0].close()
                    found.add(name)
        return found


def _listen(family: int, kind: int, address: str | tuple[str, int]) -> socket.socket:
    made = socket.socket(family, kind)
    made.bind(address)
    made.setblocking(False)
    if kind == socket.SOCK_STREAM:
        made.listen(8)
    return made


@pytest.fixture
def canaries() -> Iterator[Canaries]:
    """The host's listeners and the acts that reach each of them."""
    stream, dgram = socket.SOCK_STREAM, socket.SOCK_DGRAM
    mark = f"rambarde-canary-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="canary") as folder, contextlib.ExitStack() as stack:
        os.chmod(folder, 0o755)
        made = Canaries(
            tcp4=_listen(socket.AF_INET, stream, ("127.0.0.1", 0)),
            tcp6=_listen(socket.AF_INET6, stream, ("::1", 0)),
            udp=_listen(socket.AF_INET, dgram, ("127.0.0.1", 0)),
            abstract=_listen(socket.AF_UNIX, stream, f"\0{mark}"),
            abstract_dgram=_listen(socket.AF_UNIX, dgram, f"\0{mark}-d"),
            pathname=_listen(socket.AF_UNIX, stream, f"{folder}/s"),
            folder=folder,
        )
        for name in ("tcp4", "tcp6", "udp", "abstract", "abstract_dgram", "pathname"):
            one = stack.enter_context(getattr(made, name))
            address = one.getsockname()
            if isinstance(address, bytes):
                address = address.decode()
            where = repr(address if isinstance(address, str) else tuple(address[:2]))
            family = f"socket.{one.family.name}"
            made.acts[name] = f"connect({family}, socket.{one.type.name}, {where})"
        yield made


def test_no_listener_of_the_host_is_reached(
    program: Program, engine: ScriptedEngine, canaries: Canaries
) -> None:
    """NET-02, 03, 04, 09: loopback, abstract and pathname sockets answer outside only."""
    outside = try_outside(program, canaries.acts)
    assert set(outside.values()) == {"ok"}, outside
    assert canaries.seen() == canaries.acts.keys()
    inside = try_inside(program, engine, canaries.acts)
    assert inside["tcp4"] == inside["tcp6"] == "ECONNREFUSED"
    assert inside["abstract"] == inside["abstract_dgram"] == "ECONNREFUSED"
    assert inside["pathname"] == "ENOENT"
    # A datagram to a closed port of one's own loopback is sent, and comes to nobody.
    assert inside["udp"] in ("ok", "ECONNREFUSED")
    assert canaries.seen() == set()


def test_no_way_out_and_no_wait(program: Program, engine: ScriptedEngine) -> None:
    """NET-01, NET-07, NET-09: every way to the world fails at once, names are not resolved."""
    acts = {
        "tcp": "connect(socket.AF_INET, socket.SOCK_STREAM, ('1.1.1.1', 443))",
        "tcp6": "connect(socket.AF_INET6, socket.SOCK_STREAM, ('2606:4700:4700::1111', 443))",
        "metadata": "connect(socket.AF_INET, socket.SOCK_STREAM, ('169.254.169.254', 80))",
        "udp": "connect(socket.AF_INET, socket.SOCK_DGRAM, ('8.8.8.8', 53))",
        "broadcast": "connect(socket.AF_INET, socket.SOCK_DGRAM, ('255.255.255.255', 9))",
        "multicast": "connect(socket.AF_INET, socket.SOCK_DGRAM, ('224.0.0.251', 5353))",
        "mptcp": "socket.socket(2, socket.SOCK_STREAM, 262).connect(('1.1.1.1', 443))",
        "name": "socket.getaddrinfo('canary.example.com', 80)",
        "interfaces": "sorted(name for _, name in socket.if_nameindex())",
        "routes": "len(open('/proc/net/route').readlines())",
        "resolver": "connect(socket.AF_INET, socket.SOCK_DGRAM, ('127.0.0.53', 53))",
        "varlink": "connect(socket.AF_UNIX, socket.SOCK_STREAM,"
        " '/run/systemd/resolve/io.systemd.Resolve')",
        "nscd": "connect(socket.AF_UNIX, socket.SOCK_STREAM, '/run/nscd/socket')",
        "bus": "connect(socket.AF_UNIX, socket.SOCK_STREAM, '/run/dbus/system_bus_socket')",
        "docker": "connect(socket.AF_UNIX, socket.SOCK_STREAM, '/var/run/docker.sock')",
        "seconds": "time.process_time() and time.monotonic() - float(os.environ['T0'])",
    }
    script = "export T0=$(cut -d' ' -f1 /proc/uptime); " + script_for(program, acts)
    inside = tried(session(program, engine, script).said)
    for name in ("tcp", "tcp6", "metadata", "udp", "broadcast", "multicast", "mptcp"):
        assert inside[name] in UNREACHABLE, (name, inside[name])
    assert inside["name"].startswith("EAI"), inside["name"]
    assert inside["interfaces"] == "ok ['lo']"
    assert inside["routes"] == "ok 1"
    assert inside["resolver"] in ("ok", "ECONNREFUSED")
    assert {inside[name] for name in ("varlink", "nscd", "bus", "docker")} == {"ENOENT"}
    assert float(inside["seconds"].split()[1]) < 2


def test_the_tools_people_use_find_no_network(program: Program, engine: ScriptedEngine) -> None:
    """NET-01, NET-04: curl, wget, ssh, git, bash, systemd and tmux fail within two seconds each."""
    probes = {
        "curl": "curl -sS -m3 https://example.com",
        "wget": "wget -q -T3 -t1 -O- https://example.com",
        "ssh": "ssh -oBatchMode=yes -oConnectTimeout=3 nobody@1.1.1.1 true",
        "bash": "echo > /dev/tcp/1.1.1.1/443",
        "git": "git ls-remote https://example.com/x.git",
        "names": "getent hosts example.com",
        "busctl": "busctl --user list",
        "system": "systemd-run --user true",
        "tmux": "tmux -S /tmp/tmux-0/default run-shell id",
        "agent": "ssh-add -l",
        "docker": "docker ps",
        "session": "env | grep -E 'SSH_AUTH_SOCK|DBUS|DISPLAY|WAYLAND|XDG_RUNTIME|DOCKER_HOST'",
    }
    started = time.monotonic()
    found = probe_inside(program, engine, probes)
    assert time.monotonic() - started < 15
    assert {name for name, outcome in found.items() if outcome.ok} == set(), found


def test_rare_families_do_not_exist(program: Program, engine: ScriptedEngine) -> None:
    """NET-08: only Unix, IPv4, IPv6 and the route netlink exist; raw sockets are refused."""
    acts = {
        f"family{number}": f"socket.socket({number}, socket.SOCK_DGRAM).close()"
        for number in range(46)
    }
    acts |= {
        f"netlink{number}": f"socket.socket(16, socket.SOCK_RAW, {number}).close()"
        for number in range(23)
    }
    acts |= {
        "raw": "socket.socket(2, socket.SOCK_RAW, 1).close()",
        "raw6": "socket.socket(10, socket.SOCK_RAW, 58).close()",
        "packet": "socket.socket(2, 10, 3).close()",
        "raw_flagged": "socket.socket(2, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 1).close()",
        "pair": "len(socket.socketpair())",
    }
    inside = try_inside(program, engine, acts)
    open_families = {1, 2, 10, 16}
    for number in range(46):
        wanted = "ok" if number in open_families else "EAFNOSUPPORT"
        assert inside[f"family{number}"] == wanted, (number, inside[f"family{number}"])
    for number in range(23):
        wanted = "ok" if number == 0 else "EAFNOSUPPORT"
        assert inside[f"netlink{number}"] == wanted, (number, inside[f"netlink{number}"])
    assert {inside[name] for name in ("raw", "raw6", "packet", "raw_flagged")} == {"EPERM"}
    assert inside["pair"] == "ok 2"


def test_a_test_server_on_loopback_works(program: Program, engine: ScriptedEngine) -> None:
    """NET-15: IPv4, IPv6, UDP, Unix and abstract sockets work between processes of one command."""
    local = (
        "(lambda s: (s.listen(), connect({0}, socket.SOCK_STREAM, s.getsockname()), s.close())[-1])"
        "((lambda s: (s.bind({1}), s)[-1])(socket.socket({0}, socket.SOCK_STREAM)))"
    )
    inside = try_inside(
        program,
        engine,
        {
            "tcp4": local.format("socket.AF_INET", "('127.0.0.1', 0)"),
            "tcp6": local.format("socket.AF_INET6", "('::1', 0)"),
            "unix": local.format("socket.AF_UNIX", "'/tmp/s'"),
            "abstract": local.format("socket.AF_UNIX", "'\\0own'"),
            "low_port": local.format("socket.AF_INET", "('127.0.0.1', 80)"),
        },
    )
    assert {inside[name] for name in ("tcp4", "tcp6", "unix", "abstract")} == {"ok"}, inside
    assert inside["low_port"] in ("ok", "EACCES")


_SHARED = """\
exec 2>&1
python3 - <<'END'
import ctypes, os, socket, time
libc = ctypes.CDLL(None, use_errno=True)
librt = ctypes.CDLL("librt.so.1", use_errno=True)
me, other = {me!r}, {other!r}
tcp = socket.create_server(("127.0.0.1", 4747))
name = socket.socket(socket.AF_UNIX); name.bind("\\0shared-" + me); name.listen()
shm = libc.shmget(4747, 4096, 0o1666)
msg = libc.msgget(4748, 0o1666)
open("/dev/shm/" + me, "w").close(); open("/tmp/" + me, "w").close()
open("/home/agent/" + me, "w").close()
open("ready-" + me, "w").close()
deadline = time.monotonic() + 20
while not os.path.exists("ready-" + other) and time.monotonic() < deadline:
    time.sleep(0.02)
def reach(address):
    try:
        one = socket.socket(socket.AF_UNIX); one.connect(address); return "reached"
    except OSError as exc:
        return exc.strerror
tcp.setblocking(False)
print("made", shm >= 0, msg >= 0)
print("abstract", reach("\\0shared-" + other))
print("files", [p for p in ("/dev/shm/", "/tmp/", "/home/agent/") if os.path.exists(p + other)])
print("segments", len(open("/proc/sysvipc/shm").readlines()) - 1,
      len(open("/proc/sysvipc/msg").readlines()) - 1)
print("queue", librt.mq_open(b"/q" + me.encode(), 0o102, 0o600, None),
      os.strerror(ctypes.get_errno()))
print("pids", sorted(int(p) for p in os.listdir("/proc") if p.isdigit())[-1] < 20)
print("work", os.path.exists("ready-" + other))
open("done-" + me, "w").close()
while not os.path.exists("done-" + other) and time.monotonic() < deadline:
    time.sleep(0.02)
END
"""


def test_siblings_share_the_work_and_nothing_else(program: Program, engine: ScriptedEngine) -> None:
    """NET-12: two subagents at once meet only in the workspace: no port, name or segment."""
    for me, other in (("one", "two"), ("two", "one")):
        lane = engine.when(no_tool="Task", last=f"brief-{me}")
        lane.call("bash", command=_SHARED.format(me=me, other=other), timeout_s=30)
        engine.when(no_tool="Task", last="work").say("done")
    engine.calls(
        *[Call("Task", {"agent": "general", "prompt": f"brief-{me}"}) for me in ("one", "two")]
    )
    engine.say("Merged.")
    ran = program.ask(engine.url, "--set", "execution.subagentMaxDepth=1")
    assert ran.code == 0, ran.err + ran.out
    said = [seen.last for seen in engine.requests if "segments" in seen.last]
    assert len(said) == 2, [seen.last for seen in engine.requests]
    for text in said:
        assert "made True True" in text
        assert "abstract Connection refused" in text
        assert "files []" in text
        assert "segments 1 1" in text
        assert "queue -1 Permission denied" in text
        assert "pids True" in text
        assert "work True" in text


def test_the_engine_is_chosen_by_the_supervisor_alone(
    program: Program, engine: ScriptedEngine, canaries: Canaries
) -> None:
    """NET-13: no argument of a delegation or a tool names another endpoint, key or model."""
    port = canaries.tcp4.getsockname()[1]
    evil = f"http://127.0.0.1:{port}/v1"
    engine.call("Task", agent="general", prompt="x", base_url=evil, model=evil)
    engine.call("bash", command="true", headers={"x": "y"}, base_url=evil)
    engine.call("fetch", url=evil)
    engine.say("done")
    ran = program.ask(engine.url)
    assert ran.code == 0, ran.err
    assert canaries.seen() == set()
    answers = [seen.last for seen in engine.requests[1:]]
    assert len(answers) == 3
    for answer, word in zip(answers, ("base_url", "headers", "fetch"), strict=True):
        assert word in answer
        assert answer.startswith("[error]"), answer
    assert ran.json["subagents"] == []
    assert Path(program.workspace).exists()


def test_a_socket_of_the_host_in_the_workspace_is_hidden(
    program: Program, engine: ScriptedEngine
) -> None:
    """NET-04: a server of the host that listens in the tree is reached outside, not inside."""
    folder = program.workspace / "run"
    folder.mkdir()
    with (
        contextlib.chdir(folder),
        _listen(socket.AF_UNIX, socket.SOCK_STREAM, "s") as stream,
        _listen(socket.AF_UNIX, socket.SOCK_DGRAM, "d") as dgram,
    ):
        for name in ("s", "d"):
            os.chmod(name, 0o777)
        acts = {
            "stream": "connect(socket.AF_UNIX, socket.SOCK_STREAM, 'run/s')",
            "dgram": "connect(socket.AF_UNIX, socket.SOCK_DGRAM, 'run/d')",
        }
        assert try_outside(program, acts) == {"stream": "ok", "dgram": "ok"}
        assert dgram.recv(9) == b"x"
        stream.accept()[0].close()
        acts["own"] = (
            "(lambda s: (s.bind('run/own'), s.listen(),"
            " connect(socket.AF_UNIX, socket.SOCK_STREAM, 'run/own'), None)[-1])"
            "(socket.socket(socket.AF_UNIX))"
        )
        found = try_inside(program, engine, acts)
        assert found.pop("own") == "ok"
        assert set(found.values()) <= {"EACCES", "ECONNREFUSED"}, found
        for one in (stream, dgram):
            with pytest.raises(BlockingIOError):
                one.accept() if one is stream else one.recv(9)
