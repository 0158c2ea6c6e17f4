"""One queue, one screen: each request shown in order, each asker given its own answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from rambarde.approvals import Answer, Approvals, ApproverGone, Choice, Request
from rambarde.errors import InternalError

pytestmark = pytest.mark.anyio

NO_ONE = Answer("no", "automaton")
CANCELLED = Answer("no", "cancelled")


def request(name: str = "a#1", shown: str = "make", **values: object) -> Request:
    return Request(  # type: ignore[arg-type] - fields by name
        f"root/{name}", f"id-{name}", "bash", shown, f"sha {shown}", "ask_command", **values
    )


class Screen:
    """Answers from a table by what is shown; keeps what it was shown; one question at a time."""

    def __init__(self, answers: dict[str, Choice] | None = None) -> None:
        """What is not in `answers` is answered `once`, after `gate` opens."""
        self.answers = answers or {}
        self.seen: list[Request] = []
        self.waiting: list[int] = []
        self.gate = anyio.Event()
        self.asking = 0

    async def decide(self, request: Request, waiting: int) -> Choice:
        self.asking += 1
        assert self.asking == 1, "one request replaced another on the screen"
        try:
            self.seen.append(request)
            await self.gate.wait()
            await anyio.lowlevel.checkpoint()
            self.waiting.append(waiting)
            return self.answers.get(request.shown, "once")
        finally:
            self.asking -= 1


class OpenScreen(Screen):
    """A screen whose person answers at once."""

    def __init__(self, answers: dict[str, Choice] | None = None) -> None:
        super().__init__(answers)
        self.gate.set()


async def test_twenty_requests_are_all_shown_in_order_and_answered_apart() -> None:
    """Nothing is lost, replaced or mixed up."""
    screen = Screen({f"cmd {n}": "no" for n in range(1, 20, 2)})
    approvals = Approvals(screen)
    answers: dict[int, Answer] = {}

    async def ask(number: int) -> None:
        answers[number] = await approvals.ask(request(f"a#{number}", f"cmd {number}"))

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(ask, number)
        await anyio.wait_all_tasks_blocked()
        assert [f"cmd {n}" for n in range(20)] == [entry.shown for entry in approvals.waiting]
        assert len(screen.seen) == 1
        screen.gate.set()
    assert [f"cmd {n}" for n in range(20)] == [entry.shown for entry in screen.seen]
    assert {n: Answer("no" if n % 2 else "once", "human") for n in range(20)} == answers
    assert approvals.waiting == ()


async def test_request_without_an_approver_is_refused_at_once_by_the_automaton() -> None:
    """Nobody there is a dry refusal with its own code and actor."""
    decided: list[tuple[Request, Answer]] = []
    approvals = Approvals(None, on_decided=lambda *told: decided.append(told))
    answer = await approvals.ask(request())
    assert answer == NO_ONE
    assert answer.code == "no_approver"
    assert [(request(), NO_ONE)] == decided


async def test_detached_task_never_reaches_the_screen() -> None:
    """A task that outlives its turn asks nobody, though somebody is there."""
    screen = OpenScreen()
    assert await Approvals(screen).ask(request(detached=True)) == NO_ONE
    assert screen.seen == []


async def test_request_expires_apart_from_a_human_no() -> None:
    """Shown and not answered in time: actor `expired`; the next one is shown then."""
    screen = Screen()
    approvals = Approvals(screen, expiry_s=0.01)
    assert await approvals.ask(request()) == Answer("no", "expired")
    screen.gate.set()
    assert await approvals.ask(request()) == Answer("once", "human")


async def test_request_in_the_queue_does_not_expire_before_it_was_shown() -> None:
    """The count starts when a person can see it."""
    screen = Screen()
    approvals = Approvals(screen, expiry_s=0.02)
    answers: list[Answer] = []

    async def ask(name: str) -> None:
        answers.append(await approvals.ask(request(name)))
        screen.gate.set()

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "a#1")
        group.start_soon(ask, "b#2")
    assert answers == [Answer("no", "expired"), Answer("once", "human")]


async def test_agent_that_ends_cancels_its_request_only() -> None:
    """Shown or waiting, the asker's end is `cancelled`; the others are asked on."""
    screen = Screen()
    decided: dict[str, Answer] = {}
    approvals = Approvals(
        screen, on_decided=lambda asked, answer: decided.update({asked.agent_id: answer})
    )
    async with anyio.create_task_group() as group:
        for name in ("a#1", "b#2", "c#3"):
            group.start_soon(approvals.ask, request(name))
        await anyio.wait_all_tasks_blocked()
        approvals.cancel("id-b#2")
        approvals.cancel("id-a#1")
        await anyio.wait_all_tasks_blocked()
        screen.gate.set()
    assert decided == {
        "id-a#1": CANCELLED,
        "id-b#2": CANCELLED,
        "id-c#3": Answer("once", "human"),
    }
    assert [entry.agent_path for entry in screen.seen] == ["root/a#1", "root/c#3"]


async def test_cancelled_task_is_on_record_as_cancelled() -> None:
    """The asking task's own end is told before the cancellation goes on."""
    decided: list[Answer] = []
    approvals = Approvals(Screen(), on_decided=lambda _, answer: decided.append(answer))
    with anyio.move_on_after(0.01):
        await approvals.ask(request())
    assert decided == [CANCELLED]
    assert approvals.waiting == ()


async def test_screen_that_closes_refuses_what_waits() -> None:
    """Everything in the queue and after it is the automaton's no."""
    answers: list[Answer] = []
    approvals = Approvals(Screen())

    async def ask(name: str) -> None:
        answers.append(await approvals.ask(request(name)))

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "a#1")
        group.start_soon(ask, "b#2")
        await anyio.wait_all_tasks_blocked()
        approvals.detach()
    assert answers == [NO_ONE, NO_ONE]
    assert await approvals.ask(request()) == NO_ONE
    approvals.attach(OpenScreen())
    assert await approvals.ask(request()) == Answer("once", "human")


async def test_approver_that_is_gone_is_nobody() -> None:
    """A screen that says so in the middle of a question gives no yes."""

    class Gone:
        async def decide(self, request: Request, waiting: int) -> Choice:
            raise ApproverGone

    answers: list[Answer] = []
    approvals = Approvals(Gone())

    async def ask(name: str) -> None:
        answers.append(await approvals.ask(request(name)))

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "a#1")
        group.start_soon(ask, "b#2")
    assert answers == [NO_ONE, NO_ONE]


async def test_nonsense_from_the_screen_is_no_yes() -> None:
    """A choice that does not exist is our bug and never an approval."""
    screen = OpenScreen({"make": "always"})  # type: ignore[dict-item] - a wrong value is the subject
    approvals = Approvals(screen)
    with pytest.raises(InternalError, match="always"):
        await approvals.ask(request())
    assert approvals.waiting == ()


async def test_asker_is_paused_while_it_waits_in_the_queue_and_on_the_screen() -> None:
    """Its clock stands still from asking to answer, and runs again after any end."""
    log: list[str] = []

    @contextmanager
    def pause(asked: Request) -> Iterator[None]:
        log.append(f"stop {asked.agent_id}")
        try:
            yield
        finally:
            log.append(f"run {asked.agent_id}")

    screen = Screen()
    approvals = Approvals(screen, pause=pause)
    async with anyio.create_task_group() as group:
        group.start_soon(approvals.ask, request("a#1"))
        group.start_soon(approvals.ask, request("b#2"))
        await anyio.wait_all_tasks_blocked()
        assert log == ["stop id-a#1", "stop id-b#2"]
        screen.gate.set()
    assert log == ["stop id-a#1", "stop id-b#2", "run id-a#1", "run id-b#2"]


async def test_lasting_yes_answers_those_behind_it_without_asking() -> None:
    """Once the person said yes for the subtree, its requests in the queue are covered."""
    screen = Screen({"make": "subtree"})
    approvals = Approvals(screen)
    answers: list[Answer] = []

    async def ask(name: str) -> None:
        answers.append(await approvals.ask(request(name)))

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "a#1")
        group.start_soon(ask, "a#1/b#2")
        await anyio.wait_all_tasks_blocked()
        screen.gate.set()
    assert [Answer("subtree", "human"), Answer("once", "human", granted_before=True)] == answers
    assert len(screen.seen) == 1


async def test_person_sees_the_path_the_tool_and_the_whole_call() -> None:
    """Nothing is cut, and what a terminal would act on is spelled out."""
    screen = OpenScreen()
    shown = "echo \x1b[2J" + "x" * 50_000 + "\n; rm \u202eb"
    await Approvals(screen).ask(request("explore#2", shown))
    seen = screen.seen[0]
    assert (seen.agent_path, seen.tool) == ("root/explore#2", "bash")
    assert seen.shown == "echo \\x1b[2J" + "x" * 50_000 + "\\n; rm \\u202eb"


async def test_approvals_need_a_time_above_zero() -> None:
    """A screen that nobody answers must not hold an agent for ever."""
    with pytest.raises(ValueError, match="expiry_s"):
        Approvals(None, expiry_s=0)
