"""Canaries in every place a secret is known from are found in no place it could leave by."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path

from support.probes import outside
from support.program import Program
from support.scripted import ScriptedEngine
from support.scripted_answers import Answer, Call

KEY = "engine-Qw7xkey-canary-0123456789"
PASSWORD = "pa55/Word+canary=&<x>"
DOTENV = "dotenv-canary-9f8e7d6c5b4a"
ONE_LINE = "oneline-canary-112233445566"
CANARIES = (KEY, PASSWORD, DOTENV, ONE_LINE)
ENVIRONMENT = {"OPENAI_API_KEY": KEY, "MY_PASSWORD": PASSWORD}


def _fill(workspace: Path) -> None:
    """Put secrets into files that are hidden, and copies of them into one that is not."""
    (workspace / ".env").write_text(f"# local\nPORT=8080\nexport API_TOKEN='{DOTENV}'\n")
    (workspace / "sub").mkdir()
    (workspace / "sub" / ".env").write_text(f"TOKEN={ONE_LINE}\n")
    (workspace / "copy.txt").write_text("".join(f"seen: {one}\n" for one in CANARIES))


def _spellings(secret: str) -> set[str]:
    """Return a secret as it is and as JSON, URL and base64 write it."""
    script = (
        "import base64,json,sys,urllib.parse as u; s=sys.argv[1];"
        "print('\\n'.join({s, json.dumps(s)[1:-1], u.quote(s, safe=''),"
        " base64.b64encode(s.encode()).decode().rstrip('=')[:-2], s.encode().hex()}))"
    )
    done = subprocess.run(
        ["python3", "-c", script, secret], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split("\n")) - {""}


def _found(text: str) -> list[str]:
    return [one for secret in CANARIES for one in _spellings(secret) if one in text]


def _record(program: Program) -> str:
    """Return every byte below the state folder, as text."""
    files = [path for path in program.state.rglob("*") if path.is_file()]
    assert files
    return "".join(path.read_bytes().decode("latin-1") for path in files)


SCRIPT = """\
cat copy.txt; cat .env sub/.env; env
for pid in /proc/[0-9]*; do tr '\\0' '\\n' < $pid/environ; done
base64 -w0 copy.txt; xxd -p copy.txt 2>/dev/null | tr -d '\\n'
while IFS= read -r line; do printf '%s' "$line" | base64 -w0; echo; done < copy.txt
python3 -c "
import json, urllib.parse
text = open('copy.txt').read()
print(json.dumps(text), urllib.parse.quote(text, safe=''))
print(' '.join(line.encode().hex() for line in text.split()))"
cat copy.txt >&2; cp copy.txt again.txt
"""


def test_no_canary_leaves_by_a_tool_a_text_a_call_an_error_or_the_record(
    program: Program, engine: ScriptedEngine
) -> None:
    """One session does all that could carry one out; only the Authorization header holds a key."""
    _fill(program.workspace)
    seen = outside(SCRIPT + "rm again.txt", program.workspace, ENVIRONMENT)
    assert set(CANARIES) <= set(_found(seen)), "the script would show each of them"
    child = engine.when(no_tool="Task")
    child.call("read", path="copy.txt")
    child.say(f"It holds {DOTENV} and {PASSWORD}.")
    engine.call("bash", command=SCRIPT)
    engine.call("grep", pattern="seen", path="copy.txt")
    engine.call("read", path="copy.txt")
    engine.call("bash", command=f"echo {DOTENV} {KEY}; exit 3")
    engine.call("edit", path="copy.txt", old_string=ONE_LINE, new_string="none")
    engine.call("Task", agent="explore", prompt=f"Is {KEY} in copy.txt?")
    engine.calls(Call("nosuch", {"x": PASSWORD}), text=f"I see {PASSWORD} and {ONE_LINE}")
    engine.say(f"The key is {KEY}, the password {PASSWORD}, then {DOTENV}, {ONE_LINE}.")
    ran = program.ask(engine.url, prompt=f"Use {PASSWORD} and {DOTENV}.", env=ENVIRONMENT)
    assert ran.code == 0, ran.err
    assert ran.json["status"] == "done"
    assert ran.json["result"].count("[redacted:") == 4
    assert len(engine.requests) == 10
    for seen_request in engine.requests:
        assert seen_request.headers["authorization"] == f"Bearer {KEY}"
    sent = "".join(json.dumps(one.body, ensure_ascii=False) for one in engine.requests)
    assert "[redacted:" in sent
    assert _found(sent) == []
    assert _found(ran.out) == []
    assert _found(ran.err) == []
    assert _found(_record(program)) == []
    shown = program("sessions", "show", ran.json["session_id"], env=ENVIRONMENT)
    assert "[redacted:" in shown.out
    assert _found(shown.out) == []
    assert ONE_LINE in (program.workspace / "again.txt").read_text(), "files are not changed by it"


def test_a_secret_cut_by_any_border_of_pieces_is_replaced_whole(
    program: Program, engine: ScriptedEngine
) -> None:
    """Byte by byte, across the borders of reads, in the model's own deltas, in exec's stream."""
    _fill(program.workspace)
    slow = (
        "import sys, time\nfor byte in open('copy.txt', 'rb').read():\n"
        "    sys.stdout.buffer.write(bytes([byte])); sys.stdout.flush()\n"
    )
    (program.workspace / "slow.py").write_text(slow)
    border = "for n in 65500 65510 65520 65530; do head -c $n /dev/zero | tr '\\0' x; cat copy.txt"
    script = f"python3 slow.py; {border}; done"
    engine.call("bash", command="python3 slow.py")
    engine.call("bash", command=f"{border}; done | tail -c 4000")
    engine.answers.append(Answer(text=f"So it is {KEY} and {PASSWORD}, done.", chunk_chars=1))
    ran = program.ask(engine.url, "--output-format", "stream-json", env=ENVIRONMENT, prompt="go")
    assert ran.code == 0, ran.err
    assert "[redacted:" in ran.out
    assert _found(ran.out + ran.err) == []
    sent = "".join(json.dumps(one.body, ensure_ascii=False) for one in engine.requests)
    assert sent.count("[redacted:MY_PASSWORD]") >= 2
    assert _found(sent) == []
    executed = program("exec", "--", "bash", "-c", script, env=ENVIRONMENT)
    assert executed.code == 0
    assert executed.out.count("[redacted:") == 5 * len(CANARIES)
    assert _found(executed.out) == []


def test_a_key_from_a_file_or_a_descriptor_is_used_and_told_nowhere(
    program: Program, engine: ScriptedEngine
) -> None:
    """The header holds it; a command inside finds it neither in its files nor its descriptors."""
    path = program.home / "key"
    path.write_text(KEY + "\n")
    look = f"cat {path}; ls -l /proc/self/fd; for f in /proc/self/fd/[3-9]; do cat <$f; done; env"
    answers = [Answer(calls=(Call("bash", {"command": look}),)), Answer(text="ok")]
    engine.answers += answers
    named = program.ask(engine.url, "--key-file", str(path))
    assert named.code == 0, named.err
    engine.answers += answers
    read_end, write_end = os.pipe()
    os.write(write_end, KEY.encode())
    os.close(write_end)
    process = program.start(
        "-p", "go", "--engine", engine.url, "--model", "m", "--json",
        "--key-file", str(read_end), pass_fds=[read_end],
    )  # fmt: skip
    os.close(read_end)
    out, err = process.communicate(timeout=50)
    assert process.returncode == 0, err
    assert len(engine.requests) == 4
    assert {one.headers["authorization"] for one in engine.requests} == {f"Bearer {KEY}"}
    bodies = "".join(json.dumps(one.body) for one in engine.requests)
    assert "No such file" in engine.requests[1].last
    assert _found(bodies + named.out + named.err + out.decode() + err.decode()) == []
    assert _found(_record(program)) == []


def test_a_supervisor_that_crashes_leaves_no_image_of_its_memory(
    program: Program, engine: ScriptedEngine
) -> None:
    """Its limit of core files is zero, though its caller's was not."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    engine.answers.append(Answer(text="late", delay_s=30))

    def unlimited() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))

    process = program.start(
        "-p", "go", "--engine", engine.url, "--model", "m", env=ENVIRONMENT, preexec_fn=unlimited
    )
    assert b"started" in process.stderr.readline()
    assert resource.prlimit(process.pid, resource.RLIMIT_CORE)[0] == 0
    process.send_signal(6)
    process.communicate(timeout=20)
    assert process.returncode == -6
    assert list(program.workspace.iterdir()) == []
