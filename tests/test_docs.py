"""README.md and docs/ say what is so: their Python snippets run, and their tables of settings are complete."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import subprocess
import textwrap
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from torch.utils.cpp_extension import include_paths

import fastops
from fastops import functional

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CXX = ["g++", "-std=c++20"]
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
    options = found(r"(?:option|find_program)\((FASTOPS_\w+)", *files) | found(
        r"set\((FASTOPS_\w+) [^)]*CACHE (?!INTERNAL)", *files
    )
    assert table("reference/environment.md", "option") == options


def test_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of the activations can show each formula."""
    monkeypatch.syspath_prepend(DOCS / "_ext")
    latex = importlib.import_module("formulas").latex
    for activation in fastops._C.activations():
        assert latex(activation["formula"])
    with pytest.raises(ValueError, match="no LaTeX for the function digamma"):
        latex("digamma(x)")
    assert latex("x if x > 0 else alpha * sin(omega * x)") == (
        r"\begin{cases}x & \text{if } x > 0 \\ \alpha \, \sin\left(\omega \, x\right) & \text{else}\end{cases}"
    )


def test_activations() -> None:
    """Where the pages count or name them, they are all there."""
    names = [activation["name"] for activation in fastops._C.activations()]
    counts = found(r"and (\d+) activations", "README.md") | found(r": (\d+) activations with", "CHANGELOG.md")
    counts |= found(r"\.\.\. \((\d+)\) with", "docs/ops.md")
    listed = re.search(r"The activations: `([\w\s]+)`", (DOCS / "ops.md").read_text(encoding="utf-8"))
    assert listed and listed[1].split() == names
    assert counts == {str(len(names))}


# ---- what is written in C++ ----


def cpp(page: Path) -> str:
    """The first block of C++ on a page."""
    return textwrap.dedent(page.read_text(encoding="utf-8").split("```cpp\n")[1].split("```")[0])


def test_activation_of_the_guide(tmp_path: Path) -> None:
    """What CONTRIBUTING.md adds as an example is PyTorch's function, and the compilers of GPUs would take it."""
    struct = cpp(ROOT / "CONTRIBUTING.md")
    assert struct.count("FASTOPS_HOST_DEVICE static") == struct.count("static") == 2
    (name,) = re.findall(r"struct (\w+)", struct)
    program = tmp_path / "program.cpp"
    program.write_text(f"""
        #include <cmath>
        #include <cstdio>
        namespace fastops {{
          using std::exp, std::log1p;
          double select(bool condition, double a, double b) {{ return condition ? a : b; }}
        }}
        #include "activations/smooth.h"
        namespace fastops::activations {{ {struct} }}
        int main() {{
          using fastops::activations::{name};
          const fastops::Params<double> none{{}};
          for (double x; std::scanf("%lf", &x) == 1;) {{
            std::printf("%.17g %.17g\\n", {name}::value(x, none), {name}::gradient(2.0, x, none));
          }}
        }}""")
    run = functools.partial(subprocess.run, check=True, capture_output=True, text=True)
    run([*CXX, "-O1", "-I", ROOT / "src", program, "-o", tmp_path / "program"])
    x = torch.tensor([-torch.inf, -800, -30, -1, -0.0, 0, 1e-9, 2, 40, 800, torch.inf, torch.nan], dtype=torch.float64)
    done = run([tmp_path / "program"], input=" ".join(map(str, x.tolist())))
    value, gradient = torch.tensor([[*map(float, line.split())] for line in done.stdout.splitlines()]).double().T
    f = getattr(torch.nn.functional, name.lower())
    torch.testing.assert_close(value, f(x), equal_nan=True)
    assert torch.equal(value.signbit() & ~x.isnan(), f(x).signbit() & ~x.isnan())
    expected = torch.func.vmap(torch.func.grad(f))(x) * 2
    torch.testing.assert_close(gradient, expected, equal_nan=True)


def test_kernel_of_the_guide(tmp_path: Path) -> None:
    """That of docs/backend.md compiles with the headers that are installed, around a launch of one's own."""
    program = tmp_path / "kernel.cpp"
    launch = "void launch(fastops::Activation, fastops::Params<double>, at::Tensor, at::Tensor, at::Tensor);"
    includes, body = cpp(DOCS / "backend.md").split("\n\n", 1)
    program.write_text(f"{includes}\n{launch}\n{body}")
    folders = [Path(fastops.backends.cmake_prefix_path).parents[1] / "include", *map(Path, include_paths())]
    subprocess.run([*CXX, "-fsyntax-only", *(f"-I{folder}" for folder in folders), program], check=True)


def test_headers() -> None:
    """The page of C++ headers names each that is installed."""
    installed = found(r"(?:^|[ (])([a-z_]+(?:/[a-z_]+)*\.h)\b", "cmake/package.cmake")
    text = (DOCS / "reference" / "cpp.md").read_text(encoding="utf-8")
    assert not [header for header in installed if header not in text]


# ---- errors ----


def tensor_without_memory() -> torch.Tensor:
    made = torch.ones(4)
    made.untyped_storage().resize_(0)
    return made


def result_written_to() -> None:
    y = functional.tanh(torch.ones(4, requires_grad=True))
    y += 1
    y.sum().backward()


X = torch.ones(3, 4)
# What the troubleshooting page shows the errors of, in its order.
MISTAKES: list[Callable[[], Any]] = [
    lambda: functional.relu(X.long()),
    lambda: functional.bias_act(X, X[0].half()),
    lambda: functional.bias_act(X, X[0].to("meta")),
    lambda: functional.relu(X.to_sparse()),
    lambda: functional.mlp(X, X),  # type: ignore[arg-type]
    lambda: functional.mlp(X, [torch.ones(2, 8)]),
    lambda: functional.mlp(X, [torch.ones(32, 4), torch.ones(2, 64)]),
    lambda: functional.act_mul(X, X[0]),
    lambda: functional.bias_act(X, torch.ones(3)),
    lambda: fastops.nn.MLP(4, 8, activation="swish"),
    lambda: fastops.nn.MLP(4, 8, activation=torch.nn.RReLU()),
    lambda: functional.softshrink(X, -1.0),
    lambda: fastops.nn.MLP(4, 8, 3, residual=True),
    lambda: setattr(fastops.nn.MLP(4, 8), "activation", "relu"),
    lambda: fastops.nn.MLP.from_sequential(torch.nn.Sequential(torch.nn.Flatten())),
    lambda: fastops.nn.MLP(4, 8, 1, dropout=0.5).value_gradient_laplacian(X),
    lambda: functional.relu(tensor_without_memory()),
    lambda: functional.relu(torch.ones(1).expand(4), inplace=True),
    lambda: torch.ops.fastops.relu.out(X[0], out=torch.ones(3)),
    lambda: torch.ops.fastops.relu.out(X[:2], out=X[1:]),
    lambda: torch.ops.fastops.relu.out(torch.ones(4, requires_grad=True), out=torch.ones(4)),
    lambda: torch.jit.trace(lambda x: functional.sequential(x, [], "relu"), X),
    result_written_to,
]


def test_error_messages() -> None:
    """The page shows what is raised, up to "..." where that is long; no row is without its mistake."""
    text = (DOCS / "reference" / "troubleshooting.md").read_text(encoding="utf-8").split("\n| error |")[1]
    shown = re.findall(r"^\| `([^`]*)`", text.split("\n\n")[0], re.MULTILINE)
    assert len(shown) == len(MISTAKES)
    for message, mistake in zip(shown, MISTAKES, strict=True):
        with pytest.raises(Exception) as caught:
            mistake()
        assert message.removesuffix("...").strip() in str(caught.value)


# ---- links ----


def test_links() -> None:
    """Links to files of the repository lead to one. (Headings are checked when the pages are built.)"""
    for path in [*ROOT.glob("*.md"), *DOCS.glob("**/*.md")]:
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        targets = re.findall(r"\]\((?![a-z]+:|#)([^)\s#]+)", text)
        assert not [f"{path.name}: {target}" for target in targets if not (path.parent / target).exists()]
