"""The frame of the benchmarks: its cases, its verification, what it writes and what it says. Nothing about times."""

from __future__ import annotations

import copy
import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fastops
from fastops.bench import models, peers, results, verify
from fastops.bench.cli import main
from fastops.bench.memory import bytes_kept_for_backward
from fastops.bench.results import Row
from fastops.bench.run import cases
from fastops.bench.suites import SUITES
from fastops.bench.timing import FEWEST_ROUNDS, Spread, Timings, measure
from fastops.bench.workloads import INFERENCE, TRAINING, Elementwise, Network
from reference import ACTIVATIONS

# One case's worth of arguments: the quickest run there is.
ONE_CASE = ["tiny", "--quick", "--case", "5-15-1", "--seconds", "0.01", "--threads", "1"]
MEASUREMENTS = sorted((Path(__file__).parents[1] / "docs" / "benchmarks").glob("*.csv"))

pytestmark = pytest.mark.usefixtures("restore_threads")


def run(folder: Path, *arguments: str) -> tuple[int, list[Row]]:
    """The exit code of a run of one case, and its rows."""
    code = main([*ONE_CASE, "--out", str(folder), *arguments])
    return code, results.read(folder)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


# ---- the cases ----


def test_cases() -> None:
    """Names are unique, quick cases are cases, and each has the work that its roof is compared with."""
    for suite, workloads in SUITES.items():
        names = [name for workload in workloads(False) for name in cases(workload)]
        assert len(names) == len(set(names))
        assert all(name.startswith(f"{suite}/") for name in names)
        assert {name for workload in workloads(True) for name in cases(workload)} < set(names)
    for workload in (workload for workloads in SUITES.values() for workload in workloads(True)):
        assert bool(workload.flops(TRAINING)) != bool(workload.bytes_moved(TRAINING))


def test_every_activation_has_a_case() -> None:
    names = {workload.name for workload in SUITES["elementwise"](False)}
    assert names == set(ACTIVATIONS)
    assert all(models.pytorch_activation(name)(torch.ones(3)).shape == (3,) for name in names)


def test_work() -> None:
    """Two operations for each product; in training thrice, less the gradient of an input that needs none."""
    network = next(SUITES["tiny"](True))
    assert network.flops(INFERENCE) == 2 * 64 * (5 * 15 + 15)
    assert network.flops(TRAINING) == 2 * 64 * (2 * 5 * 15 + 3 * 15)
    inner = Network("ffn", "", 8, torch.float32, lambda: models.GatedMLP(4, 6), input_gradient=True)
    assert inner.flops(TRAINING) == 3 * inner.flops(INFERENCE) == 3 * 2 * 8 * 3 * 4 * 6
    activation = Elementwise("elementwise", "gelu", 2**12, torch.bfloat16)
    assert (activation.bytes_moved(INFERENCE), activation.bytes_moved(TRAINING)) == (2 * 2**13, 5 * 2**13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_sides_compute_the_same(dtype: torch.dtype) -> None:
    """From the same weights, every kind of workload gives what PyTorch gives, gradients included."""
    device = torch.device("cpu")
    for workload in (
        Network("", "", 5, dtype, lambda: models.sequential((6, 7, 3), nn.Softshrink())),
        Network("", "", 5, dtype, lambda: models.Laplacian(models.sequential((2, 7, 2), nn.Tanh()))),
        Network("", "", 5, dtype, lambda: models.Hessian(models.sequential((2, 7, 2), nn.Tanh()))),
        Network("", "", 5, dtype, lambda: models.GatedMLP(6, 7), input_gradient=True),
        Elementwise("", "mish", 100, dtype),
    ):
        tensors = workload.tensors()
        expected = verify.reference(workload, tensors)
        own, eager = (
            verify.errors(workload.results(contender, tensors), expected)
            for contender in (workload.fastops(device), workload.pytorch(device))
        )
        assert verify.complaint(own, eager, dtype) is None
        for contender in (workload.fastops(device), workload.pytorch(device)):
            workload.training_step(contender, tensors)()
            assert all(parameter.grad is not None for parameter in contender.parameters)


def test_repeated_input() -> None:
    """An input larger than what is computed in float64 repeats itself, and all of the result is compared."""
    workload = Elementwise("", "relu", 2**21, torch.float32)
    tensors = workload.tensors()
    expected = verify.reference(workload, tensors)
    assert tensors.input.numel() == 2 * expected[0].numel()
    output = torch.relu(tensors.input)
    assert verify.errors([output], expected[:1]) == [0.0]
    output[-1] += 1
    assert verify.errors([output], expected[:1])[0] > 0.01


def test_rows_away_from_kinks() -> None:
    """Rows are left out where a derivative would depend on rounding."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Softshrink(0.5), nn.Linear(1, 1))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.zero_()
    candidates = torch.tensor([[0.3], [0.5], [-0.500001], [0.7]])
    assert models.rows_away_from_kinks(model, candidates).tolist() == candidates[[0, 3]].tolist()


# ---- verification ----


def test_complaint() -> None:
    assert verify.complaint([4e-7, 0.0], [1e-7, 0.0], torch.float32) is None
    assert "the output" in str(verify.complaint([1e-5, 0.0], [1e-7, 0.0], torch.float32))
    assert "gradient 0" in str(verify.complaint([0.0, float("inf")], [0.0, 0.0], torch.float32))


@pytest.mark.parametrize("result", [torch.full((3,), torch.nan), torch.ones(2), torch.ones(3, 3)])
def test_no_number_and_wrong_shape(result: Tensor) -> None:
    assert verify.errors([result], [torch.ones(3, dtype=torch.float64)]) == [torch.inf]


class Damaged(nn.Module):
    """A module with another result."""

    def __init__(self, module: nn.Module, damage: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.module, self.damage = module, damage

    def forward(self, input: Tensor) -> Tensor:
        return self.damage(self.module(input))


@pytest.mark.parametrize(
    ("damage", "failed"),
    [
        (lambda output: output * 1.001, {INFERENCE, TRAINING}),
        (lambda output: output + 0.001 * (output - output.detach()), {TRAINING}),  # only the gradient
    ],
)
def test_wrong_result_is_not_timed(
    damage: Callable[[Tensor], Tensor], failed: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    honest = models.by_fastops
    monkeypatch.setattr(models, "by_fastops", lambda model: Damaged(honest(model), damage))
    code, rows = run(tmp_path, "--peers", "eager")
    assert code == 1
    own = {row.mode: row for row in rows if row.peer == peers.FASTOPS}
    assert {mode for mode, row in own.items() if row.status == results.FAILED} == failed
    for row in rows:
        assert (row.seconds is None) == (row.mode in failed)
    assert all("wrong result" in own[mode].note for mode in failed)
    assert "failed" in (tmp_path / "table.md").read_text()


def test_failing_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A peer that fails is n/a, with the reason, and the others are timed."""

    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("no compiler\nhere")

    monkeypatch.setattr(torch, "compile", fail)
    code, rows = run(tmp_path, "--peers", "eager,compile")
    assert code == 0
    for row in rows:
        if row.peer == peers.COMPILE:
            assert (row.status, row.note, row.seconds) == (results.UNAVAILABLE, "RuntimeError: no compiler here", None)
        else:
            assert row.seconds


def test_fastops_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PyTorch's model compiled by fastops' backend."""
    backends = []

    def compile(model: torch.nn.Module, backend: str) -> torch.nn.Module:
        backends.append(backend)
        assert isinstance(model, torch.nn.Sequential)
        return model

    monkeypatch.setattr(torch, "compile", compile)
    code, rows = run(tmp_path, "--peers", "fastops-compile")
    assert code == 0 and set(backends) == {"fastops"}
    assert all(row.seconds for row in rows if row.peer == peers.FASTOPS_COMPILE)


def test_cuda_graphs_are_for_gpus(tmp_path: Path) -> None:
    _, rows = run(tmp_path, "--peers", "cuda-graphs")
    notes = {row.note for row in rows if row.peer == peers.CUDA_GRAPHS}
    assert notes == {"it is for GPUs that PyTorch calls cuda"}


class Graphed(nn.Module):
    """What a graph is to autograd: it has a gradient for the input if the sample needed one."""

    def __init__(self, module: nn.Module, sample: Tensor) -> None:
        super().__init__()
        self.module, self.sample = module, sample

    def forward(self, input: Tensor) -> Tensor:
        return self.module(input if self.sample.requires_grad else input.detach())


@pytest.mark.parametrize("mode", [INFERENCE, TRAINING])
@pytest.mark.parametrize("input_gradient", [False, True])
def test_cuda_graphs_are_captured_as_they_are_called(
    input_gradient: bool, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an input that needs a gradient where the workload's does: its graph has one then, and not otherwise."""
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda module, samples: Graphed(module, *samples))
    cpu = torch.device("cpu")
    build = partial(models.sequential, (6, 7, 3), nn.Tanh())
    workload, model = Network("", "", 5, torch.float32, build, input_gradient=input_gradient), build()
    contender = peers.graphed(workload, model, mode, cpu)
    assert isinstance(contender.call, Graphed)
    assert contender.call.sample.requires_grad == (input_gradient and mode == TRAINING)
    tensors = workload.tensors()
    if mode == TRAINING:
        assert len(workload.results(contender, tensors)) == 5 + input_gradient
        workload.training_step(contender, tensors)()
        assert all(parameter.grad is not None for parameter in model.parameters())


def test_cuda_graphs_and_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured without dropout for inference; in training, nothing could be compared."""
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda module, samples: Graphed(module, *samples))
    cpu = torch.device("cpu")
    for probability in (0.0, 0.5):
        model = nn.Sequential(nn.Linear(6, 7), nn.Dropout(probability), nn.Linear(7, 3))
        workload = Network("", "", 5, torch.float32, partial(copy.deepcopy, model))
        peers.graphed(workload, model, INFERENCE, cpu)
        assert not model[1].training
        if probability:
            with pytest.raises(peers.UnavailableError, match="compared without dropout"):
                peers.graphed(workload, model, TRAINING, cpu)
        else:
            peers.graphed(workload, model, TRAINING, cpu)
            assert model[1].training
    assert models.has_dropout(nn.TransformerEncoderLayer(4, 1, dropout=0.1))
    assert not models.has_dropout(nn.TransformerEncoderLayer(4, 1, dropout=0.0))


def test_zentorch_is_for_networks_and_inference(tmp_path: Path) -> None:
    _, rows = run(tmp_path, "--peers", "zentorch,zentorch-linear")
    notes = {row.note for row in rows if row.peer != peers.FASTOPS and row.mode == TRAINING}
    assert notes == {"it is for inference"}


# ---- timing ----


def test_measure() -> None:
    """Every function has a sample in each round, and enough calls in it."""
    count = {"a": 0, "b": 0}

    def call(name: str) -> None:
        count[name] += 1

    timings = measure({name: lambda name=name: call(name) for name in count}, seconds=0.01, synchronize=lambda: None)
    assert len(timings.seconds["a"]) == len(timings.seconds["b"]) >= FEWEST_ROUNDS
    for name, calls in timings.calls.items():
        assert count[name] >= calls * len(timings.seconds[name])


def test_ratio_is_paired() -> None:
    """The ratio is taken within each round: what slows a whole round down does not count."""
    timings = Timings({"slow": [2.0, 20.0, 6.0], "fast": [1.0, 10.0, 2.0]}, {"slow": 1, "fast": 1})
    assert timings.ratio("slow", "fast") == Spread(2.0, 2.0, 2.5)
    assert timings.spread("slow").median == 6.0


def test_bytes_kept_for_backward() -> None:
    """PyTorch keeps a softshrink's input and its output, which is the next layer's input; fastops keeps one."""
    sequential = models.sequential((4, 8, 2), nn.Softshrink())
    x = torch.ones(16, 4)
    for model, tensors in ((sequential, 2), (models.by_fastops(sequential), 1)):
        given = [x, *model.parameters()]
        assert bytes_kept_for_backward(lambda model=model: model(x), given) == tensors * 16 * 8 * 4


def test_roofs() -> None:
    torch.set_num_threads(1)
    for dtype in ("float32", "float64"):
        assert fastops._C.peak_flops(dtype, 0.01) > 1e6
    bfloat16 = fastops._C.peak_flops("bfloat16", 0.01)
    assert bfloat16 is None or bfloat16 > 1e6
    for nontemporal in (False, True):
        assert fastops._C.copy_bandwidth(2**12 + 4, nontemporal, 0.01) > 1e6
    with pytest.raises(ValueError, match="dtype must be float32, float64 or bfloat16, but is 'int8'"):
        fastops._C.peak_flops("int8", 0.01)
    with pytest.raises(ValueError, match="bytes must be at least 4, but is 3"):
        fastops._C.copy_bandwidth(3, False, 0.01)


# ---- what is written ----


def test_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run writes the CSV file with the machine, the table and a plot; the last two can be made again."""
    code, rows = run(tmp_path, "--peers", "eager")
    assert code == 0
    assert "5-15-1-relu/64/float32/training" in capsys.readouterr().out
    with (tmp_path / results.FILE).open() as file:
        assert csv.DictReader(file).fieldnames == results.COLUMNS
    assert [(row.mode, row.peer) for row in rows] == [
        (mode, peer) for mode in (INFERENCE, TRAINING) for peer in ("fastops", "eager")
    ]
    for row in rows:
        assert row.seconds_lower <= row.seconds <= row.seconds_upper
        assert (row.torch, row.fastops, row.threads) == (torch.__version__, fastops.__version__, 1)
        assert row.cpu and row.cores and row.capability and row.date
        assert row.percent_of_roof and row.roof == "float32 multiply-adds"
        assert (row.bytes_kept_for_backward is not None) == (row.mode == TRAINING)
    assert json.loads((tmp_path / "machine.json").read_text())["roofs"]["float32 multiply-adds"] > 0
    table = (tmp_path / "table.md").read_text()
    assert "| case | fastops | vs eager | % of roof | kept vs eager |" in table
    (tmp_path / "table.md").unlink()
    (tmp_path / "tiny.png").unlink()
    (tmp_path / "table.md").mkdir()
    with pytest.raises(SystemExit):
        run(tmp_path, "--peers", "eager")
    assert "error: --out: " in capsys.readouterr().err
    (tmp_path / "table.md").rmdir()
    results.write(tmp_path, rows)
    assert main(["plot", str(tmp_path)]) == 0
    assert (tmp_path / "table.md").read_text() == table
    assert (tmp_path / "tiny.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_losses_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the table; where that cannot be written, an error says so."""
    row = Row("tiny", "tiny/net/1/float32/inference", "net", "1", "float32", INFERENCE, "fastops", seconds=2e-6)
    eager = replace(row, peer="eager", seconds=1e-6, fastops_speedup=0.5)
    results.write(tmp_path, [row, eager])
    assert results.read(tmp_path) == [row, eager]
    assert main(["plot", str(tmp_path)]) == 0
    table = tmp_path / "table.md"
    assert "| net/1/float32/inference | 2.00 µs | 0.50 |" in table.read_text()
    table.unlink()
    table.mkdir()
    with pytest.raises(SystemExit):
        main(["plot", str(tmp_path)])
    assert f"error: plot: [Errno 21] Is a directory: '{table}'" in capsys.readouterr().err


@pytest.mark.parametrize("file", MEASUREMENTS, ids=lambda file: file.stem)
def test_measurements_of_the_documentation(tmp_path: Path, file: Path) -> None:
    """They can be read, and each file is of one machine."""
    shutil.copyfile(file, tmp_path / results.FILE)
    rows = results.read(tmp_path)
    assert len({(row.cpu, row.cores, row.threads, row.device) for row in rows}) == 1


def test_merged() -> None:
    """What is measured again on the same machine takes the place of what was."""
    old = [Row("s", "s/a", "a", "1", "float32", INFERENCE, peer, seconds=1.0, cpu="x") for peer in ("fastops", "eager")]
    new = [replace(old[1], seconds=2.0), replace(old[1], cpu="y")]
    assert results.merged(old, new) == [old[0], *new]


# ---- the command line ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["huge"], "unknown suite 'huge': it must be one of tiny, digits, ffn, elementwise"),
        (["--device", "tpu"], "--device: 'tpu' is not available here; it must be one of cpu"),
        (
            ["--peers", "eager,jax"],
            "unknown peer 'jax': it must be one of eager, func, cuda-graphs, compile, fastops-compile, zentorch",
        ),
        (["--case", "5-16-1"], "no case has '5-16-1' in its name"),
        (["--device", "cpu:x"], "--device: Invalid device string: 'cpu:x'"),
        (["--threads", "0"], "--threads: must be an integer from 1 to "),
        (["--threads", "many"], ", but is many"),
        (["--threads", "1000000"], ", but is 1000000"),
        (["--seconds", "0"], "--seconds: must be a number above 0, but is 0"),
        (["--seconds", "inf"], "--seconds: must be a number above 0, but is inf"),
        (["--out", "/dev/null/results"], "--out: "),
        (["plot"], "plot takes one folder with a results.csv, but got 0"),
        (["plot", "/nowhere"], "there is no /nowhere/results.csv"),
    ],
)
def test_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("text", "what"), [("case,a\n1,2\n", "unknown columns a"), ("", "no columns suite, case")])
def test_results_of_another_version(text: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is measured; they stay what they are."""
    file = tmp_path / results.FILE
    file.write_text(text)
    for arguments in (["plot", str(tmp_path)], [*ONE_CASE, "--out", str(tmp_path)]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert f"{file} has {what}" in capsys.readouterr().err
    assert file.read_text() == text and list(tmp_path.iterdir()) == [file]


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["digits", "--list", "--case", "/512/*/training"]) == 0
    assert capsys.readouterr().out == "digits/784-256-256-256-10-softshrink/512/float32/training\n"


def test_missing_library() -> None:
    """Without the extra, the module says what to install; importing fastops does not need it."""
    result = run_python(
        "import sys, runpy, fastops; assert 'fastops.bench' not in sys.modules; sys.modules['rich'] = None; "
        "runpy.run_module('fastops.bench', run_name='__main__')"
    )
    assert result.returncode == 1
    assert result.stderr.strip().splitlines()[-1] == (
        "fastops.bench needs rich, which is not installed: pip install matplotlib rich"
    )
