"""What the offline engine does next. Trusted side. Pure.

    step   an agent                                        a subagent it asked
    0      list the files, count them by language          list and search for its topic
    1      read the manifests, search for entry points,    read the first files found
           ask two subagents for tests and build
    2      search itself for what no subagent found        report
    3      report

A step without anything new to ask is passed over, so an empty repository is reported on at once.
Every way leads to a report: no call is made twice, not even one that was refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from rambarde.models.base import ToolCall
from rambarde.models.offline.facts import Run, hits, listed_paths
from rambarde.models.offline.report import report, topic_report
from rambarde.models.offline.topics import (
    BUILD,
    COUNT_COMMAND,
    ENTRY,
    MANIFESTS,
    MANIFESTS_GLOB,
    TESTS,
    TOPICS,
    Topic,
)

READS = 6
"""Most files read by one agent."""
READ_LINES = 120
MOST_STEPS = 7
"""Replies after which a report is made whatever is still missing."""

Wish = tuple[str, Mapping[str, object]]
"""A tool and its arguments."""


@dataclass(frozen=True, slots=True)
class Step:
    """The next reply: without calls it is the last one."""

    text: str
    calls: tuple[ToolCall, ...] = ()


def next_step(run: Run) -> Step:
    """Return the next reply of a run."""
    plans = _topic_plans(run, run.topic) if run.topic else _map_plans(run)
    asked = {(done.tool, _key(done.arguments)) for done in run.done}
    for said, wishes in plans:
        new = [(t, a) for t, a in wishes if t in run.tools and (t, _key(a)) not in asked]
        if new and run.steps < MOST_STEPS:
            return Step(said, _calls(run, new))
    return Step(topic_report(run, run.topic) if run.topic else report(run))


def _key(arguments: Mapping[str, object]) -> str:
    return json.dumps(arguments, sort_keys=True)


def _calls(run: Run, wishes: list[Wish]) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(f"off_{run.serial}_{number}", tool, json.dumps(arguments))
        for number, (tool, arguments) in enumerate(wishes)
    )


# ── an agent that maps the whole repository ──────────────────────────────────────────────────


def _map_plans(run: Run) -> list[tuple[str, list[Wish]]]:
    listing: list[Wish] = [
        ("glob", {"pattern": "**/*"}),
        # Asked for by name: of a large repository only the newest files are listed.
        ("glob", {"pattern": f"./{MANIFESTS_GLOB}"}),
        ("glob", {"pattern": f"*/{MANIFESTS_GLOB}"}),
        ("bash", {"command": COUNT_COMMAND}),
    ]
    asked = [topic for topic in (TESTS, BUILD) if run.scout and _has_files(run)]
    looking = _reads(run)
    if _has_files(run):
        looking += _searches(ENTRY)
        looking += [("Task", {"agent": run.scout, "prompt": _brief(topic)}) for topic in asked]
    missing = [
        topic for topic in TOPICS.values() if _has_files(run) and not _was_sought(run, topic)
    ]
    return [
        ("I am rambarde's offline engine, not a language model: I can only map.\n", listing),
        ("Reading what the repository says of itself.\n", looking),
        ("Searching for what is still missing.\n", [w for t in missing for w in _searches(t)]),
    ]


def _has_files(run: Run) -> bool:
    """Say whether there is anything to look at; unknown counts as yes."""
    listings = list(run.of("glob"))
    return not listings or any(listed_paths(done) for done in listings)


def _reads(run: Run) -> list[Wish]:
    paths = {path for done in run.of("glob") for path in listed_paths(done)}
    near = sorted((path for path in paths if path.count("/") <= 1), key=lambda p: (p.count("/"), p))
    chosen = [path for name in MANIFESTS for path in near if path.rsplit("/", 1)[-1] == name]
    return [("read", {"path": path, "limit": READ_LINES}) for path in chosen[:READS]]


def _searches(topic: Topic) -> list[Wish]:
    wishes: list[Wish] = []
    for search in topic.searches:
        more = {"glob": search.glob} if search.glob else {}
        wishes.append(("grep", {"pattern": search.pattern, **more}))
    return wishes


def _brief(topic: Topic) -> str:
    return (
        f"[offline map: {topic.key}] {topic.brief} "
        "Report each finding as a line `- path:line: text`. Change nothing."
    )


def _was_sought(run: Run, topic: Topic) -> bool:
    """Say whether a search or a subagent for the topic came back, even with nothing."""
    patterns = {search.pattern for search in topic.searches}
    searched = any(done.argument("pattern") in patterns for done in run.done if done.tool == "grep")
    asked = any(f"[offline map: {topic.key}]" in done.argument("prompt") for done in run.of("Task"))
    return searched or asked


# ── a subagent that looks for one topic ──────────────────────────────────────────────────────


def _topic_plans(run: Run, topic: Topic) -> list[tuple[str, list[Wish]]]:
    looking: list[Wish] = [("glob", {"pattern": pattern}) for pattern in topic.globs]
    looking += _searches(topic)
    found = list(dict.fromkeys(h.path for done in run.of("grep") for h in hits(done)))
    reads: list[Wish] = [("read", {"path": path, "limit": READ_LINES}) for path in found[:3]]
    return [
        (f"Looking for: {topic.title.lower()}.\n", looking),
        ("Reading the first files found.\n", reads),
    ]
