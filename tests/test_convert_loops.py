"""fastops.nn.convert of modules whose forward loops over lists of layers, and asks for what is known before a call."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fastops
from convertible import AdapterLinear, assert_same, converted, ops_of
from modules import batch


class Layers(nn.Module):
    """Layers for the loops below."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        sizes = [6, *[8] * (depth - 1), 6]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.acts = nn.ModuleList(nn.SiLU() for _ in range(depth - 1))
        self.num_layers, self.act, self.before, self.after = depth, nn.Tanh(), None, nn.ELU()


class Guarded(Layers):
    """As in DETR and Segment Anything."""

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(x)) if i < self.num_layers - 1 else layer(x)
        return x


class LastOne(Layers):
    """As in DeepXDE."""

    def forward(self, inputs):
        x = inputs
        if self.before is not None:
            x = self.before(x)
        for linear in self.layers[:-1]:
            x = self.act(linear(x))
        x = self.layers[-1](x)
        if self.after is not None:
            x = self.after(x)
        return x


class Counted(Layers):
    def forward(self, x):
        for i in range(len(self.layers)):
            x = self.layers[i](x)
            if i != len(self.layers) - 1:
                x = self.acts[i](x)
        return x


FORMS = {
    Guarded: ("mlp(layers[0], F.relu, layers[1], F.relu, layers[2])", ["mlp"]),
    LastOne: ("mlp(layers[0], act, layers[1], act, layers[2], after)", ["mlp"]),
    Counted: ("mlp(layers[0], acts[0], layers[1], acts[1], layers[2])", ["mlp"]),
}
each_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


@each_form
def test_loop(form: Any, device: Any) -> None:
    """Each round of a loop is layers one after another."""
    module, reference, report = converted(form, device)
    ops, called = FORMS[form]
    assert report.replaced[0].ops == ops
    assert ops_of(module, batch(device)) == called
    assert_same(module, reference, device)
    report.revert()
    assert type(module) is form


@each_form
def test_copies(form: Any, device: Any) -> None:
    """Copies and pickles are converted, too."""
    module, reference, _ = converted(form, device)
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert ops_of(copied, batch(device)) == FORMS[form][1]
        assert_same(copied, reference, device)


CHANGES = {
    "another layer": lambda m: (m.layers.append(nn.Linear(6, 6)), setattr(m, "num_layers", 4)),
    "one layer less": lambda m: (m.layers.__delitem__(1), setattr(m, "num_layers", 2)),
    "an adapter": lambda m: m.layers.__setitem__(1, AdapterLinear(8, 8)),
    "a hook": lambda m: m.layers[1].register_forward_hook(lambda module, args, output: output + 1),
    "another number": lambda m: setattr(m, "num_layers", 2),
    "something before": lambda m: setattr(m, "before", nn.Softsign()),
    "nothing after": lambda m: setattr(m, "after", None),
    "another list": lambda m: setattr(m, "layers", Reversed(m.layers)),
}


class Reversed(nn.ModuleList):
    """A list of another class, which may do anything."""

    def __iter__(self):
        return iter([nn.Identity(), *super().__iter__()])


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("form", [Guarded, LastOne], ids=lambda form: form.__name__)
def test_changes(form: Any, change: str, device: Any) -> None:
    """What is changed after the conversion counts."""
    module, reference, _ = converted(form, device)
    for each in (module, reference):
        torch.manual_seed(5)
        CHANGES[change](each)
        each.to(device, batch(device).dtype)
    assert_same(module, reference, device)


def test_lengths_are_of_each_module(device: Any) -> None:
    """Two modules of one class have their own numbers of layers."""
    for depth in (2, 4):
        module, reference, report = converted(lambda depth=depth: Guarded(depth), device)
        assert report.replaced[0].ops.count("layers") == depth
        assert_same(module, reference, device)


class Unknown(Layers):
    def forward(self, x):
        for i in range(int(x.sum())):
            x = self.act(self.layers[i](x))
        return x


class WithElse(Layers):
    def forward(self, x):
        for layer in self.layers:
            x = self.act(layer(x))
        else:
            x = self.after(x)
        return x


class Steps(Layers):
    def forward(self, x):
        for layer in self.layers[::2]:
            x = self.act(layer(x))
        return x


class Beyond(Layers):
    def forward(self, x):
        return self.act(self.layers[7](x))


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (Unknown, "its forward has `int(x.sum())`"),
        (WithElse, "its forward has `for layer in self.layers:`"),
        (Steps, "its forward has `self.layers[::2]`"),
        (Beyond, "its forward has `self.layers[7]`"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_other_loops_are_left(form: Any, reason: str, device: Any) -> None:
    """A loop whose rounds are not known is left, with the line that says so."""
    module, _, report = converted(form, device)
    assert type(module) is form
    assert [row.reason for row in report.left] == [reason]


def test_the_whole_of_it_in_a_model(device: Any) -> None:
    """The layers of a list are not reported by themselves."""
    model = nn.Sequential(Guarded(), nn.Flatten(0), nn.Unflatten(0, (-1, 6)), LastOne()).to(device)
    report = fastops.nn.convert(model)
    assert [row.name for row in report.replaced] == ["0", "3"]
    assert not report.left
