"""Many short runs of the program from one warm process: `python many_runs.py FOLDER`.

Reads a JSON list of argument lists on standard input. Each is run by a fork of its own through the
same entry as the installed command, with files for its output; prints a list of
`[exit code, stdout, stderr]`. Only for runs that end before anything of theirs is started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from support.program import Program, Ran


def run_many(program: Program, calls: Sequence[Sequence[str]]) -> list[Ran]:
    """Run each call in the program's home and workspace, one after the other."""
    done = subprocess.run(
        [sys.executable, "-m", "support.many_runs", str(program.base)],
        cwd=program.workspace,
        env=program.env({"PYTHONPATH": os.pathsep.join(sys.path)}),
        input=json.dumps([list(one) for one in calls]).encode(),
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [Ran(*one) for one in json.loads(done.stdout)]


def _run(arguments: Sequence[str], folder: str) -> tuple[int, str, str]:
    from rambarde import cli

    paths = [os.path.join(folder, name) for name in ("stdout", "stderr")]
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in enumerate(paths, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        code = 99
        try:
            code = cli.run(arguments)
            sys.stdout.flush()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    texts = []
    for path in paths:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            texts.append(file.read())
    return code, texts[0], texts[1]


def main() -> None:
    """Load what the commands load, then run each call."""
    import rambarde.app.execute
    import rambarde.app.look
    import rambarde.app.run
    import rambarde.oneshot.screen
    import rambarde.oneshot.stream_json  # noqa: F401 - loaded before the forks

    calls = json.load(sys.stdin)
    print(json.dumps([_run(one, sys.argv[1]) for one in calls]))


if __name__ == "__main__":
    main()
