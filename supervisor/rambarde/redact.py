"""Keep secrets and well-known token shapes out of all that leaves the supervisor. Trusted side.

Theory of operation
-------------------
Two kinds of finds are replaced by `[redacted:NAME]`:

    literals  the values of known secrets, and the spellings they take on their way through tools:
              base64 at each of its three alignments, hexadecimal, URL, JSON and HTML escapes
    shapes    tokens whose prefix is public knowledge (SHAPES), whether or not anybody told us

Each literal is looked for with `bytes.find`, which is linear and runs at memory speed; a regular
expression of all literals would try every alternative at nearly every byte. A shape is looked for
by its fixed prefix first, and its expression runs only there. Each expression is either one run of
one class of bytes, which fails after its least length or takes all of the run, or starts at the
edge of such a run; with possessive quantifiers there is no backtracking, so text made on purpose
costs no more than a small factor of its length.

Finds that overlap are replaced as one, so no rest of one secret is left beside another.

A stream holds back only what may still become a find: a suffix that begins a literal or a prefix,
and an unfinished token. A token that does not end within HOLD_BYTES is replaced, and what follows
of it is swallowed.

Nothing here raises on any input. This is a second line: a secret that is cut in pieces, reversed
or compressed passes. The first line is that no child ever holds one.

Source: RFC 4648 (base64), RFC 3986 (percent encoding), RFC 8259 (JSON), RFC 7468 (PEM).
"""

from __future__ import annotations

import base64
import codecs
import html
import json
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

LEAST_BYTES = 8
"""A shorter value is not replaced: it would hit ordinary text."""
LEAST_DISTINCT = 4
"""Fewer distinct bytes are a rule or a filler, not a secret."""
LEAST_LINE_BYTES = 12
"""Lines of a secret of several lines are taken one by one from this length."""
MOST_LINES = 200
HOLD_BYTES = 16 << 10
"""Most bytes a stream holds back for a token that does not end."""

_COMMON = frozenset(
    b"password passw0rd changeme changeit localhost 127.0.0.1 12345678 123456789 1234567890"
    b" undefined disabled production development username anonymous postgres administrator".split()
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A token known by its look.

    `prefixes`: how it begins. `stems`: what is searched for, where several prefixes share a start.
    `pattern`: the whole token, with what may stand before it.
    """

    name: str
    prefixes: tuple[bytes, ...]
    stems: tuple[bytes, ...]
    pattern: re.Pattern[bytes]


def _shape(
    name: str, prefixes: str, body: str, *, stem: str = "", before: str = r"(?<![A-Za-z0-9])"
) -> Shape:
    starts = tuple(prefixes.encode().split())
    opening = f"{before}(?:{'|'.join(re.escape(start.decode()) for start in starts)})"
    stems = (stem.encode(),) if stem else starts
    return Shape(name, starts, stems, re.compile((opening + body).encode()))


_WORD = "[A-Za-z0-9]"
_WORDS = "[A-Za-z0-9_-]"
_GAP = r"(?:\s|\\[nrt]|[\"',])"
_PEM = (
    rf"(?:{_WORD}{{1,20}} ){{0,3}}PRIVATE KEY(?: BLOCK)?-----{_GAP}*+"
    rf"(?:[A-Za-z-]{{1,30}}: [^\r\n\\]{{0,120}}+{_GAP}++){{0,4}}+"
    rf"[A-Za-z0-9+/=]{{20,}}+(?:{_GAP}++[A-Za-z0-9+/=]++)*+"
    rf"(?:{_GAP}*+-----END (?:{_WORD}{{1,20}} ){{0,3}}PRIVATE KEY(?: BLOCK)?-----)?+"
)

SHAPES = (
    _shape("github-token", "ghp_ gho_ ghu_ ghs_ ghr_", f"{_WORD}{{36,}}+", stem="gh"),
    _shape("github-token", "github_pat_", "[A-Za-z0-9_]{40,}+"),
    _shape("gitlab-token", "glpat- gldt- glrt- glptt-", f"{_WORDS}{{20,}}+", stem="gl"),
    _shape("model-key", "sk-", f"{_WORDS}{{20,}}+"),
    _shape("huggingface-token", "hf_", f"{_WORD}{{30,}}+"),
    _shape("groq-key", "gsk_", f"{_WORD}{{40,}}+"),
    _shape("aws-key-id", "AKIA ASIA", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _shape("google-key", "AIza", f"{_WORDS}{{35,}}+"),
    _shape("google-token", "ya29.", f"{_WORDS}{{30,}}+"),
    _shape("google-secret", "GOCSPX-", f"{_WORDS}{{20,}}+"),
    _shape("slack-token", "xoxb- xoxp- xoxa- xoxr- xoxs- xoxe-", f"{_WORDS}{{10,}}+", stem="xox"),
    _shape("slack-token", "xapp-", f"{_WORDS}{{10,}}+"),
    _shape("slack-hook", "hooks.slack.com/services/", "[A-Za-z0-9/]{20,}+"),
    _shape("stripe-key", "sk_live_ sk_test_", f"{_WORD}{{16,}}+", stem="sk_"),
    _shape("stripe-key", "rk_live_ rk_test_", f"{_WORD}{{16,}}+", stem="rk_"),
    _shape("stripe-key", "whsec_", f"{_WORD}{{16,}}+"),
    _shape("npm-token", "npm_", f"{_WORD}{{36,}}+"),
    _shape("pypi-token", "pypi-AgE", f"{_WORDS}{{40,}}+"),
    _shape("docker-token", "dckr_pat_", f"{_WORDS}{{20,}}+"),
    _shape("digitalocean-token", "dop_v1_ dor_v1_", "[a-f0-9]{40,}+"),
    _shape("shopify-token", "shpat_ shpca_ shppa_ shpss_", "[A-Fa-f0-9]{32,}+", stem="shp"),
    _shape(
        "sendgrid-key",
        "SG.",
        r"[A-Za-z0-9_-]{16,}+\.[A-Za-z0-9_-]{16,}+",
        before="(?<![A-Za-z0-9_.-])",
    ),
    _shape(
        "telegram-or-firebase-key",
        "AAAA",
        r"[A-Za-z0-9_-]{7}:[A-Za-z0-9_-]{100,}+",
        before="(?<![A-Za-z0-9_-])",
    ),
    _shape("vault-token", "hvs. hvb.", f"{_WORDS}{{24,}}+", stem="hv"),
    _shape("age-key", "AGE-SECRET-KEY-1", "[A-Z0-9]{50,}+"),
    _shape("linear-key", "lin_api_", f"{_WORD}{{32,}}+"),
    _shape("notion-token", "ntn_", f"{_WORD}{{40,}}+"),
    _shape("doppler-token", "dp.pt. dp.st. dp.ct.", r"[A-Za-z0-9._-]{32,}+", stem="dp."),
    _shape(
        "jwt",
        "eyJ",
        rf"{_WORDS}{{10,}}+\.eyJ{_WORDS}{{10,}}+\.{_WORDS}{{10,}}+",
        before="(?<![A-Za-z0-9_.-])",
    ),
    _shape("bearer", "Bearer bearer", r"\s[A-Za-z0-9._~+/=-]{20,}+"),
    _shape("private-key", "-----BEGIN", rf"\s{_PEM}", before=""),
)
_TOKEN_BYTES = bytes(c for c in range(33, 127) if chr(c).isalnum() or chr(c) in "_.~+/=-:")
_PEM_BYTES = _TOKEN_BYTES + b" \t\r\n\f\v\\\"',"
_URL_BYTES = bytes(c for c in range(33, 256) if chr(c) not in "\"'<>")
_WIDE = (b"-----BEGIN", b"Bearer", b"bearer")
"""Prefixes after which a token holds white space."""
_NARROW = tuple(start for shape in SHAPES for start in shape.prefixes if start not in _WIDE)
_PASSWORD = re.compile(rb"://[^\s/:@\"'<>]{1,100}+:([^\s/@\"'<>]{3,200})@")
"""The password in a URL; its only group is what is replaced."""
_Span = tuple[int, int, str]


class Redactor:
    """Replaces secrets in texts, bytes and streams. Safe to share; secrets may be added later."""

    def __init__(self, secrets: Mapping[str, str | bytes] | None = None) -> None:
        """`secrets`: name shown in the replacement, to value. Values too plain are passed over."""
        self._literals: tuple[tuple[bytes, str], ...] = ()
        self._starts: dict[int, list[bytes]] = {}
        self._longest = 0
        self._add(secrets or {})

    def add(self, name: str, value: str | bytes) -> None:
        """Know one more secret from now on; running streams heed it at their next piece."""
        self._add({name: value})

    def _add(self, secrets: Mapping[str, str | bytes]) -> None:
        known = dict(self._literals)
        for name, value in secrets.items():
            shown = re.sub(r"[^A-Za-z0-9_.:-]", "_", name)[:64]
            raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
            for part in _parts(raw):
                for form in _forms(part):
                    known.setdefault(form, shown)
        starts: dict[int, list[bytes]] = {}
        sought = (*known, *_NARROW, *_WIDE, b"://")
        for one in sought:
            starts.setdefault(one[0], []).append(one)
        self._starts = starts
        self._longest = max(map(len, sought))
        self._literals = tuple(known.items())

    def data(self, value: bytes) -> bytes:
        """Return the bytes without secrets; the same object when there are none."""
        spans = self._spans(value)
        return _replace(value, spans) if spans else value

    def text(self, value: str) -> str:
        """Return the text without secrets; the same object when there are none."""
        raw = value.encode("utf-8", "surrogatepass")
        spans = self._spans(raw)
        return _decode(_replace(raw, spans)) if spans else value

    def stream(self) -> Stream:
        """Return a stream over bytes that arrive in pieces."""
        return Stream(self._spans, self._open_at)

    def text_stream(self) -> TextStream:
        """Return a stream over text that arrives in pieces."""
        return TextStream(self.stream())

    def _spans(self, data: bytes) -> list[_Span]:
        """Return what to replace, sorted, apart from each other."""
        found: list[_Span] = []
        for literal, name in self._literals:
            at = data.find(literal)
            while at >= 0:
                found.append((at, at + len(literal), name))
                at = data.find(literal, at + 1)
        for shape in SHAPES:
            for stem in shape.stems:
                _find_shape(data, stem, shape, found)
        at = data.find(b"://")
        while at >= 0:
            if (match := _PASSWORD.match(data, at)) is not None:
                found.append((*match.span(1), "url-password"))
            at = data.find(b"://", at + 3)
        return _joined(found)

    def _open_at(self, data: bytes) -> int:
        """Return where the part begins that may still become a secret; the length if none."""
        at = self._begun_at(data)
        at = min(at, _unfinished_at(data, _TOKEN_BYTES, _NARROW))
        at = min(at, _unfinished_at(data, _URL_BYTES, (b"://",)))
        return min(at, _unfinished_at(data, _PEM_BYTES, _WIDE))

    def _begun_at(self, data: bytes) -> int:
        """Return where the longest suffix starts that begins a literal or a prefix."""
        for at in range(max(0, len(data) - self._longest + 1), len(data)):
            starts = self._starts.get(data[at])
            if starts is not None:
                suffix = data[at:]
                if any(len(suffix) < len(one) and one.startswith(suffix) for one in starts):
                    return at
        return len(data)


def _find_shape(data: bytes, stem: bytes, shape: Shape, found: list[_Span]) -> None:
    at = data.find(stem)
    while at >= 0:
        match = shape.pattern.match(data, at)
        if match is not None:
            found.append((at, match.end(), shape.name))
        at = data.find(stem, match.end() if match is not None else at + len(stem))


def _joined(found: list[_Span]) -> list[_Span]:
    found.sort()
    joined: list[_Span] = []
    for start, end, name in found:
        if joined and start < joined[-1][1]:
            first, last, kept = joined[-1]
            joined[-1] = (first, max(last, end), kept)
        else:
            joined.append((start, end, name))
    return joined


def _replace(data: bytes, spans: Iterable[_Span]) -> bytes:
    pieces = []
    at = 0
    for start, end, name in spans:
        pieces += [data[at:start], f"[redacted:{name}]".encode()]
        at = end
    pieces.append(data[at:])
    return b"".join(pieces)


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        # A secret that is no whole text can be found across the edge of a character.
        return data.decode("utf-8", "replace")


def _unfinished_at(data: bytes, of: bytes, starts: Iterable[bytes]) -> int:
    """Return where the last run of bytes `of` holds the first start of a token."""
    run = len(data.rstrip(of))
    found = [at for start in starts if (at := data.find(start, run)) >= 0]
    return min(found, default=len(data))


def _after(known: int, spans: list[_Span]) -> list[_Span]:
    return [(max(known, start), end, name) for start, end, name in spans if end > known]


def _outside(cut: int, spans: list[_Span]) -> int:
    """Move a cut that falls inside a find to its start."""
    for start, end, _ in reversed(spans):
        if start < cut < end:
            return start
    return cut


class Stream:
    """Redaction of bytes in pieces: no secret passes, wherever the pieces are cut."""

    def __init__(
        self, spans: Callable[[bytes], list[_Span]], open_at: Callable[[bytes], int]
    ) -> None:
        """Made by Redactor.stream."""
        self._spans = spans
        self._open_at = open_at
        self._before = b""
        self._held = b""
        self._swallows = b""

    @property
    def held_bytes(self) -> int:
        """How many bytes wait for more."""
        return len(self._held)

    def feed(self, piece: bytes) -> bytes:
        """Take a piece; return what is certain by now, redacted."""
        # A token begins at the edge of a word: the byte that went out last is looked at again.
        known = len(self._before)
        data = self._before + self._held + self._after_swallowing(piece)
        spans = _after(known, self._spans(data))
        cut = _outside(max(known, self._open_at(data)), spans)
        if len(data) - cut > HOLD_BYTES:
            cut = self._give_up(data, spans)
        self._before, self._held = data[max(0, cut - 1) : cut], data[cut:]
        done = [span for span in spans if span[1] <= cut]
        return _replace(data[:cut], done)[known:]

    def _give_up(self, data: bytes, spans: list[_Span]) -> int:
        """Return a cut that lets go of a token without an end.

        Where it is one already it is replaced and what follows of it swallowed.
        """
        if spans and spans[-1][1] == len(data):
            last = data[spans[-1][0] :]
            self._swallows = _PEM_BYTES if last.startswith(_WIDE) else _TOKEN_BYTES
            return len(data)
        tail = len(data) - HOLD_BYTES
        return _outside(tail + self._open_at(data[tail:]), spans)

    def _after_swallowing(self, piece: bytes) -> bytes:
        if not self._swallows or not piece:
            return piece
        rest = piece.lstrip(self._swallows)
        if rest:
            self._swallows = b""
        return rest

    def finish(self) -> bytes:
        """Return the rest, redacted; the stream is empty afterwards."""
        known, rest = len(self._before), self._before + self._held
        self._before = self._held = self._swallows = b""
        return _replace(rest, _after(known, self._spans(rest)))[known:]


class TextStream:
    """The same over text."""

    def __init__(self, stream: Stream) -> None:
        """Made by Redactor.text_stream."""
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: str) -> str:
        """Take a piece; return what is certain by now, redacted."""
        return self._decoder.decode(self._stream.feed(piece.encode("utf-8", "replace")))

    def finish(self) -> str:
        """Return the rest, redacted."""
        return self._decoder.decode(self._stream.finish(), final=True)


def _parts(value: bytes) -> list[bytes]:
    """Return what of a value is secret: all of it, or the lines of a file that are not plain."""
    value = value.strip()
    lines = [line.strip() for line in value.splitlines()[:MOST_LINES]]
    if len(lines) < 2:
        # A file of one line may assign its secret, as each line of a longer one does.
        assigned = _assigned(value)
        inner = b" " not in assigned and _is_telling(assigned, LEAST_LINE_BYTES)
        return [value] * _is_telling(value, LEAST_BYTES) + [assigned] * inner
    parts = [_assigned(line) for line in lines if not line.startswith((b"#", b"-----"))]
    return [part for part in parts if _is_telling(part, LEAST_LINE_BYTES) and b" " not in part]


def _assigned(line: bytes) -> bytes:
    match = re.match(rb"""(?:export\s+)?[A-Za-z_][\w.-]*\s*[:=]\s*(['"]?)(.+)\1$""", line)
    return match[2].strip() if match is not None else line


def _is_telling(value: bytes, least: int) -> bool:
    return (
        len(value) >= least and len(set(value)) >= LEAST_DISTINCT and value.lower() not in _COMMON
    )


def _forms(raw: bytes) -> set[bytes]:
    """Return the spellings of a secret, each at least LEAST_BYTES long."""
    forms = {raw, raw.hex().encode(), raw.hex().upper().encode()}
    for skip in range(3):
        encoded = base64.b64encode(bytes(skip) + raw)
        # Sextets that hold bits of a neighbour differ from text to text and are left out.
        sure = encoded[(0, 2, 3)[skip] : (skip + len(raw)) * 8 // 6]
        forms |= {sure, sure.translate(bytes.maketrans(b"+/", b"-_"))}
    for text in {raw.decode("utf-8", "replace"), raw.decode("utf-8", "surrogateescape")}:
        for spelled in _escapes(text):
            forms.add(spelled.encode("utf-8", "surrogatepass"))
    forms.update(_percents(raw))
    return {form for form in forms if len(form) >= LEAST_BYTES}


def _escapes(text: str) -> Iterable[str]:
    once = json.dumps(text)[1:-1]
    wide = json.dumps(text, ensure_ascii=False)[1:-1]
    yield from (text, once, wide, html.escape(text), html.escape(text, quote=False))
    yield from (json.dumps(once)[1:-1], once.replace("/", "\\/"), wide.replace("/", "\\/"))
    yield re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", once)


def _percents(raw: bytes) -> Iterable[bytes]:
    for safe in ("", "/", "!'()*", "/:?#[]@!$&'()*+,;="):
        quoted = urllib.parse.quote(raw, safe=safe)
        yield quoted.encode()
        yield quoted.replace("%20", "+").encode()
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), quoted).encode()
    yield "".join(f"%{byte:02X}" for byte in raw).encode()
