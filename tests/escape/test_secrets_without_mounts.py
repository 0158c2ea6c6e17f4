"""Tier C has no mounts to hide a file: Landlock alone keeps a masked one from being read."""

from __future__ import annotations

import os

from support.program import Program


def test_a_masked_file_cannot_be_read_in_tier_c(program: Program) -> None:
    """Not by its name nor by a link to it; what stands beside it can. Root is refused."""
    work = program.workspace
    (work / "sub").mkdir()
    for name, content in ((".env", "KEY=SECRET"), ("open", "plain"), ("sub/x", "deep")):
        (work / name).write_text(content)
    (work / "alias").symlink_to(".env")
    script = "cat .env; cat alias; cat open sub/x; ls -A; echo x >new"
    ran = program("exec", "--tier", "C", "--", "bash", "-c", script)
    if os.geteuid() == 0:
        assert ran.code == 5
        assert "tier C does not hold for root" in ran.err
        return
    assert "SECRET" not in ran.out + ran.err
    assert ran.out.split() == ["plaindeep.env", "alias", "open", "sub"]
    assert not (work / "new").exists()
