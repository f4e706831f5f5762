"""Derivatives of every op in reverse and forward mode: against finite differences and against PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import fastops
from checks import CalledOps
from expected import activation, mlp_reference
from reference import ACTIVATIONS, parameter_sets
from sample import Sample, close
from samples import SAMPLES, each_activation, each_differentiable_rule, each_differentiable_sample
from strategies import WIDEST, needs_float64

ops = torch.ops.fastops


def first_sample(op: str) -> Sample:
    """A sample of the op."""
    return next(sample for sample in SAMPLES if sample.op == op)


def scalar(results: tuple[Tensor, ...]) -> Tensor:
    """A function of the results whose gradient depends on them."""
    return sum((result**2).sum() for result in results)


def gradients(loss: Tensor, inputs: Sequence[Tensor], **options: Any) -> tuple[Tensor, ...]:
    """The gradients of the inputs, zero where the loss does not depend on one."""
    return torch.autograd.grad(loss, inputs, materialize_grads=True, **options)


# ---- finite differences ----


@needs_float64
@each_differentiable_sample
@pytest.mark.feature("gradcheck")
def test_first_derivatives(sample: Sample, device: Any) -> None:
    """Reverse mode, forward mode, batched and undefined gradients agree with finite differences."""
    tensors = sample.tensors(device, requires_grad=True)
    assert gradcheck(sample.call, tensors, check_forward_ad=True, check_batched_grad=True, check_undefined_grad=True)


@needs_float64
@each_differentiable_sample
@pytest.mark.feature("gradgradcheck")
def test_second_derivatives(sample: Sample, device: Any) -> None:
    """Reverse over reverse and forward over reverse agree with finite differences."""
    tensors = sample.tensors(device, requires_grad=True)
    assert gradgradcheck(sample.call, tensors, check_fwd_over_rev=True, check_batched_grad=True)


# ---- PyTorch ----


@each_differentiable_rule
def test_any_subset_of_inputs(sample: Sample, device: Any) -> None:
    """Whichever inputs require a gradient get PyTorch's, and only they."""
    tensors = sample.tensors(device)
    full = torch.func.grad(lambda *inputs: scalar(sample.reference(*inputs)), tuple(range(len(tensors))))(*tensors)
    for subset in itertools.product((False, True), repeat=len(tensors)):
        inputs = [tensor.clone().requires_grad_(wanted) for tensor, wanted in zip(tensors, subset, strict=True)]
        loss = scalar(sample.call(*inputs))
        if loss.requires_grad:
            loss.backward()
        for tensor, expected, wanted in zip(inputs, full, subset, strict=True):
            if not wanted:
                assert tensor.grad is None
            elif tensor.grad is None:
                assert not expected.any(), "a gradient is missing"
            else:
                close(tensor.grad, expected)


@each_differentiable_rule
def test_strides(sample: Sample, device: Any) -> None:
    """Values and gradients do not depend on the strides of the arguments and of the incoming gradient."""
    contiguous = sample.tensors(device, requires_grad=True)
    strided = [torch.stack([t.detach().mT if t.dim() > 1 else t.detach()] * 2, -1)[..., 1] for t in contiguous]
    strided = [(t.mT if t.dim() > 1 else t).requires_grad_() for t in strided]
    assert not any(t.is_contiguous() and t.numel() > 1 for t in strided)
    results = []
    for tensors in (contiguous, strided):
        outputs = sample.call(*tensors)
        loss = sum((output.mT if output.dim() > 1 else output).exp().sum() for output in outputs)
        results.append([*outputs, *gradients(loss, tensors)])
    close(*results)


class MaskRecorder(TorchDispatchMode):
    """Notes the output_mask of every backward op that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[list[bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "fastops" and func._schema.arguments[-1].name == "output_mask":
            self.masks.append(list(args[-1]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("op", ["bias_act", "act_mul", "linear_act", "mlp", "gated_mlp"])
def test_unneeded_gradients_are_not_computed(op: str, device: Any) -> None:
    """The backward op is asked for the gradients of those inputs alone that autograd wants one for."""
    sample = next(s for s in SAMPLES if s.op == op and (op != "gated_mlp" or len(s.shapes) == 7))
    tensors = sample.tensors(device, requires_grad=True)
    for subset in itertools.product((False, True), repeat=len(tensors)):
        wanted = [tensor for tensor, is_wanted in zip(tensors, subset, strict=True) if is_wanted]
        if not wanted:
            continue
        loss = scalar(sample.call(*tensors))
        with MaskRecorder() as recorder:
            torch.autograd.grad(loss, wanted)
        (mask,) = recorder.masks
        assert sum(mask) == len(wanted)
        if len(mask) == len(subset):
            assert mask == list(subset)


@each_activation
def test_third_derivative_of_activation(name: str, device: Any) -> None:
    """The third derivative by autograd is PyTorch's."""
    (x,) = first_sample(name).tensors(device, requires_grad=True)
    for params in parameter_sets(name):
        op = getattr(ops, name)
        actual = nested_gradient(lambda t, op=op, params=params: op(t, *params), x, 3)
        close(actual, nested_gradient(activation(name, params), x, 3))


@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_fourth_derivative_of_activation(name: str, device: Any) -> None:
    """Orders beyond those with kernels are PyTorch's too."""
    (x,) = first_sample(name).tensors(device, requires_grad=True)
    close(nested_gradient(getattr(ops, name), x, 4), nested_gradient(activation(name), x, 4))


@each_activation
def test_jagged(name: str, device: Any) -> None:
    """Derivatives of nested tensors with torch.jagged, up to an order without kernels, and of the op in place."""
    if device.type not in ("cpu", "cuda"):
        pytest.skip("PyTorch has nested tensors on CPU and CUDA alone")
    op, op_ = getattr(ops, name), getattr(ops, f"{name}_")
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randn(size, 4, generator=generator, dtype=torch.float64).to(device, WIDEST) for size in (2, 3)]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    dense = torch.cat(rows).requires_grad_()
    for f in (op, lambda t: op_(t * 1)):
        value, expected = f(x) ** 3, op(dense) ** 3
        for _ in range(4):
            close(value.values(), expected)
            (value,) = torch.autograd.grad((value * x).values().sum(), x, create_graph=True)
            (expected,) = torch.autograd.grad((expected * dense).sum(), dense, create_graph=True)


def nested_gradient(function: Any, x: Tensor, order: int) -> Tensor:
    """A derivative of the given order of a non-linear function of function(x)."""
    value = function(x) ** 3
    for _ in range(order):
        (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        value = value * x
    return value


@each_activation
def test_every_activation_in_every_fused_op(name: str, device: Any) -> None:
    """Value, first and second derivatives of the fused ops are PyTorch's for every activation."""
    f = activation(name)
    generator = torch.Generator().manual_seed(1)
    shapes = {"x": (3, 4), "bias": (4,), "weight": (4, 4), "bias_2": (4,), "weight_2": (2, 4)}
    tensors = {
        key: torch.randn(shape, generator=generator, dtype=torch.float64).to(device, WIDEST).requires_grad_()
        for key, shape in shapes.items()
    }
    x, bias, weight, bias_2, weight_2 = tensors.values()
    layers = mlp_reference([True, False], f, f)
    cases = [
        (lambda: ops.bias_act(x, bias, name), lambda: f(x + bias)),
        (lambda: ops.act_mul(x, x * bias, name), lambda: f(x) * (x * bias)),
        (lambda: ops.gated_act(x, name), lambda: f(x[:, :2]) * x[:, 2:]),
        (lambda: ops.linear_act(x, weight, bias, name), lambda: f(nn.functional.linear(x, weight, bias))),
        (lambda: ops.mlp(x, [weight, weight_2], [bias, None], name, name), lambda: layers(x, weight, bias, weight_2)),
        (
            lambda: ops.gated_mlp(x, weight, weight * 2, weight_2, bias, bias_2, None, name),
            lambda: (f(x @ weight.T + bias) * (x @ (weight * 2).T + bias_2)) @ weight_2.T,
        ),
    ]
    for actual, expected in cases:
        results = [derivatives(function(), list(tensors.values())) for function in (actual, expected)]
        close(*results)


def derivatives(value: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """The value with gradients of first and second order."""
    first = gradients((value**2).sum(), inputs, create_graph=True)
    second = gradients(scalar(first), inputs)
    return [value, *first, *second]


SIZES = [(0, 3, 2), (2, 0, 2), (2, 3, 0), (0, 0, 0)]


@pytest.mark.parametrize(("rows", "features", "outputs"), SIZES)
@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_derivatives_without_elements(name: str, rows: int, features: int, outputs: int, device: Any) -> None:
    """Zero rows and zero features have first and second derivatives of the right shapes, equal to PyTorch's."""
    f, linear = activation(name), nn.functional.linear
    x = random(rows, features, device=device, requires_grad=True)
    both = random(rows, 2 * features, device=device, requires_grad=True)
    bias = random(features, device=device, requires_grad=True)
    weight = random(outputs, features, device=device, requires_grad=True)
    out_bias = random(outputs, device=device, requires_grad=True)
    square = random(features, features, device=device, requires_grad=True)
    inputs = [x, both, bias, weight, out_bias, square]
    cases = [
        (ops.bias_act(x, bias, name), f(x + bias)),
        (ops.act_mul(x, x * 2, name), f(x) * (x * 2)),
        (ops.gated_act(both, name), f(both[:, :features]) * both[:, features:]),
        (ops.linear_act(x, weight, out_bias, name), f(linear(x, weight, out_bias))),
        (
            ops.mlp(x, [square, weight], [bias, out_bias], name, name),
            f(linear(f(linear(x, square, bias)), weight, out_bias)),
        ),
        (
            ops.gated_mlp(x, square, square, weight, bias, None, out_bias, name),
            linear(f(linear(x, square, bias)) * linear(x, square), weight, out_bias),
        ),
    ]
    for actual, expected in cases:
        close(derivatives(actual, inputs), derivatives(expected, inputs))


# ---- networks ----


def networks(device: Any, hidden: nn.Module | None = None) -> tuple[fastops.nn.MLP, nn.Sequential]:
    """A fused network and the equivalent PyTorch one, which share their parameters."""
    torch.manual_seed(0)
    hidden = hidden or nn.Softplus(beta=2.0)
    layers = [nn.Linear(3, 5), hidden, nn.Linear(5, 4), hidden, nn.Linear(4, 1), nn.Tanh()]
    layers = [layer if layer is hidden else layer.to(device, WIDEST) for layer in layers]
    mlp = fastops.nn.MLP(3, [5, 4], 1, activation=hidden, output_activation="tanh", device=device, dtype=WIDEST)
    sequential = nn.Sequential(*layers)
    for mine, theirs in zip(mlp[::2], layers[::2], strict=True):
        mine.weight, mine.bias = theirs.weight, theirs.bias
    return mlp, sequential


def random(*shape: int, device: Any, requires_grad: bool = False) -> Tensor:
    """Normally distributed numbers of the widest dtype, the same in every call."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, WIDEST).requires_grad_(requires_grad)


def test_third_derivative_of_mlp(device: Any) -> None:
    """The third derivative of a network in its input, and its gradient in the parameters, are PyTorch's."""
    results = []
    for network in networks(device):
        x = random(4, 3, device=device, requires_grad=True)
        third = nested_gradient(network, x, 3)
        results.append([third, *gradients(third.sum(), list(network.parameters()))])
    close(*results)


@pytest.mark.parametrize("hidden", [nn.Tanh(), nn.GELU(), nn.Softshrink(0.1)], ids=str)
def test_gradient_penalty(hidden: nn.Module, device: Any) -> None:
    """A loss on the gradient of a network trains the parameters as in PyTorch."""
    results = []
    for network in networks(device, hidden):
        x = random(4, 3, device=device, requires_grad=True)
        (slope,) = torch.autograd.grad(network(x).sum(), x, create_graph=True)
        penalty = ((slope.norm(dim=-1) - 1) ** 2).mean()
        results.append(gradients(penalty, [x, *network.parameters()]))
    close(*results)


WIDE = 24  # features that fill vectors


def loss_after_two_steps(network: Any, x: Tensor, weights: list[Tensor]) -> Tensor:
    """A loss after two steps of gradient descent that are differentiated, too."""
    for _ in range(2):
        grads = torch.autograd.grad(network(x, weights).square().mean(), weights, create_graph=True)
        weights = [weight - grad for weight, grad in zip(weights, grads, strict=True)]
    return network(x, weights).square().mean()


def loss_of_second_derivatives(network: Any, x: Tensor, weights: list[Tensor]) -> Tensor:
    """Which third derivatives train."""
    (slope,) = torch.autograd.grad(network(x, weights).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
    return second.square().sum() + slope[:, 1].sum()


@pytest.mark.parametrize("loss", [loss_after_two_steps, loss_of_second_derivatives])
@pytest.mark.parametrize("op", ["mlp", "gated_mlp"])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("is_watched", [False, True])
def test_products_of_second_derivatives(loss: Any, op: str, rows: int, is_watched: bool, device: Any) -> None:
    """Products of whole vectors give PyTorch's derivatives, also while calls are watched, when they are PyTorch's."""

    def fused(x: Tensor, weights: list[Tensor]) -> Tensor:
        if op == "mlp":
            return ops.mlp(x, weights, [None, None], "tanh")
        return ops.gated_mlp(x, *weights, None, None, None, "tanh")

    def plain(x: Tensor, weights: list[Tensor]) -> Tensor:
        hidden = torch.tanh(nn.functional.linear(x, weights[0]))
        if op == "gated_mlp":
            hidden = hidden * nn.functional.linear(x, weights[1])
        return nn.functional.linear(hidden, weights[-1])

    shapes = [(2 * WIDE, WIDE)] * (1 if op == "mlp" else 2) + [(WIDE, 2 * WIDE)]
    results = []
    for network in (fused, plain):
        x = random(rows, WIDE, device=device, requires_grad=True)
        weights = [(random(*shape, device=device) / WIDE**0.5).requires_grad_() for shape in shapes]
        with CalledOps() if is_watched else nullcontext():
            total = loss(network, x, weights)
            results.append([total, *gradients(total, [x, *weights])])
    close(*results)


def test_accumulation_over_calls(device: Any) -> None:
    """Gradients of several calls of one network add up."""
    mlp, sequential = networks(device)
    x = random(4, 3, device=device)
    results = []
    for network in (mlp, sequential):
        network.zero_grad()
        network(x).sum().backward()
        (network(x * 2) ** 2).sum().backward()
        results.append([parameter.grad.clone() for parameter in network.parameters()])
    close(*results)


# ---- what is kept for the backward pass ----


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_mlp_saves_one_tensor_per_hidden_layer(name: str, device: Any) -> None:
    """Besides its arguments, an mlp keeps one tensor of the hidden layer's size for each hidden layer."""
    x = random(7, 3, device=device, requires_grad=True)
    weights = [random(*shape, device=device, requires_grad=True) for shape in ((5, 3), (6, 5), (2, 6))]
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        ops.mlp(x, weights, [None] * 3, name)
    arguments = {tensor.data_ptr() for tensor in (x, *weights)}
    assert sorted(tensor.shape for tensor in kept if tensor.data_ptr() not in arguments) == [(7, 5), (7, 6)]


@each_differentiable_rule
@pytest.mark.feature("saved tensors")
def test_saved_tensors_hooks(sample: Sample, device: Any) -> None:
    """Gradients survive saved tensors that are packed and unpacked, as checkpointing and offloading do."""
    tensors = sample.tensors(device, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda tensor: tensor):
        loss = scalar(sample.call(*tensors))
    expected = gradients(scalar(sample.call(*tensors)), tensors)
    close(gradients(loss, tensors), expected)


@each_differentiable_rule
def test_backward_does_not_change_saved_tensors(sample: Sample, device: Any) -> None:
    """With retain_graph a second backward pass gives the same gradients, and the inputs are untouched."""
    tensors = sample.tensors(device, requires_grad=True)
    before = [tensor.detach().clone() for tensor in tensors]
    loss = scalar(sample.call(*tensors))
    first = gradients(loss, tensors, retain_graph=True)
    close(gradients(loss, tensors), first)
    torch.testing.assert_close([tensor.detach() for tensor in tensors], before, rtol=0, atol=0)


@pytest.mark.parametrize("op", ["gelu", "tanh", "silu_", "bias_act", "act_mul", "gated_act", "linear_act", "mlp"])
def test_second_backward_without_retain_graph_raises(op: str, device: Any) -> None:
    """The freed buffers of an op's node are reported as PyTorch reports its own."""
    sample = first_sample(op)
    (result,) = sample.call(*sample.tensors(device, requires_grad=True))
    result.sum().backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        result.sum().backward()


@pytest.mark.parametrize("op", ["mlp_forward", "gated_mlp_forward"])
def test_unused_result_and_undefined_gradient(op: str, device: Any) -> None:
    """What a forward op keeps is not differentiable, and a missing gradient is not computed with."""
    sample = first_sample(op)
    tensors = sample.tensors(device, requires_grad=True)
    output, *kept = sample.overload(*sample.arguments(*tensors))
    assert output.requires_grad
    flat = kept[0] if isinstance(kept[0], list) else kept
    assert not any(tensor.requires_grad for tensor in flat)

    class NoGradient(torch.autograd.Function):
        """Passes a tensor on and no gradient back."""

        @staticmethod
        def forward(ctx: Any, tensor: Tensor) -> Tensor:
            return tensor.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> None:
            return None

    NoGradient.apply(output).sum().backward()
    assert all(tensor.grad is None for tensor in tensors)
