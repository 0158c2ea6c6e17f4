"""The supervisor judges a path by the same bytes that the child opens."""

from __future__ import annotations

import os

from hypothesis import example, given
from hypothesis import strategies as st

from rambarde.host.shown import shown_path
from rambarde.policy.ansi_c import decode_ansi_c
from rambarde_child.outcome import ToolError
from rambarde_child.tools import paths

_BODY = st.lists(
    st.sampled_from([*"\\\\\\\\xuUEcvnrtabef0179'é/. \n", "\\x", "\\u", "\U0001f600"]), max_size=12
).map("".join)


@given(body=_BODY)
@example(body=r"\U00000073ecret")
@example(body=r"\x")
@example(body="a\\")
@example(body=r"\400")
def test_quoted_path_means_the_same_on_both_sides(body: str) -> None:
    """Whatever stands in `$'…'`, a path the child accepts is the one the policy looked at."""
    try:
        opened = paths.parse_path(f"$'{body}'")
    except ToolError:
        return
    assert os.fsencode(decode_ansi_c(body)) == opened


@given(path=st.binary(min_size=1, max_size=40).filter(lambda path: b"\0" not in path))
def test_path_shown_by_the_supervisor_is_read_by_the_child(path: bytes) -> None:
    """A refusal of the supervisor names a path in a form that the next call can use."""
    shown = shown_path(path)
    # Of a name that itself looks quoted the supervisor shows the plain words.
    if not path.startswith(b"$'"):
        assert path == paths.parse_path(shown)
