"""Elementwise ops and networks against PyTorch in float64, under the error budget of reference.py.

Any instruction set, PyTorch's among them, either kind of matrix products, any number of threads, dtypes, sizes and
strides: also sizes beyond those of the tests, that take several blocks of rows, of depth and of columns.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from checks import assert_same_bits, products
from fuzz.cases import category
from perceptrons import Network, expected_network
from reference import (
    ACTIVATIONS,
    GRADIENT_FROM_OUTPUT,
    Approximate,
    keeps_output,
    kinks,
    output_suffices,
    parameter_sets,
)
from strategies import DTYPES, Layout, random_values
from test_bias_act import pre_activation
from test_gated_act import gradients, halves, product
from test_gated_mlp import GatedNetwork, expected_gated_network

ops = torch.ops.fastops

# PyTorch is kept to an instruction set of this CPU, which keeps fastops to it, and fastops to one that is no better.
HERE = torch.backends.cpu.get_cpu_capability().lower()
TIERS = [
    *["amx"] * (sys.platform == "linux" and torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()),
    *["avx512_bf16"] * torch.cpu._is_avx512_bf16_supported(),
    *["avx512"] * torch.cpu._is_avx512_supported(),
    *["avx2"] * torch.cpu._is_avx2_supported(),
    *[HERE] * HERE.startswith("sve"),
    "default",
]
OF_PYTORCH = {"amx": "avx512", "avx512_bf16": "avx512"}  # where it has another name
ENVIRONMENTS = [
    {
        "ATEN_CPU_CAPABILITY": OF_PYTORCH.get(theirs, theirs),
        "FASTOPS_CPU_CAPABILITY": ours,
        "FASTOPS_CPU_PRODUCTS": whose,
    }
    for theirs, ours in itertools.combinations_with_replacement(TIERS, 2)
    for whose in (["own", "unpacked", "torch", ""] if not ours.startswith(("default", "sve")) else [""])
]

LARGEST_PRODUCT = 1 << 22  # multiplications


def case(seed: int) -> None:
    """One call of one op, forward and backward."""
    rng = random.Random(seed)
    torch.set_num_threads(rng.choice([1, 1, 2, 3, 5]))
    kind = rng.choice([plain, plain, biased, gated, network, network, network, gated_network])
    kind(rng)


# ---- what the ops are given ----


def sizes(rng: random.Random, dims: int, most: int) -> list[int]:
    """Sizes whose product is at most `most`: zeros, ones, and those about the edges of vectors and blocks."""
    chosen = []
    for _ in range(dims):
        around = rng.choice([0, 1, 1, 2, 3, 5, 8, 16, 24, 32, 64, 128, 256, 512, 2048, 16384])
        size = min(most, max(0, around + rng.choice([-1, 0, 0, 1, 3])))
        chosen.append(size)
        most //= max(1, size)
    rng.shuffle(chosen)
    return chosen


def layout(rng: random.Random, size: Sequence[int], overlapping: bool = True) -> Layout:
    """Contiguous, permuted, with steps, offsets and expanded dimensions."""
    order = list(reversed(range(len(size))))
    if rng.random() < 0.3:
        rng.shuffle(order)
    steps = rng.random() < 0.3
    stride, dense = [0] * len(size), 1
    for d in order:
        stride[d] = dense * (rng.randint(1, 3) if steps else 1)
        dense = stride[d] * max(1, size[d])
        if overlapping and rng.random() < 0.1:
            stride[d] = 0
    return Layout(tuple(size), tuple(stride), rng.choice([0, 0, 0, 1, 5]))


def normal(
    rng: random.Random, size: Sequence[int], dtype: torch.dtype, scale: float = 1.0, overlap: bool = True
) -> Any:
    """Normally distributed numbers in some layout."""
    return layout(rng, size, overlap).normal(dtype, "cpu", rng.getrandbits(32), scale)


def values(rng: random.Random, size: Sequence[int], dtype: torch.dtype, places: Sequence[float] = ()) -> Tensor:
    """Numbers of many magnitudes in some layout, among them zeros and these places with the numbers beside them."""
    chosen = layout(rng, size)
    numbers = random_values(chosen.storage_size, rng.getrandbits(32), rng.uniform(-12, 0), rng.uniform(0, 2)).to(dtype)
    special = torch.tensor([0.0, -0.0, *places], dtype=dtype)
    special = torch.cat(
        [special, *(special.nextafter(torch.full_like(special, side)) for side in (-math.inf, math.inf))]
    )
    for _ in range(min(len(numbers), 8)):
        numbers[rng.randrange(len(numbers))] = special[rng.randrange(len(special))]
    return chosen.of(numbers)


def activation(rng: random.Random) -> tuple[str, tuple[float, ...]]:
    """An activation and its parameters."""
    name = rng.choice(list(ACTIVATIONS))
    return name, rng.choice(parameter_sets(name))


def same_on_threads(call: Any, results: Sequence[Tensor], what: str) -> None:
    """The bits do not depend on the number of threads."""
    torch.set_num_threads(random.choice([1, 2, 4, 7]))
    for again, result in zip(call(), results, strict=True):
        assert_same_bits(again, result, f"{what}, other threads")


# ---- elementwise ops ----


def plain(rng: random.Random) -> None:
    """An activation: its value in every form, and its derivatives from the input and from the output."""
    name, params = activation(rng)
    dtype = rng.choice(DTYPES)
    order = rng.randint(0, 3)
    category(f"{name}, order {order}")
    size = sizes(rng, rng.randint(0, 4), 1 << 17)
    x = values(rng, size, dtype, kinks(name, params))
    exact = Approximate.exact(x)
    if order == 0:
        y = getattr(ops, name)(x, *params)
        exact.activation(name, params).stored().assert_holds(y, f"{name}{params}")
        target = normal(rng, size, dtype, overlap=False)
        assert_same_bits(getattr(ops, name).out(x, *params, out=target), y, f"{name}{params} out")
        same_on_threads(lambda: [getattr(ops, f"{name}_")(target.copy_(x), *params)], [y], f"{name}{params} in place")
        return
    grad = values(rng, size, dtype)
    from_output = name in GRADIENT_FROM_OUTPUT and output_suffices(name, params) and rng.random() < 0.5
    if from_output:
        x = getattr(ops, name)(x, *params)
        derivative = Approximate.exact(x).gradient_from_output(name, params, order)
    else:
        derivative = exact.activation(name, params, order)
    call = lambda: [ops.activation_backward(grad, x, name, params, from_output, order)]  # noqa: E731
    results = call()
    what = f"{name}{params} order {order}{' from output' * from_output}"
    (derivative * Approximate.exact(grad)).stored().assert_holds(results[0], what)
    same_on_threads(call, results, what)


def biased(rng: random.Random) -> None:
    """bias_act, and its gradients by autograd."""
    name, params = activation(rng)
    dtype = rng.choice(DTYPES)
    category(f"bias_act {name}")
    size = sizes(rng, rng.randint(1, 3), 1 << 17)
    x = values(rng, size, dtype).requires_grad_()
    bias = values(rng, size[-1:], dtype).requires_grad_() if rng.random() < 0.7 else None
    grad = normal(rng, size, dtype)
    z = pre_activation(x.detach(), bias if bias is None else bias.detach())
    leaves = [x] if bias is None else [x, bias]

    def call() -> list[Tensor]:
        y = ops.bias_act(x, bias, name, params)
        return [y.detach(), *torch.autograd.grad(y, leaves, grad)]

    results = call()
    y = z.activation(name, params).stored()
    y.assert_holds(results[0], name)
    through = (
        y.gradient_from_output(name, params) if keeps_output(name, params, dtype) else z.activation(name, params, 1)
    )
    through = through * Approximate.exact(grad)
    through.stored().assert_holds(results[1], f"{name}, gradient of self")
    if bias is not None:
        through.as_rows().sum_rows().stored().assert_holds(results[2], f"{name}, gradient of the bias")
    same_on_threads(call, results, name)


def gated(rng: random.Random) -> None:
    """act_mul and gated_act with their gradients."""
    name, params = activation(rng)
    dtype = rng.choice(DTYPES)
    category(f"gated {name}")
    size = sizes(rng, rng.randint(1, 3), 1 << 16)
    grad = normal(rng, size, dtype)
    gate_last = rng.random() < 0.5
    x = values(rng, [*size[:-1], 2 * size[-1]], dtype)
    gate, up = halves(x, gate_last)
    expected = [product(gate, up, name, params), *gradients(grad, gate, up, name, params)]

    def by_halves() -> list[Tensor]:
        return [ops.act_mul(gate, up, name, params), *ops.act_mul_backward(grad, gate, up, name, params, [True, True])]

    def whole() -> list[Tensor]:
        back = ops.gated_act_backward(grad, x, name, params, gate_last)
        return [ops.gated_act(x, name, params, gate_last), *halves(back, gate_last)]

    for call in (by_halves, whole):
        results = call()
        for result, bound in zip(results, expected, strict=True):
            bound.assert_holds(result, f"{call.__name__} {name}{params}")
        same_on_threads(call, results, name)


# ---- networks ----


def features(rng: random.Random) -> int:
    """The width of a layer."""
    return max(0, rng.choice([0, 1, 1, 2, 4, 8, 16, 17, 32, 33, 64, 100, 128, 256, 300]) + rng.choice([-1, 0, 0, 0, 1]))


def leading_dims(rng: random.Random, multiplications: int) -> list[int]:
    """As many rows as make no more than the largest product."""
    return sizes(rng, rng.randint(0, 3), max(1, min(1 << 13, LARGEST_PRODUCT // max(1, multiplications))))


def network(rng: random.Random) -> None:
    """mlp or linear_act."""
    dtype = rng.choice(DTYPES)
    widths = [features(rng) for _ in range(rng.randint(2, 5))]
    layers = list(itertools.pairwise(widths))
    leading = leading_dims(rng, sum(k * n for k, n in layers))
    made = Network(
        input=normal(rng, [*leading, widths[0]], dtype),
        weights=[normal(rng, (n, k), dtype, 1 / math.sqrt(max(1, k))) for k, n in layers],
        biases=[normal(rng, (n,), dtype) if rng.random() < 0.7 else None for _, n in layers],
        hidden=activation(rng),
        output=activation(rng),
        grad=normal(rng, [*leading, widths[-1]], dtype),
    )
    if len(layers) == 1 and rng.random() < 0.5:
        op = "linear_act"
        forward = lambda: ops.linear_act(made.input, made.weights[0], made.biases[0], *made.output)  # noqa: E731
    else:
        op = "mlp"
        checkpoint = rng.random() < 0.3
        forward = lambda: ops.mlp(*made.arguments, checkpoint)  # noqa: E731
    output, grads = expected_network(made)
    compare(rng, op, dtype, made.leaves, forward, made.grad, [output, *grads])


def gated_network(rng: random.Random) -> None:
    """gated_mlp."""
    dtype = rng.choice(DTYPES)
    inputs, hidden, outputs = (features(rng) for _ in range(3))
    weights = [(hidden, inputs), (hidden, inputs), (outputs, hidden)]
    leading = leading_dims(rng, sum(n * k for n, k in weights))
    tensors = [normal(rng, [*leading, inputs], dtype)]
    tensors += [normal(rng, size, dtype, 1 / math.sqrt(max(1, size[1]))) for size in weights]
    tensors += [normal(rng, size[:1], dtype) if rng.random() < 0.7 else None for size in weights]
    made = GatedNetwork(tensors, *activation(rng), normal(rng, [*leading, outputs], dtype))
    checkpoint = rng.random() < 0.3
    output, grads = expected_gated_network(made)
    compare(
        *(rng, "gated_mlp", dtype, tensors, lambda: ops.gated_mlp(*made.arguments, checkpoint), made.grad),
        [output, *grads],
    )


def compare(
    rng: random.Random,
    op: str,
    dtype: torch.dtype,
    tensors: Sequence[Tensor | None],
    forward: Any,
    grad: Tensor,
    expected: Sequence[Approximate],
) -> None:
    """The output, without and with gradients, and the gradients of some of the tensors."""
    largest = max((float((e.value.abs() + e.error).nan_to_num().max()) for e in expected if e.value.numel()), default=0)
    if largest > torch.finfo(dtype).max / 1024:
        return category(f"{op} {str(dtype)[6:]}, beyond the dtype: not compared")
    category(f"{op} {str(dtype)[6:]}")
    output = forward()
    expected[0].assert_holds(output, f"{op} without gradients")
    chosen = [tensor is not None and rng.random() < 0.7 for tensor in tensors]
    leaves = [tensor.requires_grad_() for tensor in itertools.compress(tensors, chosen)]
    if not leaves:
        return None

    def call() -> list[Tensor]:
        y = forward()
        return [y.detach(), *torch.autograd.grad(y, leaves, grad)]

    results = call()
    bounds = [expected[0], *itertools.compress(expected[1:], chosen)]
    for i, (result, bound) in enumerate(zip(results, bounds, strict=True)):
        bound.assert_holds(result, f"{op}, result {i} of {chosen}")
    if products(torch.device("cpu")) == "own":
        same_on_threads(call, results, op)
    return None
