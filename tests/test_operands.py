"""Operands of elementwise ops in different places in memory: each is read and written in its own way.

On GPUs an operand comes in packets of 16 bytes, as one number for many elements or element by element, whatever the
others do; no way may change a bit of an element of the result.
"""

import itertools

import pytest
import torch

from checks import assert_same_bits
from reference import Approximate
from strategies import every_dtype, random_values
from test_bias_act import assert_gradients, pre_activation
from test_gated_act import gradients, product

ops = torch.ops.fastops

ROWS = 5
# Strides and offset of a matrix: its rows are in packets, or miss them by one element; it repeats a number or a row;
# its elements lie apart.
PLACES = {
    "packets": ((64, 1), 0),
    "misaligned": ((64, 1), 1),
    "misaligned rows": ((65, 1), 0),
    "a number": ((0, 0), 3),
    "a number for each row": ((1, 0), 2),
    "a row": ((0, 1), 0),
    "a misaligned row": ((0, 1), 1),
    "steps": ((128, 2), 0),
    "columns": ((1, 8), 0),
}
WRITABLE = ("packets", "misaligned", "misaligned rows", "steps", "columns")
# Rows of whole packets and rows with a rest, for each dtype.
COLUMNS = (48, 43)


def matrices(count, columns, dtype, device, names=PLACES):
    """Operands in every combination of places, with what they hold on their own; all have other values."""
    for places in itertools.product(names, repeat=count):
        operands = []
        for i, place in enumerate(places):
            stride, offset = PLACES[place]
            storage = random_values(ROWS * 128 + 8, i, -1.0, 1.0).to(dtype).to(device)
            operands.append(storage.as_strided((ROWS, columns), stride, offset))
        yield ", ".join(places), operands, [operand.contiguous() for operand in operands]


every_width = pytest.mark.parametrize("columns", COLUMNS)


@every_dtype
@every_width
@pytest.mark.parametrize("target", WRITABLE)
def test_forward(target, columns, dtype, device):
    """The activation of a matrix in any place, written into another and nothing beside it."""
    stride, offset = PLACES[target]
    for what, (x,), (copy,) in matrices(1, columns, dtype, device):
        y = ops.silu(copy)
        Approximate.exact(x).activation("silu").stored().assert_holds(y, what)
        assert_same_bits(ops.silu(x), y, what)
        storage = torch.zeros(ROWS * 128 + 8, dtype=dtype, device=device)
        expected = storage.clone()
        expected.as_strided(x.shape, stride, offset).copy_(y)
        ops.silu.out(x, out=storage.as_strided(x.shape, stride, offset))
        assert_same_bits(storage, expected, what)


@every_dtype
@every_width
def test_backward(columns, dtype, device):
    """The derivative at a matrix in any place, times a gradient in any other."""
    for what, (grad, x), copies in matrices(2, columns, dtype, device):
        dx = ops.activation_backward(grad, x, "silu")
        through = Approximate.exact(x).activation("silu", order=1) * Approximate.exact(grad)
        through.stored().assert_holds(dx, what)
        assert_same_bits(dx, ops.activation_backward(*copies, "silu"), what)


@every_dtype
@every_width
@pytest.mark.parametrize("place", [None, "packets", "misaligned", "steps", "a number"])
def test_bias_act(place, columns, dtype, device):
    """With a bias in any place or none, forward and backward."""
    bias = own = None
    if place:
        (_, step), offset = PLACES[place]
        values = torch.linspace(-2, 2, 2 * columns + 8, dtype=torch.float64).to(dtype).to(device)
        bias = values.as_strided((columns,), (step,), offset)
        own = bias.contiguous()
    mask = [True, True]
    for what, (grad, x), (grad_copy, x_copy) in matrices(2, columns, dtype, device):
        z = pre_activation(x, bias)
        y = ops.bias_act(x, bias, "silu")
        z.activation("silu").stored().assert_holds(y, what)
        assert_same_bits(y, ops.bias_act(x_copy, own, "silu"), what)
        results = ops.bias_act_backward(grad, x, bias, "silu", [], False, mask)
        assert_gradients(results, mask, z.activation("silu", order=1), grad, what)
        expected = ops.bias_act_backward(grad_copy, x_copy, own, "silu", [], False, mask)
        assert_same_bits(results[0], expected[0], what)


@every_dtype
@every_width
def test_act_mul(columns, dtype, device):
    """With gate, up and gradient in places of their own."""
    names = ("packets", "misaligned", "a number", "a row", "columns")
    for what, operands, copies in matrices(3, columns, dtype, device, names):
        _, gate, up = operands
        y = ops.act_mul(gate, up, "silu")
        product(gate, up, "silu", ()).assert_holds(y, what)
        assert_same_bits(y, ops.act_mul(*copies[1:], "silu"), what)
        results = ops.act_mul_backward(*operands, "silu", [], [True, True])
        for result, exact, same in zip(
            results,
            gradients(*operands, "silu", ()),
            ops.act_mul_backward(*copies, "silu", [], [True, True]),
            strict=True,
        ):
            exact.assert_holds(result, what)
            assert_same_bits(result, same, what)
