"""sequential, forward and backward, against PyTorch in float64."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fastops
from checks import assert_meta_agrees, assert_same_bits, kept_tensors, products, reads_around_matrices
from expected import sequential_reference
from reference import ACTIVATIONS
from strategies import (
    DTYPES,
    ONCE,
    draw_tensor,
    dtypes,
    every_dtype,
    features,
    leading_sizes,
    random_tensor,
)

ops = torch.ops.fastops
many = settings(max_examples=5 * ONCE * settings().max_examples)
SEED = -0x0123456789ABCDEF
# A value is rounded where it is stored, after each product and each add. In between, a norm loses what its row's
# variance is smaller than its elements, at most 1 / sqrt(eps) = 10 here, and a few operations more. 16-bit values that
# are rounded differently move the next layers by as much.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-4, torch.bfloat16: 0.2, torch.float16: 0.03}


@dataclass
class Steps:
    """The arguments of a sequential, and a gradient of its output."""

    input: Tensor
    parameters: list[Tensor | None]
    steps: str
    params: list[float]
    grad: Tensor

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What sequential takes."""
        seed = torch.tensor(SEED, device=self.input.device) if "dropout" in self.steps else None
        return self.input, self.parameters, self.steps, self.params, seed

    @property
    def tensors(self) -> list[Tensor]:
        return [self.input, *(tensor for tensor in self.parameters if tensor is not None)]

    def expected(self) -> tuple[Tensor, list[Tensor]]:
        """The output and the gradients of the tensors, in float64."""
        leaves = [tensor.detach().cpu().double().requires_grad_() for tensor in self.tensors]
        rest = iter(leaves[1:])
        parameters = [None if tensor is None else next(rest) for tensor in self.parameters]
        output = sequential_reference(self.steps, self.params, SEED)(leaves[0], *parameters)
        grads = torch.autograd.grad(output, leaves, self.grad.cpu().double(), materialize_grads=True)
        return output.detach(), list(grads)


def assert_close(result: Tensor, expected: Tensor, what: str) -> None:
    """Within the tolerance of the largest element: elements are sums of terms as large as that."""
    assert result.shape == expected.shape
    if expected.numel() == 0:
        return
    bound = TOLERANCE[result.dtype] * max(1.0, expected.abs().max().item())
    error = (result.detach().cpu().double() - expected).abs().max().item()
    assert error <= bound, f"{what}: off by {error}, which is more than {bound}"


def assert_as_expected(network: Steps) -> None:
    """Output and gradients are within the tolerance."""
    expected, expected_grads = network.expected()
    leaves = [tensor.requires_grad_() for tensor in network.tensors]
    output = ops.sequential(*network.arguments)
    assert_close(output, expected, "output")
    for i, gradient in enumerate(torch.autograd.grad(output, leaves, network.grad)):
        assert_close(gradient, expected_grads[i], f"gradient {i}")


# Steps on rows that no small change throws to another place: the derivatives jump nowhere.
SMOOTH = [name for name in ("gelu", "silu", "tanh", "sigmoid", "softplus", "mish", "elu") if name in ACTIVATIONS]


@st.composite
def draw_steps(draw: Any, dtype: torch.dtype, device: Any) -> Steps:
    """A network of any of the steps, with any of its sizes zero, with or without each tensor that may be absent."""
    data = draw(st.data())
    size = draw(features)
    input = draw_tensor(data, (*draw(leading_sizes), size), dtype, device)
    names: list[str] = []
    parameters: list[Tensor | None] = []
    params: list[float] = []
    kept: list[int] = []

    def vector(absent: bool = True) -> Tensor | None:
        return None if absent and draw(st.booleans()) else draw_tensor(data, (size,), dtype, device)

    kinds = ["linear", "gated_linear", "layer_norm", "rms_norm", "scale", "dropout", "residual", "add", *SMOOTH]
    for name in draw(st.lists(st.sampled_from(kinds), max_size=7)):
        if name in ("linear", "gated_linear"):
            inputs, size = size, draw(features)
            for _ in range(1 if name == "linear" else 2):
                parameters.append(draw_tensor(data, (size, inputs), dtype, device, 1 / math.sqrt(max(1, inputs))))
                parameters.append(vector())
            if name == "gated_linear":
                names.append(name)
                name = draw(st.sampled_from(SMOOTH))
                params += ACTIVATIONS[name]["parameters"].values()
        elif name in ("layer_norm", "rms_norm"):
            parameters += [vector()] if name == "rms_norm" else [vector(), vector()]
            params.append(draw(st.sampled_from([0.01, 0.5])))
        elif name == "scale":
            parameters.append(vector(absent=False))
        elif name == "dropout":
            params.append(draw(st.sampled_from([0.0, 0.25, 0.9, 1.0])))
        elif name == "residual":
            kept.append(size)
        elif name == "add":
            if not kept or kept[-1] != size:
                continue
            kept.pop()
        else:
            params += ACTIVATIONS[name]["parameters"].values()
        names.append(name)
    while kept:
        outputs = kept.pop()
        if outputs != size:
            parameters += [draw_tensor(data, (outputs, size), dtype, device, 1 / math.sqrt(max(1, size))), None]
            size = outputs
            names.append("linear")
        names.append("add")
    grad = draw_tensor(data, (*input.shape[:-1], size), dtype, device)
    return Steps(input, parameters, " ".join(names), params, grad)


@many
@given(st.data(), dtypes)
def test_sequential(device: Any, data: Any, dtype: torch.dtype) -> None:
    """Output and gradients are those of PyTorch's layers, for whichever tensors require them."""
    network = data.draw(draw_steps(dtype, device))
    expected, expected_grads = network.expected()
    arguments = network.arguments
    results = ops.sequential_forward(*arguments)
    assert_close(results[0], expected, network.steps)
    assert_meta_agrees(results, ops.sequential_forward, *arguments)
    assert_meta_agrees(ops.sequential(*arguments), ops.sequential, *arguments)

    chosen = [data.draw(st.booleans()) for _ in network.tensors]
    leaves = [tensor.requires_grad_() for tensor in itertools.compress(network.tensors, chosen)]
    result = ops.sequential(*arguments)
    assert_same_bits(result.detach(), results[0], network.steps)
    assert result.requires_grad == any(chosen)
    if leaves:
        grads = torch.autograd.grad(result, leaves, network.grad, materialize_grads=True)
        for grad, value in zip(grads, itertools.compress(expected_grads, chosen), strict=True):
            assert_close(grad, value, f"{network.steps} {chosen}")


@many
@given(st.data(), dtypes)
def test_sequential_backward(device: Any, data: Any, dtype: torch.dtype) -> None:
    """sequential_backward gives the gradients that output_mask asks for, in its order, and no others."""
    network = data.draw(draw_steps(dtype, device))
    input, parameters, *rest = network.arguments
    _, saved = ops.sequential_forward(input, parameters, *rest)
    mask = [tensor is not None and data.draw(st.booleans()) for tensor in (input, *parameters)]
    there = [wanted for wanted, tensor in zip(mask, (input, *parameters), strict=True) if tensor is not None]
    arguments = (network.grad, input, parameters, saved, *rest, mask)
    results = ops.sequential_backward(*arguments)
    expected = list(itertools.compress(network.expected()[1], there))
    assert len(results) == len(expected)
    for result, value in zip(results, expected, strict=True):
        assert_close(result, value, f"{network.steps} {mask}")
    assert_meta_agrees(results, ops.sequential_backward, *arguments)


@every_dtype
def test_no_features(device: Any, dtype: torch.dtype) -> None:
    """Layers from nothing to nothing, with as many rows as go through networks in vectors."""
    x = torch.zeros(32, 0, dtype=dtype, device=device, requires_grad=True)
    weight = torch.zeros(0, 0, dtype=dtype, device=device, requires_grad=True)
    parameters = [weight, None, x.detach()[0], None, weight, None]
    result = fastops.functional.sequential(x, parameters, "linear layer_norm tanh linear", [1e-5])
    assert result.shape == x.shape
    grads = torch.autograd.grad(result.sum(), (x, weight))
    assert [grad.shape for grad in grads] == [x.shape, weight.shape]


def blocks(rows: int, size: int, dtype: torch.dtype, device: Any, dropout: float = 0.0) -> Steps:
    """Two blocks: one with a norm before its layers, one with norms after them."""
    inner = min(2 * size, 100)
    tensors = [
        random_tensor(shape, dtype, device, seed, 1 / math.sqrt(shape[-1]))
        for seed, shape in enumerate([(inner, size), (inner,), (size, inner), (size,), (size, size), (size,)])
    ]
    vectors = [random_tensor((size,), dtype, device, seed=10 + i) for i in range(4)]
    steps = "residual layer_norm linear gelu dropout linear dropout add linear rms_norm silu dropout scale"
    parameters = [*vectors[:2], *tensors, *vectors[2:]]
    params = [1e-2, dropout, dropout, 1e-2, dropout]
    input, grad = (random_tensor((rows, size), dtype, device, seed) for seed in (20, 21))
    return Steps(input, parameters, steps, params, grad)


# Blocks of several rows and of a part of one; parts with sums of their own; rows that are no multiple of anything.
@every_dtype
@pytest.mark.parametrize("sizes", [(1, 5), (7, 33), (300, 67), (2500, 16), (40, 772), (40, 1030), (3, 2100)])
def test_blocks(device: Any, dtype: torch.dtype, sizes: tuple[int, int], restore_threads: None) -> None:
    """Output and gradients are within the tolerance."""
    network = blocks(*sizes, dtype, device, dropout=0.25 if sizes[0] < 300 else 0.0)
    expected, expected_grads = network.expected()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        leaves = [tensor.requires_grad_() for tensor in network.tensors]
        output = ops.sequential(*network.arguments)
        assert_close(output, expected, f"output with {threads} threads")
        for i, grad in enumerate(torch.autograd.grad(output, leaves, network.grad)):
            assert_close(grad, expected_grads[i], f"gradient {i} with {threads} threads")


def test_blocks_in_rounds(device: Any) -> None:
    """So they are where a GPU's blocks, of which as many have sums as it takes, have several rows one after another."""
    vectors = [random_tensor((65,), torch.float32, device, seed=i) for i in range(3)]
    input, grad = (random_tensor((4200, 65), torch.float32, device, seed=10 + i) for i in range(2))
    network = Steps(input, vectors, "scale layer_norm", [1e-2], grad)
    assert_as_expected(network)


@every_dtype
@pytest.mark.parametrize("columns", [4, 132, 260, 516, 1024])
@pytest.mark.parametrize(
    ("steps", "vectors"), [("layer_norm", 2), ("layer_norm gelu", 2), ("rms_norm silu", 1), ("rms_norm", 0)]
)
def test_norms_of_few_rows(device: Any, dtype: torch.dtype, columns: int, steps: str, vectors: int) -> None:
    """Which a GPU has kernels of their own for."""
    parameters: list[Tensor | None] = [random_tensor((columns,), dtype, device, seed=i) for i in range(vectors)]
    input, grad = (random_tensor((3, columns), dtype, device, seed=10 + i) for i in range(2))
    assert_as_expected(Steps(input, parameters or [None], steps, [1e-3], grad))


@every_dtype
@pytest.mark.parametrize(
    ("steps", "params"), [("layer_norm gelu dropout scale", [1e-5, 0.3]), ("layer_norm gelu", [1e-5])]
)
def test_rows_anywhere_in_memory(device: Any, dtype: torch.dtype, steps: str, params: list[float]) -> None:
    """Matrices and vectors that begin at any element, and rows within others, give the same bits."""
    vectors = [random_tensor((132,), dtype, device, seed=i) for i in range(2 + ("scale" in steps))]
    matrices = [random_tensor((9, 132), dtype, device, seed=10 + i) for i in range(2)]
    seed = torch.tensor(SEED, device=device)

    def results(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        *vectors, input, grad = (tensor.requires_grad_() for tensor in tensors)
        output = ops.sequential(input, vectors, steps, params, seed)
        return [output, *torch.autograd.grad(output, [*vectors, input], grad)]

    expected = results([tensor.clone() for tensor in (*vectors, *matrices)])
    places = [
        [
            torch.cat([tensor.new_zeros(offset), tensor.flatten()])[offset:].view_as(tensor)
            for tensor in (*vectors, *matrices)
        ]
        for offset in (1, 2, 4)
    ]
    within_others = [torch.nn.functional.pad(matrix, (2, 3), value=math.nan)[:, 2:-3] for matrix in matrices]
    places.append([*(vector.clone() for vector in vectors), *within_others])
    for tensors in places:
        for result, first in zip(results(tensors), expected, strict=True):
            assert_same_bits(result, first)


NARROW = [
    ("linear layer_norm tanh linear rms_norm silu linear", (17, 64, 40, 6)),
    ("layer_norm scale linear gelu layer_norm linear tanh scale", (5, 9, 3)),
    ("linear relu linear", (3, 128, 1)),
    ("rms_norm silu linear layer_norm linear sigmoid layer_norm", (2, 20, 70)),
    ("dropout linear tanh dropout linear dropout", (6, 70, 3)),
    ("linear residual layer_norm linear tanh dropout add residual elu rms_norm linear add linear", (17, 24, 24, 24, 6)),
    ("residual residual scale linear gelu add dropout linear sigmoid scale add", (12, 12, 12)),
    ("linear residual add residual linear silu add", (4, 9, 9)),
]
each_narrow = pytest.mark.parametrize(("steps", "sizes"), NARROW)


def narrow_network(
    steps: str, sizes: tuple[int, ...], rows: int, with_vectors: bool, dtype: torch.dtype, device: Any
) -> Steps:
    """A network with or without biases and norms' vectors, whose input is part of a tensor."""
    vector_dtype = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    parameters: list[Tensor | None] = []
    params: list[float] = []
    widths = iter(sizes)
    width = next(widths)
    for step in steps.split():
        if step == "linear":
            before, width = width, next(widths)
            parameters.append(random_tensor((width, before), dtype, device, len(parameters), 1 / math.sqrt(before)))
            parameters.append(random_tensor((width,), dtype, device, len(parameters)) if with_vectors else None)
        elif step in ("layer_norm", "rms_norm", "scale"):
            for _ in range(2 if step == "layer_norm" else 1):
                needed = with_vectors or step == "scale"
                parameters.append(random_tensor((width,), vector_dtype, device, len(parameters)) if needed else None)
            params += [0.0 if dtype == vector_dtype else 1e-2] if step.endswith("norm") else []
        elif step in ("dropout", "elu"):
            params.append(0.3)
    input, grad = (random_tensor((rows, size), dtype, device, seed=20 + size) for size in (sizes[0], sizes[-1]))
    around = 1.0 if reads_around_matrices(device, dtype) else math.nan
    return Steps(F.pad(input, (0, 3), value=around)[:, :-3], parameters, steps, params, grad)


@every_dtype
@pytest.mark.parametrize("rows", [16, 21, 1030])
@each_narrow
@pytest.mark.parametrize("with_vectors", [True, False])
def test_narrow(
    steps: str,
    sizes: tuple[int, ...],
    rows: int,
    with_vectors: bool,
    dtype: torch.dtype,
    device: Any,
    restore_threads: None,
) -> None:
    """Few features, which vectors of rows are for: nothing around the input is read, and threads change nothing."""
    network = narrow_network(steps, sizes, rows, with_vectors, dtype, device)
    grad = network.grad
    expected, expected_grads = network.expected()
    leaves = [tensor.requires_grad_() for tensor in network.tensors]
    results = {}
    for threads in (1, 3):
        torch.set_num_threads(threads)
        output = ops.sequential(*network.arguments)
        results[threads] = [output.detach(), *torch.autograd.grad(output, leaves, grad)]
        with torch.no_grad():
            assert_same_bits(ops.sequential(*network.arguments), output.detach())
    for i, (result, value) in enumerate(zip(results[1], [expected, *expected_grads], strict=True)):
        assert_close(result.to(dtype), value, f"result {i}")
    if products(device) == "own":
        assert_same_bits(results[3][0], results[1][0])
    assert_meta_agrees(ops.sequential_forward(*network.arguments), ops.sequential_forward, *network.arguments)


@each_narrow
def test_wanted_gradients(steps: str, sizes: tuple[int, ...], device: Any) -> None:
    """Which gradients are wanted changes none of them."""
    network = narrow_network(steps, sizes, 50, True, torch.float32, device)
    *arguments, seed = network.arguments
    _, saved = ops.sequential_forward(*arguments, seed)
    input, parameters, *rest = arguments
    everything = [True] + [parameter is not None for parameter in parameters]
    backward = lambda mask: ops.sequential_backward(network.grad, input, parameters, saved, *rest, seed, mask)  # noqa: E731
    results = iter(backward(everything))
    for i, wanted in enumerate(everything):
        if wanted:
            [alone] = backward([i == k for k in range(len(everything))])
            assert_same_bits(alone, next(results))


@every_dtype
def test_wide_rows(device: Any, dtype: torch.dtype) -> None:
    """So are they for rows for which a GPU's block has no room."""
    vectors = [random_tensor((13000,), dtype, device, seed=i) for i in range(2)]
    input, grad = (random_tensor((2, 13000), dtype, device, seed=10 + i) for i in range(2))
    network = Steps(input, vectors, "layer_norm gelu", [1e-2], grad)
    assert_as_expected(network)


@every_dtype
def test_threads(device: Any, dtype: torch.dtype, restore_threads: None) -> None:
    """Steps on rows and the gradients of their vectors have the same bits from any number of threads."""
    vectors = [random_tensor((300,), dtype, device, seed=i).requires_grad_() for i in range(3)]
    input, grad = (random_tensor((500, 300), dtype, device, seed=10 + i) for i in range(2))
    seed = torch.tensor(SEED, device=device)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        output = ops.sequential(input, vectors, "layer_norm gelu dropout scale", [1e-5, 0.3], seed)
        results.append([output.detach(), *torch.autograd.grad(output, vectors, grad)])
    for other in results[1:]:
        for result, first in zip(other, results[0], strict=True):
            assert_same_bits(result, first)


@pytest.mark.parametrize("steps", ["layer_norm", "rms_norm", "dropout", "scale", "residual relu add"])
@every_dtype
def test_special_values(steps: str, dtype: torch.dtype, device: Any) -> None:
    """NaN and infinities come out where they do in PyTorch."""
    values = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0]
    input = torch.tensor([[value, 2.0, -3.0] for value in values] * 7, dtype=dtype, device=device)
    parameters = [torch.ones(3, dtype=dtype, device=device)] if steps == "scale" else []
    parameters += {"layer_norm": [None, None], "rms_norm": [None]}.get(steps, [])
    params = {"dropout": [0.5], "layer_norm": [1e-5], "rms_norm": [1e-5]}.get(steps, [])
    network = Steps(input, parameters, steps, params, input)
    expected, _ = network.expected()
    result = ops.sequential(*network.arguments).cpu().double()
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.isinf(), expected.isinf())


# ---- what is kept, and mixed dtypes ----


def test_keeps_products_and_sums(device: Any) -> None:
    """For the backward pass of a block there are its input, what its products gave and the parameters."""
    network = blocks(8, 4, torch.float32, device, dropout=0.5)
    tensors = [tensor.requires_grad_() for tensor in network.tensors]
    kept = kept_tensors(lambda: ops.sequential(*network.arguments), tensors)
    assert sorted(tensor.numel() for tensor in kept if tensor.numel() > 1) == [32, 32, 64]


@pytest.mark.skipif(torch.float64 not in DTYPES, reason="a 16-bit type beside float32 is the same everywhere")
@pytest.mark.parametrize(
    ("steps", "output_dtype"),
    [("residual layer_norm linear gelu linear add", torch.float32), ("layer_norm linear gelu linear", torch.bfloat16)],
)
def test_products_take_their_weights_dtype(steps: str, output_dtype: torch.dtype, device: Any) -> None:
    """As under autocast: 16-bit products, a residual and norms in float32."""
    network = blocks(16, 8, torch.float32, device)
    parameters = [
        tensor.bfloat16() if i in (2, 3, 4, 5) and tensor is not None else tensor
        for i, tensor in enumerate(network.parameters)
    ]
    leaves = [network.input.requires_grad_(), *(tensor.detach().requires_grad_() for tensor in parameters[:6])]
    output = ops.sequential(leaves[0], leaves[1:], steps, [1e-2])
    assert output.dtype == output_dtype
    with torch.autocast(device.type, torch.bfloat16):
        again = ops.sequential(leaves[0], [tensor.float() for tensor in leaves[1:]], steps, [1e-2])
    assert_same_bits(output.detach(), again.detach())
    exact = Steps(leaves[0], leaves[1:], steps, [1e-2], network.grad.to(output_dtype))
    expected, expected_grads = exact.expected()
    torch.testing.assert_close(output.detach().cpu().double(), expected, rtol=0.02, atol=0.02)
    grads = torch.autograd.grad(output, leaves, exact.grad)
    for grad, leaf, value in zip(grads, leaves, expected_grads, strict=True):
        assert grad.dtype == leaf.dtype
        torch.testing.assert_close(grad.cpu().double(), value, rtol=0.05, atol=0.05 * value.abs().max().item())


def test_against_modules(device: Any) -> None:
    """The feed-forward half of a transformer's block, as torch.nn has it."""
    norm, first, second = torch.nn.LayerNorm(6), torch.nn.Linear(6, 9), torch.nn.Linear(9, 6)
    modules = torch.nn.Sequential(norm, first, torch.nn.GELU(), second).to(device)
    x = torch.randn(5, 6, device=device)
    parameters = [norm.weight, norm.bias, first.weight, first.bias, second.weight, second.bias]
    result = fastops.functional.sequential(x, parameters, "residual layer_norm linear gelu linear add", [norm.eps])
    torch.testing.assert_close(result, x + modules(x))
    result = fastops.functional.sequential(x, [parameters[0]], "rms_norm", [1e-6])
    torch.testing.assert_close(result, F.rms_norm(x, [6], parameters[0], 1e-6))


# ---- errors ----


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": "linear lin"}, r"step 1 is 'lin', but must be one of linear, gated_linear, layer_norm"),
        ({"steps": "linear linear"}, r"parameters has 2 entries, but step 1, linear, needs another"),
        ({"steps": "gated_linear"}, r"parameters has 2 entries, but step 0, gated_linear, needs another"),
        ({"steps": "relu"}, r"parameters has 2 entries, but the steps take 0"),
        ({"steps": "linear dropout"}, r"params has 0 entries, but step 1, dropout, needs 1 more"),
        ({"params": [1.0]}, r"params has 1 entries, but the steps take 0"),
        ({"steps": "linear add"}, r"add without a residual"),
        ({"steps": "residual linear"}, r"1 residual steps have no add"),
        ({"steps": "residual linear add"}, r"add has 3 features, but its residual has 4"),
        ({"steps": "linear dropout", "params": [1.5]}, r"dropout must be from 0 to 1, but is 1.5"),
        ({"steps": "linear dropout", "params": [0.5]}, r"seed is None, but there is a dropout"),
        ({"input": (2, 5)}, r"parameters\[0\] has 4 input features, but what comes to it has 5"),
        ({"weight": (3, 4, 1)}, r"parameters\[0\] must have shape \[out_features, in_features\], but has 3 dimensions"),
        ({"bias": (4,)}, r"parameters\[1\] has shape \[4\], but must have shape \[3\]"),
    ],
)
def test_errors(change: dict[str, Any], message: str, device: Any) -> None:
    """They name the argument, what it got and what it needs."""
    sizes = {"input": (2, 4), "weight": (3, 4), "bias": (3,)}
    input, weight, bias = (torch.ones(change.get(name, size), device=device) for name, size in sizes.items())
    with pytest.raises(ValueError, match=f"fastops.sequential: {message}"):
        ops.sequential(input, [weight, bias], change.get("steps", "linear"), change.get("params", []))


def test_gated_linear_errors(device: Any) -> None:
    """It needs an activation, and as many outputs of both products."""
    x, gate, up = torch.ones(2, 4, device=device), torch.ones(3, 4, device=device), torch.ones(5, 4, device=device)
    with pytest.raises(ValueError, match=r"step 1 is 'dropout', but after gated_linear must be an activation"):
        ops.sequential(x, [gate, None, gate, None], "gated_linear dropout", [0.1])
    with pytest.raises(ValueError, match=r"gated_linear, the last step, must be followed by an activation"):
        ops.sequential(x, [gate, None, gate, None], "gated_linear")
    with pytest.raises(ValueError, match=r"parameters\[2\] has 5 outputs, but parameters\[0\] has 3"):
        ops.sequential(x, [gate, None, up, None], "gated_linear silu")
    with pytest.raises(TypeError, match=r"parameters\[2\] is Half, but the gate's weight is Float"):
        ops.sequential(x, [gate, None, gate.half(), None], "gated_linear silu")


def test_type_errors(device: Any) -> None:
    """Of dtypes that do not go together, and of seeds that are none."""
    x, weight = torch.ones(2, 4, device=device), torch.ones(3, 4, device=device)
    with pytest.raises(TypeError, match=r"parameters\[0\] must be float32, float64, bfloat16 or float16, but is Int"):
        ops.sequential(x, [weight.int(), None], "linear")
    with pytest.raises(TypeError, match=r"parameters\[1\] is Half, but its weight is Float"):
        ops.sequential(x, [weight, weight[:, 0].half()], "linear")
    with pytest.raises(TypeError, match=r"seed must be int64, but is Int"):
        ops.sequential(x, [], "dropout", [0.5], torch.tensor(1, dtype=torch.int32, device=device))
    with pytest.raises(ValueError, match=r"seed must be a tensor without dimensions, but has 1"):
        ops.sequential(x, [], "dropout", [0.5], torch.ones(2, dtype=torch.int64, device=device))
    with pytest.raises(TypeError, match=r"fastops.sequential: parameters must be a list"):
        fastops.functional.sequential(x, weight, "relu")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"fastops.sequential: steps must be a string, but is a list"):
        fastops.functional.sequential(x, [weight, None], ["linear", "relu"])  # type: ignore[arg-type]


def test_every_activation_is_a_step(device: Any) -> None:
    """Every activation is a step, and takes all of its parameters."""
    x = torch.linspace(-3, 3, 33, device=device)
    for name, entry in ACTIVATIONS.items():
        params = list(entry["parameters"].values())
        assert_same_bits(ops.sequential(x, [], name, params), getattr(ops, name)(x), name)
