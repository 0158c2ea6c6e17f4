"""Bounded capture and harmless display."""

from __future__ import annotations

import hashlib
import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rambarde.children.output import HOLD_BYTES, LINE_CHARS, Capture, Cleaner, clean, visible
from rambarde.redact import Redactor

_SECRET = "hunter2-correct-horse-battery"


def _kept(data: bytes, shown: int, step: int = 7) -> Capture:
    capture = Capture(shown)
    for at in range(0, len(data), step):
        capture.feed(data[at : at + step])
    return capture


@given(st.binary(max_size=400), st.integers(2, 300), st.integers(1, 90))
def test_head_tail_and_elided_count_add_up(data: bytes, shown: int, step: int) -> None:
    """What is shown is the head and the tail; what is not is counted to the byte."""
    text = bytes(byte % 26 + 97 for byte in data)
    output = _kept(text, shown, step).finish()
    assert output.total_bytes == len(text)
    assert output.sha256 == hashlib.sha256(text).hexdigest()
    assert len(output.head) + output.elided_bytes + len(output.tail) == len(text)
    whole = text.decode()
    assert whole.startswith(output.head)
    assert whole.endswith(output.tail)
    if len(text) <= shown:
        assert output.text == whole
    else:
        assert len(output.head) + len(output.tail) == shown


def test_gap_is_named_between_head_and_tail() -> None:
    """The reader sees where something is missing and how much."""
    output = _kept(b"a" * 10 + b"b" * 10_000 + b"c" * 10, 20).finish()
    assert output.text == "aaaaaaaaaa\n…[10000 bytes elided]…\ncccccccccc"


def test_characters_are_not_cut_at_the_gap() -> None:
    """An edge inside a character moves off it, and the count says so."""
    data = ("é" * 1000).encode()
    output = _kept(data, 21).finish()
    assert output.head == "é" * 5
    assert output.tail == "é" * 5
    assert output.elided_bytes == 2000 - 20


def test_capture_does_not_grow() -> None:
    """A hundred times what is shown costs what is shown."""
    capture = Capture(1000)
    for _ in range(100):
        capture.feed(memoryview(b"x" * 1000))
    assert len(capture._head) + len(capture._ring) == 1000


@pytest.mark.parametrize("size", [90, 105, 130, 2000, 40_000])
@pytest.mark.parametrize(
    "at", [0, 20, 25, 30, 40, 45, 49, 50, 55, 60, -110, -80, -70, -60, -51, -30]
)
def test_secret_is_shown_nowhere_wherever_it_stands(size: int, at: int) -> None:
    """Neither an edge of the head nor of the tail lets a part of a secret through."""
    data = bytearray(b". " * (size // 2))
    at = max(0, at % size)
    data[at : at + len(_SECRET)] = _SECRET.encode()
    capture = Capture(100, Redactor({"KEY": _SECRET}).stream)
    capture.feed(bytes(data))
    output = capture.finish()
    for size in (8, len(_SECRET)):
        for start in range(len(_SECRET) - size + 1):
            assert _SECRET[start : start + size] not in output.text


def test_redacted_capture_without_secrets_counts_exactly() -> None:
    """The redactor's caution at the edges does not upset the count."""
    data = b"".join(b"line %d sk-\n" % number for number in range(5000))
    capture = Capture(1000, Redactor({"KEY": _SECRET}).stream)
    capture.feed(data)
    output = capture.finish()
    assert len(output.head) + len(output.tail) + output.elided_bytes == len(data)
    assert len(data) > 2 * HOLD_BYTES


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]52;c;ZXZpbA==\x07after", "after"),
        ("\x1b]0;title\x1b\\after", "after"),
        ("\x1bP+q544e\x1b\\after", "after"),
        ("\x9b31mred\x9d0;t\x9cend", "redend"),
        ("\x1b[6n\x1b[201~rm -rf ~\n", "rm -rf ~\n"),
        ("\x1b(B\x1b7\x1bc.", "."),
        ("\x1b]0;never ended\nnext line", "0;never ended\nnext line"),
        ("10%\r55%\r100%\n", "100%\n"),
        ("long line\rshort\n", "shortline\n"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("bell\x07 nul\x00 del\x7f esc\x1b", "bell\\x07 nul\\x00 del\\x7f esc\\x1b"),
        ("a\u202eb\u2066c\U000e0041", "a\\u202eb\\u2066c\\U000e0041"),
        ("famille \U0001f469\u200d\U0001f467 été", "famille \U0001f469\u200d\U0001f467 été"),
    ],
)
def test_text_is_shown_as_a_terminal_would_without_its_powers(raw: str, shown: str) -> None:
    """Sequences go, carriage returns are applied, other control characters are written out."""
    assert clean(raw) == shown


def test_visible_removes_nothing() -> None:
    """A name that tries to move the cursor is shown as it is, on one line."""
    assert visible("\x1b]0;x\x07\n\r\tname\udce9") == "\\x1b]0;x\\x07\\n\\r\tname\\xe9"
    assert visible("été") == "été"


@given(st.text())
def test_nothing_shown_can_drive_a_terminal(text: str) -> None:
    """No control character but tab and line break is left, whatever went in."""
    for shown in (clean(text), visible(text)):
        assert not [
            char
            for char in shown
            if (char < " " or "\x7f" <= char <= "\x9f") and char not in "\t\n"
        ]
        shown.encode()
    assert "\n" not in visible(text)


_PIECES = st.lists(
    st.sampled_from(
        ["a", "é", "\n", "\r", "\r\n", "\x1b[3", "1m", "\x1b]0;", "\x07", "\x1b", "\\", "\x9b", "%"]
    ),
    max_size=40,
)


@given(_PIECES, st.lists(st.integers(0, 120), max_size=8))
def test_cleaning_in_pieces_equals_cleaning_the_whole(parts: list[str], cuts: list[int]) -> None:
    """Wherever the kernel cuts the output, what is shown is the same."""
    data = "".join(parts).encode()
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    cleaner = Cleaner()
    pieces = [cleaner.feed(data[a:b]) for a, b in itertools.pairwise(edges)]
    assert "".join(pieces) + cleaner.finish() == clean(data.decode())


def test_invalid_utf8_is_replaced_also_across_pieces() -> None:
    """A byte that is no text is seen as such; a character cut by the kernel is not."""
    cleaner = Cleaner()
    assert (
        cleaner.feed(b"caf\xc3") + cleaner.feed(b"\xa9\n\xff") + cleaner.finish() == "café\n\ufffd"
    )


def test_line_without_an_end_is_shown_in_pieces() -> None:
    """A line that never ends is not kept for ever, and a sequence at its cut is not torn."""
    cleaner = Cleaner()
    first = cleaner.feed(b"x" * LINE_CHARS + b"\x1b[3")
    assert first == "x" * LINE_CHARS
    assert cleaner.feed(b"1my\n") == "y\n"


@pytest.mark.parametrize(
    "unit", ["\x1b]", "\x9d", "\x1b[", "\x1b[0", "\r", "\x1bP\r", "a\rbb\r", "\x1b"]
)
def test_cleaning_is_linear(unit: str) -> None:
    """No pattern of output makes cleaning slow."""
    text = unit * (200_000 // len(unit))
    begun = time.process_time()
    clean(text)
    cleaner = Cleaner()
    for at in range(0, len(text), 4096):
        cleaner.feed(text[at : at + 4096].encode())
    cleaner.finish()
    assert time.process_time() - begun < 2
