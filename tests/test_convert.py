"""fastops.nn.convert itself: what it replaces, what it leaves and why, and that nothing else about a model changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastops
from convertible import (
    AdapterLinear,
    Block,
    Chain,
    CustomActivation,
    Gated,
    Packed,
    assert_same,
    converted,
    mixed,
    ops_of,
    two_layers,
)
from modules import batch, seeded
from sample import close


class Functions(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.up(x), approximate="tanh")
        x = nn.functional.dropout(x, p=self.p, training=self.training)
        return torch.tanh(self.down(x))


class FunctionAttribute(Block):
    def forward(self, x):
        return self.down(self.function(self.up(x)))


class Norm(Block):
    def forward(self, x):
        return self.down(self.norm(self.act(self.up(x))))


class GatedNorm(Block):
    def forward(self, x):
        return self.down(self.drop(self.norm(self.act(self.gate(x)) * self.up(x))))


class PackedIndexed(Block):
    def forward(self, x):
        halves = self.both(x).chunk(2, -1)
        return self.down(F.sigmoid(halves[1]) * halves[0])


FORMS = {
    Chain: ("mlp(up, act, down)", ["mlp"]),
    Functions: ("mlp(up, F.gelu, down, torch.tanh)", ["mlp"]),
    FunctionAttribute: ("mlp(up, function, down)", ["mlp"]),
    Norm: ("sequential(up, act, norm, down)", ["sequential"]),
    Gated: ("gated_mlp(gate, act, up, down)", ["gated_mlp"]),
    GatedNorm: ("act_mul(gate, act, up)", ["act_mul"]),
    Packed: ("gated_mlp(both, act, down)", ["gated_mlp"]),
    PackedIndexed: ("gated_mlp(both, F.sigmoid, down)", ["gated_mlp"]),
}


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("form", FORMS)
def test_form(form: type[Block], training: bool, device: Any) -> None:
    """Blocks are recognized by what their forward does; parameters that it does not use do not matter."""
    block, reference, report = converted(lambda: form().requires_grad_(False), device)
    [row] = report.replaced
    assert (row.name, row.module, row.original, row.ops) == ("", block, form, FORMS[form][0])
    assert isinstance(block, form)
    assert_same(block.train(training), reference.train(training), device)
    assert ops_of(block.eval(), batch(device)) == FORMS[form][1]


class Residual(Block):
    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Branch(Block):
    def forward(self, x):
        if x.dim() > 1:
            x = self.act(self.up(x))
        return self.down(x)


class Extra(Block):
    def forward(self, x):
        self.function(x)
        hidden = self.gate(x)  # noqa: F841
        return self.down(self.act(self.up(x)))


class Unused(Block):
    def forward(self, x):
        hidden = self.gate(x)  # noqa: F841
        return self.down(self.act(self.up(x)))


class Twice(Block):
    def forward(self, x):
        hidden = self.up(x)
        return self.down(self.act(hidden) * hidden)


class OneHalf(Block):
    def forward(self, x):
        a, _ = self.both(x).chunk(2, dim=-1)
        return self.down(self.act(a))


class OtherDimension(Block):
    def forward(self, x):
        a, b = self.both(x).chunk(2, dim=0)
        return self.down(self.act(a) * b)


class Missing(Block):
    def forward(self, x):
        return self.down(self.act(self.missing(x)))


class Arguments(Block):
    def forward(self, x, scale=1.0):
        return self.down(self.act(self.up(x)))


@pytest.mark.parametrize("form", [Residual, Extra, Unused, Arguments])
def test_more_than_layers(form: type[Block], device: Any) -> None:
    """What else a forward does, it does as before, also where nobody needs it."""
    block, reference, report = converted(lambda: form().requires_grad_(False), device)
    assert report.replaced[0].ops == "mlp(up, act, down)"
    assert_same(block, reference, device)
    assert ops_of(block, batch(device)) == ["mlp"]


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (Branch, "its forward has `if x.dim() > 1:`"),
        (Twice, "its forward has `return self.down(self.act(hidden) * hidden)`"),
        (OneHalf, "its forward has `return self.down(self.act(a))`"),
        (OtherDimension, "its forward has `self.both(x).chunk(2, dim=0)`"),
        (Missing, "its forward needs what it does not have: 'Missing' object has no attribute 'missing'"),
    ],
)
def test_other_forms_are_left(form: type[Block], reason: str, device: Any) -> None:
    """A forward that does anything else is left, with the line that is more."""
    block, _, report = converted(form, device)
    assert type(block) is form
    assert not report.replaced
    assert [(row.name, row.module, row.reason) for row in report.left] == [("", block, reason)]


class CustomSequential(nn.Sequential):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return scale * super().forward(x)


def hooked(position: int) -> nn.Sequential:
    model = two_layers()
    model[position].register_forward_hook(lambda module, args, output: output + 1)
    return model


def with_own_forward() -> nn.Sequential:
    model = two_layers()
    model.forward = lambda x: x  # type: ignore[method-assign]
    return model


def compiled_in_place() -> nn.Sequential:
    model = two_layers()
    model.compile()
    return model


LEFT = {
    "activation": (lambda: nn.Sequential(nn.Linear(6, 6), CustomActivation()), "which is not an activation"),
    "PReLU": (lambda: nn.Sequential(nn.Linear(6, 6), nn.PReLU()), "1, after a linear layer, is a torch.nn.modules"),
    "norm": (lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU()), "BatchNorm1d, which is not an"),
    "subclass": (lambda: nn.Sequential(AdapterLinear(6, 6), nn.ReLU()), "AdapterLinear, not a torch.nn.Linear"),
    "hooks": (lambda: hooked(0), "0 has hooks"),
    "hooked activation": (lambda: hooked(1), "1 has hooks"),
    "dtype": (
        lambda: nn.Sequential(nn.Linear(6, 6, dtype=torch.complex64), nn.ReLU()),
        "that is no plain tensor",
    ),
    "Sequential": (lambda: CustomSequential(nn.Linear(6, 6), nn.ReLU()), "its forward has `scale`"),
    "forward": (with_own_forward, "the module has a forward of its own"),
    "script": (lambda: torch.jit.script(two_layers()), "it is compiled already"),
    "compile": (lambda: torch.compile(two_layers()), "it is compiled already"),
    "compile in place": (compiled_in_place, "it is compiled already"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", LEFT)
def test_left(kind: str) -> None:
    """What cannot be fused is left, with the reason."""
    make, reason = LEFT[kind]
    model = nn.ModuleDict({"block": make(), "other": nn.Linear(3, 3)})
    model["again"] = model["block"]
    report = fastops.nn.convert(model)
    assert not report.replaced
    [row] = report.left
    assert row.name == "block"
    assert row.module is model["block"]
    assert reason in row.reason


def test_nothing_to_gain() -> None:
    """Linear layers without an activation are not mentioned."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.Dropout()), nn.Conv2d(3, 3, 1), nn.ReLU())
    report = fastops.nn.convert(model)
    assert not report.replaced
    assert [row.name for row in report.left] == [""]  # Linear, Sequential


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_sequential(training: bool, device: Any) -> None:
    """Runs within a Sequential; indexing, iteration, slices, length and names are as they were."""
    model, reference, report = converted(mixed, device)
    assert report.replaced[0].ops == "mlp(1, 2, 3, 4, 6), mlp(8, 9, 10)"
    assert_same(model.train(training), reference.train(training), device)
    assert isinstance(model, nn.Sequential)
    assert len(model) == len(reference)
    assert [type(layer) for layer in model] == [type(layer) for layer in reference]
    assert type(model[9]) is nn.Softshrink
    assert list(model.state_dict()) == list(reference.state_dict())
    reference.load_state_dict(model.state_dict())
    part = batch(device, 7, 5)
    close([model[8:10](part)], [reference[8:10](part)])
    assert ops_of(model, batch(device)) == ["mlp"] * (3 if training else 2)  # the layer after a dropout, too


def test_activations_in_turn(device: Any) -> None:
    """A run goes on as long as its hidden layers have one activation."""
    activations = [
        nn.ReLU(),
        nn.ReLU(),
        nn.Tanh(),
        nn.SiLU(),
        nn.Hardtanh(-1.0, 0.5),
        nn.Hardtanh(-0.5, 1.0),
        nn.Tanh(),
    ]
    layers = [layer for activation in activations for layer in (nn.Linear(6, 6), activation)]
    model, reference, report = converted(lambda: nn.Sequential(*layers, nn.Linear(6, 6)), device)
    assert report.replaced[0].ops == "mlp(0, 1, 2, 3, 4, 5), mlp(6, 7, 8, 9), mlp(10, 11, 12, 13)"
    assert_same(model, reference, device)


def test_dropout(device: Any) -> None:
    """A dropout between two layers is called while it is on, and only then; each layer is an op nevertheless."""
    make = lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 6))  # noqa: E731
    model, reference, _ = converted(make, device)
    assert ops_of(model.train(), batch(device)) == ["mlp", "mlp"]
    assert_same(model, reference.train(), device)
    assert ops_of(model.eval(), batch(device)) == ["mlp"]


def test_nothing_is_lost(device: Any) -> None:
    """Modules, parameters, hooks, flags and attributes stay, also of a module that is used in two places."""
    shared = seeded(two_layers, device)
    shared[0].weight.requires_grad_(False)
    shared.note = "mine"
    calls = []
    shared.register_forward_hook(lambda *_: calls.append("forward"))
    model = nn.ModuleDict({"one": shared, "two": nn.ModuleList([shared, nn.Sequential(nn.Linear(6, 6), nn.ReLU())])})
    model.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = (list(model.modules()), list(model.named_parameters()), list(model.state_dict()))
    report = fastops.nn.convert(model)
    assert [row.name for row in report.replaced] == ["one", "two.1"]
    assert model["one"] is model["two"][0] is shared
    for old, new in zip(before[0], model.modules(), strict=True):
        assert old is new
    for (name, old), (new_name, new) in zip(before[1], model.named_parameters(), strict=True):
        assert (name, old.requires_grad) == (new_name, new.requires_grad)
        assert old is new
    assert before[2] == list(model.state_dict())
    assert shared.note == "mine"
    assert not any(module.training for module in model.modules())
    weight = shared[2].weight.detach().clone()
    shared(batch(device)).sum().backward()
    assert calls == ["forward"]
    optimizer.step()
    assert not torch.equal(shared[2].weight, weight)


def test_twice_and_back(device: Any) -> None:
    """Converting again does nothing; reverting gives the original classes back."""
    model, reference, report = converted(lambda: nn.Sequential(mixed(), Chain()), device)
    again = fastops.nn.convert(model)
    assert not again.replaced
    assert not again.left
    again.revert()
    assert ops_of(model.eval(), batch(device)) == ["mlp", "mlp", "mlp"]
    report.revert()
    assert [type(module) for module in model.modules()] == [type(module) for module in reference.modules()]
    for mine, original in zip(model.modules(), reference.modules(), strict=True):
        assert vars(mine).keys() == vars(original).keys()
    assert not ops_of(model, batch(device))
    report.revert()


def test_revert_after_another_change_of_class(device: Any) -> None:
    """What others made of a converted module is not undone."""
    model, _, report = converted(two_layers, device)
    model.__class__ = type("Sharded", (type(model),), {})
    with pytest.raises(RuntimeError, match=r"cannot revert '', whose class was changed to Sharded"):
        report.revert()


def test_report() -> None:
    """The table has a line for each kind of block, with its name, class and ops, or the reason."""
    layers = [nn.ModuleDict({"mlp": two_layers(), "other": hooked(0)}) for _ in range(3)]
    report = fastops.nn.convert(nn.Sequential(*layers, nn.Sequential(nn.Linear(6, 6), nn.Tanh())))
    assert str(report).splitlines() == [
        "replaced: 4",
        "  *.mlp (3 times)  Sequential  mlp(0, 1, 2)",
        "  3                Sequential  linear_act(0, 1)",
        "left: 3",
        "  *.other (3 times)  Sequential  0 has hooks or a forward of its own",
    ]
    assert str(fastops.nn.convert(nn.Sequential(nn.Linear(6, 6), nn.Tanh()))).splitlines()[1].split()[:2] == [
        "(the",
        "model)",
    ]


def test_model_must_be_a_module() -> None:
    """Anything else is an error that says what it is."""
    with pytest.raises(TypeError, match=r"fastops\.nn\.convert: model must be a torch\.nn\.Module, but is a list"):
        fastops.nn.convert([nn.Linear(3, 3)])
