"""The plain activations and their derivatives, against PyTorch in float64."""

import functools
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from checks import assert_meta_agrees, assert_same_bits, bits
from reference import (
    ACTIVATIONS,
    COMPOSED,
    GRADIENT_FROM_OUTPUT,
    WITH_TAILS,
    Approximate,
    activation,
    as_taken,
    compute_dtype,
    derivatives,
    differentiate,
    formulas,
    keeps_output,
    output_suffices,
    parameter_sets,
)
from strategies import (
    DEVICE,
    DTYPES,
    IN_GPU_EMULATOR,
    LENGTHS,
    Layout,
    dtypes,
    every_activation,
    every_dtype,
    layouts,
    parameters,
    random_tensor,
    random_values,
    seeds,
    sizes,
    special_values,
    tensor_layouts,
)

ops = torch.ops.fastops
activation_backward = ops.activation_backward
orders = st.integers(1, 3)


def forward(name, x, params=()):
    """The activation's op."""
    return getattr(ops, name)(x, *params)


@every_activation
@given(st.data(), tensor_layouts(), dtypes, seeds)
def test_forward(name, device, data, layout, dtype, seed):
    """The value is that of PyTorch, and the layout of the result that of the Meta kernel."""
    params = data.draw(parameters(name))
    x = layout[0].random(dtype, device, seed)
    y = forward(name, x, params)
    Approximate.exact(x).activation(name, params).stored().assert_holds(y, name)
    assert_meta_agrees(y, getattr(ops, name), x, *params)


@every_activation
@given(st.data(), tensor_layouts(2), dtypes, seeds, orders)
def test_backward(name, device, data, layout, dtype, seed, order):
    """The derivatives of the first three orders are those of PyTorch's autograd."""
    params = data.draw(parameters(name))
    x = layout[0].random(dtype, device, seed)
    grad = layout[1].random(dtype, device, seed + 1)
    result = activation_backward(grad, x, name, params, False, order)
    expected = Approximate.exact(x).activation(name, params, order) * Approximate.exact(grad)
    expected.stored().assert_holds(result, f"{name}, order {order}")
    assert_meta_agrees(result, activation_backward, grad, x, name, list(params), False, order)


@pytest.mark.parametrize("name", ["elu", "selu"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fourth_derivatives_of_large_numbers(name, device, dtype):
    """They are 0, as the others, also where the exponential of these numbers is infinite."""
    x = torch.tensor([1.0, 88.0, 90.0, 800.0], dtype=dtype, device=device).requires_grad_()
    derivative = forward(name, x, (-0.5,) if name == "elu" else ())
    for _ in range(4):
        (derivative,) = torch.autograd.grad(derivative.sum(), x, create_graph=True)
    assert_same_bits(derivative.abs(), torch.zeros_like(x))


@pytest.mark.parametrize("name", GRADIENT_FROM_OUTPUT)
@given(st.data(), tensor_layouts(2), dtypes, seeds, orders)
def test_backward_from_output(name, device, data, layout, dtype, seed, order):
    """With from_output, the derivatives are those of f'(x) as a function of the output."""
    params = data.draw(parameters(name).filter(lambda values: output_suffices(name, values)))
    values = random_values(layout[0].storage_size, seed).to(dtype).to(device)
    y = layout[0].of(forward(name, values, params))
    grad = layout[1].random(dtype, device, seed + 1)
    result = activation_backward(grad, y, name, params, True, order)
    expected = Approximate.exact(y).gradient_from_output(name, params, order) * Approximate.exact(grad)
    expected.stored().assert_holds(result, f"{name}, order {order}")
    assert_meta_agrees(result, activation_backward, grad, y, name, list(params), True, order)


@every_activation
def test_output_gives_the_same_gradient(name, device):
    """Where the output suffices, the gradient from it is the gradient from the input."""
    assert output_suffices(name) or name not in GRADIENT_FROM_OUTPUT
    dtype = DTYPES[-1]
    x = random_tensor((1000,), dtype, device, seed=0)
    grad = random_tensor((1000,), dtype, device, seed=1)
    for params in parameter_sets(name):
        if output_suffices(name, params):
            result = activation_backward(grad, forward(name, x, params), name, params, True)
            expected = activation_backward(grad, x, name, params, False)
            torch.testing.assert_close(result, expected, rtol=0, atol=64 * torch.finfo(dtype).eps)


@every_activation
@given(st.data(), sizes(), dtypes, seeds)
def test_in_place(name, device, data, size, dtype, seed):
    """The in-place form returns its argument, holding the bits of the result, and touches nothing beside it."""
    params = data.draw(parameters(name))
    layout = data.draw(layouts(size, overlapping=False))
    storage = random_values(layout.storage_size + 9, seed).to(dtype).to(device)
    expected = storage.clone()
    layout.of(expected).copy_(forward(name, layout.of(storage), params))
    x = layout.of(storage)
    assert getattr(ops, f"{name}_")(x, *params) is x
    assert_same_bits(storage, expected, name)


@every_activation
@given(st.data(), sizes(), dtypes, seeds)
def test_out(name, device, data, size, dtype, seed):
    """The out= form writes the bits of the result into any layout, and touches nothing beside it."""
    params = data.draw(parameters(name))
    x = data.draw(layouts(size)).random(dtype, device, seed)
    layout = data.draw(layouts(size, overlapping=False))
    storage = random_values(layout.storage_size + 9, seed + 1).to(dtype).to(device)
    expected = storage.clone()
    y = forward(name, x, params)
    layout.of(expected).copy_(y)
    out = layout.of(storage)
    assert getattr(ops, name).out(x, *params, out=out) is out
    assert_same_bits(storage, expected, name)

    empty = torch.empty(0, dtype=dtype, device=device)
    getattr(ops, name).out(x, *params, out=empty)
    assert_same_bits(empty, y, name)


def test_out_between_the_elements_of_the_input(device):
    """Where neither is dense no check sees an overlap: on CPUs the result is written when all has been read."""
    if device.type != "cpu" or IN_GPU_EMULATOR:
        pytest.skip("on CPUs alone")
    for count in (4_000, 200_000):
        storage = random_values(count, seed=0)
        x, out = storage[0:-2:2], storage[2::2]
        expected = forward("gelu", x.clone())
        ops.gelu.out(x, out=out)
        assert_same_bits(out, expected)


@every_activation
@given(st.data(), tensor_layouts(2), dtypes, seeds)
def test_autograd(name, device, data, layout, dtype, seed):
    """The gradient that autograd gives is that of PyTorch, whatever the layouts, also after an in-place call."""
    params = data.draw(parameters(name))
    x = layout[0].random(dtype, device, seed)
    grad = layout[1].random(dtype, device, seed + 1)
    exact = Approximate.exact(x)
    calls = {
        "out of place": (forward(name, x.requires_grad_(), params), keeps_output(name, params, dtype)),
        "in place": (getattr(ops, f"{name}_")(x.clone(), *params), keeps_output(name, params)),
    }
    for what, (y, from_output) in calls.items():
        if from_output:
            derivative = exact.activation(name, params).stored().gradient_from_output(name, params)
        else:
            derivative = exact.activation(name, params, 1)
        expected = (derivative * Approximate.exact(grad)).stored()
        (result,) = torch.autograd.grad(y, x, grad)
        expected.assert_holds(result, f"{name} {what}")


@every_dtype
def test_threads(device, dtype, restore_threads):
    """The results are right for every number of threads."""
    x = random_values(200_003, seed=0).to(dtype).to(device)
    grad = random_values(200_003, seed=1).to(dtype).to(device)
    y = Approximate.exact(x).activation("gelu").stored()
    derivative = (Approximate.exact(x).activation("gelu", order=1) * Approximate.exact(grad)).stored()
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        y.assert_holds(forward("gelu", x), f"{threads} threads")
        derivative.assert_holds(activation_backward(grad, x, "gelu"), f"{threads} threads, backward")


MANY = {
    "long rows with gaps": Layout((700, 100), (130, 1), 3),
    "short rows with gaps": Layout((9000, 7), (9, 1), 0),
    "every second element": Layout((60_000,), (2,), 1),
    "one element": Layout((200, 300), (0, 0), 0),
    "rows of one element": Layout((200, 300), (1, 0), 0),
    "columns": Layout((100, 130), (1, 100), 0),
    "many columns": Layout((200, 300), (1, 200), 0),
    "four dimensions of long rows": Layout((5, 6, 7, 130), (7_336, 1_048, 131, 1), 0),
    "four dimensions of short rows": Layout((40, 30, 7, 4), (1_240, 40, 5, 1), 0),
    "more dimensions than are walked along": Layout((3, 4, 5, 6, 70), (14_910, 2_982, 497, 71, 1), 0),
}


@every_dtype
@pytest.mark.parametrize("layout", MANY.values(), ids=MANY)
def test_many_elements_of_any_layout(layout, device, dtype, restore_threads):
    """More elements than are taken at a time have the bits of contiguous ones, whatever the threads."""
    x = layout.random(dtype, device, seed=0)
    grad = random_tensor(layout.size, dtype, device, seed=1)
    y = forward("gelu", x.contiguous())
    derivative = activation_backward(grad, x.contiguous(), "gelu")
    by_grad = activation_backward(x.contiguous(), grad, "gelu")
    for threads in (1, 3):
        torch.set_num_threads(threads)
        assert_same_bits(forward("gelu", x), y)
        assert_same_bits(activation_backward(grad, x, "gelu"), derivative)
        assert_same_bits(activation_backward(x, grad, "gelu"), by_grad)
        if 0 not in layout.stride:
            storage = torch.zeros(layout.storage_size, dtype=dtype, device=device)
            ops.gelu.out(grad, out=layout.of(storage))
            assert_same_bits(layout.of(storage), forward("gelu", grad))
            assert storage.count_nonzero() == layout.of(storage).count_nonzero()
            ops.gelu_(layout.of(storage.copy_(x.as_strided(storage.shape, (1,), 0))))
            assert_same_bits(layout.of(storage), y)


@every_activation
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_sixteen_bit_value(name, device, dtype):
    """Value and derivative are right for every finite number of the dtype."""
    x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    x = x[x.isfinite()].to(device)
    exact = Approximate.exact(x)
    exact.activation(name).stored().assert_holds(forward(name, x), name)
    derivative = activation_backward(torch.ones_like(x), x, name)
    exact.activation(name, order=1).stored().assert_holds(derivative, f"{name}, derivative")


@pytest.mark.skipif(DEVICE not in ("cpu", "cuda"), reason="other kernels, and PyTorch's, add erf to 1")
@pytest.mark.parametrize("name", WITH_TAILS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda dtype: str(dtype)[6:])
def test_tails(name, device, dtype):
    """Far from 0, where values and derivatives may be small, they are as exact for their size as elsewhere.

    What is computed in float64 adds erf to 1, as PyTorch does.
    """
    sizes = torch.logspace(math.log10(2), 2, 2001, dtype=torch.float64)
    x = torch.cat([sizes, -sizes]).to(dtype).to(device)
    exact = Approximate.exact(x)
    exact.tail(name).stored().assert_holds(forward(name, x), name)
    derivative = activation_backward(torch.ones_like(x), x, name)
    exact.tail(name, order=1).stored().assert_holds(derivative, f"{name}, derivative")


# ---- special values ----


@every_activation
@every_dtype
def test_every_lane(name, device, dtype):
    """A special value gives the same bits at every position of a tensor of any length as it does alone."""
    values = special_values(name, parameter_sets(name)[0], dtype).to(device)
    count = len(values)
    ring = torch.cat([values, values, values])[: count + max(LENGTHS)]
    grads = torch.full_like(ring, 1.25)
    outputs = forward(name, ring)
    kernels = {"forward": (ring, lambda x, grad: forward(name, x))}
    for order in (1, 2, 3):
        kernel = functools.partial(backward_kernel, name=name, from_output=False, order=order)
        kernels[f"order {order}"] = ring, kernel
        if output_suffices(name):
            kernels[f"order {order} from output"] = outputs, functools.partial(kernel, from_output=True)
    for what, (inputs, kernel) in kernels.items():
        alone = torch.cat([kernel(inputs[i : i + 1], grads[:1]) for i in range(count)])
        alone = torch.cat([alone, alone, alone])
        slices = [slice(start, start + length) for length in LENGTHS for start in range(count)]
        results = [kernel(inputs[part], grads[part]) for part in slices]
        assert_same_bits(torch.cat(results), torch.cat([alone[part] for part in slices]), f"{name} {what}")


def backward_kernel(saved, grad, name, from_output, order):
    """activation_backward with the tensors in front."""
    return activation_backward(grad, saved, name, [], from_output, order)


@pytest.mark.parametrize("name", ["sin"])
@every_dtype
def test_large_arguments(name, device, dtype):
    """The budget allows for an argument's rounding, which is more than a turn here; these arguments are exact."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    x = torch.randint(0, torch.iinfo(integers).max, (4096,), dtype=integers).view(dtype)
    x = torch.cat([x, -x])[torch.cat([x, x]).isfinite()]
    rounding = {"rtol": 4 * torch.finfo(dtype).eps, "atol": torch.finfo(dtype).tiny}
    torch.testing.assert_close(forward(name, x.to(device), ()).cpu(), x.double().sin().to(dtype), **rounding)
    slope = activation_backward(torch.ones_like(x).to(device), x.to(device), name, (), False, 1).cpu()
    torch.testing.assert_close(slope, x.double().cos().to(dtype), **rounding)


@every_activation
@every_dtype
def test_special_values(name, device, dtype):
    """Values and derivatives at special values are those of PyTorch, with its NaN, infinities and signs of zero.

    float64 decides, and at NaN the vector code, which has the first of so many elements; where PyTorch itself overflows
    in the dtype that is computed with, that result is as good.
    """
    for params in parameter_sets(name):
        x = special_values(name, params, dtype)
        for order in range(4):
            if order == 0:
                result = forward(name, x.to(device), params).cpu()
            else:
                grad = torch.ones_like(x).to(device)
                result = activation_backward(grad, x.to(device), name, params, False, order).cpu()
            expected = Approximate.exact(x.to(device)).activation(name, params, order).stored()
            overflowed = derivatives(name, x.to(compute_dtype(dtype)), params, order)[order].to(dtype)
            # Of values, no NaN is: PyTorch's gelu has one at infinity. The sine of an infinite product is one.
            overflows = ~overflowed.isfinite() if order else overflowed.isinf()
            ok = expected.holds(result) | (overflows & (bits(result) == bits(overflowed)))
            ok |= overflowed.isnan() & result.isnan() & (name == "sin")
            if order == 0 or (order == 1 and name not in COMPOSED):
                zero = (result == 0) & (expected.value == 0)
                ok &= ~zero | (result.signbit() == expected.value.signbit())
            for formula in formulas(name, params)[1:]:
                exact = differentiate(formula, x.double(), order)[order].to(dtype)
                ok |= torch.isclose(result, exact, rtol=8 * torch.finfo(dtype).eps, atol=0) & ~x.isnan()
            if order == 1:
                limit = limit_at_infinity(name, params, x)
                ok |= torch.isclose(result, limit, rtol=8 * torch.finfo(dtype).eps, atol=0) & expected.value.isnan()
            if order > 1:
                # PyTorch composes these: NaN at infinities and overflows.
                ok |= ~x.isfinite() | expected.value.isnan()
            wrong = [(x[i].item(), result[i].item(), expected.value[i].item()) for i in (~ok).nonzero().flatten()]
            assert not wrong, f"{name}{params} order {order}: (x, result, expected) {wrong}"


@pytest.mark.parametrize("name", GRADIENT_FROM_OUTPUT)
@every_dtype
def test_nan_in_output(name, device, dtype):
    """The derivative at a NaN is the same from the output as from the input."""
    grad = torch.full((67,), 1.25, dtype=dtype, device=device)
    nan = torch.full_like(grad, math.nan)
    for params in parameter_sets(name):
        if output_suffices(name, params):
            expected = activation_backward(grad, nan, name, params, False)
            assert_same_bits(activation_backward(grad, nan, name, params, True), expected, f"{name}{params}")


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name not in COMPOSED])
@every_dtype
def test_special_gradients(name, device, dtype):
    """NaN, infinities and zeros of the incoming gradient come through where, and with the sign that, PyTorch has them.

    As PyTorch has them in float64 or in the dtype that is computed with: inf * 0 turns up where a factor underflows.
    """
    for params in parameter_sets(name):
        x = special_values(name, params, dtype)
        for special in (math.nan, math.inf, -math.inf, 0.0, -0.0):
            grad = torch.full_like(x, special)
            result = activation_backward(grad.to(device), x.to(device), name, params).cpu()
            same = torch.zeros_like(x, dtype=torch.bool)
            for point, compute in itertools.product(as_taken(x, device), (torch.float64, compute_dtype(dtype))):
                leaf = point.to(compute).requires_grad_()
                (expected,) = torch.autograd.grad(activation(name, leaf, params), leaf, grad.to(compute))
                same |= bits(result) == bits(expected.to(dtype))
                for i, formula in enumerate(formulas(name, params)):
                    slopes = as_taken(differentiate(formula, leaf, 1)[1], device)
                    for slope in slopes if i > 0 else slopes[1:]:
                        same |= bits(result) == bits((slope * grad).to(dtype))
            same |= (bits(result) == bits(limit_at_infinity(name, params, x) * grad)) & expected.isnan()
            wrong = [(x[i].item(), result[i].item(), expected[i].item()) for i in (~same).nonzero().flatten()]
            assert not wrong, f"{name}{params} gradient {special}: (x, result, expected) {wrong}"


def limit_at_infinity(name, params, x):
    """The derivative's limit where x is infinite, else NaN. PyTorch's own may come out as NaN there, from inf * 0."""
    huge = x.double().clamp(-1e300, 1e300)
    return torch.where(x.isinf(), derivatives(name, huge, params, 1)[1].to(x.dtype), math.nan)
