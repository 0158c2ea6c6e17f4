"""An agent overwrites only what it has seen, as it is now; the others are told who wrote."""

from __future__ import annotations

import hashlib
import itertools

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rambarde.errors import HostError
from rambarde.host.digest import NotRegularError
from rambarde.tracker import (
    OUTSIDE,
    Changed,
    ReadTracker,
    WriteVerdict,
    Written,
    shown_path,
)

pytestmark = pytest.mark.anyio


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Tree:
    """The workspace as a table, with the agents' file tools on top of the tracker."""

    def __init__(self, **files: str) -> None:
        """`files`: contents by name."""
        self.files: dict[bytes, str | HostError] = {n.encode(): t for n, t in files.items()}
        self.tracker = ReadTracker(b"/w", self._digest, name_of=lambda a: f"<{a}>", wait_s=0.05)

    async def _digest(self, relative: bytes) -> str:
        await anyio.lowlevel.checkpoint()
        found = self.files.get(relative, "")
        if isinstance(found, HostError):
            raise found
        return sha(found) if found else ""

    def read(self, agent: str, name: str) -> None:
        text = self.files[name.encode()]
        assert isinstance(text, str)
        self.tracker.note_read(agent, b"/w/" + name.encode(), sha(text))

    async def check(self, agent: str, name: str) -> WriteVerdict:
        return await self.tracker.check_write(agent, b"/w/" + name.encode())

    async def write(self, agent: str, name: str, text: str) -> WriteVerdict:
        verdict = await self.check(agent, name)
        if verdict.allowed:
            self.files[name.encode()] = text
            assert await self.tracker.note_wrote(agent, b"/w/" + name.encode(), sha(text))
        return verdict


async def test_existing_file_never_read_is_refused() -> None:
    """The refusal names the file as the model knows it."""
    tree = Tree(a="old")
    assert await tree.write("x", "a", "new") == WriteVerdict(False, "not_read", "a")
    assert tree.files[b"a"] == "old"


async def test_absent_file_may_be_written_and_written_again() -> None:
    """A new file needs no reading, then it is known to its writer."""
    tree = Tree()
    assert (await tree.write("x", "a", "one")).allowed
    assert (await tree.write("x", "a", "two")).allowed


async def test_file_that_was_read_may_be_written_ten_times() -> None:
    """An agent's own writes never make its knowledge old."""
    tree = Tree(a="0")
    tree.read("x", "a")
    for number in range(1, 11):
        assert (await tree.write("x", "a", str(number))).allowed


async def test_reading_is_each_agents_own() -> None:
    """What a sibling has read counts for the sibling."""
    tree = Tree(a="old")
    tree.read("x", "a")
    assert (await tree.write("y", "a", "new")).code == "not_read"


async def test_stale_write_names_the_sibling() -> None:
    """The loser of two writers is refused, keeps nothing, and may read and try again."""
    tree = Tree(a="old")
    tree.read("x", "a")
    tree.read("y", "a")
    assert (await tree.write("x", "a", "by x")).allowed
    assert await tree.write("y", "a", "by y") == WriteVerdict(False, "stale", "a", "<x>")
    assert tree.files[b"a"] == "by x"
    tree.read("y", "a")
    assert (await tree.write("y", "a", "by y")).allowed


async def test_stale_write_after_a_command_names_someone_outside() -> None:
    """A change no file tool made has no name, nor has one on top of a sibling's write."""
    tree = Tree(a="old")
    tree.read("x", "a")
    tree.read("y", "a")
    await tree.write("x", "a", "by x")
    tree.files[b"a"] = "by sed"
    assert await tree.write("y", "a", "new") == WriteVerdict(False, "stale", "a", OUTSIDE)


async def test_content_that_came_back_is_not_stale() -> None:
    """Only content counts: what the agent has read is there again."""
    tree = Tree(a="old")
    tree.read("x", "a")
    tree.files[b"a"] = "other"
    tree.files[b"a"] = "old"
    assert (await tree.check("x", "a")).allowed


async def test_file_removed_since_may_be_written() -> None:
    """There is nothing left to overwrite."""
    tree = Tree(a="old")
    tree.read("x", "a")
    del tree.files[b"a"]
    assert (await tree.write("x", "a", "new")).allowed


@pytest.mark.parametrize(
    "path", [b"/etc/passwd", b"/w", b"/w/", b"/wx/a", b"/w/../etc/x", b"/w/a//b", b"/w/./a", b"a"]
)
async def test_path_outside_the_workspace_is_refused(path: bytes) -> None:
    """Nor is a spelling accepted that is not the canonical one."""
    verdict = await Tree(a="x").tracker.check_write("x", path)
    assert (verdict.allowed, verdict.code) == (False, "outside")


@pytest.mark.parametrize(
    ("error", "code"),
    [(NotRegularError("a link"), "not_regular"), (HostError("EIO"), "unreadable")],
)
async def test_what_cannot_be_hashed_is_refused_and_blocks_nobody(
    error: HostError, code: str
) -> None:
    """A link, a device, a failing disk: refused, and the path is free again."""
    tree = Tree()
    tree.files[b"a"] = error
    assert (await tree.check("x", "a")).code == code
    tree.files[b"a"] = ""
    assert (await tree.check("y", "a")).allowed


async def test_second_writer_waits_for_the_first_and_is_then_stale() -> None:
    """Check and write are one: no write slips in between."""
    tree = Tree(a="old")
    tree.read("x", "a")
    tree.read("y", "a")
    assert (await tree.check("x", "a")).allowed
    verdicts: list[WriteVerdict] = []

    async def other() -> None:
        verdicts.append(await tree.check("y", "a"))

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        await anyio.wait_all_tasks_blocked()
        assert verdicts == []
        tree.files[b"a"] = "by x"
        await tree.tracker.note_wrote("x", b"/w/a", sha("by x"))
    assert verdicts == [WriteVerdict(False, "stale", "a", "<x>")]


async def test_one_of_twenty_writers_wins() -> None:
    """Twenty agents that all read the same state: one write, nineteen refusals."""
    tree = Tree(a="old")
    verdicts: list[WriteVerdict] = []

    async def writer(agent: str) -> None:
        verdicts.append(await tree.write(agent, "a", agent))

    for number in range(20):
        tree.read(f"x{number}", "a")
    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(writer, f"x{number}")
    assert verdicts[0].allowed
    assert {WriteVerdict(False, "stale", "a", "<x0>")} == set(verdicts[1:])
    assert tree.files[b"a"] == "x0"


ACTS = st.lists(
    st.tuples(st.sampled_from(["read", "write", "leave", "command"]), st.sampled_from("ab")),
    min_size=4,
    max_size=12,
)


@settings(max_examples=40)
@given(st.lists(ACTS, min_size=2, max_size=4))
def test_no_write_is_lost_whatever_the_agents_do(programs: list[list[tuple[str, str]]]) -> None:
    """In any interleaving an agent replaces only the state it last read or wrote itself."""
    tree = Tree(a="0", b="0")
    texts = (f"text {n}" for n in itertools.count())

    async def run(agent: str, acts: list[tuple[str, str]]) -> None:
        seen: dict[str, object] = {}
        for act, name in acts:
            await anyio.lowlevel.checkpoint()
            if act == "read":
                tree.read(agent, name)
                seen[name] = tree.files[name.encode()]
            elif act == "command":
                tree.files[name.encode()] = next(texts)
            elif (await tree.check(agent, name)).allowed and act == "write":
                replaced, text = tree.files[name.encode()], next(texts)
                assert seen.get(name) == replaced
                tree.files[name.encode()] = seen[name] = text
                await anyio.lowlevel.checkpoint()
                await tree.tracker.note_wrote(agent, b"/w/" + name.encode(), sha(text))
            tree.tracker.abandon(agent)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number, acts in enumerate(programs):
                group.start_soon(run, f"x{number}", acts)

    anyio.run(main)
    assert tree.tracker._gates == {}


async def test_lock_passes_in_order_of_arrival() -> None:
    """Nobody is overtaken while waiting for a file."""
    tree = Tree()
    order: list[str] = []

    async def writer(agent: str) -> None:
        await tree.check(agent, "a")
        order.append(agent)
        tree.tracker.abandon(agent)

    await tree.check("first", "a")
    async with anyio.create_task_group() as group:
        for number in range(9):
            group.start_soon(writer, str(number))
            await anyio.wait_all_tasks_blocked()
        tree.tracker.abandon("first")
    assert order == [str(number) for number in range(9)]


async def test_silent_holder_costs_the_others_a_bounded_wait() -> None:
    """An agent that was allowed to write and never does is named as busy."""
    tree = Tree()
    await tree.check("x", "a")
    assert await tree.check("y", "a") == WriteVerdict(False, "busy", "a", "<x>")
    tree.tracker.abandon("x")
    assert (await tree.check("y", "a")).allowed


async def test_other_files_are_not_blocked() -> None:
    """A lock is one path's."""
    tree = Tree()
    await tree.check("x", "a")
    assert (await tree.check("y", "b")).allowed


async def test_agent_holds_one_lock_at_most() -> None:
    """Asking for another file gives the first one back, so no circle can form."""
    tree = Tree()
    await tree.check("x", "a")
    await tree.check("x", "b")
    assert (await tree.check("y", "a")).allowed
    assert (await tree.check("z", "b")).code == "busy"


async def test_end_of_an_agent_frees_its_lock_and_its_waiting() -> None:
    """Killed while holding or while waiting, an agent blocks nobody."""
    tree = Tree()
    await tree.check("x", "a")
    with anyio.move_on_after(0.01):
        await tree.check("y", "a")
    tree.tracker.forget("x")
    assert (await tree.check("z", "a")).allowed
    tree.tracker.forget("z")
    assert tree.tracker._gates == {}


async def test_write_that_did_not_happen_frees_the_lock_and_leaves_no_record() -> None:
    """An empty hash says that nothing was written."""
    tree = Tree(a="old")
    tree.read("x", "a")
    await tree.check("x", "a")
    assert await tree.tracker.note_wrote("x", b"/w/a", "")
    assert await tree.tracker.files_written("x") == ()
    assert (await tree.check("x", "a")).allowed


async def test_write_told_but_not_in_the_tree_is_no_record() -> None:
    """The supervisor looks itself: an unchanged file was not written."""
    tree = Tree(a="old")
    tree.read("x", "a")
    await tree.check("x", "a")
    await tree.tracker.note_wrote("x", b"/w/a", sha("never"))
    assert await tree.tracker.files_written("x") == ()


async def test_write_nobody_allowed_is_not_noted() -> None:
    """Without the lock, or for another path, what an agent tells changes nothing."""
    tree = Tree(a="old", b="old")
    assert not await tree.tracker.note_wrote("x", b"/w/a", sha("old"))
    assert (await tree.check("x", "a")).code == "not_read"
    tree.read("x", "b")
    await tree.check("x", "b")
    assert not await tree.tracker.note_wrote("x", b"/w/a", sha("old"))
    assert (await tree.check("x", "a")).code == "not_read"


async def test_files_written_by_a_subtree_are_told_with_their_hashes() -> None:
    """First state, last state, last writer, and whether the tree still holds it."""
    tree = Tree(a="old")
    tree.read("x", "a")
    await tree.write("x", "a", "by x")
    tree.read("y", "a")
    await tree.write("y", "a", "by y")
    await tree.write("y", "b", "new")
    await tree.write("z", "c", "not of this subtree")
    tree.files[b"b"] = "by sed"
    assert await tree.tracker.files_written("x", ["y"]) == (
        Written(b"a", "a", sha("old"), sha("by y"), "<y>", stands=True),
        Written(b"b", "b", "", sha("new"), "<y>", stands=False),
    )


async def test_files_written_outlive_their_writer() -> None:
    """The record is complete after the agent has ended."""
    tree = Tree()
    await tree.write("x", "a", "new")
    tree.tracker.forget("x")
    assert [entry.shown for entry in await tree.tracker.files_written("x")] == ["a"]


async def test_parent_is_told_what_changed_under_it() -> None:
    """After a delegation: files it had read, changed by others since, with their writer."""
    tree = Tree(a="1", b="1", c="1", d="1", own="1")
    for name in ("a", "b", "c", "own"):
        tree.read("parent", name)
    tree.read("early", "c")
    await tree.write("early", "c", "2")
    since = tree.tracker.mark()
    tree.read("child", "a")
    tree.read("child", "d")
    await tree.write("child", "a", "2")
    await tree.write("child", "d", "2")
    await tree.write("parent", "own", "2")
    tree.files[b"b"] = "by sed"
    assert await tree.tracker.changed_since("parent", since) == (
        Changed(b"a", "a", "<child>"),
        Changed(b"b", "b", OUTSIDE),
    )
    assert await tree.tracker.changed_since("nobody", 0) == ()


async def test_what_an_agent_may_make_us_keep_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of very many reads the oldest count as not read."""
    monkeypatch.setattr("rambarde.tracker.MOST_READS", 2)
    tree = Tree(a="1", b="1", c="1")
    for name in ("a", "b", "c"):
        tree.read("x", name)
    verdicts = [(await tree.check("x", name)).code for name in ("a", "b", "c")]
    assert verdicts == ["not_read", "", ""]


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (b"src/a b.py", "src/a b.py"),
        ("été".encode(), "été"),
        (b"caf\xe9", "$'caf\\xe9'"),
        (b"a\nb'\\", "$'a\\x0ab\\x27\\x5c'"),
        ("\u202e".encode(), "$'\\xe2\\x80\\xae'"),
    ],
)
def test_path_is_shown_as_bash_reads_it(path: bytes, shown: str) -> None:
    """Names that are no printable UTF-8 come in a form that can be typed back."""
    assert shown_path(path) == shown
