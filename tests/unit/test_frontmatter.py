"""The strict head of agent files."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rambarde.errors import PolicyError
from rambarde.frontmatter import MAX_DEPTH, MAX_FILE_BYTES, MAX_HEAD_BYTES, parse_front


def head(text):
    return parse_front(f"---\n{text}\n---\nbody\n".encode(), "a.md")


def test_values_are_yaml_1_2():
    """Words of older YAML and dates are texts; quotes make texts."""
    values = head(
        "a: no\nb: on\nc: 2024-01-31\nd: true\ne: 012\nf: 1.5\ng: '1'\nh: ~\ni: [x, 'y']\nj: |\n  z"
    ).values
    expected = {"a": "no", "b": "on", "c": "2024-01-31", "d": True, "e": 12, "f": 1.5, "g": "1",
                "h": None, "i": ["x", "y"], "j": "z\n"}  # fmt: skip
    assert expected == values


def test_lines_and_body_are_kept():
    """Each key has its line of the file, and the body is all that follows the head."""
    front = head("a: 1\n\nb:\n  c: 2")
    assert front.lines == {"a": 2, "b": 4}
    assert front.body == "body\n"


def test_byte_order_mark_and_crlf_are_accepted():
    """Files of other systems load."""
    assert parse_front(b"\xef\xbb\xbf---\r\na: 1\r\n---\r\nx\r\n", "a.md").values == {"a": 1}


def test_plain_text_with_a_colon_is_taken_and_told():
    """`description: Use this when: ...` is read as text, with a warning at its line."""
    front = head('name: x\ndescription: Use when: a "b" \\c\ntools: [read]')
    assert front.values["description"] == 'Use when: a "b" \\c'
    assert [(w.line, "plain text" in w.text) for w in front.warnings] == [(3, True)]
    assert head("a: b").warnings == ()


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("a: 1\na: 2", 3, "twice (line 2)"),
        ("x: {a: 1, a: 2}", 2, "twice"),
        ("a: &x 1", 2, "anchor"),
        ("a: 1\nb: *x", 3, "alias"),
        ("a: !!python/object/apply:os.system [x]", 2, "tag"),
        ("a: !x 1", 2, "tag"),
        ("1: a", 2, "no text"),
        ("? [a]\n: b", 2, "no text"),
        ("- a", 2, "no list of"),
        ("text", 2, "no list of"),
        ("a: [", 3, "no YAML"),
        ("a: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH, 2, "deeper than"),
        ("a: 1\n...\nb: 2", 4, "no YAML"),
        ("a: \x07", 2, "control characters"),
        ("a: 1\ndescription: x: y\na: 2", 4, "twice (line 2)"),
    ],
)
def test_head_that_is_not_taken_is_told_with_its_line(text, line, told):
    """Each construct that could surprise is refused, at its line."""
    with pytest.raises(PolicyError) as caught:
        head(text)
    (fault,) = caught.value.faults
    assert told in fault.text
    assert (fault.path, fault.line) == ("a.md", line)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "no head"),
        (b"a: 1\n", "no head"),
        (b"---\na: 1\n", "no end"),
        (b"---\na: \0\n---\n", "a.md:2: holds a NUL"),
        (b"---\na: 1\nb: \xe9\n---\n", "a.md:3: is not UTF-8"),
        (b"---\na: " + b"x" * MAX_HEAD_BYTES + b"\n---\n", "larger than"),
        (b"---\n---\n" + b"x" * MAX_FILE_BYTES, "larger than"),
    ],
)
def test_file_that_is_not_taken_is_told(data, told):
    """Broken, endless and oversized files are refused before anything is built from them."""
    with pytest.raises(PolicyError, match=told):
        parse_front(data, "a.md")


def test_bomb_of_aliases_is_refused_at_its_first_anchor():
    """Billions of laughs cost nothing."""
    bomb = "a: &a [x]\n" + "\n".join(f"b{n}: &b{n} [*a, *a]" for n in range(999))
    with pytest.raises(PolicyError, match=r"a\.md:2: holds an anchor"):
        head(bomb)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab:-?&*!|>'\"{}[],#% \n\t", max_size=40))
def test_any_head_is_read_or_refused(text):
    """No head raises anything but a fault with a line."""
    try:
        front = head(text)
    except PolicyError as refused:
        lines = [fault.line for fault in refused.faults]
    else:
        lines = list(front.lines.values())
    assert all(1 <= line <= text.count("\n") + 3 for line in lines)
