"""Split shell text into the simple commands it would run. Trusted side. Pure.

Theory of operation. Rules and catastrophic forms speak of commands, a call holds a script. This
reader walks the script as bash does, quotes first, and collects every simple command: those of
lists, pipes, subshells, loops, conditions and case arms, and those inside `$( )`, backquotes,
process substitutions, arithmetic and unquoted here-documents. It expands nothing: a word with a
variable keeps its `$NAME`, a substitution stands as `$()`.

It steers questions and refusals and is no boundary: what a command may reach is settled by the
sandbox. So in doubt it errs towards seeing a command too many. Text that ends inside a quote gives
what was read so far and `whole=False`, which no ALLOW rule admits. Text beyond MAX_DEPTH or
MAX_COMMANDS is `excess` as well, which is refused: what is not judged to its end is not run.

Source: bash(1), SHELL GRAMMAR, QUOTING, EXPANSION, REDIRECTION.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rambarde.policy.ansi_c import decode_ansi_c

MAX_DEPTH = 24
"""Substitutions inside substitutions; bash scripts of people stay below five."""

MAX_COMMANDS = 2048
"""In one call; reading that many takes some 50 ms. A longer script can be run from a file."""

ARITHMETIC_CHARS = 4096
"""Longer `(( ))` are read as subshells, which sees commands too many."""

_BLANK = " \t"
_META = " \t\n;&|()<>"
_SPECIAL = frozenset("~*?[]$`{}")
_DROPPED = frozenset({"{", "}", "if", "then", "else", "elif", "fi", "do", "done", "while", "until"})
_DROPPED_TOO = frozenset({"!", "coproc", "in"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[[^\]]*\])?\+?=")
_FUNCTION = re.compile(r"[ \t]*\([ \t]*\)")
_FD = re.compile(r"(?:\d+|\{[A-Za-z_]\w*\})(?=[<>])")
_REDIRECT = re.compile(r"&>>|&>|<<<|<<-|<<|<>|<&|>>|>\||>&|<|>")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BRACED_NAME = re.compile(r"\{([A-Za-z_]\w*)\}")
_ROUND = re.compile(r"[()]")
_CURLY = re.compile(r"\\.|[{}]", re.DOTALL)
_BACKQUOTED = re.compile(r"`((?:\\.|[^`\\])*)`", re.DOTALL)
_ANSI_C_QUOTED = re.compile(r"\$'((?:\\.|[^'\\])*)'", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Word:
    """One word. `text` is without quotes; in `live` a quoted `~ * ? [ $` is a NUL instead."""

    text: str
    live: str


@dataclass(frozen=True, slots=True)
class Redirect:
    """`op` as written (`>`, `>>`, `<`, `&>`...), without a descriptor number."""

    op: str
    target: Word


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command. `assigns`: variables are set in front of it, or it only sets them."""

    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...]
    assigns: bool


@dataclass(frozen=True, slots=True)
class Script:
    """All simple commands found, in the order they end.

    `whole`: the text was understood to its end. `excess`: it has more than can be judged.
    """

    commands: tuple[Simple, ...]
    whole: bool
    excess: bool = False


class _UnfinishedError(Exception):
    """The text ends inside a quote or bracket."""


class _ExcessError(Exception):
    """The text nests deeper than MAX_DEPTH or holds more than MAX_COMMANDS."""


def read_script(text: str) -> Script:
    """Return the simple commands of shell text. Never raises; linear in the length."""
    found: list[Simple] = []
    try:
        _Reader(text, found, 0).commands("")
    except _UnfinishedError:
        return Script(tuple(found), whole=False)
    except _ExcessError:
        return Script(tuple(found), whole=False, excess=True)
    return Script(tuple(found), whole=True)


class _Reader:
    """Walks one text; substitutions walk in the same text, re-read pieces in a reader of theirs."""

    def __init__(self, text: str, found: list[Simple], depth: int) -> None:
        if depth > MAX_DEPTH:
            raise _ExcessError
        self.text = text
        self.at = 0
        self.found = found
        self.depth = depth
        self.in_pattern: list[bool] = []
        self.here: list[tuple[str, bool, bool]] = []

    def commands(self, closing: str) -> None:
        """Read commands up to the closing bracket, or to the end when it is empty."""
        while True:
            self._simple()
            char = self._peek()
            if char == "":
                if closing:
                    raise _UnfinishedError
                return
            self.at += 1
            if char == ")" and closing:
                return
            if char == "(":
                self._subshell()
            elif char == "\n":
                self._here_documents()
            elif char == ";" and self._peek() in (";", "&") and self.in_pattern:
                self.in_pattern[-1] = True

    def _peek(self, ahead: int = 0) -> str:
        return self.text[self.at + ahead : self.at + ahead + 1]

    def _blanks(self) -> None:
        while True:
            if self._peek() and self._peek() in _BLANK:
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            else:
                return

    def _subshell(self) -> None:
        if self._peek() == "(" and (end := self._arithmetic_end(self.at - 1)):
            self._expansions(self.text[self.at + 1 : end - 2])
            self.at = end
            return
        self._nested()

    def _nested(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _ExcessError
        outer, self.in_pattern = self.in_pattern, []
        self.commands(")")
        self.in_pattern = outer
        self.depth -= 1

    def _arithmetic_end(self, start: int) -> int:
        """Return the position after `))` if the bracket at `start` is arithmetic, else 0."""
        depth = 0
        for match in _ROUND.finditer(self.text, start, start + ARITHMETIC_CHARS):
            depth += 1 if match[0] == "(" else -1
            if depth == 0:
                end = match.end()
                return end if self.text[end - 2] == ")" else 0
        return 0

    def _simple(self) -> None:
        if self.in_pattern and self.in_pattern[-1]:
            self._case_pattern()
        self._take_simple()
        if len(self.found) > MAX_COMMANDS:
            raise _ExcessError

    def _take_simple(self) -> None:
        words: list[Word] = []
        redirects: list[Redirect] = []
        assigns = False
        try:
            while True:
                self._blanks()
                if fd := _FD.match(self.text, self.at):
                    self.at = fd.end()
                char = self._peek()
                if char == "#":
                    self._comment()
                elif self._at_redirect():
                    redirects.append(self._redirect())
                elif char == "" or (char in _META and not self._at_substitution()):
                    function = _FUNCTION.match(self.text, self.at)
                    if len(words) != 1 or function is None:
                        return
                    words.clear()
                    self.at = function.end()
                else:
                    start = self.at
                    word = self._word()
                    raw = self.text[start : self.at]
                    if words:
                        words.append(word)
                    elif _ASSIGNMENT.match(raw):
                        assigns = True
                        self._array(raw)
                    elif not self._reserved(raw):
                        words.append(word)
        finally:
            if words or redirects or assigns:
                self.found.append(Simple(tuple(words), tuple(redirects), assigns))

    def _reserved(self, raw: str) -> bool:
        """Take a reserved word in command position, with its head; False for any other word."""
        if raw in _DROPPED or raw in _DROPPED_TOO:
            return True
        if raw == "function":
            self._head_words(1)
        elif raw in ("for", "select"):
            self._for_head()
        elif raw == "case":
            self._head_words(2)
            self.in_pattern.append(True)
            self._case_pattern()
        elif raw == "esac":
            self._leave_case()
        elif raw == "[[":
            self._condition()
        else:
            return False
        return True

    def _leave_case(self) -> None:
        if self.in_pattern:
            self.in_pattern.pop()

    def _head_words(self, count: int) -> None:
        for _ in range(count):
            self._space()
            self._word()
        if function := _FUNCTION.match(self.text, self.at):
            self.at = function.end()

    def _for_head(self) -> None:
        self._blanks()
        if self.text.startswith("((", self.at):
            self.at += 1
            self._subshell()
            return
        while self._peek() and self._peek() not in ";\n&|":
            self._any_word()

    def _any_word(self) -> None:
        """Take a word, or one character where none can stand, so that loops always advance."""
        self._blanks()
        before = self.at
        self._word()
        if self.at == before and self._peek() not in ("", ";", "\n", "&", "|"):
            self.at += 1

    def _space(self) -> None:
        while self._peek() and self._peek() in " \t\n":
            self.at += 1

    def _case_pattern(self) -> None:
        """Take `pattern|pattern)`; at `esac` the case is over."""
        while True:
            self._space()
            if self.text.startswith("#", self.at):
                self._comment()
                continue
            start = self.at
            self._word()
            char = self._peek()
            if self.text[start : self.at] == "esac":
                self._leave_case()
                return
            if char == "":
                raise _UnfinishedError
            if char == ")":
                self.at += 1
                self.in_pattern[-1] = False
                return
            if self.at == start:
                self.at += 1

    def _condition(self) -> None:
        """Take `[[ ... ]]`, where `&& || ( ) < >` are not the shell's operators."""
        while True:
            self._space()
            start = self.at
            self._word()
            if self.text[start : self.at] == "]]":
                return
            if self.at == start:
                if self._peek() == "":
                    raise _UnfinishedError
                self.at += 1

    def _array(self, raw: str) -> None:
        """Take the `( ... )` of an array assignment: its words are values."""
        if not raw.endswith("=") or self._peek() != "(":
            return
        self.at += 1
        while self._peek() != ")":
            if self._peek() == "":
                raise _UnfinishedError
            start = self.at
            self._space()
            self._word()
            if self.at == start:
                self.at += 1
        self.at += 1

    def _comment(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _at_substitution(self) -> bool:
        return self.text.startswith(("<(", ">("), self.at)

    def _at_redirect(self) -> bool:
        return not self._at_substitution() and (
            self._peek() in ("<", ">") or self.text.startswith("&>", self.at)
        )

    def _redirect(self) -> Redirect:
        match = _REDIRECT.match(self.text, self.at)
        op = match[0] if match else self._peek()
        self.at += len(op)
        self._blanks()
        start = self.at
        target = self._word()
        if op in ("<<", "<<-"):
            raw = self.text[start : self.at]
            quoted = any(mark in raw for mark in "\\'\"")
            self.here.append((target.text, op == "<<-", quoted))
        return Redirect(op, target)

    def _here_documents(self) -> None:
        pending, self.here = self.here, []
        for delimiter, strips, quoted in pending:
            body: list[str] = []
            while True:
                if self.at >= len(self.text):
                    break
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = end + 1
                if (line.lstrip("\t") if strips else line) == delimiter:
                    break
                body.append(line)
            self.at = min(self.at, len(self.text))
            if not quoted:
                self._expansions("\n".join(body))

    def _expansions(self, text: str) -> None:
        """Collect the commands of substitutions in text where quotes mean nothing."""
        reader = _Reader(text, self.found, self.depth + 1)
        unused: list[str] = []
        while reader.at < len(text):
            char = text[reader.at]
            if char == "\\":
                reader.at += 2
            elif char == "$":
                reader._dollar(unused, unused, in_quotes=True)
            elif char == "`":
                reader._backquote()
            else:
                reader.at += 1

    def _word(self) -> Word:
        text: list[str] = []
        live: list[str] = []
        if self._at_substitution():
            self.at += 2
            self._nested()
            text.append("$()")
            live.append("$()")
        while (char := self._peek()) and char not in _META:
            if char == "\\":
                piece = self.text[self.at + 1 : self.at + 2]
                self.at += 2
                self._quoted("" if piece == "\n" else piece, text, live)
            elif char == "'":
                self._quoted(self._until_quote(self.at + 1), text, live)
            elif char == '"':
                self._double_quotes(text, live)
            elif char == "$":
                self._dollar(text, live)
            elif char == "`":
                self._backquote()
                text.append("$()")
                live.append("$()")
            else:
                self.at += 1
                text.append(char)
                live.append(char)
        return Word("".join(text), "".join(live))

    def _quoted(self, piece: str, text: list[str], live: list[str]) -> None:
        text.append(piece)
        live.append("".join("\0" if char in _SPECIAL else char for char in piece))

    def _until_quote(self, start: int) -> str:
        end = self.text.find("'", start)
        if end < 0:
            self.at = len(self.text)
            raise _UnfinishedError
        self.at = end + 1
        return self.text[start:end]

    def _double_quotes(self, text: list[str], live: list[str]) -> None:
        self.at += 1
        while (char := self._peek()) != '"':
            if char == "":
                raise _UnfinishedError
            if char == "\\":
                following = self._peek(1)
                kept = following if following in '$`"\\' else "\\" + following
                self._quoted("" if following == "\n" else kept, text, live)
                self.at += 2
            elif char == "$":
                self._dollar(text, live, in_quotes=True)
            elif char == "`":
                self._backquote()
                text.append("$()")
                live.append("$()")
            else:
                self.at += 1
                self._quoted(char, text, live)
        self.at += 1

    def _dollar(self, text: list[str], live: list[str], *, in_quotes: bool = False) -> None:
        following = self._peek(1)
        if following == "'" and not in_quotes:
            self._ansi_c(text, live)
            return
        if following == '"' and not in_quotes:
            self.at += 1
            return
        shown = "$"
        if following == "(":
            self.at += 2
            self._subshell()
            shown = "$()"
        elif following == "{":
            shown = self._parameter()
        else:
            self.at += 1
            if name := _NAME.match(self.text, self.at):
                self.at = name.end()
                shown += name[0]
        text.append(shown)
        live.append(shown)

    def _parameter(self) -> str:
        """Take `${...}`; commands inside its default values count."""
        start = self.at + 1
        if plain := _BRACED_NAME.match(self.text, start):
            self.at = plain.end()
            return "$" + plain[1]
        depth = 0
        for match in _CURLY.finditer(self.text, start):
            depth += {"{": 1, "}": -1}.get(match[0], 0)
            if depth == 0 and match[0] == "}":
                self.at = match.end()
                self._expansions(self.text[start + 1 : match.start()])
                return self.text[start - 1 : match.end()]
        self.at = len(self.text)
        raise _UnfinishedError

    def _backquote(self) -> None:
        match = _BACKQUOTED.match(self.text, self.at)
        if match is None:
            self.at = len(self.text)
            raise _UnfinishedError
        self.at = match.end()
        inner = re.sub(r"\\([`$\\])", r"\1", match[1])
        _Reader(inner, self.found, self.depth + 1).commands("")

    def _ansi_c(self, text: list[str], live: list[str]) -> None:
        match = _ANSI_C_QUOTED.match(self.text, self.at)
        if match is None:
            self.at = len(self.text)
            raise _UnfinishedError
        self.at = match.end()
        self._quoted(decode_ansi_c(match[1]), text, live)
