"""fastops.nn.convert of layers one after another within methods that do more."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastops
from checks import CalledOps
from convertible import AdapterLinear, CustomActivation, Layers, assert_same, converted, ops_of, two_layers
from modules import batch, seeded
from sample import close


class Normalized(Layers):
    """With a norm before the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)


class Residual(Normalized):
    def forward(self, x):
        return x + self.drop(self.fc2(self.act(self.fc1(self.norm(x)))))


class Statements(Normalized):
    """As in OPT and BART."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *args: Any, scale: float = 1.0) -> Tensor:
        residual = x
        if mask is not None:
            x = x * mask
        hidden = self.norm(x)
        hidden = self.fc1(hidden)
        hidden = self.act(hidden)
        hidden = F.dropout(hidden, p=self.p, training=self.training)
        hidden = self.fc2(hidden)
        hidden = F.dropout(hidden, self.p, self.training)
        return scale * (residual + hidden)


class Method(Layers):
    """As in torch.nn.TransformerEncoderLayer, DistilBERT and Albert."""

    def feed_forward(self, x, slope=0.2):
        hidden = F.leaky_relu(self.fc1(x), slope)
        return self.fc2(F.leaky_relu(hidden, 0.2)) if self.scale > 100 else self.fc2(self.act(self.fc1(x)))

    def forward(self, x):
        return self.norm(x + self.feed_forward(x)) * self.scale


class Positional(Layers):
    def forward(self, x, *, factor=0.5):
        return factor * self.fc2(F.dropout(F.leaky_relu(self.fc1(x), 0.2), self.p, self.training))


class OtherNames(Layers):
    """As in MPT."""

    def forward(self, x, residual=0.0):
        x = self.act(self.fc1(x))
        out = self.fc2(x)
        out = F.dropout(out, p=self.p, training=self.training)
        return out + residual


class Derived(Residual):
    """What a method inherits, it calls as before."""

    def forward(self, x):
        return super().forward(x) + self.fc2(self.act(self.fc1(x)))


FORMS: dict[type[Layers], list[str]] = {
    Residual: ["sequential"],
    Statements: ["sequential"],
    Method: ["mlp"],
    Positional: ["mlp"],
    Derived: ["mlp"],
    OtherNames: ["mlp"],
}
each_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@each_form
def test_segment(form: Any, training: bool, device: Any) -> None:
    """The segment is one op, and what is around it is as it was."""
    module, reference, report = converted(lambda: form().train(training), device)
    assert [row.original for row in report.replaced] == [form]
    assert not report.left
    assert_same(module, reference, device)
    assert ops_of(module.eval(), batch(device)) == FORMS[form]
    report.revert()
    assert type(module) is form


def test_other_arguments(device: Any) -> None:
    """The arguments of a forward remain its own: optional ones, by position and by keyword."""
    module, reference, _ = converted(lambda: Statements().eval(), device)
    x = batch(device)
    mask = torch.ones_like(x).tril()
    for call in (lambda m: m(x, mask), lambda m: m(mask=mask, x=x), lambda m: m(x, None, 3, scale=2.0)):
        close([call(module)], [call(reference)])
    for each in (module, reference):
        with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
            each(x, other=1)


@each_form
def test_copies(form: Any, device: Any) -> None:
    """Copies and pickles are converted, too."""
    module, reference, _ = converted(lambda: form().eval(), device)
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert ops_of(copied, batch(device)) == FORMS[form]
        assert_same(copied, reference, device)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "adapter": lambda m: setattr(m, "fc1", AdapterLinear(6, 8)),
    "hook": lambda m: m.fc1.register_forward_hook(lambda module, args, output: output + 1),
    "hook of activation": lambda m: m.act.register_forward_hook(lambda module, args, output: output + 1),
    "hook of dropout": lambda m: m.drop.register_forward_hook(lambda module, args, output: output + 1),
    "parametrization": lambda m: nn.utils.parametrizations.weight_norm(m.fc2),
    "another activation": lambda m: setattr(m, "act", CustomActivation()),
    "a forward of its own": lambda m: setattr(m, "forward", lambda x: x * 3),
    "a method of its own": lambda m: setattr(m, "feed_forward", lambda x: x * 3),
    "another number": lambda m: setattr(m, "scale", 101.0),
    "training": lambda m: m.train(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("form", [Residual, Statements, Method])
def test_changes(form: Any, change: str, device: Any) -> None:
    """What is changed after the conversion counts."""
    module, reference, _ = converted(lambda: form().eval(), device)
    for each in (module, reference):
        torch.manual_seed(5)
        each.requires_grad_(False)
        CHANGES[change](each)
        each.to(device, batch(device).dtype).requires_grad_(False)
    assert_same(module, reference, device)


def test_methods_replaced_afterwards(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that somebody gives the class afterwards is called, and a pickle loaded then is not converted."""
    module, _, _ = converted(lambda: Method().eval(), device)
    pickled = pickle.dumps(module)
    monkeypatch.setattr(Method, "feed_forward", lambda self, x: x - 1)
    close([module(batch(device))], [module.norm(2 * batch(device) - 1) * 2])
    assert type(pickle.loads(pickled)) is Method


@pytest.mark.parametrize("name", ["leaky_relu", "dropout"])
def test_functions_replaced_afterwards(name: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that takes another's place is called, with its arguments as they are written."""
    module, reference, _ = converted(lambda: Positional().eval(), device)
    seen: list[Any] = []
    monkeypatch.setattr(F, name, lambda x, *args, **keywords: seen.append((args, keywords)) or x + 1)
    assert_same(module, reference, device)
    assert len(seen) == 2
    assert seen[0] == seen[1]


class Property(Layers):
    @property
    def middle(self) -> nn.Module:
        raise AssertionError("it was evaluated")

    def forward(self, x, act=F.gelu):
        if x is None:
            return self.fc2(self.middle(self.act(self.fc1(x))))
        return x + self.fc2(act(self.fc1(x)))


def test_not_known(device: Any) -> None:
    """What is not known before a call is not computed together, and not run to know it."""
    module, reference, _ = converted(Property, device)
    assert type(module) is Property
    assert_same(module, reference, device)


def transformer(kind: str, **options: Any) -> nn.Module:
    make = getattr(nn, f"Transformer{kind}Layer")
    layer: nn.Module = make(12, 2, 20, batch_first=True, **options)
    return layer


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", [F.gelu, "relu"])
@pytest.mark.parametrize("kind", ["Encoder", "Decoder"])
def test_transformer_layers(kind: str, activation: Any, norm_first: bool, training: bool, device: Any) -> None:
    """PyTorch's layers, their fast path in evaluation without gradients included."""
    module = seeded(lambda: transformer(kind, activation=activation, norm_first=norm_first).train(training), device)
    reference = copy.deepcopy(module)
    report = fastops.nn.convert(module)
    assert [row.ops.split("(")[0] for row in report.replaced] == ["mlp"]
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1)).to(batch(device))
    results: list[list[Tensor]] = []
    for each in (module, reference):
        torch.manual_seed(3)
        inputs = [x.clone().requires_grad_() for _ in range(1 if kind == "Encoder" else 2)]
        value = each(*inputs)
        results.append([value, *torch.autograd.grad((value**2).sum(), [*inputs, *each.parameters()])])
        with torch.no_grad():
            torch.manual_seed(3)
            results[-1].append(each(*inputs))
    close(*results)
    inputs = [x] * (1 if kind == "Encoder" else 2)
    with CalledOps() as called:
        module.eval()(*inputs)
    assert [name.removesuffix("_forward") for name in called.names] == ["mlp"]


def test_encoder_with_mask(device: Any) -> None:
    """The fast path of an encoder, with nested tensors, is taken as before."""
    layers = seeded(lambda: nn.TransformerEncoder(transformer("Encoder"), 2).eval(), device)
    reference = copy.deepcopy(layers)
    fastops.nn.convert(layers)
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1)).to(batch(device))
    mask = torch.arange(5, device=device) >= torch.tensor([[3], [5]], device=device)
    with torch.no_grad():
        close([layers(x, src_key_padding_mask=mask)], [reference(x, src_key_padding_mask=mask)])


outer_calls: list[Any] = []


class Wrapping(nn.Module):
    """Wraps the forward of its subclasses, as transformers does for checkpointing."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        forward = cls.forward

        @functools.wraps(forward)
        def wrapper(self: Any, *args: Any, **keywords: Any) -> Any:
            outer_calls.append(type(self).forward is wrapper)
            return forward(self, *args, **keywords)

        cls.forward = wrapper


class Wrapped(Wrapping, Layers):
    def forward(self, x, *, scale=1.0):
        return x + scale * self.fc2(self.act(self.fc1(x)))


def test_wrapped(device: Any) -> None:
    """What wraps a forward does so after the conversion, and still is the forward of the class for itself."""
    module, reference, report = converted(Wrapped, device)
    outer_calls.clear()
    assert report.replaced
    assert ops_of(module, batch(device)) == ["mlp"]
    assert outer_calls == [True]
    assert_same(module, reference, device)
    assert outer_calls == [True] * 3
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert ops_of(copied, batch(device)) == ["mlp"]


def checked(function: Any) -> Any:
    """Looks at what is known of the function that it wraps."""

    @functools.wraps(function)
    def wrapper(self: Any, x: Any) -> Any:
        assert function.__annotations__["x"] == "Tensor"
        assert (function.__doc__, function.__module__) == ("With attributes.", __name__)
        assert function.__qualname__ == "Checked.forward"
        return function(self, x) * function.factor

    function.factor = 2
    return wrapper


class Checked(Layers):
    @checked
    def forward(self, x: Tensor) -> Tensor:
        """With attributes."""
        return x + self.fc2(self.act(self.fc1(x)))


def test_attributes_of_functions(device: Any) -> None:
    """What is wrapped has the attributes that it had, and those that it gets."""
    module, reference, report = converted(Checked, device)
    assert report.replaced
    assert_same(module, reference, device)
    Checked.forward.__wrapped__.factor = 3
    assert_same(module, reference, device)
    assert ops_of(module, batch(device)) == ["mlp"]


def test_compiled(device: Any) -> None:
    """torch.compile captures the op without graph breaks."""
    module, reference, _ = converted(lambda: Statements().eval(), device)
    close([torch.compile(module, fullgraph=True, backend="aot_eager")(batch(device))], [reference(batch(device))])


class Scriptable(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(self.act(self.fc1(x)))


def test_scripted(device: Any) -> None:
    """torch.jit.script compiles the original."""
    module, reference, report = converted(Scriptable, device)
    assert report.replaced
    close([torch.jit.script(module)(batch(device))], [reference(batch(device))])


def test_part_of_a_model(device: Any) -> None:
    """Both kinds of conversion side by side."""
    model = nn.Sequential(Residual(), two_layers(), Statements()).to(device)
    assert [row.name for row in fastops.nn.convert(model).replaced] == ["0", "1", "2"]


def encoder(activation: str, dropout: float) -> nn.Module:
    """PyTorch's layer of a transformer."""
    return nn.TransformerEncoderLayer(6, 2, 8, dropout, activation)


@pytest.mark.parametrize(("activation", "dropout"), [("relu", 0.3), ("relu", 0.0), ("gelu", 0.3)])
def test_what_pays_in_training(activation: str, dropout: float, device: Any) -> None:
    """One product with a ReLU, which is all that a dropout leaves in training, is no op within attention."""
    model, reference, _ = converted(lambda: encoder(activation, dropout), device)
    for training in (True, False, True):
        for each in (model, reference):
            each.train(training)
        assert_same(model, reference, device)
        is_on = training and dropout > 0
        expected = [] if is_on and activation == "relu" else ["mlp", "mlp"] if is_on else ["mlp"]
        assert ops_of(model, batch(device)) == expected
    copied = pickle.loads(pickle.dumps(model))
    assert ops_of(copied, batch(device)) == ops_of(model, batch(device))


def test_dropout_behind(device: Any) -> None:
    """A dropout behind the layers is left out while it is off, and no longer when it has a hook."""
    model, reference, _ = converted(lambda: encoder("relu", 0.3).eval(), device)
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: event == "call" and calls.append(frame.f_code.co_name))
    model(batch(device))
    sys.setprofile(None)
    assert calls.count("dropout") == 1  # behind the attention
    calls.clear()
    vars(model.dropout2)["forward"] = lambda x: calls.append("own") or x
    assert_same(model, reference, device)
    assert calls == ["own"]
    del vars(model.dropout2)["forward"]
    for each in (model, reference):
        each.dropout2.register_forward_hook(lambda module, args, output: output * 2)
    assert_same(model, reference, device)
