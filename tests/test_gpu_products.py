"""Networks of float32 and of 16 bits whose products are the GPU kernels' own (src/backends/hip/kernels/product.hip).

In the GPU emulator all are that have contiguous rows of weights and are too wide for one kernel, on a GPU those that
take less time so.
"""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perceptrons import draw_network, expected_network
from reference import ACTIVATIONS
from strategies import DEVICE, IN_GPU_EMULATOR, ONCE, random_tensor, seeds

ops = torch.ops.fastops
DTYPES = [torch.float32, torch.bfloat16, torch.float16]

pytestmark = pytest.mark.skipif(
    DEVICE != "cuda" and not IN_GPU_EMULATOR, reason="needs a GPU, or the GPU emulator of make gpu-check"
)


def integers(size, seed, device, most=2):
    """Of which all sums and products here are exact."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, size, generator=generator).float().to(device)


def mlp_with_gradients(x, weights, biases, grad, activation, output, params=()):
    """The output and every gradient."""
    y, saved = ops.mlp_forward(x, weights, biases, activation, output, params)
    mask = [True, *(wanted for bias in biases for wanted in (True, bias is not None))]
    grads = ops.mlp_backward(grad, x, weights, biases, y, saved, activation, output, params, [], mask)
    return [y, *grads]


def in_float64(tensors):
    """Of an argument of the function above."""
    return [None if tensor is None else tensor.double() for tensor in tensors]


@settings(max_examples=2 * ONCE * settings().max_examples)
@given(st.data(), st.sampled_from([129, 136, 160]), st.booleans(), st.sampled_from(DTYPES))
def test_networks(device, data, wide, in_packets, dtype):
    """Forward and backward, of any layouts, biases and masks; weights are parts of matrices that are wider or not."""
    others = st.sampled_from([4, 8, 64, 128] if in_packets else [1, 3, 17, 33, 130])
    sizes = data.draw(st.permutations([wide, *data.draw(st.lists(others, min_size=1, max_size=2))]))
    network = draw_network(data, dtype, device, sizes=sizes)
    for i, weight in enumerate(network.weights):
        space = data.draw(st.sampled_from([0, 1, 8]))
        network.weights[i] = torch.nn.functional.pad(weight, (space, 0))[:, space:]
    mask = [leaf is not None and data.draw(st.booleans()) for leaf in network.leaves]
    output, saved = ops.mlp_forward(*network.arguments)
    args = (network.grad, *network.arguments[:3], output, saved, *network.arguments[3:], mask)
    expected_output, expected = expected_network(network)
    expected_output.assert_holds(output)
    for i, (result, grad) in enumerate(zip(ops.mlp_backward(*args), itertools.compress(expected, mask), strict=True)):
        grad.assert_holds(result, f"gradient {i} of {mask}")


@pytest.mark.parametrize("sizes", [(300, 131, 5), (7, 140, 140), (260, 64), (3, 516, 1), (136, 136, 136)])
@pytest.mark.parametrize("rows", [1, 16, 50, 129])
def test_small_integers_are_exact(rows, sizes, device):
    """Whatever the tile, the edges and the number of slices: no product is left out or added twice."""
    x = integers((rows, sizes[0]), 0, device)
    weights = [integers((out, inputs), i, device, most=1) for i, (inputs, out) in enumerate(itertools.pairwise(sizes))]
    biases = [integers(weight.shape[:1], i, device) for i, weight in enumerate(weights)]
    grad = integers((rows, sizes[-1]), 1, device)
    arguments = x, weights, biases, grad, "softshrink", "identity", [1.0]
    expected = mlp_with_gradients(x.double(), in_float64(weights), in_float64(biases), grad.double(), *arguments[4:])
    for result, exact in zip(mlp_with_gradients(*arguments), expected, strict=True):
        assert torch.equal(result.double(), exact)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "sizes", [(300, 131), (7, 140), (260, 64), (516, 1), (136, 136), (40, 520), (264, 264), (516, 260)]
)
@pytest.mark.parametrize("rows", [1, 16, 50, 129, 520])
def test_layers_of_small_integers_are_rounded_once(rows, sizes, dtype, device):
    """All sums are exact, also where 16 bits have no room for them: those are rounded as the last thing."""
    inputs, outputs = sizes
    x, weight, bias, grad = (
        integers(size, i, device).to(dtype)
        for i, size in enumerate([(rows, inputs), (outputs, inputs), (outputs,), (rows, outputs)])
    )
    results = mlp_with_gradients(x, [weight], [bias], grad, "identity", "identity")
    exact = mlp_with_gradients(x.double(), [weight.double()], [bias.double()], grad.double(), "identity", "identity")
    for result, expected in zip(results, exact, strict=True):
        assert torch.equal(result, expected.to(dtype))


@pytest.mark.parametrize("where", [(0, 0), (37, 150), (16, 31)])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_special_values_stay_in_their_row(where, value, device):
    """Of the input: the row's results are NaN or infinite, and no others."""
    x, weight = integers((40, 151), 0, device), torch.ones(133, 151, device=device)
    x[where] = value
    y = ops.linear_act(x, weight, None, "identity")
    rows = ~y.isfinite().all(1)
    assert rows.nonzero().tolist() == [[where[0]]]
    assert not y[where[0]].isfinite().any()


@pytest.mark.parametrize("sizes", [(0, 150), (150, 0), (150, 130)])
@pytest.mark.parametrize("rows", [0, 3])
def test_empty(sizes, rows, device):
    """Sums of nothing are the bias, and their gradients zeros."""
    inputs, outputs = sizes
    x, weight = torch.ones(rows, inputs, device=device), torch.ones(outputs, inputs, device=device)
    bias, grad = torch.full((outputs,), 2.0, device=device), torch.ones(rows, outputs, device=device)
    y, dx, dw, db = mlp_with_gradients(x, [weight], [bias], grad, "identity", "identity")
    assert torch.equal(y, torch.full_like(y, 2.0 + inputs))
    assert torch.equal(dx, torch.full_like(dx, outputs))
    assert torch.equal(dw, torch.full_like(dw, rows))
    assert torch.equal(db, torch.full_like(db, rows))


@given(seeds, st.sampled_from([1, 18, 33]))
def test_gated_networks_of_small_integers(device, seed, rows):
    """Whose products are asked for one by one."""
    x, grad = integers((rows, 33), seed, device), integers((rows, 20), seed + 1, device)
    gate, up, down = integers((40, 33), 1, device), integers((40, 33), 2, device), integers((20, 40), 3, device)

    def results(*tensors):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        y = ops.gated_mlp(leaves[0], leaves[1], leaves[2], leaves[3], None, None, None, "softshrink", [1.0])
        return [y, *torch.autograd.grad(y, leaves, grad.to(y.dtype))]

    wide = results(*in_float64([x, gate, up, down]))
    for result, exact in zip(results(x, gate, up, down), wide, strict=True):
        assert torch.equal(result.double(), exact)


def products_of_torch(call):
    """How many products PyTorch makes."""
    call()
    with torch.profiler.profile() as profile:
        call()
    names = ("aten::mm", "aten::addmm", "aten::_addmm_activation")
    return sum(event.count for event in profile.key_averages() if event.key in names)


def step(device, dtype=torch.float32, transposed=False):
    """Forward and backward of a network with two layers."""
    x = random_tensor((64, 200), dtype, device, seed=0)
    weights = [random_tensor(size, dtype, device, seed=1) for size in ((150, 200), (10, 150))]
    if transposed:
        weights = [weight.t().contiguous().t() for weight in weights]
    biases = [random_tensor(weight.shape[:1], dtype, device, seed=2) for weight in weights]
    grad = random_tensor((64, 10), dtype, device, seed=3)
    return lambda: mlp_with_gradients(x, weights, biases, grad, "gelu", "identity")


def test_products_are_our_own(device):
    """All of them in float32 and 16 bits; PyTorch's in float64 and of weights that are transposed."""
    for dtype in DTYPES:
        assert products_of_torch(step(device, dtype)) == 0
    assert products_of_torch(step(device, dtype=torch.float64)) == 6
    assert products_of_torch(step(device, transposed=True)) > 0


@pytest.mark.parametrize(("attribute", "value"), [("allow_tf32", True), ("fp32_precision", "tf32")])
def test_who_allows_tf32_gets_it(attribute, value, device):
    """By either of PyTorch's settings: it is PyTorch's products that round to it."""
    try:
        setattr(torch.backends.cuda.matmul, attribute, value)
        assert products_of_torch(step(device)) == 6
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False  # which sets the other, too


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_is_that_of_its_op(name, dtype, device):
    """Of sums that are exact, bit by bit."""
    x, weight = (integers(size, i, device, most=1).to(dtype) / 8 for i, size in enumerate([(20, 140), (9, 140)]))
    z = ops.linear_act(x, weight, None, "identity")
    assert torch.equal(ops.linear_act(x, weight, None, name), getattr(ops, name)(z))
