"""Gated units within a forward that does more, and the experts of mixtures: loops over slices of parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convertible import Block, assert_same, converted, ops_of
from modules import batch
from zoo import MIXTURES


class Residual(Block):
    def forward(self, x, scale=1.0):
        return x + scale * self.down(F.silu(self.gate(x)) * self.up(x))


class UpFirst(Block):
    def forward(self, x, scale=1.0):
        hidden = self.up(x) * F.gelu(self.gate(x), approximate="tanh")
        hidden = self.drop(hidden)
        hidden = self.down(hidden)
        return x + scale * hidden


class Halves(Block):
    def forward(self, x, scale=1.0):
        a, b = self.both(x).chunk(2, dim=-1)
        hidden = self.down(self.act(a) * b)
        return x + scale * hidden


class HalvesInStatements(Block):
    def forward(self, x, scale=1.0):
        for _ in range(2):
            both = self.both(x)
            a, b = both.chunk(2, dim=-1)
            hidden = a * self.act(b)
            hidden = self.down(hidden)
            x = x + scale * hidden
        return x


FORMS = {
    Residual: "gated_mlp(gate, silu, up, down)",
    UpFirst: "gated_mlp(gate, gelu, up, down)",
    Halves: "gated_mlp(both, act, down)",
    HalvesInStatements: "gated_mlp(both, act, down)",
}


@pytest.mark.parametrize("form", FORMS)
def test_within_more(form: Any, device: Any) -> None:
    """A gated unit with the layer behind it is one op, also where a method does more; hooks of its parts are called."""
    model, reference, report = converted(lambda: form().requires_grad_(False).eval(), device)
    assert [row.ops for row in report.replaced] == [FORMS[form]]
    for each in (model, reference):
        for layer in (each.both, each.down, each.gate, each.up):
            layer.weight.requires_grad_(layer in ([each.both] if "Halves" in form.__name__ else [each.gate, each.up]))
    assert_same(model, reference, device)
    assert set(ops_of(model, batch(device))) == {"gated_mlp"}
    for each in (model, reference):
        each.down.register_forward_pre_hook(lambda module, args: (args[0] * 3,))
    assert_same(model, reference, device)
    assert "gated_mlp" not in ops_of(model, batch(device))


class ReadTwice(Block):
    def forward(self, x, scale=1.0):
        a, b = self.both(x).chunk(2, dim=-1)
        hidden = self.act(a) * b
        hidden = self.down(hidden)
        return x + scale * hidden + a.sum()


class OtherInput(Block):
    def forward(self, x, scale=1.0):
        y = x + scale
        return x + self.down(F.silu(self.gate(x)) * self.up(y))


class SumOfHalves(Block):
    def forward(self, x, scale=1.0):
        a, b = self.both(x).chunk(2, dim=-1)
        return x + scale * self.down(self.act(a) + b)


class ReadsItsResult(Block):
    def forward(self, x, scale=1.0):
        x = self.up(x)
        x = F.silu(x)
        x = self.down(x)
        x = torch.mul(x, x)
        return x * scale


def test_other_argument(device: Any) -> None:
    """A function's other arguments are the values that they are when it is called."""
    model, reference, report = converted(lambda: ReadsItsResult().requires_grad_(False), device)
    assert [row.ops for row in report.replaced] == ["mlp(up, silu, down)"]
    assert_same(model, reference, device)


@pytest.mark.parametrize("form", [ReadTwice, OtherInput, SumOfHalves])
def test_not_gated(form: Any, device: Any) -> None:
    """What only looks like a gated unit is left."""
    model, reference, report = converted(lambda: form().requires_grad_(False).eval(), device)
    assert not report.replaced
    assert [row.name for row in report.left] == [""]
    assert_same(model, reference, device)


def experts(kind: Any, config: Any, implementation: str = "eager") -> nn.Module:
    sizes = {"hidden_size": 6, "intermediate_size": 10, "moe_intermediate_size": 10, "num_experts_per_tok": 2}
    made = config(**sizes, num_experts=3, num_local_experts=3, shared_expert_intermediate_size=8)
    made._experts_implementation = implementation
    block: nn.Module = kind(made)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)

    class Outermost(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.block(x.unsqueeze(0))
            return output.squeeze(0)

    return Outermost()


@pytest.mark.parametrize(("kind", "config"), MIXTURES)
def test_experts(kind: Any, config: Any, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each expert of the loop is one op, with slices of the parameters; a product that is replaced is called."""
    model, reference, report = converted(lambda: experts(kind, config), device)
    assert "gated_mlp(linear, act_fn, linear)" in [row.ops for row in report.replaced]
    assert_same(model, reference, device)
    assert ops_of(model, batch(device)).count("gated_mlp") >= 3
    calls = []
    linear = F.linear

    def counted(*arguments: Any, **keywords: Any) -> Tensor:
        calls.append(1)
        return linear(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(F, "linear", counted)
        assert_same(model, reference, device)
        by_both = len(calls)
        reference(batch(device))
        assert by_both == 2 * (len(calls) - by_both)


def test_experts_at_once(device: Any) -> None:
    """The report names the implementation that is called in the place of the loop."""
    model, reference, report = converted(lambda: experts(*MIXTURES[0], "batched_mm"), device)
    [row] = [row for row in report.left if row.name == "block.experts"]
    assert "batched_mm" in row.reason
    assert_same(model, reference, device)


def test_slices_of_another_class(device: Any) -> None:
    """A parameter whose slices are no plain tensors is multiplied as before."""

    class Odd(Tensor):
        pass

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w2 = nn.Parameter(torch.randn(2, 16, 6)), nn.Parameter(torch.randn(2, 6, 8))

        def forward(self, x, scale=1.0):
            for i in range(2):
                a, b = F.linear(x, self.w1[i]).chunk(2, dim=-1)
                hidden = F.silu(a) * b
                hidden = F.linear(hidden, self.w2[i])
                x = x + hidden
            return x * scale

    model, reference, report = converted(Loop, device)
    assert report.replaced
    assert_same(model, reference, device)
    assert ops_of(model, batch(device)) == ["gated_mlp", "gated_mlp"]
    for each in (model, reference):
        each.w1 = nn.Parameter(each.w1.detach().as_subclass(Odd))
    assert ops_of(model, batch(device)) == []
    assert type(model(batch(device))) is type(reference(batch(device)))
