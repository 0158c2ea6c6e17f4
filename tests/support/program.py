"""The installed program, run from outside as a person would, in a home of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "rambarde")


@dataclass(frozen=True)
class Ran:
    """One finished run of the program."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output as JSON."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Its standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Program:
    """A home, a workspace, and the program."""

    base: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for folder in (self.home, self.config, self.workspace):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def home(self) -> Path:
        return self.base / "home"

    @property
    def config(self) -> Path:
        return self.home / ".config" / "rambarde"

    @property
    def state(self) -> Path:
        return self.home / ".local" / "state" / "rambarde"

    @property
    def workspace(self) -> Path:
        return self.base / "ws"

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a run: nothing of the tester's own but the path."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            **self.environment,
            **(extra or {}),
        }

    def start(self, *arguments: str, env: Mapping[str, str] | None = None, **more: Any) -> Any:
        """Start the program and return the Popen object (text pipes)."""
        options: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "cwd": self.workspace,
            "env": self.env(env),
        }
        return subprocess.Popen([*COMMAND, *arguments], **(options | more))

    def __call__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout: float = 50,
        cwd: Path | None = None,
    ) -> Ran:
        """Run the program to its end."""
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=cwd or self.workspace,
            env=self.env(env),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def ask(self, engine_url: str, *arguments: str, prompt: str = "do it", **more: Any) -> Ran:
        """Run one prompt against an engine, JSON result."""
        return self(
            "-p",
            prompt,
            "--engine",
            engine_url,
            "--model",
            "scripted",
            "--repo",
            str(self.workspace),
            "--output-format",
            "json",
            *arguments,
            **more,
        )

    def journal(self, session_id: str) -> list[dict[str, Any]]:
        """The records of a session."""
        text = (self.state / "sessions" / f"{session_id}.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def sessions(self) -> Sequence[Path]:
        """All journals."""
        return sorted((self.state / "sessions").glob("*.jsonl"))
