"""README.md and docs/ say what is so: their Python snippets run, and their tables of settings are complete."""

from __future__ import annotations

import contextlib
import re
import unittest
from pathlib import Path

import pytest
import torch
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

import fastops

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SNIPPETS = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()])
PAGES = [path for path in [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))] if "```python" in path.read_text("utf-8")]


@pytest.fixture(autouse=True)
def put_back():
    """What a snippet may set for the process."""
    threads, limit = torch.get_num_threads(), fastops.memory.stats().limit
    with torch.random.fork_rng():
        yield
    fastops.memory.set_limit(limit)
    torch.set_num_threads(threads)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_snippets(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python snippets of a page run, one after another.

    Each page has one namespace. What it takes for granted stands in an HTML comment, ``invisible-code-block: python``;
    a snippet that cannot run everywhere has one before it, ``skip: next``, with the reason.
    """
    if path.name == "export.md":
        pytest.importorskip("onnxruntime")  # has no wheel for Python 3.10
    monkeypatch.chdir(tmp_path)
    for snippet in SNIPPETS.parse(path):
        with contextlib.suppress(unittest.SkipTest):  # of this snippet, not of those after it
            snippet.evaluate()


# ---- settings ----


def table(page: str, header: str) -> set[str]:
    """The names in the first column of the table with this header."""
    text = (DOCS / page).read_text(encoding="utf-8").split(f"\n| {header} |")[1].split("\n\n")[0]
    return {name for line in text.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}


def found(pattern: str, *globs: str) -> set[str]:
    """What the pattern finds in the files of the repository."""
    paths = [path for glob in globs for path in ROOT.glob(glob)]
    assert paths
    return {name for path in paths for name in re.findall(pattern, path.read_text(encoding="utf-8"))}


def test_environment_variables() -> None:
    """The table has every variable that the package reads, and no other."""
    read = found(r'"(FASTOPS_[A-Z_]+)"', "python/**/*.py", "src/**/*.cpp", "src/**/*.h", "src/**/*.hip")
    read = {name for name in read if not name.startswith("FASTOPS_EMULATOR_")}  # of the tests
    assert table("reference/environment.md", "variable | values") == read


def test_options_of_the_build() -> None:
    """So has that of CMake's options."""
    files = ["CMakeLists.txt", "cmake/*.cmake", "src/**/CMakeLists.txt", "src/**/*.cmake"]
    options = found(r"option\((FASTOPS_\w+)", *files) | found(r"set\((FASTOPS_\w+) [^)]*CACHE (?!INTERNAL)", *files)
    assert table("reference/environment.md", "option") == options


def test_headers() -> None:
    """The page of C++ headers names each that is installed."""
    installed = found(r"(?:^|[ (])([a-z_]+(?:/[a-z_]+)*\.h)\b", "cmake/package.cmake")
    text = (DOCS / "reference" / "cpp.md").read_text(encoding="utf-8")
    assert not [header for header in installed if header not in text]


# ---- links ----


def test_links() -> None:
    """Links to files of the repository lead to one. (Headings are checked when the pages are built.)"""
    for path in [*ROOT.glob("*.md"), *DOCS.glob("**/*.md")]:
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        targets = re.findall(r"\]\((?![a-z]+:|#)([^)\s#]+)", text)
        assert not [f"{path.name}: {target}" for target in targets if not (path.parent / target).exists()]
