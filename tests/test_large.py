"""Tensors with more than 2**31 elements, or with as many rows that hold none: every index is 64 bits wide."""

import itertools
import os
from pathlib import Path

import pytest
import torch

from checks import products
from strategies import PROFILE

ops = torch.ops.fastops

COLUMNS = 2**16
ROWS = 2**15 + 1  # the last row begins at element 2**31
EDGE_ROWS = [0, 1, ROWS - 2, ROWS - 1]
EDGE_COLUMNS = [0, 1, COLUMNS - 2, COLUMNS - 1]


def available_memory(device):
    """Bytes that can be allocated on the device, as far as is known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


def edges(tensor, columns=EDGE_COLUMNS):
    """The elements at both ends and around element 2**31."""
    return tensor[EDGE_ROWS][:, columns].cpu()


def zeros_but_edges(device):
    """A large bfloat16 tensor of zeros with the numbers 1 to 16 at its edges, and those."""
    x = torch.zeros(ROWS, COLUMNS, dtype=torch.bfloat16, device=device)
    values = torch.arange(1.0, 17.0, dtype=x.dtype).reshape(4, 4)
    for row, row_values in zip(EDGE_ROWS, values, strict=True):
        x[row, EDGE_COLUMNS] = row_values.to(device)
    return x, values


def check_activation(device):
    """softshrink, its in-place form and its gradient."""
    x, values = zeros_but_edges(device)
    y = ops.softshrink(x)
    assert torch.equal(edges(y), values - 0.5)
    assert torch.count_nonzero(y) == 16
    ops.softshrink_(y)
    assert torch.equal(edges(y), (values - 1).clamp(min=0))
    del y
    grad = ops.activation_backward(x, x, "softshrink")
    assert torch.equal(edges(grad), values)
    assert torch.count_nonzero(grad) == 16


def check_bias_act(device):
    """bias_act and both its gradients."""
    x, values = zeros_but_edges(device)
    bias = torch.ones(COLUMNS, dtype=x.dtype, device=device)
    bias[-1] = 2
    y = ops.bias_act(x, bias, "relu")
    assert torch.equal(edges(y), values + bias.cpu()[EDGE_COLUMNS])
    assert torch.count_nonzero(y) == ROWS * COLUMNS
    del y
    grad, grad_bias = ops.bias_act_backward(x, x, bias, "relu", [], False, [True, True])
    assert torch.equal(edges(grad), values)
    assert torch.equal(grad_bias[EDGE_COLUMNS].cpu(), values.sum(0))
    assert torch.count_nonzero(grad) == 16
    assert torch.count_nonzero(grad_bias) == 4


def check_gated_act(device):
    """gated_act and its gradient."""
    x = torch.zeros(ROWS, COLUMNS, dtype=torch.bfloat16, device=device)
    half = COLUMNS // 2
    columns = [0, 1, half - 2, half - 1]
    for row in EDGE_ROWS:
        x[row, columns] = 3.0
        x[row, [half + column for column in columns]] = 2.0
    y = ops.gated_act(x, "relu")
    assert torch.equal(edges(y, columns), torch.full((4, 4), 6.0, dtype=x.dtype))
    assert torch.count_nonzero(y) == 16
    grad = ops.gated_act_backward(y, x, "relu", [], False)
    assert torch.equal(edges(grad, columns), torch.full((4, 4), 12.0, dtype=x.dtype))
    assert torch.equal(edges(grad, [half + c for c in columns]), torch.full((4, 4), 18.0, dtype=x.dtype))
    assert torch.count_nonzero(grad) == 32


# One test, so that parallel runs do not hold several such tensors at once.
def test_more_than_2_31_elements(device):
    """Forward and backward reach every element: both ends and those around 2**31 are looked at, the rest counted."""
    if device.type == "mps":
        pytest.skip("the Macs of CI have no buffers of that size")
    available = available_memory(device)
    if available < 16 * 2**30:
        pytest.skip(f"needs 16 GB of free memory, {available / 2**30:.1f} GB are known to be")
    check_activation(device)
    if device.type != "cpu" or PROFILE == "thorough":  # which takes a CPU long
        check_bias_act(device)
        check_gated_act(device)


# ---- rows without elements: a loop over them would not end ----

MANY = 2**36


def rows_without_elements(device, dtype=torch.float32):
    """Calls with 2**36 rows that hold nothing."""
    x = torch.ones(MANY, 0, device=device, dtype=dtype)
    none = torch.ones(0, 0, device=device, dtype=dtype)
    down = torch.ones(0, 3, device=device, dtype=dtype)
    up = torch.ones(3, 0, device=device, dtype=dtype)
    yield lambda: ops.gelu(x)
    yield lambda: ops.gelu_(x)
    yield lambda: ops.activation_backward(x, x, "gelu")
    yield lambda: ops.bias_act(x, none.view(0), "gelu")
    yield lambda: ops.bias_act.out(x, none.view(0), "gelu", out=x)
    yield lambda: ops.bias_act_backward(x, x, none.view(0), "gelu", [], False, [True, True])
    yield lambda: ops.act_mul(x, x, "gelu")
    yield lambda: ops.act_mul_backward(x, x, x, "gelu", [], [True, True])
    yield lambda: ops.gated_act(x, "gelu")
    yield lambda: ops.gated_act_backward(x, x, "gelu", [], False)
    yield lambda: ops.linear_act(x, none, none.view(0), "gelu")
    for checkpoint in (False, True):
        yield lambda checkpoint=checkpoint: ops.mlp(x, [none, none], [None, None], "gelu", checkpoint=checkpoint)
        yield lambda checkpoint=checkpoint: ops.gated_mlp(x, none, none, none, checkpoint=checkpoint)
    yield lambda: ops.mlp_forward(x, [none, none], [none.view(0), None], "gelu")
    yield lambda: ops.mlp_backward(x, x, [none, none], [None, None], None, [x], "gelu", "identity", [], [], [True] * 5)
    yield lambda: ops.gated_mlp_forward(x, none, none, none)
    mask = [True] * 7
    yield lambda: ops.gated_mlp_backward(x, x, none, none, none, None, None, x, x, "silu", [], mask)
    if products(device) != "torch" and dtype == torch.float32:
        # Hidden features that are nobody's result. PyTorch's products would need memory for them.
        yield lambda: ops.mlp(x, [up, down], [None, None], "gelu")
        yield lambda: ops.gated_mlp(x, up, up, down)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_without_elements(dtype, device):
    """However many rows there are, nothing is to be computed."""
    for call in rows_without_elements(device, dtype):
        results = call()
        for result in [results] if isinstance(results, torch.Tensor) else results:
            for tensor in [result] if isinstance(result, torch.Tensor) else result:
                assert tensor.numel() == 0


def test_gradients_of_no_outputs(device):
    """A network without outputs has gradients of zero, of whatever has elements."""
    for rows, sizes in ((0, (3, 4, 2)), (5, (3, 0)), (5, (3, 0, 0)), (5, (3, 4, 0)), (5, (0, 0, 2)), (0, (0, 0))):
        x = torch.randn(rows, sizes[0], device=device, requires_grad=True)
        weights = [torch.randn(out, size, device=device, requires_grad=True) for size, out in itertools.pairwise(sizes)]
        biases = [torch.randn(len(w), device=device, requires_grad=True) for w in weights]
        y = ops.mlp(x, weights, biases, "tanh", "sigmoid")
        expected = x
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            z = torch.nn.functional.linear(expected, weight, bias)
            expected = z.sigmoid() if i + 1 == len(weights) else z.tanh()
        torch.testing.assert_close(y, expected)
        leaves = [x, *weights, *biases]
        actual = torch.autograd.grad(y.sum(), leaves)
        for a, e in zip(actual, torch.autograd.grad(expected.sum(), leaves), strict=True):
            torch.testing.assert_close(a, e)
