"""fastops.nn.convert of classes of others, known by what they compute, of methods and of a module's own parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastops
from checks import CalledOps
from convertible import ReluSquared, assert_same, converted, layers, ops_of
from modules import batch, seeded
from sample import close


class Transposed(nn.Linear):
    """As in Falcon."""

    def forward(self, input: Tensor) -> Tensor:
        hidden_states = input @ self.weight.T
        if self.bias is None:
            return hidden_states
        return hidden_states + self.bias


class Own(nn.Module):
    """As in PyTorch Geometric."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / 4)
        self.bias = nn.Parameter(torch.randn(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        r"""With a docstring."""
        return F.linear(x, self.weight, self.bias)


class Methods(Own):
    def forward(self, x):
        y = x.matmul(self.weight.t())
        if self.bias is not None:
            y = y + self.bias
        return y


class Doubled(Own):
    def forward(self, x):
        return F.linear(x, 2 * self.weight, self.bias)


class Twice(Own):
    def forward(self, x):
        return F.linear(x, self.weight, self.bias) + F.linear(x, self.weight, self.bias)


class ByPath(nn.Module):
    def forward(self, x):
        return torch.nn.functional.relu(x) ** 2


LINEARS = [Transposed, Own, Methods]
each_linear = pytest.mark.parametrize("kind", LINEARS)


@each_linear
def test_linear(kind: Any, device: Any) -> None:
    """A class that computes what torch.nn.Linear does, with and without bias."""
    module, reference, report = converted(lambda: layers(kind, nn.GELU()), device)
    assert not report.left
    assert_same(module, reference, device)
    assert ops_of(module, batch(device)) == ["mlp"]


@pytest.mark.parametrize("kind", [Doubled, Twice])
def test_no_linear(kind: Any, device: Any) -> None:
    """What computes something else is called."""
    module, reference, report = converted(lambda: layers(kind, nn.GELU()), device)
    assert not report.replaced
    assert_same(module, reference, device)


@each_linear
@pytest.mark.parametrize("bias", [True, False])
def test_autocast(kind: Any, bias: bool, device: Any) -> None:
    """Where the bias is added by itself, the sum is of the bias's dtype."""
    module, reference, _ = converted(lambda: nn.Sequential(kind(6, 8, bias), nn.ReLU()), device)
    x = batch(device).float()
    with torch.autocast(x.device.type, torch.bfloat16):
        assert module.float()(x).dtype == reference.float()(x).dtype
        assert ops_of(module, x) == ([] if bias and kind is not Own else ["linear_act"])


class ByMethod(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        return self.fc2(self.fc1(x).relu())


class Casting(ByMethod):
    """As in T5."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = torch.relu(x)
        if isinstance(self.fc2.weight, Tensor) and x.dtype != self.fc2.weight.dtype:
            x = x.to(self.fc2.weight.dtype)
        return self.fc2(x)


@pytest.mark.parametrize("make", [Casting, lambda: layers(Transposed, nn.GELU())])
def test_meta(make: Any) -> None:
    """A device that autocast does not have."""
    module = make().to("meta")
    report = fastops.nn.convert(module)
    assert report.replaced
    assert module(torch.empty(3, 6, device="meta")).shape == (3, 6)


@each_linear
def test_hooks(kind: Any, device: Any) -> None:
    """A module of such a class that has hooks is called."""
    module, _, _ = converted(lambda: layers(kind, nn.GELU()), device)
    module[2].register_forward_hook(lambda module, args, output: output + 1)
    x = batch(device)
    close([module(x)], [F.linear(F.gelu(module[0](x)), module[2].weight) + 1])


def test_replaced_functions(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function or a method that was replaced in the meantime is called."""
    module, _, _ = converted(lambda: layers(Own, ReluSquared()), device)
    x = batch(device)
    monkeypatch.setattr(F, "relu", torch.sin)
    close([module(x)], [F.linear(F.linear(x, module[0].weight, module[0].bias).sin() ** 2, module[2].weight)])
    monkeypatch.undo()
    assert ops_of(module, x) == ["mlp"]
    by_path, reference, _ = converted(lambda: layers(nn.Linear, ByPath()), device)
    assert ops_of(by_path, x) == ["mlp"]
    monkeypatch.setattr(F, "relu", torch.sin)
    assert_same(by_path, reference, device)
    monkeypatch.undo()
    block, _, _ = converted(ByMethod, device)
    monkeypatch.setattr(Tensor, "relu", Tensor.sin)
    close([block(x)], [block.fc2(block.fc1(x).sin())])
    monkeypatch.undo()
    monkeypatch.setattr(Own, "forward", lambda self, x: x.sum(-1, keepdim=True).expand(*x.shape[:-1], 8))
    assert ops_of(module, x) == []


class ByMethodInStatements(ByMethod):
    def forward(self, x):
        hidden = self.fc1(x)
        hidden = hidden.tanh()
        hidden = self.fc2(hidden)
        return x + hidden


class Functional(nn.Module):
    """With parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.randn(8, 6) / 4), nn.Parameter(torch.randn(8))
        self.w2 = nn.Parameter(torch.randn(6, 8) / 4)

    def forward(self, x):
        return x + F.linear(F.silu(F.linear(x, self.w1, self.b1)), self.w2)


class FunctionalByKeyword(Functional):
    def forward(self, x):
        return F.linear(input=F.silu(F.linear(x, weight=self.w1, bias=self.b1)), weight=self.w2)


class FunctionalSteps(Functional):
    def forward(self, x):
        x = F.linear(x, weight=self.w1, bias=self.b1).sigmoid()
        return F.linear(x, self.w2, None)


@pytest.mark.parametrize("kind", [ByMethod, ByMethodInStatements, Functional, FunctionalSteps])
def test_methods_and_parameters(kind: Any, device: Any) -> None:
    """Activations as methods of tensors, and products with a module's own parameters."""
    module, reference, report = converted(kind, device)
    assert not report.left
    assert_same(module, reference, device)
    assert ops_of(module, batch(device)) == ["mlp"]
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    close([compiled(batch(device))], [reference(batch(device))])


def test_subclass_of_tensor(device: Any) -> None:
    """A tensor's own method is called."""

    class Odd(Tensor):
        def relu(self):
            return self * 7

    module, reference, _ = converted(ByMethod, device)
    x = batch(device).as_subclass(Odd)
    close([module(x).as_subclass(Tensor)], [reference(x).as_subclass(Tensor)])


class Experts(nn.Module):
    """As in Mixtral."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.randn(3, 16, 6) / 4)
        self.down = nn.Parameter(torch.randn(3, 6, 8) / 4)

    def forward(self, x, chosen):
        for index in chosen:
            gate, up = F.linear(x, self.gate_up[index]).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, self.down[index])
        return x


def test_report(device: Any) -> None:
    """Modules that call products and activations by name are in the report."""
    report = fastops.nn.convert(seeded(lambda: nn.ModuleList([Experts(), FunctionalByKeyword()]), device))
    assert [(row.name, row.reason) for row in report.left] == [
        ("0", "its forward takes more than one tensor"),
        ("1", "its forward has `F.linear(input=F.silu(F.linear(x, weight=self.w1, bias=self.b1)), weight=self...`"),
    ]
    with CalledOps() as called:
        report.model[1](batch(device))
    assert called.names == []


def test_made_by_exec(device: Any) -> None:
    """Classes without a module and a source."""
    names: dict[str, Any] = {"nn": nn, "Block": ByMethod}
    exec("class Act(nn.Module):\n def forward(self, x): return x.relu() ** 2", names)
    exec("class Made(Block):\n def forward(self, x): return self.fc2(self.fc1(x).relu())", names)
    module = seeded(lambda: nn.Sequential(names["Made"](), names["Act"](), nn.Linear(6, 2)), device)
    report = fastops.nn.convert(module)
    assert [row.reason for row in report.left] == ["the source of its forward is not available"]


def feed_forward() -> nn.Sequential:
    """As in x-transformers."""
    return nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.GELU()), nn.Identity(), nn.Dropout(0.2), nn.Linear(8, 6))


class Blocks(nn.Module):
    """As in rtdl."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Dropout(0.1)) for _ in range(2))
        self.output = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        if self.output is not None:
            x = self.output(x)
        return x


# What the report says; where one op computes all of a module, it may be `sequential`.
NESTED: dict[Any, tuple[str, str]] = {
    feed_forward: ("mlp(0.0, 0.1, 3)", "sequential"),
    Blocks: ("mlp(blocks[0].0, blocks[0].1, blocks[1].0, blocks[1].1, output)", "mlp"),
}


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("make", NESTED)
def test_nested(make: Any, training: bool, device: Any) -> None:
    """Layers within a Sequential within the module, which is not converted by itself, the second time neither."""
    module, reference, report = converted(lambda: make().train(training), device)
    said, op = NESTED[make]
    assert [(row.name, row.ops) for row in report.replaced] == [("", said)]
    assert not fastops.nn.convert(module).replaced
    assert_same(module, reference, device)
    assert ops_of(module.eval(), batch(device)) == [op]


def test_nested_changes(device: Any) -> None:
    """A Sequential within that has hooks, or is another module, is called."""
    module, reference, _ = converted(feed_forward, device)
    for each in (module, reference):
        each.eval()[0].register_forward_hook(lambda module, args, output: output + 1)
    assert_same(module, reference, device)
    module[0] = reference[0] = nn.Tanh()
    module[3] = reference[3] = nn.Identity()
    assert_same(module, reference, device)


def test_no_gain_in_nesting(device: Any) -> None:
    """What is within one Sequential is that one's."""
    _, _, report = converted(lambda: nn.Sequential(feed_forward(), nn.BatchNorm1d(6), feed_forward()), device)
    assert [row.name for row in report.replaced] == ["0", "2"]
