"""Layers whose activation is the last step of PyTorch's product (src/backends/hip/epilogue.cpp).

In the GPU emulator PyTorch's op for that is the CPU's, or a stand-in that computes what some library might. What was
found of the op holds for the process, so that each stand-in has one of its own.
"""

import pytest
import torch

from processes import run
from strategies import IN_GPU_EMULATOR

pytestmark = pytest.mark.skipif(not IN_GPU_EMULATOR, reason="needs the GPU emulator of make gpu-check")

# A network whose layers are too wide for one kernel, with a NaN and infinities in its input. `calls` counts the op's.
SCRIPT = """
import math
import torch
import fastops

activation = "{activation}"
ops = torch.ops.fastops
calls = 0

def exact(bias, a, b, use_gelu):
    z = torch.addmm(bias, a, b)
    wide = z.double()
    steep = 2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    return (wide * torch.sigmoid(steep)).to(z.dtype) if use_gelu else z.relu()

def without_nan(bias, a, b, use_gelu):
    return torch.where(torch.addmm(bias, a, b).isnan(), 0.0, exact(bias, a, b, use_gelu))

def without_tail(bias, a, b, use_gelu):
    return torch.nn.functional.gelu(torch.addmm(bias, a, b), approximate="tanh")

def exact_for_one_row(bias, a, b, use_gelu):
    return (exact if len(a) == 1 else without_nan)(bias, a, b, use_gelu)

def missing(*arguments):
    raise NotImplementedError

# As on GPUs, without the activation where there is nothing to sum.
def counted(bias, a, b, *, beta=1, alpha=1, use_gelu=False):
    global calls
    calls += 1
    return {stand_in}(bias, a, b, use_gelu) if len(b) > 0 else bias.expand(len(a), -1).clone()

torch.backends.cuda.matmul.allow_tf32 = True  # for which float32's products are PyTorch's
library = torch.library.Library("aten", "IMPL")
library.impl("_addmm_activation", counted, "CPU")

def counted_calls(f):
    global calls
    calls = 0
    f()
    return calls

# Of what both ways make of a sum, in another order or rounded once more.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.01, torch.float64: 1e-12}

for dtype, tolerance in TOLERANCES.items():
    torch.manual_seed(0)
    x = torch.randn(5, 160, dtype=dtype)
    x[0, 0], x[1, 1], x[2, 2] = math.nan, math.inf, -math.inf
    weights = [(torch.randn(n, k) / 8).to(dtype) for n, k in ((144, 160), (136, 144), (130, 136))]
    biases = [torch.randn(len(weight)).to(dtype) for weight in weights]
    leaf = x[3:].clone().requires_grad_()

    def network(x, biases=biases):
        return ops.mlp(x, weights, biases, activation, "identity")

    expected = torch.addmm(biases[0], x, weights[0].t())
    for weight, bias in zip(weights[1:], biases[1:]):
        expected = torch.addmm(bias, getattr(ops, activation)(expected), weight.t())
    first = counted_calls(lambda: network(x))
    close = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
    again = counted_calls(lambda: torch.testing.assert_close(network(x), expected, **close))
    training = counted_calls(lambda: network(leaf).sum().backward())
    without_bias = counted_calls(lambda: network(x, [None] * 3))
    print(first, again, training, without_bias)
    empty = ops.linear_act(x[:, :0], weights[0][:, :0], biases[0], activation)
    torch.testing.assert_close(empty, getattr(ops, activation)(biases[0]).expand(5, -1))
"""


@pytest.mark.parametrize(
    ("activation", "stand_in", "calls"),
    [
        # Three tries, and then one for each of two hidden layers; in training where its input is not kept.
        ("relu", "exact", "5 2 2 0"),
        ("gelu_tanh", "exact", "5 2 0 0"),
        # None after the first try that shows a difference.
        ("relu", "without_nan", "1 0 0 0"),
        ("gelu_tanh", "without_nan", "1 0 0 0"),
        ("gelu_tanh", "without_tail", "1 0 0 0"),
        ("relu", "exact_for_one_row", "2 0 0 0"),
        ("relu", "missing", "1 0 0 0"),
        ("gelu", "exact", "0 0 0 0"),
    ],
)
def test_op_is_taken_where_it_computes_the_same(activation, stand_in, calls):
    """Once per hidden layer, and not at all where it loses what the activation keeps."""
    done = run("-c", SCRIPT.replace("{activation}", activation).replace("{stand_in}", stand_in))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [calls] * 4  # of each dtype


def test_answer_for_the_op_of_the_cpu():
    """Which keeps a NaN: a stand-in is not all that the op is taken of."""
    sizes = [(5, 160), (144, 160), (144,)]
    x, weight, bias = (torch.randn(size, dtype=torch.float64) for size in sizes)
    x[0, 0] = torch.nan
    torch.ops.fastops.linear_act(x, weight, bias, "relu")
    with torch.profiler.profile() as profile:
        y = torch.ops.fastops.linear_act(x, weight, bias, "relu")
    assert sum(event.count for event in profile.key_averages() if event.key == "aten::_addmm_activation") == 1
    assert y[0].isnan().all()
    torch.testing.assert_close(y[1:], torch.addmm(bias, x, weight.t())[1:].relu())
