"""One gate per provider, through which every agent's requests go. Trusted side.

Theory of operation
-------------------
A provider that says "wait" says it to all of us: the gate closes for everybody until the instant
it named, then lets the waiting ones through spread over some seconds, never all at once. Other
failures that may pass are tried again by their caller alone after an exponential pause with full
jitter (a random part of it, from nothing to all). Every try but the first is paid from the retry
budget of the run's tree, so that a storm of subagents cannot become a storm of retries. Nothing is
sent again once a part of the reply was told: the caller keeps that part and decides.

A model that is still being loaded is waited for; that is no retry. Waiting is measured and reported
apart from work: `ModelReply.waited_s`, and `on_wait` for the screen.

Source: RFC 9110, section 10.2.3 (Retry-After); "Exponential Backoff And Jitter", AWS architecture
blog, 2015 (full jitter).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

import anyio

from rambarde.clock import Clock, HostClock
from rambarde.models.base import Delta, DeltaListener, ModelReply, ModelRequest, RetryBudget
from rambarde.models.failure import ProviderError


class Engine(Protocol):
    """A provider that tries once."""

    name: str

    async def attempt(self, request: ModelRequest, on_delta: DeltaListener) -> ModelReply:
        """Stream one reply. Raises ProviderError."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Bounds of a gate; durations in seconds.

    Fields: `max_concurrent` requests at once; `base_s` and `cap_s` of the exponential pause;
    `spread_s`: over how long those who waited for one instant are spread; `longest_wait_s`: a
    provider that asks for more is given up; `loading_s`: how long a model may take to load;
    `tell_s`: how often a waiting caller is told that the wait goes on.
    """

    max_concurrent: int = 8
    base_s: float = 0.5
    cap_s: float = 30.0
    spread_s: float = 3.0
    longest_wait_s: float = 600.0
    loading_s: float = 180.0
    tell_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Wait:
    """News for the screen: a caller now waits about `seconds` because of `reason`."""

    provider: str
    seconds: float
    reason: str


WaitListener = Callable[[Wait], None]
Sleep = Callable[[float], Awaitable[None]]


class Gate:
    """Shared by all callers of one provider."""

    def __init__(
        self,
        settings: GateSettings | None = None,
        *,
        clock: Clock | None = None,
        sleep: Sleep = anyio.sleep,
        dice: Callable[[], float] = random.random,
    ) -> None:
        """`dice` returns a number from 0 to 1."""
        self.settings = settings or GateSettings()
        self.sleep = sleep
        self._clock = clock or HostClock()
        self._dice = dice
        self._shut_until = float("-inf")
        self.places = anyio.Semaphore(self.settings.max_concurrent)

    def now(self) -> float:
        """Return the monotonic instant in seconds."""
        return self._clock.monotonic_s()

    def rest_s(self) -> float:
        """Return how long the provider still wants to be left alone; 0 or less: open."""
        return self._shut_until - self.now()

    def shut(self, seconds: float) -> None:
        """Let nobody through for that long; a longer closure stands."""
        self._shut_until = max(self._shut_until, self.now() + seconds)

    def spread(self) -> float:
        """Return this caller's place in the spread after a closure, in seconds."""
        return self._dice() * self.settings.spread_s

    def pause(self, failed: int) -> float:
        """Return the pause after the `failed`th failure (from 1), in seconds, with full jitter."""
        full = min(self.settings.cap_s, self.settings.base_s * 2.0 ** min(failed - 1, 30))
        return self._dice() * full


class GatedModel:
    """A provider behind its gate: the ModelClient the rest of the program uses."""

    def __init__(self, engine: Engine, gate: Gate, *, on_wait: WaitListener | None = None) -> None:
        """`on_wait` is called in the event loop and must not raise."""
        self.name = engine.name
        self._engine = engine
        self._gate = gate
        self._on_wait = on_wait

    async def complete(
        self, request: ModelRequest, *, on_delta: DeltaListener, retries: RetryBudget
    ) -> ModelReply:
        """Stream one reply, trying again where that is safe and may help.

        Raises:
            ProviderError: a ModelError; kind `budget` when the tree's retries are spent.
        """
        run = _Run(self._engine, self._gate, request, on_delta, self._on_wait)
        return await run.reply(retries)

    async def aclose(self) -> None:
        """Close connections."""
        await self._engine.aclose()


class _Run:
    """One request on its way to a reply."""

    def __init__(
        self,
        engine: Engine,
        gate: Gate,
        request: ModelRequest,
        on_delta: DeltaListener,
        on_wait: WaitListener | None,
    ) -> None:
        self._engine = engine
        self._gate = gate
        self._request = request
        self._listener = on_delta
        self._on_wait = on_wait
        self._told = False
        self._failed = 0
        self._waited_s = 0.0
        self._loading_s = 0.0

    async def reply(self, retries: RetryBudget) -> ModelReply:
        while True:
            failure = await self._try()
            if isinstance(failure, ModelReply):
                return replace(failure, waited_s=self._waited_s)
            failure.waited_s = self._waited_s
            pause = self._pause_after(failure, retries)
            if pause is None:
                raise failure
            await self._wait(pause, failure.message)

    async def _try(self) -> ModelReply | ProviderError:
        """Try once, when the gate is open and a place is free; return a failure as a value."""
        while True:
            while (rest := self._gate.rest_s()) > 0:
                await self._wait(rest + self._gate.spread(), "the provider asked for a pause")
            await self._take_place()
            try:
                if self._gate.rest_s() > 0:
                    continue
                return await self._engine.attempt(self._request, self._on_delta)
            except ProviderError as exc:
                # Shut before the place is free, or the next in line slips through.
                if exc.retry_after_s is not None:
                    self._gate.shut(min(exc.retry_after_s, self._gate.settings.longest_wait_s))
                return exc
            finally:
                self._gate.places.release()

    async def _take_place(self) -> None:
        """Wait in line for one of the gate's places; the wait is told, so that it is no stall."""
        with suppress(anyio.WouldBlock):
            self._gate.places.acquire_nowait()
            return
        asked_at = self._gate.now()
        taken = False
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._tell_line)
                await self._gate.places.acquire()
                taken = True
                group.cancel_scope.cancel()
        except BaseException:
            if taken:
                self._gate.places.release()
            raise
        self._waited_s += self._gate.now() - asked_at

    async def _tell_line(self) -> None:
        while True:
            await anyio.sleep(self._gate.settings.tell_s)
            self._listener(Delta("alive", "waiting for other requests to this engine"))

    def _on_delta(self, delta: Delta) -> None:
        self._told = self._told or delta.kind != "alive"
        self._listener(delta)

    def _pause_after(self, failure: ProviderError, retries: RetryBudget) -> float | None:
        """Return how long to pause before the next try; None when there is to be none."""
        settings = self._gate.settings
        asked = failure.retry_after_s
        if failure.loading and not self._told:
            pause = min(asked or 1.0, settings.longest_wait_s)
            self._loading_s += pause
            return pause if self._loading_s <= settings.loading_s else None
        self._failed += 1
        if self._told or self._failed >= failure.tries:
            return None
        if asked is not None and asked > settings.longest_wait_s:
            return None
        if not retries.take():
            raise _spent(failure)
        # The closure itself is waited for at the gate, with everybody else.
        return 0.0 if asked else self._gate.pause(self._failed)

    async def _wait(self, seconds: float, reason: str) -> None:
        """Wait in slices, so that the caller's silence is never taken for a stall."""
        if self._on_wait is not None and seconds > 0:
            self._on_wait(Wait(self._engine.name, seconds, reason))
        began = self._gate.now()
        end = began + seconds
        while (rest := end - self._gate.now()) > 0:
            self._listener(Delta("alive", reason))
            await self._gate.sleep(min(rest, self._gate.settings.tell_s))
        self._waited_s += self._gate.now() - began


def _spent(failure: ProviderError) -> ProviderError:
    spent = ProviderError(
        f"{failure.message}; the retries of this run are spent",
        kind="budget",
        status=failure.status,
        advice="wait for the provider, then go on with the session",
    )
    spent.waited_s = failure.waited_s
    return spent
