"""Autocast and 16-bit tensors with every op: errors within those that PyTorch's own ops make."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import fastops
from samples import Sample, each_differentiable_sample
from strategies import DEVICE

each_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=lambda dtype: str(dtype)[6:])

Function = Callable[..., Sequence[Tensor]]


def results_and_gradients(function: Function, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The results of a function and the gradients of its arguments, in float64."""
    inputs = [tensor.detach().requires_grad_() for tensor in tensors]
    results = function(*inputs)
    weights = [torch.linspace(0.5, 1.5, r.numel(), dtype=r.dtype, device=r.device).view(r.shape) for r in results]
    grads = torch.autograd.grad(results, inputs, weights, allow_unused=True, materialize_grads=True)
    return [tensor.detach().cpu().double() for tensor in (*results, *grads)]


def errors(function: Function, tensors: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """How far each result and gradient is from the exact one, relative to the largest element."""
    actual = results_and_gradients(function, tensors)
    return [
        ((a - e).abs().max() / e.abs().max().clamp(min=1e-2)).item() if e.numel() else 0.0
        for a, e in zip(actual, exact, strict=True)
    ]


# Of the largest element. On Apple GPUs a product is rounded before its bias is added; matrix cores take operands of 16
# bits, so that what goes from layer to layer is rounded.
ROUNDINGS = 3 if DEVICE in ("mps", "cuda") else 2


def assert_as_exact(mine: Sequence[float], theirs: Sequence[float], dtype: torch.dtype) -> None:
    """Within PyTorch's error, where that is no NaN, and some roundings."""
    budget = [(0.0 if math.isnan(error) else error) + ROUNDINGS * torch.finfo(dtype).eps for error in theirs]
    assert all(error <= allowed for error, allowed in zip(mine, budget, strict=True)), (mine, theirs)


@each_differentiable_sample
@each_dtype
@pytest.mark.feature("16-bit")
def test_16_bit_arguments(sample: Sample, dtype: torch.dtype, device: Any) -> None:
    """Values and gradients of 16-bit tensors are as exact as those of PyTorch's ops, or more."""
    tensors = [tensor.to(dtype) for tensor in sample.tensors(device)]
    exact = results_and_gradients(sample.reference, [tensor.cpu().double() for tensor in tensors])
    assert sample.call(*tensors)[0].dtype == dtype
    assert_as_exact(errors(sample.call, tensors, exact), errors(sample.reference, tensors, exact), dtype)


@each_differentiable_sample
@each_dtype
@pytest.mark.feature("autocast")
def test_autocast(sample: Sample, dtype: torch.dtype, device: Any) -> None:
    """Under autocast, values and gradients of float32 tensors are as exact as those of PyTorch's ops, or more."""

    def cast(function: Function) -> Function:
        def run(*tensors: Tensor) -> Sequence[Tensor]:
            with torch.autocast(device.type, dtype):
                return function(*tensors)

        return run

    tensors = [tensor.float() for tensor in sample.tensors(device)]
    exact = results_and_gradients(sample.reference, [tensor.cpu().double() for tensor in tensors])
    products = sample.op in ("linear_act", "mlp", "gated_mlp")
    assert cast(sample.call)(*tensors)[0].dtype == (dtype if products else torch.float32)
    assert_as_exact(errors(cast(sample.call), tensors, exact), errors(cast(sample.reference), tensors, exact), dtype)


class CastCounter(TorchDispatchMode):
    """Counts conversions to another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.casts = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.casts += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", [fastops.nn.MLP, fastops.nn.GatedMLP, fastops.nn.LinearAct])
def test_autocast_casts_each_parameter_once(make: Any, device: Any) -> None:
    """In one autocast region the casts of the parameters are kept from call to call, as for PyTorch's ops."""
    module = make(4, 6, device=device)
    x = torch.randn(3, 4, device=device)
    with torch.autocast(device.type, torch.bfloat16), CastCounter() as counter:
        module(x)
        first = counter.casts
        module(x)
    assert first == 1 + len(list(module.parameters()))
    assert counter.casts == first + 1  # the input


@pytest.mark.parametrize("activation", ["silu", "softshrink"])
def test_grad_scaler(activation: str, device: Any) -> None:
    """Training in float16 with a GradScaler follows the equivalent torch.nn network, skipped steps included."""
    torch.manual_seed(0)
    modules = {"silu": nn.SiLU(), "softshrink": nn.Softshrink()}
    sequential = nn.Sequential(nn.Linear(6, 8), modules[activation], nn.Linear(8, 2)).to(device)
    mlp = fastops.nn.MLP(6, 8, 2, activation=activation, device=device)
    mlp.load_state_dict(sequential.state_dict())
    x, y = torch.randn(16, 6, device=device), torch.randn(16, 2, device=device)
    losses: list[list[float]] = []
    for module in (mlp, sequential):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device.type, init_scale=2.0**20, growth_interval=4)
        losses.append([])
        for _ in range(12):
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.float16):
                loss = (module(x).float() - y).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses[-1].append(loss.item())
        assert scaler.get_scale() < 2.0**20  # the first gradients overflowed
    assert losses[0][-1] < losses[0][0]
    torch.testing.assert_close(*losses, rtol=0.01, atol=0.0)
