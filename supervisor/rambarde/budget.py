"""What an agent and its tree may spend: time, actions, requests, tokens, spawns. Trusted side.

Theory of operation
-------------------
Budgets form the same tree as the agents. An agent's own bounds (actions, duration, silence of the
model) start whole at each spawn and nothing of them is taken from the parent. Model requests,
tokens and agent-seconds are charged to the agent and to every ancestor, and each of them may
declare a ceiling for its subtree; the check goes from the root down, so the outermost fires.

A model request is reserved before it is sent: twenty siblings that look at the same remainder at
the same instant cannot all spend it. The reservation holds an estimate and is settled with what the
provider counted, so a ceiling is overshot by at most the error of the estimates in flight.

Spawns are counted by Nets over the whole tree and are never given back. Its slots, the agents alive
at once, are given back on proof of death only: a slot freed on a promise would let processes that
nobody counts go on working.

Time is CLOCK_MONOTONIC less the waits for a person's answer. Waiting for a provider's rate limit
runs the clock but is counted apart; time the host slept is charged to nobody and shown.

All of this runs in one event loop and no function here awaits, so each is atomic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeVar

from rambarde.clock import Clock

Which = Literal["actions", "duration", "stall", "tree_requests", "tree_tokens", "tree_seconds"]

_SETTINGS: Mapping[Which, str] = MappingProxyType(
    {
        "actions": "sessionMaxActions",
        "duration": "sessionMaxDuration",
        "tree_requests": "treeMaxModelRequests",
        "tree_tokens": "treeMaxTokens",
    }
)
_OTHER_WAYS: Mapping[Which, str] = MappingProxyType(
    {
        "actions": " (or --max-actions, or the agent file's own)",
        "duration": " (or --max-duration, or the agent file's maxDuration)",
    }
)


@dataclass(frozen=True, slots=True)
class LimitHit:
    """A bound was reached: `limit` is its declared value, `spent` what was used or asked for.

    `whose` names the agent that declared it: the agent itself or one of its ancestors.
    """

    which: Which
    limit: float
    spent: float
    whose: str

    @property
    def setting(self) -> str:
        """The key of `execution` that sets it; of a bound that is no setting its own name."""
        return _SETTINGS.get(self.which, self.which)

    def __str__(self) -> str:
        """One line for the record and the person: what was met, and where it is set."""
        met = f"{self.which}: {self.spent:g} of {self.limit:g} allowed to {self.whose}"
        if self.which not in _SETTINGS:
            return met
        return f"{met}; set by execution.{self.setting}{_OTHER_WAYS.get(self.which, '')}"


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """Bounds of one agent and of the subtree below it. None: not declared here.

    `actions` are tool calls; `duration_s` runs on the agent's Stopwatch; `stall_s` is the longest
    silence of the model inside a request; the `tree_` ones cover the agent and all below it.
    """

    actions: int | None
    duration_s: float
    stall_s: float
    tree_requests: int | None = None
    tree_tokens: int | None = None
    tree_seconds: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless each declared bound is above zero: none can be switched off."""
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value}: give a finite number above zero")


class Stopwatch:
    """Seconds of work of one agent: monotonic time less the pauses. Starts at construction."""

    def __init__(self, clock: Clock) -> None:
        """`clock` is read at each call; nothing ticks."""
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._suspended_at_start_s = clock.suspended_s()
        self._stopped_s: float | None = None
        self._pauses = 0
        self._pause_began_s = 0.0
        self._paused_s = 0.0
        self._rate_wait_s = 0.0

    @property
    def is_paused(self) -> bool:
        """True while at least one pause is open."""
        return self._pauses > 0

    @property
    def paused_s(self) -> float:
        """Seconds spent in pauses, the open one included; overlapping pauses count once."""
        running = self._now_s() - self._pause_began_s if self.is_paused else 0.0
        return self._paused_s + running

    @property
    def rate_wait_s(self) -> float:
        """Seconds waited for the provider's rate limit. They are part of `worked_s`."""
        return self._rate_wait_s

    @property
    def worked_s(self) -> float:
        """Seconds charged to the agent."""
        return self._now_s() - self._started_s - self.paused_s

    @property
    def suspended_s(self) -> float:
        """Seconds the host slept since the start; charged to nobody."""
        return max(0.0, self._clock.suspended_s() - self._suspended_at_start_s)

    def note_rate_wait(self, seconds: float) -> None:
        """Count a wait for the rate limit that the provider's gate reported afterwards."""
        self._rate_wait_s += max(0.0, seconds)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Stand still inside the block (a person is asked). Blocks may overlap."""
        if self._pauses == 0:
            self._pause_began_s = self._now_s()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if self._pauses == 0:
                self._paused_s += self._now_s() - self._pause_began_s

    def stop(self) -> None:
        """Stop for good: the agent's run is over. A second call changes nothing."""
        if self._stopped_s is None:
            self._stopped_s = self._clock.monotonic_s()

    def _now_s(self) -> float:
        return self._clock.monotonic_s() if self._stopped_s is None else self._stopped_s


class TreeRetries:
    """How many retries the whole tree may spend on a provider (models.base.RetryBudget).

    A bucket of `capacity`; a retry takes one, a request that went well gives `per_success` back.
    So one hiccup in ten is always retried, and an outage is not multiplied by every agent.

    Source: gRFC A6 (gRPC retry design), "throttling retry attempts and hedged RPCs".
    """

    def __init__(self, capacity: int = 20, per_success: float = 0.1) -> None:
        """`capacity` ≥ 1 retries; `per_success` above 0, at most 1."""
        if capacity < 1 or not 0 < per_success <= 1:
            raise ValueError("a retry budget needs capacity ≥ 1 and 0 < per_success ≤ 1")
        self._capacity = float(capacity)
        self._per_success = per_success
        self._left = float(capacity)

    @property
    def left(self) -> int:
        """Whole retries left now."""
        return int(self._left + 1e-9)

    def take(self) -> bool:
        """Spend one retry; False when none is left."""
        if self.left < 1:
            return False
        self._left -= 1.0
        return True

    def note_success(self) -> None:
        """A request went through without a retry being refused: give a part of one back."""
        self._left = min(self._capacity, self._left + self._per_success)


@dataclass(slots=True, eq=False)
class Reservation:
    """One model request on its way: `tokens` is the estimate that is held until it is settled."""

    tokens: int
    open: bool = True


@dataclass(frozen=True, slots=True)
class Left:
    """What remains, for showing; None where nothing is declared. Never below zero."""

    actions: int | None
    duration_s: float
    tree_requests: int | None
    tree_tokens: int | None
    tree_seconds: float | None


class Budget:
    """The bounds of one agent, at its place in the tree of budgets."""

    def __init__(
        self, name: str, limits: BudgetLimits, clock: Clock, *, parent: Budget | None = None
    ) -> None:
        """`name` is the agent's path as a person reads it; `parent` is None for the root."""
        self.name = name
        self.limits = limits
        self.parent = parent
        self.stopwatch = Stopwatch(clock)
        self.actions = 0
        self.requests = 0
        self.tokens = 0
        """Tokens settled in the whole subtree."""
        self.held_tokens = 0
        """Tokens reserved in the whole subtree and not settled yet."""
        self._clock = clock
        self._children: list[Budget] = []
        self._action_refused = False
        self._open: set[Reservation] = set()
        self._rate_waits = 0
        self._heard_s = clock.monotonic_s()
        self._line: tuple[Budget, ...] = (self,)
        """From the root down to this budget."""
        if parent is not None:
            self._line = (*parent._line, self)  # noqa: SLF001 - the same class
            parent._children.append(self)  # noqa: SLF001 - the same class

    def spend_action(self) -> LimitHit | None:
        """Charge one tool call before it starts; a LimitHit means that it must not start."""
        limit = self.limits.actions
        if limit is not None and self.actions >= limit:
            self._action_refused = True
            return LimitHit("actions", limit, self.actions + 1, self.name)
        self.actions += 1
        return None

    def touch(self) -> None:
        """The model was heard: the count of its silence starts again."""
        self._heard_s = self._clock.monotonic_s()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Stop the clock of this agent and of the ancestors that wait for it: a person is asked.

        Only joined agents ask, so every ancestor up to the root waits. A sibling at work meanwhile
        is bounded by its own clock.
        """
        with ExitStack() as stack:
            for node in self._line:
                stack.enter_context(node.stopwatch.pause())
            yield

    @contextmanager
    def rate_wait(self) -> Iterator[None]:
        """Count the block as waiting for the provider; its silence is no stall.

        Not to be combined with `settle(waited_s=...)` for the same wait.
        """
        began_s = self._clock.monotonic_s()
        self._rate_waits += 1
        try:
            yield
        finally:
            self._rate_waits -= 1
            self.stopwatch.note_rate_wait(self._clock.monotonic_s() - began_s)
            self.touch()

    def reserve(self, tokens: int) -> Reservation | LimitHit:
        """Hold one model request of about `tokens` (≥ 0) here and in every ancestor, or refuse.

        A refusal holds nothing. An accepted request counts at once, and the watch on the model's
        silence runs until it is settled.
        """
        if tokens < 0:
            raise ValueError(f"an estimate of {tokens} tokens")
        for node in self._line:
            hit = node._refuses(tokens)  # noqa: SLF001 - the same class
            if hit is not None:
                return hit
        for node in self._line:
            node.requests += 1
            node.held_tokens += tokens
        reservation = Reservation(tokens)
        self._open.add(reservation)
        self.touch()
        return reservation

    def settle(
        self, reservation: Reservation, tokens: int, *, sent: bool = True, waited_s: float = 0.0
    ) -> None:
        """Replace the estimate by what was used; `sent` False gives the request back as well.

        Args:
            reservation: of this budget; one that is settled already is left alone.
            tokens: input and output as the provider counted them; the best estimate after a cut.
            sent: False when nothing left this machine.
            waited_s: seconds of the provider's rate limit inside the request.
        """
        if not reservation.open:
            return
        reservation.open = False
        self._open.discard(reservation)
        self.stopwatch.note_rate_wait(waited_s)
        for node in self._line:
            node.held_tokens -= reservation.tokens
            node.tokens += tokens
            node.requests -= 0 if sent else 1
        self.touch()

    def charge(self, *, requests: int = 0, tokens: int = 0) -> None:
        """Charge what was spent without a reservation (a resumed session); bounds are not asked."""
        if requests < 0 or tokens < 0:
            raise ValueError("a charge is never negative")
        for node in self._line:
            node.requests += requests
            node.tokens += tokens

    def close(self) -> None:
        """The agent is gone: stop its clock and let go of what it had reserved."""
        for reservation in list(self._open):
            self.settle(reservation, reservation.tokens)
        self.stopwatch.stop()

    @property
    def tree_seconds(self) -> float:
        """Seconds of work of this agent and of all below it, added up."""
        return self.stopwatch.worked_s + sum(child.tree_seconds for child in self._children)

    def check(self) -> LimitHit | None:
        """Return the bound that stops this agent now, the outermost first; None while none does.

        Requests and actions are refused before they start, so a full count alone stops nobody:
        the last request allowed may still be answered, the last action still be reported.
        """
        for node in self._line:
            hit = node._overshot()  # noqa: SLF001 - the same class
            if hit is not None:
                return hit
        worked_s = self.stopwatch.worked_s
        if worked_s >= self.limits.duration_s:
            return LimitHit("duration", self.limits.duration_s, worked_s, self.name)
        silent_s = self._silent_s()
        if silent_s >= self.limits.stall_s:
            return LimitHit("stall", self.limits.stall_s, silent_s, self.name)
        if self._action_refused and self.limits.actions is not None:
            return LimitHit("actions", self.limits.actions, self.actions + 1, self.name)
        return None

    def left(self) -> Left:
        """Return what remains; of the tree's ceilings the tightest on the way to the root."""
        own, line = self.limits, self._line
        return Left(
            actions=_rest([(own.actions, self.actions)]),
            duration_s=max(0.0, own.duration_s - self.stopwatch.worked_s),
            tree_requests=_rest((n.limits.tree_requests, n.requests) for n in line),
            tree_tokens=_rest((n.limits.tree_tokens, n.tokens + n.held_tokens) for n in line),
            tree_seconds=_rest((n.limits.tree_seconds, n.tree_seconds) for n in line),
        )

    def _refuses(self, tokens: int) -> LimitHit | None:
        most = self.limits.tree_requests
        if most is not None and self.requests >= most:
            return LimitHit("tree_requests", most, self.requests + 1, self.name)
        most = self.limits.tree_tokens
        if most is not None and (after := self.tokens + self.held_tokens + tokens) > most:
            return LimitHit("tree_tokens", most, after, self.name)
        return None

    def _overshot(self) -> LimitHit | None:
        most = self.limits.tree_tokens
        if most is not None and self.tokens > most:
            return LimitHit("tree_tokens", most, self.tokens, self.name)
        seconds = self.limits.tree_seconds
        if seconds is not None and (worked_s := self.tree_seconds) >= seconds:
            return LimitHit("tree_seconds", seconds, worked_s, self.name)
        return None

    def _silent_s(self) -> float:
        if not self._open or self._rate_waits or self.stopwatch.is_paused:
            return 0.0
        return self._clock.monotonic_s() - self._heard_s


_Number = TypeVar("_Number", int, float)


def _rest(bounds: Iterable[tuple[_Number | None, _Number]]) -> _Number | None:
    """Return the least of limit less usage over the declared limits; None when none is."""
    rests = [limit - spent for limit, spent in bounds if limit is not None]
    return max(min(rests), 0) if rests else None


# ── nets of the delegation tree ──────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class NetRefusal:
    """A spawn that a net refuses: `limit` is the setting's name, `value` what it is set to.

    `running` names the subagents alive, for a text that says whom to wait for.
    """

    code: Literal["cap_depth", "cap_session", "cap_concurrent"]
    limit: Literal["subagentMaxDepth", "subagentMaxPerSession", "subagentMaxConcurrent"]
    value: int
    running: tuple[str, ...] = ()


class Slot:
    """One admitted subagent. Holds its place among those alive until its death is proven."""

    def __init__(self, nets: Nets, depth: int, number: int, label: str) -> None:
        """Made by Nets.admit only."""
        self._nets = nets
        self.depth = depth
        """Distance from the root agent, which is at 0."""
        self.number = number
        """Which spawn of the session this is, from 1."""
        self.label = label

    def release(self, *, proof_of_death: bool) -> None:
        """Give the place back; the spawn stays counted. A second release changes nothing.

        Args:
            proof_of_death: True when the pidfd of the sandbox's init was readable (its namespace is
                empty then, pid_namespaces(7)) or when nothing was ever forked. With False the place
                stays taken: a process that may be alive keeps counting.
        """
        if proof_of_death:
            self._nets._alive.pop(self, None)  # noqa: SLF001 - the other half of Nets


class Nets:
    """The three nets over one tree of agents: depth, spawns in all, subagents alive at once."""

    def __init__(
        self,
        max_depth: int = 3,
        max_per_session: int = 200,
        max_concurrent: int = 20,
        *,
        spawned: int = 0,
    ) -> None:
        """Each net is an int ≥ 1 (ValueError else); `spawned` restores a resumed session's count.

        With `max_depth` 1 the root delegates and its subagents do not.
        """
        for name, value in (
            ("subagentMaxDepth", max_depth),
            ("subagentMaxPerSession", max_per_session),
            ("subagentMaxConcurrent", max_concurrent),
        ):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}: give a whole number, at least 1")
        if spawned < 0:
            raise ValueError(f"{spawned} spawns counted before")
        self.max_depth = max_depth
        self.max_per_session = max_per_session
        self.max_concurrent = max_concurrent
        self._spawned = spawned
        self._alive: dict[Slot, str] = {}

    @property
    def spawned(self) -> int:
        """Subagents admitted since the session began, dead ones included."""
        return self._spawned

    @property
    def running(self) -> tuple[str, ...]:
        """Labels of the subagents whose death is not proven, oldest first."""
        return tuple(self._alive.values())

    def may_delegate(self, depth: int) -> bool:
        """Say whether an agent at `depth` (root 0) is told of delegation at all."""
        return depth < self.max_depth

    def admit(self, parent_depth: int, label: str = "") -> Slot | NetRefusal:
        """Count and place one subagent of an agent at `parent_depth`, or say which net refuses.

        A refusal takes no place and no count. Nothing is queued.
        """
        if not self.may_delegate(parent_depth):
            return NetRefusal("cap_depth", "subagentMaxDepth", self.max_depth)
        if self._spawned >= self.max_per_session:
            return NetRefusal("cap_session", "subagentMaxPerSession", self.max_per_session)
        if len(self._alive) >= self.max_concurrent:
            return NetRefusal(
                "cap_concurrent", "subagentMaxConcurrent", self.max_concurrent, self.running
            )
        self._spawned += 1
        slot = Slot(self, parent_depth + 1, self._spawned, label)
        self._alive[slot] = label
        return slot

    def grant(self, spawns: int) -> int:
        """Let `spawns` (≥ 1) more subagents be started; return the new cap of the session.

        Only a person at the screen may cause this call; no frame and no tool leads here.
        """
        if type(spawns) is not int or spawns < 1:
            raise ValueError(f"a grant of {spawns!r} spawns: give a whole number, at least 1")
        self.max_per_session += spawns
        return self.max_per_session
