"""The folder of sessions and its index (rambarde.sessions.store, index, summary)."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import pytest

from rambarde.errors import RecordError, UsageError
from rambarde.ids import SessionId
from rambarde.sessions.journal import Journal
from rambarde.sessions.store import Store
from support.sessions import Ticks, conversation, finished, session_id


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store with a clock that moves."""
    return Store(str(tmp_path / "sessions"), now=Ticks())


def test_the_folder_is_closed_to_others(tmp_path: Path) -> None:
    """It is made 0700, and made so where it was wider."""
    folder = tmp_path / "state" / "sessions"
    Store(str(folder))
    folder.chmod(0o755)
    Store(str(folder))
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    """Nobody else says where sessions go."""
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    with pytest.raises(RecordError, match="no folder of this user"):
        Store(str(tmp_path / "link"))


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".new-x", "A", "x" * 99, "a\n"])
def test_only_ids_name_files(store: Store, name: str) -> None:
    """An id never leads out of the folder."""
    with pytest.raises(UsageError):
        store.path(name)


def test_the_header_holds_the_id_and_what_was_given(store: Store) -> None:
    """The first record tells all about the session."""
    journal = store.create(session_id(1), {"agent": "general", "parent_id": ""})
    header = next(journal.records())
    assert header.data == {"session_id": session_id(1), "agent": "general", "parent_id": ""}
    journal.close()


def test_sessions_are_listed_newest_first_and_bounded(store: Store) -> None:
    """With agent, title, status and counts from the journal's two ends."""
    for number in range(1, 6):
        finished(store, number, workspace="/w")
    found = store.list(3)
    assert [one.session_id for one in found] == [session_id(n) for n in (5, 4, 3)]
    assert (found[0].title, found[0].status, found[0].actions) == ("count the files", "done", 2)
    assert found[0].ended_at > found[0].started_at > 1.8e9


def test_a_session_is_running_while_its_journal_is_open_and_lost_after(store: Store) -> None:
    """A session without an end shows which it is."""
    journal = store.create(session_id(1), {})
    assert store.list()[0].status == "running"
    journal.close()
    assert store.list()[0].status == "lost"


def test_an_open_session_is_marked_lost_once(store: Store) -> None:
    """It gets its end on the record, chained as all else; running ones are left alone."""
    finished(store, 1)
    journal = store.create(session_id(2), {"agent": "explore", "depth": 1, "workspace": "/w"})
    conversation(journal)
    journal.write("wrote", {"path": "/w/a.txt"})
    journal.close()
    running = store.create(session_id(3), {})
    lost = store.mark_lost()
    assert [one.session_id for one in lost] == [session_id(2)]
    assert lost[0].status == "lost"
    end = [*store.open(session_id(2))[1]][-1]
    assert end.kind == "end"
    assert end.data["files_written"] == ["a.txt"]
    assert end.data["actions"] == 2
    assert [*store.mark_lost()] == []
    running.close()


def test_a_session_cut_in_its_last_line_is_marked_lost_too(store: Store) -> None:
    """The cut is kept beside it."""
    path = finished(store, 1)
    path.write_bytes(path.read_bytes()[:-5])
    assert [one.session_id for one in store.mark_lost()] == [session_id(1)]
    assert Path(f"{path}.cut").stat().st_size > 100
    assert store.list()[0].status == "lost"


def test_a_changed_session_is_left_as_it_is(store: Store) -> None:
    """No end is written to a journal that somebody changed."""
    path = finished(store, 1)
    path.write_bytes(path.read_bytes().replace(b'"done"', b'"gone"'))
    before = path.read_bytes()
    assert [*store.mark_lost()] == []
    assert path.read_bytes() == before


def test_children_and_trees_are_found_by_their_header(store: Store) -> None:
    """Oldest first."""
    root = session_id(1)
    finished(store, 1, root_id=root)
    finished(store, 2, root_id=root, parent_id=root, depth=1)
    finished(store, 3, root_id=root, parent_id=session_id(2), depth=2)
    finished(store, 4, root_id=session_id(4))
    finished(store, 5, root_id=root, parent_id=root, depth=1)
    assert [one.session_id for one in store.children(root)] == [session_id(2), session_id(5)]
    assert [one.session_id for one in store.tree(root)] == [session_id(n) for n in (1, 2, 3, 5)]


def test_the_latest_of_a_workspace_is_a_persons_session(store: Store) -> None:
    """Not a subagent's, and not another workspace's."""
    finished(store, 1, workspace="/w")
    finished(store, 2, workspace="/w", depth=1)
    finished(store, 3, workspace="/v")
    latest = store.latest("/w")
    assert latest is not None
    assert latest.session_id == session_id(1)
    assert store.latest("/nowhere") is None


def test_a_session_is_found_by_a_part_of_its_id(store: Store) -> None:
    """The start or the end, where it means one only."""
    finished(store, 1)
    finished(store, 2)
    assert store.find(session_id(1)) == session_id(1)
    assert store.find("20261201-000002") == session_id(2)
    for text in ("20261201", "abcd", "zzz", ""):
        with pytest.raises(UsageError):
            store.find(text)


def test_a_session_that_runs_is_not_removed(store: Store) -> None:
    """After it closed it is, with what was cut from it."""
    journal = store.create(session_id(1), {})
    with pytest.raises(RecordError, match="in use"):
        store.remove(session_id(1))
    journal.close()
    Path(f"{journal.path}.cut").write_text("x")
    store.remove(session_id(1))
    assert [*store.list()] == []
    assert not [one for one in os.listdir(store.folder) if "jsonl" in one]


def test_a_tree_is_removed_with_all_below_it_and_nothing_else(store: Store) -> None:
    """As after a run that leaves no record."""
    finished(store, 1, root_id=session_id(1))
    finished(store, 2, root_id=session_id(1), parent_id=session_id(1), depth=1)
    finished(store, 3)
    store.remove_tree(session_id(1))
    assert [one.session_id for one in store.list()] == [session_id(3)]


def test_opening_what_is_not_there_says_so(store: Store) -> None:
    """A wrong id is the person's word, not a fault of the disk."""
    with pytest.raises(UsageError, match="no session"):
        store.open(session_id(9))
    with pytest.raises(UsageError, match="no session"):
        store.summary(session_id(9))


def test_strange_files_in_the_folder_are_passed_over(store: Store) -> None:
    """Folders, links, empty and foreign files are no sessions."""
    finished(store, 1)
    folder = Path(store.folder)
    (folder / "note.txt").write_text("x")
    (folder / "empty.jsonl").touch()
    (folder / "foreign.jsonl").write_text('{"n":0}\n')
    (folder / "dir.jsonl").mkdir()
    (folder / "link.jsonl").symlink_to("/etc/passwd")
    assert [one.session_id for one in store.list()] == [session_id(1)]
    assert [*store.mark_lost()] == []


def test_an_unfinished_creation_is_removed_once_it_is_old(store: Store) -> None:
    """What a crash left before the first line was whole."""
    left = Path(store.folder) / ".new-x.jsonl"
    left.touch()
    store.mark_lost()
    assert left.exists()
    os.utime(left, (1, 1))
    store.mark_lost()
    assert not left.exists()


@pytest.mark.parametrize("damage", [b"", b"no database at all" * 500, b"SQLite format 3\0" * 300])
def test_an_index_that_is_damaged_is_made_anew(store: Store, damage: bytes) -> None:
    """The journals are the truth."""
    finished(store, 1)
    store.list()
    index = Path(store.folder) / "index.sqlite"
    for name in index.parent.glob("index.sqlite*"):
        name.unlink()
    index.write_bytes(damage)
    assert [one.session_id for one in store.list()] == [session_id(1)]
    assert index.stat().st_mode & 0o077 == 0


def test_an_index_of_another_version_is_made_anew(store: Store) -> None:
    """Columns may differ."""
    index = Path(store.folder) / "index.sqlite"
    with sqlite3.connect(index) as database:
        database.execute("CREATE TABLE sessions (x)")
        database.execute("PRAGMA user_version = 999")
    database.close()
    finished(store, 1)
    assert len(store.list()) == 1


def test_without_a_place_for_an_index_sessions_are_listed_all_the_same(store: Store) -> None:
    """Here its name is taken by a folder."""
    finished(store, 1)
    (Path(store.folder) / "index.sqlite" / "x").mkdir(parents=True)
    assert len(store.list()) == 1


def test_the_index_is_for_its_user_alone(store: Store) -> None:
    """It holds titles."""
    finished(store, 1)
    store.list()
    for path in Path(store.folder).glob("index.sqlite*"):
        assert path.stat().st_mode & 0o077 == 0


def test_a_changed_journal_is_read_again(store: Store) -> None:
    """The row of a file is taken only while size and time are the same."""
    journal = store.create(session_id(1), {})
    store.list()
    conversation(journal)
    journal.write("end", {"status": "limit:actions"})
    journal.close()
    assert (store.list()[0].status, store.list()[0].title) == ("limit:actions", "count the files")


def test_a_long_last_line_is_found(store: Store) -> None:
    """An end that lists thousands of files."""
    journal = store.create(session_id(1), {})
    journal.write("end", {"status": "done", "files_written": ["x" * 99] * 5000})
    journal.close()
    assert store.list()[0].status == "done"


def test_a_thousand_sessions_are_indexed_within_a_second(store: Store) -> None:
    """And then listed from the index, quicker."""
    line = finished(store, 1).read_bytes()
    for number in range(2, 1001):
        Path(store.path(session_id(number))).write_bytes(line)
    began = time.perf_counter()
    assert len(store.list(2000)) == 1000
    built = time.perf_counter()
    assert len(store.list(2000)) == 1000
    again = time.perf_counter()
    assert built - began < 1.0
    assert again - built < 0.3


def test_a_store_of_another_process_sees_the_same(store: Store) -> None:
    """Two stores on one folder; a session opened by one is running for the other."""
    other = Store(store.folder)
    journal = store.create(SessionId("shared-1"), {})
    assert other.list()[0].status == "running"
    with pytest.raises(RecordError, match="another process"):
        other.open("shared-1")
    journal.close()
    assert isinstance(other.open("shared-1")[0], Journal)
