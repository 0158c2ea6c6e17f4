"""Commands found in shell text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rambarde.policy.ansi_c import decode_ansi_c
from rambarde.policy.shellwords import MAX_COMMANDS, read_script
from rambarde.policy.unwrap import unwrap


def commands(text):
    script = read_script(text)
    return [" ".join(w.text for w in c.words) for c in script.commands if c.words]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a 1; b && c || d | e & f\ng", ["a 1", "b", "c", "d", "e", "f", "g"]),
        ("(a; { b; }); ! c", ["a", "b", "c"]),
        ("if a; then b; elif c; then d; else e; fi", ["a", "b", "c", "d", "e"]),
        ("for x in $(a) b; do c $x; done", ["a", "c $x"]),
        ("for ((i=0; i<3; i++)); do a; done; ((i++)); b", ["a", "b"]),
        ("while a; do b; done < f", ["a", "b"]),
        ("case $x in halt|b) c;; (d) e;& *) f; esac; g", ["c", "e", "f", "g"]),
        ("[[ $a == b && ! -e c ]] && d", ["d"]),
        ("f() { a; }; function g { b; }; f", ["a", "b", "f"]),
        ("A=1 B=(x y $(a)) c", ["a", "c"]),
        ("a $(b `c`) \"$(d 'e f')\" <(g) ${X:-$(h)}", ["c", "b $()", "d e f", "g", "h",
                                                      "a $() $() $() ${X:-$(h)}"]),
        ("a <<E\n$(b)\nhalt\nE\nc", ["a", "b", "c"]),
        ("a <<'E'\n$(b)\nE\nc", ["a", "c"]),
        ("a <<-E\n\thalt\n\tE\nc", ["a", "c"]),
        ("a # b; c\nd", ["a", "d"]),
        ("a '# b; c' \"; d\" \\; e", ["a # b; c ; d ; e"]),
        ("a 2>&1 >out &>>log 3<in; b", ["a", "b"]),
        ("a\\\nb c", ["ab c"]),
        ("echo $((1 + $(a)))", ["a", "echo $()"]),
        ("$((a) )", ["a", "$()"]),
        ("a \"$'\" 'b'", ["a $' b"]),
        ("'a'b\"c\"$'\\x64'", ["abcd"]),
    ],
)  # fmt: skip
def test_commands_of_text(text, found):
    """Each construct of the grammar yields the commands it runs, and only those."""
    assert found == commands(text)
    assert read_script(text).whole


@pytest.mark.parametrize(
    "text", ["a 'b", 'a "b', "a $(b", "a `b", "a ${b", "(a", "[[ a", "$(" * 99]
)
def test_unended_text_is_not_whole(text):
    """Text that ends too early, or nests too deep, is told as not understood."""
    assert not read_script(text).whole


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab01 \n\t;&|()<>{}[]$`'\"\\#=!*~-/EOFifncase", max_size=60))
def test_any_text_is_read_without_error(text):
    """No text raises, hangs or yields a command of nothing."""
    script = unwrap(read_script(text))
    assert all(c.words or c.redirects or c.assigns for c in script.commands)


@pytest.mark.parametrize("piece", ["$(", "((", "`", "${", "'", "a;", "case x in ", "\\", "<<E "])
def test_long_text_is_read_in_time(piece):
    """The longest command a tool takes is read in well under a second."""
    unwrap(read_script((piece * 100_000)[:100_000]))


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("sudo -u root halt", "halt"),
        ("env A=1 -u B make x", "make x"),
        ("env -S 'make x'", "make x"),
        ("timeout -s KILL 5 make", "make"),
        ("nice -n 5 nohup make", "make"),
        ("xargs -n 1 -I {} rm {}", "rm {}"),
        ("find . -name a -exec rm {} + -o -execdir mv {} b \\;", "mv {} b"),
        ("bash -lc 'cd a && make'", "make"),
        ("sh -c -- make", "make"),
        ("eval \"ma\"'ke'", "make"),
        ("command -- make", "make"),
        ("sudo sudo sudo make", "make"),
    ],
)
def test_wrapped_command_is_seen(text, inner):
    """A command run by another is found through the wrapper's options."""
    seen = [" ".join(w.text for w in c.words) for c in unwrap(read_script(text)).commands]
    assert inner in seen


def test_wrapper_arguments_are_no_commands():
    """The argument of a wrapped command is not a command: `xargs grep halt` greps."""
    seen = [c.words[0].text for c in unwrap(read_script("xargs grep halt")).commands]
    assert seen == ["xargs", "grep"]


def test_too_many_layers_or_commands_are_not_whole():
    """What is not looked at to its end is told as excess, and as not whole."""
    for text in ("sudo " * 20 + "make", "a;" * (MAX_COMMANDS + 1), "eval " * 20 + "a", "$(" * 99):
        script = unwrap(read_script(text))
        assert script.excess
        assert not script.whole
    assert not unwrap(read_script("a;" * MAX_COMMANDS)).excess


def test_ansi_c_name_is_decoded_to_its_bytes():
    """Names in bash's form mean their bytes; what is not UTF-8 stays recoverable."""
    assert decode_ansi_c("\\x2eenv\\n\\'") == ".env\n'"
    assert decode_ansi_c("caf\\xe9").encode("utf-8", "surrogateescape") == b"caf\xe9"
    assert decode_ansi_c("\\101\\u00e9") == "Aé"
