"""A published project is mapped, mended and tested in the sandbox, and explored by three."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.probes import run_git, tree_state
from support.program import Program
from support.real_project import add_environment, count_passed, fetch_archive, unpack
from support.scripted import Answer, Call, ScriptedEngine, Seen

pytestmark = pytest.mark.timeout(240)

BROKEN_FILE = "src/click/utils.py"
RIGHT = "words = words[: i + 1]\n"
WRONG = "words = words[:i]\n"
PYTEST = ".venv/bin/python -m pytest -q -p no:cacheprovider"
STRESS = "--ignore tests/test_stream_lifecycle.py --ignore tests/test_utils/test_echo_via_pager.py"
"""Tens of thousands of repetitions, which the project leaves out of an ordinary run as well."""
QUESTIONS = {
    "where options are parsed": r"class _?OptionParser|class _OptionParser",
    "how colours are written": r"def style\(",
    "where exceptions are defined": r"class ClickException",
}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's source archive."""
    return fetch_archive(tmp_path_factory.mktemp("archive"))


def test_the_offline_engine_maps_a_real_project(archive: Path, program: Program) -> None:
    """Without any model: languages, tests and build of the project, by itself and two subagents."""
    space = program.workspace
    unpack(archive, space)
    before = tree_state(space)
    ran = program("demo", "--output-format", "json", timeout=120)
    assert ran.code == 0, ran.err
    told = ran.json
    assert told["status"] == "done"
    assert [one["status"] for one in told["subagents"]] == ["done", "done"]
    python_files = len([path for path in space.rglob("*.py") if ".git" not in path.parts])
    assert f"| Python | {python_files} |" in told["result"]
    assert re.search(r"pyproject\.toml:\d+: \[build-system\]", told["result"])
    assert re.search(r"tests/test_\w+\.py:\d+: def test_", told["result"])
    assert "not a language model" in told["result"]
    places = re.findall(r"^- ([^:\n]+):(\d+): (.+)$", told["result"], re.MULTILINE)
    assert len(places) > 20
    for name, line, text in places:
        lines = (space / name).read_text().splitlines()
        assert text.removesuffix("…").strip() in lines[int(line) - 1], (name, line, text)
    assert told["files_changed"] == told["files_written"] == []
    assert tree_state(space) == before
    assert run_git(space, "status", "--porcelain") == ""


def test_a_fault_is_found_mended_and_proved_by_the_projects_own_tests(
    archive: Path, program: Program, engine: ScriptedEngine
) -> None:
    """Tests fail, the cause is searched, read and edited, all the project's tests pass."""
    space = program.workspace
    unpack(archive, space)
    add_environment(space)
    source = space / BROKEN_FILE
    as_published = source.read_text()
    assert as_published.count(RIGHT) == 1
    source.write_text(as_published.replace(RIGHT, WRONG))
    run_git(space, "commit", "-q", "-a", "-m", "a fault")
    engine.call("bash", command=f"{PYTEST} tests/test_utils/test_make_default_short_help.py")
    engine.call("grep", pattern=r"words = words\[:i\]", path="src")
    engine.call("read", path=BROKEN_FILE)
    engine.call("edit", path=BROKEN_FILE, old_string=WRONG.strip(), new_string=RIGHT.strip())
    engine.call("bash", command=f"{PYTEST} {STRESS}", timeout_s=120)
    engine.call("bash", command="git diff --stat HEAD~1; git commit -qam mended && git status -s")
    engine.say("Mended.")
    ran = program.ask(engine.url, timeout=200)
    assert ran.code == 0, ran.err
    failing, found, read, edited, passing, committed = (seen.last for seen in engine.requests[1:])
    assert re.search(r"\d+ failed", failing), failing
    assert "dot_ends_text" in failing or "dot ends text" in failing, failing
    line = as_published[: as_published.index(RIGHT)].count("\n") + 1
    assert re.search(rf"{re.escape(BROKEN_FILE)}:{line}\b", found), found
    assert "def _make_default_short_help" in read
    assert BROKEN_FILE in edited
    assert count_passed(passing) > 2000, passing
    assert committed == "[no output]"
    assert source.read_text() == as_published
    assert ran.json["files_written"] == [BROKEN_FILE]
    assert {name for name in ran.json["files_changed"] if name[:5] != ".git/"} == {BROKEN_FILE}
    assert run_git(space, "status", "--porcelain") == ""
    assert run_git(space, "log", "--format=%s").split("\n")[:2] == ["mended", "a fault"]


def test_three_explorers_at_once_answer_with_places_that_exist(
    archive: Path, program: Program, engine: ScriptedEngine
) -> None:
    """Each searches and reads for its own question; the parent gets true places, in call order."""
    space = program.workspace
    unpack(archive, space)
    before = tree_state(space)
    calls = [Call("Task", {"agent": "explore", "prompt": question}) for question in QUESTIONS]
    engine.respond = lambda seen: (
        _parent(seen, calls) if "Task" in seen.tool_names else _child(seen)
    )
    ran = program.ask(engine.url, timeout=120)
    assert ran.code == 0, ran.err
    assert engine.most_active == 3
    assert [one["status"] for one in ran.json["subagents"]] == ["done"] * 3
    assert [one["actions"] for one in ran.json["subagents"]] == [4] * 3
    assert all(one["proven_dead"] for one in ran.json["subagents"])
    places = re.findall(r"found (src/click/\w+\.py):(\d+)", ran.json["result"])
    assert len(places) == 3, ran.json["result"]
    for (name, line), pattern in zip(places, QUESTIONS.values(), strict=True):
        assert re.search(pattern, (space / name).read_text().splitlines()[int(line) - 1])
    assert tree_state(space) == before


def _parent(seen: Seen, calls: list[Call]) -> Answer:
    """Ask all three in one turn, then repeat what they reported."""
    reports = [str(message["content"]) for message in seen.messages if message["role"] == "tool"]
    if not reports:
        return Answer(calls=tuple(calls))
    return Answer(text="\n".join(reports))


def _child(seen: Seen) -> Answer:
    """Search in three ways at once, read the place found, report it."""
    said = [str(message["content"]) for message in seen.messages if message["role"] == "tool"]
    question = next(one for one in QUESTIONS if one in str(seen.messages))
    pattern = QUESTIONS[question]
    if not said:
        calls = (
            Call("grep", {"pattern": pattern, "path": "src"}),
            Call("glob", {"pattern": "src/**/*.py"}),
            Call(
                "bash", {"command": f"git log --oneline | wc -l; rg -n '{pattern}' src | head -3"}
            ),
        )
        return Answer(calls=calls, delay_s=0.5)
    place = re.search(r"(src/click/\w+\.py):(\d+)", said[0])
    assert place, said
    if len(said) == 3:
        return Answer(calls=(Call("read", {"path": place[1], "offset": int(place[2])}),))
    return Answer(text=f"found {place[0]}")
