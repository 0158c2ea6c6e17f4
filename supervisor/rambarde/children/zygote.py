"""The supervisor's hold on the zygote: starts it, gives it orders, hears of ends. Trusted side.

Theory of operation
-------------------
`Zygote.start` execs the base interpreter, isolated and with the environment it is given (almost
nothing), before the supervisor reads any secret. No folder is staged: the bootstrap installs an
import finder that knows three packages by their real places; all else it can import is the
standard library. Call it from the main thread: the zygote dies with the thread that started it.

Orders are numbered datagrams; each is answered once by a spawn, a done or a failure. An end of the
socket is the end of the zygote: every call in flight fails, every later one too, and `on_death` is
called once. Agents and commands die with it, by the kernel.

This file touches asyncio's loop directly (`add_reader`), as channel.py does, and starts a process.

Source: ADR 0002; unix(7) on SCM_RIGHTS and MSG_CTRUNC.
"""

from __future__ import annotations

import array
import asyncio
import errno
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rambarde.children.processes import (
    AgentProcess,
    CommandProcess,
    Descriptors,
    no_descriptors,
    refusal,
)
from rambarde.errors import HostError, InternalError, SandboxUnavailable
from rambarde_wire import orders
from rambarde_wire.orders import (
    Answer,
    CommandPlan,
    Mask,
    Order,
    OrderAgent,
    OrderCommand,
    OrderRelease,
    OrderRemask,
    ReplyDone,
    ReplyFailed,
    ReplyReady,
    ReplySpawned,
    SandboxPlan,
    TellEnded,
    ZygoteSetup,
)

TURN = "rambarde_child.turn"
"""The module whose `run` is an agent's loop."""
_PACKAGES = ("rambarde_child", "rambarde_wire", "msgspec")
_BOOTSTRAP = """\
import sys
from importlib.machinery import PathFinder
_places = dict(item.split("=", 1) for item in sys.argv[4:])
class Finder:
    'Finds the packages named on the command line at their places, and no others.'
    @staticmethod
    def find_spec(name, path=None, target=None):
        place = _places.get(name)
        return PathFinder.find_spec(name, [place]) if place else None
sys.meta_path.append(Finder)
from rambarde_child.__main__ import main
main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
"""
_ANSWER_BYTES = 64 << 10
_KEPT_ENDS = 512
_ANSWER_S = 30.0
"""A zygote that is stopped or hangs longer is killed: nobody waits for it for ever."""


class Zygote:
    """One zygote process. All coroutines run in the loop that awaited `wait_ready`."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket, log_fd: int) -> None:
        """Use `start`."""
        self._process = process
        self._socket = sock
        self._log_fd = log_fd
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: dict[int, asyncio.Future[tuple[Answer, int]]] = {}
        self._ends: dict[int, asyncio.Future[TellEnded]] = {}
        self._next_id = 0
        self._death = ""
        self._sending = asyncio.Lock()
        self.on_death: Callable[[str], None] | None = None
        """Called once, with the reason, when the zygote is gone and nobody closed it."""

    @classmethod
    def start(
        cls,
        setup: ZygoteSetup,
        *,
        environment: Mapping[str, str],
        entry: str = TURN,
        extra_places: Mapping[str, str] | None = None,
    ) -> Zygote:
        """Exec the zygote and give it its set-up; returns before it is ready.

        Args:
            setup: the first order.
            environment: the whole environment of the zygote; every child could read it.
            entry: the module whose `run(read_fd, write_fd)` is an agent's loop.
            extra_places: further importable packages, name to folder (tests bring their own loop).

        Raises:
            HostError: no process or descriptor could be had.

        Trusts: the interpreter and the places the running supervisor was itself loaded from.
        """
        places = {name: _place_of(name) for name in _PACKAGES} | dict(extra_places or {})
        interpreter = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as exc:
            raise no_descriptors("the zygote's socket", exc) from None
        log_fd = os.memfd_create("zygote-log", os.MFD_CLOEXEC)
        arguments = [interpreter, "-I", "-S", "-B", "-X", "utf8", "-c", _BOOTSTRAP]
        arguments += [str(theirs.fileno()), str(os.getpid()), entry]
        arguments += [f"{name}={place}" for name, place in places.items()]
        try:
            process = subprocess.Popen(
                arguments,
                env=dict(environment),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log_fd,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as exc:
            ours.close()
            os.close(log_fd)
            raise HostError(f"cannot start the zygote by {interpreter}: {exc}") from None
        finally:
            theirs.close()
        zygote = cls(process, ours, log_fd)
        try:
            zygote._send_nowait(setup, [])
        except HostError:
            process.kill()
            process.wait()
            ours.close()
            os.close(log_fd)
            raise
        ours.setblocking(False)
        return zygote

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    async def wait_ready(self, timeout_s: float = 20.0) -> ReplyReady:
        """Wait for the template and the trial agent.

        Raises:
            SandboxUnavailable: a step of the set-up was refused; the message names it.
            HostError: the zygote died, or was not ready within `timeout_s`.
        """
        self._loop = asyncio.get_running_loop()
        waiting = self._expect(0)
        self._loop.add_reader(self._socket, self._on_readable)
        try:
            answer, _fd = await asyncio.wait_for(waiting, timeout_s)
        except TimeoutError:
            self._die(f"the zygote was not ready within {timeout_s:.0f} s")
            self._process.kill()
            raise HostError(self._death) from None
        if isinstance(answer, ReplyFailed):
            text = f"the sandbox cannot be made: {answer.step}: {answer.text}"
            advice = "`rambarde doctor` shows what this machine refuses and what would mend it"
            raise SandboxUnavailable(text, advice=advice)
        if not isinstance(answer, ReplyReady):
            raise InternalError(f"the zygote answered the set-up by {type(answer).__name__}")
        return answer

    async def spawn_agent(self, plan: SandboxPlan) -> AgentProcess:
        """Fork an agent under this plan; it greets, or tells its fault, on `read_fd`.

        Raises:
            HostError: the zygote is dead, refused a step, or descriptors ran out. Nothing is left.
        """
        held = Descriptors()
        try:
            down_read, down_write = held.pipe()
            up_read, up_write = held.pipe()
            log_read, log_write = held.pipe()
            number, waiting = self._number()
            order = OrderAgent(number, plan)
            pid, pidfd = await self._spawn(order, [down_read, up_write, log_write], waiting)
        except BaseException:
            held.close_all()
            raise
        held.close(down_read, up_write, log_write)
        for fd in (up_read, down_write, log_read):
            os.set_blocking(fd, False)
        return AgentProcess(pid, pidfd, up_read, down_write, log_read)

    async def run_command(self, plan: CommandPlan, stdin_fd: int | None = None) -> CommandProcess:
        """Fork a command into the sandbox of `plan.agent_id`; how it ends is told by `status_fd`.

        `stdin_fd` stays the caller's; None gives the command an empty input.

        Raises:
            HostError: as `spawn_agent`; also when that agent is gone.
        """
        held = Descriptors()
        try:
            own_stdin = held.null() if stdin_fd is None else -1
            stdin = own_stdin if stdin_fd is None else stdin_fd
            out_read, out_write = held.pipe()
            err_read, err_write = held.pipe()
            for fd in (out_write, err_write):
                # Under another uid than ours `echo > /dev/stderr` opens what we own. The pipe has
                # no name but in the /proc of its own processes.
                os.fchmod(fd, 0o666)
            status_read, status_write = held.pipe()
            number, waiting = self._number()
            order = OrderCommand(number, plan)
            given = [stdin, out_write, err_write, status_write]
            pid, pidfd = await self._spawn(order, given, waiting)
        except BaseException:
            held.close_all()
            raise
        held.close(out_write, err_write, status_write, *([own_stdin] if own_stdin >= 0 else []))
        for fd in (out_read, err_read, status_read):
            os.set_blocking(fd, False)
        return CommandProcess(pid, pidfd, out_read, err_read, status_read)

    async def release(self, agent_id: str) -> None:
        """Tell that an agent is gone; the zygote closes its namespaces. A dead zygote is fine."""
        if not self._death:
            await self._send(OrderRelease(agent_id), [])

    async def remask(
        self, agent_id: str, masks: Sequence[Mask], read_only: Sequence[bytes] = ()
    ) -> None:
        """Cover paths again inside a live agent and its running commands.

        Raises:
            HostError: the zygote is dead or a step was refused; end the agent then.
        """
        number, waiting = self._number()
        await self._exchange(
            OrderRemask(number, agent_id, list(masks), list(read_only)), [], waiting
        )

    async def wait_ended(self, pid: int) -> TellEnded:
        """Wait until the zygote has reaped this agent or command init and return how it ended.

        To be asked once for a pid that a spawn returned. Raises HostError when the zygote dies.
        """
        future = self._ends.get(pid)
        if future is None:
            raise InternalError(f"process {pid} was not started by this zygote, or was asked for")
        try:
            return await future
        finally:
            self._ends.pop(pid, None)

    async def aclose(self) -> None:
        """End the zygote and with it every agent and command; returns when it is reaped."""
        self._die("the zygote was closed", by_us=True)
        self._process.kill()
        await asyncio.get_running_loop().run_in_executor(None, self._process.wait)
        self._socket.close()
        if self._log_fd >= 0:
            os.close(self._log_fd)
            self._log_fd = -1

    def abandon(self) -> None:
        """End a zygote that no loop has awaited yet; returns when it is reaped."""
        self._death = self._death or "the zygote was closed"
        self._process.kill()
        self._process.wait()
        self._socket.close()
        os.close(self._log_fd)
        self._log_fd = -1

    # ── orders and answers ───────────────────────────────────────────────────────────────────

    def _expect(self, number: int) -> asyncio.Future[tuple[Answer, int]]:
        if self._loop is None:
            raise InternalError("an order was given before wait_ready")
        future: asyncio.Future[tuple[Answer, int]] = self._loop.create_future()
        self._pending[number] = future
        return future

    def _number(self) -> tuple[int, asyncio.Future[tuple[Answer, int]]]:
        if self._death:
            raise HostError(self._death)
        self._next_id += 1
        return self._next_id, self._expect(self._next_id)

    async def _spawn(
        self, order: Order, fds: list[int], waiting: asyncio.Future[tuple[Answer, int]]
    ) -> tuple[int, int]:
        answer, pidfd = await self._exchange(order, fds, waiting)
        if not isinstance(answer, ReplySpawned) or pidfd < 0:
            raise HostError(
                "the zygote's answer came without its descriptor: the descriptor table is full",
                advice="raise the limit on open files (ulimit -n)",
            )
        return answer.pid, pidfd

    async def _exchange(
        self, order: Order, fds: list[int], waiting: asyncio.Future[tuple[Answer, int]]
    ) -> tuple[Answer, int]:
        number = getattr(order, "request_id", 0)
        try:
            await self._send(order, fds)
            async with asyncio.timeout(_ANSWER_S):
                answer, fd = await waiting
        except TimeoutError:
            self._process.kill()
            self._die(f"the zygote did not answer within {_ANSWER_S:.0f} s and was killed")
            raise HostError(self._death) from None
        except asyncio.CancelledError:
            # The process may yet be made: whoever asked is gone, so it must be too.
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                _discard(*waiting.result())
            raise
        finally:
            if not waiting.cancelled():
                self._pending.pop(number, None)
        if isinstance(answer, ReplyFailed):
            raise refusal(answer)
        if not isinstance(answer, ReplySpawned | ReplyDone):
            raise InternalError(f"the zygote answered by {type(answer).__name__}")
        return answer, fd

    async def _send(self, order: Order, fds: list[int]) -> None:
        """Send one order, waiting while the socket is full."""
        async with self._sending:
            while True:
                if self._death:
                    raise HostError(self._death)
                try:
                    self._send_nowait(order, fds)
                    return
                except BlockingIOError:
                    await self._writable()

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(self._socket, ready.set)
        try:
            await asyncio.wait_for(ready.wait(), 10.0)
        except TimeoutError:
            self._die("the zygote took no order for 10 s")
        finally:
            loop.remove_writer(self._socket)

    def _send_nowait(self, order: Order, fds: list[int]) -> None:
        data = orders.encode(order)
        long_fd = -1
        try:
            if len(data) > orders.INLINE_BYTES:
                long_fd = os.memfd_create("order", os.MFD_CLOEXEC)
                os.pwrite(long_fd, data, 0)
                data, fds = b"", [long_fd, *fds]
            rights = array.array("i", fds)
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fds else []
            self._socket.sendmsg([data], control)
        except BlockingIOError:
            raise
        except OSError as exc:
            if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS):
                raise no_descriptors("an order's descriptors", exc) from None
            self._die("the zygote died")
            raise HostError(self._death) from None
        finally:
            if long_fd >= 0:
                os.close(long_fd)

    def _on_readable(self) -> None:
        while True:
            try:
                data, fd, truncated = self._receive()
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data, fd, truncated = b"", -1, False
            if not data:
                self._die("the zygote died")
                return
            try:
                self._take(orders.answer_decoder.decode(data), -1 if truncated else fd)
            except msgspec.MsgspecError as exc:
                self._die(f"the zygote's answer cannot be read: {exc}")
                self._process.kill()
                return

    def _receive(self) -> tuple[bytes, int, bool]:
        """Receive one answer and its descriptor, or -1; True when the kernel dropped one."""
        room = socket.CMSG_SPACE(4)
        data, ancillary, flags, _ = self._socket.recvmsg(
            _ANSWER_BYTES, room, socket.MSG_CMSG_CLOEXEC
        )
        fd = -1
        for level, kind, block in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and len(block) >= 4:
                fd = int.from_bytes(block[:4], sys.byteorder)
        return data, fd, bool(flags & socket.MSG_CTRUNC)

    def _take(self, answer: Answer, fd: int) -> None:
        if isinstance(answer, TellEnded):
            future = self._ends.get(answer.pid)
            if future is not None and not future.done():
                future.set_result(answer)
            return
        number = answer.request_id if not isinstance(answer, ReplyReady) else 0
        waiting = self._pending.pop(number, None)
        if isinstance(answer, ReplySpawned) and self._loop is not None:
            self._forget_old_ends()
            self._ends[answer.pid] = self._loop.create_future()
        if waiting is None or waiting.done():
            self._ends.pop(getattr(answer, "pid", 0), None)
            _discard(answer, fd)
            return
        waiting.set_result((answer, fd))

    def _forget_old_ends(self) -> None:
        """Keep the last ends that nobody has asked for, not all of a long session."""
        while len(self._ends) >= _KEPT_ENDS:
            pid = next((pid for pid, end in self._ends.items() if end.done()), None)
            if pid is None:
                return
            del self._ends[pid]

    def _die(self, reason: str, *, by_us: bool = False) -> None:
        """Fail everything that waits, once."""
        if self._death:
            return
        words = self._last_words()
        self._death = f"{reason}: {words}" if words else reason
        if self._loop is not None:
            self._loop.remove_reader(self._socket)
        for waiting in self._pending.values():
            _fail(waiting, self._death)
        for end in self._ends.values():
            _fail(end, self._death)
        self._pending.clear()
        if self.on_death is not None and not by_us:
            self.on_death(self._death)

    def _last_words(self) -> str:
        """Return the last line the zygote wrote to its standard error."""
        if self._log_fd < 0:
            return ""
        size = os.fstat(self._log_fd).st_size
        text = os.pread(self._log_fd, 4096, max(0, size - 4096)).decode("utf-8", "replace")
        lines = text.strip().splitlines()
        return lines[-1] if lines else ""


def _place_of(package: str) -> str:
    """Return the folder that holds a package, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise InternalError(f"package {package} is not installed beside the supervisor")
    return os.path.dirname(os.path.dirname(os.path.abspath(spec.origin)))


def _fail(future: asyncio.Future[Any], reason: str) -> None:
    """Fail a future; one that nobody waits for must not complain when it is dropped."""
    if not future.done():
        future.set_exception(HostError(reason))
        future.exception()


def _discard(answer: Answer, fd: int) -> None:
    """Kill a process nobody waits for any more."""
    if fd < 0:
        return
    if isinstance(answer, ReplySpawned):
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    os.close(fd)
