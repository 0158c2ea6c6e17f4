"""The zygote: forks agents and commands on the supervisor's orders, judges nothing. Inside.

Theory of operation
-------------------
Exec'ed with an empty environment before the supervisor reads a secret; one thread for life. It
imports all that a child will need, leaves the host's namespaces, builds the template root, makes
a whole trial agent, and then serves orders one by one. Orders come as datagrams with descriptors;
every answer bears the number of its order, and a failed order leaves nothing behind.

What it keeps of a live agent is the descriptors of its namespaces, until the agent's end.
It reaps every process of which it is the parent and tells each end, save those of the errands
(joiners, starters, remaskers), which answer for themselves; an errand that dies without having
answered is answered for here.

It dies with the supervisor (parent-death signal, end of the socket); agents and inits die with it
by the same signal, and all within their namespaces with them.

It stays dumpable: an ordinary user's zygote could not write the maps of its children else. It
holds no secret, and no sandboxed process can reach it (pid namespace, Landlock).

Source: ADR 0002; PR_SET_PDEATHSIG(2const): the signal follows the parent's thread, so the
supervisor starts the zygote from its main thread.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

import msgspec

from rambarde_wire import orders
from rambarde_wire.orders import (
    Answer,
    Order,
    OrderAgent,
    OrderCommand,
    OrderRelease,
    OrderRemask,
    ReplyDone,
    ReplyFailed,
    ReplyReady,
    ReplySpawned,
    TellEnded,
    ZygoteSetup,
)

from . import join, life, root, sandbox, trial
from . import syscalls as sys_
from .join import Errand, Room
from .sandbox import Birth, Host
from .syscalls import StepFailed

Run = Callable[[int, int], None]
"""An agent's loop, given its two frame descriptors."""
_MOST_FDS = 8
_CMSG_CLOEXEC = 0x40000000
_HANDLED = (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)
"""Given a handler that does nothing: unlike an ignored signal, a handled one is default after
exec, so that commands start with default signals and no child has to reset any."""


class Zygote:
    """The state of the zygote; `serve` is its life."""

    def __init__(self, orders_socket: socket.socket, run: Run) -> None:
        """`orders_socket`: the SOCK_SEQPACKET pair's end; `run`: what an agent does once sealed."""
        self._socket = orders_socket
        self._run = run
        self._rooms: dict[str, Room] = {}
        self._agents: dict[int, str] = {}
        self._errands: dict[int, int] = {}
        self._inits: set[int] = set()
        self._life = os.pipe2(os.O_CLOEXEC)
        self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._umask = os.umask(0o077)
        self._network_is_fresh = False

    def serve(self) -> NoReturn:
        """Set up by the first order, then carry out orders until the supervisor is gone."""
        try:
            self._set_up(self._first_order())
        except StepFailed as exc:
            self._answer(ReplyFailed(0, exc.step, exc.errno, exc.text))
            os._exit(1)
        except OSError as exc:
            self._answer(ReplyFailed(0, "set-up of the zygote", exc.errno or 0, str(exc)))
            os._exit(1)
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake[0], select.POLLIN)
        while True:
            for fd, _event in poll.poll():
                if fd == self._wake[0]:
                    with contextlib.suppress(BlockingIOError):
                        os.read(fd, 4096)
                    self._reap()
                else:
                    self._serve_one()

    # ── set-up ───────────────────────────────────────────────────────────────────────────────

    def _first_order(self) -> ZygoteSetup:
        order, _fds = self._receive()
        if not isinstance(order, ZygoteSetup):
            raise StepFailed("setup", 0, "the first order was no set-up")
        if order.version != orders.ORDERS_VERSION:
            raise StepFailed("setup", 0, f"orders of version {order.version}")
        return order

    def _set_up(self, setup: ZygoteSetup) -> None:
        self._setup = setup
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ.clear()
        for number in _HANDLED:
            signal.signal(number, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        sys_.prctl(sys_.PR_SET_CHILD_SUBREAPER, 1, step="subreaper")
        life.settle_zygote(setup)
        sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL, step="pdeathsig")
        if os.getppid() != setup.supervisor_pid:
            os._exit(1)
        seat, self._work_fds = self._place(setup)
        abi = sys_.landlock_version()
        self._host = Host(
            seat=seat,
            by_root=setup.started_by_root,
            inner_uid=setup.inner_uid,
            inner_gid=setup.inner_gid,
            umask=self._umask,
            life_fd=self._life[0],
            life_write_fd=self._life[1],
            landlock_abi=abi,
        )
        self._maps = life.IdMaps(setup.owner_uid, setup.owner_gid)
        gc.disable()
        gc.collect()
        gc.freeze()
        trial_ms = self._try_spawn() if setup.probe else 0.0
        self._prepare_network()
        errata = sys_.landlock_version(errata=True)
        self._answer(ReplyReady(abi, errata, trial_ms, len(os.listdir("/proc/self/task"))))

    def _place(self, setup: ZygoteSetup) -> tuple[bytes, dict[bytes, int]]:
        """Make the template and hold the workspace itself, whatever its name comes to mean."""
        if setup.tier == "C":
            return b"", {}
        if setup.hostname:
            socket.sethostname(os.fsdecode(setup.hostname))
        try:
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            paths = (setup.workspace, *setup.beside)
            work_fds = {path: os.open(path, flags) for path in paths}
        except OSError as exc:
            raise StepFailed("workspace", exc.errno or 0) from None
        return root.build_template(setup), work_fds

    def _try_spawn(self) -> float:
        """Make and seal a whole agent that is never heard of again; return its milliseconds."""
        started = time.monotonic()
        fds, hello_fd = trial.open_ends()
        _pid, pidfd = self._fork_agent(trial.make_plan(self._setup), fds, keep=False)
        for fd in fds:
            os.close(fd)
        try:
            trial.await_hello(hello_fd)
        finally:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.waitpid(_pid, 0)
            os.close(pidfd)
            os.close(hello_fd)
        return (time.monotonic() - started) * 1000

    # ── orders ───────────────────────────────────────────────────────────────────────────────

    def _receive(self) -> tuple[Order, list[int]]:
        """Receive one order with its descriptors. Raises StepFailed when it cannot be read."""
        room = socket.CMSG_SPACE(_MOST_FDS * 4)
        data, ancillary, flags, _ = self._socket.recvmsg(orders.INLINE_BYTES, room, _CMSG_CLOEXEC)
        fds = [
            int.from_bytes(block[i : i + 4], sys.byteorder)
            for level, kind, block in ancillary
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS
            for i in range(0, len(block) - 3, 4)
        ]
        if not data and not fds and not flags & socket.MSG_CTRUNC:
            os._exit(0)
        try:
            if not data and fds:
                data = _read_long(fds.pop(0))
            order = orders.order_decoder.decode(data)
            if flags & socket.MSG_CTRUNC:
                number = getattr(order, "request_id", 0)
                self._answer(ReplyFailed(number, "descriptors", errno.EMFILE, "table is full"))
                raise StepFailed("answered")
        except (msgspec.MsgspecError, StepFailed, OSError) as exc:
            _close(fds)
            if isinstance(exc, StepFailed):
                raise
            raise StepFailed("order", 0, f"not an order: {exc}") from None
        return order, fds

    def _serve_one(self) -> None:
        try:
            order, fds = self._receive()
        except StepFailed as exc:
            if exc.step != "answered":
                print(f"zygote: {exc.step}: {exc.text}", file=sys.stderr, flush=True)  # noqa: T201
            return
        number = getattr(order, "request_id", 0)
        try:
            self._carry_out(order, fds)
        except StepFailed as exc:
            self._answer(ReplyFailed(number, exc.step, exc.errno, exc.text))
        except OSError as exc:
            self._answer(ReplyFailed(number, "zygote", exc.errno or 0, str(exc)))
        except Exception as exc:  # noqa: BLE001 - one bad order must not end every agent
            traceback.print_exc()
            self._answer(ReplyFailed(number, "zygote", 0, repr(exc)[:500]))
        finally:
            _close(fds)

    def _carry_out(self, order: Order, fds: list[int]) -> None:
        match order:
            case OrderAgent(request_id, plan):
                if plan.agent_id in self._rooms:
                    self._reap()
                if plan.agent_id in self._rooms:
                    raise StepFailed("agent id", errno.EEXIST)
                pid, pidfd = self._fork_agent(plan, fds, keep=True)
                self._answer(ReplySpawned(request_id, pid), pidfd)
                os.close(pidfd)
                with contextlib.suppress(StepFailed):  # the next order will meet and tell it
                    self._prepare_network()
            case OrderCommand():
                self._start_command(order, fds)
            case OrderRemask():
                room = self._room(order.agent_id)
                if room.tier == "C":
                    # Landlock allows files, not names: what took a hidden file's place is hidden.
                    self._answer(ReplyDone(order.request_id))
                    return
                pid, pidfd = sys_.clone(step="clone remasker")
                if pid == 0:
                    join.remask(order, room, self._host, self._answer)
                os.close(pidfd)
                self._errands[pid] = order.request_id
            case OrderRelease(agent_id):
                self._forget(agent_id)
            case ZygoteSetup():
                raise StepFailed("setup", errno.EALREADY)

    def _room(self, agent_id: str) -> Room:
        room = self._rooms.get(agent_id)
        if room is None:
            raise StepFailed("agent", errno.ESRCH, "no such agent lives here")
        return room

    def _forget(self, agent_id: str) -> None:
        room = self._rooms.pop(agent_id, None)
        if room:
            _close(list(room.namespaces.values()))

    def _answer(self, answer: Answer, fd: int = -1) -> None:
        """Send one answer; a supervisor that is gone ends this process too."""
        rights = []
        if fd >= 0:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fd.to_bytes(4, sys.byteorder))]
        try:
            self._socket.sendmsg([orders.encode(answer)], rights)
        except OSError:
            os._exit(1)

    # ── forks ────────────────────────────────────────────────────────────────────────────────

    def _fork_agent(
        self, plan: orders.SandboxPlan, fds: list[int], *, keep: bool
    ) -> tuple[int, int]:
        """Fork an agent; return its pid and pidfd. With `keep` its namespaces are kept."""
        life.plan_is_possible(plan, self._setup)
        if len(fds) != 3:
            raise StepFailed("descriptors", errno.EBADF, f"{len(fds)} came, an agent needs 3")
        self._prepare_network()
        copies = self._copy_workspace(plan)
        go_fd, go_write_fd = os.pipe2(os.O_CLOEXEC)
        pid = -1
        try:
            pid, pidfd = sys_.clone(life.namespace_flags(plan.tier))
            self._network_is_fresh = False
            if pid == 0:
                os.close(go_write_fd)
                self._socket.detach()
                birth = Birth(plan, self._host, copies, fds[0], fds[1], fds[2], go_fd)
                sandbox.become_agent(birth, self._run)
            self._release(plan, pid, go_write_fd, keep=keep)
        except StepFailed:
            if pid > 0:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.waitpid(pid, 0)
                os.close(pidfd)
            raise
        finally:
            _close([go_fd, go_write_fd, *copies.values()])
        return pid, pidfd

    def _prepare_network(self) -> None:
        if self._setup.tier in ("A", "A-proc") and not self._network_is_fresh:
            life.fresh_network()
            self._network_is_fresh = True

    def _copy_workspace(self, plan: orders.SandboxPlan) -> dict[bytes, int]:
        """Return detached mounts of the workspace and what is beside it; none in tier C."""
        copies: dict[bytes, int] = {}
        try:
            for path, fd in self._work_fds.items():
                idmap_fd = self._maps.fd_for(plan.kuid) if self._setup.started_by_root else 0
                writable = plan.workspace_writable
                copies[path] = root.copy_workspace(fd, writable=writable, idmap_fd=idmap_fd)
        except StepFailed:
            _close(list(copies.values()))
            raise
        return copies

    def _release(self, plan: orders.SandboxPlan, pid: int, go_fd: int, *, keep: bool) -> None:
        """Do what only the zygote can do for a new agent, letting it run as early as may be."""
        if plan.tier != "C":
            life.map_child(pid, self._setup, plan.kuid)
        join.join_cgroups(plan.cgroup_procs, pid)
        os.write(go_fd, b"1")
        if keep:
            self._agents[pid] = plan.agent_id
            self._keep_room(plan, pid)
        os.write(go_fd, b"2")

    def _keep_room(self, plan: orders.SandboxPlan, pid: int) -> None:
        """Keep what commands will need; an agent already dead has told its fault on its pipe."""
        try:
            namespaces = life.open_namespaces(pid, plan.tier)
        except StepFailed as exc:
            if exc.errno in (errno.ENOENT, errno.ESRCH):
                return
            del self._agents[pid]
            raise
        room = Room(plan.agent_id, pid, plan.tier, tuple(self._work_fds), namespaces)
        self._rooms[plan.agent_id] = room

    def _start_command(self, order: OrderCommand, fds: list[int]) -> None:
        if len(fds) != 4:
            raise StepFailed("descriptors", errno.EBADF, f"{len(fds)} came, a command needs 4")
        room = self._room(order.plan.agent_id)
        errand = Errand(
            request_id=order.request_id,
            plan=order.plan,
            room=room,
            host=self._host,
            stdio=(fds[0], fds[1], fds[2]),
            status_fd=fds[3],
            answer=self._answer,
            orders_fd=self._socket.fileno(),
        )
        if room.tier == "C":
            self._start_bare_init(errand)
            return
        pid, pidfd = sys_.clone(step="clone joiner")
        if pid == 0:
            join.join(errand)
        os.close(pidfd)
        self._errands[pid] = order.request_id

    def _start_bare_init(self, errand: Errand) -> None:
        """Tier C: the init is the zygote's own child from the start."""
        go_fd, go_write_fd = os.pipe2(os.O_CLOEXEC)
        try:
            pid, pidfd = sys_.clone(step="clone init")
            if pid == 0:
                os.close(go_write_fd)
                join.be_init(errand, go_fd)
            self._inits.add(pid)
            self._answer(ReplySpawned(errand.request_id, pid), pidfd)
            os.close(pidfd)
            os.write(go_write_fd, b"1")
        finally:
            _close([go_fd, go_write_fd])

    # ── ends ─────────────────────────────────────────────────────────────────────────────────

    def _reap(self) -> None:
        """Reap all that has ended and tell it."""
        while True:
            try:
                pid, state = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._tell_end(pid, state)
        if self._setup.tier == "C":
            join.kill_descendants({*self._agents, *self._errands, *self._inits})

    def _tell_end(self, pid: int, state: int) -> None:
        killed = os.WTERMSIG(state) if os.WIFSIGNALED(state) else -1
        code = -1 if killed >= 0 else os.WEXITSTATUS(state)
        if pid in self._errands:
            number = self._errands.pop(pid)
            if code != 0:
                text = "the process that joins a sandbox was killed"
                self._answer(ReplyFailed(number, "join", errno.ECHILD, text))
            return
        if code == join.STARTER_EXIT and pid not in self._agents and pid not in self._inits:
            return
        self._inits.discard(pid)
        if pid in self._agents:
            self._forget(self._agents.pop(pid))
        self._answer(TellEnded(pid, code, killed))


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _read_long(fd: int) -> bytes:
    """Read an order too long for a datagram from its memfd; the descriptor is closed."""
    try:
        size = os.fstat(fd).st_size
        if size > orders.MAX_ORDER_BYTES:
            raise StepFailed("order", errno.EMSGSIZE, f"{size} bytes")
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)
