"""Who may import whom, seen in the source and in a fresh interpreter."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHILD = sorted((ROOT / "child").rglob("*.py"))
PURE = [
    "budget.py",
    "loops.py",
    "policy/model.py",
    "policy/narrow.py",
    "policy/decide.py",
    "policy/explain.py",
    "host/facts.py",
]
_IO = {"open", "socket", "subprocess", "httpx", "psutil", "tempfile", "shutil"}


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node.lineno


@pytest.mark.parametrize("path", CHILD, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_sandbox_imports_the_standard_library_and_msgspec_only(path: Path) -> None:
    """Every import below child/ is of the standard library, msgspec, or our two packages there."""
    allowed = sys.stdlib_module_names | {"msgspec", "rambarde_child", "rambarde_wire"}
    foreign = [(name, line) for name, line in _imports(path) if name.split(".")[0] not in allowed]
    assert foreign == []


def test_a_fresh_zygote_interpreter_loads_nothing_of_the_supervisor() -> None:
    """Importing all that a zygote imports loads neither our trusted side nor its libraries."""
    code = (
        "import sys\n"
        f"sys.path[:0] = [{str(ROOT / 'child')!r}]\n"
        "import rambarde_child.zygote, rambarde_child.turn, rambarde_child.join\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20
    )
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint({"rambarde", "anyio", "httpx", "pydantic", "psutil", "click", "yaml"})


@pytest.mark.parametrize("name", PURE)
def test_pure_files_do_no_io(name: str) -> None:
    """What judges does not touch the disk, the network or a process."""
    path = ROOT / "supervisor" / "rambarde" / name
    tree = ast.parse(path.read_bytes())
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    imported = {module.split(".")[0] for module, _ in _imports(path)}
    assert (called | imported).isdisjoint(_IO)


def test_source_roots_are_no_packages() -> None:
    """Neither source root holds an __init__.py, or it would shadow another project's package."""
    assert not (ROOT / "supervisor" / "__init__.py").exists()
    assert not (ROOT / "child" / "__init__.py").exists()


def test_what_an_auditor_must_read_stays_readable() -> None:
    """The child's side in all stays under 4,600 lines, and no file above 500."""
    lengths = {path.name: len(path.read_text().splitlines()) for path in CHILD}
    assert sum(lengths.values()) <= 4600
    assert {name: n for name, n in lengths.items() if n > 500} == {}
