"""MLP as the torch.nn.Sequential that it is, and the activations inside the layers as modules."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential

import fastops.nn
from fastops.nn import MLP, GatedMLP, LinearAct
from modules import PAIRS, batch, seeded, value_and_gradients
from sample import close
from strategies import WIDEST

KINDS = ["MLP", "MLP without bias", "MLP of one layer", "MLP with dropout"]
each_kind = pytest.mark.parametrize("kind", KINDS)


def pair(kind: str, device: Any) -> tuple[MLP, nn.Sequential]:
    """The MLP and its equivalent, with the same parameters and without dropout."""
    ours, reference = (seeded(make, device).eval() for make in PAIRS[kind])
    return ours, reference


def assert_equivalent(ours: nn.Module, reference: nn.Module, device: Any) -> None:
    """Values and gradients are the same, also when compiled and when scripted."""
    x = batch(device)
    parameters = list(ours.parameters())
    expected = value_and_gradients(reference, list(reference.parameters()), x)
    close(value_and_gradients(ours, parameters, x), expected)
    torch.compiler.reset()
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    close(value_and_gradients(compiled, parameters, x), expected)


# ---- a container ----


@each_kind
def test_items(kind: str, device: Any) -> None:
    """Its modules are those of the Sequential: numbers, slices, iteration and names."""
    ours, reference = pair(kind, device)
    assert len(ours) == len(reference)
    assert [type(module) for module in ours] == [type(module) for module in reference]
    assert [name for name, _ in ours.named_modules()] == [name for name, _ in reference.named_modules()]
    assert ours[0] is next(iter(ours)) and ours[-1] is list(ours)[-1]
    assert list(ours.state_dict()) == list(reference.state_dict())
    x = batch(device)
    for part in (slice(None, 2), slice(1, None), slice(None, None, 2)):
        assert list(ours[part]) == list(ours)[part]
    close(ours[:1](x), reference[:1](x))
    close(ours[1:](ours[:1](x)), reference(x))
    with pytest.raises(IndexError):
        ours[len(ours)]


def test_activations_are_of_torch() -> None:
    """They are of the classes that other libraries know, one for each place, and a copy of the one that was given."""
    given = nn.Softshrink(0.3)
    mlp = MLP(6, [8, 8], 3, activation=given, output_activation="gelu_tanh")
    assert [type(module) for module in mlp[1::2]] == [nn.Softshrink, nn.Softshrink, nn.GELU]
    assert len({mlp[1], mlp[3], given}) == 3 and mlp[3].lambd == 0.3 and mlp[5].approximate == "tanh"
    assert type(MLP(6, 8, activation="quick_gelu")[1]) is fastops.nn.QuickGELU
    assert type(GatedMLP(6, 8).act_fn) is nn.SiLU
    assert type(LinearAct(6, 8, nn.functional.elu).act_fn) is nn.ELU


EDITS: dict[str, Callable[[nn.Sequential], Any]] = {
    "append": lambda modules: modules.append(nn.LayerNorm(3, device=modules[0].weight.device, dtype=WIDEST)),
    "append a layer": lambda modules: modules.append(nn.Linear(3, 2, device=modules[0].weight.device, dtype=WIDEST)),
    "append an activation": lambda modules: modules.append(nn.ELU()),
    "insert": lambda modules: modules.insert(1, nn.LayerNorm(8, device=modules[0].weight.device, dtype=WIDEST)),
    "delete an activation": lambda modules: modules.__delitem__(1),
    "delete the last": lambda modules: modules.pop(-1),
    "another activation": lambda modules: modules.__setitem__(1, nn.Softsign()),
    "an activation that fastops has": lambda modules: modules.__setitem__(3, nn.Tanh()),
    "another parameter": lambda modules: setattr(modules[1], "lambd", 0.4),
    "identity": lambda modules: modules.__setitem__(1, nn.Identity()),
    "dropout of everything": lambda modules: modules.insert(2, nn.Dropout(1.0).train()),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_edits(edit: str, device: Any) -> None:
    """It computes what its modules say, whatever they are by now."""
    modules = pair("MLP", device)
    for module in modules:
        torch.manual_seed(1)
        EDITS[edit](module)
    assert_equivalent(*modules, device)
    close(torch.jit.script(modules[0])(batch(device)), modules[1](batch(device)))


@pytest.mark.parametrize("segments", [1, 2, 3])
def test_checkpoint_sequential(segments: int, device: Any) -> None:
    """Checkpointed in segments, it has the values and gradients of the Sequential."""
    results = []
    for module in pair("MLP", device):
        inputs = batch(device).requires_grad_()
        value = checkpoint_sequential(module, segments, inputs, use_reentrant=False)
        results.append([value, *torch.autograd.grad(value.square().sum(), [inputs, *module.parameters()])])
    close(*results)


# ---- the activations are modules ----


def rule_by_hooks(module: nn.Module) -> list[Any]:
    """Another backward pass for the activations: of positive gradients alone, where the input is positive."""
    handles = []
    for layer in module.modules():
        if isinstance(layer, (nn.Softshrink, nn.Tanh, nn.SiLU)):
            kept: list[Tensor] = []
            handles += [
                layer.register_forward_pre_hook(lambda _, args, kept=kept: kept.append(args[0].detach())),
                layer.register_full_backward_hook(
                    lambda _, inputs, outputs, kept=kept: (outputs[0].clamp_min(0) * (kept.pop() > 0),)
                ),
            ]
    assert handles
    return handles


class SiLU(nn.Module):
    """GatedMLP in terms of modules."""

    def __init__(self, gated: GatedMLP) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = gated.gate_proj, gated.up_proj, gated.down_proj
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class LinearSoftshrink(nn.Module):
    """LinearAct in terms of modules."""

    def __init__(self, layer: LinearAct) -> None:
        super().__init__()
        self.weight, self.bias, self.act_fn = layer.weight, layer.bias, nn.Softshrink(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.act_fn(nn.functional.linear(x, self.weight, self.bias))


@pytest.mark.parametrize("kind", ["MLP", "MLP with dropout", "GatedMLP", "LinearAct"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_hooks_of_activations(kind: str, checkpoint: bool, device: Any) -> None:
    """Explanations that hook the activations see them, and their rules count; without hooks it is one op again."""
    ours, reference = (seeded(make, device).eval() for make in PAIRS[kind])
    if isinstance(ours, GatedMLP):
        reference = SiLU(ours)
    if isinstance(ours, LinearAct):
        reference = LinearSoftshrink(ours)
    elif checkpoint:
        pytest.skip("with a checkpoint, hooks run twice")
    x = batch(device)
    before = value_and_gradients(ours, list(ours.parameters()), x)
    handles = [handle for module in (ours, reference) for handle in rule_by_hooks(module)]
    results = [value_and_gradients(module, list(module.parameters()), x) for module in (ours, reference)]
    close(*results)
    assert not torch.allclose(results[0][1], before[1])
    for handle in handles:
        handle.remove()
    assert "Fastops" in ours(x).grad_fn.name()
    close(value_and_gradients(ours, list(ours.parameters()), x), before)


def test_from_sequential_shares_activations(device: Any) -> None:
    """Hooks that the Sequential's modules have or get count in the MLP."""
    sequential = seeded(PAIRS["MLP"][1], device)
    mlp = MLP.from_sequential(sequential)
    assert all(mine is theirs for mine, theirs in zip(mlp, sequential, strict=True))
    seen = []
    handle = sequential[1].register_forward_hook(lambda _, args, output: seen.append(output.detach()))
    mlp(batch(device))
    handle.remove()
    close(seen, [sequential[:2](batch(device)).detach()])


# ---- the version before, whose activations were names and not modules ----


@pytest.mark.parametrize("kind", ["MLP", "MLP with dropout", "GatedMLP", "LinearAct"])
@pytest.mark.parametrize("value", ["relu", 0.1, nn.ReLU()], ids=["name", "number", "module"])
def test_attributes_of_the_version_before(kind: str, value: Any, device: Any) -> None:
    """Setting them would do nothing, so it is an error that says what to do instead; what is said there works."""
    module = seeded(PAIRS[kind][0], device).eval()
    for name in ("activation", "params", "output_activation", "output_params", "dropout"):
        before = dict(module.__dict__), dict(module._modules)
        with pytest.raises(
            AttributeError, match=rf"^fastops\.nn\.{type(module).__name__}: {name} .*torch\.nn\.ReLU\(\)$"
        ):
            setattr(module, name, value)
        assert not hasattr(module, name) and (dict(module.__dict__), dict(module._modules)) == before
    x = batch(device)
    before = module(x)
    if isinstance(module, MLP):
        module[1] = nn.ReLU()
    else:
        module.act_fn = nn.ReLU()
    assert not torch.equal(module(x), before)


def test_modules_of_those_names(device: Any) -> None:
    """A Sequential's modules may have such names, and can be replaced by them."""
    named = {"first": nn.Linear(6, 8), "activation": nn.Tanh(), "last": nn.Linear(8, 3)}
    mlp = MLP.from_sequential(nn.Sequential(OrderedDict(named)).to(device))
    mlp.activation = nn.ReLU()
    x = batch(device).float()
    close(mlp(x), mlp.last(mlp.first(x).relu()))


def test_attributes_of_subclasses() -> None:
    """They are the subclass's own."""

    class Named(MLP):
        def __init__(self) -> None:
            super().__init__(6, 8)
            self.activation = "gelu"
            self.params = {"rate": 1}

    again = copy.deepcopy(Named())
    assert again.activation == "gelu" and again.params == {"rate": 1}
    assert repr(again) == repr(Named())

    class Gated(GatedMLP):
        def __init__(self) -> None:
            super().__init__(6, 8)
            self.activation, self.params = "gelu", [1]

    assert repr(copy.deepcopy(Gated())) == repr(Gated())


def test_activations_in_place(device: Any) -> None:
    """They change what they are given, as in a Sequential, where it is not a layer's result."""
    mlp = seeded(lambda: MLP(6, 8), device).eval()
    mlp.insert(0, nn.ReLU(inplace=True))
    x = batch(device)
    expected = nn.Sequential(*mlp)(x.clone())
    y = x.clone()
    close([mlp(y), y], [expected, x.relu()])


def as_before(module: nn.Module) -> Any:
    """The state that a pickle of the same module had when the activations were names and not modules."""
    state = copy.deepcopy(module).__dict__
    functions = [function for function in module.modules() if isinstance(function, (nn.Softshrink, nn.SiLU))]
    state["activation"] = {nn.Softshrink: "softshrink", nn.SiLU: "silu"}[type(functions[0])]
    state["params"] = [functions[0].lambd] if isinstance(functions[0], nn.Softshrink) else []
    layers = {name: layer for name, layer in state["_modules"].items() if isinstance(layer, nn.Linear)}
    if isinstance(module, MLP):
        has_output = isinstance(module[-1], nn.Tanh)
        state["output_activation"], state["output_params"] = "tanh" if has_output else "identity", []
        state["dropout"] = max((layer.p for layer in module if isinstance(layer, nn.Dropout)), default=0.0)
    return {**state, "_modules": layers}


@pytest.mark.parametrize("kind", ["MLP", "MLP with dropout", "GatedMLP with bias", "LinearAct"])
@pytest.mark.parametrize("training", [False, True])
def test_pickles_of_the_version_before(kind: str, training: bool, device: Any) -> None:
    """They become what they were: the same modules under the same names, with the same parameters."""
    module = seeded(PAIRS[kind][0], device).train(training)
    restored = type(module).__new__(type(module))
    restored.__setstate__(as_before(module))
    assert repr(restored) == repr(module)
    assert [type(child) for child in restored.modules()] == [type(child) for child in module.modules()]
    assert all(child.training == training for child in restored.modules())
    assert list(restored.state_dict()) == list(module.state_dict())
    again = pickle.loads(pickle.dumps(restored))
    results = []
    for made in (module, restored, again):
        torch.manual_seed(2)
        results.append(value_and_gradients(made, list(made.parameters()), batch(device)))
    close(results[1], results[0])
    close(results[2], results[0])


def test_names_of_a_pickle_from_a_named_sequential(device: Any) -> None:
    """Names that are no numbers keep the layers' parameters where they were."""
    mlp = MLP.from_sequential(nn.Sequential(nn.Linear(6, 8), nn.Softshrink(), nn.Linear(8, 3)).to(device))
    state = as_before(mlp)
    state["_modules"] = dict(zip(["first", "last"], state["_modules"].values(), strict=True))
    restored = MLP.__new__(MLP)
    restored.__setstate__(state)
    assert list(restored.state_dict()) == ["first.weight", "first.bias", "last.weight", "last.bias"]
    x = batch(device).float()
    close(restored(x), mlp(x))
