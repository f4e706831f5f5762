"""MLP.from_sequential: which networks it takes, that it shares their layers, and what it says of the others."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastops
from fastops.nn import MLP, EnsembleMLP
from sample import close
from strategies import WIDEST

ACTIVATIONS = [
    *(nn.Identity(), nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.LeakyReLU(0.3), nn.LeakyReLU(-0.2), nn.ELU(1.7)),
    *(nn.SELU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.Softplus(2.0, 3.0), nn.Sigmoid(), nn.Tanh()),
    *(nn.Softshrink(0.2), nn.Hardshrink(0.2), nn.Tanhshrink(), nn.Hardtanh(-0.3, 0.4), nn.Hardswish()),
    *(nn.Hardsigmoid(), fastops.nn.QuickGELU(), fastops.nn.GELUTanh(), fastops.nn.ReLUSquared(), fastops.nn.GELU()),
]


def layer(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A linear layer in the widest dtype."""
    return nn.Linear(inputs, outputs, bias, dtype=WIDEST)


def norm(features: int) -> nn.LayerNorm:
    """A norm in the widest dtype whose parameters are no ones and zeros."""
    module = nn.LayerNorm(features, dtype=WIDEST)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def batch(device: Any) -> Tensor:
    """Normally distributed numbers, the same in every call."""
    return torch.randn(7, 4, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(device, WIDEST)


def assert_equivalent(sequential: nn.Sequential, device: Any) -> MLP:
    """The network made from a Sequential has its layers and its values and gradients."""
    sequential.to(device)
    mlp = MLP.from_sequential(sequential)
    assert all(mine is theirs for mine, theirs in zip(mlp, sequential, strict=True))
    assert all(mine is theirs for mine, theirs in zip(mlp.parameters(), sequential.parameters(), strict=True))
    assert mlp.training == sequential.training
    results = []
    for module in (mlp, sequential):
        torch.manual_seed(10)
        sequential.zero_grad()
        x = batch(device).requires_grad_()
        value = module(x)
        (value**2).sum().backward()
        results.append([value, x.grad, *[parameter.grad for parameter in module.parameters()]])
    close(*results)
    return mlp


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_hidden_activation(activation: nn.Module, device: Any) -> None:
    """Every activation with its parameters, between the layers."""
    assert_equivalent(nn.Sequential(layer(4, 5), activation, layer(5, 3)), device)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_output_activation(activation: nn.Module, device: Any) -> None:
    """Every activation with its parameters, after the last layer, whatever is between them."""
    assert_equivalent(nn.Sequential(layer(4, 5), nn.Softshrink(0.1), layer(5, 3), activation), device)


SEQUENTIALS = {
    "one layer": lambda: nn.Sequential(layer(4, 3)),
    "one layer with activation": lambda: nn.Sequential(layer(4, 3), nn.Hardtanh(-0.2, 0.3)),
    "biases here and there": lambda: nn.Sequential(
        layer(4, 5, False), nn.ELU(), layer(5, 5), nn.ELU(), layer(5, 2, False)
    ),
    "dropout of nothing": lambda: nn.Sequential(layer(4, 5), nn.ELU(), nn.Dropout(0.0), layer(5, 2)),
    "in evaluation": lambda: nn.Sequential(layer(4, 5), nn.ELU(), nn.Dropout(0.5), layer(5, 2)).eval(),
    "norms": lambda: nn.Sequential(
        *(layer(4, 5), norm(5), nn.ReLU(), layer(5, 5, False), nn.Tanh(), norm(5), layer(5, 2), norm(2))
    ),
    "norm first": lambda: nn.Sequential(norm(4), nn.SiLU(), layer(4, 5), nn.GELU(), layer(5, 4)),
    "norm without parameters": lambda: nn.Sequential(
        *(layer(4, 5), nn.LayerNorm(5, 1e-3, False), layer(5, 3), nn.RMSNorm(3, dtype=WIDEST), nn.Tanh())
    ),
    "norm without bias": lambda: nn.Sequential(nn.LayerNorm(4, bias=False, dtype=WIDEST), layer(4, 5)),
    "two layers in a row": lambda: nn.Sequential(layer(4, 5), layer(5, 2)),
    "two activations in a row": lambda: nn.Sequential(layer(4, 5), nn.Tanh(), nn.ReLU(), layer(5, 2)),
    "other activations": lambda: nn.Sequential(layer(4, 5), nn.Tanh(), layer(5, 5), nn.ELU(2.0), layer(5, 2)),
}


@pytest.mark.parametrize("kind", SEQUENTIALS)
def test_form(kind: str, device: Any) -> None:
    """Depths, biases, dropout and modes; state dicts are interchangeable in both directions."""
    sequential = SEQUENTIALS[kind]()
    mlp = assert_equivalent(sequential, device)
    assert list(mlp.state_dict()) == list(sequential.state_dict())
    sequential.load_state_dict(mlp.state_dict())
    mlp.load_state_dict(sequential.state_dict())


def test_one_activation_module_used_twice(device: Any) -> None:
    """Sequentials often hold one activation module in several places."""
    tanh = nn.Tanh()
    assert_equivalent(nn.Sequential(layer(4, 5), tanh, layer(5, 5), tanh, layer(5, 2), tanh), device)


def test_one_layer_used_twice(device: Any) -> None:
    """A layer that is used twice is used twice."""
    square = layer(4, 4)
    sequential = nn.Sequential(square, nn.Tanh(), square).to(device)
    close(MLP.from_sequential(sequential)(batch(device)), sequential(batch(device)))


def test_named_modules(device: Any) -> None:
    """The names in the Sequential do not matter."""
    named = OrderedDict([("first", layer(4, 5)), ("between", nn.Tanh()), ("last", layer(5, 2))])
    assert_equivalent(nn.Sequential(named), device)


def test_sharing_goes_both_ways(device: Any) -> None:
    """Training one network trains the other."""
    sequential = nn.Sequential(layer(4, 5), nn.Tanh(), layer(5, 2)).to(device)
    mlp = MLP.from_sequential(sequential)
    before = sequential(batch(device))
    optimizer = torch.optim.SGD(mlp.parameters(), lr=0.1)
    mlp(batch(device)).sum().backward()
    optimizer.step()
    assert not torch.equal(sequential(batch(device)), before)
    close(mlp(batch(device)), sequential(batch(device)))


class Tanh(nn.Module):
    """Somebody's module with the name of another."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class Linear(nn.Linear):
    """Somebody's layer."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


REFUSED = {
    "empty": (lambda: [], "it has 0 modules, but needs a torch.nn.Linear"),
    "no layer": (lambda: [nn.LayerNorm(4)], "it has 1 modules, but needs a torch.nn.Linear"),
    "no layer first": (lambda: [nn.Tanh(), layer(4, 2)], "module 0: expected torch.nn.Linear, or .* but it is Tanh"),
    "dropout first": (lambda: [nn.Dropout(0.1), layer(4, 2)], "module 0: expected torch.nn.Linear.* is Dropout"),
    "learned activation": (lambda: [layer(4, 5), nn.PReLU(), layer(5, 2)], "PReLU is not an activation"),
    "random activation": (lambda: [layer(4, 5), nn.RReLU(), layer(5, 2)], "RReLU is not an activation"),
    "softmax": (lambda: [layer(4, 5), nn.Softmax(-1)], "Softmax is not an activation"),
    "batch norm": (lambda: [layer(4, 5), nn.BatchNorm1d(5), nn.Tanh(), layer(5, 2)], "module 1: .*BatchNorm1d is not"),
    "nested": (lambda: [nn.Sequential(layer(4, 5)), nn.Tanh()], "module 0: expected torch.nn.Linear.*Sequential"),
    "somebody's layer": (lambda: [Linear(4, 5), nn.Tanh(), layer(5, 2)], "module 0: expected torch.nn.Linear"),
    "somebody's activation": (lambda: [layer(4, 5), Tanh(), layer(5, 2)], "Tanh"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind: str) -> None:
    """A Sequential that is no MLP is refused rather than computed differently; the message says where and why."""
    make, text = REFUSED[kind]
    with pytest.raises(ValueError, match=text):
        MLP.from_sequential(nn.Sequential(*make()))


@pytest.mark.parametrize("modules", [[nn.Linear(4, 5)], nn.ModuleList([nn.Linear(4, 5)])], ids=["list", "ModuleList"])
def test_no_sequential(modules: Any) -> None:
    """What is no Sequential is refused by its type."""
    with pytest.raises(TypeError, match=f"expected a torch.nn.Sequential, but it is a {type(modules).__name__}"):
        MLP.from_sequential(modules)
    with pytest.raises(TypeError, match=r"modules\[0\], expected a torch.nn.Sequential"):
        EnsembleMLP.from_modules([modules])


class Residual(nn.Sequential):
    """With a forward of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return input + super().forward(input)


def hooked() -> nn.Sequential:
    network = nn.Sequential(layer(4, 4), nn.Tanh(), layer(4, 4))
    network.register_forward_hook(lambda module, arguments, output: 2 * output)
    return network


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Residual(layer(4, 4), nn.Tanh(), layer(4, 4)), "Residual has a forward of its own"),
        (hooked, "it has hooks"),
    ],
    ids=["forward", "hooks"],
)
def test_more_than_its_modules(make: Any, text: str) -> None:
    """What a Sequential does besides calling its modules is not lost."""
    with pytest.raises(ValueError, match=text):
        MLP.from_sequential(make())
    with pytest.raises(ValueError, match=text):
        EnsembleMLP.from_modules([make()])


def test_modes_of_the_modules_are_kept() -> None:
    """As they are the same modules: one that is in evaluation stays there."""
    sequential = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Dropout(), nn.Linear(5, 3))
    sequential[2].eval()
    mlp = MLP.from_sequential(sequential)
    assert mlp.training and [module.training for module in mlp] == [True, True, False, True]


def test_mlp_of_mlp(device: Any) -> None:
    """An MLP's residual connection and checkpointing are taken over, and an ensemble refuses what it has not."""
    model = MLP(4, 5, residual=True, checkpoint=True, device=device, dtype=WIDEST)
    again = MLP.from_sequential(model)
    assert again.residual and again.checkpoint
    x = torch.randn(3, 4, device=device, dtype=WIDEST)
    close([again(x)], [model(x)])
    with pytest.raises(ValueError, match="no residual connections"):
        EnsembleMLP.from_modules([model])
    plain = MLP(4, 5, device=device, dtype=WIDEST)
    plain[0].register_forward_hook(lambda module, arguments, output: 2 * output)
    with pytest.raises(ValueError, match=r"modules\[0\], module 0: it has hooks"):
        EnsembleMLP.from_modules([plain])
