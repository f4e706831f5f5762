"""What users do with the layers inside MLP and GatedMLP: hooks, other layers in their place, pruning, weight norm."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from modules import PAIRS, batch, seeded, value_and_gradients
from sample import close

KINDS = ["MLP", "MLP without bias", "MLP with dropout", "GatedMLP", "GatedMLP with bias"]
each_kind = pytest.mark.parametrize("kind", KINDS)


def pair(kind: str, device: Any) -> tuple[nn.Module, nn.Module]:
    """The module and its equivalent in torch.nn, with the same parameters and without dropout."""
    ours, reference = (seeded(make, device).eval() for make in PAIRS[kind])
    return ours, reference


def linears(module: nn.Module) -> list[tuple[str, nn.Linear]]:
    """The layers with their names, which are the same in both modules of a pair."""
    return [(name, layer) for name, layer in module.named_modules() if type(layer) is nn.Linear]


def assert_equivalent(ours: nn.Module, reference: nn.Module, device: Any) -> None:
    """Values and gradients are the same."""
    x = batch(device)
    results = value_and_gradients(ours, list(ours.parameters()), x)
    expected = value_and_gradients(reference, list(reference.parameters()), x)
    assert len(results) == len(expected)
    for a, b in zip(results, expected, strict=True):
        close(a, b)


@each_kind
@pytest.mark.parametrize("place", [0, -1])
def test_hooks(kind: str, place: int, device: Any) -> None:
    """Hooks of a layer are called as in torch.nn, and what they return counts."""
    seen: dict[nn.Module, list[Any]] = {}
    modules = pair(kind, device)
    for module in modules:
        record = seen.setdefault(module, [])
        _, layer = linears(module)[place]
        layer.register_forward_pre_hook(lambda _, args, record=record: record.append(args[0].detach()))
        layer.register_forward_hook(lambda _, args, output: 2 * output)
        layer.register_full_backward_hook(lambda _, grads, outputs, record=record: record.append(outputs[0].detach()))
    assert_equivalent(*modules, device)
    ours, expected = seen.values()
    assert len(ours) == len(expected) == 2
    for a, b in zip(ours, expected, strict=True):
        close(a, b)


@each_kind
def test_removed_hook(kind: str, device: Any) -> None:
    """Without its hooks a module is one op again, with the same result."""
    ours, _ = pair(kind, device)
    x = batch(device)
    expected = ours(x)
    _, layer = linears(ours)[0]
    handle = layer.register_forward_hook(lambda _, args, output: output + 1)
    assert not torch.allclose(ours(x), expected)
    handle.remove()
    assert torch.equal(ours(x), expected)


class LowRank(nn.Module):
    """A linear layer with a low-rank addition, as adapters put it in a layer's place."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        generator = torch.Generator().manual_seed(3)
        down = torch.randn(2, base.in_features, generator=generator, dtype=torch.float64)
        up = torch.randn(base.out_features, 2, generator=generator, dtype=torch.float64)
        self.down, self.up = (nn.Parameter(part.to(base.weight)) for part in (down, up))

    @property
    def weight(self) -> Tensor:
        """The base's, as adapters have it."""
        return self.base.weight

    @property
    def bias(self) -> Tensor | None:
        """The base's."""
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


@each_kind
@pytest.mark.parametrize("place", [0, -1])
def test_replaced_layer(kind: str, place: int, device: Any) -> None:
    """A module in a layer's place is called."""
    modules = pair(kind, device)
    for module in modules:
        name, layer = linears(module)[place]
        module.set_submodule(name, LowRank(layer))
    assert_equivalent(*modules, device)


@each_kind
def test_subclass_and_overridden_forward(kind: str, device: Any) -> None:
    """A subclass's forward counts, and one that is set on the layer itself."""

    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    modules = pair(kind, device)
    for module in modules:
        (_, first), *_, (_, last) = linears(module)
        first.__class__ = Doubled
        plain = last.forward
        last.forward = lambda x, plain=plain: plain(x) + 1
    assert_equivalent(*modules, device)


def weight_norm_by_hook(layer: nn.Linear) -> None:
    """The old weight norm."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(layer)


CHANGES: dict[str, Callable[[nn.Linear], Any]] = {
    "prune": lambda layer: prune.l1_unstructured(layer, "weight", amount=0.4),
    "prune for good": lambda layer: prune.remove(prune.l1_unstructured(layer, "weight", amount=0.4), "weight"),
    "weight_norm": parametrizations.weight_norm,
    "weight_norm by a hook": weight_norm_by_hook,
    "spectral_norm": lambda layer: parametrizations.spectral_norm(layer, n_power_iterations=2),
    "orthogonal": parametrizations.orthogonal,
    "frozen": lambda layer: layer.requires_grad_(False),
}


@pytest.mark.parametrize("change", CHANGES)
@each_kind
def test_training_with_changed_layers(kind: str, change: str, device: Any) -> None:
    """Some steps of training with the layers' weights computed from other parameters follow those of torch.nn."""
    losses = []
    for module in pair(kind, device):
        for i, (_, layer) in enumerate(linears(module)):
            torch.manual_seed(i)
            CHANGES[change](layer)
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.1) if trained else None
        steps = []
        for _ in range(3):
            loss = (module(batch(device)) - 1).square().mean()
            if optimizer:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            steps.append(loss.detach())
        losses.append(torch.stack(steps))
    close(*losses)


@each_kind
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_optimizers(kind: str, name: str, how: str, device: Any) -> None:
    """Optimizers with fused loops train it like torch.nn."""
    if (name, how, device.type) == ("Adagrad", "fused", "cuda"):
        pytest.skip("PyTorch has none for GPUs")
    results = []
    for module in pair(kind, device):
        optimizer = getattr(torch.optim, name)(module.parameters(), lr=0.05, **{how: True})
        for _ in range(3):
            optimizer.zero_grad()
            (module(batch(device)) - 1).square().mean().backward()
            optimizer.step()
        results.append(torch.cat([parameter.detach().flatten() for parameter in module.parameters()]))
    close(*results)


@each_kind
def test_averages(kind: str, device: Any) -> None:
    """An exponential moving average of the parameters computes what the one of torch.nn does."""
    results = []
    for module in pair(kind, device):
        average = torch.optim.swa_utils.AveragedModel(
            module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
        )
        changed = copy.deepcopy(module)
        with torch.no_grad():
            for parameter in changed.parameters():
                parameter.mul_(1.5)
        average.update_parameters(module)
        average.update_parameters(changed)
        results.append(average(batch(device)).detach())
    close(*results)


@each_kind
def test_shared_memory(kind: str, device: Any) -> None:
    """share_memory() keeps it working, with parameters that another process would see."""
    ours, reference = pair(kind, device)
    assert all(parameter.is_shared() for parameter in ours.share_memory().parameters())
    assert_equivalent(ours, reference, device)


@each_kind
def test_compile_with_hooks(kind: str, device: Any) -> None:
    """torch.compile sees the hooks too."""
    ours, reference = pair(kind, device)
    for module in (ours, reference):
        linears(module)[0][1].register_forward_hook(lambda _, args, output: 2 * output)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    close(compiled(batch(device)), reference(batch(device)))
