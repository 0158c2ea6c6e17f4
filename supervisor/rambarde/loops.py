"""Notice an agent that goes round in circles, and stop it. Trusted side. Pure.

Theory of operation
-------------------
Each call has a key: the tool, its arguments in one spelling, and what came out, as a fingerprint of
the whole result with volatile parts masked. The same call with another result is progress, so
polling something that moves is never a loop. Thoughts are no part of the key: rewording hides
nothing.

    repeat  the same key in a row                       notice, stronger notice, stop
    error   the same call failing in the same way       notice, stop
    cycle   2 to 5 keys in a fixed order, over and over  notice, stop one cycle later
    words   messages without a call and without an end  notice, stop
    empty   replies with neither text nor call          notice, stop
    format  calls that cannot be read, in a row         stop

A model sees results between turns only. What it asks for several times within one turn is
therefore counted once: it had no chance to learn. For the same reason all refusals of one net in
one turn are one, and the next turn's are one more, whatever the arguments: the net does not look
at them.

Nothing here awaits, and no setting turns a rule off: LoopSettings bounds each threshold.
"""

from __future__ import annotations

import hashlib
import json
import os.path
import re
from collections import deque
from dataclasses import dataclass, fields
from typing import Literal

Rule = Literal["repeat", "error", "cycle", "words", "empty", "format"]
Action = Literal["notice", "stop"]

_PERIODS = range(2, 6)
_PATH_NAMES = frozenset({"path", "file_path", "filePath", "cwd"})
_MASKED_BYTES = 64 << 10
"""Beyond this much of a result nothing is masked, to bound the time spent on it."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Thresholds, in calls, cycles or messages in a row.

    Each may be moved between 2 and ten times its default, a notice below its stop; none can be
    switched off (ValueError).
    """

    repeat_notice: int = 3
    repeat_stronger: int = 5
    repeat_stop: int = 8
    error_notice: int = 3
    error_stop: int = 4
    cycle_notice: int = 5
    cycle_stop: int = 6
    words_notice: int = 3
    words_stop: int = 4
    empty_notice: int = 3
    empty_stop: int = 4
    format_stop: int = 3

    def __post_init__(self) -> None:
        """Check each value's range and that every notice comes before its stop."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            most = 10 * int(str(entry.default))
            if type(value) is not int or not 2 <= value <= most:
                raise ValueError(f"{entry.name} is {value!r}: give a whole number, 2 to {most}")
        if not self.repeat_notice < self.repeat_stronger < self.repeat_stop:
            raise ValueError("repeat_notice < repeat_stronger < repeat_stop does not hold")
        for rule in ("error", "cycle", "words", "empty"):
            if getattr(self, f"{rule}_notice") >= getattr(self, f"{rule}_stop"):
                raise ValueError(f"{rule}_notice must be below {rule}_stop")


@dataclass(frozen=True, slots=True)
class LoopNews:
    """A rule spoke: tell the agent inside the tool's result (`notice`), or end it (`stop`).

    `count` is how often it happened; `tool` names the call, "" for messages; `stronger` marks the
    second notice of `repeat`, which should name the call.
    """

    rule: Rule
    action: Action
    count: int
    tool: str = ""
    stronger: bool = False


@dataclass(frozen=True, slots=True)
class _Key:
    tool: str
    arguments: str
    ok: bool
    code: str
    fingerprint: str


class LoopWatch:
    """The rules for one agent. Fed by the supervisor, in order; never by the child."""

    def __init__(self, settings: LoopSettings | None = None, *, workspace: str = "") -> None:
        """`workspace`: absolute path, so that a path inside it equals its relative spelling."""
        self._settings = settings or LoopSettings()
        self._workspace = workspace
        self._turn: int | None = None
        self._seen: set[_Key] = set()
        self._past: deque[tuple[_Key, frozenset[bytes]]] = deque(maxlen=max(_PERIODS))
        self._streak = 0
        self._runs = dict.fromkeys(_PERIODS, 0)
        self._unreadable = 0
        self._unreadable_turn: int | None = None
        self._words = 0
        self._empty = 0

    def after_call(
        self,
        turn: int,
        tool: str,
        arguments_json: bytes,
        ok: bool,
        code: str,
        fingerprint: str,
        *,
        reads: frozenset[bytes] = frozenset(),
        net_refusal: bool = False,
    ) -> LoopNews | None:
        """Judge one finished or refused call; return the strictest news, if any.

        Args:
            turn: number of the model's reply that asked for it; grows.
            tool: its name.
            arguments_json: as the model wrote them, readable or not.
            ok: False for refusals and failures.
            code: machine code of the failure, "" when ok; `bad_arguments` marks an unreadable call.
            fingerprint: of the full result (`fingerprint`, or a hash the child made); "" for none.
            reads: files whose content the result shows, for `external_write`.
            net_refusal: refused by depth, total or concurrency.
        """
        self._words = self._empty = 0
        if turn != self._turn:
            self._turn = turn
            self._seen.clear()
        unreadable = self._after_format(turn, tool, code)
        if net_refusal:
            key = _Key(tool, "", False, code, "")
        else:
            spelled = canonical_arguments(arguments_json, workspace=self._workspace)
            key = _Key(tool, spelled, ok, code, fingerprint)
        if key in self._seen:
            return unreadable
        self._seen.add(key)
        cycle = self._after_cycle(key, reads)
        streak = self._streak_news(key)
        found = [news for news in (unreadable, streak, cycle) if news is not None]
        return next((news for news in found if news.action == "stop"), found[0] if found else None)

    def after_message(self, text: str, has_calls: bool) -> LoopNews | None:
        """Judge one reply of the model that does not end the run."""
        if has_calls:
            self._words = self._empty = 0
            return None
        if text.strip():
            self._words, self._empty = self._words + 1, 0
            return self._graded("words", self._words)
        self._empty += 1
        return self._graded("empty", self._empty)

    def external_write(self, path: bytes) -> None:
        """Another agent wrote `path`: calls that read it have a reason to be made again."""
        if any(path in reads for _, reads in self._past):
            self._past.clear()
            self._streak = 0
            self._runs = dict.fromkeys(_PERIODS, 0)

    def _after_format(self, turn: int, tool: str, code: str) -> LoopNews | None:
        if code != "bad_arguments":
            self._unreadable = 0
            return None
        if turn != self._unreadable_turn:
            self._unreadable_turn = turn
            self._unreadable += 1
        if self._unreadable < self._settings.format_stop:
            return None
        return LoopNews("format", "stop", self._unreadable, tool)

    def _streak_news(self, key: _Key) -> LoopNews | None:
        if not key.ok:
            return self._graded("error", self._streak, key.tool)
        if self._streak == self._settings.repeat_stronger:
            return LoopNews("repeat", "notice", self._streak, key.tool, stronger=True)
        return self._graded("repeat", self._streak, key.tool)

    def _after_cycle(self, key: _Key, reads: frozenset[bytes]) -> LoopNews | None:
        """Take the key in; a run of period p is the number of keys equal to the one p before."""
        news: LoopNews | None = None
        same = bool(self._past) and self._past[-1][0] == key
        self._streak = self._streak + 1 if same else 1
        for period in _PERIODS:
            matches = len(self._past) >= period and self._past[-period][0] == key
            self._runs[period] = self._runs[period] + 1 if matches else 0
            # A streak has every period; `repeat` and `error` judge it.
            if news is None and self._streak < period:
                news = self._cycle_news(period, key.tool)
        self._past.append((key, reads))
        return news

    def _cycle_news(self, period: int, tool: str) -> LoopNews | None:
        cycles, rest = divmod(self._runs[period] + period, period)
        if cycles >= self._settings.cycle_stop:
            return LoopNews("cycle", "stop", cycles, tool)
        if cycles == self._settings.cycle_notice and rest == 0:
            return LoopNews("cycle", "notice", cycles, tool)
        return None

    def _graded(self, rule: Rule, count: int, tool: str = "") -> LoopNews | None:
        if count >= getattr(self._settings, f"{rule}_stop"):
            return LoopNews(rule, "stop", count, tool)
        if count == getattr(self._settings, f"{rule}_notice"):
            return LoopNews(rule, "notice", count, tool)
        return None


# ── one spelling for arguments ───────────────────────────────────────────────────────────────


def canonical_arguments(arguments_json: bytes, *, workspace: str = "") -> str:
    """Return arguments in one spelling: keys sorted, outer white space gone, paths normal.

    What is not a JSON document stays as it is, less its outer white space.
    """
    try:
        value = json.loads(arguments_json)
        return json.dumps(_canonical(value, "", workspace), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments_json.strip().decode(errors="backslashreplace")


def _canonical(value: object, name: str, workspace: str) -> object:
    if isinstance(value, dict):
        return {str(key): _canonical(inner, str(key), workspace) for key, inner in value.items()}
    if isinstance(value, list):
        return [_canonical(inner, name, workspace) for inner in value]
    if isinstance(value, str):
        text = value.strip()
        return _normal_path(text, workspace) if name in _PATH_NAMES and text else text
    return value


def _normal_path(path: str, workspace: str) -> str:
    path = os.path.normpath(path)
    if workspace and path == workspace:
        return "."
    return path.removeprefix(workspace.rstrip("/") + "/") if workspace else path


# ── one fingerprint for results ──────────────────────────────────────────────────────────────

# Each expression begins with a plain character or a set of them, for then the matcher skips ahead
# quickly; what must stand before it is asserted just behind that first character. On source text
# that takes a third of the time of one expression whose alternatives begin with a word boundary.
_RANDOM = re.compile(
    rb"""
    [0-9a-fA-F] (?: (?<!\w.) | (?<=\b[a-z].) )
    (?: [0-9a-fA-F]{7} - (?:[0-9a-fA-F]{4}-){3} [0-9a-fA-F]{12} | [0-9a-f]{7,31} ) \b
    """,
    re.VERBOSE,
)
"""UUIDs, and ids of 8 to 32 hex digits that may have one letter before them."""

_TIMES = re.compile(
    rb"""
    [0-9] (?<!\w.)
    (?: \d{3}-\d\d-\d\d (?:[T\x20]\d\d:\d\d (?::\d\d(?:[.,]\d+)?)? (?:Z|[+-]\d\d:?\d\d)?)?
      | \d? :\d\d:\d\d (?:[.,]\d+)? \b                  # time of day
      | (?<=1) [5-9]\d{8} (?:\.\d+|\d{3}|\d{6}|\d{9})? \b  # of the epoch: s, ms, us, ns
      | (?<=0) x[0-9a-fA-F]+ \b                           # address
      | \d* m\x20?\d+ (?:\.\d+)? s \b                    # 1m2.5s
      | \d* (?:\.\d+)? \x20? (?:ns|us|\xc2\xb5s|ms|s|secs?|seconds?|mins?|minutes?|hours?) \b
    )
    """,
    re.VERBOSE,
)
_NAMED = re.compile(
    rb"""
      /tmp/ [^/\s'":,;)]+
    | tmp (?<!\w...) [._-]? [A-Za-z0-9_]{6,12} \b
    | pytest-\d+ \b
    | (?: pid | PID | Pid | process ) [\x20=:\#]{1,3} \d+
    | \[ (?<![^\n].) \d+ \] \x20 \d+ (?=\n|\Z)           # bash's line for a job
    | (?: Mon | Tue | Wed | Thu | Fri | Sat | Sun ) (?<!\w...) [a-z]* ,? \x20+
      (?:\d{1,2}\x20)? [A-Z][a-z]{2} \x20+ \d{1,4} \b
    """,
    re.VERBOSE,
)


def _mask_random(found: re.Match[bytes]) -> bytes:
    """Mask a random id; a number or a word of such letters alone is none."""
    text = found[0]
    return text if text.isdigit() or text.isalpha() else b"\0"


def fingerprint(text: str | bytes) -> str:
    """Return the SHA-256 (hex) of a whole result, its volatile parts masked.

    Durations, process numbers, addresses, random ids, dates, times and temporary names in the first
    64 KiB do not count; two results that differ only in them are the same. Content hashes (40 and
    64 digits) do count, for they change when the content does, and so do plain numbers: counters
    are how polling sees progress.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    head = _RANDOM.sub(_mask_random, data[:_MASKED_BYTES])
    head = _TIMES.sub(b"\0", head)
    digest = hashlib.sha256(_NAMED.sub(b"\0", head))
    digest.update(data[_MASKED_BYTES:])
    return digest.hexdigest()
