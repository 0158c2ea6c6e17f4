"""Find the commands that other commands run. Trusted side. Pure.

`sudo`, `env`, `timeout`, `xargs`, `find -exec`, `bash -c` and their like run a command written as
their arguments. A refusal that looked only at the first word would be passed by any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rambarde.policy.shellwords import MAX_COMMANDS, Script, Simple, Word, read_script

MAX_LAYERS = 8
"""Wrappers inside wrappers; more are excess."""

_SHELLS = frozenset({"bash", "sh", "dash", "ash", "zsh", "ksh", "mksh", "fish"})


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """How a wrapper's own words are skipped: options that take a word, then plain words."""

    taking: frozenset[str] = frozenset()
    plain: int = 0


def _wrapper(taking: str = "", plain: int = 0) -> _Wrapper:
    return _Wrapper(frozenset(taking.split()), plain)


_WRAPPERS: Mapping[str, _Wrapper] = MappingProxyType(
    {
        "sudo": _wrapper("-u -g -h -p -C -r -t -U -D -R -T --user --group --host --chdir"),
        "doas": _wrapper("-u -C"),
        "env": _wrapper("-u -C --unset --chdir"),
        "nice": _wrapper("-n --adjustment"),
        "ionice": _wrapper("-c -n -p --class --classdata"),
        "chrt": _wrapper("-p -T -P -D", plain=1),
        "taskset": _wrapper(plain=1),
        "nohup": _wrapper(),
        "setsid": _wrapper(),
        "timeout": _wrapper("-s -k --signal --kill-after", plain=1),
        "time": _wrapper("-f -o --format --output"),
        "stdbuf": _wrapper("-i -o -e --input --output --error"),
        "xargs": _wrapper("-I -n -P -L -d -a -E -s --max-args --max-procs --replace --delimiter"),
        "exec": _wrapper("-a"),
        "command": _wrapper(),
        "builtin": _wrapper(),
        "busybox": _wrapper(),
        "toybox": _wrapper(),
        "watch": _wrapper("-n -q --interval"),
        "chroot": _wrapper("--userspec --groups", plain=1),
        "unshare": _wrapper("-S -G -R -w --setuid --setgid --root --wd"),
        "strace": _wrapper("-o -e -p -s -u -O -S"),
    }
)


def unwrap(script: Script) -> Script:
    """Return the script's commands and, after each, those it runs through its arguments."""
    found: list[Simple] = []
    whole, excess = script.whole, script.excess
    queue = [(command, 0) for command in reversed(script.commands)]
    while queue:
        command, layer = queue.pop()
        found.append(command)
        inner = _inside(command)
        whole, excess = whole and inner.whole, excess or inner.excess
        if inner.commands and (layer >= MAX_LAYERS or len(found) > MAX_COMMANDS):
            excess = True
            break
        queue.extend((one, layer + 1) for one in reversed(inner.commands))
    return Script(tuple(found), whole=whole and not excess, excess=excess)


def program_of(command: Simple) -> str:
    """Return the name of the program, without folders, in lower case; empty when there is none."""
    if not command.words:
        return ""
    return command.words[0].text.rsplit("/", 1)[-1].lower()


def _inside(command: Simple) -> Script:
    program = program_of(command)
    words = command.words[1:]
    if program in _SHELLS or program == "su":
        return _shell_text(words)
    if program == "eval":
        return read_script(" ".join(word.text for word in words))
    if program == "find":
        return _of_words(_find_commands(words))
    if program == "env" and (text := _split_string(words)):
        return read_script(text)
    wrapper = _WRAPPERS.get(program)
    if wrapper is None:
        return Script((), whole=True)
    inner = _after_options(words, wrapper)
    if program == "watch" and len(inner) == 1:
        return read_script(inner[0].text)
    return _of_words([inner])


def _of_words(commands: list[tuple[Word, ...]]) -> Script:
    return Script(
        tuple(Simple(words, (), assigns=False) for words in commands if words), whole=True
    )


def _shell_text(words: tuple[Word, ...]) -> Script:
    """Read the text after `-c` (alone or among letters, as in `-lc`), if there is one."""
    for at, word in enumerate(words[:-1]):
        letters = word.text[1:]
        if word.text == "--command" or (
            word.text.startswith("-") and not letters.startswith("-") and "c" in letters
        ):
            rest = next((w for w in words[at + 1 :] if not w.text.startswith("-")), None)
            return read_script(rest.text) if rest else Script((), whole=True)
    return Script((), whole=True)


def _split_string(words: tuple[Word, ...]) -> str:
    """Return the command text of `env -S TEXT`, else empty."""
    for at, word in enumerate(words):
        if word.text in ("-S", "--split-string") and at + 1 < len(words):
            return " ".join(w.text for w in words[at + 1 :])
        if word.text.startswith("--split-string="):
            return word.text.partition("=")[2]
        if word.text.startswith("-S"):
            return word.text[2:]
        if not word.text.startswith("-") and "=" not in word.text:
            return ""
    return ""


def _find_commands(words: tuple[Word, ...]) -> list[tuple[Word, ...]]:
    found: list[tuple[Word, ...]] = []
    inner: list[Word] | None = None
    for word in words:
        if word.text in ("-exec", "-execdir", "-ok", "-okdir"):
            inner = []
        elif inner is not None and word.text in (";", "+"):
            found.append(tuple(inner))
            inner = None
        elif inner is not None:
            inner.append(word)
    if inner:
        found.append(tuple(inner))
    return found


def _after_options(words: tuple[Word, ...], wrapper: _Wrapper) -> tuple[Word, ...]:
    at, plain = 0, wrapper.plain
    while at < len(words):
        text = words[at].text
        if text == "--":
            at += 1
            break
        if text in wrapper.taking:
            at += 2
        elif (text.startswith("-") and text != "-") or _is_assignment(text):
            at += 1
        else:
            break
    return words[at + plain :]


def _is_assignment(text: str) -> bool:
    name, equals, _ = text.partition("=")
    return bool(equals) and name.isidentifier()
