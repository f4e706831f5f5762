"""linear_act, mlp and gated_mlp, forward and backward, against PyTorch in float64."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fastops
from checks import assert_meta_agrees, assert_same_bits, kept_tensors, products, reads_around_matrices
from perceptrons import Network, assert_agrees_with_autograd, draw_network, expected_network, plain_network
from reference import ACTIVATIONS
from strategies import ONCE, draw_tensor, dtypes, every_dtype, random_tensor

ops = torch.ops.fastops
once = settings(max_examples=ONCE * settings().max_examples)
many = settings(max_examples=5 * ONCE * settings().max_examples)


@many
@given(st.data(), dtypes)
def test_mlp_forward(device, data, dtype):
    """The output is that of the layers one after another; its layout that of the Meta kernel."""
    network = draw_network(data, dtype, device)
    output, grads = expected_network(network)
    assert_agrees_with_autograd(network, output, grads)
    for op, results in ((ops.mlp, ops.mlp(*network.arguments)), (ops.mlp_forward, ops.mlp_forward(*network.arguments))):
        output.assert_holds(results if op is ops.mlp else results[0], str(op))
        assert_meta_agrees(results, op, *network.arguments)


@many
@given(st.data(), dtypes)
def test_mlp_backward(device, data, dtype):
    """mlp_backward gives the gradients that output_mask asks for, in its order, and no others."""
    network = draw_network(data, dtype, device)
    mask = [leaf is not None and data.draw(st.booleans()) for leaf in network.leaves]
    output, saved = ops.mlp_forward(*network.arguments)
    args = (network.grad, *network.arguments[:3], output, saved, *network.arguments[3:], mask)
    results = ops.mlp_backward(*args)
    expected = list(itertools.compress(expected_network(network)[1], mask))
    for i, (result, grad) in enumerate(zip(results, expected, strict=True)):
        grad.assert_holds(result, f"gradient {i} of {mask}")
    assert_meta_agrees(results, ops.mlp_backward, *args)


@many
@given(st.data(), dtypes)
def test_mlp_autograd(device, data, dtype):
    """Autograd gives the gradients of whichever tensors require them."""
    network = draw_network(data, dtype, device)
    chosen = [leaf is not None and data.draw(st.booleans()) for leaf in network.leaves]
    leaves = [leaf.requires_grad_() for leaf in itertools.compress(network.leaves, chosen)]
    output = ops.mlp(*network.arguments)
    assert output.requires_grad == any(chosen)
    if leaves:
        expected = itertools.compress(expected_network(network)[1], chosen)
        for result, grad in zip(torch.autograd.grad(output, leaves, network.grad), expected, strict=True):
            grad.assert_holds(result, str(chosen))


@many
@given(st.data(), dtypes)
def test_linear_act(device, data, dtype):
    """linear_act is an mlp of one layer, forward and backward."""
    network = draw_network(data, dtype, device, max_depth=1)
    name, params = network.output
    arguments = (network.input, network.weights[0], network.biases[0], name, list(params))
    output, grads = expected_network(network)
    assert_meta_agrees(ops.linear_act(*arguments), ops.linear_act, *arguments)
    leaves = [leaf.requires_grad_() for leaf in network.leaves if leaf is not None]
    result = ops.linear_act(*arguments)
    output.assert_holds(result, name)
    for tensor, grad in zip(torch.autograd.grad(result, leaves, network.grad), grads, strict=False):
        grad.assert_holds(tensor, name)


@every_dtype
@once
@given(st.data())
def test_small_networks(device, dtype, data):
    """Networks of up to 8 layers and 128 features, which are one kernel on GPUs: any edge of its blocks of products."""
    sizes = data.draw(st.lists(st.integers(1, 128), min_size=2, max_size=9))
    rows = data.draw(st.integers(1, 70))
    layers = list(itertools.pairwise(sizes))
    # With these, which need z or f(z) or nothing for their derivative, no number outgrows float16 in eight layers.
    hidden = data.draw(st.sampled_from([("gelu", ()), ("softshrink", (0.25,)), ("identity", ())]))
    network = Network(
        input=draw_tensor(data, (rows, sizes[0]), dtype, device),
        weights=[draw_tensor(data, (n, k), dtype, device, 1 / math.sqrt(k), overlapping=False) for k, n in layers],
        biases=[draw_tensor(data, (n,), dtype, device) if data.draw(st.booleans()) else None for _, n in layers],
        hidden=hidden,
        output=hidden,
        grad=draw_tensor(data, (rows, sizes[-1]), dtype, device),
    )
    leaves = [leaf.requires_grad_() for leaf in network.leaves if leaf is not None]
    output = ops.mlp(*network.arguments)
    results = [output, *torch.autograd.grad(output, leaves, network.grad)]
    expected_output, expected_grads = expected_network(network)
    wanted = [grad for grad, leaf in zip(expected_grads, network.leaves, strict=True) if leaf is not None]
    for i, (result, expected) in enumerate(zip(results, [expected_output, *wanted], strict=True)):
        expected.assert_holds(result, f"result {i}")


@every_dtype
@pytest.mark.parametrize("sizes", [(128, 128, 128), (120, 40, 72), (16, 112, 8), (1, 127, 17)])
@pytest.mark.parametrize("rows", [16, 31, 65])
def test_products_of_small_integers_are_exact(rows, sizes, device, dtype):
    """Each product of matrices has the right elements in the right places, with weights of either order in memory."""
    generator = torch.Generator().manual_seed(0)

    def integers(*size):
        return torch.randint(-1, 2, size, generator=generator).to(dtype).to(device)

    def unit_rows(size, step):
        return torch.eye(size, dtype=dtype)[step * torch.arange(rows) % size].to(device)

    # Up to 256, which no sum passes here, every dtype has all integers.
    x, grad = unit_rows(sizes[0], step=3), unit_rows(sizes[-1], step=1)
    for transposed in (False, True):
        weights = [integers(k, n).T if transposed else integers(n, k) for k, n in itertools.pairwise(sizes)]
        leaves = [leaf.requires_grad_() for leaf in (x, *weights)]
        output = ops.mlp(x, weights, [None, None], "identity")
        doubles = [leaf.detach().cpu().double().requires_grad_() for leaf in leaves]
        exact = doubles[0] @ doubles[1].T @ doubles[2].T
        results = [output, *torch.autograd.grad(output, leaves, grad)]
        expected = [exact, *torch.autograd.grad(exact, doubles, grad.cpu().double())]
        for i, (actual, value) in enumerate(zip(results, expected, strict=True)):
            assert torch.equal(actual.detach().cpu().double(), value), f"result {i}, transposed={transposed}"


@pytest.mark.parametrize("dtype", [torch.float16], ids=["float16"])
def test_products_of_small_numbers(device, dtype):
    """Subnormal numbers of float16, which gradients often are, count in products."""
    tiny = torch.full((3, 20), 2.0**-20, dtype=dtype, device=device).requires_grad_()
    large = torch.full((2, 20), 1024.0, dtype=dtype, device=device).requires_grad_()
    output = ops.mlp(tiny, [large], [None], "identity")
    grads = torch.autograd.grad(output, (tiny, large), torch.full_like(output, 2.0**-16))
    for result, expected in zip((output, *grads), (20 * 2.0**-10, 2 * 2.0**-6, 0.0), strict=True):
        assert torch.equal(result, torch.full_like(result, expected))


@every_dtype
@pytest.mark.parametrize("name", ["identity", "relu", "relu6", "leaky_relu", "softshrink", "hardshrink", "hardtanh"])
def test_small_integers_are_exact(name, device, dtype):
    """With small integers no operation rounds, so values and gradients are exact in every dtype."""
    params = {"leaky_relu": (0.5,), "softshrink": (0.5,), "hardshrink": (1.0,), "hardtanh": (-2.0, 2.0)}.get(name, ())
    generator = torch.Generator().manual_seed(0)

    def integers(bound, *size):
        return torch.randint(-bound, bound + 1, size, generator=generator).to(dtype).to(device)

    weights = [integers(1, 4, 3), integers(1, 5, 4)]
    biases = [integers(1, 4), integers(1, 5)]
    network = Network(integers(2, 2, 3, 3), weights, biases, (name, params), (name, params), integers(1, 2, 3, 5))
    leaves = [leaf.requires_grad_() for leaf in network.leaves]
    output = ops.mlp(*network.arguments)
    results = [output, *torch.autograd.grad(output, leaves, network.grad)]
    expected_output, expected_grads = expected_network(network)
    for result, expected in zip(results, [expected_output, *expected_grads], strict=True):
        assert torch.equal(result.detach().cpu().double(), expected.value)


@every_dtype
def test_sum_backward(device, dtype):
    """The gradient of a sum is one expanded number; every leading dimension takes it."""
    for leading in ((), (5,), (2, 3), (2, 1, 3)):
        network = Network(
            input=random_tensor((*leading, 6), dtype, device, seed=0),
            weights=[random_tensor(size, dtype, device, seed=1, scale=0.4) for size in ((7, 6), (4, 7))],
            biases=[random_tensor((7,), dtype, device, seed=2), None],
            hidden=("silu", ()),
            output=("tanh", ()),
            grad=torch.ones((*leading, 4), dtype=dtype),
        )
        leaves = [leaf.requires_grad_() for leaf in network.leaves if leaf is not None]
        ops.mlp(*network.arguments).sum().backward()
        expected = [
            grad for grad, leaf in zip(expected_network(network)[1], network.leaves, strict=True) if leaf is not None
        ]
        for leaf, grad in zip(leaves, expected, strict=True):
            grad.assert_holds(leaf.grad, str(leading))


@every_dtype
@pytest.mark.parametrize("output", ["identity", "sigmoid", "gelu"])
def test_many_rows(device, dtype, output):
    """Over many rows the gradients stay within the budget."""
    network = Network(
        input=random_tensor((20000, 5), dtype, device, seed=0),
        weights=[
            random_tensor((15, 5), dtype, device, seed=1, scale=0.4),
            random_tensor((3, 15), dtype, device, seed=2, scale=0.3),
        ],
        biases=[random_tensor((15,), dtype, device, seed=3), random_tensor((3,), dtype, device, seed=4)],
        hidden=("gelu", ()),
        output=(output, ()),
        grad=random_tensor((20000, 3), dtype, device, seed=5),
    )
    leaves = [leaf.requires_grad_() for leaf in network.leaves]
    results = torch.autograd.grad(ops.mlp(*network.arguments), leaves, network.grad)
    for result, grad in zip(results, expected_network(network)[1], strict=True):
        grad.assert_holds(result, output)


@every_dtype
@pytest.mark.parametrize("sizes", [(5, 7), (5, 7, 3)])
def test_many_rows_of_data(device, dtype, sizes):
    """The same without a gradient of the input: GPUs' kernels then come to their next rows without a product between.

    They have 16,896 rows in hand at once, with as many multiprocessors as the emulator has.
    """
    network = plain_network(17000, *sizes, dtype=dtype, device=device, output="gelu")
    parameters = [leaf.requires_grad_() for leaf in network.leaves[1:]]
    results = torch.autograd.grad(ops.mlp(*network.arguments), parameters, network.grad)
    for result, grad in zip(results, expected_network(network)[1][1:], strict=True):
        grad.assert_holds(result)


def assert_holds_on_threads(network, same_bits):
    """Output and gradients are within the budget from any number of threads, and have the bits of one if they must."""
    leaves = [leaf.requires_grad_() for leaf in network.leaves]
    output, grads = expected_network(network)
    results = {}
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        actual = ops.mlp(*network.arguments)
        results[threads] = [actual.detach(), *torch.autograd.grad(actual, leaves, network.grad)]
        for expected, result in zip([output, *grads], results[threads], strict=True):
            expected.assert_holds(result, f"{threads} threads")
    for threads in (2, 3) if same_bits else ():
        for result, first in zip(results[threads], results[1], strict=True):
            assert_same_bits(result, first, f"{threads} threads")


@every_dtype
@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (300, (256, 130, 97)),
        (2500, (70, 33, 5)),
        (40, (100, 290, 3)),
        (7, (129, 66, 66, 1)),
        (210, (301, 260, 70)),
        (70, (1024, 66, 3)),
        (133, (66, 64, 2)),
        (61, (30, 130, 34, 1)),
    ],
)
def test_blocks(device, dtype, rows, sizes, restore_threads):
    """Sizes that take several blocks, within the budget; our own products give the same bits from any threads."""
    network = plain_network(rows, *sizes, dtype=dtype, device=device, output="tanh")
    assert_holds_on_threads(network, same_bits=products(device) == "own")


@every_dtype
@pytest.mark.parametrize("rows", [8, 19, 50, 1030])
@pytest.mark.parametrize("sizes", [(5, 15, 1), (17, 64, 40, 6), (3, 3, 3), (2, 9, 20, 11)])
@pytest.mark.parametrize("hidden", ["tanh", "gelu"])
def test_narrow(device, dtype, rows, sizes, hidden, restore_threads):
    """Few features, which vectors of rows are for: nothing around the input is read as part of it."""
    network = plain_network(rows, *sizes, dtype=dtype, device=device, output="tanh")
    around = 1.0 if reads_around_matrices(device, dtype) else float("nan")
    outer = torch.full((rows, sizes[0] + 3), around, dtype=dtype, device=device)
    outer[:, : sizes[0]] = network.input
    network = replace(network, input=outer[:, : sizes[0]], hidden=(hidden, ()))
    leaves = [leaf.requires_grad_() for leaf in network.leaves]
    output, grads = expected_network(network)
    results = {}
    for threads in (1, 3):
        torch.set_num_threads(threads)
        actual = ops.mlp(*network.arguments)
        without_gradients = ops.mlp(*network.arguments).detach()
        results[threads] = [actual.detach(), *torch.autograd.grad(actual, leaves, network.grad), without_gradients]
    for expected, result in zip([output, *grads, output], results[1], strict=True):
        expected.assert_holds(result)
    for result, first in zip(results[3], results[1], strict=True) if products(device) == "own" else ():
        assert_same_bits(result, first, "3 threads")


@every_dtype
@pytest.mark.parametrize(("rows", "sizes"), [(19, (17, 64)), (50, (34, 70, 38)), (300, (1030, 1100, 34))])
def test_rows_do_not_touch(device, dtype, rows, sizes):
    """A NaN in a row stays there, in the output and in the gradient of the input; one in a weight in its output."""
    if reads_around_matrices(device, dtype):
        pytest.skip("PyTorch's products carry a NaN to the row before")
    network = plain_network(rows, *sizes, dtype=dtype, device=device, output="silu")
    results = []
    for number in (0.5, float("nan")):
        x, grad = network.input.detach().clone(), network.grad.clone()
        x[1::2] = grad[1::2] = number
        x.requires_grad_()
        output = ops.mlp(x, *network.arguments[1:])
        results.append([output.detach(), *torch.autograd.grad(output, x, grad)])
    for finite, touched in zip(*results, strict=True):
        assert touched[1::2].isnan().all()
        assert_same_bits(touched[0::2], finite[0::2])

    x, weights, *rest = network.arguments
    last = weights[-1].detach().clone()
    last[1::2] = float("nan")
    touched = ops.mlp(x.detach(), [*weights[:-1], last], *rest)
    assert touched[:, 1::2].isnan().all()
    assert_same_bits(touched[:, 0::2], ops.mlp(x.detach(), weights, *rest)[:, 0::2])


@every_dtype
@pytest.mark.parametrize("name", ["mlp", "gated_mlp", "mlp_jacobian", "mlp_divergence"])
def test_rows_do_not_touch_in_derivatives(device, dtype, name):
    """Likewise, in the derivatives of gradients, and in Jacobians and divergences; nor does what lies between rows."""
    if reads_around_matrices(device, dtype):
        pytest.skip("PyTorch's products carry a NaN to the row before")
    wide = [random_tensor(size, dtype, device, 9 + i, 0.2) for i, size in enumerate([(40, 48), (24, 64), (40, 48)])]
    for matrix in wide:
        matrix[:, 45:] = float("nan")
    first, second, up = wide[0][:, :33], wide[1][:, :40], wide[2][:, :33]
    square = random_tensor((33, 40), dtype, device, 12, 0.2)
    functional = fastops.functional

    def second_derivatives(f, x, *weights):
        leaves = [leaf.detach().requires_grad_() for leaf in (x, *weights)]
        gradients = torch.autograd.grad(f(*leaves).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(gradient.sum() for gradient in gradients), leaves[0])[0]

    derivative = {
        "mlp": lambda x: second_derivatives(lambda x, *w: functional.mlp(x, w, None, "gelu"), x, first, second),
        "gated_mlp": lambda x: second_derivatives(functional.gated_mlp, x, first, up, square),
        "mlp_jacobian": lambda x: functional.mlp_jacobian(x, [first, second[:10]], None, "gelu")[1],
        "mlp_divergence": lambda x: functional.mlp_divergence(x, [first, second, square[:, :24]], None, "gelu")[1],
    }[name]
    results = []
    for number in (0.5, float("nan")):
        x = random_tensor((20, 33), dtype, device, 8)
        x[1::2] = number
        results.append(derivative(x))
    finite, touched = results
    assert touched[1::2].isnan().all()
    assert finite.isfinite().all()
    assert_same_bits(touched[0::2], finite[0::2])


@every_dtype
@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (16, (130, 512, 48)),
        (48, (272, 1024, 96)),
        (100, (700, 192)),
        (1030, (64, 256, 61)),
        (24, (1024, 160, 144, 16)),
        (80, (784, 400, 784, 16)),
        (16, (600, 1200, 0, 48)),
    ],
)
def test_wide(device, dtype, rows, sizes, restore_threads):
    """Many features, of which threads take some each where there are few rows; the bits are those of one thread."""
    network = plain_network(rows, *sizes, dtype=dtype, device=device, output="tanh")
    assert_holds_on_threads(network, same_bits=products(device) in ("own", "unpacked"))


@every_dtype
@pytest.mark.parametrize("hidden", ["tanh", "gelu", "mish"])
@pytest.mark.parametrize(("rows", "sizes"), [(700, (3, 64, 48, 2)), (1040, (40, 130, 1)), (270, (17, 20, 100))])
def test_parts_of_rows(device, dtype, rows, sizes, hidden, restore_threads):
    """Rows for several parts with sums of their own, and gradients that are wanted alone."""
    network = replace(plain_network(rows, *sizes, dtype=dtype, device=device, output="silu"), hidden=(hidden, ()))
    assert_holds_on_threads(network, same_bits=products(device) in ("own", "unpacked"))
    output, saved = ops.mlp_forward(*network.arguments)
    for i, grad in enumerate(expected_network(network)[1]):
        mask = [k == i for k in range(len(network.leaves))]
        arguments = (network.grad, *network.arguments[:3], output, saved, *network.arguments[3:], mask)
        (result,) = ops.mlp_backward(*arguments)
        grad.assert_holds(result, f"gradient {i} alone")


@every_dtype
def test_nothing_is_left(device, dtype):
    """Gradients that are NaN leave nothing in the workspace for the next ones."""
    network = plain_network(300, 3, 64, 33, 1, dtype=dtype, device=device, output="identity")
    output, saved = ops.mlp_forward(*network.arguments)
    mask = [True] * len(network.leaves)

    def gradients(grad):
        return ops.mlp_backward(grad, *network.arguments[:3], output, saved, *network.arguments[3:], mask)

    expected = gradients(network.grad)
    gradients(torch.full_like(network.grad, math.nan))
    for i, (result, reference) in enumerate(zip(gradients(network.grad), expected, strict=True)):
        assert_same_bits(result, reference, f"gradient {i}")


@pytest.mark.parametrize("rows", [1, 16, 48])
def test_deep_sums(device, rows):
    """Sums of thousands of terms are about as exact as PyTorch's, which are no single sums, either."""
    network = plain_network(rows, 9000, 64, dtype=torch.float32, device=device)
    leaves = [leaf.requires_grad_() for leaf in network.leaves]
    output = ops.mlp(*network.arguments)
    # The gradient of the weight's transpose is a deep sum, too.
    deep = ops.mlp(network.weights[0].detach(), [network.input.detach()], [None], "relu")
    (grad,) = torch.autograd.grad(output, leaves[0], network.grad)
    tensors = [tensor.detach().cpu() for tensor in (*leaves[:3], network.grad)]

    def formulas(x, weight, bias, grad):
        return [x @ weight.T + bias, weight @ x.T, grad @ weight]

    expected = formulas(*(tensor.double() for tensor in tensors))
    for result, pytorch, value in zip([output, deep, grad], formulas(*tensors), expected, strict=True):
        bound = max(1e-6 * value.abs().max(), 1.5 * (pytorch - value).abs().max())
        assert (result.detach().cpu() - value).abs().max() <= bound


@every_dtype
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("features", [64, 77])
def test_weights_within_others(device, dtype, rows, features):
    """Few rows leave weights and inputs where they are: they are read, and nothing around them."""
    x = random_tensor((rows, features), dtype, device, seed=0)
    outer = torch.full((9, features + 3), float("nan"), dtype=dtype, device=device)
    outer[1:8, 1:-2] = random_tensor((7, features), dtype, device, seed=1)
    x_outer = torch.full((rows, features + 1), float("nan"), dtype=dtype, device=device)
    x_outer[:, :-1] = x
    same_row = outer[1:2, 1:-2].expand(7, features)
    grad = random_tensor((rows, 7), dtype, device, seed=2)

    def results(x, weight):
        leaves = [tensor.detach().requires_grad_() for tensor in (x, weight)]
        output = ops.mlp(leaves[0], [leaves[1]], [None], "relu")
        return [output.detach(), *torch.autograd.grad(output, leaves, grad)]

    for weight in (outer[1:8, 1:-2], same_row):
        for actual, expected in zip(results(x_outer[:, :-1], weight), results(x, weight.contiguous()), strict=True):
            torch.testing.assert_close(actual, expected)


@every_dtype
def test_bias_gradient_does_not_depend_on_threads(device, dtype, restore_threads):
    """The last layer's bias gradient, a sum of given numbers, has the same bits for every number of threads."""
    x = random_tensor((20000, 5), dtype, device, seed=0)
    grad = random_tensor((20000, 7), dtype, device, seed=1)
    weight = random_tensor((7, 5), dtype, device, seed=2)
    down = random_tensor((7, 7), dtype, device, seed=2)
    results = []
    for threads in (1, 2, 3, 4):
        torch.set_num_threads(threads)
        bias = torch.zeros(7, dtype=dtype, device=device, requires_grad=True)
        outputs = [ops.mlp(x, [weight], [bias], "relu"), ops.gated_mlp(x, weight, weight, down, down_bias=bias)]
        results.append([torch.autograd.grad(output, bias, grad)[0] for output in outputs])
    for result in results[1:]:
        assert_same_bits(result[0], results[0][0], "mlp")
        assert_same_bits(result[1], results[0][1], "gated_mlp")


@pytest.mark.parametrize("output", ["identity", "tanh", "gelu"])
@pytest.mark.parametrize("hidden", ACTIVATIONS)
def test_mlp_keeps_one_tensor_per_hidden_layer(hidden, output, device):
    """For the backward pass mlp keeps one tensor of each hidden layer's size, and one more for an output activation."""
    sizes = [6, 9, 4, 11, 3]
    weights = [torch.randn(n, k, device=device, requires_grad=True) for k, n in itertools.pairwise(sizes)]
    biases = [torch.randn(n, device=device, requires_grad=True) for n in sizes[1:]]
    x = torch.randn(2, 5, 6, device=device, requires_grad=True)
    kept = kept_tensors(lambda: ops.mlp(x, weights, biases, hidden, output), [x, *weights, *biases])
    expected = sizes[1:-1] if output == "identity" else sizes[1:]
    assert sorted(tensor.numel() for tensor in kept) == sorted(10 * size for size in expected)
    for tensor in kept:
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


@every_dtype
def test_functions_are_the_ops(device, dtype):
    """fastops.functional and the direct entry points give the bits of the ops."""
    x = random_tensor((4, 6), dtype, device, seed=0)
    weights = [random_tensor(size, dtype, device, seed=1) for size in ((5, 6), (6, 5))]
    assert_same_bits(fastops.functional.mlp(x, weights), ops.mlp(x, weights, [None, None], "relu"))
    assert_same_bits(fastops.functional.linear_act(x, weights[0]), ops.linear_act(x, weights[0], None, "relu"))
    gated = ops.gated_mlp(x, weights[0], weights[0], weights[1])
    assert_same_bits(fastops.functional.gated_mlp(x, weights[0], weights[0], weights[1]), gated)
    linears = {str(i): torch.nn.Linear(*w.T.shape, bias=False, dtype=dtype) for i, w in enumerate(weights)}
    for linear, weight in zip(linears.values(), weights, strict=True):
        linear.weight = torch.nn.Parameter(weight)
    direct = fastops._C.mlp_of_linears(x, linears, "gelu", "tanh", [], [], False)
    assert_same_bits(direct, ops.mlp(x, weights, [None, None], "gelu", "tanh"))
    up, down = linears.values()
    direct = fastops._C.gated_mlp_of_linears(x, up, up, down, "silu", [], False)
    assert_same_bits(direct, gated)


LARGE = (300, 256, 130, 97)  # with PyTorch's products on some CPUs


@every_dtype
@pytest.mark.parametrize("sizes", [(4, 5, 7, 3), LARGE])
def test_transposed_weights(device, dtype, sizes):
    """The gradients of weights that are transposed matrices are transposed, too: sums of both run along memory."""
    network = plain_network(*sizes, dtype=dtype, device=device)
    network.weights[1] = network.weights[1].t().contiguous().t()
    output, saved = ops.mlp_forward(*network.arguments)
    args = (network.grad, *network.arguments[:3], output, saved, *network.arguments[3:], [True] * 5)
    results = ops.mlp_backward(*args)
    for result, expected in zip(results, expected_network(network)[1], strict=True):
        expected.assert_holds(result)
    assert results[1].is_contiguous()
    assert results[3].t().is_contiguous()
    assert_meta_agrees(results, ops.mlp_backward, *args)


WEIGHTS = {
    "transposed, with gaps": lambda weight: torch.nn.functional.pad(weight.t(), (0, 3))[:, : len(weight)].t(),
    "of one column": lambda weight: weight[:, :1].contiguous().expand_as(weight),
    "of one row": lambda weight: weight[:1].expand_as(weight),
}


@every_dtype
@pytest.mark.parametrize("layout", WEIGHTS)
@pytest.mark.parametrize("rows", [1, 40, 300])
def test_layouts_of_weights(device, dtype, rows, layout):
    """Weights whose rows or columns overlap or have gaps."""
    network = plain_network(rows, 33, 65, 17, dtype=dtype, device=device)
    network.weights[:] = [WEIGHTS[layout](weight) for weight in network.weights]
    output, saved = ops.mlp_forward(*network.arguments)
    args = (network.grad, *network.arguments[:3], output, saved, *network.arguments[3:], [True] * 5)
    expected_output, expected_grads = expected_network(network)
    expected = [expected_output, *expected_grads]
    for result, value in zip([output, *ops.mlp_backward(*args)], expected, strict=True):
        value.assert_holds(result)


@every_dtype
@pytest.mark.parametrize("sizes", [(4, 5, 7, 3), (130, 33, 33, 1), LARGE])
def test_transposed_rows(device, dtype, sizes):
    """Inputs and gradients whose features come first in memory, as one matrix or as several."""
    network = plain_network(*sizes, dtype=dtype, device=device)
    expected_output, expected_grads = expected_network(network)
    matrices = (lambda t: t.t().contiguous().t(), lambda t: t.unflatten(0, (2, -1)).mT.contiguous().mT)
    assert len(network.input) % 2 == 0
    parameters = [leaf.requires_grad_() for leaf in network.leaves[1:]]
    for transposed in matrices:
        x, grad = transposed(network.input.detach()).requires_grad_(), transposed(network.grad)
        output = ops.mlp(x, *network.arguments[1:])
        expected_output.assert_holds(output.detach().reshape(network.grad.shape))
        with torch.no_grad():
            expected_output.assert_holds(ops.mlp(x, *network.arguments[1:]).reshape(network.grad.shape))
        for result, expected in zip(torch.autograd.grad(output, [x, *parameters], grad), expected_grads, strict=True):
            expected.assert_holds(result.flatten(0, -2) if result.dim() == 3 else result)


@pytest.mark.parametrize("output", ["identity", "tanh", "gelu"])
@pytest.mark.parametrize("sizes", [(4, 5, 7, 3), LARGE])
def test_arguments_are_left_alone(device, sizes, output):
    """Neither the forward nor the backward pass writes to what it is given."""
    network = plain_network(*sizes, dtype=torch.float32, device=device, output=output)
    given = [*network.leaves, network.grad]
    before = [tensor.clone() for tensor in given]
    result, saved = ops.mlp_forward(*network.arguments)
    given += [result, *saved]
    before += [result.clone(), *(tensor.clone() for tensor in saved)]
    for mask in ([True] * 5, [True, False, False, True, False], [False, False, False, True, True]):
        ops.mlp_backward(network.grad, *network.arguments[:3], result, saved, *network.arguments[3:], mask)
        for tensor, expected in zip(given, before, strict=True):
            assert_same_bits(tensor, expected, str(mask))


def test_uneven_rows(device):
    """An input whose rows are not even is copied once, not for the forward and the backward pass each."""
    network = plain_network(*LARGE, dtype=torch.float32, device=device)
    expected, expected_grads = expected_network(network)
    leaves = [leaf.requires_grad_() for leaf in network.leaves]
    columns = network.input.detach().t().reshape(LARGE[1], 3, 100).permute(1, 0, 2).contiguous()
    leaves[0] = columns.requires_grad_()
    x = columns.transpose(1, 2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        output = ops.mlp(x, *network.arguments[1:])
        grads = torch.autograd.grad(output, leaves, network.grad.view_as(output))
    clones = [event.input_shapes[0] for event in profile.events() if event.name == "aten::clone"]
    assert clones.count(list(x.shape)) == 1
    expected.assert_holds(output.view(LARGE[0], -1))
    for grad, value in zip(grads[1:], expected_grads[1:], strict=True):
        value.assert_holds(grad)
    expected_grads[0].assert_holds(grads[0].transpose(1, 2).reshape(LARGE[0], -1))
