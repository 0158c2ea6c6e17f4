"""The channel: frames of one child over two pipes, bounded in size, rate and time. Trusted side.

Theory of operation
-------------------
The other end is hostile. Everything it can make us spend has a bound, and passing a bound is a
breach, which ends that child and nothing else:

    memory   one frame in (MAX_UP_BYTES) and a full pipe; QUEUED_BYTES out
    rate     frames and bytes by token bucket (Rate), generous to an honest child
    time     a frame that was begun must be whole within FRAME_S, and a frame we send must be taken
             within FRAME_S; slow drips do not move these deadlines
    the loop one read per turn of the loop, and a pause after BURST frames answered without waiting

The read end stays registered with the loop (two system calls saved per frame) until a whole frame
is here that nobody asked for; then reading pauses, so the pipe fills and the child blocks.
Frames are decoded in place, in the task that receives. Sending writes at once; only what the pipe
does not take is queued and written as room appears. A send that is cancelled half-way is still
completed by the loop, for half a frame would spoil all that follow.

A breach is final: it is raised again by each later call, and what was read before is dropped. An
end of the stream is not: the frames before it are still received, and writing goes on until it
fails.

Source: pipe(7), fcntl(2) F_SETPIPE_SZ (Linux 2.6.35; EPERM past /proc/sys/fs/pipe-user-pages-soft,
where the pipe keeps its 64 KiB). The loop is asyncio's own: anyio offers no lasting registration.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from rambarde.errors import InternalError
from rambarde_wire.frames import (
    MAX_UP_BYTES,
    BreachError,
    DownFrame,
    FrameReader,
    UpFrame,
    decode_up,
    encode_down,
)

PIPE_BYTES = 1 << 20
FRAME_S = 10.0
QUEUED_BYTES = 8 << 20
"""Most bytes waiting to be written; an honest child never lets a second frame wait."""
BURST = 32
_LATE_S = 1.0


class ChannelClosed(Exception):  # noqa: N818 - an end, not necessarily an error
    """The child's end is closed. `clean`: not inside a frame, in either direction."""

    def __init__(self, text: str, *, clean: bool) -> None:
        """`text` says what was seen."""
        super().__init__(text)
        self.clean = clean


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a child may talk: per second, and how much at once after a silence."""

    frames_per_s: float = 5_000
    frames_burst: float = 20_000
    bytes_per_s: float = 64 << 20
    bytes_burst: float = 256 << 20


class _Bucket:
    """Tokens for frames and bytes. Refilled only when they run out, so it rarely asks the clock.

    That lets up to two bursts pass at once after a silence, which is still a bound.
    """

    __slots__ = ("_at_s", "_bytes", "_frames", "_now_s", "_rate")

    def __init__(self, rate: Rate, now_s: Callable[[], float]) -> None:
        self._rate = rate
        self._now_s = now_s
        self._at_s = now_s()
        self._frames = rate.frames_burst
        self._bytes = rate.bytes_burst

    def spend(self, count: int) -> None:
        """Take one frame of `count` bytes. Raises BreachError when there is nothing left."""
        self._frames -= 1
        self._bytes -= count
        if self._frames < 0 or self._bytes < 0:
            self._refill()

    def _refill(self) -> None:
        rate, now_s = self._rate, self._now_s()
        gone_s, self._at_s = now_s - self._at_s, now_s
        self._frames = min(self._frames + gone_s * rate.frames_per_s, rate.frames_burst)
        self._bytes = min(self._bytes + gone_s * rate.bytes_per_s, rate.bytes_burst)
        if self._frames < 0 or self._bytes < 0:
            raise BreachError(
                f"more than {rate.frames_per_s:g} frames or {rate.bytes_per_s:g} bytes a second"
            )


class _Deadline:
    """Calls `expire` once FRAME_S passed since `start`, unless stopped or started anew."""

    __slots__ = ("_delay_s", "_expire", "_handle", "_loop")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, delay_s: float, expire: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._expire = expire
        self._handle: asyncio.TimerHandle | None = None

    @property
    def running(self) -> bool:
        return self._handle is not None

    def start(self) -> None:
        self.stop()
        self._handle = self._loop.call_later(self._delay_s, self._fire)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        # A timer that is late by this much was not let down by the child: the supervisor itself
        # was stopped (job control, a debugger, a starved machine). The child gets its time anew.
        late_s = self._loop.time() - self._handle.when() if self._handle else 0.0
        self._handle = None
        if late_s > _LATE_S:
            self.start()
        else:
            self._expire()


class Channel:
    """The supervisor's ends of one child's two pipes. Make it in the loop that will use it.

    One task may receive and any number may send. The channel owns both descriptors from the moment
    it is made and closes them in `aclose`.
    """

    def __init__(
        self, read_fd: int, write_fd: int, *, rate: Rate | None = None, frame_s: float = FRAME_S
    ) -> None:
        """Take over the descriptors.

        Args:
            read_fd: read end of the child's frames (UpFrame).
            write_fd: write end of the supervisor's frames (DownFrame).
            rate: token bucket of what is received; None for the usual one.
            frame_s: seconds one frame may take in either direction.
        """
        self._read_fd = read_fd
        self._write_fd = write_fd
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)
            with suppress(OSError):
                # A larger pipe is only quicker; a user may have no more of them (pipe(7)).
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(max_bytes=MAX_UP_BYTES)
        self._bucket = _Bucket(rate or Rate(), self._loop.time)
        self._receiver: asyncio.Future[None] | None = None
        self._unawaited = 0
        self._reading = False
        self._queue: deque[tuple[memoryview, asyncio.Future[None]]] = deque()
        self._queued_bytes = 0
        self._failure: BreachError | ChannelClosed | None = None
        self._read_end: ChannelClosed | None = None
        self._write_end: ChannelClosed | None = None
        self._half_in = _Deadline(self._loop, frame_s, self._expire_in)
        self._half_out = _Deadline(self._loop, frame_s, self._expire_out)
        self._resume_reading()

    # ── receiving ────────────────────────────────────────────────────────────────────────────

    async def receive(self) -> UpFrame:
        """Return the next frame of the child.

        Raises:
            BreachError: a length, a message, a rate or a time against the protocol. End the child.
            ChannelClosed: the child closed its end, or died. Look at its pidfd for the reason.
            InternalError: two tasks receive at once.
        """
        self._unawaited += 1
        if self._unawaited >= BURST:
            # A flood of cheap frames must not keep the loop from other children.
            self._unawaited = 0
            await asyncio.sleep(0)
        try:
            self._check(None)
            while (body := self._reader.next_view()) is None:
                self._check(self._read_end)
                self._unawaited = 0
                await self._wait_frame()
                self._check(None)
            self._bucket.spend(len(body))
            return decode_up(body)
        except BreachError as exc:
            self._fail(exc)
            raise

    async def _wait_frame(self) -> None:
        if self._receiver is not None:
            raise InternalError("two tasks receive from one channel")
        if not self._reading:
            self._resume_reading()
        if not self._reader.at_boundary and not self._half_in.running:
            self._half_in.start()
        self._receiver = self._loop.create_future()
        try:
            await self._receiver
        finally:
            self._receiver = None

    def _on_readable(self) -> None:
        try:
            count = os.readv(self._read_fd, (self._reader.room(),))
            if count and not self._reader.took(count):
                if not self._half_in.running:
                    self._half_in.start()
                return
        except BlockingIOError:
            return
        except BreachError as exc:
            self._fail(exc)
            return
        if not count:
            self._end_reading()
        elif self._receiver is None or self._receiver.done():
            self._pause_reading()
        self._half_in.stop()
        self._wake()

    def _wake(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    def _end_reading(self) -> None:
        self._pause_reading()
        clean = self._reader.at_boundary
        where = "between two frames" if clean else "inside a frame"
        self._read_end = ChannelClosed(f"the child closed it {where}", clean=clean)

    def _pause_reading(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._read_fd)
            self._reading = False

    def _resume_reading(self) -> None:
        self._loop.add_reader(self._read_fd, self._on_readable)
        self._reading = True

    def _expire_in(self) -> None:
        self._fail(BreachError("a frame was begun and not finished in time"))

    # ── sending ──────────────────────────────────────────────────────────────────────────────

    async def send(self, frame: DownFrame) -> None:
        """Hand one frame to the kernel, whole and in order of the calls.

        Returns once the pipe took all of it, which does not say that the child read it.

        Raises:
            BreachError: the child does not read what it asked for. End it.
            ChannelClosed: its end is closed.
        """
        self._check(self._write_end)
        data = encode_down(frame)
        taken = 0 if self._queue else self._write(data)
        if taken == len(data):
            return
        if self._queued_bytes + len(data) - taken > QUEUED_BYTES:
            self._expire_out()
            self._check(None)
        done = self._loop.create_future()
        if not self._queue:
            self._loop.add_writer(self._write_fd, self._on_writable)
            self._half_out.start()
        self._queue.append((memoryview(data)[taken:], done))
        self._queued_bytes += len(data) - taken
        # A cancelled sender cancels this future only: the loop goes on writing the rest.
        await done

    def _write(self, data: bytes | memoryview) -> int:
        try:
            return os.write(self._write_fd, data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            self._write_end = ChannelClosed("the child no longer reads", clean=not self._queue)
            self._fail_senders(self._write_end)
            raise self._write_end from None

    def _on_writable(self) -> None:
        rest, done = self._queue[0]
        try:
            taken = self._write(rest)
        except ChannelClosed:
            return
        self._queued_bytes -= taken
        if taken < len(rest):
            self._queue[0] = (rest[taken:], done)
            return
        self._queue.popleft()
        if not done.done():
            done.set_result(None)
        if self._queue:
            self._half_out.start()
        else:
            self._stop_writing()

    def _stop_writing(self) -> None:
        self._half_out.stop()
        self._loop.remove_writer(self._write_fd)

    def _expire_out(self) -> None:
        self._fail(BreachError("the child does not read what is sent to it"))

    # ── ending ───────────────────────────────────────────────────────────────────────────────

    async def aclose(self) -> None:
        """Close both ends. Harmless when done before; tasks that still wait get ChannelClosed."""
        if self._read_fd < 0:
            return
        self._fail(ChannelClosed("closed by the supervisor", clean=True))
        os.close(self._read_fd)
        os.close(self._write_fd)
        self._read_fd = self._write_fd = -1

    def _fail(self, failure: BreachError | ChannelClosed) -> None:
        """Make the failure final (the first one stays), stop all I/O and wake everybody."""
        self._failure = self._failure or failure
        self._half_in.stop()
        self._pause_reading()
        self._fail_senders(self._failure)
        self._wake()

    def _fail_senders(self, failure: BreachError | ChannelClosed) -> None:
        if self._queue:
            self._stop_writing()
        for _, done in self._queue:
            if not done.done():
                done.set_exception(failure)
        self._queue.clear()
        self._queued_bytes = 0

    def _check(self, end: ChannelClosed | None) -> None:
        if self._failure is not None:
            raise self._failure
        if end is not None:
            raise end
