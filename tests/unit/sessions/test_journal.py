"""The session's append-only file of facts (rambarde.sessions.journal, chain, record)."""

from __future__ import annotations

import enum
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rambarde.errors import InternalError, RecordError
from rambarde.models.base import Usage
from rambarde.sessions import journal as journal_module
from rambarde.sessions.chain import read_records, verify
from rambarde.sessions.journal import Journal, is_locked
from rambarde.sessions.record import decode_record, encode_record, path_text
from support.sessions import Ticks, conversation


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the journal of a test is."""
    return tmp_path / "s.jsonl"


@pytest.fixture
def written(path: Path) -> Path:
    """A closed journal with a conversation."""
    journal = Journal.create(str(path), {"agent": "general"}, now=Ticks())
    conversation(journal)
    journal.close()
    return path


def test_each_line_is_an_object_chained_to_the_one_before(written: Path) -> None:
    """Numbers count up, `prev` is the last hash, `hash` covers the line's own bytes."""
    prev = "0" * 64
    for n, line in enumerate(written.read_bytes().splitlines()):
        one = json.loads(line)
        assert list(one) == ["n", "at", "kind", "data", "prev", "hash"]
        assert (one["n"], one["prev"]) == (n, prev)
        prev = one["hash"]
        assert hashlib.sha256(line[: line.rindex(b',"hash":"')]).hexdigest() == prev


def test_the_first_record_is_the_header(written: Path) -> None:
    """Its kind is `session`."""
    first = next(read_records(str(written)))
    assert (first.kind, first.data) == ("session", {"agent": "general"})


def test_the_file_is_for_its_user_alone(path: Path) -> None:
    """Mode 0600, whatever the umask says."""
    old = os.umask(0)
    try:
        Journal.create(str(path), {}).close()
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_waits_in_user_space(path: Path) -> None:
    """A line can be read as soon as write returned, while the journal is open."""
    journal = Journal.create(str(path), {})
    journal.write("verdict", {"tool": "bash"})
    assert [one.kind for one in journal.records()] == ["session", "verdict"]
    assert verify(str(path)).records == 2
    journal.close()


def test_one_writer_holds_the_lock_until_it_closes(path: Path) -> None:
    """A second opening is refused with advice; after close it succeeds."""
    journal = Journal.create(str(path), {})
    assert is_locked(str(path))
    with pytest.raises(RecordError, match="another process") as caught:
        Journal.reopen(str(path))
    assert caught.value.advice
    journal.close()
    journal.close()
    assert not is_locked(str(path))
    again, records = Journal.reopen(str(path))
    assert len(records) == 1
    again.close()


def test_a_journal_that_exists_is_not_made_again(written: Path) -> None:
    """Nothing is overwritten and nothing left behind."""
    before = written.read_bytes()
    with pytest.raises(RecordError, match="create"):
        Journal.create(str(written), {})
    assert written.read_bytes() == before
    assert [one.name for one in written.parent.iterdir()] == [written.name]


def test_a_link_in_place_of_a_journal_is_not_followed(written: Path, tmp_path: Path) -> None:
    """Neither for writing nor for reading."""
    link = tmp_path / "link.jsonl"
    link.symlink_to(written)
    with pytest.raises(RecordError):
        Journal.reopen(str(link))
    with pytest.raises(RecordError):
        verify(str(link))


def test_a_reopened_journal_goes_on_with_the_chain(written: Path) -> None:
    """The next record follows on the last one."""
    journal, records = Journal.reopen(str(written))
    journal.write("end", {"status": "done"})
    journal.close()
    found = verify(str(written))
    assert (found.is_whole, found.records) == (True, len(records) + 1)


def test_a_cut_at_any_byte_keeps_every_whole_line_and_loses_nothing(written: Path) -> None:
    """What is behind the last whole line is moved to a file beside, byte for byte."""
    whole = written.read_bytes()
    beside = Path(f"{written}.cut")
    first_end = whole.index(b"\n") + 1
    for size in range(first_end, len(whole), 7):
        written.write_bytes(whole[:size])
        journal, records = Journal.reopen(str(written))
        journal.write("end", {})
        journal.close()
        kept = whole[:size].rindex(b"\n") + 1
        assert len(records) == whole[:kept].count(b"\n")
        assert written.read_bytes().startswith(whole[:kept])
        assert verify(str(written)).is_whole
        cut = beside.read_bytes() if beside.exists() else b""
        assert cut == whole[kept:size]
        beside.unlink(missing_ok=True)


def test_a_journal_without_a_whole_header_is_not_opened(written: Path) -> None:
    """There is nothing to go on with, and the file is left as it is."""
    part = written.read_bytes()[:20]
    for content in (b"", part):
        written.write_bytes(content)
        with pytest.raises(RecordError, match="header"):
            Journal.reopen(str(written))
        assert written.read_bytes() == content
        assert not verify(str(written)).is_whole


def test_zeros_of_a_crashed_disk_are_moved_away_as_a_cut(written: Path) -> None:
    """A block that never got its bytes is crash damage, even with a newline behind it."""
    whole = written.read_bytes()
    for damage in (b"\0" * 300, b"\0" * 100 + b"\n", b'{"n":8,"at":1.0,\0\0\0\0}\n'):
        written.write_bytes(whole + damage)
        Journal.reopen(str(written))[0].close()
        assert written.read_bytes() == whole
    assert Path(f"{written}.cut").stat().st_size == 300 + 101 + 22


def test_a_change_is_found_and_named_by_its_line(written: Path) -> None:
    """A changed word, a line taken out, two lines swapped, a header put in twice."""
    lines = written.read_bytes().splitlines(keepends=True)
    changed = {
        6: [*lines[:5], lines[5].replace(b"a.txt", b"b.txt"), *lines[6:]],
        3: [*lines[:2], *lines[3:]],
        4: [*lines[:3], lines[4], lines[3], *lines[5:]],
        2: [lines[0], lines[0], *lines[1:]],
    }
    for line, content in changed.items():
        written.write_bytes(b"".join(content))
        assert verify(str(written)).bad_line == line
        with pytest.raises(RecordError, match=f"line {line} was changed"):
            Journal.reopen(str(written))
        assert len(list(read_records(str(written)))) == line - 1


def test_a_change_of_the_last_line_is_no_cut(written: Path) -> None:
    """It is a whole object that does not fit its hash: not mended in silence."""
    content = written.read_bytes()
    written.write_bytes(content.replace(b"One file", b"Two file"))
    with pytest.raises(RecordError, match="was changed"):
        Journal.reopen(str(written))


def test_the_line_being_written_is_told_apart_from_damage(written: Path) -> None:
    """It has no newline yet; its bytes are counted."""
    content = written.read_bytes()
    written.write_bytes(content + b'{"n":9')
    found = verify(str(written))
    assert (found.is_whole, found.cut_bytes) == (True, 6)


class _Colour(enum.StrEnum):
    RED = "red"


@dataclass(frozen=True)
class _Point:
    x: int
    inner: tuple[bytes, ...]


def test_values_become_json(path: Path) -> None:
    """Paths that are not UTF-8 take bash's form; structures become lists and objects."""
    journal = Journal.create(str(path), {})
    journal.write(
        "facts",
        {
            "path": b"/w/caf\xe9",
            "escaped": os.fsdecode(b"/w/caf\xe9"),
            "alone": "\ud800",
            "set": {"b", "a"},
            "point": _Point(1, (b"x",)),
            "usage": Usage(5, 6),
            "colour": _Colour.RED,
            "big": 1 << 80,
            "nothing": None,
            "yes": True,
        },
    )
    journal.close()
    data = [*read_records(str(path))][-1].data
    assert data["path"] == data["escaped"] == r"$'/w/caf\xe9'"
    assert data["alone"] == "?"
    assert data["set"] == ["a", "b"]
    assert data["point"] == {"x": 1, "inner": ["x"]}
    assert data["colour"] == "red"
    assert data["big"] == str(1 << 80)
    assert (data["nothing"], data["yes"]) == (None, True)


def test_a_value_json_cannot_hold_is_our_fault_and_writes_nothing(path: Path) -> None:
    """The journal stays as it was and goes on."""
    journal = Journal.create(str(path), {})
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    for value in (object(), deep):
        with pytest.raises(InternalError):
            journal.write("bad", {"value": value})
    journal.write("good", {})
    journal.close()
    assert [one.kind for one in read_records(str(path))] == ["session", "good"]


def test_every_text_on_the_record_is_redacted(path: Path) -> None:
    """At any depth, in messages and in the header."""
    journal = Journal.create(
        str(path), {"a": ["hush"]}, redact=lambda text: text.replace("hush", "[redacted]")
    )
    conversation(journal)
    journal.write("x", {"deep": {"list": [("hush", b"hush")]}})
    journal.close()
    assert b"hush" not in path.read_bytes()
    assert path.read_bytes().count(b"[redacted]") == 3


@given(st.binary(min_size=1, max_size=40))
def test_a_path_is_readable_back_by_bash_form(raw: bytes) -> None:
    """Each text means one path: UTF-8 as it is, all else in the quoted form."""
    text = path_text(raw)
    text.encode()
    if text.startswith("$'"):
        body = text[2:-1].replace("\\e", "\\x1b").replace("\\'", "'")
        assert body.encode().decode("unicode_escape").encode("latin-1") == raw
    else:
        assert text.encode() == raw


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=40) | st.integers() | st.floats()))
def test_any_record_holds_after_encoding(data: dict[str, object]) -> None:
    """One line, whose hash holds, and not if any byte is changed."""
    line, digest = encode_record(3, 1.5, "k", data, "f" * 64, None)
    assert line.count(b"\n") == 1
    record = decode_record(line[:-1])
    assert record is not None
    assert record.hash == digest
    assert decode_record(line[:10] + bytes([line[10] ^ 1]) + line[11:-1]) is None


@pytest.mark.anyio
async def test_settle_syncs_once_for_all_that_was_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers at the same time share one sync, and with nothing new there is none."""
    journal = Journal.create(str(path), {})
    synced: list[int] = []
    monkeypatch.setattr(journal_module.os, "fdatasync", synced.append)
    async with anyio.create_task_group() as group:
        for _ in range(5):
            journal.write("x", {})
            group.start_soon(journal.settle)
    assert 1 <= len(synced) <= 2
    done = len(synced)
    await journal.settle()
    journal.settle_nowait()
    assert len(synced) == done
    journal.close()


@pytest.mark.anyio
async def test_closing_while_a_sync_runs_lets_it_end_first(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor is not given to another file under the thread's hands."""
    journal = Journal.create(str(path), {})
    seen: list[bool] = []
    waiting = anyio.Event()

    def slow(fd: int) -> None:
        anyio.from_thread.run(_begun, waiting)
        anyio.from_thread.run(anyio.sleep, 0.005)
        seen.append(os.path.samestat(os.fstat(fd), path.stat()))

    monkeypatch.setattr(journal_module.os, "fdatasync", slow)
    async with anyio.create_task_group() as group:
        group.start_soon(journal.settle)
        await waiting.wait()
        journal.close()
    assert seen == [True]
    assert not is_locked(str(path))
    with pytest.raises(RecordError, match="closed"):
        journal.write("x", {})


async def _begun(waiting: anyio.Event) -> None:
    waiting.set()


def test_a_killed_writer_leaves_all_it_wrote(path: Path) -> None:
    """Nothing was kept in the process: SIGKILL after write loses no record, and frees the lock."""
    program = (
        "import os, signal, sys\n"
        "from rambarde.sessions.journal import Journal\n"
        "journal = Journal.create(sys.argv[1], {})\n"
        "[journal.write('x', {'n': n}) for n in range(100)]\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert done.returncode == -9
    journal, records = Journal.reopen(str(path))
    journal.close()
    assert len(records) == 101
