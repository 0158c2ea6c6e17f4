"""Policy files: what loads, and how faults are told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rambarde.errors import PolicyError
from rambarde.policy.load import load_policies
from rambarde.policy.source import UnreadableError, parse_toml, shipped_folder
from support.policies import SHIPPED

FILES = ("limits.toml", "masks.toml", "protected.toml", "catastrophic.toml")


@pytest.fixture
def folder(tmp_path):
    """A copy of the shipped policies that a test may spoil."""
    for name in FILES:
        shutil.copy(Path(shipped_folder(), name), tmp_path / name)
    (tmp_path / "sandbox").mkdir()
    shutil.copy(Path(shipped_folder(), "sandbox/read-only.toml"), tmp_path / "sandbox")
    return tmp_path


def faults(folder):
    with pytest.raises(PolicyError) as caught:
        load_policies(str(folder))
    return [str(fault) for fault in caught.value.faults]


def spoil(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return text[: text.index(old)].count("\n") + 1


@pytest.mark.parametrize("value", ["0", "-5", "1.5", '"unlimited"', "true", "inf"])
def test_limit_that_is_no_bound_is_told_with_its_line(folder, value):
    """A limit of zero, below zero, in parts or in words is refused with file and line."""
    line = spoil(
        folder / "limits.toml",
        'value = 512\nunit = "processes"',
        f'value = {value}\nunit = "processes"',
    )
    (text,) = faults(folder)
    assert text.startswith(f"limits.toml:{line}: processes is ")
    assert "above zero" in text


def test_limit_left_out_or_unknown_is_a_fault(folder):
    """Every limit has to be there, and no other; a near miss is named."""
    line = spoil(folder / "limits.toml", "[open_files]", "[open_file]")
    assert faults(folder) == [
        "limits.toml: key open_files is missing",
        f"limits.toml:{line}: unknown key open_file; did you mean open_files?",
    ]


def test_limit_unit_has_to_fit_its_name(folder):
    """Bytes are given in bytes, seconds in seconds."""
    spoil(folder / "limits.toml", 'value = 4\nunit = "GiB"', 'value = 4\nunit = "s"')
    assert "unit of memory_bytes is 's'" in faults(folder)[0]


def test_all_faults_of_all_files_come_at_once(folder):
    """One attempt tells every fault, sorted by file and line."""
    spoil(folder / "limits.toml", "value = 512", "value = 0")
    spoil(folder / "masks.toml", '".env",', '"!.env",')
    spoil(folder / "protected.toml", "patterns =", "pattern =")
    spoil(folder / "sandbox/read-only.toml", '"grep"', '"grpe"')
    (folder / "sandbox/Bad Name.toml").write_text("")
    told = faults(folder)
    assert [text.partition(":")[0] for text in told] == [
        "limits.toml", "masks.toml", "protected.toml", "protected.toml",
        "sandbox/'Bad Name.toml'", "sandbox/read-only.toml",
    ]  # fmt: skip
    assert "unknown tool grpe; did you mean grep?" in told[-1]


RULE = """
[[rule]]
right = "bash"
scope = ["git status", "git diff *"]
verdict = "allow"
reason = "it looks"
allows = ["git status", "git diff"]
refuses = ["git push", "git diff; rm -r ."]
"""


def test_rule_examples_are_tried(folder):
    """A rule loads when its examples hold, and not when one does not."""
    path = folder / "sandbox/read-only.toml"
    path.write_text(path.read_text() + RULE)
    (rule,) = load_policies(str(folder)).base("read-only").rules
    assert rule.scope == ("git status", "git diff *")
    line = spoil(path, '"git push"', '"git status"')
    (text,) = faults(folder)
    assert text.startswith(f"sandbox/read-only.toml:{line}: example 'git status' stands in refuses")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"git diff *"', '"git * diff"', "has a * that is not the last word"),
        ('"git diff *"', '""', "rule.0.scope.1"),
        ('verdict = "allow"', 'verdict = "permit"', "rule.0.verdict is 'permit'"),
        ('right = "bash"', 'right = "shell"', "unknown tool shell"),
        ('allows = ["git status", "git diff"]', "allows = []", "rule.0.allows is []"),
        ('reason = "it looks"', "", "key rule.0.reason is missing"),
        ('reason = "it looks"', "reason = 3", "rule.0.reason is 3"),
    ],
)  # fmt: skip
def test_rule_that_is_wrong_is_told(folder, old, new, told):
    """Each wrong part of a rule is a fault that names it."""
    path = folder / "sandbox/read-only.toml"
    path.write_text(path.read_text() + RULE)
    spoil(path, old, new)
    assert any(told in text for text in faults(folder))


@pytest.mark.parametrize("pattern", ["~/x", "$HOME/x", "a/../b", "..", "a\\\\b"])
def test_pattern_that_reaches_beyond_is_refused(folder, pattern):
    """A path pattern names a place in the workspace, without words that something could expand."""
    spoil(folder / "masks.toml", '".env",', f'"{pattern}",')
    assert "masks.toml" in faults(folder)[0]


def test_broken_or_missing_file_is_told_with_its_line(folder):
    """What is no TOML is told where it breaks; a missing file by its name."""
    (folder / "masks.toml").write_text("[[group]]\nreason = \n")
    (folder / "protected.toml").unlink()
    masks, protected = faults(folder)
    assert masks.startswith("masks.toml:2: is not TOML")
    assert protected == "protected.toml: cannot be read: No such file or directory"


def test_base_fills_only_what_its_file_leaves_to_the_person():
    """Declared axes take the given names, the others stay empty."""
    names = frozenset({"x"})
    plan = SHIPPED.base("read-only", delegates=names, mcp_servers=names, hosts=names)
    assert (plan.delegates, plan.mcp_servers, plan.hosts) == (names, frozenset(), frozenset())
    with pytest.raises(PolicyError, match="no policy named readonly; did you mean read-only"):
        SHIPPED.base("readonly")


def test_toml_lines_survive_long_strings_and_brackets():
    """The scan for lines is not led astray by text that looks like keys."""
    document = parse_toml(
        b'a = """x = "\n[b]\n c """\n[t]\nl = [\n  "z", # ]\n]\nd.e = 1\n[[r]]\n[[r]]\nk = 1\n', "f"
    )
    expected = {("a",): 1, ("t", "l"): 5, ("t", "d", "e"): 8, ("r", 0): 9, ("r", 1, "k"): 11}
    assert expected == {keys: document.line(keys) for keys in expected}
    assert document.line(("t", "l", 0)) == 5
    assert ("b",) not in document.lines


def test_toml_in_another_encoding_is_refused():
    """Bytes that are not UTF-8 are told with their line; a byte order mark is accepted."""
    assert parse_toml(b"\xef\xbb\xbfa = 1\r\n", "f").values == {"a": 1}
    with pytest.raises(UnreadableError, match="f:2: is not UTF-8"):
        parse_toml(b"a = 1\nb = '\xe9'", "f")
