"""What a person tries: names by Tab, help, --help, the repr of modules, and where warnings point."""

from __future__ import annotations

import importlib
import pydoc
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import fastops
import fastops.compile
from fastops import _import_after, _torch_internal

PUBLIC = ["fastops", "fastops.backends", "fastops.compile", "fastops.functional", "fastops.memory", "fastops.nn"]


# ---- names ----


@pytest.mark.parametrize("name", PUBLIC)
def test_dir_is_what_is_public(name: str) -> None:
    """No modules that are imported there, no private names; everything that it lists is there."""
    module = importlib.import_module(name)
    listed = dir(module)
    assert set(module.__all__) <= set(listed) <= {*module.__all__, "compile"}
    assert not [one for one in listed if one.startswith("_") and one != "__version__"]
    for one in listed:
        value = getattr(module, one)
        assert not isinstance(value, types.ModuleType) or value.__name__ == f"fastops.{one}"


def test_dir_has_compile() -> None:
    """Which `import fastops` alone leaves out."""
    assert "compile" in dir(fastops)


# ---- help ----


@pytest.mark.parametrize("name", ["MLP", "GatedMLP", "LinearAct", "EnsembleMLP", "ResidualMLP", "convert"])
def test_help_says_what_arguments_are(name: str) -> None:
    text = pydoc.render_doc(getattr(fastops.nn, name), renderer=pydoc.plaintext)
    assert "Args:" in text and "Raises:" in text
    assert text.index("Args:") < 5000, "before what is inherited"


@pytest.mark.parametrize(
    ("module", "said"),
    [("fastops", ["bug report", "--version", "fastops.bench"]), ("fastops.bench", ["--list", "--out"])],
)
def test_command_line_help(module: str, said: list[str]) -> None:
    if module == "fastops.bench":
        pytest.importorskip("rich")
        pytest.importorskip("matplotlib")
    run = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith(f"usage: python -m {module} ")
    assert all(text in run.stdout for text in said)
    assert not run.stderr


def test_command_line_version_and_errors() -> None:
    command = [sys.executable, "-m", "fastops"]
    run = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"fastops {fastops.__version__}\n"
    run = subprocess.run([*command, "--nonsense"], capture_output=True, text=True)
    assert run.returncode == 2 and "unrecognized arguments: --nonsense" in run.stderr


# ---- repr ----

nn = fastops.nn
# A module's arguments, with for each that may be given what the repr then has and does not have without.
REPRS: list[tuple[Any, tuple[Any, ...], dict[str, tuple[Any, str]]]] = [
    (
        nn.MLP,
        (4, [8], 4),
        {
            "activation": ("silu", "SiLU()"),
            "output_activation": ("tanh", "Tanh()"),
            "bias": (False, "bias=False"),
            "norm": ("layer", "LayerNorm((8,)"),
            "dropout": (0.25, "Dropout(p=0.25"),
            "residual": (True, "residual=True"),
            "checkpoint": (True, "checkpoint=True"),
        },
    ),
    (nn.MLP, (4, [8], 4), {"norm": ("rms", "RMSNorm((8,)")}),
    (
        nn.GatedMLP,
        (4, 8),
        {
            "activation": ("gelu_tanh", "approximate='tanh'"),
            "bias": (True, "bias=True"),
            "norm": ("rms", "RMSNorm((4,)"),
            "dropout": (0.25, "Dropout(p=0.25"),
            "residual": (True, "residual=True"),
            "checkpoint": (True, "checkpoint=True"),
        },
    ),
    (
        nn.ResidualMLP,
        (4, 8),
        {
            "out_features": (5, "out_features=5"),
            "blocks": (3, "(4): LayerNorm"),
            "expansion": (7, "out_features=56"),
            "activation": ("mish", "Mish()"),
            "norm": ("rms", "RMSNorm((8,)"),
            "dropout": (0.25, "Dropout(p=0.25"),
            "bias": (False, "bias=False"),
        },
    ),
    (
        nn.EnsembleMLP,
        (3, 4, [8]),
        {
            "out_features": (5, "out_features=5"),
            "activation": (nn.Softshrink(0.125), "0.125"),
            "output_activation": ("tanh", "Tanh()"),
            "bias": (False, "bias=False"),
            "checkpoint": (True, "checkpoint=True"),
        },
    ),
    (nn.EnsembleLinear, (3, 4, 5), {"bias": (False, "bias=False")}),
    (nn.LinearAct, (4, 5), {"activation": (nn.Softshrink(0.125), "0.125"), "bias": (False, "bias=False")}),
    (nn.Softshrink, (), {"lambd": (0.125, "lambd=0.125"), "inplace": (True, "lambd=0.5, inplace=True")}),
    (nn.Hardtanh, (), {"min_val": (-2.0, "min_val=-2.0"), "max_val": (3.0, "max_val=3.0")}),
    (nn.ReLU, (), {"inplace": (True, "ReLU(inplace=True)")}),
]


@pytest.mark.parametrize(("make", "arguments", "options"), REPRS, ids=[make.__name__ for make, *_ in REPRS])
def test_repr_has_what_was_asked_for(
    make: Any, arguments: tuple[Any, ...], options: dict[str, tuple[Any, str]]
) -> None:
    plain = repr(make(*arguments))
    for name, (value, said) in options.items():
        assert said not in plain
        assert said in repr(make(*arguments, **{name: value})), name


def test_repr_of_norm_first() -> None:
    assert "(0): LayerNorm((4,)" in repr(nn.MLP(4, [8], 4, norm="layer", norm_first=True))


def test_repr_follows_changes() -> None:
    module = nn.MLP(4, [8], 4)
    module.checkpoint = True
    module[1] = torch.nn.ReLU()
    assert "checkpoint=True" in repr(module) and "ReLU()" in repr(module) and "GELU" not in repr(module)


# ---- warnings ----

BROKEN = "raise RuntimeError('broken')"


def run_program(folder: Path, text: str) -> str:
    """Runs a program; what it says."""
    program = folder / "program.py"
    program.write_text(text)
    return subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True).stderr


def test_warning_of_import_points_at_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a backend that fails, and of a namesake elsewhere: the line of the program that imports fastops."""
    site = tmp_path / "site"
    for name, files in {
        "fastops-0.0.2": {"METADATA": "Name: fastops\nVersion: 0.0.2\n", "RECORD": "fastops/deploy.py,,\n"},
        "broken_backend-1.0": {
            "METADATA": "Name: broken-backend\nVersion: 1.0\n",
            "entry_points.txt": "[fastops.backends]\nbroken = broken_backend:load\n",
        },
    }.items():
        folder = site / f"{name}.dist-info"
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text)
    (site / "broken_backend.py").write_text(f"def load(): {BROKEN}\n")
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    said = run_program(tmp_path, "import torch\n\nimport fastops\n")
    place = f"{tmp_path / 'program.py'}:3: RuntimeWarning: fastops: "
    assert f"{place}another project's package of this name" in said
    assert f"{place}the backend 'broken' of broken-backend 1.0" in said


def test_warning_of_a_companion_points_at_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of our modules that does not work with somebody else's, when that is imported."""
    (tmp_path / "companion_that_fails.py").write_text(BROKEN)
    (tmp_path / "somebody_elses.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    _import_after.import_after("somebody_elses", "companion_that_fails")
    with pytest.warns(UserWarning, match="companion_that_fails does not work") as caught:
        import somebody_elses  # noqa: F401
    assert caught[0].filename == __file__


def test_warning_of_what_torch_lacks_points_at_the_program() -> None:
    with pytest.warns(UserWarning, match=r"has no torch\.nowhere") as caught:
        _torch_internal._find("torch:nowhere", "a test", "the plain way is taken", None)
    assert caught[0].filename == __file__


def test_warning_of_explain_points_at_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of missing drawings: the line that saves the explanation."""
    monkeypatch.setitem(sys.modules, "pydot", None)
    explanation = fastops.compile.explain(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), torch.ones(1, 2))
    with pytest.warns(UserWarning, match="no drawings") as caught:
        explanation.save(tmp_path)
    assert [one.filename for one in caught if "no drawings" in str(one.message)] == [__file__]
