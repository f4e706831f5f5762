"""Every op under the transforms of torch.func, and modules in the ways that torch.func is used with them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    functionalize,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.utils._pytree import tree_leaves

import fastops
from sample import Sample, close
from samples import each_activation, each_differentiable_rule, each_differentiable_sample
from strategies import WIDEST

ops = torch.ops.fastops


def scalar(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Tensor]:
    """A scalar function whose derivatives depend on every result."""
    return lambda *tensors: sum((result**2).sum() for result in function(*tensors))


def positions(tensors: list[Tensor]) -> tuple[int, ...]:
    """All arguments."""
    return tuple(range(len(tensors)))


def batches(tensors: list[Tensor], size: int = 3) -> list[Tensor]:
    """Each tensor with a new first dimension of different values."""
    scale = torch.linspace(0.5, 1.0, size, dtype=WIDEST, device=tensors[0].device)
    return [tensor * scale.view(-1, *[1] * tensor.dim()) for tensor in tensors]


# ---- every op ----


@each_differentiable_sample
def test_value(sample: Sample, device: Any) -> None:
    """Outside any transform the op is PyTorch's function."""
    tensors = sample.tensors(device)
    close(sample.call(*tensors), sample.reference(*tensors))


@each_differentiable_rule
@pytest.mark.feature("grad")
def test_grad(sample: Sample, device: Any) -> None:
    """The gradient in all arguments."""
    tensors = sample.tensors(device)
    results = [grad(scalar(f), positions(tensors))(*tensors) for f in (sample.call, sample.reference)]
    close(*results)


@each_differentiable_rule
@pytest.mark.feature("vmap")
def test_vmap(sample: Sample, device: Any) -> None:
    """A batch of calls at once."""
    stacked = batches(sample.tensors(device))
    close(vmap(sample.call)(*stacked), vmap(sample.reference)(*stacked))


@each_differentiable_rule
@pytest.mark.feature("vmap")
def test_vmap_over_some_arguments(sample: Sample, device: Any) -> None:
    """Each argument alone has the batch dimension, in the last place, and then each argument alone lacks it."""
    tensors = sample.tensors(device)
    stacked = batches(tensors)
    for i in positions(tensors):
        arguments = [s.movedim(0, -1) if j == i else t for j, (s, t) in enumerate(zip(stacked, tensors, strict=True))]
        in_dims = tuple(-1 if j == i else None for j in positions(tensors))
        close(vmap(sample.call, in_dims)(*arguments), vmap(sample.reference, in_dims)(*arguments))
        if len(tensors) > 1:
            arguments = [t if j == i else s for j, (s, t) in enumerate(zip(stacked, tensors, strict=True))]
            in_dims = tuple(None if j == i else 0 for j in positions(tensors))
            close(vmap(sample.call, in_dims)(*arguments), vmap(sample.reference, in_dims)(*arguments))


@each_differentiable_rule
@pytest.mark.feature("vmap")
def test_nested_vmap(sample: Sample, device: Any) -> None:
    """A batch of batches, in two dimensions of the same tensors."""
    stacked = batches(batches(sample.tensors(device)), 2)
    close(vmap(vmap(sample.call), 0, 1)(*stacked), vmap(vmap(sample.reference), 0, 1)(*stacked))


@each_differentiable_rule
@pytest.mark.feature("vmap of grad")
def test_vmap_over_other_tensors(sample: Sample, device: Any) -> None:
    """A vmap between that batches none of the op's tensors, which one outside does."""
    tensors = batches(sample.tensors(device))
    other = torch.linspace(0.5, 1.0, 2, dtype=WIDEST, device=device)

    def inside(function: Callable[..., Any]) -> Callable[..., Any]:
        return vmap(lambda *each: vmap(lambda y: tuple(y * result for result in function(*each)))(other))

    close(inside(sample.call)(*tensors), inside(sample.reference)(*tensors))
    places = positions(tensors)
    close(*[inside(grad(scalar(f), places))(*tensors) for f in (sample.call, sample.reference)])


@each_differentiable_rule
@pytest.mark.feature("vmap of grad")
def test_vmap_of_grad(sample: Sample, device: Any) -> None:
    """Per-sample gradients."""
    tensors = sample.tensors(device)
    stacked = batches(tensors)
    results = [vmap(grad(scalar(f), positions(tensors)))(*stacked) for f in (sample.call, sample.reference)]
    close(*results)


@each_differentiable_rule
def test_grad_of_vmap(sample: Sample, device: Any) -> None:
    """The gradient of a batch of calls."""
    stacked = batches(sample.tensors(device))
    results = [grad(scalar(vmap(f)), positions(stacked))(*stacked) for f in (sample.call, sample.reference)]
    close(*results)


@each_differentiable_rule
@pytest.mark.feature("jvp")
def test_jvp(sample: Sample, device: Any) -> None:
    """A directional derivative, through all arguments and through each alone."""
    tensors = sample.tensors(device)
    tangents = [torch.cos(tensor) for tensor in tensors]
    for chosen in [positions(tensors), *[(i,) for i in positions(tensors)]]:
        directions = tuple(t if i in chosen else torch.zeros_like(t) for i, t in enumerate(tangents))
        close(*[jvp(f, tuple(tensors), directions) for f in (sample.call, sample.reference)])


@each_differentiable_rule
@pytest.mark.feature("jvp")
def test_vmap_of_jvp(sample: Sample, device: Any) -> None:
    """Several directions at once."""
    tensors = tuple(sample.tensors(device))
    directions = tuple(batches([torch.cos(tensor) for tensor in tensors]))
    results = []
    for function in (sample.call, sample.reference):
        push = vmap(lambda *tangents, function=function: jvp(function, tensors, tangents)[1])
        results.append(push(*directions))
    close(*results)


@each_differentiable_rule
@pytest.mark.feature("grad")
def test_vjp(sample: Sample, device: Any) -> None:
    """A pulled-back cotangent, twice from the same forward pass."""
    tensors = sample.tensors(device)
    results = []
    for function in (sample.call, sample.reference):
        value, pull_back = vjp(function, *tensors)
        cotangents = tuple(torch.cos(v) for v in value)
        results.append([pull_back(cotangents), pull_back(value)])
    close(*results)


@each_differentiable_rule
@pytest.mark.feature("grad")
def test_autograd_of_vjp_of_vjp(sample: Sample, device: Any) -> None:
    """Autograd goes through what vjp gave back, whose level is over when it is called."""

    def pull(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
        def pulled(*tensors: Tensor) -> tuple[Tensor, ...]:
            values, pull_back = vjp(function, *tensors)
            return pull_back(tuple(torch.cos(value) for value in values))

        return pulled

    def gradients(function: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        tensors = [tensor.requires_grad_() for tensor in sample.tensors(device)]
        return torch.autograd.grad(scalar(pull(pull(function)))(*tensors), tensors, materialize_grads=True)

    close(gradients(sample.call), gradients(sample.reference))


@each_differentiable_rule
@pytest.mark.feature("jacobians")
def test_jacrev(sample: Sample, device: Any) -> None:
    """Jacobians in reverse mode, and in forward mode the same."""
    tensors = sample.tensors(device)
    expected = jacrev(sample.reference, positions(tensors))(*tensors)
    close(jacrev(sample.call, positions(tensors))(*tensors), expected)
    close(jacfwd(sample.call, positions(tensors))(*tensors), expected)


@each_differentiable_rule
@pytest.mark.feature("hessian")
def test_hessian(sample: Sample, device: Any) -> None:
    """Forward over reverse, forward over forward, and reverse over reverse are PyTorch's Hessian."""
    tensors = sample.tensors(device)
    function, everything = scalar(sample.call), positions(tensors)
    expected = hessian(scalar(sample.reference), everything)(*tensors)
    close(hessian(function, everything)(*tensors), expected)
    close(jacfwd(jacfwd(function, everything), everything)(*tensors), expected)
    close(jacrev(jacrev(function, everything), everything)(*tensors), expected)


@each_differentiable_rule
@pytest.mark.feature("jvp")
def test_reverse_over_forward(sample: Sample, device: Any) -> None:
    """The gradient of a directional derivative."""
    tensors = sample.tensors(device)
    tangents = tuple(torch.cos(tensor) for tensor in tensors)

    def slope(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Tensor]:
        return lambda *inputs: jvp(scalar(function), inputs, tangents)[1]

    close(*[grad(slope(f), positions(tensors))(*tensors) for f in (sample.call, sample.reference)])


@each_differentiable_rule
@pytest.mark.feature("functionalize")
def test_functionalize(sample: Sample, device: Any) -> None:
    """Functionalization does not change the result."""
    tensors = sample.tensors(device)
    close(functionalize(sample.call)(*tensors), sample.reference(*tensors))


@each_differentiable_sample
@pytest.mark.feature("functionalize")
def test_gradient_of_functionalized_jacobian(sample: Sample, device: Any) -> None:
    """What functionalization wraps may be differentiated outside of it."""
    tensors = sample.tensors(device)
    some = positions(tensors)[: (len(tensors) + 1) // 2]

    def gradient(function: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        jacobian = functionalize(lambda *xs: tree_leaves(jacrev(function, some)(*xs)))
        return grad(scalar(jacobian), positions(tensors))(*tensors)

    close(*[gradient(f) for f in (sample.call, sample.reference)])


# ---- what only some ops have ----


@each_activation
def test_vmap_in_place(name: str, device: Any) -> None:
    """An in-place op under vmap changes the tensor itself."""
    x = torch.linspace(-4, 4, 12, dtype=WIDEST, device=device).view(3, 4)
    expected = getattr(ops, name)(x)
    vmap(getattr(ops, f"{name}_"), in_dims=1, out_dims=1)(x)
    close(x, expected)


@each_activation
def test_forward_mode_of_functionalized_vmap_in_place(name: str, device: Any) -> None:
    """The same where functionalization makes a graph of it that forward mode goes through."""
    x = torch.linspace(-4, 4, 12, dtype=WIDEST, device=device).view(3, 4)
    in_place = functionalize(vmap(lambda row: getattr(ops, f"{name}_")(row.clone())))
    with forward_ad.dual_level():
        result = forward_ad.unpack_dual(in_place(forward_ad.make_dual(x, x.cos())))
    close(tuple(result), jvp(getattr(ops, name), (x,), (x.cos(),)))


@each_activation
def test_vmap_out_raises(name: str, device: Any) -> None:
    """out= under vmap is refused and names the op."""
    x = torch.ones(3, 4, dtype=WIDEST, device=device)
    with pytest.raises(RuntimeError, match=name):
        vmap(lambda row: getattr(ops, name).out(row, out=torch.empty_like(row)))(x)


@each_activation
def test_functionalize_writes(name: str, device: Any) -> None:
    """Functionalized, the in-place and out= forms still write into their argument."""
    x = torch.linspace(-4, 4, 12, dtype=WIDEST, device=device)
    expected = getattr(ops, name)(x)
    changed, out = x.clone(), torch.zeros_like(x)
    functionalize(getattr(ops, f"{name}_"))(changed)
    functionalize(lambda source, target: getattr(ops, name).out(source, out=target))(x, out)
    functionalize(lambda source: getattr(ops, f"{name}_")(source[3:]))(part := x.clone())
    close([changed, out, part[3:], part[:3]], [expected, expected, expected[3:], x[:3]])


# ---- modules ----


def networks(device: Any) -> tuple[fastops.nn.MLP, nn.Sequential]:
    """A fused network and the equivalent PyTorch one with the same parameters."""
    torch.manual_seed(0)
    layers = [nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 2), nn.Tanh()]
    sequential = nn.Sequential(*layers).to(device, WIDEST)
    return fastops.nn.MLP.from_sequential(sequential), sequential


def modules(device: Any) -> dict[str, tuple[nn.Module, nn.Module]]:
    """Each module with parameters, and a PyTorch module with the same state dict."""

    class Gated(nn.Module):
        """The gated feed-forward block."""

        def __init__(self) -> None:
            super().__init__()
            self.gate_proj, self.up_proj, self.down_proj = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))

    class LinearTanh(nn.Linear):
        """A linear layer with tanh."""

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).tanh()

    gated, linear = fastops.nn.GatedMLP(3, 4, 2, bias=True), fastops.nn.LinearAct(3, 2, "tanh")
    pairs = {"MLP": networks(device), "GatedMLP": (gated, Gated()), "LinearAct": (linear, LinearTanh(3, 2))}
    for mine, theirs in pairs.values():
        theirs.load_state_dict(mine.to(device, WIDEST).state_dict())
        theirs.to(device, WIDEST)
    return pairs


each_module = pytest.mark.parametrize("kind", ["MLP", "GatedMLP", "LinearAct"])


def inputs(device: Any, *shape: int) -> Tensor:
    """Normally distributed numbers of the widest dtype, the same in every call."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, WIDEST)


@pytest.mark.parametrize("argument", ["self", "bias", "out"])
def test_functionalize_of_views(argument: str, device: Any) -> None:
    """Arguments of out= whose base was written to since they were taken from it."""

    def write(base: Tensor) -> Tensor:
        x, bias, out = torch.zeros_like(base), torch.zeros_like(base[0]), torch.zeros_like(base)
        x, bias, out = {"self": (base[:], bias, out), "bias": (x, base[0], out), "out": (x, bias, base[:])}[argument]
        base.add_(1)
        ops.bias_act.out(x, bias, "tanh", out=out)
        return out + base

    ones = torch.ones(3, 4, device=device)
    close(functionalize(write)(ones.clone()), write(ones.clone()))


@pytest.mark.parametrize(("shape", "dtype", "error"), [((4, 3), None, ValueError), ((3, 4), torch.float16, TypeError)])
@pytest.mark.parametrize("op", ["relu", "bias_act"])
def test_functionalize_checks_out(
    op: str, shape: tuple[int, ...], dtype: torch.dtype | None, error: type[Exception], device: Any
) -> None:
    """An out that does not fit is the error that it is elsewhere."""
    arguments = (None, "relu") if op == "bias_act" else ()
    with pytest.raises(error, match=rf"fastops\.{op}: out"):
        functionalize(lambda x, out: getattr(ops, op).out(x, *arguments, out=out))(
            torch.ones(3, 4, device=device), torch.ones(shape, dtype=dtype, device=device)
        )


@each_module
def test_functional_call(kind: str, device: Any) -> None:
    """A module computes with the parameters that it is called with, and differentiates in them."""
    results = []
    for module in modules(device)[kind]:
        parameters = {name: 2 * value.detach() for name, value in module.named_parameters()}
        loss = lambda p, x, module=module: (functional_call(module, p, (x,)) ** 2).sum()  # noqa: E731
        results.append([loss(parameters, inputs(device, 6, 3)), grad(loss)(parameters, inputs(device, 6, 3))])
    close(*results)


@each_module
def test_per_sample_gradients(kind: str, device: Any) -> None:
    """vmap(grad) over the rows of a batch gives each row's gradient in the parameters."""
    results = []
    for module in modules(device)[kind]:
        loss = lambda p, x, module=module: (functional_call(module, p, (x,)) ** 2).sum()  # noqa: E731
        parameters = dict(module.named_parameters())
        results.append(vmap(grad(loss), (None, 0))(parameters, inputs(device, 6, 3)))
    close(*results)


@each_module
@pytest.mark.parametrize("in_dims", [(0, None), (0, 0), (0, 1)])
def test_ensemble(kind: str, in_dims: tuple[int, int | None], device: Any) -> None:
    """Several networks at once, on the same input and on an input each, are the networks one by one."""
    mine, _ = modules(device)[kind]
    ensemble = [copy.deepcopy(mine) for _ in range(4)]
    for i, module in enumerate(ensemble):
        for parameter in module.parameters():
            parameter.data *= 1 + 0.1 * i
    stacked, _ = stack_module_state(ensemble)
    x = inputs(device, *{None: (6, 3), 0: (4, 6, 3), 1: (6, 4, 3)}[in_dims[1]])
    call = lambda p, row: functional_call(mine, p, (row,))  # noqa: E731
    rows = [x] * 4 if in_dims[1] is None else x.unbind(in_dims[1])
    expected = torch.stack([module(row) for module, row in zip(ensemble, rows, strict=True)])
    result = vmap(call, in_dims)(stacked, x)
    close(result, expected)
    (expected**2).sum().backward()
    per_network = zip(*[module.parameters() for module in ensemble], strict=True)
    gradients = torch.autograd.grad((result**2).sum(), list(stacked.values()))
    close(list(gradients), [torch.stack([p.grad for p in parameters]) for parameters in per_network])


@each_module
def test_vmap_over_input(kind: str, device: Any) -> None:
    """vmap over any dimension of the input is the module on the whole input."""
    mine, theirs = modules(device)[kind]
    x = inputs(device, 2, 4, 3)
    for dim in (0, 1):
        close(vmap(mine, dim, dim)(x), theirs(x))
    close(vmap(vmap(mine))(x), theirs(x))


@each_module
def test_hessian_of_module(kind: str, device: Any) -> None:
    """The Hessian in the input, and its diagonal for many inputs at once as a physics-informed loss takes it."""
    results = []
    for module in modules(device)[kind]:
        total = lambda x, module=module: module(x).sum()  # noqa: E731
        laplacian = lambda x, total=total: hessian(total)(x).diagonal().sum()  # noqa: E731
        results.append([hessian(total)(inputs(device, 3)), vmap(laplacian)(inputs(device, 5, 3))])
    close(*results)


@each_module
def test_training_on_second_derivatives(kind: str, device: Any) -> None:
    """A loss on Laplacians has PyTorch's gradient in the parameters."""
    results = []
    for module in modules(device)[kind]:

        def loss(parameters: dict[str, Tensor], x: Tensor, module: nn.Module = module) -> Tensor:
            total = lambda point: functional_call(module, parameters, (point,)).sum()  # noqa: E731
            return vmap(lambda point: hessian(total)(point).diagonal().sum())(x).square().mean()

        results.append(grad(loss)(dict(module.named_parameters()), inputs(device, 5, 3)))
    close(*results)


def test_linearize(device: Any) -> None:
    """torch.func.linearize, which traces the op, gives the directional derivative."""
    (mine, theirs), x = networks(device), inputs(device, 4, 3)
    value, push = linearize(mine, x)
    close((value, push(x.cos())), jvp(theirs, (x,), (x.cos(),)))
