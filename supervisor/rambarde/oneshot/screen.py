"""Progress of a one-shot run on standard error. Trusted side.

On a terminal one line is rewritten in place; elsewhere each step is one plain line. Everything
shown passed the redactor before and has its control characters made visible here, so that no text
of a child or a model can drive the terminal. A terminal that went away is not an error of the run.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from typing import TextIO

from rambarde.children.output import visible
from rambarde.events import Event

_QUIET_S = 0.1


class Screen:
    """A listener of events. `color` follows NO_COLOR and the terminal, decided by the caller."""

    def __init__(self, out: TextIO, *, live: bool, color: bool) -> None:
        """`live`: rewrite one line (a terminal); else print plain lines."""
        self._out = out
        self._live = live
        self._color = color
        self._shown = ""
        self._next_s = 0.0
        self._busy: dict[str, str] = {}
        self._started_s = time.monotonic()
        self.gone = False

    def __call__(self, event: Event) -> None:
        """Take one event."""
        line = self._line(event)
        if line:
            self._print(line)
        if self._live:
            self._progress(event)

    def _line(self, event: Event) -> str:
        data = event.data
        who = event.agent_path
        match event.kind:
            case "session/started" | "task/started":
                return f"{who}: started ({data.get('agent')})"
            case "tool/started":
                return f"{who}: {_call(data)}"
            case "tool/settled" if not data.get("ok", False):
                return f"{who}: {_call(data)} refused or failed: {data.get('code')}"
            case "task/settled" | "session/ended":
                seconds = int(str(data.get("duration_ms", 0))) / 1000
                actions = data.get("actions")
                counted = f"{actions} action" + ("" if actions == 1 else "s")
                return f"{who}: {data.get('status')} ({counted}, {seconds:.1f} s)"
            case "agent/loop":
                return f"{who}: loop rule {data.get('rule')}: {data.get('action')}"
            case "approval/decided":
                return f"{who}: {data.get('tool')}: {data.get('decision')} by {data.get('actor')}"
            case "notice":
                return f"{who}: {data.get('text', '')}"
            case _:
                return ""

    def _progress(self, event: Event) -> None:
        match event.kind:
            case "task/settled" | "session/ended":
                self._busy.pop(event.agent_path, None)
            case "model/started":
                self._busy[event.agent_path] = "model"
            case "tool/started":
                self._busy[event.agent_path] = str(event.data.get("tool"))
        now = time.monotonic()
        if now < self._next_s and self._busy:
            return
        self._next_s = now + _QUIET_S
        self._rewrite(now)

    def _rewrite(self, now: float) -> None:
        parts = [f"{path.rsplit('/', 1)[-1]}:{doing}" for path, doing in self._busy.items()]
        text = visible(f"[{now - self._started_s:5.1f} s] {'  '.join(parts)}") if parts else ""
        width = shutil.get_terminal_size().columns - 1
        self._shown = text[:width]
        self._write(f"\r\x1b[K{self._shown}")

    def _print(self, line: str) -> None:
        text = visible(line)
        if self._live:
            self._write(f"\r\x1b[K{self._dim(text)}\n{self._shown}")
        else:
            self._write(f"{text}\n")

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._color else text

    def close(self) -> None:
        """Clear the progress line."""
        if self._live and self._shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        if self.gone:
            return
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):
            self.gone = True


def _call(data: Mapping[str, object]) -> str:
    return f"{data.get('tool')} {data.get('shown', '')}".rstrip()


def wants_color(environment: dict[str, str], fd: int) -> bool:
    """True on a terminal without NO_COLOR (no-color.org) and with a TERM that can."""
    if environment.get("NO_COLOR"):
        return False
    return os.isatty(fd) and environment.get("TERM", "dumb") != "dumb"
