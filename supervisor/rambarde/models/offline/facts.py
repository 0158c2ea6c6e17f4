"""What a transcript says, as facts for the plan and the report. Trusted side. Pure.

Tool results are untrusted text written for a model, in a form that may change; everything here
takes what it can read and passes over the rest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rambarde.models.base import AssistantMessage, ModelRequest, ToolMessage, UserMessage
from rambarde.models.offline.topics import LANGUAGES, TOPICS, Topic
from rambarde.models.shapes import parse_object

LINE_CHARS = 160
_MARK = re.compile(r"\[offline map: (\w+)\]")
_AGENT = re.compile(r"^- ([\w.-]{1,64}):", re.MULTILINE)
_HIT = re.compile(r"^(?P<path>.+?):(?P<line>[1-9][0-9]{0,8}):\s?(?P<text>.*)$")
_FINDING = re.compile(r"^\W{0,8}(?P<path>\S.*?):(?P<line>[1-9][0-9]{0,8}): (?P<text>.*)$")
_NUMBERED = re.compile(r"^\s*([1-9][0-9]{0,8})(?:\t|→|\s?\||:| ) ?(.*)$")
_MORE = re.compile(r"\b([0-9]{1,9}) more\b")
_COUNT = re.compile(r"^\s*([0-9]{1,9}) ([A-Za-z0-9_+-]{1,16})$", re.MULTILINE)
_NOTHING = re.compile(r"^(no|nothing|none|0)\b", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Done:
    """A call of this run with its result."""

    step: int
    tool: str
    arguments: Mapping[str, object]
    text: str
    ok: bool

    def argument(self, name: str) -> str:
        """Return an argument that is text; the empty text when it is not there."""
        value = self.arguments.get(name)
        return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A place in a file: `line` counts from 1, `text` is one plain line."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run so far: from the last words of the person, or the brief, to now.

    Fields: `steps` replies given in it; `serial` replies given in the whole transcript; `topic` is
    set for a subagent of the offline engine itself; `scout` names the subagent that may be asked.
    """

    task: str
    topic: Topic | None
    tools: frozenset[str]
    scout: str
    steps: int
    serial: int
    done: tuple[Done, ...]

    def of(self, tool: str) -> Iterator[Done]:
        """Yield the calls of one tool that succeeded."""
        return (done for done in self.done if done.tool == tool and done.ok)


def read_run(request: ModelRequest) -> Run:
    """Return the facts of a request."""
    messages = request.messages
    start = max((i for i, m in enumerate(messages) if isinstance(m, UserMessage)), default=-1)
    task = messages[start].text if start >= 0 else ""
    mark = _MARK.search(task)
    names = frozenset(tool.name for tool in request.tools)
    described = {tool.name: tool.description for tool in request.tools}
    return Run(
        task=task,
        topic=TOPICS.get(mark[1]) if mark else None,
        tools=names,
        scout=_scout(described.get("Task", "")),
        steps=sum(isinstance(m, AssistantMessage) for m in messages[start + 1 :]),
        serial=sum(isinstance(m, AssistantMessage) for m in messages),
        done=tuple(_done(request, start + 1)),
    )


def _scout(description: str) -> str:
    """Return the subagent to ask: `explore`, or one that is named after it."""
    agents = _AGENT.findall(description)
    near = [name for name in agents if "explore" in name.lower()]
    return "explore" if "explore" in agents else (near[0] if near else "")


def _done(request: ModelRequest, start: int) -> Iterator[Done]:
    results: dict[str, ToolMessage] = {
        m.call_id: m for m in request.messages[start:] if isinstance(m, ToolMessage)
    }
    step = 0
    for message in request.messages[start:]:
        if not isinstance(message, AssistantMessage):
            continue
        for call in message.calls:
            result = results.get(call.call_id)
            if result is not None:
                arguments = parse_object(call.arguments) or {}
                yield Done(step, call.name, arguments, result.text, not result.is_error)
        step += 1


def plain(text: str, most: int = LINE_CHARS) -> str:
    """Return text as one line that is safe to show, cut with a mark."""
    text = _CONTROL.sub(" ", text).strip()
    return text if len(text) <= most else text[: most - 1] + "…"


def listed_paths(done: Done) -> list[str]:
    """Return the paths a glob listed."""
    paths: list[str] = []
    lines = done.text.splitlines()
    if len(lines) == 1 and " " in lines[0] and _NOTHING.match(lines[0]):
        return paths
    for line in lines:
        path = line.strip()
        if path and not path.startswith(("(", "…", "...", "[")) and not _MORE.search(path):
            paths.append(path.removeprefix("./"))
    return paths


def unlisted(done: Done) -> int:
    """Return how many paths a glob found but did not list."""
    counts = [int(n) for line in done.text.splitlines()[-3:] for n in _MORE.findall(line)]
    return max(counts, default=0)


def hits(done: Done) -> list[Hit]:
    """Return the places a grep found, whether it names the file on each line or once above them."""
    found: list[Hit] = []
    heading = ""
    for line in done.text.splitlines():
        if match := _HIT.match(line):
            path = match["path"].removeprefix("./")
            found.append(Hit(plain(path), int(match["line"]), plain(match["text"])))
        elif heading and (match := _NUMBERED.match(line)):
            found.append(Hit(plain(heading), int(match[1]), plain(match[2])))
        else:
            heading = line.strip().removeprefix("./")
    return found


def findings(done: Done) -> list[Hit]:
    """Return the places a subagent's report names as `- path:line: text`."""
    matches = (_FINDING.match(line) for line in done.text.splitlines())
    return [Hit(plain(m["path"]), int(m["line"]), plain(m["text"])) for m in matches if m]


def numbered_lines(done: Done) -> list[tuple[int, str]]:
    """Return the lines a read showed, with their numbers."""
    matches = (_NUMBERED.match(line) for line in done.text.splitlines())
    return [(int(match[1]), match[2]) for match in matches if match]


def languages(run: Run) -> tuple[Counter[str], int]:
    """Return files by language and how many files were not counted.

    The command's counts win, for they are of all files; else the paths that were listed count.
    """
    counts: Counter[str] = Counter()
    for done in run.of("bash"):
        for number, extension in _COUNT.findall(done.text):
            counts[_language(extension)] += int(number)
    if counts:
        return counts, 0
    left_out = 0
    seen: set[str] = set()
    for done in run.of("glob"):
        if done.argument("pattern") == "**/*":
            seen.update(listed_paths(done))
            left_out = max(left_out, unlisted(done))
    for path in seen:
        name = path.rsplit("/", 1)[-1].rstrip("'")
        if "." in name.lstrip("."):
            counts[_language(name.rsplit(".", 1)[-1])] += 1
    return counts, left_out


def _language(extension: str) -> str:
    return LANGUAGES.get(extension.lower(), f".{extension.lower()}")
