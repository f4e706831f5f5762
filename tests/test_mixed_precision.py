"""Autocast and 16-bit tensors with every op: errors within those that PyTorch's own ops make."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import fastops
from fastops import functional
from sample import Sample
from samples import each_differentiable_rule
from strategies import DEVICE

each_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=lambda dtype: str(dtype)[6:])

Function = Callable[..., Sequence[Tensor]]
Errors = Callable[[int], list[float]]  # of a draw of the arguments: of each result and gradient

ops = torch.ops.fastops


def results_and_gradients(function: Function, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The results of a function and the gradients of its arguments, in float64."""
    inputs = [tensor.detach().requires_grad_() for tensor in tensors]
    results = function(*inputs)
    weights = [torch.linspace(0.5, 1.5, r.numel(), dtype=r.dtype, device=r.device).view(r.shape) for r in results]
    grads = torch.autograd.grad(results, inputs, weights, allow_unused=True, materialize_grads=True)
    return [tensor.detach().cpu().double() for tensor in (*results, *grads)]


def largest(tensor: Tensor) -> Tensor:
    """The largest magnitude."""
    return tensor.abs().max()


def errors_of(draws: Callable[[int], list[Tensor]], exact: Function, *functions: Function, size: Any = largest) -> list:
    """For each function, how far each result and gradient is from the exact one at a draw, relative to its size."""
    exact_at = functools.cache(lambda draw: results_and_gradients(exact, [t.cpu().double() for t in draws(draw)]))

    def errors(function: Function, draw: int) -> list[float]:
        actual = results_and_gradients(function, draws(draw))
        return [
            (size(a - e) / size(e).clamp(min=1e-2)).item() if e.numel() else 0.0
            for a, e in zip(actual, exact_at(draw), strict=True)
        ]

    return [functools.partial(errors, function) for function in functions]


# Of the largest element. On Apple GPUs a product may be rounded before its bias is added; matrix cores take operands of
# 16 bits, so that what goes from layer to layer is rounded.
ROUNDINGS = 3 if DEVICE in ("mps", "cuda") else 2
DRAWS = 256


def assert_as_exact(mine: Errors, theirs: Errors, dtype: torch.dtype) -> None:
    """Within PyTorch's error, where that is no NaN, and some roundings; or, over many draws, no larger than PyTorch's.

    How a network's roundings add up is chance, and differs from CPU to CPU: at one draw PyTorch's may cancel. The root
    mean square of as many draws is off by 1 / sqrt(2 DRAWS) or so on either side: a factor of 1 + 4 / sqrt(DRAWS) is
    four times what the quotient is off by.
    """
    pairs = list(zip(mine(0), theirs(0), strict=True))
    budget = ROUNDINGS * torch.finfo(dtype).eps
    if all(error <= (0.0 if math.isnan(allowed) else allowed) + budget for error, allowed in pairs):
        return
    both = [(mine(draw), theirs(draw)) for draw in range(DRAWS)]
    squares = torch.tensor(both, dtype=torch.float64).square()  # [draw, whose, tensor]
    squares = squares[squares[:, 1].isfinite().all(-1)]
    rms_mine, rms_theirs = squares.mean(0).sqrt()
    assert (rms_mine <= (1 + 4 / DRAWS**0.5) * ROUNDINGS / 2 * rms_theirs).all(), (pairs, rms_mine, rms_theirs)


@each_differentiable_rule
@each_dtype
@pytest.mark.feature("16-bit")
def test_16_bit_arguments(sample: Sample, dtype: torch.dtype, device: Any) -> None:
    """Values and gradients of 16-bit tensors are as exact as those of PyTorch's ops, or more."""
    draws = functools.cache(lambda draw: [tensor.to(dtype) for tensor in sample.tensors(device, draw=draw)])
    assert sample.call(*draws(0))[0].dtype == dtype
    assert_as_exact(*errors_of(draws, sample.reference, sample.call, sample.reference), dtype)


@each_differentiable_rule
@each_dtype
@pytest.mark.feature("autocast")
def test_autocast(sample: Sample, dtype: torch.dtype, device: Any) -> None:
    """Under autocast, values and gradients of float32 tensors are as exact as those of PyTorch's ops, or more."""

    def cast(function: Function) -> Function:
        def run(*tensors: Tensor) -> Sequence[Tensor]:
            with torch.autocast(device.type, dtype):
                return function(*tensors)

        return run

    draws = functools.cache(lambda draw: [tensor.float() for tensor in sample.tensors(device, draw=draw)])
    products = sample.op in ("linear_act", "mlp", "mlp_jet", "gated_mlp") or str(sample) == "sequential-norms"
    assert cast(sample.call)(*draws(0))[0].dtype == (dtype if products else torch.float32)
    assert_as_exact(*errors_of(draws, sample.reference, cast(sample.call), cast(sample.reference)), dtype)


W, V, BIAS = torch.linspace(-1, 1, 32).view(8, 4), torch.linspace(1, -1, 32).view(4, 8), torch.linspace(0, 1, 8)
MIXED: dict[str, Callable[[Tensor], Tensor]] = {
    "bias_act": lambda x: functional.bias_act(x, BIAS[:4], "tanh"),
    "act_mul": lambda x: functional.act_mul(x, x.float(), "tanh"),
    "linear_act": lambda x: functional.linear_act(x, W, BIAS, "tanh"),
    "mlp": lambda x: functional.mlp(x, [W, V], [BIAS, None], "tanh"),
    "mlp_jacobian": lambda x: functional.mlp_jacobian(x, [W, V[:1]], None, "tanh")[1],
    "mlp_laplacian": lambda x: functional.mlp_laplacian(x, [W, V], None, "tanh")[2],
    "gated_mlp": lambda x: functional.gated_mlp(x, W, -W, V),
    "sequential": lambda x: functional.sequential(x, [W, BIAS, V, None], "linear tanh linear"),
}


@pytest.mark.parametrize("op", MIXED)
def test_autocast_within_vmap(op: str) -> None:
    """What is of several dtypes is cast, as it is without vmap."""
    x = torch.linspace(-1, 1, 12).view(3, 4).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        actual, expected = torch.vmap(MIXED[op])(x), MIXED[op](x)
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("op", ["linear_act", "mlp", "mlp, large", "gated_mlp, checkpoint"])
def test_backward_pass_within_autocast(op: str, device: Any) -> None:
    """Of what was computed without: nothing of it is cast, and nothing of its own backward pass."""
    torch.manual_seed(0)
    size = 300 if op == "mlp, large" else 8
    x, w, v, d = (torch.randn(n, size, device=device).requires_grad_() for n in (5, size, size, 3))

    def call() -> Tensor:
        if op == "linear_act":
            return torch.ops.fastops.linear_act(x, w, None, "tanh")
        if op == "gated_mlp, checkpoint":
            return torch.ops.fastops.gated_mlp(x, w, v, d, None, None, None, "silu", [], True)
        return torch.ops.fastops.mlp(x, [w, v, d], [None] * 3, "tanh")

    results = []
    for enabled in (False, True):
        y = call()
        with torch.autocast(device.type, torch.bfloat16, enabled=enabled):
            if op == "gated_mlp, checkpoint":
                results.append(torch.autograd.grad(y.pow(2).sum(), [x, w, v, d]))
                continue
            first = torch.autograd.grad(y.pow(2).sum(), [x, w], create_graph=True)
            results.append(torch.autograd.grad(sum(grad.pow(2).sum() for grad in first), [x, w]))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("op", "activation"), [("linear_act", "gelu"), ("mlp", "relu"), ("gated_mlp", "selu")])
@each_dtype
def test_networks_are_as_exact_as_pytorch(op: str, activation: str, dtype: torch.dtype, device: Any) -> None:
    """Over many draws, the errors of a 16-bit network and its gradients are no larger than those of PyTorch's layers.

    Layers as large as these average out how single roundings fall: what is left is how many there are. A product that
    is rounded before its bias is added makes 1.2 times the error.
    """
    function = getattr(F, activation)
    shapes = [(64, 32), (48, 32), (48,), *([] if op == "linear_act" else [(48, 32), (48,), (8, 48), (8,)])]
    if op == "linear_act":
        call = lambda x, w, b: [ops.linear_act(x, w, b, activation)]  # noqa: E731
        reference = lambda x, w, b: [function(F.linear(x, w, b))]  # noqa: E731
    elif op == "mlp":
        shapes[3] = (48, 48)
        call = lambda x, *p: [ops.mlp(x, p[::2], p[1::2], activation)]  # noqa: E731
        reference = lambda x, a, b, c, d, e, f: [  # noqa: E731
            F.linear(function(F.linear(function(F.linear(x, a, b)), c, d)), e, f)
        ]
    else:
        call = lambda x, a, b, c, d, e, f: [ops.gated_mlp(x, a, c, e, b, d, f, activation)]  # noqa: E731
        reference = lambda x, a, b, c, d, e, f: [  # noqa: E731
            F.linear(function(F.linear(x, a, b)) * F.linear(x, c, d), e, f)
        ]

    @functools.cache
    def draws(draw: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(draw)
        scales = [1.0 if len(shape) == 1 or shape == shapes[0] else shape[1] ** -0.5 for shape in shapes]
        values = [torch.randn(shape, generator=generator) * scale for shape, scale in zip(shapes, scales, strict=True)]
        return [value.to(dtype).to(device) for value in values]

    mine, theirs = errors_of(draws, reference, call, reference, size=torch.Tensor.norm)
    both = torch.tensor([(mine(draw), theirs(draw)) for draw in range(40)], dtype=torch.float64).square().sum(0).sqrt()
    ratio = both[0] / both[1]
    assert (ratio <= (1.05 if DEVICE == "cpu" else 1.3)).all(), ratio


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
