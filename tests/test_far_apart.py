"""Elements more than 2**32 elements apart: no index is of 32 bits. Of the memory between them nothing is taken."""

import mmap
import os
import sys

import pytest
import torch

from checks import assert_same_bits
from strategies import random_tensor

ops = torch.ops.fastops

ROWS, COLUMNS = 3, 24
ROW_STRIDE = 2**31 + 64  # past 2**31 for the second row, past 2**32 for the third
DTYPE = torch.bfloat16


def untouched_memory(elements, device):
    """A vector of zeros whose memory is taken page by page as it is touched; all of it on a GPU."""
    size = elements * DTYPE.itemsize
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        if free < size:
            pytest.skip(f"needs {size / 2**30:.1f} GiB of the GPU's memory, {free / 2**30:.1f} are free")
        return torch.zeros(elements, dtype=DTYPE, device=device)
    if device.type != "cpu" or not hasattr(mmap, "MAP_PRIVATE"):
        pytest.skip("needs memory that is taken as it is touched")
    # Python before 3.13 has no name for Linux's flag.
    reserve_none = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | reserve_none
    try:
        return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=DTYPE)
    except OSError as error:
        pytest.skip(f"there are no addresses for {size / 2**30:.1f} GiB: {error}")


@pytest.fixture
def apart(device):
    """Copies a matrix of the sizes above to rows that lie far apart."""
    storage = untouched_memory((ROWS - 1) * ROW_STRIDE + 512, device)
    offsets = iter(range(0, 512, 32))  # whose packets are aligned

    def copy(matrix):
        rows = storage.as_strided(matrix.shape, (ROW_STRIDE, 1), next(offsets))
        return rows.copy_(matrix)

    return copy


@pytest.fixture
def matrices(device):
    """Random ones."""
    return [random_tensor((ROWS, COLUMNS), DTYPE, device, seed=seed) for seed in range(4)]


def test_activation(apart, matrices, device):
    """Forward, in place, into a given tensor of the other order, and backward."""
    x, grad = matrices[:2]
    expected = ops.gelu(x)
    assert_same_bits(ops.gelu(apart(x)), expected)
    assert_same_bits(ops.gelu_(apart(x)), expected)
    assert_same_bits(ops.gelu.out(x, out=apart(grad)), expected)
    columns = torch.empty(COLUMNS, ROWS, dtype=DTYPE, device=device)
    assert_same_bits(ops.gelu.out(apart(x).t(), out=columns), expected.t())
    assert_same_bits(ops.activation_backward(apart(grad), apart(x), "gelu"), ops.activation_backward(grad, x, "gelu"))


@pytest.mark.parametrize("columns", [ROWS, COLUMNS])
def test_bias_act(columns, apart, matrices):
    """Forward and backward; a bias that is a column of a matrix also has its elements far apart."""
    x, grad = (matrix[:, :columns].contiguous() for matrix in matrices[:2])
    bias = matrices[2][:, 0] if columns == ROWS else matrices[2][0]
    far_bias = apart(matrices[2])[:, 0] if columns == ROWS else bias
    assert_same_bits(ops.bias_act(apart(x), far_bias, "gelu"), ops.bias_act(x, bias, "gelu"))
    arguments = ("gelu", [], False, [True, True])
    results = ops.bias_act_backward(apart(grad), apart(x), far_bias, *arguments)
    for result, expected in zip(results, ops.bias_act_backward(grad, x, bias, *arguments), strict=True):
        assert_same_bits(result, expected)


def test_act_mul(apart, matrices):
    """Forward and backward."""
    gate, up, grad = matrices[:3]
    assert_same_bits(ops.act_mul(apart(gate), apart(up), "gelu"), ops.act_mul(gate, up, "gelu"))
    arguments = ("gelu", [], [True, True])
    results = ops.act_mul_backward(apart(grad), apart(gate), apart(up), *arguments)
    for result, expected in zip(results, ops.act_mul_backward(grad, gate, up, *arguments), strict=True):
        assert_same_bits(result, expected)


def test_mlp(apart, matrices):
    """A network whose input, weight and bias have rows far apart, and the gradient of its output."""
    x, weight, grad = *matrices[:2], matrices[2][:, :ROWS].contiguous()

    def results(x, weight, bias, grad):
        leaves = [leaf.detach().requires_grad_() for leaf in (x, weight, bias)]
        output = ops.mlp(leaves[0], [leaves[1]], [leaves[2]], "gelu", "gelu")
        return output, *torch.autograd.grad(output, leaves, grad)

    far = results(apart(x), apart(weight), apart(matrices[3])[:, 0], apart(grad))
    torch.testing.assert_close(far, results(x, weight, matrices[3][:, 0], grad))


only_ends = pytest.mark.skipif(
    os.environ.get("FASTOPS_EMULATOR_BLOCKS") != "ends",
    reason="needs the GPU emulator with FASTOPS_EMULATOR_BLOCKS=ends; test_large.py computes every element",
)


# Two more than packets for every thread of AMD's largest grid but one, each of which takes a thread of its own.
MOST_IN_PACKETS = 16 // DTYPE.itemsize * (2**32 - 257) + 2


@only_ends
@pytest.mark.parametrize(
    ("sizes", "stride", "offset"),
    [
        ((1, 2**31 + 2048), (2**31 + 2048, 1), 0),
        ((2, 2**31 + 2048), (2**31 + 4096, 1), 0),
        ((257 * 65535 * 128, 2), (3, 1), 0),
        ((1, 2**32 + 2048), (2**32 + 2048, 1), 1),
        ((1, MOST_IN_PACKETS), (MOST_IN_PACKETS, 1), 0),
    ],
    ids=["columns", "columns-of-two", "rows", "columns-past-a-grid", "packets-past-a-grid"],
)
def test_ends(sizes, stride, offset, device):
    """The first and the last of more than 2**31 columns, or rows, or than a grid has threads.

    Sizes that fill the blocks of the kernel; in the last case elements of which none is in a packet.
    """
    storage = untouched_memory(offset + (sizes[0] - 1) * stride[0] + sizes[1], device)
    x = storage.as_strided(sizes, stride, offset)
    ends = [x[:1, :2], x[-1:, -2:]]
    for end in ends:
        end.fill_(3.0)
    ops.softshrink_(x)
    for end in ends:
        assert torch.equal(end, torch.full_like(end, 2.5))


@only_ends
def test_ends_of_bias(device):
    """The first and the last elements of a bias' gradient for more columns than a grid has threads, and no packets."""
    columns = 2**32 + 4810
    x = untouched_memory(columns, device)[None]
    for end in (x[:, :2], x[:, -2:]):
        end.fill_(3.0)
    grad = torch.full((1, 1), 0.5, dtype=DTYPE, device=device).expand(1, columns)
    try:
        (result,) = ops.bias_act_backward(grad, x, None, "softshrink", [], False, [False, True])
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        pytest.skip(str(error))
    for end in (result[:2], result[-2:]):
        assert torch.equal(end, torch.full_like(end, 0.5))
