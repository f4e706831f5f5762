"""The composite path, which any device without kernels of its own takes, on the device under test."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from checks import assert_same_bits
from perceptrons import draw_network, expected_network
from reference import ACTIVATIONS, GRADIENT_FROM_OUTPUT, Approximate, output_suffices
from strategies import (
    ONCE,
    dtypes,
    every_activation,
    every_dtype,
    layouts,
    parameters,
    random_values,
    seeds,
    sizes,
    tensor_layouts,
)
from test_bias_act import assert_gradients, make, operands, pre_activation
from test_gated_act import gated_layouts, gradients, halves, product
from test_gated_mlp import draw_gated_network, expected_gated_network

ops = torch.ops.fastops
NAMES = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("fastops::")]
# fastops has no kernels for this device: the kernels under its key are those that every such device gets.
KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.XPU)
masks = st.tuples(st.booleans(), st.booleans())
many = settings(max_examples=2 * ONCE * settings().max_examples)


def composite(op, *args, **kwargs):
    """The composite kernel of an op, on tensors of any device."""
    overload = op if isinstance(op, torch._ops.OpOverload) else op.default
    return overload.redispatch(KEYS, *args, **kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_every_op_has_a_composite_kernel(name):
    """Every op runs on a device that fastops has no kernels for."""
    assert torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "XPU")


@every_activation
def test_is_made_of_pytorch_ops(name, device):
    """The kernel under test is not the native one: it calls PyTorch's ops."""
    called = set()

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.add(function.overloadpacket)
            return function(*args, **(kwargs or {}))

    x = torch.randn(5, device=device)
    with Record():
        composite(getattr(ops, name), x, *ACTIVATIONS[name]["parameters"].values())
    assert called - {torch.ops.aten.empty_like, torch.ops.aten._to_copy}


@every_activation
@given(st.data(), sizes(), dtypes, seeds)
def test_activation(name, device, data, size, dtype, seed):
    """Plain, in-place and out= forms give the activation's value."""
    params = data.draw(parameters(name))
    x = data.draw(layouts(size)).random(dtype, device, seed)
    y = composite(getattr(ops, name), x, *params)
    assert y.data_ptr() != x.data_ptr() or x.numel() == 0
    Approximate.exact(x).activation(name, params).stored().assert_holds(y, name)

    target = data.draw(layouts(size, overlapping=False))
    storage = random_values(target.storage_size + 9, seed + 1).to(dtype).to(device)
    expected = storage.clone()
    target.of(expected).copy_(y)
    out = target.of(storage.clone())
    assert composite(getattr(ops, name).out, x, *params, out=out) is out
    assert_same_bits(out, y, f"{name} out")
    target.of(storage).copy_(x)
    in_place = target.of(storage)
    assert composite(getattr(ops, f"{name}_"), in_place, *params) is in_place
    assert_same_bits(storage, expected, f"{name} in place")


@every_activation
@given(st.data(), tensor_layouts(2), dtypes, seeds, st.integers(1, 3), st.booleans())
def test_activation_backward(name, device, data, layout, dtype, seed, order, from_output):
    """The derivatives of the first three orders, from the input or the output."""
    params = data.draw(parameters(name))
    from_output = from_output and name in GRADIENT_FROM_OUTPUT and output_suffices(name, params)
    values = random_values(layout[0].storage_size, seed).to(dtype).to(device)
    saved = layout[0].of(getattr(ops, name)(values, *params) if from_output else values)
    grad = layout[1].random(dtype, device, seed + 1)
    result = composite(ops.activation_backward, grad, saved, name, params, from_output, order)
    if from_output:
        derivative = Approximate.exact(saved).gradient_from_output(name, params, order)
    else:
        derivative = Approximate.exact(saved).activation(name, params, order)
    (derivative * Approximate.exact(grad)).stored().assert_holds(result, f"{name}, order {order}")


@pytest.mark.parametrize("name", ["leaky_relu", "elu"])
def test_parameter_zero(name, device):
    """A slope of zero times NaN is NaN, and times a negative number it is a negative zero."""
    x = torch.tensor([-1.0, math.nan, 2.0], device=device)
    y = composite(getattr(ops, name), x, 0.0)
    assert y[1].isnan() and y[0] == 0 and y[0].signbit() and y[2] == 2
    grad = torch.full_like(x, math.nan)
    assert composite(ops.activation_backward, grad, x, name, [0.0], False, 1).isnan().all()


ZERO_DERIVATIVES = [
    *((name, False, order) for name in "identity relu relu6 leaky_relu".split() for order in (2, 3)),
    *((name, False, order) for name in "softshrink hardshrink hardtanh hardsigmoid".split() for order in (2, 3)),
    *((name, False, 3) for name in ("hardswish", "relu_squared")),
    *((name, True, 3) for name in ("elu", "selu")),
]


@pytest.mark.parametrize(("name", "from_output", "order"), ZERO_DERIVATIVES)
@every_dtype
def test_gradient_without_value(name, from_output, order, dtype, device):
    """A derivative that is zero everywhere is zero for NaN and infinities, too, natively as well; so PyTorch has it."""
    grad = torch.tensor([math.nan, math.inf, -math.inf] * 11, dtype=dtype, device=device)
    params = list(ACTIVATIONS[name]["parameters"].values())
    for x in (0.7, -0.7, 1e4):
        arguments = (grad, torch.full_like(grad, x), name, params, from_output, order)
        for result in (ops.activation_backward(*arguments), composite(ops.activation_backward, *arguments)):
            assert (result == 0).all()


@pytest.mark.parametrize(
    ("name", "params"), [("softshrink", [1e308]), ("hardtanh", [-1e308, 1e308]), ("leaky_relu", [-1e308])]
)
@every_dtype
def test_huge_parameter(name, params, dtype, device):
    """A parameter that the dtype computed with has no room for is infinite, as it is for the native kernels."""
    x = torch.tensor([-1.0, 2.0], dtype=dtype, device=device)
    assert_same_bits(composite(getattr(ops, name), x, *params), getattr(ops, name)(x, *params))
    arguments = (torch.ones_like(x), x, name, params)
    assert_same_bits(composite(ops.activation_backward, *arguments), ops.activation_backward(*arguments))


@pytest.mark.parametrize("name", ["identity", "relu", "hardtanh"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_layout_of_derivatives(name, order, device):
    """The result is laid out as `saved`, whatever the layout of grad_output."""
    saved, grad = torch.randn(3, 2, device=device).t(), torch.randn(2, 3, device=device)
    params = list(ACTIVATIONS[name]["parameters"].values())
    result = composite(ops.activation_backward, grad, saved, name, params, False, order)
    assert result.stride() == saved.stride()


@many
@given(st.data(), operands(), dtypes, seeds, masks)
def test_bias_act(device, data, layout, dtype, seed, mask):
    """bias_act, its out= form and its backward."""
    name = data.draw(st.sampled_from(list(ACTIVATIONS)))
    params = list(data.draw(parameters(name)))
    x, grad, bias = (make(one, dtype, device, seed + i) for i, one in enumerate(layout))
    z = pre_activation(x, bias)
    y = composite(ops.bias_act, x, bias, name, params)
    z.activation(name, params).stored().assert_holds(y, name)
    out = torch.empty_like(y)
    composite(ops.bias_act.out, x, bias, name, params, out=out)
    assert_same_bits(out, y, name)
    grads = composite(ops.bias_act_backward, grad, x, bias, name, params, False, list(mask))
    assert_gradients(grads, mask, z.activation(name, params, 1), grad, name)


@many
@given(st.data(), gated_layouts(), dtypes, seeds, st.booleans(), masks)
def test_gated_act(device, data, layout, dtype, seed, gate_last, mask):
    """gated_act and act_mul, with their backward."""
    name = data.draw(st.sampled_from(list(ACTIVATIONS)))
    params = list(data.draw(parameters(name)))
    x = layout[0].random(dtype, device, seed)
    grad = layout[1].random(dtype, device, seed + 1)
    gate, up = halves(x, gate_last)
    value = product(gate, up, name, params)
    value.assert_holds(composite(ops.gated_act, x, name, params, gate_last), name)
    value.assert_holds(composite(ops.act_mul, gate, up, name, params), name)
    expected = gradients(grad, gate, up, name, params)
    result = composite(ops.gated_act_backward, grad, x, name, params, gate_last)
    for half, gradient in zip(halves(result, gate_last), expected, strict=True):
        gradient.assert_holds(half, name)
    results = composite(ops.act_mul_backward, grad, gate, up, name, params, list(mask))
    for result, gradient in zip(results, itertools.compress(expected, mask), strict=True):
        gradient.assert_holds(result, name)


@many
@given(st.data(), dtypes)
def test_mlp(device, data, dtype):
    """mlp, mlp_forward and mlp_backward."""
    network = draw_network(data, dtype, device)
    expected_output, expected_grads = expected_network(network)
    expected_output.assert_holds(composite(ops.mlp, *network.arguments), "mlp")
    output, saved = composite(ops.mlp_forward, *network.arguments)
    expected_output.assert_holds(output, "mlp_forward")
    mask = [leaf is not None and data.draw(st.booleans()) for leaf in network.leaves]
    args = (network.grad, *network.arguments[:3], output, saved, *network.arguments[3:], mask)
    results = composite(ops.mlp_backward, *args)
    for result, grad in zip(results, itertools.compress(expected_grads, mask), strict=True):
        grad.assert_holds(result, f"{mask}")


@many
@given(st.data(), dtypes)
def test_linear_act(device, data, dtype):
    """linear_act."""
    network = draw_network(data, dtype, device, max_depth=1)
    name, params = network.output
    result = composite(ops.linear_act, network.input, network.weights[0], network.biases[0], name, list(params))
    expected_network(network)[0].assert_holds(result, name)


@many
@given(st.data(), dtypes)
def test_gated_mlp(device, data, dtype):
    """gated_mlp, gated_mlp_forward and gated_mlp_backward."""
    network = draw_gated_network(data, dtype, device)
    expected_output, expected_grads = expected_gated_network(network)
    expected_output.assert_holds(composite(ops.gated_mlp, *network.arguments), "gated_mlp")
    output, gate, up = composite(ops.gated_mlp_forward, *network.arguments)
    expected_output.assert_holds(output, "gated_mlp_forward")
    mask = [tensor is not None and data.draw(st.booleans()) for tensor in network.tensors]
    args = (network.grad, *network.tensors[:6], gate, up, network.name, list(network.params), mask)
    results = composite(ops.gated_mlp_backward, *args)
    for result, grad in zip(results, itertools.compress(expected_grads, mask), strict=True):
        grad.assert_holds(result, f"{network.name} {mask}")
