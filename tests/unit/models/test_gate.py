"""The gate: one provider's pauses hold for all, retries are few, spread and paid for."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import pytest

from rambarde.models.base import Delta, ModelReply, ModelRequest
from rambarde.models.failure import PATIENT, ProviderError
from rambarde.models.gate import Gate, GatedModel, GateSettings, Wait

REQUEST = ModelRequest("m", "", ())
SETTLE = 80
"""Steps of the event loop after which every caller has come to rest."""


class FakeTime:
    """A clock that moves only when everybody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._sleepers: list[tuple[float, anyio.Event]] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_at(self) -> float:
        return self.now_s

    def suspended_s(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        woken = anyio.Event()
        self._sleepers.append((self.now_s + seconds, woken))
        await woken.wait()

    async def run(self, done: Callable[[], bool]) -> None:
        """Wake sleepers in order of time until `done`."""
        while not done():
            for _ in range(SETTLE):
                await anyio.lowlevel.checkpoint()
            if self._sleepers and not done():
                self._sleepers.sort(key=lambda entry: entry[0])
                at_s, woken = self._sleepers.pop(0)
                self.now_s = max(self.now_s, at_s)
                woken.set()


@dataclass
class Engine:
    """Fails as told, then replies; remembers when it was asked."""

    time: FakeTime
    failures: list[ProviderError] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    work_s: float = 0.0
    told_first: bool = False
    name: str = "host:1"
    busy: int = 0
    most_busy: int = 0

    async def attempt(self, request: ModelRequest, on_delta: Callable[[Delta], None]) -> ModelReply:
        self.asked.append(self.time.now_s)
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        try:
            if self.work_s:
                await self.time.sleep(self.work_s)
            if self.told_first:
                on_delta(Delta("text", "x"))
            if self.failures:
                raise self.failures.pop(0)
            return ModelReply("ok")
        finally:
            self.busy -= 1

    async def aclose(self) -> None:
        """Nothing is open."""


@dataclass
class Retries:
    left: int = 100

    def take(self) -> bool:
        self.left -= 1
        return self.left >= 0


def busy(retry_after_s: float | None = None, tries: int = PATIENT) -> ProviderError:
    return ProviderError("busy", kind="overloaded", tries=tries, retry_after_s=retry_after_s)


async def drive(
    engine: Engine,
    time: FakeTime,
    *,
    callers: int = 1,
    retries: Retries | None = None,
    settings: GateSettings | None = None,
    dice: Callable[[], float] | None = None,
) -> tuple[list[ModelReply | ProviderError], list[Wait], list[Delta]]:
    waits: list[Wait] = []
    deltas: list[Delta] = []
    ends: list[ModelReply | ProviderError] = []
    gate = Gate(
        settings,
        clock=time,
        sleep=time.sleep,
        dice=dice or random.Random(7).random,
    )
    model = GatedModel(engine, gate, on_wait=waits.append)
    budget = retries or Retries()

    async def one() -> None:
        try:
            ends.append(await model.complete(REQUEST, on_delta=deltas.append, retries=budget))
        except ProviderError as exc:
            ends.append(exc)

    async with anyio.create_task_group() as group:
        for _ in range(callers):
            group.start_soon(one)
        await time.run(lambda: len(ends) == callers)
    return ends, waits, deltas


@pytest.mark.anyio
async def test_twenty_callers_wait_for_one_retry_after() -> None:
    """After a 429 with Retry-After 5 nobody asks before 5 s, then all do, spread out."""
    time = FakeTime()
    engine = Engine(time, [busy(5.0)])
    settings = GateSettings(max_concurrent=1, spread_s=3.0)
    ends, waits, _ = await drive(engine, time, callers=20, settings=settings)
    assert all(isinstance(end, ModelReply) for end in ends)
    later = engine.asked[1:]
    assert engine.asked[0] == 0.0
    assert len(later) == 20
    assert min(later) >= 5.0
    assert max(later) <= 8.0
    assert len(set(later)) > 15
    assert {wait.provider for wait in waits} == {"host:1"}


@pytest.mark.anyio
async def test_in_flight_refusals_prolong_the_pause() -> None:
    """Several 429 at once close the gate for the longest; waiting is reported on the reply."""
    time = FakeTime()
    engine = Engine(time, [busy(5.0), busy(9.0), busy(2.0)], work_s=0.1)
    ends, _, _ = await drive(engine, time, callers=8, settings=GateSettings(max_concurrent=8))
    assert sorted(engine.asked)[8] >= 9.0
    waited = [end.waited_s for end in ends if isinstance(end, ModelReply)]
    assert sum(seconds >= 9.0 for seconds in waited) == 3


@pytest.mark.anyio
async def test_concurrency_is_bounded() -> None:
    """Never more requests at once than the gate has places."""
    time = FakeTime()
    engine = Engine(time, work_s=1.0)
    await drive(engine, time, callers=10, settings=GateSettings(max_concurrent=3))
    assert engine.most_busy == 3


@pytest.mark.anyio
async def test_pauses_grow_with_full_jitter_and_a_cap() -> None:
    """Without Retry-After each pause is a random part of a doubling bound, up to the cap."""
    time = FakeTime()
    engine = Engine(time, [busy() for _ in range(7)])
    settings = GateSettings(base_s=1.0, cap_s=8.0)
    await drive(engine, time, settings=settings, dice=lambda: 1.0)
    gaps = [b - a for a, b in zip(engine.asked, engine.asked[1:], strict=False)]
    assert gaps == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]


@pytest.mark.anyio
async def test_tries_end() -> None:
    """A provider that stays busy is given up after the tries its failure deserves."""
    time = FakeTime()
    engine = Engine(time, [busy() for _ in range(50)])
    (end,), _, _ = await drive(engine, time)
    assert isinstance(end, ProviderError)
    assert end.kind == "overloaded"
    assert end.waited_s > 0
    assert len(engine.asked) == PATIENT


@pytest.mark.anyio
async def test_the_trees_budget_bounds_retries() -> None:
    """Fifty callers of one tree spend its retries together; then they fail as `budget`."""
    time = FakeTime()
    engine = Engine(time, [busy() for _ in range(1000)])
    ends, _, _ = await drive(engine, time, callers=50, retries=Retries(30))
    assert len(engine.asked) == 50 + 30
    assert {end.kind for end in ends if isinstance(end, ProviderError)} == {"budget"}


@pytest.mark.anyio
async def test_nothing_is_sent_again_once_told() -> None:
    """After a piece of the reply reached the listener a failure is final."""
    time = FakeTime()
    engine = Engine(time, [busy()], told_first=True)
    (end,), _, deltas = await drive(engine, time)
    assert isinstance(end, ProviderError)
    assert len(engine.asked) == 1
    assert deltas == [Delta("text", "x")]


@pytest.mark.anyio
async def test_a_request_that_is_wrong_is_not_repeated() -> None:
    """A failure that deserves one try gets one and spends nothing."""
    time = FakeTime()
    engine = Engine(time, [ProviderError("no", kind="invalid")])
    budget = Retries(1)
    await drive(engine, time, retries=budget)
    assert (len(engine.asked), budget.left) == (1, 1)


@pytest.mark.anyio
async def test_an_unbearable_retry_after_is_an_end() -> None:
    """A provider that asks for longer than we would wait is given up at once."""
    time = FakeTime()
    engine = Engine(time, [busy(86_400.0)])
    (end,), _, _ = await drive(engine, time)
    assert isinstance(end, ProviderError)
    assert time.now_s == 0.0


@pytest.mark.anyio
async def test_loading_is_waited_for_without_spending() -> None:
    """A model that is being loaded costs no retry, and not for ever."""
    time = FakeTime()
    loading = [
        ProviderError("Loading model", kind="overloaded", tries=PATIENT, loading=True)
        for _ in range(1000)
    ]
    budget = Retries(0)
    engine = Engine(time, loading[:20])
    (end,), _, _ = await drive(engine, time, retries=budget)
    assert isinstance(end, ModelReply)
    assert end.waited_s == 20.0
    engine = Engine(time, loading)
    (end,), _, _ = await drive(engine, time, retries=budget)
    assert isinstance(end, ProviderError)
    assert len(engine.asked) == 181


@pytest.mark.anyio
async def test_a_long_wait_shows_life() -> None:
    """A caller hears `alive` while it waits, so that no stall is seen where there is none."""
    time = FakeTime()
    engine = Engine(time, [busy(100.0)])
    _, waits, deltas = await drive(engine, time, dice=lambda: 0.0)
    assert len(deltas) >= 4
    assert {delta.kind for delta in deltas} == {"alive"}
    assert [round(wait.seconds) for wait in waits] == [100]


@pytest.mark.anyio
async def test_a_cancelled_caller_leaves_its_place() -> None:
    """Cancelling a request frees its place at once."""
    time = FakeTime()
    engine = Engine(time, work_s=1000.0)
    gate = Gate(GateSettings(max_concurrent=1), clock=time, sleep=time.sleep)
    model = GatedModel(engine, gate)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: model.complete(REQUEST, on_delta=print, retries=Retries()))
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert gate.places.value == 1


@pytest.mark.anyio
async def test_waiting_in_line_shows_life_and_leaves_no_place_taken() -> None:
    """A caller in line behind a slow request is told alive; cancelled there, it takes no place."""
    free = anyio.Event()

    class Slow(Engine):
        async def attempt(
            self, request: ModelRequest, on_delta: Callable[[Delta], None]
        ) -> ModelReply:
            self.asked.append(0.0)
            await free.wait()
            return ModelReply("ok")

    engine = Slow(FakeTime())
    gate = Gate(GateSettings(max_concurrent=1, tell_s=0.002))
    model = GatedModel(engine, gate)
    heard = anyio.Event()

    async def ask(told: Callable[[Delta], None]) -> None:
        await model.complete(REQUEST, on_delta=told, retries=Retries())

    async with anyio.create_task_group() as group:
        group.start_soon(ask, lambda delta: None)
        await anyio.lowlevel.checkpoint()
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(ask, lambda delta: heard.set())
            await heard.wait()
            waiting.cancel_scope.cancel()
        assert len(engine.asked) == 1
        free.set()
    await ask(lambda delta: None)
    assert len(engine.asked) == 2
