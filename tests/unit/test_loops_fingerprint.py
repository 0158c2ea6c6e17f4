"""What makes two results the same."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rambarde.loops import canonical_arguments, fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ran in 0.32s", "ran in 12.5 s"),
        ("real 1m2.345s", "real 0m0.001s"),
        ("took 13 ms", "took 9 ms"),
        ("done at 2026-01-31T10:20:30.123Z", "done at 2027-11-01 09:00:00"),
        ("Tue Dec  1 02:39:42 UTC", "Wed Jan  7 12:00:01 UTC"),
        ("at 1767225600.5", "at 1798761600.25"),
        ("pid=4242 died", "pid=17 died"),
        ("[1] 4242", "[1] 977"),
        ("<Foo at 0x7f3a2c>", "<Foo at 0xffee10>"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id 00000000-1111-2222-3333-444444444444"),
        ("task t1a2b3c4d", "task tdeadbee0"),
        ("wrote /tmp/tmpab12cd/x", "wrote /tmp/tmpzz99qq/x"),
        ("under /tmp/pytest-of-u/", "under /tmp/tmp.Xa81KkQp/"),
    ],
)
def test_volatile_parts_do_not_count(one: str, other: str) -> None:
    """Times, numbers of processes, random ids and temporary names differ by themselves."""
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("12 passed", "13 passed"),
        ("line 10: error", "line 11: error"),
        ("progress 41 %", "progress 42 %"),
        ("commit " + "a1" * 20, "commit " + "b2" * 20),
        ("sha256 " + "a1" * 32, "sha256 " + "b2" * 32),
        ("feedface", "feedbeef"),
        ("", "\n"),
    ],
)
def test_meaningful_parts_count(one: str, other: str) -> None:
    """Counters, positions and hashes of contents are how progress shows."""
    assert fingerprint(one) != fingerprint(other)


def test_results_that_differ_far_behind_any_cut_are_different() -> None:
    """The whole result is taken, not what the model is shown of it."""
    long = "x" * 3_000_000
    assert fingerprint(long + "a") != fingerprint(long + "b")


def test_text_and_its_bytes_have_one_fingerprint() -> None:
    """It does not matter on which side the result was decoded; broken text is no error."""
    assert fingerprint("é 3 µs") == fingerprint("é 7 µs".encode())
    assert len(fingerprint("\udcff")) == len(fingerprint(b"\xff")) == 64


def test_fingerprint_of_a_large_hostile_result_is_quick() -> None:
    """No text makes the masks backtrack without end."""
    started_s = time.process_time()
    for text in (
        "a1" * 500_000,
        "1" * 1_000_000,
        "/tmp/" * 200_000,
        "0x" * 500_000,
        "1-" * 500_000,
    ):
        fingerprint(text)
    assert time.process_time() - started_s < 2


@given(st.binary(max_size=200))
def test_fingerprint_takes_any_bytes(data: bytes) -> None:
    """Every result has one, always the same."""
    assert fingerprint(data) == fingerprint(bytes(data))


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"nonsense"])
def test_arguments_that_are_no_json_keep_their_spelling(text: bytes) -> None:
    """What the model broke is compared as it stands."""
    assert canonical_arguments(text) == canonical_arguments(b" " + text + b"\n")


def test_arguments_that_differ_in_more_than_spelling_differ() -> None:
    """Inner white space, case, numbers and list order carry meaning."""
    texts = [
        b'{"command":"a b"}',
        b'{"command":"a  b"}',
        b'{"command":"A b"}',
        b'{"list":[1,2]}',
        b'{"list":[2,1]}',
        b'{"list":["1","2"]}',
    ]
    assert len({canonical_arguments(text) for text in texts}) == len(texts)


def test_path_of_the_workspace_itself_is_a_dot() -> None:
    """Absolute, relative and empty-handed ways to name the root are one."""
    spelled = {
        canonical_arguments(b'{"path":"%s"}' % path, workspace="/w/x")
        for path in (b".", b"./", b"/w/x", b"/w/x/", b"/w/x/a/..")
    }
    assert len(spelled) == 1
    assert canonical_arguments(b'{"path":"/w/xy"}', workspace="/w/x") not in spelled
