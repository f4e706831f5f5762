"""Jacobians, divergences, Laplacians and Hessians of networks, against those of nested differentiation."""

import functools
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fastops
from checks import assert_same_bits
from expected import activation, mlp_jet_reference
from jets import SMOOTH, assert_close, interleaved, model, once, plain, random_network, wide
from strategies import WIDEST, every_dtype, features, random_tensor


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
    weights, biases = random_network((inputs, *hidden_sizes, outputs), dtype, device, biased=biased)
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
    weights, biases = random_network(sizes, WIDEST, device)
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
    weights, biases = random_network((2, 5, 1), WIDEST, device)
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


def freed(tensor):
    """One whose memory is gone."""
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


OTHER_TENSORS = {
    "sparse": (lambda tensor: tensor.to_sparse(), TypeError, "must be a dense"),
    "float8": (lambda tensor: tensor.to(torch.float8_e4m3fn), TypeError, "must be float32, float64"),
    "other dtype": (lambda tensor: tensor.double(), TypeError, r"is torch\.float64, but input is torch\.bfloat16"),
    "other device": (lambda tensor: tensor.to("meta"), RuntimeError, "is on meta, but input is on "),
    "freed": (freed, RuntimeError, r"has shape .*, but its storage is too small"),
}


@pytest.mark.parametrize("kind", OTHER_TENSORS)
def test_directions_and_probes_of_another_kind(kind, device):
    """The error names them."""
    change, error, message = OTHER_TENSORS[kind]
    module = model(device, 3, 5, 3).bfloat16()
    x = torch.ones(4, 3, device=device, dtype=torch.bfloat16)
    with pytest.raises(error, match=rf"fastops\.mlp_jet: directions {message}"):
        fastops.functional.mlp_jet(x, change(x[:2]), [module[0].weight])
    with pytest.raises(error, match=rf"fastops\.nn\.MLP\.divergence: probe {message}"):
        module.divergence(x, change(x))


METHODS = ["__call__", "jacobian", "value_gradient_laplacian", "hessian", "divergence"]


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("members", [None, 2])
@pytest.mark.parametrize("method", METHODS)
def test_methods_of_points_that_are_no_tensors_of_numbers(method, members, outputs, device):
    """Freed ones, and nested ones, which PyTorch's own ops on the way to the kernels know otherwise."""
    features = outputs if method == "divergence" else 3
    made = fastops.nn.MLP if members is None else functools.partial(fastops.nn.EnsembleMLP, members)
    call = getattr(made(features, [5], outputs, device=device), method)
    points = torch.ones(4, features, device=device)
    with pytest.raises(RuntimeError, match=r"input has shape .*, but its storage is too small"):
        call(freed(points))
    with pytest.raises(TypeError, match="input must be a dense"):
        call(torch.nested.nested_tensor([points, points[:2]], layout=torch.jagged))


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("members", [None, 2])
@pytest.mark.parametrize("method", METHODS)
def test_methods_of_weights_that_are_no_matrices(method, members, layer, shape, device):
    """As those of a model whose parameters something has cut into shards."""
    made = fastops.nn.MLP if members is None else functools.partial(fastops.nn.EnsembleMLP, members)
    module = made(3, [5], 3, device=device)
    module[2 * layer].weight = torch.nn.Parameter(torch.ones(shape, device=device))
    with pytest.raises(ValueError, match=rf"weights\[{layer}\] must have shape .*, but has {len(shape)} dimensions"):
        getattr(module, method)(torch.ones(4, 3, device=device))


def test_errors_of_the_functions(device):
    """Likewise."""
    weights, biases = random_network((3, 5, 2), WIDEST, device)
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
        with pytest.raises(TypeError, match=r"directions is torch\.float64, but input is torch\.float32"):
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
