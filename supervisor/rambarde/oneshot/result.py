"""The result of a one-shot run: its JSON object and its exit code. Trusted side. Pure.

The shape is what scripts of this field already parse; the fields are listed in docs/json.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rambarde.errors import Exit


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended; every field is the supervisor's own account."""

    session_id: str
    status: str
    text: str
    error: str = ""
    num_turns: int = 0
    duration_ms: int = 0
    usage: dict[str, object] = field(default_factory=dict)
    denials: tuple[dict[str, str], ...] = ()
    files_written: tuple[str, ...] = ()
    files_changed: tuple[str, ...] = ()
    subagents: tuple[dict[str, object], ...] = ()
    record: str = ""
    notices: tuple[str, ...] = ()
    signal: int = 0
    """Number of the signal that came during the run; 0 for none."""

    @property
    def is_done(self) -> bool:
        """True when the agent ended by its own answer."""
        return self.status == "done"

    @property
    def subtype(self) -> str:
        """The three words other tools' scripts know."""
        if self.is_done:
            return "success"
        return "error_max_turns" if self.status == "limit:actions" else "error_during_execution"

    def as_json(self) -> dict[str, object]:
        """Return the object printed by `--output-format json`."""
        return {
            "type": "result",
            "subtype": self.subtype,
            "is_error": not self.is_done,
            "status": self.status,
            "result": self.text,
            "error": self.error,
            "session_id": self.session_id,
            "num_turns": self.num_turns,
            "duration_ms": self.duration_ms,
            "usage": self.usage,
            "permission_denials": list(self.denials),
            "files_written": list(self.files_written),
            "files_changed": list(self.files_changed),
            "subagents": list(self.subagents),
            "notices": list(self.notices),
            "record": self.record,
        }

    def exit_code(self, *, fail_on_denied: bool) -> int:
        """Return the program's exit code (decision record: errors.Exit)."""
        if self.status == "interrupted":
            return 128 + self.signal if self.signal else Exit.INTERRUPTED
        if self.status.startswith(("limit:", "loop:")):
            return Exit.STOPPED
        if self.status == "error:sandbox":
            return Exit.NO_SANDBOX
        if not self.is_done:
            return Exit.FAILED
        return Exit.DENIED if fail_on_denied and self.denials else Exit.DONE
