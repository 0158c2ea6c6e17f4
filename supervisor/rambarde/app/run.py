"""One task from prompt to result; owns the outermost task group. Trusted side."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup, TaskStatus

from rambarde.agents.agent import Agent
from rambarde.agents.commands import Commands
from rambarde.agents.delegation import Delegation
from rambarde.agents.engine import Engine
from rambarde.agents.parts import Parts
from rambarde.agents.tree import Tree
from rambarde.app.ground import (
    Ground,
    check_installation,
    choose_engine,
    find_ground,
    find_persona,
    make_redactor,
    read_key,
    root_policy,
)
from rambarde.app.start import start_zygote
from rambarde.approvals import Answer, Approvals, Request
from rambarde.broker.ports import Ports
from rambarde.budget import Nets, TreeRetries
from rambarde.children.watch import Watch
from rambarde.children.zygote import Zygote
from rambarde.clock import HostClock
from rambarde.errors import HostError
from rambarde.events import Event, Listener
from rambarde.host.cgroup import Cgroups
from rambarde.host.covers import CoverWatch
from rambarde.host.digest import WorkspaceDigest
from rambarde.host.kuids import Kuids
from rambarde.host.quarantine import put_aside, told_aside
from rambarde.host.snapshot import changed_paths, take_snapshot
from rambarde.models.base import ModelClient
from rambarde.models.choose import EngineChoice, open_model
from rambarde.oneshot.result import RunResult
from rambarde.personas import Persona
from rambarde.policy.compile import RG_INSIDE
from rambarde.policy.model import Policy
from rambarde.redact import Redactor
from rambarde.sessions.report import Outcome
from rambarde.sessions.store import Store
from rambarde.texts import text
from rambarde.tracker import ReadTracker
from rambarde_wire.orders import Mask, Tier


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a person asks for on the command line; None where nothing was said."""

    prompt: str
    environment: Mapping[str, str]
    repo: str = "."
    sets: Sequence[str] = ()
    tier: Tier | None = None
    agent: str | None = None
    plan: bool = False
    engine: str | None = None
    model: str | None = None
    key_file: str | None = None
    max_actions: int | None = None
    max_duration: float | None = None
    allowed: str | None = None
    disallowed: str | None = None
    ephemeral: bool = False
    lang: str | None = None


def run_task(request: RunRequest, listeners: Sequence[Listener]) -> RunResult:
    """Run one task; returns when every process of it is gone.

    Raises:
        RambardeError: before anything was started; afterwards every end is in the result.
    """
    ground = find_ground(request.repo, request.environment, request.sets, request.tier)
    persona = find_persona(ground, request.agent or ground.settings.agents.default)
    policy = root_policy(
        ground,
        persona,
        plan=request.plan,
        max_actions=request.max_actions,
        max_duration=request.max_duration,
        allowed=request.allowed,
        disallowed=request.disallowed,
    )
    check_installation(ground, writable=policy.writable)
    choice = choose_engine(ground, request.engine)
    zygote = start_zygote(ground)
    try:
        key = read_key(ground, choice, request.key_file)
        redactor = make_redactor(ground, key)
    except BaseException:
        zygote.abandon()
        raise
    run = _Run(request, ground, zygote, redactor, listeners)
    return anyio.run(run.main, persona, policy, choice, key)


class _Run:
    """One run; its parts live as long as `main`."""

    def __init__(
        self,
        request: RunRequest,
        ground: Ground,
        zygote: Zygote,
        redactor: Redactor,
        listeners: Sequence[Listener],
    ) -> None:
        self._request = request
        self._ground = ground
        self._zygote = zygote
        self._redactor = redactor
        self._listeners = [*listeners]
        self._unheard = anyio.Event()
        self._cgroups = Cgroups(ground.facts, f"rambarde-{os.getpid()}")
        self._root_fd = os.open(ground.space.root, os.O_PATH | os.O_CLOEXEC)
        self._signal = 0
        self._root_agent: Agent | None = None
        self._lost: list[str] = []
        self._aside: list[str] = []
        self._locale = request.lang or ground.locale

    async def main(
        self, persona: Persona, policy: Policy, choice: EngineChoice, key: str | None
    ) -> RunResult:
        """Start the zygote's side, run the root agent, gather the result."""
        model = self._request.model or self._ground.settings.model.model or ""
        client: ModelClient | None = None
        async with anyio.create_task_group() as signals:
            try:
                await self._zygote.wait_ready()
                client = open_model(choice, key=key, model=model)
                result = await self._root(persona, policy, model, client, signals)
            finally:
                with anyio.CancelScope(shield=True):
                    await self._zygote.aclose()
                    self._cgroups.close()
                    os.close(self._root_fd)
                    if client is not None:
                        await client.aclose()
            signals.cancel_scope.cancel()
        return result

    async def _root(
        self,
        persona: Persona,
        policy: Policy,
        model: str,
        client: ModelClient,
        signals: TaskGroup,
    ) -> RunResult:
        folder = self._ground.space.root
        parts = self._parts()
        self._lost = [
            f"session {one.session_id} was lost: its process died"
            for one in parts.store.mark_lost()
        ]
        tree = Tree(parts, lambda tree: self._join(parts, tree, client))
        # From before there is a session until the last process is gone: no signal leaves a session
        # open, and one that comes late changes nothing and loses no result.
        await signals.start(self._watch_signals)
        root = self._root_agent = tree.start_root(persona, policy, model, self._request.prompt)
        if self._signal:
            root.stop(Outcome("interrupted"), error=signal.Signals(self._signal).name)
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_unheard, root)
            before = await anyio.to_thread.run_sync(take_snapshot, folder)
            group.start_soon(self._watch_masks, parts, tree)
            watch = Watch(
                tree.watched,
                tree.on_excess,
                workspace=folder,
                disk_free_bytes=policy.limits.disk_free_bytes,
            )
            group.start_soon(watch.run)
            self._zygote.on_death = lambda why: root.stop(Outcome("error:sandbox"), error=why)
            await tree.live(root)
            changed = await anyio.to_thread.run_sync(changed_paths, folder, before)
            group.cancel_scope.cancel()
        self._aside = put_aside(folder, self._ground.space.absent)
        result = self._result(tree, root, changed)
        if self._request.ephemeral:
            parts.store.remove_tree(root.caller.session_id)
        return result

    def _parts(self) -> Parts:
        ground = self._ground
        execution = ground.settings.execution
        return Parts(
            zygote=self._zygote,
            space=ground.space,
            facts=ground.facts,
            tier=ground.tier,
            cgroups=self._cgroups,
            kuids=Kuids(),
            clock=HostClock(),
            environment=ground.environment,
            personas=ground.personas,
            settings=ground.settings,
            store=Store(os.path.join(ground.state_folder, "sessions"), redact=self._redactor.text),
            nets=Nets(
                execution.subagentMaxDepth,
                execution.subagentMaxPerSession,
                execution.subagentMaxConcurrent,
            ),
            retries=TreeRetries(),
            publish=self._publish,
            say=self._say,
            locale=self._locale,
        )

    def _join(self, parts: Parts, tree: Tree, client: ModelClient) -> Ports:
        space = self._ground.space
        digest = WorkspaceDigest(self._root_fd)
        tracker = ReadTracker(space.root, digest, name_of=tree.name_of)
        return Ports(
            models=Engine(client, parts.retries),
            commands=Commands(parts, self._redactor, tree.agents),
            delegations=Delegation(parts, tracker, tree.agents, tree.start_child, tree.live),
            approvals=Approvals(
                None,
                pause=lambda request: tree.agents[request.agent_id].caller.budget.pause(),
                on_decided=lambda request, answer: self._decided(tree, request, answer),
            ),
            tracker=tracker,
            redactor=self._redactor,
            publish=self._publish,
            say=self._say,
            wrote=tree.note_write,
            workspace=space.root,
            rg=RG_INSIDE,
        )

    def _decided(self, tree: Tree, request: Request, answer: Answer) -> None:
        agent = tree.agents.get(request.agent_id)
        data = {"tool": request.tool, "decision": answer.decision, "actor": answer.actor}
        session_id = "" if agent is None else agent.caller.session_id
        self._publish(Event("approval/decided", session_id, request.agent_path, data))

    def _say(self, code: str, **values: object) -> str:
        return text(code, self._locale, **values)

    def _publish(self, event: Event) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except OSError:
                self._listeners.remove(listener)
                self._unheard.set()

    async def _watch_unheard(self, root: Agent) -> None:
        """Whoever read the events has gone, or cannot take them: nobody waits for the work."""
        await self._unheard.wait()
        root.stop(Outcome("interrupted"), error="the output cannot be written")

    async def _watch_signals(self, *, task_status: TaskStatus[None]) -> None:
        """The first signal interrupts the run, which then ends by itself; a second one kills."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as received:
            task_status.started()
            async for number in received:
                root = self._root_agent
                if root is not None and root.settled.is_set():
                    continue
                if self._signal:
                    await self._zygote.aclose()
                self._signal = int(number)
                if root is not None:
                    root.stop(Outcome("interrupted"), error=signal.Signals(number).name)

    async def _watch_masks(self, parts: Parts, tree: Tree) -> None:
        """Mask a path again inside the living children when it was replaced on the host."""
        watch = CoverWatch(self._ground.space.masks, self._ground.space.read_only)
        while True:
            await anyio.sleep(0.5)
            masks, leaves = watch.replaced()
            if not masks and not leaves:
                continue
            for agent in list(tree.agents.values()):
                await _cover_again(parts, agent, masks, leaves)

    def _result(self, tree: Tree, root: Agent, changed: Sequence[str]) -> RunResult:
        caller = root.caller
        ending = tree.ending(root)
        below = [tree.ending(agent) for agent in root.descendants()]
        status = str(ending["status"])
        return RunResult(
            session_id=caller.session_id,
            status=status,
            text=caller.final_text if status == "done" else caller.last_text,
            error=caller.error_text,
            num_turns=caller.turn,
            duration_ms=int(str(ending["duration_ms"])),
            usage=_usage(ending, below),
            denials=_denials(root),
            files_written=tuple(str(one) for one in _listed(ending["files_written"])),
            files_changed=tuple(changed),
            subagents=tuple(below),
            record=caller.journal.path,
            notices=(*self._ground.notices, *self._lost, *map(told_aside, self._aside)),
            signal=self._signal,
        )


async def _cover_again(
    parts: Parts, agent: Agent, masks: Sequence[Mask], leaves: Sequence[bytes]
) -> None:
    """Cover replaced paths again in one agent; one that cannot be covered is ended."""
    if agent.plan is None:
        return
    try:
        await parts.zygote.remask(agent.caller.agent_id, masks, leaves)
    except HostError as exc:
        if not agent.settled.is_set() and not agent.stop_asked.is_set():
            agent.stop(Outcome("error:sandbox"), error=exc.message)


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


def _denials(root: Agent) -> tuple[dict[str, str], ...]:
    return tuple(
        {"agent": one.agent, "tool": one.tool, "code": one.code, "actor": one.actor}
        for agent in (root, *root.descendants())
        for one in agent.caller.denials
    )


def _usage(
    ending: Mapping[str, object], below: Sequence[Mapping[str, object]]
) -> dict[str, object]:
    names = ("input_tokens", "output_tokens", "model_requests", "rate_wait_ms")
    own: dict[str, object] = {name: ending[name] for name in names}
    own["subagent"] = {name: sum(int(str(one[name])) for one in below) for name in names}
    return own
