"""A caller and the broker's ports, made of real parts where they are pure and of small fakes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rambarde.approvals import Approvals, Approver
from rambarde.broker.caller import Caller, OpenCall, ToolResult
from rambarde.broker.catalogue import catalogue
from rambarde.broker.ports import Ports
from rambarde.budget import Budget, BudgetLimits
from rambarde.events import Event
from rambarde.host.digest import WorkspaceDigest
from rambarde.ids import CallId, new_agent_id
from rambarde.loops import LoopWatch
from rambarde.models.base import ToolCall
from rambarde.personas import discover
from rambarde.redact import Redactor
from rambarde.sessions.journal import Journal
from rambarde.texts import text
from rambarde.tracker import ReadTracker
from support.fake_clock import FakeClock
from support.policies import WORKSPACE_WRITE
from support.sessions import session_id

SECRET = "correct-horse-battery-staple-77"


class Delegations:
    """Allows every delegation and reports at once."""

    def refuse(self, _caller: Caller, _arguments: Any) -> ToolResult | None:
        return None

    async def delegate(self, _caller: Caller, _arguments: Any) -> ToolResult:
        return ToolResult(ok=True, code="", text="report")


class Bench:
    """One caller over a workspace; `events` and `records` show what was told and kept."""

    def __init__(self, base: Path, *, actions: int = 100, approver: Approver | None = None) -> None:
        self.workspace = base / "ws"
        self.workspace.mkdir()
        self.events: list[Event] = []
        self.journal = Journal.create(str(base / "s.jsonl"), {"session_id": "s"})
        limits = BudgetLimits(actions=actions, duration_s=100.0, stall_s=100.0)
        policy = WORKSPACE_WRITE
        self.caller = Caller(
            agent_id=new_agent_id(),
            session_id=session_id(1),
            path="root",
            depth=0,
            persona=discover(None, {}).get("general"),
            policy=policy,
            model="m",
            system="",
            catalogue=catalogue(policy.tools, {"explore": "looks"}),
            budget=Budget("root", limits, FakeClock()),
            loops=LoopWatch(),
            journal=self.journal,
        )
        root = os.fsencode(self.workspace)
        self.models: Any = None
        fd = os.open(root, os.O_PATH | os.O_CLOEXEC)
        self._parts: dict[str, Any] = {
            "commands": None,
            "delegations": Delegations(),
            "approvals": Approvals(approver),
            "tracker": ReadTracker(root, WorkspaceDigest(fd)),
            "redactor": Redactor({"test": SECRET}),
            "publish": self.events.append,
            "say": lambda code, **values: text(code, "en", **values),
            "wrote": lambda _agent, _path: None,
            "workspace": root,
            "rg": b"/rg",
        }

    @property
    def ports(self) -> Ports:
        """The ports, with the models set last."""
        return Ports(models=self.models, **self._parts)

    def path(self, name: str) -> bytes:
        """A path of the workspace as a child tells it."""
        return os.fsencode(self.workspace / name)

    def open(self, tool: str, *, place: Any = "child", call_id: str = "c1") -> OpenCall:
        """Open one call, as if it had been judged and handed down."""
        wrote = ToolCall(f"model-{call_id}", tool, "{}")
        call = OpenCall(CallId(call_id), wrote, tool, b"{}", place)
        self.caller.open_calls[call.call_id] = call
        return call

    def records(self, kind: str) -> list[dict[str, Any]]:
        """The data of all records of a kind."""
        return [dict(one.data) for one in self.journal.records() if one.kind == kind]
