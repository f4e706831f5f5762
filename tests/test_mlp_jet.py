"""mlp_jet against PyTorch's nested differentiation in float64, and forward mode, which calls it."""

import functools
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import functional
from torch.nn.functional import linear

import fastops
from checks import CalledOps, assert_meta_agrees, assert_same_bits, products
from expected import activation, mlp_jet_reference
from jets import SMOOTH, assert_close, interleaved, model, once, plain, random_network, wide
from strategies import WIDEST, every_dtype, features, random_tensor

ops = torch.ops.fastops


def check(x, directions, weights, biases, hidden, last, grad, trace_weights=()):
    """The output and all gradients of one call."""
    dtype = x.dtype
    arguments = (x, directions, weights, biases, hidden, last, [], [], list(trace_weights))
    biased = [bias is not None for bias in biases]
    reference = mlp_jet_reference(directions, biased, activation(hidden), activation(last), list(trace_weights))
    leaves = [x, *interleaved(weights, biases)]
    expected, pull_back = torch.func.vjp(reference, *map(wide, leaves))
    output, saved = ops.mlp_jet_forward(*arguments)
    assert_close(output, expected, dtype, "output")
    assert_same_bits(ops.mlp_jet(*arguments), output)
    assert_meta_agrees((output, saved), ops.mlp_jet_forward, *arguments)
    mask = [True, *(wanted for is_biased in biased for wanted in (True, is_biased))]
    backward = (grad, *arguments[:4], saved, *arguments[4:], mask)
    results = ops.mlp_jet_backward(*backward)
    assert_meta_agrees(results, ops.mlp_jet_backward, *backward)
    gradients = pull_back(wide(grad))
    for i, (result, value) in enumerate(zip(results, gradients, strict=True)):
        # That of a bias is made of what its weight's is made of.
        assert_close(result, value, dtype, f"gradient {i}", gradients[i - 1 : i] if value.dim() == 1 else ())
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    weights, biases = [], []
    rest = iter(leaves[1:])
    for is_biased in biased:
        weights.append(next(rest))
        biases.append(next(rest) if is_biased else None)
    output = ops.mlp_jet(leaves[0], directions, weights, biases, hidden, last, [], [], list(trace_weights))
    for result, again in zip(results, torch.autograd.grad(output, leaves, grad), strict=True):
        assert_same_bits(result, again)


@every_dtype
@once
@given(st.data())
def test_against_the_formula(device, dtype, data):
    """Output and gradients, of any sizes, with each kind of second derivatives."""
    sizes = data.draw(st.lists(features, min_size=2, max_size=5))
    directions = data.draw(st.integers(1, 5))
    seconds = data.draw(st.sampled_from([0, 1, directions, directions * (directions + 1) // 2]))
    points = data.draw(st.sampled_from([(), (0,), (1,), (7,), (3, 5), (40,)]))
    biased = data.draw(st.booleans())
    hidden, last = data.draw(st.sampled_from(SMOOTH)), data.draw(st.sampled_from(["identity", *SMOOTH]))
    trace = seconds == 1 and data.draw(st.booleans())
    trace_weights = [0.5 - d for d in range(directions)] if trace else []
    weights, biases = random_network(sizes, dtype, device, biased=biased)
    rows = 1 + directions + seconds
    x = random_tensor((*points, rows, sizes[0]), dtype, device, 7)
    grad = random_tensor((*points, rows, sizes[-1]), dtype, device, 8)
    check(x, directions, weights, biases, hidden, last, grad, trace_weights)


BLOCKS = [(2, 1), (2, 2), (2, 3), (30, 0), (12, 78), (13, 91), (64, 1), (100, 1), (60, 60)]


@pytest.mark.parametrize(("directions", "seconds"), BLOCKS)
def test_blocks(device, directions, seconds):
    """Several blocks and chunks of points, and points with more rows than there are kernels for."""
    dtype = torch.float32
    points = 2 + 5000 // (1 + directions + seconds)
    weights, biases = random_network((33, 70, 40, 3), dtype, device)
    x = random_tensor((points, 1 + directions + seconds, 33), dtype, device, 7)
    grad = random_tensor((points, 1 + directions + seconds, 3), dtype, device, 8)
    check(x, directions, weights, biases, "tanh", "identity", grad)


@every_dtype
@pytest.mark.parametrize("places", [[0, 1, 2], [1], [2]])
def test_transposed_weights(device, dtype, places):
    """Weights that are transposed matrices, some or all."""
    weights, biases = random_network((5, 33, 40, 3), dtype, device)
    for place in places:
        weights[place] = weights[place].t().contiguous().t()
    x = random_tensor((19, 5, 5), dtype, device, 7)
    grad = random_tensor((19, 5, 3), dtype, device, 8)
    check(x, 3, weights, biases, "tanh", "identity", grad)


@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 31, 32, 33, 65])
@pytest.mark.parametrize("seconds", [0, 1, 3, 6])
def test_columns(device, columns, seconds):
    """Layers of less than a vector, and of a few more than some, in a matrix product and at the end."""
    weights, biases = random_network((5, columns, columns), torch.float32, device)
    x = random_tensor((19, 4 + seconds, 5), torch.float32, device, 7)
    grad = random_tensor((19, 4 + seconds, columns), torch.float32, device, 8)
    check(x, 3, weights, biases, "silu", "tanh", grad, [2.0, -1.0, 0.5] if seconds == 1 else ())


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "hardtanh", "softshrink", "hardswish", "relu_squared"])
@pytest.mark.parametrize("seconds", [0, 1, 2, 3])
def test_infinite_derivatives(device, name, seconds):
    """Where a derivative of the activation is zero everywhere, infinite tangents and gradients are no NaN in values."""
    z = random_tensor((4, 3 + seconds, 3), torch.float64, device, 7)
    grad = random_tensor((4, 3 + seconds, 3), torch.float64, device, 8)
    z[:, 0] = 0.75  # no kink
    has_curvature = name in ("hardswish", "relu_squared")
    if not has_curvature:
        z[0, 1, 0] = grad[1, 1, 1] = math.inf
        z[2, 3:, 0] = grad[3, 3:, 1] = math.inf
    elif seconds:
        grad[1, 3:, 1], z[1, 1:3, 1] = 1e300, 1e5  # the product with the squares is infinite
    weights, biases = random_network((3, 3), torch.float64, device)
    wanted = [False, False, True]
    (result,) = ops.mlp_jet_backward(grad, z, 2, weights, biases, [z], "relu", name, [], [], [], wanted)
    assert result.isfinite().all()
    if not has_curvature:
        one = torch.full((3,), 0.75, dtype=torch.float64, device=device, requires_grad=True)
        (slope,) = torch.autograd.grad(getattr(fastops.functional, name)(one).sum(), one)
        torch.testing.assert_close(result, (grad[:, 0] * slope).sum(0))


def test_threads(device, restore_threads):
    """Results of the kernels have the same bits for every number of threads."""
    if device.type != "cpu" or products(device) == "torch":
        pytest.skip("PyTorch's products may depend on them")
    weights, biases = random_network((20, 64, 64, 2), torch.float32, device)
    leaves = [random_tensor((700, 4, 20), torch.float32, device, 7), *weights, *biases]
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        x, *parameters = [leaf.detach().requires_grad_() for leaf in leaves]
        output = ops.mlp_jet(x, 2, parameters[:3], parameters[3:], "tanh")
        results.append([output, *torch.autograd.grad(output, [x, *parameters], output.detach())])
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            assert_same_bits(one, other)


@pytest.mark.parametrize("mask", list(itertools.product([False, True], repeat=5)))
def test_every_mask(device, mask):
    """mlp_jet_backward gives what output_mask asks for, in its order."""
    weights, biases = random_network((3, 5, 2), WIDEST, device)
    x, grad = random_tensor((6, 4, 3), WIDEST, device, 7), random_tensor((6, 4, 2), WIDEST, device, 8)
    _, saved = ops.mlp_jet_forward(x, 2, weights, biases, "gelu", "tanh")
    arguments = (grad, x, 2, weights, biases, saved, "gelu", "tanh", [], [], [])
    every = ops.mlp_jet_backward(*arguments, [True] * 5)
    results = ops.mlp_jet_backward(*arguments, list(mask))
    for result, expected in zip(results, itertools.compress(every, mask), strict=True):
        torch.testing.assert_close(result, expected)


def test_directions(device):
    """Shared and of each point; each second derivative is that along its direction."""
    mlp = model(device, 3, 8, 2)
    weights, biases = [mlp[0].weight, mlp[2].weight], [mlp[0].bias, mlp[2].bias]
    x = random_tensor((4, 3), WIDEST, device, 3)
    each = random_tensor((4, 2, 3), WIDEST, device, 4)
    hessian = torch.func.vmap(torch.func.hessian(lambda p: plain(mlp, p)))(x)
    jacobian = torch.func.vmap(torch.func.jacrev(lambda p: plain(mlp, p)))(x)
    for directions, spread in ((each, each), (each[0], each[0].expand(4, 2, 3))):
        value, first, second = fastops.functional.mlp_jet(x, directions, weights, biases, "tanh")
        torch.testing.assert_close(value, plain(mlp, x))
        torch.testing.assert_close(first, torch.einsum("noi,ndi->ndo", jacobian, spread))
        torch.testing.assert_close(second, torch.einsum("noij,ndi,ndj->ndo", hessian, spread, spread))
        _, first_alone, none = fastops.functional.mlp_jet(x, directions, weights, biases, "tanh", order=1)
        torch.testing.assert_close(first_alone, first)
        assert none.shape == (4, 0, 2)


def test_errors_of_the_op(device):
    """Each names the argument, what it is and what it must be."""
    weights, biases = random_network((3, 5, 2), WIDEST, device)
    x = random_tensor((6, 4, 3), WIDEST, device, 7)
    for directions, trace_weights, message in (
        (0, [], "directions must be at least 1, but is 0"),
        (2**62, [], "directions must be below 2\\^31, but is 4611686018427387904"),
        (4, [], "input has 4 rows for each point, but with 4 directions it must have 5, 6, 9 or 15"),
        (2, [1.0], "trace_weights has 1 entries, but must be empty, or have one for each of the 2 directions"),
        (3, [1.0, 1.0, 1.0], "trace_weights has 3 entries, but must be empty"),
    ):
        with pytest.raises(ValueError, match=message):
            ops.mlp_jet(x, directions, weights, biases, "tanh", "identity", [], [], trace_weights)
    with pytest.raises(ValueError, match="input must have shape"):
        ops.mlp_jet(x[0, 0], 2, weights, biases, "tanh")
    _, saved = ops.mlp_jet_forward(x, 2, weights, biases, "tanh")
    grad = random_tensor((6, 4, 2), WIDEST, device, 7)
    rest = ("tanh", "identity", [], [], [])
    with pytest.raises(ValueError, match="saved has 0 tensors, but must have 1"):
        ops.mlp_jet_backward(grad, x, 2, weights, biases, [], *rest, [True] * 5)
    with pytest.raises(ValueError, match="output_mask has 3 entries, but must have 5"):
        ops.mlp_jet_backward(grad, x, 2, weights, biases, saved, *rest, [True] * 3)
    with pytest.raises(ValueError, match="grad_output has shape"):
        ops.mlp_jet_backward(grad[:, :3], x, 2, weights, biases, saved, *rest, [True] * 5)


@pytest.mark.parametrize("leading", [(), (5,), (2, 3), (0,)])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_forward_mode(device, leading, checkpoint):
    """A tangent of an mlp's input goes through mlp_jet, and what comes of it has gradients."""
    x, v, grad = (random_tensor((*leading, 4), torch.float64, device, seed=i) for i in range(3))
    parameters = [
        random_tensor(size, torch.float64, device, seed=3 + i) for i, size in enumerate([(6, 4), (6,), (4, 6)])
    ]
    leaves = [tensor.requires_grad_() for tensor in (x, v, *parameters)]

    def own(point):
        return ops.mlp(point, parameters[::2], [parameters[1], None], "tanh", "silu", [], [], checkpoint)

    def reference(point):
        return nn.functional.silu(linear(torch.tanh(linear(point, *parameters[:2])), parameters[2]))

    with CalledOps() as called:
        output, tangent = torch.func.jvp(own, (x,), (v,))
    assert called.names == ["mlp_jet_forward"]
    expected, expected_tangent = torch.func.jvp(reference, (x,), (v,))
    torch.testing.assert_close((output, tangent), (expected, expected_tangent))
    losses = [(y * grad).sum() + t.square().sum() for y, t in ((output, tangent), (expected, expected_tangent))]
    torch.testing.assert_close(*(torch.autograd.grad(loss, leaves) for loss in losses))


@pytest.mark.parametrize("grad", [False, True])
def test_jacobians_in_forward_mode(device, grad):
    """Those of torch.autograd.functional, whose tangents alone are a batch, and what is differentiated of them."""
    mlp = model(device, 3, 5, 2).requires_grad_(grad)
    x = random_tensor((4, 3), WIDEST, device, 7)
    results = []
    for network in (mlp, functools.partial(plain, mlp)):
        results.append([functional.jacobian(network, x, vectorize=True, strategy="forward-mode")])
        loss = lambda x, network=network: network(x).square().sum()  # noqa: E731
        results[-1].append(functional.hessian(loss, x, vectorize=True, outer_jacobian_strategy="forward-mode"))
    torch.testing.assert_close(*results)


def test_forward_mode_of_parameters(device):
    """A tangent of a parameter, with or without one of the input."""
    x, v = (random_tensor((5, 3), torch.float64, device, seed=i) for i in range(2))
    w, dw = (random_tensor((2, 3), torch.float64, device, seed=2 + i) for i in range(2))
    function = lambda x, w: ops.mlp(x, [w], [None], "identity", "tanh")  # noqa: E731
    reference = lambda x, w: torch.tanh(linear(x, w))  # noqa: E731
    torch.testing.assert_close(torch.func.jvp(function, (x, w), (v, dw)), torch.func.jvp(reference, (x, w), (v, dw)))
    torch.testing.assert_close(
        torch.func.jvp(lambda w: function(x, w), (w,), (dw,)), torch.func.jvp(lambda w: reference(x, w), (w,), (dw,))
    )
