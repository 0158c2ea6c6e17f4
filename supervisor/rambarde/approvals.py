"""Ask the person, once per question, in the order of asking. Trusted side.

Theory of operation
-------------------
There is one screen per process. Every agent that needs a person's yes waits in one queue; the
request at its head is shown, alone, with the agent's path from the root, and its answer goes to its
asker and to nobody else. Nothing replaces a request that is shown.

Who decided is part of every answer and no two of these are ever merged: `human` (or a lasting yes
the person gave before), `automaton` (nobody is there to ask), `expired` (shown, not answered in
time), `cancelled` (the asker ended first). `policy` is the caller's: a deny of the policy never
comes here, and no grant can undo it, for grants are looked up only after the policy said ask.

A grant covers one agent, or one agent and its descendants: never its parent, never a sibling.
While a request waits, the asker's clock stands still by the `pause` passed in.

Whatever is not a clear yes is a no: an approver that goes away, time, cancellation.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import anyio

from rambarde.errors import InternalError

Choice = Literal["once", "agent", "subtree", "no"]
Actor = Literal["human", "policy", "automaton", "expired", "cancelled"]

_CHOICES = frozenset({"once", "agent", "subtree", "no"})


@dataclass(frozen=True, slots=True)
class Request:
    """A question for the person.

    `agent_path` is unique among the agents of the process (`root/explore#2`; numbers are never
    used twice). `shown` is the whole call, secrets replaced; `call_sha256` (hex) is of the call as
    the model wrote it. `right` says what a lasting yes covers: all calls with the same tool, code
    and right; when it is empty, only the same call: two that differ in a secret look the same, and
    are not.
    `detached`: of a task that outlives its turn, or of anything below one; such never ask.
    """

    agent_path: str
    agent_id: str
    tool: str
    shown: str
    call_sha256: str
    code: str
    right: str = ""
    detached: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What was decided and by whom; `granted_before` when a lasting yes answered unasked."""

    decision: Choice
    actor: Actor
    granted_before: bool = False

    @property
    def code(self) -> str:
        """`no_approver` where nobody could be asked; "" else, when the caller's own code holds."""
        return "no_approver" if self.actor == "automaton" else ""


class ApproverGone(Exception):  # noqa: N818 - no fault: the screen was closed
    """The approver can ask nobody any more; what waits is refused as by an automaton."""


class Approver(Protocol):
    """The screen. One call at a time; cancelled when the request expires or its asker ends."""

    async def decide(self, request: Request, waiting: int) -> Choice:
        """Show the request and return the person's choice.

        Args:
            request: texts already made safe to show.
            waiting: how many more requests wait behind it.

        Raises:
            ApproverGone: there is nobody to ask any more.
        """
        ...


class Grants:
    """Lasting yeses. Kept in memory only: they end with the process."""

    def __init__(self) -> None:
        """Nothing is granted at the start."""
        self._agents: set[tuple[str, str, str, str]] = set()
        self._subtrees: set[tuple[str, str, str, str]] = set()

    def remember(self, request: Request, choice: Choice) -> None:
        """Keep a yes for the agent or its subtree; `once` and `no` leave nothing behind."""
        if choice == "agent":
            self._agents.add((request.agent_id, *_right(request)))
        elif choice == "subtree":
            self._agents.add((request.agent_id, *_right(request)))
            self._subtrees.add((request.agent_path, *_right(request)))

    def covers(self, request: Request) -> bool:
        """Say whether a yes given before covers this request. The policy's deny comes first."""
        right = _right(request)
        if (request.agent_id, *right) in self._agents:
            return True
        ancestors = request.agent_path.split("/")[:-1]
        return any(
            ("/".join(ancestors[: depth + 1]), *right) in self._subtrees
            for depth in range(len(ancestors))
        )

    def forget(self, agent_id: str, agent_path: str) -> None:
        """Drop what was granted to an agent that ended, and to the subtree below it."""
        self._agents = {grant for grant in self._agents if grant[0] != agent_id}
        self._subtrees = {grant for grant in self._subtrees if grant[0] != agent_path}


def _right(request: Request) -> tuple[str, str, str]:
    covered = f"right {request.right}" if request.right else f"call {request.call_sha256}"
    return request.tool, request.code, covered


@dataclass(slots=True, eq=False)
class _Pending:
    request: Request
    scope: anyio.CancelScope
    cause: Literal["", "cancelled", "automaton"] = ""

    def end(self, cause: Literal["cancelled", "automaton"]) -> None:
        self.cause = self.cause or cause
        self.scope.cancel()


Decided = Callable[[Request, Answer], None]
"""Told of every answer, those of cancelled askers included; must return at once."""


class Approvals:
    """The one queue to the one screen."""

    def __init__(
        self,
        approver: Approver | None,
        *,
        expiry_s: float = 600.0,
        pause: Callable[[Request], AbstractContextManager[object]] | None = None,
        on_decided: Decided | None = None,
    ) -> None:
        """Start with an empty queue.

        Args:
            approver: the screen; None where nobody can answer.
            expiry_s: seconds (> 0) a request is shown before it expires; waiting in the queue
                does not count, for nobody could answer it yet.
            pause: stops the asker's clock while the block is open (Budget.pause).
            on_decided: for the record and the events.
        """
        if not expiry_s > 0:
            raise ValueError(f"expiry_s is {expiry_s}: give seconds above zero")
        self.grants = Grants()
        self._approver = approver
        self._expiry_s = expiry_s
        self._pause = pause
        self._on_decided = on_decided
        self._pending: list[_Pending] = []
        self._screen = anyio.Lock()

    @property
    def waiting(self) -> tuple[Request, ...]:
        """Requests without an answer, in order of arrival; the first is the one shown."""
        return tuple(pending.request for pending in self._pending)

    async def ask(self, request: Request) -> Answer:
        """Return the answer to this request, and only to this one. Tells `on_decided` as well.

        When the asking task itself is cancelled, `on_decided` is told `cancelled` and the
        cancellation goes on.
        """
        if self._approver is None or request.detached:
            answer = self._granted(request) or Answer("no", "automaton")
        else:
            answer = self._granted(request) or await self._queue(request)
        self._tell(request, answer)
        return answer

    def cancel(self, agent_id: str) -> None:
        """The agent ended: what it asks is answered no, by `cancelled`."""
        for pending in self._pending:
            if pending.request.agent_id == agent_id:
                pending.end("cancelled")

    def detach(self) -> None:
        """The screen is gone: refuse what waits and whatever is asked from now on."""
        self._approver = None
        for pending in self._pending:
            pending.end("automaton")

    def attach(self, approver: Approver) -> None:
        """A screen is there (again)."""
        self._approver = approver

    def _granted(self, request: Request) -> Answer | None:
        if not self.grants.covers(request):
            return None
        return Answer("once", "human", granted_before=True)

    async def _queue(self, request: Request) -> Answer:
        pending = _Pending(request, anyio.CancelScope())
        self._pending.append(pending)
        answer: Answer | None = None
        try:
            with self._pause(request) if self._pause else nullcontext(), pending.scope:
                # anyio.Lock hands over in order of arrival, which makes it the queue.
                async with self._screen:
                    answer = self._granted(request) or await self._show(request)
        except anyio.get_cancelled_exc_class():
            self._tell(request, Answer("no", "cancelled"))
            raise
        finally:
            self._pending.remove(pending)
        # A cause set in the same instant as a yes wins: the asker or the screen is gone.
        if pending.cause or answer is None:
            return Answer("no", pending.cause or "cancelled")
        self.grants.remember(request, answer.decision)
        return answer

    async def _show(self, request: Request) -> Answer:
        if self._approver is None:
            return Answer("no", "automaton")
        choice: Choice | None = None
        with anyio.move_on_after(self._expiry_s):
            try:
                choice = await self._approver.decide(_made_visible(request), len(self._pending) - 1)
            except ApproverGone:
                self.detach()
                return Answer("no", "automaton")
        if choice is None:
            return Answer("no", "expired")
        if choice not in _CHOICES:
            raise InternalError(f"the screen answered {choice!r} to a request for approval")
        return Answer(choice, "human")

    def _tell(self, request: Request, answer: Answer) -> None:
        if self._on_decided is not None:
            self._on_decided(request, answer)


# ── what a person is shown ───────────────────────────────────────────────────────────────────

_SHOWN_AS = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    r"""Return the text with everything a terminal would act on or hide spelled out.

    Control characters, direction marks, zero-width characters, unassigned ones and every space but
    U+0020 become `\n`, `\x1b` or `\u202e`; so what is read is what is run. Nothing is cut.

    Source: Unicode 15 general categories; CVE-2021-42574 (direction marks hide code).
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if _is_plain(char) else _spelled(char) for char in text)


def _is_plain(char: str) -> bool:
    if char == " ":
        return True
    category = unicodedata.category(char)
    return category not in _HIDDEN_CATEGORIES and category != "Zs"


def _spelled(char: str) -> str:
    if char in _SHOWN_AS:
        return _SHOWN_AS[char]
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _made_visible(request: Request) -> Request:
    return replace(
        request,
        agent_path=visible(request.agent_path),
        tool=visible(request.tool),
        shown=visible(request.shown),
        right=visible(request.right),
    )
