"""An agent's loop for tests: evaluates what it is asked, from inside the sealed process.

A request is a 4-byte length and the text of a Python expression; the answer the same with the
repr of its value, or of the exception. It shows what an agent could do if its code were hostile.
"""

from __future__ import annotations

import os
import sys

LOADED = len(sys.modules)


def _read(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(fd, size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def run(read_fd: int, write_fd: int) -> None:
    """Answer until the other end closes."""
    while True:
        try:
            text = _read(read_fd, int.from_bytes(_read(read_fd, 4), "big")).decode()
        except EOFError:
            return
        try:
            answer = repr(eval(text, {"os": os, "sys": sys, "LOADED": LOADED}))
        except Exception as exc:
            answer = repr(exc)
        data = answer.encode()
        os.write(write_fd, len(data).to_bytes(4, "big") + data)
