"""A plan is kept for layers of the same kinds: what is with one module must not count for another, nor be forgotten."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from convertible import Packed, assert_same, converted, ops_of
from modules import batch


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Dropout(0.4), nn.Linear(8, 6), nn.Identity())


@pytest.mark.parametrize("position", range(5))
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_hook_of_one_of_many(position: int, training: bool, device: Any) -> None:
    """A hook is called that another module with layers of the same classes does not have, and back."""
    plain, expected, _ = converted(layers, device)
    hooked, reference, _ = converted(layers, device)
    for model in (plain, expected, hooked, reference):
        model.train(training)
    for _ in range(2):
        assert_same(plain, expected, device)
        handles = [
            model[position].register_forward_hook(lambda module, args, output: output * 2)
            for model in (hooked, reference)
        ]
        assert_same(hooked, reference, device)
        for handle in handles:
            handle.remove()
        assert_same(hooked, reference, device)
        assert ops_of(hooked, batch(device)) == ops_of(plain, batch(device)) != []


def test_numbers_of_one_of_many(device: Any) -> None:
    """The numbers and the flags are those of the module that is called."""
    model, reference, _ = converted(layers, device)
    for slope, p in ((0.2, 0.4), (0.7, 0.0), (-0.5, 0.9)):
        for each in (model, reference):
            each[1].negative_slope, each[2].p = slope, p
        assert_same(model, reference, device)
        assert ops_of(model, batch(device)) == (["mlp", "mlp"] if p else ["mlp"])


def test_first_is_hooked(device: Any) -> None:
    """Where the first module of its kind has a hook, the next one is planned without it."""

    class OnlyHere(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    def own() -> nn.Sequential:
        return nn.Sequential(nn.Linear(6, 8), nn.ELU(), nn.Linear(8, 6), OnlyHere())

    hooked, _, _ = converted(own, device)
    hooked[0].register_forward_pre_hook(lambda module, args: None)
    hooked(batch(device))
    assert ops_of(hooked, batch(device)) == []
    model, reference, _ = converted(own, device)
    assert_same(model, reference, device)
    assert ops_of(model, batch(device)) == ["mlp"]


@pytest.mark.parametrize("gate_last", [False, True])
def test_packed(gate_last: bool, device: Any) -> None:
    """Both halves come from one layer, whose gradient is that of both; an odd number of features is PyTorch's error."""

    def make() -> Packed:
        block = Packed()
        block.gate_last = gate_last
        return block

    model, reference, _ = converted(lambda: make().requires_grad_(False), device)
    for each in (model, reference):
        for layer in (each.both, each.down):
            layer.requires_grad_()
    assert_same(model, reference, device)
    assert ops_of(model, batch(device)) == ["gated_mlp"]
    for each in (model, reference):
        each.both = nn.Linear(6, 15).to(device, torch.float64)
    with pytest.raises(Exception) as expected:
        reference(batch(device))
    with pytest.raises(type(expected.value)) as found:
        model(batch(device))
    assert str(found.value) == str(expected.value)


class PackedWithDropout(Packed):
    def forward(self, x: Tensor) -> Tensor:
        a, b = self.both(x).chunk(2, dim=-1)
        return self.down(self.drop(self.function(a) * b))


class PackedWithIdentity(Packed):
    """As timm's GluMlp without a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.both(x).chunk(2, dim=-1)
        return self.down(self.norm(self.drop(self.act(b) * a)))


@pytest.mark.parametrize("name", ["both", "act", "drop", "down"])
@pytest.mark.parametrize("make", [Packed, PackedWithDropout, PackedWithIdentity])
def test_packed_with_hook(make: type[Packed], name: str, device: Any) -> None:
    """The op looks at each layer of a block with both halves in one, in each call: hooks, dropouts that are on."""
    model, reference, _ = converted(lambda: make().requires_grad_(False), device)
    for training in (False, True, False):
        for each in (model, reference):
            each.train(training)
            for layer in (each.both, each.down):
                layer.requires_grad_()
        assert_same(model, reference, device)
        is_on = training and make is not Packed
        assert ops_of(model, batch(device)) == (["gated_act"] if is_on else ["gated_mlp"])
        handles = [
            each.get_submodule(name).register_forward_hook(lambda module, args, output: output * 2)
            for each in (model, reference)
        ]
        assert_same(model, reference, device)
        is_used = not ((name == "act" and make is PackedWithDropout) or (name == "drop" and make is Packed))
        assert ("gated_mlp" in ops_of(model, batch(device))) == (not is_used and not is_on)
        for handle in handles:
            handle.remove()


def test_packed_of_function(device: Any) -> None:
    """What somebody put in the place of the function of a kept plan is called."""
    model, reference, _ = converted(lambda: PackedWithDropout().eval(), device)
    assert ops_of(model, batch(device)) == ["gated_mlp"]
    for each in (model, reference):
        each.function = torch.atan
    torch.testing.assert_close(model(batch(device)), reference(batch(device)))
    assert ops_of(model, batch(device)) == []
    for each in (model, reference):
        each.function = torch.relu
    torch.testing.assert_close(model(batch(device)), reference(batch(device)))
    assert ops_of(model, batch(device)) == ["gated_mlp"]


@pytest.mark.parametrize("bias", [None, torch.ones(1), torch.ones(3)], ids=["none", "one", "three"])
def test_packed_with_bias_of_another_size(bias: Tensor | None, device: Any) -> None:
    """A bias that is not that of two halves is PyTorch's: its result, or its error."""
    model, reference, _ = converted(Packed, device)
    x = batch(device)
    assert ops_of(model, x) == ["gated_mlp"]
    for each in (model, reference):
        each.both.bias = None if bias is None else nn.Parameter(bias.to(device, torch.float64))
    if bias is None or len(bias) == 1:
        torch.testing.assert_close(model(x), reference(x))
        return
    with pytest.raises(RuntimeError) as expected:
        reference(x)
    with pytest.raises(RuntimeError) as found:
        model(x)
    assert str(found.value) == str(expected.value)
