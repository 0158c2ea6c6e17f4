"""`python -m rambarde` and the installed command. Trusted side."""

from __future__ import annotations

import os
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


def main() -> None:
    """Run the command line; the exit code says how it ended (errors.Exit)."""
    fill_streams()
    if sys.argv[1:] == ["--version"]:
        # Scripts ask this in loops: answered before a command line is built.
        sys.stdout.write(f"rambarde {__version__}\n")
        return
    from rambarde.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `python -m` puts the folder it is started in first: a workspace's modules would be ours.
        del sys.path[0]
    main()
