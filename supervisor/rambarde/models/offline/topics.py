"""What the offline engine looks for: patterns as data. Trusted side. Pure.

The patterns are ripgrep's; they find common forms in common languages and claim no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MANIFESTS = (
    "README.md",
    "README.rst",
    "README.txt",
    "README",
    "pyproject.toml",
    "setup.py",
    "package.json",
    "Cargo.toml",
    "go.mod",
    "Makefile",
    "CMakeLists.txt",
    "meson.build",
    "pom.xml",
    "build.gradle",
    "build.gradle.kts",
    "Gemfile",
    "composer.json",
    "Dockerfile",
    "justfile",
)
"""Files at the root or one folder below that are read, in this order of interest."""
ASIDE = frozenset({"test", "tests", "bench", "benchmarks", "docs", "examples", "scripts"})
"""Folders whose entry points are named after the others."""
MANIFESTS_GLOB = "{" + ",".join(MANIFESTS) + "}"

SETTINGS_GLOB = (
    "{Makefile,makefile,GNUmakefile,justfile,Dockerfile,CMakeLists.txt,meson.build,go.mod,"
    "*.toml,*.json,*.yml,*.yaml,*.cfg,*.ini,*.gradle,*.kts,setup.py,pom.xml,noxfile.py}"
)


@dataclass(frozen=True, slots=True)
class Search:
    """One grep: `pattern` in ripgrep's syntax; `glob` empty for all files."""

    pattern: str
    glob: str = ""


@dataclass(frozen=True, slots=True)
class Topic:
    """One part of the map: `key` stands in a brief, `title` in the report."""

    key: str
    title: str
    brief: str
    searches: tuple[Search, ...]
    globs: tuple[str, ...] = ()
    per_file: int = 2
    """Most places shown of one file: a map names many files rather than one often."""


ENTRY = Topic(
    "entry",
    "Entry points",
    "Find where programs start in this repository.",
    (
        Search(
            r"""if __name__ == ['"]__main__['"]|^func main\(|^\s*(pub )?(async )?fn main\("""
            r"""|^\s*int main\(|public static void main|^fun main\(|^\s*static .*void Main\("""
        ),
        Search(
            r"""^\[project\.scripts\]|^\[tool\.poetry\.scripts\]|console_scripts|^\[\[bin\]\]"""
            r"""|^\s*"(bin|main|start)"\s*:|^(ENTRYPOINT|CMD) """,
            SETTINGS_GLOB,
        ),
    ),
)
TESTS = Topic(
    "tests",
    "Tests",
    "Find the tests of this repository and how they are run.",
    (
        Search(
            r"""^\s*(async )?def test_\w+|^func Test[A-Z]\w*\(|^\s*(describe|it|test)\(['"`]"""
            r"""|#\[(tokio::)?test\]|^\s*@Test\b|^\s*TEST(_F)?\("""
        ),
        Search(
            r"""\b(pytest|unittest|jest|vitest|mocha|tox|nox|ctest|rspec|phpunit)\b"""
            r"""|\b(cargo|go|npm|make|mvn|gradle) test\b|^test:""",
            SETTINGS_GLOB,
        ),
    ),
    ("**/test_*", "**/*_test.*", "**/*.test.*", "**/*.spec.*"),
)
BUILD = Topic(
    "build",
    "Build",
    "Find how this repository is built, packaged and checked.",
    (
        Search(
            r"""^\[build-system\]|build-backend|^\s*"(build|prepare|lint)"\s*:|^(all|build|check)"""
            r"""(:|\s+\w.*:)|cmake_minimum_required|^project\(|^module \S+|^\[package\]|^FROM """
            r"""|<packaging>|^\s*runs-on:""",
            SETTINGS_GLOB,
        ),
    ),
    per_file=6,
)
TOPICS: Mapping[str, Topic] = {topic.key: topic for topic in (ENTRY, TESTS, BUILD)}

LANGUAGES: Mapping[str, str] = {
    "py": "Python",
    "pyi": "Python",
    "js": "JavaScript",
    "mjs": "JavaScript",
    "cjs": "JavaScript",
    "jsx": "JavaScript",
    "ts": "TypeScript",
    "tsx": "TypeScript",
    "rs": "Rust",
    "go": "Go",
    "c": "C",
    "h": "C or C++ headers",
    "cc": "C++",
    "cpp": "C++",
    "cxx": "C++",
    "hpp": "C++",
    "java": "Java",
    "kt": "Kotlin",
    "kts": "Kotlin",
    "scala": "Scala",
    "rb": "Ruby",
    "php": "PHP",
    "cs": "C#",
    "swift": "Swift",
    "m": "Objective-C or MATLAB",
    "ex": "Elixir",
    "exs": "Elixir",
    "erl": "Erlang",
    "hs": "Haskell",
    "ml": "OCaml",
    "lua": "Lua",
    "pl": "Perl",
    "r": "R",
    "jl": "Julia",
    "dart": "Dart",
    "zig": "Zig",
    "sh": "Shell",
    "bash": "Shell",
    "sql": "SQL",
    "html": "HTML",
    "css": "CSS",
    "scss": "CSS",
    "vue": "Vue",
    "md": "Markdown",
    "rst": "reStructuredText",
    "toml": "TOML",
    "yaml": "YAML",
    "yml": "YAML",
    "json": "JSON",
    "xml": "XML",
    "txt": "plain text",
}
"""By extension, lower case."""

COUNT_COMMAND = (
    r"rg --files | sed -n 's/.*\.\([A-Za-z0-9_+-]\{1,16\}\)$/\1/p' "
    r"| sort | uniq -c | sort -rn | head -n 60"
)
"""Counts the files by extension, ignore files respected; `glob` alone lists only the newest."""
