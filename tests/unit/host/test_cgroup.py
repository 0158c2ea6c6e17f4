"""Resource groups: where they can be made, what is written, what is left. On a pretended tree."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rambarde.host.cgroup import PREFIX, Cgroups
from rambarde.host.facts import CgroupPlace
from rambarde.host.probe import cgroup_places, probe_host

BOTH = frozenset({"pids", "memory"})


@pytest.fixture
def tree(tmp_path):
    """A pretended hierarchy; the kernel would make the files of a group."""
    for name in ("user", "user/own"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text("")
        (tmp_path / name / "cgroup.subtree_control").write_text("")
    return tmp_path


def mount(point, kind, options="rw", root="/"):
    return f"30 20 0:5 {root} {point} rw,nosuid shared:4 - {kind} none {options}"


def groups(*places):
    return Cgroups(replace(probe_host(), cgroups=places), f"{PREFIX}{os.getpid()}")


def test_a_v1_hierarchy_is_found_by_its_controllers(tree):
    """Own path below the mount point; controllers other than pids and memory are no use."""
    own = "3:cpu,cpuacct:/user\n4:pids:/user/own\n0::/\n"
    mounts = "\n".join((mount(tree, "cgroup", "rw,pids"), mount("/c", "cgroup", "rw,cpu,cpuacct")))
    found = cgroup_places(own, mounts)
    assert found == [CgroupPlace(1, f"{tree}/user/own", frozenset({"pids"}))]


def test_a_delegated_v2_group_is_the_one_around_ours(tree):
    """Controllers cannot be on in a group with processes, so children are made beside us."""
    (tree / "user" / "cgroup.subtree_control").write_text("cpu memory pids\n")
    found = cgroup_places("0::/user/own\n", mount(tree, "cgroup2"))
    assert found == [CgroupPlace(2, f"{tree}/user", BOTH)]


def test_a_v2_hierarchy_without_controllers_is_no_place(tree):
    """As on a machine that runs both versions: the second one bounds nothing."""
    assert cgroup_places("0::/user/own\n", mount(tree, "cgroup2")) == []


def test_a_container_sees_a_part_of_the_hierarchy(tree):
    """The mount's own root is taken off the path, which is told from the host's top."""
    own = "4:pids:/docker/abc/user\n"
    found = cgroup_places(own, mount(tree, "cgroup", "rw,pids", root="/docker/abc"))
    assert [place.path for place in found] == [f"{tree}/user"]


def test_a_place_without_its_file_of_processes_is_none(tree):
    """Where nothing can be moved in, limits would bound nobody."""
    os.unlink(tree / "user" / "cgroup.procs")
    assert cgroup_places("4:pids:/user\n", mount(tree, "cgroup", "rw,pids")) == []


def test_limits_are_written_in_each_versions_words(tree):
    """Version 2 turns controllers on for the agents' groups; version 1 has files of its own."""
    for version, names in ((1, ("pids.max", "memory.limit_in_bytes")), (2, ("memory.max",))):
        made = groups(CgroupPlace(version, str(tree / "user"), BOTH))
        procs = made.create(f"a{version}", memory_bytes=1 << 30, processes=77)
        folder = os.path.dirname(os.fsdecode(procs[0]))
        assert procs == [f"{tree}/user/{PREFIX}{os.getpid()}/a{version}/cgroup.procs".encode()]
        assert Path(f"{folder}/pids.max").read_text() == "77"
        assert all(Path(f"{folder}/{name}").read_text() in ("77", str(1 << 30)) for name in names)
        parent = os.path.dirname(folder)
        if version == 2:
            assert Path(f"{parent}/cgroup.subtree_control").read_text() == "+memory +pids"
        for base, _dirs, files in os.walk(parent, topdown=False):
            for name in files:
                os.unlink(f"{base}/{name}")
        made.close()
        assert not os.path.exists(parent)


def test_a_place_that_refuses_is_left_out(tree):
    """Then nothing is in force and nothing is left behind: the fallback holds."""
    made = groups(CgroupPlace(1, str(tree / "absent"), BOTH))
    assert made.create("a1", memory_bytes=1, processes=1) == []
    assert made.controls == frozenset()
    made.close()


def test_kills_for_want_of_memory_are_counted(tree):
    """The counter stands in a file of either version; none is zero."""
    made = groups(CgroupPlace(1, str(tree / "user"), BOTH))
    procs = made.create("a1", memory_bytes=1, processes=1)
    assert made.oom_kills("a1") == 0
    folder = os.path.dirname(os.fsdecode(procs[0]))
    with open(f"{folder}/memory.oom_control", "w") as file:
        file.write("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert made.oom_kills("a1") == 3
    assert made.oom_kills("other") == 0


def test_what_a_killed_supervisor_left_is_swept(tree):
    """Groups of a dead pid go, those of a living one and strangers' stay."""
    dead, living = f"{PREFIX}4194999", f"{PREFIX}1"
    for name in (f"{dead}/a1", living, "other"):
        os.makedirs(tree / "user" / name)
    made = groups(CgroupPlace(1, str(tree / "user"), BOTH))
    made.create("a1", memory_bytes=1, processes=1)
    names = os.listdir(tree / "user")
    assert dead not in names
    assert {living, "other"} <= set(names)
