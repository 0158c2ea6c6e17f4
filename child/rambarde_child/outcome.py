"""What a tool gives back: an outcome, or a refusal in words. Inside the sandbox. No I/O."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one call.

    Fields: `code` is "" or a machine code; `fingerprint` is the SHA-256 (hex) of the result before
    it was cut; `elided_bytes` counts the UTF-8 bytes of the text that were cut off.
    """

    ok: bool
    code: str
    text: str
    fingerprint: str
    elided_bytes: int = 0


class ToolError(Exception):
    """A tool will not or cannot do what the call asks; `text` is what the model is told."""

    def __init__(self, code: str, text: str, *, missing: bool = False) -> None:
        """`missing`: it is because nothing is there, which is no fault for a new file."""
        super().__init__(text)
        self.code = code
        self.text = text
        self.missing = missing


def done(
    text: str, most_bytes: int, *, ok: bool = True, code: str = "", fingerprint: str = ""
) -> Outcome:
    """Return an outcome whose text is cut to `most_bytes` of UTF-8, and says so.

    Without a `fingerprint` of something larger, it is that of the text before the cut.
    """
    # A lone surrogate can come from an escape in the model's JSON and has no UTF-8 form.
    data = text.encode("utf-8", "replace")
    fingerprint = fingerprint or sha256(data).hexdigest()
    if len(data) <= most_bytes:
        return Outcome(ok, code, data.decode(), fingerprint)
    kept = data[:most_bytes].decode("utf-8", "ignore")
    elided = len(data) - len(kept.encode())
    return Outcome(ok, code, f"{kept}\n[{elided} bytes left out]", fingerprint, elided)


_ADVICE = {
    errno.ENOENT: ("not_found", "there is nothing at this path; look with glob"),
    errno.ENOTDIR: ("not_found", "a part of the path before its end is not a folder"),
    errno.ELOOP: ("changed", "it turned into a link while it was opened; try once more"),
    errno.EACCES: ("denied", "this agent may not do that here; another path is needed"),
    errno.EPERM: ("denied", "this agent may not do that here; another path is needed"),
    errno.EROFS: ("denied", "it is read-only for this agent; another path is needed"),
    errno.EBUSY: ("denied", "it is protected for this agent; another path is needed"),
    errno.ENAMETOOLONG: ("bad_path", "at most 255 bytes a name and 4095 a path"),
    errno.ENOSPC: ("no_space", "the disk is full"),
    errno.EDQUOT: ("no_space", "the disk quota is used up"),
    errno.EFBIG: ("no_space", "longer than a file may be here"),
    errno.ENXIO: ("not_regular", "not a regular file"),
}


def error_of(exc: OSError, shown: str) -> ToolError:
    """Put a failed system call into words: the path, the errno and what to do."""
    code, advice = _ADVICE.get(exc.errno or 0, ("tool_failed", "the call failed"))
    name = errno.errorcode.get(exc.errno or 0, "no errno")
    text = f"{shown}: {advice} ({name}: {os.strerror(exc.errno or 0)})"
    return ToolError(code, text, missing=exc.errno == errno.ENOENT)
