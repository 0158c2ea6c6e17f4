"""`python -m rambarde` and the installed command. Trusted side."""

from __future__ import annotations

import sys

from rambarde import __version__


def main() -> None:
    """Run the command line; the exit code says how it ended (errors.Exit)."""
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
