"""fastops.nn.convert of a forward with optional arguments, and with conditions that functions of a module decide."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Optional

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastops
from convertible import Block, assert_same, converted, ops_of
from modules import batch, seeded
from sample import close

_available = False


def is_available():
    return _available


def exists(value):
    """Whether there is one."""
    return value is not None


def asks() -> bool:
    return bool(torch.get_num_threads())


class Parts(nn.Module):
    """Layers for a gated unit."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.act, self.down = nn.Linear(6, 16), nn.SiLU(), nn.Linear(8, 6)


class Guarded(Parts):
    """As in diffusers."""

    def forward(self, hidden_states: Tensor, *args, **kwargs) -> Tensor:
        if len(args) > 0 or kwargs.get("scale", None) is not None:  # noqa: SIM910
            hidden_states = hidden_states + 1
        hidden_states = self.both(hidden_states)
        if is_available():
            return torch.sin(hidden_states)[0]
        else:
            hidden_states, gate = hidden_states.chunk(2, dim=-1)
            return self.down(hidden_states * self.act(gate))


class Clamped(Parts):
    """As in x-transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.limit, self.mult_bias = None, 1.0

    def forward(self, x):
        up, gate = self.both(x).chunk(2, dim=-1)

        if exists(self.limit):
            up = up.clamp(max=self.limit)

        return self.down(up * self.act(gate) * self.mult_bias)


class Listed(nn.Module):
    """As in PyTorch Geometric."""

    def __init__(self) -> None:
        super().__init__()
        self.lins = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 6)])
        self.norms = nn.ModuleList([nn.Identity(), nn.Identity()])
        self.dropout, self.act, self.act_first, self.plain_last = [0.0, 0.0, 0.0], nn.ReLU(), False, True
        self.supports_norm_batch = False

    def forward(
        self,
        x: Tensor,
        batch: Optional[Tensor] = None,  # noqa: UP045
        return_emb: Optional[bool] = None,  # noqa: UP045
    ) -> Tensor:
        emb: Optional[Tensor] = None  # noqa: UP045
        for i, (lin, norm) in enumerate(zip(self.lins, self.norms)):  # noqa: B905
            x = lin(x)
            if self.act is not None and self.act_first:
                x = self.act(x)
            x = norm(x, batch) if self.supports_norm_batch else norm(x)
            if self.act is not None and not self.act_first:
                x = self.act(x)
            x = F.dropout(x, p=self.dropout[i], training=self.training)
            if isinstance(return_emb, bool) and return_emb is True:
                emb = x
        if self.plain_last:
            x = self.lins[-1](x)
            x = F.dropout(x, p=self.dropout[-1], training=self.training)
        return (x, emb) if isinstance(return_emb, bool) else x


FORMS = {Guarded: "gated_mlp", Clamped: "gated_mlp", Listed: "mlp"}
each_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


@each_form
def test_planned(form: Any, device: Any) -> None:
    """What is decided before a call leaves layers one after another."""
    module, reference, report = converted(form, device)
    assert [row.ops.split("(")[0] for row in report.replaced] == [FORMS[form]]
    assert ops_of(module, batch(device)) == [FORMS[form]]
    assert_same(module, reference, device)
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert ops_of(copied, batch(device)) == [FORMS[form]]
        assert_same(copied, reference, device)
    report.revert()
    assert type(module) is form


@each_form
def test_compiled(form: Any, device: Any) -> None:
    """torch.compile captures the op, and the conditions as they are."""
    torch._dynamo.reset()
    module, reference, _ = converted(form, device)
    names = []

    def backend(graph: Any, inputs: Any) -> Any:
        names.extend(str(node.target) for node in graph.graph.nodes if "fastops" in str(node.target))
        return graph

    torch.compile(module, fullgraph=True, backend=backend)(batch(device))
    assert any(FORMS[form] in name for name in names)
    assert_same(torch.compile(module, fullgraph=True, backend="aot_eager"), reference, device)


ARGUMENTS = {
    Guarded: [((2,), {}), ((), {"scale": 1}), ((), {"scale": None}), ((), {"other": 1})],
    Clamped: [],
    Listed: [((None, True), {}), ((), {"return_emb": False}), ((), {"batch": 3})],
}


@each_form
def test_arguments(form: Any, device: Any) -> None:
    """With other arguments, the original forward is called."""
    module, reference, _ = converted(form, device)
    for args, kwargs in ARGUMENTS[form]:
        values, expected = (each(batch(device), *args, **kwargs) for each in (module, reference))
        for value, other in zip(
            *([each] if isinstance(each, Tensor) else each for each in (values, expected)), strict=True
        ):
            close([value], [other])
    if form is not Clamped:
        names = {Guarded: "hidden_states", Listed: "x"}
        close([module(**{names[form]: batch(device)})], [reference(batch(device))])


def test_answers(monkeypatch: Any, device: Any) -> None:
    """What a function says in a call counts, and which function it is."""
    for form, name, other in (
        (Guarded, "_available", True),
        (Guarded, "is_available", lambda: True),
        (Guarded, "len", lambda value: 1),
        (Clamped, "exists", lambda value: False),
    ):
        module, reference, _ = converted(form, device)
        assert ops_of(module, batch(device)) == ["gated_mlp"]
        with monkeypatch.context() as patch:
            patch.setitem(globals(), name, other)
            assert ops_of(module, batch(device)) == []
            close([module(batch(device))], [reference(batch(device))])
        assert ops_of(module, batch(device)) == ["gated_mlp"]


def test_another_code(monkeypatch: Any, device: Any) -> None:
    """A function of which the code was replaced is not asked before the original forward is called."""
    module, reference, _ = converted(Guarded, device)
    asked = []
    globals()["_asked"] = asked
    monkeypatch.setattr(is_available, "__code__", (lambda: _asked.append(1) or True).__code__)  # noqa: F821
    close([module(batch(device))], [reference(batch(device))])
    assert len(asked) == 2


CHANGES = {
    "a limit": (Clamped, lambda m: setattr(m, "limit", 0.1)),
    "a factor": (Clamped, lambda m: setattr(m, "mult_bias", 2.0)),
    "a learned factor": (Clamped, lambda m: setattr(m, "mult_bias", torch.linspace(1, 2, 8))),
    "no activation": (Listed, lambda m: setattr(m, "act", None)),
    "act_first": (Listed, lambda m: setattr(m, "act_first", True)),
    "all layers alike": (Listed, lambda m: setattr(m, "plain_last", False)),
    "a norm": (Listed, lambda m: m.norms.__setitem__(0, nn.LayerNorm(8))),
    "one norm less": (Listed, lambda m: m.norms.__delitem__(0)),
    "dropout": (Listed, lambda m: setattr(m, "dropout", [0.5, 0.0, 0.5])),
    "one dropout": (Listed, lambda m: m.dropout.__setitem__(1, 0.5)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes(change: str, device: Any) -> None:
    """What is changed after the conversion counts."""
    form, apply = CHANGES[change]
    module, reference, _ = converted(form, device)
    ops_of(module, batch(device))
    for each in (module, reference):
        apply(each)
        each.to(device, batch(device).dtype)
        if isinstance(getattr(each, "mult_bias", None), Tensor):
            each.mult_bias = each.mult_bias.to(batch(device))
    results = []
    for each in (module, reference):
        torch.manual_seed(1)
        value = each(batch(device))
        results.append([value, *torch.autograd.grad(value.square().sum(), [*each.parameters()], allow_unused=True)])
    assert [value is None for value in results[0]] == [value is None for value in results[1]]
    close(*[[value for value in each if value is not None] for each in results])


def test_other_defaults(monkeypatch: Any, device: Any) -> None:
    """So do the defaults of arguments."""
    module, reference, _ = converted(Listed, device)
    monkeypatch.setattr(Listed.forward, "__defaults__", (None, True))
    for value, other in zip(module(batch(device)), reference(batch(device)), strict=True):
        close([value], [other])


class Asks(Block):
    def forward(self, x):
        x = self.down(self.act(self.up(x)))
        return x if asks() else -x


class AsksOfInput(Listed):
    def forward(self, x, scale=1.0):
        for lin in self.lins:
            x = self.act(lin(x))
        return x if exists(x) else x * scale


class Computed(Listed):
    def forward(self, x, scale=torch.float32):
        for lin in self.lins:
            x = self.act(lin(x))
        return x


class Changed(Listed):
    def forward(self, x, **kwargs):
        kwargs["scale"] = x
        for lin in self.lins:
            x = self.act(lin(x))
        return x if kwargs.get("scale") is None else x + 1


@pytest.mark.parametrize("form", [AsksOfInput, Computed, Changed], ids=lambda form: form.__name__)
def test_unknown(form: Any, device: Any) -> None:
    """What is not known before a call leaves a module as it is."""
    module, reference, report = converted(form, device)
    assert type(module) is form
    assert len(report.left) == 1
    assert_same(module, reference, device)


def test_functions_are_not_called(monkeypatch: Any, device: Any) -> None:
    """To convert calls no function that may do more than say what it knows."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: pytest.fail("was called"))
    fastops.nn.convert(seeded(Asks, device))


class Residual(Block):
    def forward(self, x, residual=None):
        x = self.down(self.act(self.up(x)))
        if residual is not None:
            x = x + residual
        return x


def test_segments_are_for_all_arguments(device: Any) -> None:
    """Where layers can be computed together with any arguments, they are."""
    module, reference, _ = converted(Residual, device)
    x = batch(device)
    assert ops_of(module, x) == ["mlp"]
    close([module(x, residual=x)], [reference(x, residual=x)])
    assert ops_of(lambda x: module(x, residual=x), x) == ["mlp"]
