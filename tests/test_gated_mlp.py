"""gated_mlp, forward and backward, against PyTorch in float64."""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import assert_meta_agrees, assert_same_bits, kept_tensors, products
from reference import Approximate, activation, rounded_parameters
from strategies import (
    IN_GPU_EMULATOR,
    ONCE,
    draw_activation,
    draw_tensor,
    dtypes,
    every_dtype,
    features,
    leading_sizes,
    random_tensor,
)

ops = torch.ops.fastops
many = settings(max_examples=5 * ONCE * settings().max_examples)


@dataclass
class GatedNetwork:
    """The arguments of a gated_mlp, and a gradient of its output."""

    tensors: list  # the seven tensor arguments, None for an absent bias
    name: str
    params: tuple
    grad: torch.Tensor

    @property
    def arguments(self):
        """What gated_mlp takes."""
        return *self.tensors, self.name, list(self.params)


def draw_gated_network(data, dtype, device):
    """A gated_mlp with any of its sizes zero, with or without each bias."""
    inputs, hidden, outputs = (data.draw(features) for _ in range(3))
    leading = data.draw(leading_sizes)
    weights = [(hidden, inputs), (hidden, inputs), (outputs, hidden)]
    tensors = [draw_tensor(data, (*leading, inputs), dtype, device)]
    tensors += [draw_tensor(data, size, dtype, device, 1 / math.sqrt(max(1, size[1]))) for size in weights]
    for size in (hidden, hidden, outputs):
        tensors.append(draw_tensor(data, (size,), dtype, device) if data.draw(st.booleans()) else None)
    name, params = draw_activation(data)
    return GatedNetwork(tensors, name, params, draw_tensor(data, (*leading, outputs), dtype, device))


def gated_network(rows, inputs, hidden, outputs, dtype, device):
    """A gated_mlp of these sizes with every bias."""
    weights = [(hidden, inputs), (hidden, inputs), (outputs, hidden)]
    tensors = [random_tensor((rows, inputs), dtype, device, seed=0)]
    tensors += [random_tensor(size, dtype, device, seed, 1 / math.sqrt(size[1])) for seed, size in enumerate(weights)]
    tensors += [random_tensor((size,), dtype, device, seed) for seed, size in enumerate((hidden, hidden, outputs))]
    return GatedNetwork(tensors, "silu", (), random_tensor((rows, outputs), dtype, device, seed=3))


def output_and_gradients(network):
    """The output and the gradients of the seven tensors, by autograd."""
    leaves = [tensor.requires_grad_() for tensor in network.tensors]
    output = ops.gated_mlp(*network.arguments)
    return [output.detach(), *torch.autograd.grad(output, leaves, network.grad)]


def expected_gated_network(network):
    """The output and the gradients of the seven tensors."""
    x, gate_weight, up_weight, down_weight, gate_bias, up_bias, down_bias = network.tensors
    rows = Approximate.exact(x).as_rows()
    gate = rows.linear(gate_weight, gate_bias)
    up = rows.linear(up_weight, up_bias)
    value = gate.activation(network.name, network.params)
    hidden = (value * up).stored()
    output = hidden.linear(down_weight, down_bias)

    grad = Approximate.exact(network.grad).as_rows()
    through = (grad @ Approximate.exact(down_weight)).stored()
    grad_gate = (through * up * gate.activation(network.name, network.params, 1)).stored()
    grad_up = (through * value).stored()
    by_gate = (grad_gate @ Approximate.exact(gate_weight)).stored()
    by_up = (grad_up @ Approximate.exact(up_weight)).stored()
    grads = [
        (by_gate + by_up).stored().view(*x.shape),
        (grad_gate.T @ rows).stored(),
        (grad_up.T @ rows).stored(),
        (grad.T @ hidden).stored(),
        *(tensor.sum_rows().stored() for tensor in (grad_gate, grad_up, grad)),
    ]
    return output.view(*network.grad.shape), grads


def assert_gated_agrees_with_autograd(network, output, grads):
    """The reference above is what autograd makes of the plain formula in float64."""
    leaves = [leaf if leaf is None else leaf.detach().cpu().double().requires_grad_() for leaf in network.tensors]
    x, gate_weight, up_weight, down_weight, gate_bias, up_bias, down_bias = leaves
    gate = activation(
        network.name, F.linear(x, gate_weight, gate_bias), rounded_parameters(network.params, network.grad.dtype)
    )
    result = F.linear(gate * F.linear(x, up_weight, up_bias), down_weight, down_bias)
    torch.testing.assert_close(output.value, result.detach(), rtol=1e-9, atol=1e-9)
    by_autograd = torch.autograd.grad(result, [t for t in leaves if t is not None], network.grad.cpu().double())
    by_hand = [grad.value for grad, leaf in zip(grads, leaves, strict=True) if leaf is not None]
    torch.testing.assert_close(by_hand, list(by_autograd), rtol=1e-9, atol=1e-9)


@many
@given(st.data(), dtypes)
def test_gated_mlp(device, data, dtype):
    """Output and gradients are those of PyTorch's layers, for whichever tensors require them."""
    network = draw_gated_network(data, dtype, device)
    output, grads = expected_gated_network(network)
    assert_gated_agrees_with_autograd(network, output, grads)
    results = ops.gated_mlp_forward(*network.arguments)
    output.assert_holds(results[0], network.name)
    assert_meta_agrees(results, ops.gated_mlp_forward, *network.arguments)
    assert_meta_agrees(ops.gated_mlp(*network.arguments), ops.gated_mlp, *network.arguments)

    chosen = [tensor is not None and data.draw(st.booleans()) for tensor in network.tensors]
    leaves = [tensor.requires_grad_() for tensor in itertools.compress(network.tensors, chosen)]
    result = ops.gated_mlp(*network.arguments)
    output.assert_holds(result, network.name)
    assert result.requires_grad == any(chosen)
    if leaves:
        for tensor, grad in zip(
            torch.autograd.grad(result, leaves, network.grad), itertools.compress(grads, chosen), strict=True
        ):
            grad.assert_holds(tensor, f"{network.name} {chosen}")


@many
@given(st.data(), dtypes)
def test_gated_mlp_backward(device, data, dtype):
    """gated_mlp_backward gives the gradients that output_mask asks for, in its order, and no others."""
    network = draw_gated_network(data, dtype, device)
    mask = [tensor is not None and data.draw(st.booleans()) for tensor in network.tensors]
    _, gate, up = ops.gated_mlp_forward(*network.arguments)
    args = (network.grad, *network.tensors[:6], gate, up, network.name, list(network.params), mask)
    results = ops.gated_mlp_backward(*args)
    for result, grad in zip(results, itertools.compress(expected_gated_network(network)[1], mask), strict=True):
        grad.assert_holds(result, f"{network.name} {mask}")
    assert_meta_agrees(results, ops.gated_mlp_backward, *args)


def test_gated_mlp_keeps_gate_and_up(device):
    """For the backward pass gated_mlp keeps the gate and the up projection."""
    tensors = [torch.randn(size, device=device, requires_grad=True) for size in [(4, 5), (6, 5), (6, 5), (3, 6)]]
    kept = kept_tensors(lambda: ops.gated_mlp(*tensors), tensors)
    assert [tensor.numel() for tensor in kept] == [24, 24]


# Sizes that take several blocks of rows, columns and depth; several chunks of rows, with small gradients and larger
# ones; rows a power of two apart; rows that are too few for the threads; and weights that are packed on the way.
BLOCKS = [
    (300, 130, 290, 97),
    (2500, 70, 33, 5),
    (2100, 100, 80, 97),
    (40, 1024, 7, 1024),
    (40, 100, 110, 65),
    (90, 270, 250, 65),
]


@every_dtype
@pytest.mark.parametrize("sizes", BLOCKS)
def test_blocks(device, dtype, sizes, restore_threads):
    """Output and gradients are within the budget; our own products give the same bits from any number of threads."""
    network = gated_network(*sizes, dtype, device)
    expected_output, expected_grads = expected_gated_network(network)
    results = {}
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results[threads] = [ops.gated_mlp(*network.arguments), *output_and_gradients(network)]
        expected = [expected_output, expected_output, *expected_grads]
        for i, (result, value) in enumerate(zip(results[threads], expected, strict=True)):
            value.assert_holds(result.detach(), f"result {i} with {threads} threads")
    for threads in (2, 3) if products(device) == "own" else ():
        for i, (result, first) in enumerate(zip(results[threads], results[1], strict=True)):
            assert_same_bits(result, first, f"result {i} with {threads} threads")


@every_dtype
@pytest.mark.parametrize("sizes", [(1, 64, 80, 65), (40, 33, 65, 17), (300, 130, 290, 97)])
@pytest.mark.parametrize("places", [[1, 2, 3], [2], [3]])
def test_transposed_weights(device, dtype, sizes, places):
    """The gradients of weights that are transposed matrices are transposed, too."""
    network = gated_network(*sizes, dtype, device)
    for place in places:
        network.tensors[place] = network.tensors[place].t().contiguous().t()
    output, gate, up = ops.gated_mlp_forward(*network.arguments)
    args = (network.grad, *network.tensors[:6], gate, up, network.name, [], [True] * 7)
    results = ops.gated_mlp_backward(*args)
    expected_output, expected_grads = expected_gated_network(network)
    for result, expected in zip([output, *results], [expected_output, *expected_grads], strict=True):
        expected.assert_holds(result)
    for place in (1, 2, 3):
        assert (results[place].t() if place in places else results[place]).is_contiguous()
    assert_meta_agrees(results, ops.gated_mlp_backward, *args)


@every_dtype
def test_every_mask(device, dtype):
    """A gradient has the same bits whichever others are wanted."""
    network = gated_network(40, 33, 65, 17, dtype, device)
    _, gate, up = ops.gated_mlp_forward(*network.arguments)
    args = (network.grad, *network.tensors[:6], gate, up, network.name, [])
    every = ops.gated_mlp_backward(*args, [True] * 7)
    for mask in itertools.product([False, True], repeat=7):
        results = ops.gated_mlp_backward(*args, list(mask))
        for result, expected in zip(results, itertools.compress(every, mask), strict=True):
            assert_same_bits(result, expected, str(mask))


def test_products(device):
    """The matrix products are fastops' own or PyTorch's, as FASTOPS_CPU_PRODUCTS says."""
    whose = products(device)
    if whose in ("fastest", "unpacked") or device.type == "cuda" or IN_GPU_EMULATOR:
        pytest.skip("test_capability.py sets it, and GPU kernels choose by the sizes")
    network = gated_network(300, 130, 290, 97, torch.float32, device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        output, *grads = output_and_gradients(network)
    called = {event.name for event in profile.events()} & {"aten::mm", "aten::addmm"}
    assert called == (set() if whose == "own" else {"aten::mm", "aten::addmm"})
    expected_output, expected_grads = expected_gated_network(network)
    for result, expected in zip([output, *grads], [expected_output, *expected_grads], strict=True):
        expected.assert_holds(result, whose)
