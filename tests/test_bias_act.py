"""bias_act and its backward, against PyTorch in float64."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from checks import assert_meta_agrees, assert_same_bits, windows
from reference import (
    GRADIENT_FROM_OUTPUT,
    Approximate,
    compute_dtype,
    keeps_output,
    output_suffices,
    parameter_sets,
)
from strategies import (
    DEVICE,
    LENGTHS,
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
)

ops = torch.ops.fastops
bias_act = ops.bias_act
bias_act_backward = ops.bias_act_backward
MASKS = list(itertools.product([True, False], repeat=2))


@st.composite
def operands(draw, biased=None):
    """Layouts of a tensor, of a gradient of its size, and of a bias for its last dimension or None."""
    size = draw(sizes(min_dims=1))
    biased = draw(st.booleans()) if biased is None else biased
    bias = draw(layouts(size[-1:])) if biased else None
    return draw(layouts(size)), draw(layouts(size)), bias


def make(layout, dtype, device, seed):
    """A random tensor of a layout, None for None."""
    return layout and layout.random(dtype, device, seed)


def pre_activation(x, bias):
    """x + bias as the op computes it: one rounded addition in the dtype of the computation."""
    compute = compute_dtype(x.dtype)
    exact = x.cpu().to(compute) if bias is None else x.cpu().to(compute) + bias.cpu().to(compute)
    return Approximate(exact.double(), torch.zeros(x.shape, dtype=torch.float64), x.dtype)


def assert_gradients(grads, mask, derivative, grad_output, what):
    """The gradients that the mask asks for are grad_output * derivative and the sum of that over its rows."""
    assert len(grads) == sum(mask), what
    through = derivative * Approximate.exact(grad_output)
    if mask[0]:
        through.stored().assert_holds(grads[0], f"{what}, self")
    if mask[1]:
        through.as_rows().sum_rows().stored().assert_holds(grads[-1], f"{what}, bias")


@every_activation
@given(st.data(), operands(), dtypes, seeds)
def test_forward(name, device, data, layout, dtype, seed):
    """The value is that of the activation at the rounded sum, and the result's layout that of the Meta kernel."""
    params = list(data.draw(parameters(name)))
    x = make(layout[0], dtype, device, seed)
    bias = make(layout[2], dtype, device, seed + 1)
    y = bias_act(x, bias, name, params)
    pre_activation(x, bias).activation(name, params).stored().assert_holds(y, name)
    assert_meta_agrees(y, bias_act, x, bias, name, params)


@every_activation
@given(st.data(), operands(), dtypes, seeds)
def test_out(name, device, data, layout, dtype, seed):
    """The out= form writes the bits of the result into any layout, self itself too, and nothing beside it."""
    params = list(data.draw(parameters(name)))
    x = make(layout[0], dtype, device, seed)
    bias = make(layout[2], dtype, device, seed + 1)
    y = bias_act(x, bias, name, params)
    target = data.draw(layouts(x.shape, overlapping=False))
    storage = random_values(target.storage_size + 9, seed + 2).to(dtype).to(device)
    expected = storage.clone()
    target.of(expected).copy_(y)
    out = target.of(storage)
    assert bias_act.out(x, bias, name, params, out=out) is out
    assert_same_bits(storage, expected, name)
    same = target.of(storage.clone()).copy_(x)
    bias_act.out(same, bias, name, params, out=same)
    assert_same_bits(same, y, f"{name} onto self")


@every_activation
@given(st.data(), operands(), dtypes, seeds, st.sampled_from(MASKS))
def test_backward(name, device, data, layout, dtype, seed, mask):
    """The gradients that output_mask asks for are those of PyTorch, and they alone are returned."""
    params = list(data.draw(parameters(name)))
    x = make(layout[0], dtype, device, seed)
    bias = make(layout[2], dtype, device, seed + 1)
    grad = make(layout[1], dtype, device, seed + 2)
    args = (grad, x, bias, name, params, False, list(mask))
    grads = bias_act_backward(*args)
    assert_gradients(grads, mask, pre_activation(x, bias).activation(name, params, 1), grad, name)
    assert_meta_agrees(grads, bias_act_backward, *args)


@pytest.mark.parametrize("name", GRADIENT_FROM_OUTPUT)
@given(st.data(), operands(biased=False), dtypes, seeds, st.sampled_from(MASKS))
def test_backward_from_output(name, device, data, layout, dtype, seed, mask):
    """With from_output, the gradients follow from the output."""
    params = data.draw(parameters(name).filter(lambda values: output_suffices(name, values)))
    values = random_values(layout[0].storage_size, seed).to(dtype).to(device)
    y = layout[0].of(bias_act(values, None, name, params))
    grad = make(layout[1], dtype, device, seed + 2)
    args = (grad, y, None, name, list(params), True, list(mask))
    grads = bias_act_backward(*args)
    assert_gradients(grads, mask, Approximate.exact(y).gradient_from_output(name, params), grad, name)
    assert_meta_agrees(grads, bias_act_backward, *args)


@every_activation
@given(operands(biased=True), dtypes, seeds)
def test_autograd_of_sum(name, device, layout, dtype, seed):
    """y.sum().backward(), whose gradient is one expanded number, gives the gradients of PyTorch."""
    x = make(layout[0], dtype, device, seed)
    bias = make(layout[2], dtype, device, seed + 1)
    z = pre_activation(x, bias)
    if keeps_output(name, dtype=dtype):
        derivative = z.activation(name).stored().gradient_from_output(name)
    else:
        derivative = z.activation(name, order=1)
    x.requires_grad_()
    bias.requires_grad_()
    bias_act(x, bias, name).sum().backward()
    assert_gradients([x.grad, bias.grad], (True, True), derivative, torch.ones(x.shape, dtype=dtype), name)


@every_dtype
@pytest.mark.parametrize("rows, columns", [(20000, 3), (20000, 67), (513, 600)])
def test_bias_gradient_over_many_rows(device, dtype, rows, columns):
    """The bias gradient over many rows stays within the budget, for random and for equal terms."""
    x = random_tensor((rows, columns), dtype, device, seed=0)
    for grad in (random_tensor((rows, columns), dtype, device, seed=1), torch.full_like(x, 0.1)):
        grads = bias_act_backward(grad, x, None, "softplus", [], False, [True, True])
        assert_gradients(grads, (True, True), Approximate.exact(x).activation("softplus", order=1), grad, "softplus")


@every_dtype
@pytest.mark.parametrize("columns", [1, 3, 7, 16])
def test_many_rows_of_few_columns(device, dtype, columns):
    """Many rows side by side, which are taken several at a time, and a rest: each has its bias, and all are summed."""
    rows = 5003
    bias = random_tensor((columns,), dtype, device, seed=2)
    grad = random_tensor((rows, columns), dtype, device, seed=1)
    whole = random_tensor((rows, columns + 1), dtype, device, seed=0)
    for x in (whole[:, :columns].contiguous(), whole[:, :columns]):
        z = pre_activation(x, bias)
        z.activation("gelu").stored().assert_holds(bias_act(x, bias, "gelu"), "forward")
        assert_same_bits(bias_act.out(x, bias, "gelu", out=x.clone()), bias_act(x, bias, "gelu"), "onto a copy")
        grads = bias_act_backward(grad, x, bias, "gelu", [], False, [True, True])
        assert_gradients(grads, (True, True), z.activation("gelu", order=1), grad, "backward")


@every_dtype
def test_bias_gradient_does_not_depend_on_threads(device, dtype, restore_threads):
    """The bias gradient has the same bits for every number of threads."""
    for shape in [(20001, 5), (3000, 130), (100, 2000), (7, 40000)]:
        x = random_tensor(shape, dtype, device, seed=0)
        grad = random_tensor(shape, dtype, device, seed=1)
        results = []
        for threads in (1, 2, 3, 4, 7):
            torch.set_num_threads(threads)
            results.append(bias_act_backward(grad, x, x[0], "gelu", [], False, [True, True]))
        for result in results[1:]:
            assert_same_bits(result[0], results[0][0], f"{shape}, self")
            assert_same_bits(result[1], results[0][1], f"{shape}, bias")


@pytest.mark.skipif(DEVICE not in ("cpu", "cuda"), reason="Apple's GPUs may take subnormal numbers for zeros")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_to_sixteen_bits(device, dtype):
    """Sums are rounded to nearest, those in the middle to the even number; NaN stays, what is too large is infinite."""
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    # Every number, and parts of the unit in its last place, where that is no less than any number.
    unit = torch.ldexp(torch.full(every.shape, torch.finfo(dtype).eps / 2), torch.frexp(every.float()).exponent)
    for part in (0.0, 0.25, 0.5, 0.75, 1.5, -0.5):
        bias = (part * unit).to(dtype)
        expected = (every.float() + bias.float()).to(dtype)
        result = bias_act(every.to(device), bias.to(device), "identity").cpu()
        same = (result.view(torch.int16) == expected.view(torch.int16)) | (result.isnan() & expected.isnan())
        wrong = [(every[i].item(), bias[i].item(), result[i].item()) for i in (~same).nonzero().flatten()[:5]]
        assert not wrong, f"{part}: (x, bias, result) {wrong}"


@every_activation
@every_dtype
def test_every_lane(name, device, dtype):
    """With a bias, a special value gives the same bits in every column of rows of any length as it does alone."""
    values = special_values(name, parameter_sets(name)[0], dtype).to(device)
    for shift in (0.0, 0.25):
        bias = torch.full_like(values, shift)
        y = torch.cat([bias_act(values[i : i + 1], bias[:1], name) for i in range(len(values))])
        grads = [backward_alone(values[i : i + 1], bias[:1], name) for i in range(len(values))]
        dx, db = (torch.cat(parts) for parts in zip(*grads, strict=True))
        for length in LENGTHS:
            x = windows(values, length).contiguous()
            b = bias[:1].expand(length)
            assert_same_bits(bias_act(x, b, name), windows(y, length), f"{name} of {length}")
            dx_rows = bias_act_backward(torch.ones_like(x), x, b, name, [], False, [True, False])[0]
            assert_same_bits(dx_rows, windows(dx, length), f"{name}, gradient of {length}")
            row = x[length % len(x)][None]
            db_row = bias_act_backward(torch.ones_like(row), row, b, name, [], False, [False, True])[0]
            expected = windows(db, length)[length % len(x)]
            assert_same_bits(db_row, expected, f"{name}, bias gradient of {length}")


def backward_alone(x, bias, name):
    """Both gradients of a vector of one element."""
    return bias_act_backward(torch.ones_like(x), x, bias, name, [], False, [True, True])
