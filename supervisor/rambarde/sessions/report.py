"""How a run ended, and what of it goes up to the parent. Trusted side. Pure.

A report has these lines, in this order; those in brackets only where they apply:

    [the role in brackets, where the caller wants it]
    [how it was cut off, with counts, files written and refused calls]
    the fenced words: those after the last tool call, or the last ones of a run that was cut off
    [files written and refused calls of a run that is done]
    the id of the subagent's session

Status, counts and files are the supervisor's account, never the child's words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rambarde.sessions.quote import Fenced, fence, line, plain, unseen_shown, wrapped
from rambarde.texts import text as say

__all__ = ["REPORT_CHARS", "Outcome", "build_report", "fence"]

REPORT_CHARS = 6000
"""Most code points of a report's words; the mark of the cut is not counted."""
MOST_FILES = 50
_STATUS = re.compile(r"done|interrupted|refused|lost|(?:limit|loop|error):[a-z][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. Set by the supervisor only.

    `status` is `done`, `limit:<which>`, `loop:<rule>`, `interrupted`, `refused`, `error:<which>` or
    `lost`; anything else is a ValueError.
    """

    status: str

    def __post_init__(self) -> None:
        """Check the status."""
        if not _STATUS.fullmatch(self.status):
            raise ValueError(f"{self.status!r} is no status of a run")

    @property
    def is_done(self) -> bool:
        """True when the agent ended by its own answer."""
        return self.status == "done"

    @property
    def kind(self) -> str:
        """The word before the colon."""
        return self.status.partition(":")[0]

    @property
    def which(self) -> str:
        """The word after the colon: the limit, the rule or the error; else empty."""
        return self.status.partition(":")[2]


def build_report(
    *,
    outcome: Outcome,
    text: str,
    last_text: str,
    session_id: str,
    agent: str,
    error: str = "",
    actions: int = 0,
    tokens: int = 0,
    duration_s: float = 0.0,
    files_written: Sequence[str] = (),
    refused: Sequence[str] = (),
    role_prefix: str | None = None,
    locale: str = "en",
    limit_chars: int = REPORT_CHARS,
) -> Fenced:
    """Return what the parent's model is told of a run that ended.

    Args:
        outcome: how it ended; all but `done` and `error:empty` give a marked head.
        text: the words after the last tool call; redacted.
        last_text: the newest words, whole or cut, for a run that did not end as done; redacted.
        session_id: of the subagent; the last line.
        agent: the persona's name.
        error: cause in words, where there is one.
        actions: calls of tools, refused ones too.
        tokens: read and written by its model.
        duration_s: from its start to its end.
        files_written: relative paths, from the record of writes.
        refused: the tool of each refused call.
        role_prefix: put in brackets on the first line; None for no such line.
        locale: language of the marks.
        limit_chars: most code points of the words.

    Returns:
        The report, the child's words fenced in it.
    """
    words = (text if outcome.is_done else text.strip() or last_text).strip()
    found = _found(locale, files_written, refused, is_done=outcome.is_done)
    lines = [f"[{line(role_prefix, 64)}]"] if role_prefix else []
    if outcome.is_done and not words:
        outcome = Outcome("error:empty")
    if not outcome.is_done:
        lines += _head(outcome, line(agent, 64), line(error), locale)
        counts = {"actions": actions, "tokens": tokens, "duration_s": f"{duration_s:.1f}"}
        lines.append(" ".join([say("report_counts", locale, **counts), *found]))
        if words:
            lines.append(say("report_last_text", locale))
    if words:
        lines.append(_fenced(words, limit_chars, locale))
    if outcome.is_done and found:
        lines.append(" ".join(found))
    return Fenced("\n".join([*lines, session_id]))


def _head(outcome: Outcome, agent: str, error: str, locale: str) -> list[str]:
    if outcome.status == "error:empty":
        return [say("empty_report", locale, agent=agent)]
    if outcome.kind == "error":
        cause = f"{error} ({outcome.status})" if error else outcome.status
        return [say("report_error", locale, agent=agent, error=cause)]
    head = say(f"report_{outcome.kind}", locale, agent=agent, status=outcome.status)
    return [head, say("report_cause", locale, error=error)] if error else [head]


def _found(
    locale: str, files_written: Sequence[str], refused: Sequence[str], *, is_done: bool
) -> list[str]:
    found = []
    if files_written:
        shown = [unseen_shown(path.replace("\n", "\\n")) for path in files_written[:MOST_FILES]]
        more = len(files_written) - len(shown)
        names = ", ".join([*shown, f"+{more}"] if more else shown)
        found.append(say("report_files", locale, files=names))
    elif not is_done:
        found.append(say("report_no_files", locale))
    if refused:
        counted = Counter(line(tool, 64) for tool in refused)
        names = ", ".join(f"{tool} ×{count}" for tool, count in counted.most_common(20))
        found.append(say("report_refusals", locale, refusals=names))
    return found


def _fenced(words: str, limit_chars: int, locale: str) -> str:
    # Made harmless before the cut, so that what this adds stays within the bound too.
    shown = plain(words[: 16 * limit_chars]).strip()
    if len(shown) > limit_chars or len(words) > 16 * limit_chars:
        shown = f"{shown[:limit_chars]}\n{say('report_cut', locale)}"
    return wrapped(shown, locale)
