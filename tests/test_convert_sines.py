"""fastops.nn.convert on activations with numbers of their module, and numbers that layers' outputs are multiplied with.

As in networks of sines: Sitzmann et al., Implicit Neural Representations with Periodic Activation Functions, 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convertible import assert_same, converted, ops_of
from modules import batch
from sample import close


class Sine(nn.Module):
    def __init__(self, omega: Any = 3.0) -> None:
        super().__init__()
        self.omega = omega

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.omega * x)


class Swish(nn.Module):
    def __init__(self, beta: float) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.beta * x)


class Layer(nn.Module):
    """What the forms below have."""

    def __init__(self, inputs: int = 6, outputs: int = 8, omega: Any = 3.0) -> None:
        super().__init__()
        self.linear, self.omega = nn.Linear(inputs, outputs), omega


class First(Layer):
    def forward(self, x):
        return torch.sin(self.omega * self.linear(x))


class Last(Layer):
    def forward(self, x):
        x = self.linear(x) * self.omega
        return x.sin()


class Number(Layer):
    def forward(self, x):
        return torch.sin(-2.5 * self.linear(x))


class Twice(Layer):
    def forward(self, x):
        return torch.sin(2 * (self.linear(x) * self.omega))


class WithModule(Layer):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.sine = Sine(0.5)

    def forward(self, x):
        return self.sine(self.omega * self.linear(x))


class Functional(nn.Module):
    """With a weight of its own."""

    def __init__(self, inputs: int = 6, outputs: int = 8, has_bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / 2)
        self.bias = nn.Parameter(torch.randn(outputs)) if has_bias else None
        self.activation, self.dropout = Sine(2), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight, self.bias)
        out = self.activation(out)
        return self.dropout(out)


class WithoutBias(Functional):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes, has_bias=False)


class Loop(nn.Module):
    """Layers of the above, and another number for the first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([First(6, 8, 5.0), First(8, 8), First(8, 6)])

    def forward(self, x, shift=None):
        for layer in self.layers:
            x = layer(x)
        return x


FORMS = [First, Last, Number, WithModule, Functional, WithoutBias]


@pytest.mark.parametrize("form", FORMS)
def test_layer(form: Callable[..., nn.Module], device: Any) -> None:
    """A layer is one op, and layers in a Sequential are one."""
    model, reference, _ = converted(form, device)
    assert_same(model, reference, device)
    assert len(ops_of(model.eval(), batch(device))) == 1

    def network() -> nn.Sequential:
        return nn.Sequential(form(6, 8), form(8, 8), nn.Linear(8, 6)).eval()

    model, reference, report = converted(network, device)
    assert_same(model, reference, device)
    assert ops_of(model, batch(device)) == ["mlp"]
    assert not report.left


def test_loop(device: Any) -> None:
    """Layers in a loop, with numbers of their own."""
    model, reference, report = converted(Loop, device)
    assert report.replaced[0].module is model
    assert_same(model, reference, device)
    assert ops_of(model, batch(device)) == ["mlp", "mlp"]
    close([model(batch(device), shift=1)], [reference(batch(device))])


def test_report(device: Any) -> None:
    """The report names the number."""
    for form, expected in ((First, "omega, torch.sin"), (Last, "omega, sin"), (Number, "-2.5, torch.sin")):
        _, _, report = converted(form, device)
        assert report.replaced[0].ops == f"linear_act(linear, {expected})"


def test_activation_of_another_name(device: Any) -> None:
    """The module's number decides which activation it is, if any."""

    def network() -> nn.Sequential:
        return nn.Sequential(nn.Linear(6, 8), Swish(1.702), nn.Linear(8, 8), Swish(1), nn.Linear(8, 6), Swish(3.0))

    model, reference, _ = converted(network, device)
    assert_same(model, reference, device)
    assert ops_of(model, batch(device)) == ["mlp", "mlp"]
    for each in (model, reference):
        each[3].beta, each[5].beta = 1.702, 1.702
    assert_same(model, reference, device)
    assert ops_of(model, batch(device)) == ["mlp"]


def test_other_products(device: Any) -> None:
    """Numbers and tensors before other functions, and several before a sine, are multiplied as they are."""

    class Halved(Layer):
        def forward(self, x):
            return torch.tanh(0.5 * self.linear(x))

    class ByTensor(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.omega = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            x = torch.relu(self.linear(x))
            return torch.sin(self.omega * x)

    for form, ops in ((Halved, []), (ByTensor, ["mlp"]), (Twice, [])):
        model, reference, _ = converted(form, device)
        assert_same(model, reference, device)
        assert ops_of(model, batch(device)) == ops, form


class InPlace(nn.Module):
    """A product that keeps an activation from writing to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.relu = 1.0, nn.ReLU(inplace=True)
        self.fc1, self.act, self.fc2 = nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(self.relu(x * self.scale))))


@pytest.mark.parametrize("kind", ["hooked", "compiled", "exported"])
def test_product_with_one(kind: str, device: Any) -> None:
    """It makes a new tensor, also where the layers are looked at one by one."""
    model, reference, _ = converted(InPlace, device)
    x = batch(device)
    expected, before = reference(x), x.clone()
    call: Any = model
    if kind == "hooked":
        model.fc1.register_forward_hook(lambda module, args, output: None)
    elif kind == "compiled":
        call = torch.compile(model, backend="eager")
    else:
        call = torch.export.export(model, (x.clone(),)).module()
    close([call(x), x], [expected, before])


class Frequencies(nn.Module):
    """The numbers of both kinds, to be changed."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(First(6, 8), nn.Linear(8, 8), Sine(3.0), nn.Linear(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@pytest.mark.parametrize("place", [0, 2], ids=["layer", "module"])
@pytest.mark.parametrize(
    ("value", "ops"),
    [(4.0, 1), (1, 1), (0.0, 1), (-3, 1), (True, None), (torch.tensor(2.0, dtype=torch.float64), None)],
    ids=["another", "one", "zero", "negative", "bool", "tensor"],
)
def test_change_of_number(place: int, value: Any, ops: int | None, device: Any) -> None:
    """A number that changes counts in the next call; so does what is none."""
    model, reference, _ = converted(Frequencies, device)
    for each in (model, reference):
        each.net[place].omega = value.to(device) if isinstance(value, Tensor) else value
    assert_same(model, reference, device)
    assert ("mlp" in ops_of(model, batch(device))) or ops is None
    for each in (model, reference):
        each.net[place].omega = 3.0
    assert_same(model, reference, device)
    assert ops_of(model, batch(device)) == ["mlp"]


def test_missing_number(device: Any) -> None:
    """A number that is no longer there is the original's error."""
    for place in (0, 2):
        model, _, _ = converted(Frequencies, device)
        del model.net[place].omega
        with pytest.raises(AttributeError, match="omega"):
            model(batch(device))


def test_number_of_class(device: Any) -> None:
    """What the class says, a property or a number of it, is the module's to look up."""

    class OfClass(Sine):
        omega: ClassVar[float] = 2.0  # type: ignore[misc]

        def __init__(self) -> None:
            nn.Module.__init__(self)

    class Property(OfClass):
        @property
        def omega(self) -> float:  # type: ignore[override]
            return 4.0

    for kind in (OfClass, Property):
        model, reference, _ = converted(lambda kind=kind: nn.Sequential(nn.Linear(6, 8), kind()), device)
        assert_same(model, reference, device)
        assert ops_of(model, batch(device)) == []


def test_replaced(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks, and what somebody puts in the place of torch.sin or of the forward, are called."""
    model, reference, _ = converted(Frequencies, device)
    for each in (model, reference):
        handle = each.net[2].register_forward_hook(lambda module, args, output: output + 1)
    assert_same(model, reference, device)
    for each in (model, reference):
        each.net[2]._forward_hooks.clear()
    assert handle is not None
    assert ops_of(model, batch(device)) == ["mlp"]
    with monkeypatch.context() as patch:
        patch.setattr(torch, "sin", torch.cos)
        assert_same(model, reference, device)
        assert "mlp" not in ops_of(model, batch(device))
    with monkeypatch.context() as patch:
        patch.setattr(Sine, "forward", lambda self, x: x + self.omega)
        assert_same(model, reference, device)
    assert ops_of(model, batch(device)) == ["mlp"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_capture(device: Any) -> None:
    """torch.compile, torch.export and torch.jit.trace capture the fused op."""
    model, reference, _ = converted(Frequencies, device)
    x = batch(device)
    expected = reference(x)
    close([torch.compile(model, fullgraph=True, backend="aot_eager")(x)], [expected])
    exported = torch.export.export(model, (x,))
    assert any("fastops.mlp" in str(node.target) for node in exported.graph.nodes)
    close([exported.module()(x)], [expected])
    with torch.no_grad():
        traced = torch.jit.trace(model, x)
    assert "fastops::" in str(traced.inlined_graph)
    close([traced(x)], [expected])
