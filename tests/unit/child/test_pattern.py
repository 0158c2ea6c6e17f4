"""Patterns and ignore rules: what matches, and that nothing blows up."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rambarde_child.tools.ignore import IgnoreRules, is_ignored
from rambarde_child.tools.pattern import compile_pattern, expand_braces


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        (b"*.py", b"a.py", True),
        (b"*.py", b"d/a.py", False),
        (b"**/*.py", b"a.py", True),
        (b"**/*.py", b"d/e/a.py", True),
        (b"a/**/b", b"a/b", True),
        (b"a/**/b", b"a/x/y/b", True),
        (b"a/**/b", b"ax/b", False),
        (b"a/**", b"a/x/y", True),
        (b"a/**", b"a", False),
        (b"**/a/**/b/**/c", b"a/b/a/x/b/c", True),
        (b"**/x/*/c", b"x/x/b/c", True),
        (b"**/x/y/**/z", b"x/x/y/z", True),
        (b"a?c", b"abc", True),
        (b"a?c", b"a/c", False),
        (b"[a-c]x", b"bx", True),
        (b"[!a-c]x", b"bx", False),
        (b"[^a]", b"/", False),
        (b"[]]", b"]", True),
        (b"[!]]", b"]", False),
        (b"[a", b"[a", True),
        (rb"[\]]", b"]", True),
        (rb"\*", b"*", True),
        (rb"\*", b"a", False),
        (b"*a*b*c", b"xaybzc", True),
        (b"*a*a", b"a", False),
        (b"*ab*b", b"aab", False),
        (b"*ab*b", b"aabb", True),
        (b"*.*", b"a.b", True),
        (b"a**b", b"axxb", True),
        (b"\xff*", b"\xffx", True),
        (b"a\nb", b"a\nb", True),
        (b"a", b"a\n", False),
    ],
)
def test_pattern_matches(pattern: bytes, path: bytes, matches: bool) -> None:
    """Stars stay within a name, `**` crosses folders, sets and escapes are as in glob(7)."""
    assert (compile_pattern(pattern).match(path) is not None) == matches


def _plainly(pattern: bytes, name: bytes) -> bool:
    """Match one name by definition, trying every length of each star."""
    if not pattern:
        return not name
    if pattern[:1] == b"*":
        return any(_plainly(pattern[1:], name[at:]) for at in range(len(name) + 1))
    return name[:1] == pattern[:1] and _plainly(pattern[1:], name[1:])


_TEXT = st.lists(st.sampled_from([b"a", b"b"]), max_size=7).map(b"".join)
_PATTERN = st.lists(st.sampled_from([b"a", b"b", b"*"]), min_size=1, max_size=7).map(b"".join)


@given(pattern=_PATTERN.filter(lambda pattern: pattern != b"**"), name=_TEXT)
def test_atomic_stars_match_as_plain_ones(pattern: bytes, name: bytes) -> None:
    """Never trying another place for what follows a star loses no match."""
    assert (compile_pattern(pattern).match(name) is not None) == _plainly(pattern, name)


def _plainly_parts(pattern: list[bytes], parts: list[bytes]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == b"**":
        if len(pattern) == 1:
            return bool(parts)
        return any(_plainly_parts(pattern[1:], parts[at:]) for at in range(len(parts) + 1))
    return bool(parts) and pattern[0] in (parts[0], b"*") and _plainly_parts(pattern[1:], parts[1:])


@given(
    pattern=st.lists(st.sampled_from([b"a", b"b", b"*", b"**"]), min_size=1, max_size=7),
    parts=st.lists(st.sampled_from([b"a", b"b"]), min_size=1, max_size=7),
)
def test_folders_between_double_stars_match_as_plain_ones(
    pattern: list[bytes], parts: list[bytes]
) -> None:
    """The same for whole names between `**`."""
    # Two `**` at the end are one by definition.
    while pattern[-2:] == [b"**", b"**"]:
        pattern = pattern[:-1]
    found = compile_pattern(b"/".join(pattern)).match(b"/".join(parts)) is not None
    assert found == _plainly_parts(pattern, parts)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (b"*a" * 30 + b"x", b"a" * 255),
        (b"**/" * 30 + b"x", b"a/" * 100 + b"b"),
        (b"**/a/" * 20 + b"x", b"a/" * 100 + b"b"),
        (b"**/*a*/" * 20 + b"x", b"aa/" * 100 + b"b"),
    ],
)
def test_pattern_cannot_blow_up(pattern: bytes, path: bytes) -> None:
    """Patterns that take ages by trying everything take milliseconds."""
    compiled = compile_pattern(pattern)
    started = time.monotonic()
    assert compiled.match(path) is None
    assert time.monotonic() - started < 5


def test_braces_stand_for_each_alternative() -> None:
    """Nested ones too; without a comma they are themselves; the number is bounded."""
    assert sorted(expand_braces(b"*.{a,b{c,d}}")) == [b"*.a", b"*.bc", b"*.bd"]
    assert expand_braces(b"{a}") == [b"{a}"]
    assert len(expand_braces(b"{a,b}" * 20)) <= 64


def _ignored(rules: bytes, path: bytes, *, is_folder: bool = False) -> bool:
    return is_ignored([IgnoreRules(rules, b"")], path, is_folder=is_folder)


@pytest.mark.parametrize(
    ("rules", "path", "is_folder", "ignored"),
    [
        (b"*.o", b"d/a.o", False, True),
        (b"/*.o", b"d/a.o", False, False),
        (b"/*.o", b"a.o", False, True),
        (b"d/a", b"x/d/a", False, False),
        (b"build/", b"x/build", True, True),
        (b"build/", b"build", False, False),
        (b"*.o\n!keep.o", b"keep.o", False, False),
        (b"!keep.o\n*.o", b"keep.o", False, True),
        (b"# a\n\n\\#b", b"#b", False, True),
        (b"\\!b", b"!b", False, True),
        (b"a  ", b"a", False, True),
        (b"a\\  ", b"a ", False, True),
        (b"a\r\nb\r\n", b"a", False, True),
        (b"\xef\xbb\xbfa", b"a", False, True),
        (b"a/**/b", b"a/x/b", False, True),
        (b"**/a/b", b"x/a/b", False, True),
        (b"/", b"a", True, False),
        (b"[z-a]\nb", b"b", False, True),
        (b"a[\nb", b"b", False, True),
    ],
)
def test_ignore_rule(rules: bytes, path: bytes, is_folder: bool, ignored: bool) -> None:
    """Rules mean what gitignore(5) says; one that is no pattern is passed over."""
    assert ignored == _ignored(rules, path, is_folder=is_folder)


def test_deeper_ignore_file_wins_and_starts_at_its_folder() -> None:
    """A rule below takes back one above; its anchored paths start at its own folder."""
    layers = [IgnoreRules(b"*.o\n", b""), IgnoreRules(b"!a.o\n/b\n", b"d/")]
    assert not is_ignored(layers, b"d/a.o", is_folder=False)
    assert is_ignored(layers, b"d/c.o", is_folder=False)
    assert is_ignored(layers, b"d/b", is_folder=False)
    assert not is_ignored(layers, b"d/e/b", is_folder=False)
