"""The models as a PyTorch user writes them, and the same by fastops with the same weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastops

# Activations that PyTorch has no function for, as one would write them with it.
_SPELLED_OUT: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x.clone(),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu_squared": lambda x: F.relu(x).square(),
}


def pytorch_activation(name: str) -> Callable[[Tensor], Tensor]:
    """PyTorch's function for an activation of fastops, with the default parameters."""
    function = _SPELLED_OUT.get(name) or getattr(F, name, None) or getattr(torch, name, None)
    if function is None:
        raise LookupError(f"PyTorch has no function {name}: add its formula to {__name__}._SPELLED_OUT")
    return function


class Sin(nn.Module):
    """The sine as an activation."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.sin(input)


class GatedMLP(nn.Module):
    """The feed-forward block of LLaMA, as Hugging Face writes it."""

    def __init__(self, in_features: int, hidden_features: int) -> None:
        super().__init__()
        self.gate_proj: nn.Linear = nn.Linear(in_features, hidden_features, bias=False)
        self.up_proj: nn.Linear = nn.Linear(in_features, hidden_features, bias=False)
        self.down_proj: nn.Linear = nn.Linear(hidden_features, in_features, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        hidden: Tensor = F.silu(self.gate_proj(input)) * self.up_proj(input)
        return self.down_proj(hidden)


class Derivative(nn.Module):
    """A network's outputs at points, side by side with derivatives in these, by nested reverse mode."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def by_fastops(self) -> nn.Module:
        """The same by fastops, with a copy of the parameters."""
        raise NotImplementedError

    def by_transforms(self) -> nn.Module | None:
        """The same by torch.func, with these parameters, where that can do it."""
        return None

    def jacobian_and_value(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """By torch.func.jacrev, of one point."""

        def values(point: Tensor) -> tuple[Tensor, Tensor]:
            value = self.network(point)
            return value, value

        return torch.func.jacrev(values, has_aux=True)(point)

    def hessian_jacobian_and_value(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """By torch.func.hessian, forward over reverse mode, of each point."""

        def gradients(point: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            rows, value = self.jacobian_and_value(point)
            return rows, (rows, value)

        hessian, (rows, value) = torch.func.vmap(torch.func.jacfwd(gradients, has_aux=True))(points)
        return hessian, rows, value


class Laplacian(Derivative):
    """Values, gradients and Laplacians; from fastops, in one forward pass."""

    def forward(self, points: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            x = points.clone().requires_grad_()
            value = self.network(x)
            rows = [torch.autograd.grad(value[:, o].sum(), x, create_graph=True)[0] for o in range(value.shape[1])]
            laplacians = []
            for row in rows:
                parts = row.sum(0).unbind()  # each point has a part in its own row alone
                seconds = [torch.autograd.grad(part, x, create_graph=True)[0][:, d] for d, part in enumerate(parts)]
                laplacians.append(torch.stack(seconds).sum(0))
            return torch.cat([value, *rows, torch.stack(laplacians, 1)], 1)

    def by_fastops(self) -> nn.Module:
        return _LaplacianByPropagation(by_fastops(self.network))

    def by_transforms(self) -> nn.Module | None:
        if any(isinstance(module, nn.SiLU) for module in self.modules()):
            return None  # PyTorch has no forward mode of its backward
        return _LaplacianByTransforms(self.network)


class NestedLaplacian(Laplacian):
    """The same, by nested reverse mode with fastops, too."""

    def by_fastops(self) -> nn.Module:
        return Laplacian(by_fastops(self.network))


class _LaplacianByTransforms(Laplacian):
    def forward(self, points: Tensor) -> Tensor:
        with torch.inference_mode(False):
            hessian, rows, value = self.hessian_jacobian_and_value(points.clone())
            return torch.cat([value, rows.flatten(1), hessian.diagonal(dim1=2, dim2=3).sum(2)], 1)


class _LaplacianByPropagation(Laplacian):
    def forward(self, points: Tensor) -> Tensor:
        network = self.network
        assert isinstance(network, fastops.nn.MLP)
        value, gradient, laplacian = network.value_gradient_laplacian(points)
        return torch.cat([value, gradient.flatten(1), laplacian], 1)


class Hessian(Derivative):
    """Values, gradients and Hessians."""

    def forward(self, points: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            x = points.clone().requires_grad_()
            value = self.network(x)
            rows = [torch.autograd.grad(value[:, o].sum(), x, create_graph=True)[0] for o in range(value.shape[1])]
            # Each point has a part in its own row alone.
            parts = [part for row in rows for part in row.sum(0).unbind()]
            seconds = [torch.autograd.grad(part, x, create_graph=True)[0] for part in parts]
            return torch.cat([value, *rows, *seconds], 1)

    def by_fastops(self) -> nn.Module:
        return _HessianByPropagation(by_fastops(self.network))

    def by_transforms(self) -> nn.Module | None:
        return _HessianByTransforms(self.network)


class _HessianByTransforms(Hessian):
    def forward(self, points: Tensor) -> Tensor:
        with torch.inference_mode(False):
            hessian, rows, value = self.hessian_jacobian_and_value(points.clone())
            return torch.cat([value, rows.flatten(1), hessian.flatten(1)], 1)


class _HessianByPropagation(Hessian):
    def forward(self, points: Tensor) -> Tensor:
        network = self.network
        assert isinstance(network, fastops.nn.MLP)
        value, jacobian, hessian = network.value_jacobian_hessian(points)
        return torch.cat([value, jacobian.flatten(1), hessian.flatten(1)], 1)


class Divergence(Derivative):
    """A vector field and its divergence, exactly, as in a continuous normalizing flow."""

    def forward(self, points: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            x = points.clone().requires_grad_()
            value = self.network(x)
            sums = value.sum(0).unbind()  # each point has a part in its own row alone
            diagonal = [torch.autograd.grad(each, x, create_graph=True)[0][:, d] for d, each in enumerate(sums)]
            return torch.cat([value, torch.stack(diagonal).sum(0).unsqueeze(1)], 1)

    def by_fastops(self) -> nn.Module:
        return _DivergenceByPropagation(by_fastops(self.network))

    def by_transforms(self) -> nn.Module | None:
        return _DivergenceByTransforms(self.network)


class _DivergenceByTransforms(Divergence):
    """By torch.func.jacrev of each point."""

    def forward(self, points: Tensor) -> Tensor:
        with torch.inference_mode(False):
            jacobian, value = torch.func.vmap(self.jacobian_and_value)(points.clone())
            return torch.cat([value, jacobian.diagonal(dim1=1, dim2=2).sum(1, keepdim=True)], 1)


class _DivergenceByPropagation(Divergence):
    def forward(self, points: Tensor) -> Tensor:
        network = self.network
        assert isinstance(network, fastops.nn.MLP)
        value, divergence = network.divergence(points)
        return torch.cat([value, divergence.unsqueeze(1)], 1)


class Energy(Derivative):
    """A number and its gradient, as energies and forces."""

    def forward(self, points: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            x = points.clone().requires_grad_()
            value = self.network(x)
            return torch.cat([value, torch.autograd.grad(value.sum(), x, create_graph=True)[0]], 1)

    def by_fastops(self) -> nn.Module:
        return _EnergyByJacobian(by_fastops(self.network))

    def by_transforms(self) -> nn.Module | None:
        return _EnergyByTransforms(self.network)


class NestedEnergy(Energy):
    """The same, by nested reverse mode with fastops, too."""

    def by_fastops(self) -> nn.Module:
        return Energy(by_fastops(self.network))


class _EnergyByTransforms(Energy):
    """By torch.func.jacrev of each point."""

    def forward(self, points: Tensor) -> Tensor:
        with torch.inference_mode(False):
            jacobian, value = torch.func.vmap(self.jacobian_and_value)(points.clone())
            return torch.cat([value, jacobian.squeeze(1)], 1)


class _EnergyByJacobian(Energy):
    def forward(self, points: Tensor) -> Tensor:
        network = self.network
        assert isinstance(network, fastops.nn.MLP)
        value, jacobian = network.value_jacobian(points)
        return torch.cat([value, jacobian.squeeze(1)], 1)


class Ensemble(nn.Module):
    """Networks of one form with stacked parameters, as batched products."""

    def __init__(self, members: int, sizes: Sequence[int], activation: nn.Module) -> None:
        super().__init__()
        self.sizes: tuple[int, ...] = tuple(sizes)
        self.activation = activation
        self.stacked: nn.ParameterList = nn.ParameterList()  # W0, b0, W1, ...
        for inputs, outputs in pairwise(sizes):
            self.stacked.extend([torch.zeros(members, outputs, inputs), torch.zeros(members, outputs)])

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """The weight and the bias of each."""
        return list(zip(self.stacked[::2], self.stacked[1::2], strict=True))

    def forward(self, input: Tensor) -> Tensor:
        hidden = input.expand(len(self.stacked[0]), *input.shape)
        for i, (weight, bias) in enumerate(self.layers):
            if i > 0:
                hidden = self.activation(hidden)
            hidden = torch.baddbmm(bias.unsqueeze(1), hidden, weight.mT)
        return hidden


class EnsembleByVmap(nn.Module):
    """The same by torch.func.vmap, with the parameters of that model."""

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__()
        self.form: nn.Sequential = sequential(ensemble.sizes, ensemble.activation).to("meta")
        names = (name for name, _ in self.form.named_parameters())
        self.members: dict[str, Tensor] = dict(zip(names, ensemble.stacked, strict=True))

    def forward(self, input: Tensor) -> Tensor:
        def member(parameters: dict[str, Tensor]) -> Tensor:
            return torch.func.functional_call(self.form, parameters, (input,))

        return torch.func.vmap(member)(self.members)


def sequential(sizes: Sequence[int], activation: nn.Module) -> nn.Sequential:
    """Linear, activation, Linear, ..., Linear."""
    modules: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        modules += [nn.Linear(inputs, outputs), copy.deepcopy(activation)]
    return nn.Sequential(*modules[:-1])


def normalized(sizes: Sequence[int], activation: nn.Module, dropout: float) -> nn.Sequential:
    """Linear, LayerNorm, activation, Dropout, ..., Linear."""
    modules: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        modules += [nn.Linear(inputs, outputs), nn.LayerNorm(outputs), copy.deepcopy(activation), nn.Dropout(dropout)]
    return nn.Sequential(*modules[:-3])


class Residual(nn.Sequential):
    """The feed-forward half of a transformer's block, with LayerNorm before it and dropout behind its layers."""

    def __init__(self, features: int, hidden_features: int, activation: nn.Module, dropout: float) -> None:
        modules = [
            *(nn.LayerNorm(features), nn.Linear(features, hidden_features), activation, nn.Dropout(dropout)),
            *(nn.Linear(hidden_features, features), nn.Dropout(dropout)),
        ]
        super().__init__(*(copy.deepcopy(module) for module in modules))

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = super().forward(input)  # type: ignore[no-untyped-call]
        return input + output


def has_dropout(model: nn.Module) -> bool:
    """Whether modules of it drop anything in training."""
    rates = (getattr(module, "p" if isinstance(module, nn.Dropout) else "dropout", 0.0) for module in model.modules())
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


def set_dropout(model: object, on: bool) -> None:
    """Lets the dropouts of a module drop, or not."""
    for module in model.modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, (nn.Dropout, nn.MultiheadAttention, nn.TransformerEncoderLayer)):
            module.train(on)


def initialize(model: nn.Module, seed: int = 0) -> None:
    """Kaiming's weights (He et al., 2015), with which no layer's activations die out, and small biases."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
            if layer.bias is not None:
                nn.init.normal_(layer.bias, std=0.1, generator=generator)
        elif isinstance(layer, Ensemble):
            for weights, biases in layer.layers:
                for weight in weights.detach():
                    nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
                nn.init.normal_(biases, std=0.1, generator=generator)


def by_fastops(model: nn.Module) -> nn.Module:
    """The fastops module that computes what ``model`` does, with copies of its parameters."""
    if isinstance(model, nn.Sequential):
        modules = [fastops.nn.Sin() if isinstance(module, Sin) else module for module in copy.deepcopy(model)]
        mlp = fastops.nn.MLP.from_sequential(nn.Sequential(*modules))
        mlp.residual = isinstance(model, Residual)
        return mlp
    if isinstance(model, GatedMLP):
        weight = model.gate_proj.weight
        gated = fastops.nn.GatedMLP(
            model.gate_proj.in_features,
            model.gate_proj.out_features,
            activation="silu",
            device=weight.device,
            dtype=weight.dtype,
        )
        gated.load_state_dict(model.state_dict())
        return gated
    if isinstance(model, Derivative):
        return model.by_fastops()
    if isinstance(model, Ensemble):
        first, *hidden, last = model.sizes
        ensemble = fastops.nn.EnsembleMLP(len(model.stacked[0]), first, hidden, last, activation=model.activation)
        for parameter, value in zip(ensemble.parameters(), model.stacked, strict=True):
            parameter.data = value.detach().clone()
        return ensemble
    raise TypeError(f"fastops.bench: no fastops module for {type(model).__name__}")


def _kinks(layer: nn.Module) -> tuple[float, ...]:
    """Where the derivative of an activation module jumps."""
    if isinstance(layer, nn.ReLU):
        return (0.0,)
    if isinstance(layer, nn.Softshrink):
        return (-layer.lambd, layer.lambd)
    return ()


# More than the rounding error of the longest sums of the suites, in float32, for values of order one.
_KINK_MARGIN = 2e-5


@torch.no_grad()
def rows_away_from_kinks(model: nn.Module, candidates: Tensor) -> Tensor:
    """The rows of an input for which no pre-activation is within rounding of a place where the derivative jumps.

    There the derivative of a rounded pre-activation is an arbitrary one of two, and no comparison of gradients works.
    """
    safe = torch.ones(len(candidates), dtype=torch.bool)
    if isinstance(model, nn.Sequential):
        value = candidates.double()
        for layer in copy.deepcopy(model).double().eval():
            for kink in _kinks(layer):
                safe &= ((value - kink).abs() > _KINK_MARGIN).all(dim=1)
            value = layer(value)
    return candidates[safe]
