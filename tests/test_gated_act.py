"""act_mul and gated_act, with their backward, against PyTorch in float64."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from checks import assert_meta_agrees, assert_same_bits, windows
from reference import Approximate, as_taken, compute_dtype, formulas, parameter_sets
from strategies import (
    LENGTHS,
    Layout,
    dtypes,
    every_activation,
    every_dtype,
    layouts,
    parameters,
    random_values,
    seeds,
    sizes,
    special_values,
    tensor_layouts,
)

ops = torch.ops.fastops
MASKS = list(itertools.product([True, False], repeat=2))


@st.composite
def gated_layouts(draw):
    """Layouts of a tensor with an even last dimension, and of a gradient half its size."""
    size = draw(sizes(min_dims=1))
    return draw(layouts((*size[:-1], 2 * size[-1]))), draw(layouts(size))


def product(gate, up, name, params):
    """activation(gate) * up, rounded once."""
    return (Approximate.exact(gate).activation(name, params) * Approximate.exact(up)).stored()


def gradients(grad, gate, up, name, params):
    """The gradients of gate and up, rounded once."""
    grad, gate, up = map(Approximate.exact, (grad, gate, up))
    through = grad * up * gate.activation(name, params, 1)
    return through.stored(), (grad * gate.activation(name, params)).stored()


def halves(tensor, gate_last):
    """The gate and the up half of the last dimension."""
    first, second = tensor.chunk(2, -1) if tensor.shape[-1] else (tensor, tensor)
    return (second, first) if gate_last else (first, second)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_act_mul_rounds_ties_to_even(device, dtype):
    """Every second product lies in the middle between two numbers of the dtype."""
    step = torch.finfo(dtype).eps
    numbers = torch.arange(1, 2, step, dtype=torch.float64)
    gate, factor = numbers.to(device, dtype), torch.full_like(numbers, 1.5).to(device, dtype)
    assert_same_bits(ops.act_mul(gate, factor, "identity").cpu(), (numbers * 1.5).to(dtype))


@every_activation
@given(st.data(), tensor_layouts(2), dtypes, seeds)
def test_act_mul(name, device, data, layout, dtype, seed):
    """The product is that of PyTorch, and its layout that of the Meta kernel."""
    params = list(data.draw(parameters(name)))
    gate, up = (one.random(dtype, device, seed + i) for i, one in enumerate(layout))
    result = ops.act_mul(gate, up, name, params)
    product(gate, up, name, params).assert_holds(result, name)
    assert_meta_agrees(result, ops.act_mul, gate, up, name, params)


@every_activation
@given(st.data(), tensor_layouts(3), dtypes, seeds, st.sampled_from(MASKS))
def test_act_mul_backward(name, device, data, layout, dtype, seed, mask):
    """The gradients that output_mask asks for are those of PyTorch, and they alone are returned."""
    params = list(data.draw(parameters(name)))
    grad, gate, up = (one.random(dtype, device, seed + i) for i, one in enumerate(layout))
    args = (grad, gate, up, name, params, list(mask))
    results = ops.act_mul_backward(*args)
    expected = itertools.compress(gradients(grad, gate, up, name, params), mask)
    for result, gradient in zip(results, expected, strict=True):
        gradient.assert_holds(result, f"{name} {mask}")
    assert_meta_agrees(results, ops.act_mul_backward, *args)


@every_activation
@given(st.data(), gated_layouts(), dtypes, seeds, st.booleans())
def test_gated_act(name, device, data, layout, dtype, seed, gate_last):
    """gated_act is act_mul of the two halves; its gradient is theirs."""
    params = list(data.draw(parameters(name)))
    x = layout[0].random(dtype, device, seed)
    gate, up = halves(x, gate_last)
    result = ops.gated_act(x, name, params, gate_last)
    product(gate, up, name, params).assert_holds(result, name)
    assert_meta_agrees(result, ops.gated_act, x, name, params, gate_last)

    grad = layout[1].random(dtype, device, seed + 1)
    result = ops.gated_act_backward(grad, x, name, params, gate_last)
    for half, gradient in zip(halves(result, gate_last), gradients(grad, gate, up, name, params), strict=True):
        gradient.assert_holds(half, f"{name} backward")
    assert_meta_agrees(result, ops.gated_act_backward, grad, x, name, params, gate_last)


@every_activation
@given(gated_layouts(), dtypes, seeds, st.booleans())
def test_autograd_of_sum(name, device, layout, dtype, seed, gate_last):
    """y.sum().backward(), whose gradient is one expanded number, gives the gradients of PyTorch, by halves or whole."""
    x = layout[0].random(dtype, device, seed).requires_grad_()
    gate, up = halves(x.detach(), gate_last)
    expected = gradients(torch.ones(gate.shape, dtype=dtype), gate, up, name, ())
    ops.gated_act(x, name, [], gate_last).sum().backward()
    for half, gradient in zip(halves(x.grad, gate_last), expected, strict=True):
        gradient.assert_holds(half, name)
    gate.requires_grad_()
    up.requires_grad_()
    ops.act_mul(gate, up, name).sum().backward()
    for tensor, gradient in zip((gate, up), expected, strict=True):
        gradient.assert_holds(tensor.grad, name)


@every_dtype
def test_is_glu(device, dtype):
    """With a sigmoid gate in the last half, gated_act is torch.nn.functional.glu, forward and backward."""
    x = random_values(60 * 70, seed=0).reshape(60, 70).to(dtype).to(device).requires_grad_()
    grad = random_values(60 * 35, seed=1).reshape(60, 35).to(dtype).to(device)
    results = []
    for function in (F.glu, lambda t: ops.gated_act(t, "sigmoid", [], True)):
        y = function(x)
        results.append((y, *torch.autograd.grad(y, x, grad)))
    tolerance = 8 * torch.finfo(dtype).eps
    for expected, result in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())


@every_activation
@every_dtype
def test_every_lane(name, device, dtype):
    """A special value gives the same bits in every column of rows of any length as it does alone."""
    values = special_values(name, parameter_sets(name)[0], dtype).to(device)
    other = torch.full_like(values, 1.25)
    one = [(values[i : i + 1], other[:1]) for i in range(len(values))]
    alone = [torch.cat([ops.act_mul(gate, up, name) for gate, up in one])]
    backward = [ops.act_mul_backward(up, gate, up, name, [], [True, True]) for gate, up in one]
    alone += [torch.cat(parts) for parts in zip(*backward, strict=True)]
    for length in LENGTHS:
        gate = windows(values, length).contiguous()
        up = other[:1].expand_as(gate)
        results = [ops.act_mul(gate, up, name), *ops.act_mul_backward(up, gate, up, name, [], [True, True])]
        for what, result, expected in zip(("value", "gate", "up"), results, alone, strict=True):
            assert_same_bits(result, windows(expected, length), f"{name}, {what} in {length}")
        whole = ops.gated_act(torch.cat([up, gate], -1), name, [], True)
        assert_same_bits(whole, windows(alone[0], length), f"{name}, gated_act of {length}")


@every_activation
@every_dtype
def test_special_values(name, device, dtype):
    """NaN and infinities of gate and up come out as in activation(gate) * up."""
    x = special_values(name, parameter_sets(name)[0], dtype)
    gates, ups = torch.meshgrid(x, x, indexing="ij")
    result = ops.act_mul(gates.to(device), ups.to(device), name).cpu().double()
    # In float64, or where that overflows or underflows in the dtype that is computed with, there.
    computed = torch.float64, compute_dtype(dtype)
    same = torch.zeros(result.shape, dtype=torch.bool)
    for formula, wide, gate in itertools.product(formulas(name), computed, as_taken(gates, device)):
        for value, up in itertools.product(as_taken(formula(gate.to(wide)), device), as_taken(ups, device)):
            expected = (value * up).to(dtype).double()
            finite = result.isfinite() & expected.isfinite()
            same |= (result == expected) | (result.isnan() & expected.isnan()) | finite
    wrong = [(gates[i, j].item(), ups[i, j].item(), result[i, j].item()) for i, j in (~same).nonzero()]
    assert not wrong, f"{name}: (gate, up, result) {wrong}"


# Rows whose elements do not lie side by side.
UNEVEN = {
    "a matrix": Layout((130, 203), (1, 131), 3),
    "few columns": Layout((5000, 3), (1, 5000), 0),
    "few rows": Layout((3, 5000), (1, 3), 0),
    "matrices": Layout((3, 129, 67), (8643, 1, 129), 0),
    "channels first": Layout((5, 9, 10, 33), (2970, 10, 1, 90), 0),
    "steps": Layout((70, 90), (2, 150), 1),
    "one row": Layout((300, 100), (0, 3), 0),
    "columns of one element": Layout((300, 100), (3, 0), 0),
    "overlapping": Layout((300, 100), (1, 1), 0),
    "more dimensions than are walked along": Layout((3, 4, 5, 6, 7), (4, 1, 90, 450, 13), 2),
}


@every_dtype
@pytest.mark.parametrize("layout", UNEVEN.values(), ids=UNEVEN)
def test_rows_of_any_layout(layout, device, dtype, restore_threads):
    """The results have the bits of those of contiguous tensors, whatever the threads."""
    gate = layout.random(dtype, device, seed=0)
    up = random_values(gate.numel(), seed=1).reshape(gate.shape).to(dtype).to(device)
    calls = {
        "gate": lambda t: ops.act_mul(t, up, "silu"),
        "up": lambda t: ops.act_mul(up, t, "silu"),
        "gradient": lambda t: torch.cat(ops.act_mul_backward(t, up, t, "silu", [], [True, True])),
        "bias_act": lambda t: ops.bias_act(t, up.flatten()[: t.size(-1)], "softshrink"),
    }
    for name, call in calls.items():
        expected = call(gate.contiguous())
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert_same_bits(call(gate), expected, name)


@every_dtype
def test_threads(device, dtype, restore_threads):
    """The results are right for every number of threads."""
    x = random_values(300 * 1002, seed=0).reshape(300, 1002).to(dtype).to(device)
    grad = random_values(300 * 501, seed=1).reshape(300, 501).to(dtype).to(device)
    gate, up = halves(x, gate_last=False)
    expected = [product(gate, up, "silu", ()), *gradients(grad, gate, up, "silu", ())]
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        results = [
            ops.gated_act(x, "silu"),
            *halves(ops.gated_act_backward(grad, x, "silu", [], False), gate_last=False),
        ]
        for result, value in zip(results, expected, strict=True):
            value.assert_holds(result, f"{threads} threads")
