"""`python -m rambarde` and the installed command. Trusted side."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; the exit code says how it ended (errors.Exit)."""
    from rambarde.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
