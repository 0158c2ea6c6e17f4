"""What the offline engine says at the end, made from tool results only. Trusted side. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from rambarde.models.offline.facts import (
    Done,
    Hit,
    Run,
    findings,
    hits,
    languages,
    listed_paths,
    numbered_lines,
    plain,
    unlisted,
)
from rambarde.models.offline.topics import ASIDE, TOPICS, Topic

SHOWN = 12
"""Most findings of a topic in the map."""
REPORTED = 40
"""Most findings of a topic in a subagent's report."""
TASK_CHARS = 600
WHAT_THIS_IS = (
    "Made by rambarde's offline engine. It is not a language model: it follows a fixed plan of "
    "tool calls, can only map a repository, and did not understand the task:"
)
_TARGET = re.compile(r"^([A-Za-z][\w.-]*)\s*:(?!=)")


def report(run: Run) -> str:
    """Return the map of the repository."""
    parts = [
        "# Map of the repository",
        WHAT_THIS_IS,
        _quote(run.task),
        *_about(run),
        *_languages(run),
    ]
    for topic in TOPICS.values():
        parts += [f"## {topic.title}", _bullets(_found(run, topic), SHOWN, topic.per_file)]
    parts += ["## How this was made", _how(run)]
    return "\n\n".join(part for part in parts if part)


def topic_report(run: Run, topic: Topic) -> str:
    """Return a subagent's findings, one a line as `- path:line: text`."""
    found = _found(run, topic)
    named = sorted({p for d in run.of("glob") for p in listed_paths(d)})
    more = sum(unlisted(done) for done in run.of("glob"))
    lines = [f"{topic.title}: {len(found)} places found by the offline engine, a fixed search."]
    if named or more:
        count = f"{len(named)} or more" if more else str(len(named))
        lines.append(f"Files named like it: {count}.")
    lines.append(_bullets(found, REPORTED, topic.per_file))
    lines += _refused(run)
    return "\n".join(lines)


def _quote(task: str) -> str:
    lines = task.strip()[:TASK_CHARS].splitlines() or ["(no words)"]
    if len(task.strip()) > TASK_CHARS:
        lines[-1] += "…"
    return "\n".join("> " + plain(line, TASK_CHARS) for line in lines)


def _about(run: Run) -> list[str]:
    """Quote the first words of the README, with their place."""
    for done in run.of("read"):
        path = done.argument("path")
        if "readme" not in path.lower():
            continue
        words = [(n, text) for n, text in numbered_lines(done) if re.search(r"\w{3}", text)]
        quoted = [f"- {plain(path)}:{number}: {plain(text)}" for number, text in words[:3]]
        return ["## What it says of itself", "\n".join(quoted)] if quoted else []
    return []


def _languages(run: Run) -> list[str]:
    counts, left_out = languages(run)
    if not counts:
        return ["## Languages", "No file with a known ending was seen."]
    rows = [f"| {name} | {number} |" for name, number in counts.most_common(SHOWN)]
    table = "\n".join(["| language | files |", "|---|---|", *rows])
    note = f"{left_out} older files were not listed and are not counted." if left_out else ""
    return ["## Languages", table, note]


def _found(run: Run, topic: Topic) -> list[Hit]:
    """Return what searches and subagents found for a topic, each place once."""
    patterns = {search.pattern for search in topic.searches}
    found: list[Hit] = []
    for done in run.of("grep"):
        if done.argument("pattern") in patterns:
            found += hits(done)
    for done in run.done:
        # A subagent that was stopped still found what it reports.
        if done.tool == "Task" and f"[offline map: {topic.key}]" in done.argument("prompt"):
            found += findings(done)
    if topic.key == "build":
        found += _targets(run)
    if topic.key == "entry":
        # What the project itself declares comes first, what serves its upkeep last.
        found = _declared(run) + sorted(
            found, key=lambda hit: not ASIDE.isdisjoint(hit.path.split("/"))
        )
    return list({(hit.path, hit.line): hit for hit in found}.values())


def _declared(run: Run) -> list[Hit]:
    """Return the commands a pyproject.toml that was read declares."""
    found = []
    for done in run.of("read"):
        path = done.argument("path")
        if path.rsplit("/", 1)[-1] != "pyproject.toml":
            continue
        inside = False
        for number, text in numbered_lines(done):
            if text.startswith("["):
                inside = text.strip() in ("[project.scripts]", "[tool.poetry.scripts]")
            elif inside and "=" in text:
                found.append(Hit(plain(path), number, plain(text)))
    return found


def _targets(run: Run) -> list[Hit]:
    """Return the targets of a Makefile that was read."""
    found = []
    for done in run.of("read"):
        path = done.argument("path")
        if path.rsplit("/", 1)[-1] in ("Makefile", "justfile"):
            lines = numbered_lines(done)
            found += [Hit(plain(path), n, plain(text)) for n, text in lines if _TARGET.match(text)]
    return found


def _bullets(found: Iterable[Hit], most: int, per_file: int) -> str:
    chosen: list[Hit] = []
    seen: Counter[str] = Counter()
    total = 0
    for hit in found:
        total += 1
        seen[hit.path] += 1
        if seen[hit.path] <= per_file and len(chosen) < most:
            chosen.append(hit)
    if not total:
        return "Nothing found."
    lines = [f"- {hit.path}:{hit.line}: {hit.text}" for hit in chosen]
    if total > len(chosen):
        lines.append(f"({total - len(chosen)} more places, in {len(seen)} files in all)")
    return "\n".join(lines)


def _how(run: Run) -> str:
    used = Counter(done.tool for done in run.done)
    calls = ", ".join(f"{number} {tool}" for tool, number in sorted(used.items())) or "none"
    lines = [f"Tool calls of this agent: {calls}; {run.steps} step{'s' * (run.steps != 1)}."]
    if not run.tools:
        lines.append("No tool was granted, so nothing could be looked at.")
    lines += _refused(run)
    lines.append("For other work choose a model: --engine URL, or a key.")
    return "\n".join(lines)


def _refused(run: Run) -> list[str]:
    refused = [done for done in run.done if not done.ok]
    return [f"- not done: {done.tool}: {_reason(done)}" for done in refused[:SHOWN]]


def _reason(done: Done) -> str:
    lines = [line for line in done.text.splitlines() if line.strip()]
    return plain(lines[0]) if lines else "no reason given"
