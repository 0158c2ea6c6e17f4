"""Secrets taken out of texts, bytes and streams (rambarde.redact)."""

from __future__ import annotations

import base64
import html
import json
import random
import time
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rambarde.redact import HOLD_BYTES, Redactor

_KEY = "cnry-7Qx2LmZ0pVt9Rk"
_ODD = 'p"a\\ss/w ö<rd&1+'
_PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7bq9K3xPLmZ\nq2w=\n"
    "-----END RSA PRIVATE KEY-----"
)


@pytest.fixture
def redactor() -> Redactor:
    """One that knows a plain key and one with characters that are escaped everywhere."""
    return Redactor({"KEY": _KEY, "ODD": _ODD})


def _streamed(redactor: Redactor, text: str, sizes: list[int]) -> str:
    stream = redactor.text_stream()
    out, at = [], 0
    for size in sizes:
        out.append(stream.feed(text[at : at + size]))
        at += size
    return "".join([*out, stream.feed(text[at:]), stream.finish()])


def test_a_known_value_is_replaced_by_its_name(redactor: Redactor) -> None:
    """In texts and in bytes, as often as it occurs."""
    assert redactor.text(f"a{_KEY}b {_KEY}") == "a[redacted:KEY]b [redacted:KEY]"
    assert redactor.data(b"\xff" + _KEY.encode()) == b"\xff[redacted:KEY]"


def test_what_holds_no_secret_is_the_same_object(redactor: Redactor) -> None:
    """Odd texts too: surrogates, control characters, bytes that are no text."""
    for text in ("", "plain", "\ud800\udce9", "naïve \0"):
        assert redactor.text(text) is text
    data = bytes(range(256))
    assert redactor.data(data) is data


@pytest.mark.parametrize("secret", [_KEY, _ODD])
@pytest.mark.parametrize(
    "spelled",
    [
        lambda s: s,
        lambda s: json.dumps({"k": s}),
        lambda s: json.dumps({"k": s}, ensure_ascii=False),
        lambda s: json.dumps(json.dumps(s)),
        lambda s: json.dumps(s).replace("/", "\\/"),
        lambda s: json.dumps(s).replace("<", "\\u003c").replace("&", "\\u0026"),
        lambda s: urllib.parse.quote(s),
        lambda s: urllib.parse.quote(s, safe=""),
        lambda s: urllib.parse.quote_plus(s),
        lambda s: urllib.parse.quote(s, safe="").lower() if "%" in urllib.parse.quote(s) else s,
        lambda s: "".join(f"%{byte:02X}" for byte in s.encode()),
        lambda s: html.escape(s),
        lambda s: s.encode().hex(),
        lambda s: s.encode().hex().upper(),
        lambda s: base64.b64encode(s.encode()).decode(),
        lambda s: base64.b64encode(b"user:" + s.encode()).decode(),
        lambda s: base64.b64encode(b"ab" + s.encode() + b"tail").decode(),
        lambda s: base64.urlsafe_b64encode(b"a" + s.encode() + b"xyz").decode(),
    ],
)
def test_the_spellings_tools_give_a_secret_are_known(
    redactor: Redactor, secret: str, spelled: object
) -> None:
    """JSON, URL, HTML, hexadecimal, and base64 at each alignment."""
    assert callable(spelled)
    text = spelled(secret)
    assert "[redacted:" in redactor.text(text), text


@pytest.mark.parametrize("value", ["", "short", "aaaaaaaaaaaa", "password", "localhost", " \n\t  "])
def test_a_value_too_plain_to_be_a_secret_is_passed_over(value: str) -> None:
    """It would tear ordinary text to pieces."""
    text = f"the {value} is {value}"
    assert Redactor({"X": value}).text(text) == text


def test_a_file_of_secrets_is_known_by_its_values() -> None:
    """Each telling line, the value behind a name; not comments and not plain words."""
    content = "# do not commit\nDB_HOST=localhost\nexport TOKEN='Zk3-99xq-Lm2v'\nlonely-Qw8eRt5y\n"
    redactor = Redactor({".env": content})
    assert redactor.text("t=Zk3-99xq-Lm2v") == "t=[redacted:.env]"
    assert redactor.text("lonely-Qw8eRt5y") == "[redacted:.env]"
    assert redactor.text("DB_HOST=localhost # do not commit") == "DB_HOST=localhost # do not commit"


def test_a_secret_may_be_bytes_that_are_no_text() -> None:
    """As read from a key file."""
    raw = bytes(range(200, 232))
    redactor = Redactor({"K": raw})
    assert redactor.data(b"<" + raw + b">") == b"<[redacted:K]>"
    assert redactor.text(raw.decode("utf-8", "surrogateescape")) == "[redacted:K]"


def test_secrets_that_overlap_leave_no_rest() -> None:
    """The longer wins over its start; two that share characters are replaced as one."""
    redactor = Redactor({"A": "abcdefgh12", "B": "abcdefgh12XYZ", "C": "h12XYZqrst"})
    assert redactor.text("abcdefgh12XYZ") == "[redacted:A]"
    assert redactor.text("abcdefgh12XYZqrst") == "[redacted:A]"


def test_a_secret_added_later_is_heeded_by_running_streams(redactor: Redactor) -> None:
    """A key that comes in use, a file that is masked."""
    stream = redactor.text_stream()
    assert stream.feed("later-11zz ") == "later-11zz "
    redactor.add("NEW", "later-11zz")
    assert stream.feed("later-11zz ") == "[redacted:NEW] "


def test_a_name_cannot_imitate_anything(redactor: Redactor) -> None:
    """It is put into texts."""
    redactor.add("a]\x1b[31m\n<b>", "Some-Value-77")
    assert redactor.text("Some-Value-77") == "[redacted:a___31m__b_]"


_TOKENS = {
    "github-token": "ghp_" + "a1B2c3" * 6,
    "gitlab-token": "glpat-" + "x1Y2z" * 4,
    "model-key": "sk-proj-" + "Ab1-_" * 8,
    "huggingface-token": "hf_" + "aB3" * 11,
    "aws-key-id": "AKIA" + "ABCD1234" * 2,
    "google-key": "AIza" + "aB3_-" * 7,
    "slack-token": "xoxb-1234567890-abcdef",
    "slack-hook": "hooks.slack.com/services/T00000000/B00000000/abc",
    "stripe-key": "sk_live_" + "aB3d" * 5,
    "npm-token": "npm_" + "aB3d" * 9,
    "pypi-token": "pypi-AgE" + "aB3_-" * 10,
    "sendgrid-key": "SG." + "aB3" * 7 + "." + "xY4" * 14,
    "vault-token": "hvs." + "aB3d" * 7,
    "doppler-token": "dp.pt." + "aB3d" * 10,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-DEF_ghi123",
    "bearer": "Bearer " + "aB3.~" * 6,
    "private-key": _PEM,
}


@pytest.mark.parametrize(("name", "token"), _TOKENS.items())
def test_a_token_of_a_known_shape_is_replaced_without_being_known(name: str, token: str) -> None:
    """In running text, in JSON, and when it is cut in pieces anywhere."""
    redactor = Redactor()
    assert redactor.text(f"x {token}, y") == f"x [redacted:{name}], y"
    assert token[-12:] not in redactor.text(json.dumps({"k": token}))
    for cut in range(len(token) + 2):
        assert _streamed(redactor, f"x {token} y", [cut]) == f"x [redacted:{name}] y"


def test_a_private_key_without_its_end_is_replaced() -> None:
    """Output is cut where it pleases; escaped line ends are line ends."""
    redactor = Redactor()
    assert redactor.text(_PEM[:58]) == "[redacted:private-key]"
    assert redactor.text(json.dumps(_PEM)) == '"[redacted:private-key]"'
    openssh = _PEM.replace("RSA", "OPENSSH")
    assert redactor.text(openssh) == "[redacted:private-key]"


def test_the_password_in_a_url_is_replaced() -> None:
    """The rest of the address stays readable."""
    text = Redactor().text("git clone https://me:s3cr3t!x@host/r.git")
    assert text == "git clone https://me:[redacted:url-password]@host/r.git"


@pytest.mark.parametrize(
    "text",
    [
        "risk-averse-and-task-oriented-sk-short",
        'if "-----BEGIN PRIVATE KEY-----" in text:',
        "https://host:8080/path?x=1@2",
        "eyJ.eyJ.x and ghp_ and AKIA and sk-learn",
        "the glow of a high xylophone shape",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUA",
        "def bearer(token): return f'Bearer {token}'",
    ],
)
def test_what_only_looks_a_little_like_a_token_stays(text: str) -> None:
    """Prefixes within words, mentions without a key, ports, hashes, images."""
    assert Redactor().text(text) == text


def test_no_cut_lets_a_secret_pass(redactor: Redactor) -> None:
    """A stream gives what the whole text gives, however it is cut; seeded, 40 texts."""
    rng = random.Random(7)
    parts = [_KEY, _ODD, json.dumps(_ODD), "plain words", "risk-averse", "https://u:hunter2!x@h/",
             base64.b64encode(b"xx" + _KEY.encode()).decode(), *_TOKENS.values()]  # fmt: skip
    for _ in range(40):
        text = rng.choice(["", " ", "\n"]).join(rng.choices(parts, k=rng.randint(1, 6)))
        sizes = [rng.choice([0, 1, 2, 7, 30]) for _ in range(len(text))]
        assert _streamed(redactor, text, sizes) == redactor.text(text)


@given(st.lists(st.sampled_from([*_KEY[:6], _KEY[6:], "é", " ", "sk-", "://a:", "eyJ", "."])))
def test_any_pieces_give_what_the_whole_gives(pieces: list[str]) -> None:
    """Made of the starts of everything that is looked for."""
    redactor = Redactor({"KEY": _KEY})
    stream = redactor.text_stream()
    out = "".join(stream.feed(piece) for piece in pieces) + stream.finish()
    assert out == redactor.text("".join(pieces))


@given(st.binary(max_size=200), st.integers(0, 200))
def test_bytes_without_a_secret_come_out_as_they_went_in(data: bytes, cut: int) -> None:
    """Whatever they are."""
    stream = Redactor({"KEY": _KEY}).stream()
    assert stream.feed(data[:cut]) + stream.feed(data[cut:]) + stream.finish() == data


def test_a_stream_holds_back_only_what_may_still_become_a_secret(redactor: Redactor) -> None:
    """Plain text passes at once; the start of a secret waits for the next byte."""
    stream = redactor.stream()
    assert stream.feed(b"plain text.") == b"plain text."
    assert stream.feed(b" " + _KEY[:5].encode()) == b" "
    assert stream.held_bytes == 5
    assert stream.feed(b"!") == _KEY[:5].encode() + b"!"


def test_a_token_without_an_end_is_not_held_for_ever() -> None:
    """It is replaced once, what follows of it is swallowed, and then the stream goes on."""
    stream = Redactor().stream()
    out = b"".join(stream.feed(b"sk-" + b"a" * 4000) for _ in range(50))
    assert stream.held_bytes <= HOLD_BYTES
    out += stream.feed(b" after") + stream.finish()
    assert out == b"[redacted:model-key] after"


def test_what_never_becomes_a_token_is_let_go() -> None:
    """A start that is followed by much else of the same letters."""
    data = b"://" + b"a:" * 40_000
    stream = Redactor().stream()
    out = b""
    for at in range(0, len(data), 1000):
        out += stream.feed(data[at : at + 1000])
        assert stream.held_bytes <= HOLD_BYTES + 1000
    assert out + stream.finish() == data


@pytest.mark.parametrize(
    "piece",
    ["plain words and code();\n", "a", "sk-", "eyJ-", "eyJaaaaaaaaaaaa.", "://a:", "gh",
     "-----BEGIN PRIVATE KEY-----\n", "Bearer ", "A1b2"],
)  # fmt: skip
def test_a_mebibyte_costs_little_whatever_it_holds(piece: str, redactor: Redactor) -> None:
    """About 35 ms for ordinary text; made on purpose, a small factor of that and never a square."""
    data = (piece * (1 + (1 << 20) // len(piece))).encode()[: 1 << 20]
    began = time.perf_counter()
    redactor.data(data)
    assert time.perf_counter() - began < 2.0
