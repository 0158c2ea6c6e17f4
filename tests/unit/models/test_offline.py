"""The offline engine: it maps any repository within eight replies, and says what it is not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rambarde.models.base import (
    AssistantMessage,
    Delta,
    Message,
    ModelRequest,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from rambarde.models.offline import OfflineEngine
from rambarde.models.offline.facts import Done, findings, hits, listed_paths, read_run
from rambarde.models.offline.plan import MOST_STEPS, next_step

REPO = {
    "README.md": "# Kettle\n\nBoils water.\n",
    "pyproject.toml": "[build-system]\nrequires = []\n[project.scripts]\nkettle = 'k:main'\n",
    "Makefile": "all: test\n\ntest:\n\tpytest\n",
    "kettle/main.py": "def main():\n    pass\n\nif __name__ == '__main__':\n    main()\n",
    "kettle/it's odd é.py": "x = 1\n",
    "tests/test_kettle.py": "def test_boils():\n    assert True\n",
}
ALL = ("read", "grep", "glob", "write", "edit", "bash", "Task")

Perform = Callable[[str, Mapping[str, str]], tuple[str, bool]]


def spec(name: str) -> ToolSpec:
    agents = "\nAgents:\n- explore: looks\n- general: works" if name == "Task" else ""
    return ToolSpec(name, f"tool{agents}", {})


def matches(path: str, pattern: str) -> bool:
    """Match as the glob tool does, for the forms the engine uses."""
    if braces := re.match(r"(\./|\*/)\{(.*)\}$", pattern):
        depth = 0 if braces[1] == "./" else 1
        return path.count("/") == depth and path.rsplit("/", 1)[-1] in braces[2].split(",")
    return fnmatch("/" + path, "*" + pattern.removeprefix("**"))


def performer(files: Mapping[str, str], refused: tuple[str, ...] = ()) -> Perform:
    """Return tools over files in memory; Task runs the engine as a subagent on the same files."""

    def perform(tool: str, arguments: Mapping[str, str]) -> tuple[str, bool]:
        if tool in refused:
            return f"refused: {tool} is not granted here", False
        if tool == "glob":
            found = [path for path in files if matches(path, arguments["pattern"])]
            return "\n".join(found) or "(no file matches)", True
        if tool == "read":
            lines = files[arguments["path"]].splitlines()
            return "\n".join(f"{n:>6}\t{line}" for n, line in enumerate(lines, 1)), True
        if tool == "grep":
            pattern = re.compile(arguments["pattern"])
            return "\n".join(
                f"{path}:{n}:{line}"
                for path, text in files.items()
                for n, line in enumerate(text.splitlines(), 1)
                if pattern.search(line)
            ), True
        if tool == "Task":
            tools = ("read", "grep", "glob", "bash")
            return "| " + drive(arguments["prompt"], tools, performer(files, refused)).replace(
                "\n", "\n| "
            ), True
        return "      4 py\n      1 md\n", True

    return perform


def drive(task: str, tools: tuple[str, ...], perform: Perform) -> str:
    """Run the engine to its end and return its report; it must end within eight replies."""
    messages: list[Message] = [UserMessage(task)]
    for _ in range(MOST_STEPS + 1):
        request = ModelRequest("", "sys", tuple(messages), tuple(spec(name) for name in tools))
        step = next_step(read_run(request))
        messages.append(AssistantMessage(step.text, step.calls))
        if not step.calls:
            return step.text
        assert {call.name for call in step.calls} <= set(tools)
        for call in step.calls:
            text, ok = perform(call.name, json.loads(call.arguments))
            messages.append(ToolMessage(call.call_id, call.name, text, is_error=not ok))
    raise AssertionError("the engine did not end")


def test_maps_a_repository() -> None:
    """The report has languages, entry points, tests and build with real places, and the task."""
    report = drive("Please write me\na poem", ALL, performer(REPO))
    assert "not a language model" in report
    assert "> Please write me\n> a poem" in report
    assert "| Python | 4 |" in report
    assert "README.md:1: # Kettle" in report
    assert "kettle/main.py:4: if __name__" in report
    assert "pyproject.toml:4: kettle = 'k:main'" in report
    assert "Makefile:3: test:" in report
    assert "tests/test_kettle.py:1: def test_boils():" in report
    assert "pyproject.toml:1: [build-system]" in report
    assert "2 Task" in report


@pytest.mark.parametrize(
    "tools", [ALL, ("read", "grep", "glob"), ("grep",), ("glob",), ("read",), ("Task",), ()]
)
def test_any_set_of_tools(tools: tuple[str, ...]) -> None:
    """With fewer tools it does less and still reports; without Task it searches itself."""
    report = drive("map", tools, performer(REPO))
    assert "## How this was made" in report
    if "grep" in tools:
        assert "tests/test_kettle.py:1: def test_boils():" in report


@pytest.mark.parametrize("refused", [ALL, ("bash",), ("Task",), ("grep", "Task"), ("glob",)])
def test_refusals_are_reported_not_repeated(refused: tuple[str, ...]) -> None:
    """A refused call is asked once and named in the report."""
    asked: list[tuple[str, str]] = []
    inner = performer(REPO, refused)

    def perform(tool: str, arguments: Mapping[str, str]) -> tuple[str, bool]:
        asked.append((tool, json.dumps(arguments)))
        return inner(tool, arguments)

    report = drive("map", ALL, perform)
    assert len(asked) == len(set(asked))
    assert f"not done: {refused[0] if refused != ALL else 'glob'}: refused" in report


def test_a_refused_subagent_is_replaced_by_own_searches() -> None:
    """What no subagent could find the engine looks for itself."""
    report = drive("map", ALL, performer(REPO, ("Task",)))
    assert "tests/test_kettle.py:1: def test_boils():" in report


def test_an_empty_repository() -> None:
    """Nothing is asked of subagents when there is nothing to see."""
    report = drive("map", ALL, performer({}))
    assert "Task" not in report
    assert report.count("Nothing found.") == 3


def test_a_subagent_reports_places() -> None:
    """Its report is lines that the parent reads back."""
    report = drive("[offline map: tests] Find", ("read", "grep", "glob"), performer(REPO))
    found = findings(Done(0, "Task", {}, report, True))
    assert ("tests/test_kettle.py", 1) in [(hit.path, hit.line) for hit in found]


def test_both_forms_of_grep_are_read() -> None:
    """A path on each line and a path above the lines give the same places."""
    flat = Done(0, "grep", {}, "./a b.py:3:x = 1\nc:d.py:4:y\n", True)
    grouped = Done(0, "grep", {}, "a b.py\n3:x = 1\n\nc:d.py\n4:y\n", True)
    assert hits(flat) == hits(grouped)


def test_listings_leave_out_what_is_no_path() -> None:
    """Remarks of the tool are not files."""
    done = Done(0, "glob", {}, "a.py\n./b/c.py\n(17 more; narrow the pattern)\n(stopped)\n", True)
    assert listed_paths(done) == ["a.py", "b/c.py"]
    assert listed_paths(Done(0, "glob", {}, "No file matches '*'.", True)) == []


@settings(max_examples=40)
@given(st.data())
def test_any_results_lead_to_a_report(data: st.DataObject) -> None:
    """Whatever text and errors the tools return, the engine ends and no control byte is shown."""

    def perform(tool: str, arguments: Mapping[str, str]) -> tuple[str, bool]:
        return data.draw(st.text(max_size=60)), data.draw(st.booleans())

    report = drive(data.draw(st.text(max_size=60)), ALL, perform)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", report)


@pytest.mark.anyio
async def test_streams_its_reply() -> None:
    """The client tells its text as it goes; the pieces are the reply."""
    engine = OfflineEngine()
    deltas: list[Delta] = []
    request = ModelRequest("", "", (UserMessage("map"),), tuple(map(spec, ALL)))

    class NoRetries:
        def take(self) -> bool:
            return False

    reply = await engine.complete(request, on_delta=deltas.append, retries=NoRetries())
    assert "".join(d.text for d in deltas if d.kind == "text") == reply.text
    assert reply.finish_reason == "tool_calls"
    assert len({call.call_id for call in reply.calls}) == len(reply.calls)
    await engine.aclose()
