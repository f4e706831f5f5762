"""The model of times on GPUs (tools/gpu/model.py): what must be so whatever its assumptions are."""

import os
import shutil
import sys

import pytest
import torch

from fastops.bench import results, suites
from fastops.bench.workloads import INFERENCE, TRAINING, Elementwise
from gpu_tools import gpu_tool

model = gpu_tool("model")
H100 = model.GPUS["H100"]

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or not shutil.which(os.environ.get("CXX", "c++")),
    reason="needs a C++ compiler, for the library's count of small networks",
)


@pytest.fixture(params=model.GPUS.values(), ids=lambda gpu: gpu.name)
def gpu(request):
    """Each GPU of the table."""
    return request.param


def seconds(gpu, workload, mode):
    """fastops' and eager's, with no instructions counted."""
    return [time.seconds for time in model.predicted(gpu, workload, mode, {})]


def test_large_passes_take_what_their_bytes_take(gpu):
    """Between the bandwidth that its maker names and what is assumed of it."""
    elements = 2**30
    time = model.elementwise(gpu, elements, 2, 4, instructions=4).seconds
    assert 1 <= time / (8 * elements / gpu.bandwidth) < 1.2


def test_small_passes_take_what_their_launch_takes(gpu):
    """Of the host: nothing else counts."""
    (own, eager) = seconds(gpu, Elementwise("elementwise", "relu", 16, torch.float32), INFERENCE)
    assert own == eager == model.OP


@pytest.mark.parametrize("itemsize", [2, 4])
def test_more_rows_never_take_less_time(gpu, itemsize):
    """Of products, and of passes."""
    sizes = [2**n for n in range(20)]
    for depth in (8, 768, 4096):
        times = [model.product(gpu, rows, 768, depth, itemsize).seconds for rows in sizes]
        assert times == sorted(times)
    times = [model.elementwise(gpu, rows, 3, itemsize, 20).seconds for rows in sizes]
    assert times == sorted(times)


def test_products_stay_below_the_roof(gpu):
    """Of either layer of 768-3072-768; large ones come near it."""
    for rows in (1, 128, 2048, 2**16):
        for columns, depth in ((3072, 768), (768, 3072)):
            time = model.product(gpu, rows, columns, depth, 2).seconds
            roof = 2 * rows * columns * depth / gpu.matrix16
            assert time > roof
    assert time < 2 * roof


def test_every_case_has_a_time(gpu):
    """Both peers' are positive, training takes longer than inference, and of one op alone the two are the same."""
    for suite in model.SUITES.values():
        for workload in suite(True):
            inference, training = (seconds(gpu, workload, mode) for mode in (INFERENCE, TRAINING))
            assert 0 < inference[0] < training[0]
            assert 0 < inference[1] < training[1]
            assert inference[0] <= inference[1]


def test_a_graph_leaves_the_host_out(gpu):
    """It takes no longer than the same kernels one by one, and no less than they themselves take."""
    for workload in model.small(quick=True):
        for time in model.predicted(gpu, workload, TRAINING, {}):
            assert max(max(kernel.by.values()) for kernel in time.kernels) < time.graph <= time.seconds


def test_small_networks_are_counted_as_the_library_does():
    """One kernel forward and two backward where it chooses so, or own products, else seven and more of the layers."""
    few, many = (next(w for w in model.small(False) if w.size == size) for size in (64, 16384))
    own = next(w for w in model.small(False) if w.size == 64 and "128" in w.name)
    kernels = [
        [len(model.predicted(H100, w, mode, {})[0].kernels) for mode in (INFERENCE, TRAINING)] for w in (few, own)
    ]
    assert kernels == [[1, 5], [3, 10]]
    assert len(model.predicted(H100, many, TRAINING, {})[0].kernels) > 7


def test_measured_times_stand_beside(tmp_path):
    """With the model's error; cases that nobody measured have empty cells."""
    workload = next(suites.SUITES["tiny"](True))
    case = workload.case(INFERENCE)
    names = {"suite": "tiny", "name": workload.name, "size": "64", "dtype": "float32", "mode": INFERENCE}
    results.write(tmp_path, [results.Row(case=case, peer="fastops", seconds=10e-6, **names)])
    times = model.measured(tmp_path / results.FILE)
    assert times == {(case, "fastops"): 10e-6}
    head, _, *lines = model.table(H100, ["tiny"], "5-15-1", times, quick=True)
    assert "fastops measured" in head
    assert lines[0].endswith(" | 10.0 | -49% |  |  |")
    assert lines[1].endswith(" |  |  |  |  |")
    assert "measured" not in next(model.table(H100, ["tiny"], "", {}, quick=True))


def test_instructions_are_those_of_the_table(tmp_path):
    """What check_kernels.py counted, for each of four elements and once more."""
    path = tmp_path / "kernels.csv"
    name = "void fastops::hip::transform_row<float, 1, 1, fastops::hip::(anonymous namespace)::Forward<"
    name += "fastops::activations::GELUTanh, float> >(...)"
    path.write_text(f'gpu,source,registers,blocks,instructions,kernel\nsm_90,activation,32,8,250,"{name}"\n')
    assert model.counted("sm_90", path) == {("gelutanh", "float32"): 50}
    assert model.counted("gfx942", path) == {}
