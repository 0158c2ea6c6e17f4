"""Progress lines of a one-shot run."""

from __future__ import annotations

import io

from rambarde.events import Event
from rambarde.oneshot.screen import Screen


def test_a_call_that_failed_is_named_with_what_it_was_about() -> None:
    """One line says who, which tool, on what, and the code; nothing drives the terminal."""
    out = io.StringIO()
    screen = Screen(out, live=False, color=False)
    data = {"tool": "read", "ok": False, "code": "denied", "shown": '{"path":"a\x1b[2Jb"}'}
    screen(Event("tool/settled", "s", "root", data))
    assert out.getvalue() == 'root: read {"path":"a\\x1b[2Jb"} refused or failed: denied\n'
