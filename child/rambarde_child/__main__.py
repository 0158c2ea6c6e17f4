"""Where the exec'ed zygote starts. Inside the sandbox.

Called by the bootstrap of the supervisor's children/zygote.py, which has put in place an import
finder for this package, the wire and msgspec, and nothing else beside the standard library.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
from typing import NoReturn

from . import syscalls, zygote


def main(orders_fd: int, supervisor_pid: int, entry: str) -> NoReturn:
    """Serve orders on a descriptor until the supervisor is gone.

    Args:
        orders_fd: the zygote's end of the SOCK_SEQPACKET pair.
        supervisor_pid: who must be the parent; another means that it died meanwhile.
        entry: the module whose `run(read_fd, write_fd)` is an agent's loop. It is imported here,
            before any fork.
    """
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL, step="pdeathsig")
    if os.getppid() != supervisor_pid:
        sys.exit(1)
    os.chdir("/")
    syscalls.set_title(b"rambarde: zygote")
    run = importlib.import_module(entry).run
    os.set_inheritable(orders_fd, False)
    zygote.Zygote(socket.socket(fileno=orders_fd), run).serve()
