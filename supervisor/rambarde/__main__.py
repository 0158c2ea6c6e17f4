"""`python -m rambarde` and the installed command. Trusted side."""

from __future__ import annotations

import os
import resource
import sys

from rambarde import __version__


def fill_streams() -> None:
    """Open /dev/null in place of a standard stream that the caller closed.

    Else a file or a pipe of ours would get its number, and what is printed would land in it.
    """
    modes = {"stdin": "r", "stdout": "w", "stderr": "w"}
    for number, (name, mode) in enumerate(modes.items()):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def drop_unwritable() -> None:
    """Turn a standard stream that takes nothing any more to /dev/null.

    Else Python tries what is still buffered once more, fails, and exits with 120.
    """
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def print_version() -> None:
    """Print the version; exit 1 when nothing can be printed."""
    try:
        sys.stdout.write(f"rambarde {__version__}\n")
        sys.stdout.flush()
    except OSError as exc:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(f"rambarde: cannot write to standard output: {exc.strerror}")


def main() -> None:
    """Run the command line; the exit code says how it ended (errors.Exit)."""
    fill_streams()
    if sys.argv[1:] == ["--version"]:
        # Scripts ask this in loops: answered before a command line is built.
        print_version()
        return
    from rambarde.cli import run

    # A crash must not leave keys on the disk, the less so in the workspace, where a core lands.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    code = run(sys.argv[1:])
    drop_unwritable()
    sys.exit(code)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `python -m` puts the folder it is started in first: a workspace's modules would be ours.
        del sys.path[0]
    main()
