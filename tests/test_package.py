"""The package itself: signatures and help, what a bug report needs, and importing."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fastops
import fastops.functional
import fastops.nn
from reference import ACTIVATIONS
from sample import as_tuple

PROPAGATED = {"mlp_divergence", "mlp_hessian", "mlp_jacobian", "mlp_laplacian"}  # of other ops
FUSED = {"act_mul", "bias_act", "gated_act", "gated_mlp", "linear_act", "mlp", "mlp_jet", "sequential"}
LAYERS = {"EnsembleLinear", "EnsembleMLP", "GatedMLP", "LinearAct", "MLP", "ResidualMLP"}


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a new interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


# ---- signatures and help ----


def test_everything_is_listed() -> None:
    """A function and a module for every activation, and the fused ones."""
    assert set(fastops.functional.__all__) == set(ACTIVATIONS) | FUSED | PROPAGATED
    assert set(fastops.nn.__all__) == {entry["class_name"] for entry in ACTIVATIONS.values()} | LAYERS | {"convert"}
    exported = {
        "__version__",
        "backends",
        "decompositions",
        "functional",
        "fuse",
        "info",
        "library_path",
        "memory",
        "nn",
    }
    assert set(fastops.__all__) == exported


@pytest.mark.parametrize("name", fastops.functional.__all__)
def test_help_of_function(name: str) -> None:
    """Every function has type hints and says what it takes, returns and raises, each argument by name."""
    function = getattr(fastops.functional, name)
    text = inspect.getdoc(function)
    parameters = inspect.signature(function).parameters
    assert all(part in text for part in ("Args:", "Returns:", "Raises:", "TypeError"))
    arguments = text.partition("Args:")[2].partition("Returns:")[0]
    for parameter in parameters.values():
        assert parameter.name in arguments
        assert parameter.annotation is not parameter.empty
    assert inspect.signature(function).return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_help_of_layer(name: str) -> None:
    """Every layer documents its arguments, shapes and errors."""
    module = getattr(fastops.nn, name)
    text = inspect.getdoc(module)
    assert all(part in text for part in ("Args:", "Shape:", "Raises:"))
    assert all(parameter in text for parameter in inspect.signature(module).parameters)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_function(name: str, device: Any) -> None:
    """The function takes the table's parameters with their defaults, by position and by name, and works in place."""
    function = getattr(fastops.functional, name)
    defaults = ACTIVATIONS[name]["parameters"]
    parameters = inspect.signature(function).parameters
    assert list(parameters) == ["input", *defaults, "inplace"]
    assert {key: parameters[key].default for key in defaults} == defaults
    x = torch.linspace(-4, 4, 9, device=device)
    expected = getattr(torch.ops.fastops, name)(x)
    for result in (function(x), function(x, *defaults.values()), function(input=x, **defaults, inplace=False)):
        assert torch.equal(result, expected)
    assert function(x, inplace=True) is x
    assert torch.equal(x, expected)


def test_mlp_without_biases(device: Any) -> None:
    """functional.mlp without biases is the one with None for each layer."""
    x, weights = torch.ones(2, 4, device=device), [torch.ones(3, 4, device=device), torch.ones(2, 3, device=device)]
    expected = fastops.functional.mlp(x, weights, [None, None], "gelu")
    assert torch.equal(fastops.functional.mlp(x, weights, activation="gelu"), expected)


@pytest.mark.parametrize("name", fastops.functional.__all__)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_script_function(name: str, device: Any) -> None:
    """Every function can be scripted, with the same result."""
    function = getattr(fastops.functional, name)
    x, square, vector = (torch.full(size, 0.5, device=device) for size in ((3, 4), (4, 4), (4,)))
    arguments = {
        "bias_act": (x, vector),
        "act_mul": (x, x),
        "linear_act": (x, square, vector),
        "mlp": (x, [square, square], [vector, None]),
        "mlp_jet": (x, square, [square, square], [vector, None], "tanh"),
        "mlp_divergence": (x, [square, square], [vector, vector], "tanh"),
        "mlp_hessian": (x, [square, square], None, "tanh"),
        "mlp_jacobian": (x, [square, square], None, "tanh"),
        "mlp_laplacian": (x, [square], [vector], "tanh", "tanh"),
        "gated_mlp": (x, square, square, square, vector),
        "sequential": (x, [square, vector, vector, None], "linear layer_norm tanh", [1e-5]),
    }.get(name, (x,))
    results, expected = torch.jit.script(function)(*arguments), function(*arguments)
    for result, value in zip(as_tuple(results), as_tuple(expected), strict=True):
        assert torch.equal(result, value)


# ---- fastops.info() ----


def test_info(device: Any) -> None:
    """It has the versions, the build, and for each op whether it is native on each device."""
    info = fastops.info()
    assert info.fastops == fastops.__version__
    assert info.torch == torch.__version__
    assert info.built_for_torch.split(".")[:2] == torch.__version__.split(".")[:2]
    assert info.python == ".".join(map(str, sys.version_info[:3]))
    assert info.threads == torch.get_num_threads()
    assert info.cpu_capability
    assert {"cpu", device.type} <= set(info.native["softshrink"])
    assert set(ACTIVATIONS) | FUSED <= set(info.native)
    assert all(info.native[name]["cpu"] for name in ACTIVATIONS)
    assert info.memory.limit == fastops.memory.stats().limit
    text = str(info)
    mebibytes = f"{info.memory.kept / 2**20:.1f} MiB of at most {info.memory.limit / 2**20:.1f}"
    assert f"memory kept: {mebibytes}" in text.splitlines()
    fields = "fastops installed_as torch built_for_torch library libraries_for_torch compiler python platform"
    for field in [*fields.split(), "cpu_capability", "threads"]:
        assert f"{field}: {getattr(info, field)}" in text.splitlines()


def test_info_of_libraries() -> None:
    """It says which library is in use, for which torch there are others, and what became of those of kernels."""
    info = fastops.info()
    minor = ".".join(torch.__version__.split(".")[:2])
    assert info.library == fastops.library_path()
    assert Path(info.library).parent.name == f"torch-{minor}"
    assert minor in info.libraries_for_torch.split(", ")
    if sys.platform == "linux":  # elsewhere the file is called otherwise
        (library,) = (file for place in fastops.__path__ for file in Path(place).glob("libfastops_cpu.so"))
        assert info.kernels["cpu"] == f"loaded, {library}"
        assert f"kernels for cpu: loaded, {library}" in str(info).splitlines()
    assert set(info.kernels) == {"cpu", "cuda", "hip"}
    assert all(state.startswith(("loaded, ", "not loaded, ", "none, ")) for state in info.kernels.values())


def test_info_shows_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that change what fastops does are shown, and no others."""
    monkeypatch.setenv("FASTOPS_SOMETHING", "17")
    monkeypatch.setenv("SOMETHING_ELSE", "18")
    assert "FASTOPS_SOMETHING=17" in str(fastops.info()).splitlines()
    assert "SOMETHING_ELSE" not in str(fastops.info())


def test_python_m_fastops() -> None:
    """python -m fastops prints the same."""
    run = subprocess.run([sys.executable, "-m", "fastops"], capture_output=True, text=True, check=True)

    def same(text: str) -> list[str]:
        return [line for line in text.splitlines() if not line.startswith(("threads", "memory kept"))]

    assert same(run.stdout) == same(str(fastops.info()))
    assert not run.stderr


# ---- importing ----


@pytest.fixture
def namesake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another project's package called fastops, installed beside this one."""
    metadata = tmp_path / "fastops-0.0.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fastops\nVersion: 0.0.2\n")
    (metadata / "RECORD").write_text("fastops/__init__.py,,\nfastops/deploy.py,,\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("namesake")
def test_namesake_is_reported() -> None:
    """python -m fastops, and a library that cannot be imported, name the other project's package."""
    run = subprocess.run([sys.executable, "-m", "fastops"], capture_output=True, text=True, check=True)
    assert "fastops 0.0.2" in run.stdout.splitlines()[-1]
    error = run_python("import sys; sys.modules['fastops._C'] = None; import fastops").stderr.splitlines()[-1]
    assert error.startswith("ModuleNotFoundError: import of fastops._C")
    assert "fastops 0.0.2" in error


def test_nothing_tells_to_install_the_namesake() -> None:
    """On PyPI the name is another project's: every line that installs fastops says fastops-torch, or another index."""
    told = re.compile(r"(pip3? install|--no-binary|uv add|uv pip install)\b[^`'#\n]*[\s\"']fastops\b(?![./-])")
    root = Path(__file__).parent.parent
    files = [*root.glob("*.*"), *root.glob("docs/*"), *root.glob(".github/**/*.yml"), *root.glob("python/**/*.py")]
    files += [path for folder in ("cmake", "examples", "src", "tools") for path in root.glob(f"{folder}/**/*.*")]
    lines = [line for path in files if path.is_file() for line in path.read_text(errors="ignore").splitlines()]
    assert not [
        line for line in lines if told.search(line) and "--index-url" not in line.replace("--extra-index-url", "")
    ]
    assert told.search("pip install fastops[bench]")  # what it looks for


def test_import_under_another_patch_of_torch() -> None:
    """Another patch release or build of the same minor is fine."""
    minor = ".".join(torch.__version__.split(".")[:2])
    for version in (f"{minor}.99", f"{minor}.0+cu126"):
        assert run_python(f"import torch; torch.__version__ = '{version}'; import fastops").returncode == 0


def test_import_needs_only_torch() -> None:
    """On top of torch, importing fastops loads itself and the standard library alone."""
    code = (
        "import sys, json, torch; before = set(sys.modules); import fastops; "
        "print(json.dumps(sorted({name.split('.')[0] for name in set(sys.modules) - before})))"
    )
    run = run_python(code)
    loaded = set(json.loads(run.stdout)) - set(sys.stdlib_module_names)
    assert {name for name in loaded if not name.startswith("_editable")} <= {"fastops", "torch"}, run.stderr
    assert not run.stderr


def test_import_loads_no_compiler() -> None:
    """Importing fastops does not load torch._dynamo or torch._inductor, which are slow to load."""
    run = run_python(
        "import sys, fastops; print([m for m in sys.modules if m in ('torch._dynamo', 'torch._inductor')])"
    )
    assert run.stdout.strip() == "[]", run.stderr


def test_type_information_is_shipped() -> None:
    """The package is marked as typed."""
    assert os.path.exists(os.path.join(os.path.dirname(fastops.__file__), "py.typed"))
