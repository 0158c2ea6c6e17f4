"""Forking in tests."""

from __future__ import annotations

import os
import warnings


def fork() -> int:
    """`os.fork` without the warning of newer Pythons about threads.

    The copies made here only read, write, wait and exec; pytest's timer thread is not needed there.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
