"""How fastops.nn.convert reads a forward: names mean what they mean to Python, in each call anew."""

from __future__ import annotations

import builtins
import dataclasses
import linecache
import types
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastops
from convertible import Block, assert_same, converted, ops_of
from modules import batch, seeded
from sample import close


def act(x: Tensor) -> Tensor:
    """A global function with the name of a variable of the closures below."""
    return x * 100


hooked = F.silu


def in_closure(act: Any, abs: Any) -> type[nn.Module]:
    class Closure(Block):
        def forward(self, x):
            return abs(self.down(act(self.up(x))))

    return Closure


class Global(Block):
    def forward(self, x):
        return self.down(hooked(self.up(x)))


class Qualified(Block):
    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Builtin(Block):
    def forward(self, x):
        return abs(self.down(self.act(self.up(x))))


def test_closure(device: Any) -> None:
    """A variable of a closure is that of the class's own closure, not a global or a builtin of its name."""
    for activation, last in ((F.silu, torch.tanh), (F.gelu, F.relu)):
        model, reference, report = converted(in_closure(activation, last), device)
        assert report.replaced
        assert_same(model.requires_grad_(False), reference.requires_grad_(False), device)
        assert ops_of(model, batch(device)) == ["mlp"]


def twice(x: Tensor) -> Tensor:
    return 2 * x


@pytest.mark.parametrize("form", [Global, Qualified, Builtin, in_closure(F.silu, torch.tanh)])
def test_functions_replaced_afterwards(form: type[Block], device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that takes another's place after the conversion is the one that is called, and back."""
    model, reference, _ = converted(lambda: form().requires_grad_(False), device)
    ops = ops_of(model, batch(device))
    assert ops
    with monkeypatch.context() as patch:
        if form is Global:
            patch.setitem(globals(), "hooked", twice)
        elif form is Qualified:
            patch.setattr(F, "gelu", twice)
        elif form is Builtin:
            patch.setitem(globals(), "abs", twice)
        else:
            patch.setattr(form.forward.__closure__[1], "cell_contents", twice)
        assert_same(model, reference, device)
        assert len(ops_of(model, batch(device))) == (0 if form in (Global, Qualified) else 1 if form is Builtin else 2)
    assert_same(model, reference, device)
    assert ops_of(model, batch(device)) == ops


def test_builtins(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new builtin counts, too, and one that is not there any more is an error, as it is without conversion."""
    monkeypatch.setattr(builtins, "rectify", F.relu, raising=False)

    class New(Block):
        def forward(self, x):
            return self.down(rectify(self.up(x)))  # noqa: F821

    model, reference, _ = converted(lambda: New().requires_grad_(False), device)
    assert_same(model, reference, device)
    assert ops_of(model, batch(device)) == ["mlp"]
    monkeypatch.undo()
    for each in (model, reference):
        with pytest.raises(NameError, match="'rectify' is not defined"):
            each(batch(device))
    assert converted(New, device)[2].left[0].reason == (
        "its forward needs what it does not have: name 'rectify' is not defined"
    )


class __Mangled(Block):
    def __init__(self) -> None:
        super().__init__()
        self.__norm, self.__hidden = nn.LayerNorm(8), nn.Linear(6, 8)
        self.__axis = -1

    def forward(self, x):
        __hidden = self.__hidden(x)
        return self.down(F.softmax(self.__norm(self.act(__hidden)), dim=self.__axis))


def test_mangled_names(device: Any) -> None:
    """Names with two underscores have their class's in front, also where a subclass inherits the forward."""
    heir = type("Heir", (__Mangled,), {})
    for form in (__Mangled, heir):
        model, reference, report = converted(lambda form=form: form().requires_grad_(False), device)
        assert report.replaced[0].ops == "sequential(_Mangled__hidden, act, _Mangled__norm)"
        assert_same(model, reference, device)
        assert ops_of(model, batch(device)) == ["sequential", "mlp"]


class Lists(Block):
    def forward(self, x):
        return self.down(F.layer_norm(self.act(self.up(x)), normalized_shape=[8]))


class ListDimensions(Block):
    def forward(self, x):
        return self.down(torch.flip(self.act(self.up(x)), dims=[0]))


@dataclasses.dataclass
class Unhashable:
    """A function that is equal to others, and so has no hash."""

    factor: float = 2.0

    def __call__(self, x: Tensor) -> Tensor:
        return self.factor * x


scaled = Unhashable()


class UnhashableFunction(Block):
    def forward(self, x):
        return self.down(scaled(self.act(self.up(x))))


@pytest.mark.parametrize("form", [Lists, ListDimensions, UnhashableFunction])
def test_unhashable(form: type[Block], device: Any) -> None:
    """Arguments and functions need no hash."""
    model, reference, report = converted(lambda: form().requires_grad_(False), device)
    assert report.replaced[0].ops == "linear_act(up, act)"
    assert_same(model, reference, device)
    assert ops_of(model, batch(device)) == ["mlp", "mlp"]


class Shadowed(Block):
    def forward(self, x):
        F = self.up  # noqa: F841, N806
        return self.down(self.act(x))


class LocalFunction(Block):
    def forward(self, act):
        return self.down(act(self.up(act)))


class Rebound(Block):
    def forward(self, x):
        self = self.act(x)
        return self.down(x)


class OtherCast(Block):
    def forward(self, x):
        x = self.act(self.up(x))
        if self.p and x.dtype != self.gate.weight.dtype:
            x = x * 2
        return self.down(x)


class CountingCast(Block):
    def forward(self, x):
        x = self.act(self.up(x))
        if self.function(self.p) and x.dtype != self.down.weight.dtype:
            x = x * 2
        return self.down(x)


class Property(Block):
    @property
    def middle(self) -> nn.Module:
        raise AssertionError("it was evaluated")

    def forward(self, x):
        return self.down(self.act(self.middle(x)))


class OwnLookup(Block):
    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (Shadowed, "its forward has `self.up`"),
        (LocalFunction, "its forward has `act`"),
        (Rebound, "its forward has `self = self.act(x)`"),
        (OtherCast, "its forward has `return self.down(x)`"),
        (CountingCast, "its forward has `if self.function(self.p) and x.dtype != self.down.weight.dtype:`"),
        (Property, "self.middle is computed by a property"),
        (OwnLookup, "OwnLookup looks up attributes in a way of its own"),
    ],
)
def test_left(form: type[Block], reason: str, device: Any) -> None:
    """What could mean something else is left."""
    model = seeded(form, device)
    report = fastops.nn.convert(model)
    assert [row.reason for row in report.left] == [reason]
    assert type(model) is form


def defined(source: str, name: str) -> Any:
    """The class Late of a module with this source."""
    module = types.ModuleType(name)
    module.__dict__["Block"] = Block
    exec(compile(source, f"<{name}>", "exec"), module.__dict__)
    linecache.cache[f"<{name}>"] = (len(source), None, source.splitlines(True), f"<{name}>")
    return module.__dict__["Late"]


SOURCE = """
class Late(Block):
    def forward(self, x):
        return self.down(self.act(self.up(x)))
"""


@pytest.mark.parametrize(
    ("old", "new"), [("self.up(x)", "self.gate(x)"), ("return", "x = self.act(x); return"), ("act(", "norm(")]
)
def test_source_that_changed(old: str, new: str, device: Any, request: pytest.FixtureRequest) -> None:
    """A file that was edited after it was imported does not say what its functions do."""
    kind = defined(SOURCE, request.node.name)
    lines = SOURCE.replace(old, new).splitlines(True)
    linecache.cache[f"<{request.node.name}>"] = (1, None, lines, f"<{request.node.name}>")
    assert converted(kind, device)[2].left[0].reason == "its forward is not what its source says"


def test_code_replaced_afterwards(device: Any, request: pytest.FixtureRequest) -> None:
    """Tools that load changed files again give functions new code."""
    kind = defined(SOURCE, request.node.name)
    model, reference, _ = converted(lambda: kind().requires_grad_(False), device)
    assert ops_of(model, batch(device)) == ["mlp"]
    kind.forward.__code__ = defined(SOURCE.replace("self.up(x)", "self.gate(x)"), "other").forward.__code__
    close([model(batch(device))], [reference(batch(device))])


calls: list[str] = []


def noting(name: str, result: Any) -> Any:
    """A layer that notes when it is called."""

    class Noting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(name)
            return torch.rand_like(x[:, :1]) * result(x)

    return Noting()


class UpFirst(Block):
    def forward(self, x):
        return self.down(self.up(x) * self.act(self.gate(x)))


class UpSecond(Block):
    def forward(self, x):
        gate = self.gate(x)
        up = self.up(x)
        return self.down(self.act(gate) * up)


class UpLast(Block):
    def forward(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("replace", [("gate", "up"), ("gate", "up", "act")])
@pytest.mark.parametrize("form", [UpFirst, UpSecond, UpLast])
def test_order_of_gates(form: type[Block], replace: tuple[str, ...], device: Any) -> None:
    """The branches are called in the order of the forward, so that they draw the same random numbers."""
    model, reference, _ = converted(lambda: form().requires_grad_(False), device)
    for each in (model, reference):
        for name in replace:
            setattr(each, name, noting(name, getattr(each, name)))
    results, orders = [], []
    for each in (model, reference):
        calls.clear()
        torch.manual_seed(3)
        results.append(each(batch(device)))
        orders.append(list(calls))
    assert orders[0] == orders[1]
    close([results[0]], [results[1]])
