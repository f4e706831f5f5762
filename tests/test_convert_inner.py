"""fastops.nn.convert of layers within modules that are converted themselves, and of methods that are activations."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastops
from convertible import AdapterLinear, assert_same, converted, ops_of
from modules import batch


class Projected(nn.Module):
    """A layer and an activation that is a method, as in diffusers."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.proj = nn.Linear(6, 8)
        self.approximate = approximate

    def gelu(self, gate: Tensor) -> Tensor:
        if gate.device.type == "mps" and is_version("<", "2.0.0"):
            return F.gelu(gate.to(dtype=torch.float32), approximate=self.approximate).to(dtype=gate.dtype)
        return F.gelu(gate, approximate=self.approximate)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.proj(hidden_states)
        return self.gelu(hidden_states)


class Gated(nn.Module):
    """A gated unit with a method."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(6, 16)

    def gelu(self, gate: Tensor) -> Tensor:
        return F.gelu(gate)

    def forward(self, hidden_states):
        hidden_states = self.proj(hidden_states)
        hidden_states, gate = hidden_states.chunk(2, dim=-1)
        return hidden_states * self.gelu(gate)


class Scaled(nn.Module):
    """A gated unit with a factor, as in x-transformers."""

    def __init__(self, factor: Any = 1.0) -> None:
        super().__init__()
        self.proj, self.act, self.factor = nn.Linear(6, 16), nn.SiLU(), factor

    def forward(self, x):
        up, gate = self.proj(x).chunk(2, dim=-1)
        return up * self.act(gate) * self.factor


class Net(nn.Module):
    """A list of layers, the first of which is one of the above."""

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.net = nn.ModuleList([first, nn.Dropout(0.0), nn.Linear(8, 6)])

    def forward(self, hidden_states: Tensor) -> Tensor:
        for module in self.net:
            hidden_states = module(hidden_states)
        return hidden_states


def is_version(operation: str, version: str) -> bool:
    """Never called here."""
    raise AssertionError


def sequential(first: nn.Module) -> nn.Sequential:
    return nn.Sequential(first, nn.Dropout(0.0), nn.Linear(8, 6))


FORMS = {
    "method": (Projected, "mlp(net[0].proj, net[0].gelu, net[2])"),
    "tanh": (lambda: Projected("tanh"), "mlp(net[0].proj, net[0].gelu, net[2])"),
    "gated": (Gated, "gated_mlp(net[0].proj, net[0].gelu, net[2])"),
    "scaled": (Scaled, "gated_mlp(net[0].proj, net[0].act, net[2])"),
    "sequential": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh()),
        "mlp(net[0].0, net[0].1, net[2])",
    ),
    "nested": (lambda: nn.Sequential(Projected(), nn.Dropout(0.0)), "mlp(net[0].0.proj, net[0].0.gelu, net[2])"),
}
each_form = pytest.mark.parametrize("form", FORMS)


@each_form
def test_layers_within(form: str, device: Any) -> None:
    """The layers of an inner module are computed with those behind it."""
    make, ops = FORMS[form]
    module, reference, report = converted(lambda: Net(make()), device)
    assert report.replaced[0].ops == ops
    assert report.replaced[0].module is module
    assert ops_of(module, batch(device)) == [ops.split("(")[0]]
    assert_same(module, reference, device)
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)) if form != "tanh" else module):
        assert ops_of(copied, batch(device)) == [ops.split("(")[0]]
        assert_same(copied, reference, device)
    report.revert()
    assert not any("_fastops_original" in dir(inner) for inner in module.modules())
    assert_same(module, reference, device)


@each_form
def test_in_sequential(form: str, device: Any) -> None:
    """So they are in a Sequential, which is converted itself."""
    make, ops = FORMS[form]
    module, reference, report = converted(lambda: sequential(make()), device)
    assert report.replaced[0].module is module
    assert ops_of(module, batch(device)) == [ops.split("(")[0]]
    assert_same(module, reference, device)


@each_form
def test_compiled(form: str, device: Any) -> None:
    """torch.compile captures the same op."""
    torch._dynamo.reset()
    make, ops = FORMS[form]
    module, reference, _ = converted(lambda: Net(make()), device)
    x, names = batch(device), []

    def backend(graph: Any, inputs: Any) -> Any:
        names.extend(str(node.target) for node in graph.graph.nodes if "fastops" in str(node.target))
        return graph

    torch.compile(module, fullgraph=True, backend=backend)(x)
    assert any(ops.split("(")[0] in name for name in names)
    assert_same(torch.compile(module, fullgraph=True, backend="aot_eager"), reference, device)


@each_form
def test_converted_twice(form: str, device: Any) -> None:
    """A second conversion changes nothing."""
    make, _ = FORMS[form]
    module, _, _ = converted(lambda: Net(make()), device)
    kinds = [type(inner) for inner in module.modules()]
    report = fastops.nn.convert(module)
    assert not report.replaced
    assert [type(inner) for inner in module.modules()] == kinds


CHANGES = {
    "a hook": lambda m: m.net[0].register_forward_hook(lambda module, args, output: output + 1),
    "a hook within": lambda m: m.net[0].proj.register_forward_hook(lambda module, args, output: output + 1),
    "a forward": lambda m: setattr(m.net[0], "forward", lambda x: m.net[0].proj(x)[..., :8] * 2),
    "an adapter": lambda m: setattr(m.net[0], "proj", AdapterLinear(6, m.net[0].proj.out_features)),
    "another module": lambda m: m.net.__setitem__(0, nn.Linear(6, 8)),
    "another activation": lambda m: setattr(m.net[0], "gelu", torch.atan),
    "approximate": lambda m: setattr(m.net[0], "approximate", "tanh"),
    "a factor": lambda m: setattr(m.net[0], "factor", 2.0),
    "a learned factor": lambda m: setattr(m.net[0], "factor", torch.full((8,), 3.0).to(m.net[0].proj.weight)),
    "dropout": lambda m: setattr(m.net[1], "p", 0.5),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("form", ["method", "gated", "scaled"])
def test_changes(form: str, change: str, device: Any) -> None:
    """What is changed after the conversion counts."""
    module, reference, _ = converted(lambda: Net(FORMS[form][0]()), device)
    ops_of(module, batch(device))  # so that there are plans
    for each in (module, reference):
        torch.manual_seed(5)
        CHANGES[change](each)
        each.to(device, batch(device).dtype)
    assert_same(module, reference, device)


def test_another_method(monkeypatch: Any, device: Any) -> None:
    """A method that is replaced, or what it calls, is called."""
    module, reference, _ = converted(lambda: Net(Projected()), device)
    ops_of(module, batch(device))
    with monkeypatch.context() as patch:
        patch.setattr(Projected, "gelu", lambda self, gate: gate.atan())
        assert_same(module, reference, device)
        assert ops_of(module, batch(device)) == []
    with monkeypatch.context() as patch:
        patch.setattr(F, "gelu", lambda x, approximate: x.cos())
        assert_same(module, reference, device)
    with monkeypatch.context() as patch:
        patch.setattr(Projected, "forward", lambda self, x: self.proj(x) + 1)
        assert_same(module, reference, device)
    assert ops_of(module, batch(device)) == ["mlp"]


class Class(Projected):
    approximate = "none"  # of the class, where a property could be


class Upcast(Projected):
    def gelu(self, gate: Tensor) -> Tensor:
        if gate.device.type == "mps":
            return F.gelu(gate.to(dtype=torch.float32))  # not rounded back
        return F.gelu(gate)


class Different(Projected):
    def gelu(self, gate: Tensor) -> Tensor:
        if gate.device.type == "mps":
            return F.relu(gate)
        return F.gelu(gate)


class Half(Projected):
    def gelu(self, gate: Tensor) -> Tensor:
        if gate.device.type == "mps":
            return F.gelu(gate.to(torch.float16)).to(gate.dtype)
        return F.gelu(gate)


class More(Projected):
    def gelu(self, gate: Tensor) -> Tensor:
        return F.gelu(gate) + self.proj.bias.sum()


@pytest.mark.parametrize("kind", [Class, Upcast, Different, Half, More], ids=lambda kind: kind.__name__)
def test_other_methods(kind: Any, device: Any) -> None:
    """Methods that are no activation, or not for all devices, are called."""
    module, reference, report = converted(lambda: Net(kind()), device)
    assert_same(module, reference, device)
    assert not report.replaced
    assert ops_of(module, batch(device)) == []
