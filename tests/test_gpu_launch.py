"""The code that launches the GPU kernels, on a runtime that writes launches down and runs nothing.

`make gpu-check` runs it, with the launching code that the compilers for HIP and for CUDA make, on the device of
examples/backend, whose memory no code of the host can read.
"""

import ctypes
import itertools
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import torch

import fastops
from gpu_tools import gpu_tool

ops = torch.ops.fastops
RUNTIME = os.environ.get("FASTOPS_GPU_RUNTIME")

pytestmark = pytest.mark.skipif(not RUNTIME, reason="needs FASTOPS_GPU_RUNTIME, the stand-in of make gpu-check")


KERNELS = (
    "transform",
    "transform_row",
    "forward",
    "backward",
    "narrow_forward",
    "narrow_backward",
    "add_blocks",
    "multiply",
)


class Launch(NamedTuple):
    """What the runtime was asked for."""

    symbol: str
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    stream: int
    device: int


@pytest.fixture
def runtime():
    """The stand-in, with nothing written down."""
    library = ctypes.CDLL(RUNTIME)
    library.stand_in_launches.restype = ctypes.c_char_p
    library.stand_in_launches()
    yield library
    library.stand_in_fail_after(-1)
    library.stand_in_capture(0)


def launches(runtime):
    """What was launched since the last time."""
    result = []
    for line in runtime.stand_in_launches().decode().splitlines():
        name, *numbers = line.split()
        numbers = [int(number) for number in numbers]
        (kernel,) = re.findall(rf"\d({'|'.join(KERNELS)})I", name)
        result.append(Launch(name, kernel, tuple(numbers[:3]), tuple(numbers[3:6]), *numbers[6:]))
    return result


def matrix(rows, columns, device="hostmem", dtype=torch.float32):
    """A matrix that nobody looks into."""
    return torch.empty(rows, columns, dtype=dtype, device=device)


def mlp_arguments(device, rows=1000, features=8):
    """Of a network that is small enough for one kernel, or wide, with products by themselves."""
    weights = [matrix(features, 5, device), matrix(3, features, device)]
    return matrix(rows, 5, device), weights, [torch.empty(features, device=device), None], "gelu", "gelu"


def mlp_backward(device, **sizes):
    """With every gradient."""
    network = mlp_arguments(device, **sizes)
    output, saved = ops.mlp_forward(*network)
    mask = [True, True, True, True, False]
    ops.mlp_backward(output, *network[:3], output, saved, *network[3:], [], [], mask)


def bias_backward(device, rows=9000):
    """With both gradients."""
    x = matrix(rows, 6, device)
    ops.bias_act_backward(x, x, torch.empty(6, device=device), "gelu", [], False, [True, True])


def steps_on_rows(device):
    """Of a network without products."""
    vectors = [torch.empty(7, device=device) for _ in range(3)]
    seed = torch.empty((), dtype=torch.int64, device=device)
    return matrix(9, 7, device), vectors, "layer_norm gelu dropout scale", [1e-5, 0.5], seed


def rows_backward(device):
    """With every gradient."""
    input, vectors, *steps = steps_on_rows(device)
    ops.sequential_backward(input, input, vectors, [], *steps, [True] * 4)


def normed_rows(device, dtype=torch.float32, columns=8):
    """Few of them, with a norm and an activation."""
    vectors = [torch.empty(columns, dtype=dtype, device=device) for _ in range(2)]
    return matrix(9, columns, device, dtype), vectors, "layer_norm gelu", [1e-5], None


def normed_rows_backward(device, **sizes):
    """With every gradient."""
    input, vectors, *steps = normed_rows(device, **sizes)
    ops.sequential_backward(input, input, vectors, [], *steps, [True] * 3)


# Calls of ops on a device, and what they launch.
CALLS = {
    "activation": (lambda d: ops.gelu(matrix(9, 7, d)), ["transform_row"]),
    "in place": (lambda d: ops.gelu_(matrix(9, 7, d)), ["transform_row"]),
    "activation_backward": (
        lambda d: ops.activation_backward(matrix(9, 7, d), matrix(9, 7, d), "gelu"),
        ["transform_row"],
    ),
    "bias_act": (lambda d: ops.bias_act(matrix(9, 7, d), torch.empty(7, device=d), "gelu"), ["transform"]),
    "bias_act_backward": (bias_backward, ["backward", "add_blocks"]),
    "few rows": (lambda d: bias_backward(d, rows=9), ["backward"]),
    "act_mul": (lambda d: ops.act_mul(matrix(9, 7, d), matrix(9, 7, d), "gelu"), ["transform_row"]),
    "gated_act": (lambda d: ops.gated_act(matrix(9, 8, d), "gelu"), ["transform"]),
    "gated_act_backward": (
        lambda d: ops.gated_act_backward(matrix(9, 4, d), matrix(9, 8, d), "gelu", [], False),
        ["transform"],
    ),
    "mlp": (lambda d: ops.mlp(*mlp_arguments(d)), ["forward"]),
    "mlp_forward": (lambda d: ops.mlp_forward(*mlp_arguments(d)), ["forward"]),
    "mlp_backward": (mlp_backward, ["forward", "backward", "add_blocks"]),
    "wide mlp": (lambda d: ops.mlp(*mlp_arguments(d, features=200)), ["multiply"] * 2),
    "wide mlp_backward": (
        lambda d: mlp_backward(d, rows=100, features=200),
        ["multiply"] * 2 + ["transform_row"] + ["multiply"] * 4,
    ),
    "sequential": (lambda d: ops.sequential(*steps_on_rows(d)), ["forward"]),
    "sequential_backward": (rows_backward, ["backward", "add_blocks"]),
    "normed rows": (lambda d: ops.sequential(*normed_rows(d)), ["narrow_forward"]),
    "normed rows backward": (normed_rows_backward, ["narrow_backward", "add_blocks"]),
    "linear_act": (lambda d: ops.linear_act(matrix(9, 5, d), matrix(8, 5, d), None, "gelu"), ["multiply"]),
}
every_call = pytest.mark.parametrize(("call", "kernels"), CALLS.values(), ids=CALLS)


def assert_limits(launch):
    """The grid is one that every GPU takes: AMD's count the threads of each direction in 32 bits."""
    assert launch.grid[0] < 2**31
    assert max(launch.grid[1:]) <= 65535
    assert all(blocks * threads < 2**32 for blocks, threads in zip(launch.grid, launch.block, strict=True))


@every_call
def test_launches(call, kernels, runtime):
    """Each op launches its kernels and no others, with blocks and shared memory that every GPU grants."""
    call("hostmem")
    launched = launches(runtime)
    assert [launch.kernel for launch in launched] == kernels
    for launch in launched:
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        # Of few rows, the kernels of steps on rows have fewer, so that more multiprocessors have some.
        of_rows = call in (CALLS["sequential"][0], rows_backward) or launch.kernel.startswith("narrow")
        assert threads == 256 or (of_rows and threads % 32 == 0)
        assert_limits(launch)
        assert launch.shared <= 48 * 1024


@pytest.mark.parametrize("columns", [12_000, 20_000, 50_000, 60_000])
def test_wide_rows(columns, runtime):
    """Rows that need more shared memory than every GPU has are one kernel where the device has it: CUDA's stand-in.

    Which refuses a kernel that is allowed another amount than before: with other threads, between that and a launch.
    """
    ops.sequential(matrix(3, columns), [], "gelu dropout", [0.5], torch.empty((), dtype=torch.int64, device="hostmem"))
    launched = launches(runtime)
    if "cuda" in fastops.__path__[0] and columns <= 50_000:
        (launch,) = launched
        assert launch.kernel == "forward"
        assert 4 * columns <= launch.shared <= 227 * 1024
    else:
        assert "forward" not in [launch.kernel for launch in launched]


# Networks: features of the layers, rows, dtype, device; whether they are one kernel, forward and backward. Device 0
# seems to have 132 multiprocessors, device 1 has 16.
SMALL = [
    ((128, 128, 128, 128), 1365, torch.float32, 0, False, False),
    ((128, 128, 128, 128), 1, torch.float32, 0, False, False),
    ((64, 64, 64, 64), 132 * 32, torch.float32, 0, True, True),
    ((64, 64, 64, 64), 132 * 32 + 1, torch.float32, 0, False, True),
    ((64, 64, 64, 64), 132 * 64 + 1, torch.float32, 0, False, False),
    ((32, 32, 32, 1), 132 * 32, torch.float32, 0, True, True),
    ((32, 32, 32, 1), 132 * 32 + 1, torch.float32, 0, False, True),
    ((32, 32, 32, 1), 132 * 128 + 1, torch.float32, 0, False, False),
    ((32, 32, 32, 1), 16 * 32, torch.float32, 1, True, True),
    ((32, 32, 32, 1), 16 * 32 + 1, torch.float32, 1, False, True),
    ((32, 32, 32, 1), 16 * 64 + 1, torch.float32, 1, False, False),
    ((128, 128, 128, 128), 1365, torch.bfloat16, 0, True, False),
    ((32, 32, 32, 1), 132 * 32, torch.bfloat16, 0, True, True),
    ((128, 128, 128, 128), 1365, torch.float16, 1, True, False),
    ((128, 128, 128, 128), 9, torch.float64, 0, True, True),
    ((128, 128, 128, 128), 12, torch.float64, 0, True, False),
    ((128, 128, 128, 128), 1365, torch.float64, 0, False, False),
    ((16, 16, 16), 1365, torch.float64, 0, True, True),
    ((128, 128, 129), 5, torch.bfloat16, 0, False, False),
]


@pytest.mark.parametrize(("sizes", "rows", "dtype", "index", "forward", "backward"), SMALL, ids=str)
def test_choice_of_one_kernel(sizes, rows, dtype, index, forward, backward, runtime):
    """A network is one kernel where that takes less time than launching those of its layers."""
    device = f"hostmem:{index}"
    weights = [matrix(n, k, device, dtype) for k, n in itertools.pairwise(sizes)]
    biases = [torch.empty(len(weight), dtype=dtype, device=device) for weight in weights]
    network = matrix(rows, sizes[0], device, dtype), weights, biases, "gelu", "gelu"
    output, saved = ops.mlp_forward(*network)
    is_one = {"forward": [launch.kernel for launch in launches(runtime)] == ["forward"]}
    mask = [False, *[True] * (2 * len(weights))]
    ops.mlp_backward(output, *network[:3], output, saved, *network[3:], [], [], mask)
    launched = launches(runtime)
    is_one["backward"] = [launch.kernel for launch in launched] == ["backward", "add_blocks"]
    assert is_one == {"forward": forward, "backward": backward}
    if backward:  # a block for each tile, and threads for each sum
        assert launched[0].grid[0] == -(-rows // (16 if dtype == torch.float64 else 32))
        assert launched[1].grid[0] * launched[1].block[0] >= sum(n * k + n for k, n in itertools.pairwise(sizes))
        assert launched[1].block[1] >= 8


@pytest.mark.parametrize(
    ("width", "rows", "dtype", "by_host", "in_graph"),
    [
        (32, 1, torch.float32, True, False),
        (128, 1, torch.float32, False, False),
        (64, 132 * 32, torch.float32, True, False),
        (64, 132 * 32 + 1, torch.float32, False, False),
        (64, 12, torch.float64, True, True),
        (128, 12, torch.float64, True, False),
        (32, 1365, torch.bfloat16, True, False),
        (128, 1365, torch.bfloat16, True, False),
    ],
    ids=str,
)
def test_choice_in_a_graph(width, rows, dtype, by_host, in_graph, runtime):
    """Where a stream is captured, or does not say, launches count less. What it fails to say is no launch's error."""
    x, weight, bias = matrix(rows, width, dtype=dtype), matrix(width, width, dtype=dtype), matrix(1, width, dtype=dtype)
    for captured, is_one in ((0, by_host), (1, in_graph), (-1, in_graph), (0, by_host)):
        runtime.stand_in_capture(captured)
        ops.mlp(x, [weight] * 3, [bias[0]] * 3, "gelu", "gelu")
        assert ([launch.kernel for launch in launches(runtime)] == ["forward"]) == is_one


def test_library_is_prepared_for_a_graph(runtime):
    """Where a graph would have its products, but not these calls: once for a thread, before anything is captured."""
    x, weight = matrix(1000, 64, dtype=torch.bfloat16), matrix(64, 64, dtype=torch.bfloat16)

    def products_of_torch():
        with torch.profiler.profile() as profile:
            ops.mlp(x, [weight] * 2, [None] * 2, "gelu", "identity")
        return sum(event.count for event in profile.key_averages() if event.key in ("aten::mm", "aten::addmm"))

    with ThreadPoolExecutor(1) as pool:
        assert [pool.submit(products_of_torch).result() > 0 for _ in range(2)] == [True, False]
        assert {launch.kernel for launch in launches(runtime)} == {"forward"}
        runtime.stand_in_capture(1)
        assert pool.submit(products_of_torch).result() > 0
        runtime.stand_in_capture(0)


def test_last_step_of_a_product(runtime):
    """PyTorch's op for it is tried once for each device, and left where it does not do what the kernel does.

    Here that does nothing: its results differ from ReLU's. Nothing is tried while streams are captured, or may be.
    """
    for index in (0, 1):
        device = f"hostmem:{index}"
        x, weight, bias = (torch.randn(size, dtype=torch.float64).to(device) for size in ((9, 130), (140, 130), (140,)))
        for captured, tried in ((1, []), (-1, []), (0, ["transform_row"]), (0, [])):
            runtime.stand_in_capture(captured)
            ops.linear_act(x, weight, bias, "relu")
            launched = launches(runtime)
            assert [launch.kernel for launch in launched] == [*tried, "transform_row"]
            assert {launch.device for launch in launched} == {index}


@every_call
def test_stream(call, kernels, runtime):
    """Kernels are put on the current stream of the tensors' device, whichever device is the current one."""
    for index in (0, 1):
        stream = torch.Stream(f"hostmem:{index}")
        for expected in (stream.stream_id, 0):
            if expected:
                torch.accelerator.set_stream(stream)
            else:
                torch.accelerator.set_stream(torch.hostmem.default_stream(index))
            for current in (0, 1):
                torch.hostmem.set_device(current)
                call(f"hostmem:{index}")
                assert torch.hostmem.current_device() == current
                assert {(launch.stream, launch.device) for launch in launches(runtime)} == {(expected, index)}
    torch.hostmem.set_device(0)


@every_call
def test_errors(call, kernels, runtime):
    """What the runtime says of a launch is raised; nothing is launched after it, and the next call works again."""
    for successes in range(len(kernels)):
        runtime.stand_in_fail_after(successes)
        with pytest.raises(RuntimeError, match="GPU kernel could not be launched: the stand-in was told to fail"):
            call("hostmem")
        assert [launch.kernel for launch in launches(runtime)] == kernels[: successes + 1]
        call("hostmem")
        assert len(launches(runtime)) == len(kernels)


def test_sums_by_themselves(runtime):
    """Of up to 256 rows they are one kernel, of more two: PyTorch's takes longer than either."""
    for rows, kernels in ((256, ["backward"]), (257, ["backward"]), (9000, ["backward", "add_blocks"])):
        x = matrix(rows, 6)
        ops.bias_act_backward(x, x, None, "identity", [], False, [False, True])
        assert [launch.kernel for launch in launches(runtime)] == kernels


def test_gradient_without_sums_is_the_activations(runtime):
    """Elements by themselves, in packets whatever the columns are."""
    x = matrix(9, 7)
    for bias, kernel in ((None, "transform_row"), (torch.empty(7, device="hostmem"), "backward")):
        ops.bias_act_backward(x, x, bias, "gelu", [], False, [True, False])
        assert [launch.kernel for launch in launches(runtime)] == [kernel]


def test_nothing_to_do(runtime):
    """Tensors without elements launch nothing."""
    for sizes in ((0, 5), (5, 0)):
        x = matrix(*sizes)
        ops.gelu(x)
        ops.bias_act(x, torch.empty(sizes[1], device="hostmem"), "gelu")
        ops.act_mul(x, x, "gelu")
        ops.activation_backward(x, x, "gelu")
        ops.bias_act_backward(x, x, None, "gelu", [], False, [True, False])
    assert launches(runtime) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
def test_grid(dtype, runtime):
    """The threads are as many as there are packets and other elements: none is left out, and no block is idle."""
    width = 16 // dtype.itemsize
    many_rows = 65535 * 64 + 1  # more blocks of rows than one direction of a grid has
    for rows, columns in [*itertools.product((1, 3, 1000), (1, 3, 16, 31)), (many_rows, 3)]:
        for step in (0, 1):
            x = matrix(rows, columns + step, dtype=dtype)[:, :columns]
            ops.gelu_(x)
            (launch,) = launches(runtime)
            if x.is_contiguous():
                height, length, in_packets = 1, rows * columns, True
            elif columns == 1:
                height, length, in_packets = 1, rows, False
            else:
                height, length, in_packets = rows, columns, x.stride(0) % width == 0
            pieces = length // width + length % width if in_packets else length
            (across, down, layers), (block_across, block_down, _) = launch.grid, launch.block
            assert 0 <= across * block_across - pieces < block_across, (rows, columns, launch)
            assert 0 <= down * layers * block_down - height < layers * block_down, (rows, columns, launch)
            assert (layers > 1) == (height == many_rows)


def test_blocks_of_sums_follow_the_device(runtime):
    """Four for each multiprocessor, but no more than the rows give. Device 0 seems to have 132, device 1 has 16."""
    for rows, columns, blocks in (
        (2**20, 64, {0: 528, 1: 64}),
        (2**20, 1024, {0: 132, 1: 16}),  # for each of four strips of columns
        (64, 64, {0: 1, 1: 1}),
    ):
        for index, most in blocks.items():
            x = matrix(1, columns, f"hostmem:{index}").expand(rows, columns)
            ops.bias_act_backward(x, x, None, "gelu", [], False, [False, True])
            first, *others = launches(runtime)
            assert first.kernel == "backward"
            assert 0.97 * most <= first.grid[1] <= most
            assert [launch.kernel for launch in others] == ["add_blocks"] * (most > 1)


def test_packets(runtime):
    """Rows whose every packet is 16 aligned bytes are taken in packets: a fourth as many threads for float32."""
    storage = matrix(1, 4096)[0]
    for offset, step, columns in ((0, 68, 64), (1, 68, 64), (0, 67, 64)):
        ops.gelu_(storage.as_strided((60, columns), (step, 1), offset))
        (launch,) = launches(runtime)
        pieces = 16 if (offset, step) == (0, 68) else 64
        assert launch.grid[0] * launch.block[0] == pieces


def in_place(place, rows, columns, dtype):
    """A matrix whose rows are in packets, miss them by an element, are one number or have steps between elements."""
    stride, offset = {
        "packets": ((64, 1), 0),
        "misaligned": ((64, 1), 1),
        "a number": ((0, 0), 1),
        "a row": ((0, 1), 0),
        "steps": ((128, 2), 0),
    }[place]
    return matrix(1, rows * 128, dtype=dtype)[0].as_strided((rows, columns), stride, offset)


# Places of the gradient and of x; whether threads take packets of elements. The result is a tensor of its own.
IN_PLACES = [
    ("packets", "packets"),
    ("a number", "packets"),
    ("a number", "a number"),
    ("packets", "misaligned"),
    ("misaligned", "misaligned"),
    ("steps", "misaligned"),
    ("a row", "steps"),
]


@pytest.mark.parametrize(("grad", "x"), IN_PLACES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_one_operand_in_packets_is_enough(grad, x, dtype, runtime):
    """Gradients that are expanded and operands that are not aligned leave the others their packets."""
    width = 16 // dtype.itemsize
    operands = in_place(grad, 60, 48, dtype), in_place(x, 60, 48, dtype)
    ops.activation_backward(*operands, "gelu")
    ops.act_mul(*operands, "gelu")
    ops.bias_act(operands[1], torch.empty(48, dtype=dtype, device="hostmem"), "gelu")
    for launch in launches(runtime):
        rows = 60 if launch.grid[1] * launch.block[1] >= 60 else 1
        assert 0 <= launch.grid[0] * launch.block[0] - 60 // rows * 48 // width < launch.block[0]
    ops.bias_act_backward(*operands, None, "gelu", [], False, [True, True])
    symbols = [launch.symbol for launch in launches(runtime) if launch.kernel == "backward"]
    names = subprocess.run(["c++filt", *symbols], capture_output=True, text=True, check=True).stdout
    assert f"backward<{width}, " in names


def test_operands_without_packets(runtime):
    """Where none has packets, or only the bias, a thread takes one element."""
    x, bias = in_place("misaligned", 60, 48, torch.float32), torch.empty(48, device="hostmem")
    ops.gelu_(x)
    (launch,) = launches(runtime)
    assert launch.grid[0] * launch.block[0] >= 48
    ops.bias_act_backward(x, x, bias, "gelu", [], False, [False, True])
    (launch,) = launches(runtime)
    assert launch.grid[0] * launch.block[0] >= 48


FEATURES = 768  # of what occupancy.csv has of the kernels of rows


def rows_backward_of_features(dtype):
    """LayerNorm, GELU and dropout with every gradient, computed in the dtype; in float64 three steps have no room."""
    x = matrix(9000, FEATURES, dtype=dtype)
    vectors = [torch.empty(FEATURES, dtype=dtype, device="hostmem") for _ in range(2)]
    if dtype == torch.float64:
        steps = vectors, "layer_norm gelu", [1e-5], None
    else:
        steps = vectors, "layer_norm gelu dropout", [1e-5, 0.5], torch.empty((), dtype=torch.int64, device="hostmem")
    ops.sequential(x, *steps)
    ops.sequential_backward(x, x, vectors, [], *steps[1:], [True] * 3)


def narrow_rows_of_dtype(dtype):
    """Of columns for each kernel; float64 goes another way."""
    for columns in (256, 512, 1024):
        ops.sequential(*normed_rows("hostmem", dtype, columns))
        normed_rows_backward("hostmem", dtype=dtype, columns=columns)


def small_mlp_of_dtype(dtype):
    """Forward and backward."""
    x, weights = matrix(1000, 5, dtype=dtype), [matrix(8, 5, dtype=dtype), matrix(3, 8, dtype=dtype)]
    output, saved = ops.mlp_forward(x, weights, [None] * 2, "gelu", "gelu")
    mask = [True, True, False, True, False]
    ops.mlp_backward(output, x, weights, [None] * 2, output, saved, "gelu", "gelu", [], [], mask)


def products_of_dtype(dtype):
    """Of sizes for each tile, in packets and not; those of float64 are PyTorch's."""
    sizes = [(16, 8, 8), (100, 384, 128), (100, 256, 384), (1024, 128, 128), (64, 384, 256), (256, 8, 384, 64)]
    sizes += [(512, 256, 256), (600, 200, 8)]
    for (rows, *features), less in itertools.product(sizes, (0, 1)):
        features = [size - less for size in features]
        weights = [matrix(n, k, dtype=dtype) for k, n in itertools.pairwise(features)]
        biases = [torch.empty(len(weight), dtype=dtype, device="hostmem") for weight in weights]
        network = matrix(rows, features[0], dtype=dtype), weights, biases, "relu", "relu"
        output, saved = ops.mlp_forward(*network)
        ops.mlp_backward(output, *network[:3], output, saved, *network[3:], [], [], [True] * (1 + 2 * len(weights)))


def bias_backward_of_dtype(dtype):
    """In packets and by elements."""
    for columns in (64, 63):
        x = matrix(9000, columns, dtype=dtype)
        bias = torch.empty(columns, dtype=dtype, device="hostmem")
        ops.bias_act_backward(x, x, bias, "gelu", [], False, [True, True])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("source", "call"),
    [
        ("rows", rows_backward_of_features),
        ("small_mlp", small_mlp_of_dtype),
        ("bias_act", bias_backward_of_dtype),
        ("product", products_of_dtype),
        ("narrow_rows", narrow_rows_of_dtype),
    ],
    ids=["rows", "small_mlp", "bias_act", "product", "narrow_rows"],
)
def test_shared_memory_of_the_budget(source, call, dtype, runtime):
    """The budget of occupancy counts with the shared memory that blocks are launched with."""
    occupancy = gpu_tool("occupancy")
    call(dtype)
    of_source = {"product": ["multiply"], "narrow_rows": ["narrow_forward", "narrow_backward"]}.get(source, KERNELS)
    done = [launch for launch in launches(runtime) if launch.kernel in of_source]
    names = subprocess.run(["c++filt", *(launch.symbol for launch in done)], capture_output=True, text=True, check=True)
    shared = [launch.shared for launch in done]
    launched = dict(zip(map(occupancy.kind, names.stdout.splitlines()), shared, strict=True))
    assert launched == {kernel: occupancy.budget()[source, kernel].shared for kernel in launched}
    counts = {"product": 18, "narrow_rows": 6}
    if source in counts:
        assert len(launched) == (0 if dtype == torch.float64 else counts[source])
    else:
        assert len(launched) >= 2
