"""mlp_jet against PyTorch's nested differentiation in float64, and what is made of it."""

import contextlib
import functools
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._dynamo import compiled_autograd
from torch.autograd import forward_ad, functional
from torch.nn.functional import linear

import fastops
from checks import CalledOps, assert_meta_agrees, assert_same_bits, products
from expected import activation, mlp_jet_reference
from strategies import ONCE, WIDEST, every_dtype, features, random_tensor

ops = torch.ops.fastops
once = settings(max_examples=2 * ONCE * settings().max_examples)
SMOOTH = ["gelu", "gelu_tanh", "mish", "sigmoid", "silu", "sin", "softplus", "tanh"]
# Of the sums of products that a result is made of; the largest number of a result stands for those.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.1, torch.float16: 0.02}


def network(sizes, dtype, device, seed=0, biased=True):
    """Weights and biases."""
    weights, biases = [], []
    for i, (k, n) in enumerate(itertools.pairwise(sizes)):
        weights.append(random_tensor((n, k), dtype, device, seed + i, 1 / math.sqrt(max(1, k))))
        biases.append(random_tensor((n,), dtype, device, seed + 50 + i) if biased else None)
    return weights, biases


def interleaved(weights, biases):
    """In the order of output_mask, without absent biases."""
    return [tensor for layer in zip(weights, biases, strict=True) for tensor in layer if tensor is not None]


def assert_close(actual, expected, dtype, what, summands=()):
    """Where the numbers of a result cancel, other tensors may stand for them."""
    assert actual.dtype == dtype, what
    assert actual.shape == expected.shape, what
    if expected.numel():
        scale = 1 + max(tensor.abs().max().item() for tensor in (expected, *summands) if tensor.numel())
        worst = (actual.double().cpu() - expected.double().cpu()).abs().max().item()
        assert worst <= TOLERANCE[dtype] * scale, f"{what}: off by {worst:.3g} of {scale:.3g}"


def wide(tensor):
    return None if tensor is None else tensor.detach().cpu().double()


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
    weights, biases = network(sizes, dtype, device, biased=biased)
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
    weights, biases = network((33, 70, 40, 3), dtype, device)
    x = random_tensor((points, 1 + directions + seconds, 33), dtype, device, 7)
    grad = random_tensor((points, 1 + directions + seconds, 3), dtype, device, 8)
    check(x, directions, weights, biases, "tanh", "identity", grad)


@every_dtype
@pytest.mark.parametrize("places", [[0, 1, 2], [1], [2]])
def test_transposed_weights(device, dtype, places):
    """Weights that are transposed matrices, some or all."""
    weights, biases = network((5, 33, 40, 3), dtype, device)
    for place in places:
        weights[place] = weights[place].t().contiguous().t()
    x = random_tensor((19, 5, 5), dtype, device, 7)
    grad = random_tensor((19, 5, 3), dtype, device, 8)
    check(x, 3, weights, biases, "tanh", "identity", grad)


@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 31, 32, 33, 65])
@pytest.mark.parametrize("seconds", [0, 1, 3, 6])
def test_columns(device, columns, seconds):
    """Layers of less than a vector, and of a few more than some, in a matrix product and at the end."""
    weights, biases = network((5, columns, columns), torch.float32, device)
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
    weights, biases = network((3, 3), torch.float64, device)
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
    weights, biases = network((20, 64, 64, 2), torch.float32, device)
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
    weights, biases = network((3, 5, 2), WIDEST, device)
    x, grad = random_tensor((6, 4, 3), WIDEST, device, 7), random_tensor((6, 4, 2), WIDEST, device, 8)
    _, saved = ops.mlp_jet_forward(x, 2, weights, biases, "gelu", "tanh")
    arguments = (grad, x, 2, weights, biases, saved, "gelu", "tanh", [], [], [])
    every = ops.mlp_jet_backward(*arguments, [True] * 5)
    results = ops.mlp_jet_backward(*arguments, list(mask))
    for result, expected in zip(results, itertools.compress(every, mask), strict=True):
        torch.testing.assert_close(result, expected)


# ---- what is made of it ----


def model(device, *sizes, activation="tanh", dtype=WIDEST):
    torch.manual_seed(0)
    return fastops.nn.MLP(sizes[0], list(sizes[1:-1]), sizes[-1], activation=activation).to(device, dtype)


def plain(mlp, x):
    """The network in PyTorch's ops."""
    for module in mlp:
        x = linear(x, module.weight, module.bias) if isinstance(module, nn.Linear) else torch.tanh(x)
    return x


def test_laplacian(device):
    """Value, gradient and Laplacian are those of nested reverse mode; so are the gradients of a loss of them."""
    mlp = model(device, 3, 16, 16, 2)
    x = random_tensor((9, 3), WIDEST, device, 3).requires_grad_()
    value, gradient, laplacian = mlp.value_gradient_laplacian(x)
    expected = plain(mlp, x)
    rows, seconds = [], []
    for o in range(2):
        (row,) = torch.autograd.grad(expected[:, o].sum(), x, create_graph=True)
        rows.append(row)
        seconds.append(sum(torch.autograd.grad(row[:, d].sum(), x, create_graph=True)[0][:, d] for d in range(3)))
    rows, seconds = torch.stack(rows, 1), torch.stack(seconds, 1)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, rows)
    torch.testing.assert_close(laplacian, seconds)
    leaves = [x, *mlp.parameters()]
    ours = torch.autograd.grad((laplacian + value).square().sum() + gradient.sum(), leaves)
    theirs = torch.autograd.grad((seconds + expected).square().sum() + rows.sum(), leaves)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_trace_weights(device):
    """The wave equation's operator: a weight for each second derivative."""
    mlp = model(device, 2, 8, 1)
    weights, biases = [mlp[0].weight, mlp[2].weight], [mlp[0].bias, mlp[2].bias]
    x = random_tensor((5, 2), WIDEST, device, 3)
    _, _, wave = fastops.functional.mlp_laplacian(x, weights, biases, "tanh", trace_weights=[1.0, -4.0])
    hessian = torch.func.vmap(torch.func.hessian(lambda p: plain(mlp, p)[0]))(x)
    torch.testing.assert_close(wave.squeeze(-1), hessian[:, 0, 0] - 4 * hessian[:, 1, 1])


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


def test_jacobian_and_divergence(device):
    """Of all outputs; the divergence, exact and from probes, one for each axis of which the sum is exact."""
    mlp = model(device, 4, 8, 4)
    x = random_tensor((2, 3, 4), WIDEST, device, 3)
    expected = torch.func.vmap(torch.func.vmap(torch.func.jacrev(lambda p: plain(mlp, p))))(x)
    torch.testing.assert_close(mlp.jacobian(x), expected)
    torch.testing.assert_close(mlp.value_jacobian(x), (plain(mlp, x), expected))
    value, divergence = mlp.divergence(x)
    torch.testing.assert_close(value, plain(mlp, x))
    exact = of_divergence(expected)
    torch.testing.assert_close(divergence, exact)
    axes = torch.eye(4, dtype=x.dtype, device=device)
    torch.testing.assert_close(sum(mlp.divergence(x, axis.expand_as(x))[1] for axis in axes), exact)


def test_derivatives_of_a_single_layer_are_no_views(device):
    """Whoever writes to them does not write to the weight, nor to those of other points."""
    for inputs, outputs in ((4, 2), (4, 4), (12, 1)):
        mlp = fastops.nn.MLP(inputs, [], outputs, device=device)
        before = mlp[0].weight.detach().clone()
        for points in ((inputs,), (1, inputs), (3, inputs)):
            x = torch.ones(points, device=device)
            for derivatives in (mlp.jacobian(x), *mlp.value_jacobian_hessian(x)[1:]):
                with torch.no_grad():
                    expected = derivatives.clone()
                    derivatives[..., 0] += 1  # PyTorch refuses it where elements share memory
                    derivatives[..., 0] -= 1
                torch.testing.assert_close(derivatives, expected)
        assert mlp[0].weight.equal(before)


@pytest.mark.parametrize("sizes", [(2, 4, 1), (3, 4, 2), (8, 4, 1)], ids=str)
def test_results_may_be_written_to(device, sizes):
    """In place, with a graph: no result is a view of another's tensor."""
    mlp = model(device, *sizes)
    x = torch.ones(3, sizes[0], dtype=WIDEST, device=device)
    functions = mlp.value_gradient_laplacian, mlp.value_jacobian, mlp.value_jacobian_hessian
    directions = torch.eye(sizes[0], dtype=WIDEST, device=device)
    jet = lambda x: fastops.functional.mlp_jet(x, directions, [mlp[0].weight, mlp[2].weight], None, "tanh")  # noqa: E731
    for function in (*functions, jet):
        expected = [result.detach() + 1 for result in function(x)]
        results = function(x)
        for result in results:
            result += 1
        torch.testing.assert_close([result.detach() for result in results], expected)
        sum(result.sum() for result in results).backward()


def test_meta():
    """Shapes alone, of values, Jacobians and Hessians."""
    mlp = fastops.nn.MLP(5, [8], 1, activation="tanh", device="meta")
    x = torch.empty(6, 5, device="meta")
    assert [tuple(t.shape) for t in mlp.value_jacobian(x)] == [(6, 1), (6, 1, 5)]
    assert [tuple(t.shape) for t in mlp.value_jacobian_hessian(x)] == [(6, 1), (6, 1, 5), (6, 1, 5, 5)]
    assert mlp.jacobian(x).is_meta


def of_divergence(jacobian):
    return jacobian.diagonal(dim1=-2, dim2=-1).sum(-1)


def drawn_network(data, inputs, outputs, dtype, device):
    """A function's arguments, its leaves, those of the reference, the points, and jets by that, with second rows."""
    hidden_sizes = data.draw(st.lists(features, max_size=3))
    points = data.draw(st.sampled_from([(), (0,), (1,), (7,), (3, 5), (40,)]))
    biased = data.draw(st.booleans())
    hidden, last = data.draw(st.sampled_from(SMOOTH)), data.draw(st.sampled_from(["identity", *SMOOTH]))
    weights, biases = network((inputs, *hidden_sizes, outputs), dtype, device, biased=biased)
    x = random_tensor((*points, inputs), dtype, device, 7)
    leaves = [leaf.requires_grad_() for leaf in (x, *interleaved(weights, biases))]
    references = [wide(leaf).requires_grad_() for leaf in leaves]
    jet_of = mlp_jet_reference(inputs, [biased] * len(weights), activation(hidden), activation(last))

    def jet(seconds):
        directions = torch.eye(inputs, dtype=torch.float64).expand(*points, inputs, inputs)
        zeros = torch.zeros(*points, seconds, inputs, dtype=torch.float64)
        return jet_of(torch.cat([references[0].unsqueeze(-2), directions, zeros], -2), *references[1:])

    return (x, weights, biases, hidden, last), leaves, references, points, jet


def assert_gradients_close(results, expected, leaves, references, dtype, scale, others=()):
    """Those of a loss of the results. Their terms are larger than they are: `scale` times the largest, or `others`."""
    grads = [random_tensor(tuple(result.shape), dtype, leaves[0].device, 20 + i) for i, result in enumerate(results)]
    gradients = torch.autograd.grad(results, leaves, grads, allow_unused=True)
    wanted = torch.autograd.grad(expected, references, [wide(grad) for grad in grads], allow_unused=True)
    terms = [scale * tensor for tensor in (*others, *wanted) if tensor is not None]
    for i, (one, other) in enumerate(zip(gradients, wanted, strict=True)):
        assert one is None or other is not None or not one.any()
        if other is not None:
            one = torch.zeros_like(leaves[i]) if one is None else one
            assert_close(one, other, dtype, f"gradient {i}", terms)


@every_dtype
@pytest.mark.parametrize("name", ["mlp_divergence", "mlp_jacobian"])
@once
@given(st.data())
def test_first_derivatives(device, dtype, name, data):
    """The Jacobian, in forward and in reverse mode, or its trace, in every form that it has; and the gradients."""
    inputs = data.draw(features.filter(bool))
    outputs = inputs if name == "mlp_divergence" else data.draw(features)
    arguments, leaves, references, points, jet_of = drawn_network(data, inputs, outputs, dtype, device)
    jet = jet_of(0)
    value, jacobian = jet[..., 0, :], jet[..., 1:, :].mT
    expected = value, of_divergence(jacobian) if name == "mlp_divergence" else jacobian
    function = getattr(fastops.functional, name)
    results = function(*arguments)
    assert_close(results[0].detach(), value.detach(), dtype, "value")
    terms = inputs * jacobian.detach()  # of a divergence
    assert_close(results[1].detach(), expected[1].detach(), dtype, name, (terms,))
    with torch.no_grad():
        for result, again in zip(expected, function(*arguments), strict=True):
            assert_close(again, result.detach(), dtype, f"{name} without a graph", (terms,))
    assert_gradients_close(results, expected, leaves, references, dtype, math.prod((1, *points)) ** 0.5)


def symmetric(of_pairs, count):
    """The matrices [..., count, count] of what pairs have, [..., pairs]."""
    matrix = of_pairs.new_zeros((*of_pairs.shape[:-1], count, count))
    for k, (i, j) in enumerate(itertools.combinations_with_replacement(range(count), 2)):
        matrix[..., i, j] = matrix[..., j, i] = of_pairs[..., k]
    return matrix


@every_dtype
@once
@given(st.data())
def test_hessian(device, dtype, data):
    """From pairs of inputs and from the layers, where those are many; and the gradients."""
    inputs = data.draw(st.integers(1, 9))
    outputs = data.draw(st.integers(0, 4))
    arguments, leaves, references, points, jet_of = drawn_network(data, inputs, outputs, dtype, device)
    pairs = inputs * (inputs + 1) // 2
    value, jacobian, of_pairs = jet_of(pairs).split([1, inputs, pairs], -2)
    expected = value.squeeze(-2), jacobian.mT, symmetric(of_pairs.mT, inputs)
    results = fastops.functional.mlp_hessian(*arguments)
    largest = max((part.detach().abs().max() for part in expected if part.numel()), default=torch.zeros(()))
    for what, result, other in zip(("value", "Jacobian", "Hessian"), results, expected, strict=True):
        assert_close(result.detach(), other.detach(), dtype, what, (largest,))
    scale = math.prod((1, *points)) ** 0.5 * inputs
    assert_gradients_close(results, expected, leaves, references, dtype, scale, (largest,))


DERIVATIVES = [
    *(("mlp_divergence", sizes) for sizes in ((3, 3), (3, 4, 3), (3, 4, 5, 3), (3, 4, 5, 4, 3))),
    *(("mlp_jacobian", sizes) for sizes in ((5, 1), (4, 3, 1), (5, 4, 3, 2), (2, 3, 1))),
    *(("mlp_hessian", sizes) for sizes in ((2, 3, 2), (3, 4, 3, 1), (6, 3, 1), (6, 4, 3, 1))),
]


@pytest.mark.parametrize(("name", "sizes"), DERIVATIVES, ids=str)
@pytest.mark.parametrize("last", ["identity", "silu"])
def test_derivatives_of_derivatives(device, name, sizes, last):
    """Of the first and the second order; of points under vmap, of an ensemble, and under autocast."""
    weights, biases = network(sizes, WIDEST, device)
    x = random_tensor((2, sizes[0]), WIDEST, device, 7)
    count = len(weights)

    def compute(x, *parameters):
        function = getattr(fastops.functional, name)
        return function(x, list(parameters[:count]), list(parameters[count:]), "tanh", last)

    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            results = compute(x, *weights, *biases)
            each = torch.func.vmap(lambda point: compute(point, *weights, *biases))(x)
            torch.testing.assert_close(each, results)
            stacked = [torch.stack([tensor, 2 * tensor]) for tensor in (*weights, *biases)]
            members = compute(x.expand(2, *x.shape), *stacked)
            twice = compute(x, *(2 * tensor for tensor in (*weights, *biases)))
            torch.testing.assert_close(members, tuple(torch.stack(both) for both in zip(results, twice, strict=True)))
            narrow = [tensor.float() for tensor in (x, *weights, *biases)]
            with torch.autocast(device.type, torch.bfloat16):
                for one, other in zip(compute(*narrow), results, strict=True):
                    assert one.dtype == torch.bfloat16
                    torch.testing.assert_close(one.to(WIDEST), other, atol=0.1, rtol=0.1)
    if torch.float64 == WIDEST:
        leaves = [tensor.requires_grad_() for tensor in (x, *weights, *biases)]
        assert torch.autograd.gradcheck(compute, leaves)
        assert torch.autograd.gradgradcheck(compute, leaves)


def in_loss(loss, value, gradients):
    """A loss of some of them."""
    terms = {"value": [value], "gradients": gradients, "one": gradients[-1:], "both": [value, *gradients]}[loss]
    return sum((i + 1) * term.square().sum() for i, term in enumerate(terms))


@pytest.mark.parametrize("loss", ["value", "gradients", "one", "both"])
@pytest.mark.parametrize("wanted", ["all", "input", "weight", "hidden"])
@pytest.mark.parametrize("cotangent", ["ones", "constant", "leaf"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_loss_of_values_and_gradients(device, loss, wanted, cotangent, count):
    """By nested torch.autograd.grad: one or two gradients of a value, whose inputs have a history."""
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Linear(3, 5), nn.SiLU(), nn.Linear(5, 4), nn.SiLU(), nn.Linear(4, 2))
    layers.to(device, WIDEST)
    weights, biases = [layer.weight for layer in layers[::2]], [layer.bias for layer in layers[::2]]
    start = random_tensor((6, 3), WIDEST, device, 7).requires_grad_()
    by_values = [torch.ones(6, 2, dtype=WIDEST, device=device)] * count
    if cotangent != "ones":
        by_values = [random_tensor((6, 2), WIDEST, device, 20 + i) for i in range(count)]
    if cotangent == "leaf":
        by_values = [by_value.requires_grad_() for by_value in by_values]
    results = []
    for network in (layers, lambda x: ops.mlp(x, weights, biases, "silu")):
        x = start.sin()
        value = network(x)
        gradients = [torch.autograd.grad(value, x, by, create_graph=True)[0] for by in by_values]
        leaves = {"all": [start, *layers.parameters()], "input": [start], "weight": weights[1:2], "hidden": [x]}[wanted]
        leaves = [*leaves, *(by_values if cotangent == "leaf" else [])]
        total = in_loss(loss, value, gradients)
        twice = [torch.autograd.grad(total, leaves, allow_unused=True, retain_graph=True) for _ in range(2)]
        for one, again in zip(*twice, strict=True):
            assert (one is None and again is None) or torch.equal(one, again)
        results.append(twice[0])
    for one, other in zip(*results, strict=True):
        one, other = (None if each is None or not each.any() else each for each in (one, other))
        assert (one is None) == (other is None)
        if one is not None:
            assert_close(one, other, WIDEST, "gradient")


@pytest.mark.parametrize("first", ["hook", "gradient"])
def test_hooks_of_a_value_and_its_gradient(device, first):
    """They get the gradients by the value and by its gradient; where the loss is not of the value, none or zeros."""
    x = random_tensor((6, 3), WIDEST, device, 7).requires_grad_()
    weights, biases = network((3, 5, 1), WIDEST, device)
    for weight in weights:
        weight.requires_grad_()
    for with_value in (True, False):
        seen = []
        value = ops.mlp(x, weights, biases, "tanh")
        if first == "hook":
            value.register_hook(seen.append)
        (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        seen.clear()
        if first == "gradient":
            value.register_hook(seen.append)
        gradient.register_hook(seen.append)
        (gradient.sum() + (2 * value.sum() if with_value else 0)).backward()
        numbers = [number.unique().item() for number in seen]
        if with_value:
            assert numbers == [1, 2]
        else:
            assert numbers == [1] or (first == "gradient" and numbers == [1, 0])
        assert [number.shape for number in seen] == [gradient.shape, value.shape][: len(seen)]


@pytest.mark.parametrize("points", [(6,), (2, 3)], ids=str)
@pytest.mark.parametrize("way", ["nested", "value_jacobian", "value_jacobian of data"])
@pytest.mark.parametrize("sizes", [(3, 5, 1), (3, 300, 300, 1)], ids=str)
def test_a_value_and_its_gradient_are_one_pass(device, points, way, sizes):
    """On CPUs: what second derivatives leave is computed with the value's gradients, without products of their own.

    Up to a number of weights that depends on the CPU.
    """
    mlp = model(device, *sizes)

    def gradients_of(value, gradient):
        return torch.autograd.grad(gradient.square().sum() + value.square().sum(), list(mlp.parameters()))

    x = random_tensor((*points, 3), WIDEST, device, 7).requires_grad_()
    value = plain(mlp, x)
    expected = gradients_of(value, torch.autograd.grad(value.sum(), x, create_graph=True)[0])
    if way == "nested":
        value = mlp(x)
        (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    else:
        value, gradient = mlp.value_jacobian(x if way == "value_jacobian" else x.detach())
    with CalledOps() as called:
        results = gradients_of(value, gradient)
    torch.testing.assert_close(results, expected)
    if device.type == "cpu":
        weights = sum(weight.numel() for weight in mlp.parameters() if weight.dim() > 1)
        is_fused = weights <= fastops._C.most_weights_by_jet()
        assert (called.names == ["mlp_jet_forward", "mlp_jet_backward"]) == is_fused, called.names


@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 4, 3), (0, 3)], ids=str)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("ensemble", [False, True], ids=["MLP", "EnsembleMLP"])
def test_methods_are_the_functions(device, shape, outputs, ensemble):
    """Bit for bit, and with the same gradients, also of the input."""
    mlp = fastops.nn.EnsembleMLP(2, 3, [8], outputs, activation="silu") if ensemble else model(device, 3, 8, outputs)
    mlp = mlp.to(device, WIDEST)
    x = random_tensor(shape, WIDEST, device, 3).requires_grad_()
    points = x.expand(2, *shape) if ensemble and len(shape) < 3 else x
    weights, biases = [mlp[0].weight, mlp[2].weight], [mlp[0].bias, mlp[2].bias]
    arguments = (points, weights, biases, "silu" if ensemble else "tanh")
    results = [*mlp.value_gradient_laplacian(x), *mlp.value_jacobian(x), *mlp.value_jacobian_hessian(x)]
    functional = fastops.functional
    functions = functional.mlp_laplacian, functional.mlp_jacobian, functional.mlp_hessian
    expected = [result for function in functions for result in function(*arguments)]
    leaves = [x, *mlp.parameters()]
    for result, value in zip(results, expected, strict=True):
        assert_same_bits(result, value)
        grads = (
            torch.autograd.grad(y.square().sum(), leaves, allow_unused=True, retain_graph=True) for y in (result, value)
        )
        for one, other in zip(*grads, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)


def test_residual_is_refused(device):
    """Also where the modules alone would be an MLP."""
    mlp = fastops.nn.MLP(3, 8, 3, residual=True).to(device)
    with pytest.raises(RuntimeError, match=r"nn\.MLP\.jacobian: its modules are more"):
        mlp.jacobian(torch.zeros(3, device=device))


@pytest.mark.parametrize("inputs", [2, 7])
def test_compile(device, inputs):
    """A compiled training step has the eager one's gradients, with any number of points."""
    if device.type != "cpu":
        pytest.skip("Inductor for the CPU")
    mlp = model(device, inputs, 8, 8, 1, dtype=torch.float32)

    def loss(points):
        value, _, laplacian = mlp.value_gradient_laplacian(points)
        return (value + laplacian).square().mean() + mlp.hessian(points).square().mean()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for points in (6, 7):
        x = random_tensor((points, inputs), torch.float32, device, 3)
        expected = torch.autograd.grad(loss(x), list(mlp.parameters()))
        results = torch.autograd.grad(compiled(x), list(mlp.parameters()))
        for result, value in zip(results, expected, strict=True):
            torch.testing.assert_close(result, value)


def test_ensemble(device):
    """vmap over weights."""
    weights, biases = network((2, 5, 1), WIDEST, device)
    stacked_weights = [torch.stack([w, 2 * w, -w]) for w in weights]
    stacked_biases = [torch.stack([b, b, 3 * b]) for b in biases]
    x = random_tensor((4, 2), WIDEST, device, 3)

    def of_one(*tensors):
        return fastops.functional.mlp_laplacian(x, list(tensors[:2]), list(tensors[2:]), "tanh")

    results = torch.func.vmap(of_one)(*stacked_weights, *stacked_biases)
    for i in range(3):
        expected = of_one(*(tensor[i] for tensor in (*stacked_weights, *stacked_biases)))
        for result, value in zip(results, expected, strict=True):
            torch.testing.assert_close(result[i], value)


# ---- errors ----


def test_errors_of_the_op(device):
    """Each names the argument, what it is and what it must be."""
    weights, biases = network((3, 5, 2), WIDEST, device)
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


def test_errors_of_the_functions(device):
    """Likewise."""
    weights, biases = network((3, 5, 2), WIDEST, device)
    x = random_tensor((6, 3), WIDEST, device, 7)
    eye = torch.eye(3, dtype=WIDEST, device=device)
    jet = fastops.functional.mlp_jet
    for keywords, message in (
        ({"order": 3}, "order must be 1 or 2, but is 3"),
        ({"order": 1, "trace": True}, "trace is a sum of second derivatives, but order is 1"),
        ({"trace_weights": [1.0]}, "trace_weights are given, but trace is False"),
        ({"order": 1, "pairs": True}, "pairs have second derivatives, but order is 1"),
        ({"trace": True, "pairs": True}, "pairs have second derivatives, but trace"),
    ):
        with pytest.raises(ValueError, match=message):
            jet(x, eye, weights, biases, "tanh", **keywords)
    with pytest.raises(ValueError, match="directions must have shape"):
        jet(x, eye[:, :2], weights, biases, "tanh")
    if WIDEST is torch.float64:
        with pytest.raises(TypeError, match=r"directions are torch\.float64, but input is torch\.float32"):
            jet(x.float(), eye, [w.float() for w in weights], None, "tanh")
    with pytest.raises(RuntimeError, match=r"fastops\.mlp_jet: torch\.jit\.trace has no lists"):
        torch.jit.trace(lambda x: jet(x, eye, weights, biases, "tanh"), x)
    functions = fastops.functional
    for function in (functions.mlp_jacobian, functions.mlp_hessian, functions.mlp_laplacian, functions.mlp_divergence):
        name = function.__name__
        wide = [random_tensor(size, WIDEST, device, 7) for size in ((5, 9), (9, 5))]
        for arguments, error, message in (
            ((wide, [None]), ValueError, "biases has 1 entries, but weights has 2"),
            ((wide, [None] * 3), ValueError, "biases has 3 entries, but weights has 2"),
            ((wide, None, "tanh", "identity", [], [2.0]), ValueError, "identity takes 0 parameters"),
            ((wide, None, "swish"), ValueError, "unknown activation 'swish'"),
            ((wide, None, 3), TypeError, "activation must be a string, but is a int"),
            ((wide, wide[0]), TypeError, "biases must be a list of tensors and None, but is a Tensor"),
            ((wide[:1] * 2,), ValueError, r"weights\[1\] has 9 input features, but layer 0 has 5 outputs"),
        ):
            with pytest.raises(error, match=f"fastops.{name}: {message}"):
                function(random_tensor((4, 9), WIDEST, device, 3), *arguments)
        with pytest.raises(TypeError, match=f"fastops.{name}: input must be a dense"):
            function(torch.ones(4, 9, dtype=WIDEST).to_sparse(), [w.cpu() for w in wide])
    with pytest.raises(ValueError, match="directions of each point must have shape"):
        jet(x, eye.expand(4, 3, 3), weights, biases, "tanh")
    mlp = model(device, 3, 8, 2)
    for divergence in (mlp.divergence, lambda x: fastops.functional.mlp_divergence(x, weights, biases)):
        with pytest.raises(ValueError, match="as many outputs as inputs, but has 2 outputs and 3 inputs"):
            divergence(x)
    for function in (fastops.functional.mlp_divergence, fastops.functional.mlp_hessian):
        for inputs in (3, 12):
            with pytest.raises(ValueError, match="weights"):
                function(random_tensor((6, inputs), WIDEST, device, 7), [])
    with pytest.raises(ValueError, match=r"weights\[1\]"):
        fastops.functional.mlp_divergence(x, [weights[0], weights[0]])
    with pytest.raises(ValueError, match="probe must have the input's shape"):
        model(device, 3, 8, 3).divergence(x, x[0])
    mlp[0].register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="one has hooks"):
        mlp.jacobian(x)


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


@pytest.mark.parametrize("wanted", ["input", "parameters", "both"])
@pytest.mark.parametrize("power", [1, 2])
def test_reverse_within_forward_mode(device, wanted, power):
    """A gradient in a level of forward mode has its tangent, that of the input's alone."""
    mlp = model(device, 3, 5, 2)
    x, v = (random_tensor((4, 3), WIDEST, device, seed=i) for i in (7, 8))
    x.requires_grad_(wanted != "parameters")
    mlp.requires_grad_(wanted != "input")
    leaves = [leaf for leaf in (x, *mlp.parameters()) if leaf.requires_grad]
    results = []
    for network in (mlp, functools.partial(plain, mlp)):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, v)
            loss = network(dual).pow(power).sum()
            duals = [forward_ad.unpack_dual(gradient) for gradient in torch.autograd.grad(loss, leaves)]
        tangents = [torch.zeros_like(dual.primal) if dual.tangent is None else dual.tangent for dual in duals]
        results.append([dual.primal for dual in duals] + tangents)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


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


@pytest.mark.parametrize("count", [1, 3])
def test_prehook_of_the_node(device, count):
    """A hook on the network's node gets the gradient of its output alone, and changes what comes of it."""
    x = random_tensor((6, 3), WIDEST, device, 7).requires_grad_()
    mlp = model(device, 3, 5, 1)
    results = []
    for network in (mlp, functools.partial(plain, mlp)):
        value = network(x)
        lengths = []

        def doubled(grads, lengths=lengths):
            lengths.append(len(grads))
            return tuple(None if grad is None else 2 * grad for grad in grads)

        if count == 1:
            value.grad_fn.register_prehook(doubled)
        (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        if count == 3:
            value.grad_fn.register_prehook(doubled)
        results.append(torch.autograd.grad(gradient.square().sum() + value.sum(), x)[0])
        assert set(lengths) == {1}
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("sizes", [(3, 8, 1), (3, 300, 300, 1)], ids=str)
@pytest.mark.parametrize("loss", ["value", "gradients", "both"])
@pytest.mark.parametrize("wanted", ["input", "parameters"])
def test_compiled_autograd(device, sizes, loss, wanted):
    """Second derivatives, with a part left to the network's node and without, in a captured backward pass."""
    torch._dynamo.reset()
    mlp = model(device, *sizes)
    x = random_tensor((4, 3), WIDEST, device, 7).requires_grad_()
    results = []
    for way in (contextlib.nullcontext(), compiled_autograd._enable(torch.compile(backend="eager"))):
        for leaf in (x, *mlp.parameters()):
            leaf.grad = None
        value = mlp(x)
        gradients = torch.autograd.grad(
            value.square().sum(), [x] if wanted == "input" else list(mlp.parameters()), create_graph=True
        )
        total = in_loss(loss, value, list(gradients))
        with way:
            total.backward()
        results.append([torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in (x, *mlp.parameters())])
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
