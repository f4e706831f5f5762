"""The examples run, write what they promise, and fail when fastops computes something else than PyTorch.

Each runs as a user runs it, in a process of its own, with one thread: tests run beside each other.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from processes import run_each

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=300)


def run_example(name: str, *arguments: object) -> str:
    result = run(EXAMPLES / name, "--threads", 1, *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def check_png(path: Path) -> None:
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


LOAD = """
import sys, torch, fastops
network = torch.export.load(sys.argv[1]).module()
assert "fastops.mlp" in network.code, network.code
print(*(tuple(network(torch.zeros(size, 784)).shape) for size in (1, 7)))
"""


def test_digits(tmp_path: Path) -> None:
    text = run_example("digits.py", "--epochs", 1, "--batch-size", 200, "--out", tmp_path / "demo")
    for row in ("held-out accuracy", "final training loss", "seconds per epoch", "KiB kept for backward"):
        assert row in text
    assert "the same answer for 1000 of 1000 held-out digits" in text
    check_png(tmp_path / "demo" / "digits.png")
    loaded = run("-c", LOAD, tmp_path / "demo" / "digits.pt2")  # knows the network only from the file
    assert loaded.stdout.split("\n")[0] == "(1, 10) (7, 10)", loaded.stderr


def test_regression() -> None:
    text = run_example("regression.py", "--steps", 20)
    for row in ("forward, microseconds", "backward, microseconds", "held-out squared error"):
        assert row in text
    assert "Gradients checked against PyTorch's" in text


def test_pinn(tmp_path: Path) -> None:
    text = run_example("pinn.py", "--steps", 10, "--rounds", 1, "--points", 64, "--out", tmp_path)
    for row in ("relative L2 error", "final loss", "seconds per Adam step"):
        assert row in text
    check_png(tmp_path / "pinn.png")


def test_pinn_in_three_variables(tmp_path: Path) -> None:
    text = run_example(
        "pinn.py", "--equation", "helmholtz", "--steps", 5, "--rounds", 0, "--points", 64, "--out", tmp_path
    )
    assert "unit cube" in text
    check_png(tmp_path / "pinn.png")


def test_vmc(tmp_path: Path) -> None:
    text = run_example("vmc.py", "--steps", 5, "--walkers", 64, "--particles", 3, "--out", tmp_path)
    for row in ("ground state 7.5000", "relative error", "seconds for local energies"):
        assert row in text
    check_png(tmp_path / "vmc.png")


def test_tabular(tmp_path: Path) -> None:
    text = run_example("tabular.py", "--epochs", 1, "--dropout", 0.1, "--out", tmp_path)
    for row in ("held-out accuracy", "final loss", "seconds per epoch", "KiB kept for backward"):
        assert row in text
    check_png(tmp_path / "tabular.png")


def test_control(tmp_path: Path) -> None:
    options = ["--steps", 160, "--random-steps", 60, "--dropout", 0]
    text = run_example("control.py", *options, "--out", tmp_path)
    for row in ("mean return at the end", "seconds per update", "KiB kept by the critics"):
        assert row in text
    assert "The losses of the first 100 steps differ by at most" in text
    check_png(tmp_path / "control.png")


# fastops's activation is not the one that PyTorch runs, as if its kernel were broken.
BREAK = """
import runpy, sys
sys.argv = {arguments}
sys.path.insert(0, {folder!r})
import fastops
honest = fastops.nn.MLP.from_sequential
def broken(sequential):
    network = honest(sequential)
    {damage}
    return network
fastops.nn.MLP.from_sequential = broken
build = fastops.nn.MLP.__init__
def init(self, *args, **kwargs):
    build(self, *args, **kwargs)
    if kwargs.get("norm"):
        self[2] = fastops.nn.LeakyReLU(0.1)
fastops.nn.MLP.__init__ = init
runpy.run_path(sys.argv[0], run_name="__main__")
"""


DAMAGES = {
    "digits.py": ("network[1] = fastops.nn.Softshrink(1.001)", ["--epochs", 1, "--out"]),
    "regression.py": ("network[1] = fastops.nn.LeakyReLU(1e-3)", ["--steps", 1]),
    "vmc.py": ("network[1] = network[3] = fastops.nn.Sigmoid()", ["--steps", 1, "--walkers", 64, "--out"]),
    "tabular.py": ("", ["--epochs", 1, "--out"]),
    "control.py": ("", ["--steps", 40, "--random-steps", 30, "--out"]),
    "pinn.py": ("network[0].bias.data.add_(0.1)", ["--steps", 2, "--rounds", 0, "--points", 64, "--out"]),
}


def test_a_difference_is_an_error(tmp_path: Path) -> None:
    cases = []
    for name, (damage, options) in DAMAGES.items():
        out = [tmp_path] if options[-1] == "--out" else []
        arguments = [str(part) for part in (EXAMPLES / name, "--threads", 1, *options, *out)]
        cases.append((BREAK.format(damage=damage, arguments=arguments, folder=str(EXAMPLES)), {}))
    for code, printed in run_each("import torch, matplotlib.pyplot\n", *cases):
        assert code == 1
        assert "differ" in printed.splitlines()[-1], printed
