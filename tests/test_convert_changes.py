"""Converted modules afterwards: changes of their layers count, and whatever works on modules works on them."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from convertible import (
    AdapterLinear,
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
from modules import batch
from sample import close


def put_adapter(model: nn.Sequential) -> None:
    adapter = AdapterLinear(6, 8).to(model[0].weight)
    adapter.load_state_dict(model[0].state_dict())
    model[0] = adapter


def encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


CHANGES: dict[str, tuple[Callable[[nn.Sequential], Any], list[str]]] = {
    "adapter": (put_adapter, []),
    "hook": (lambda model: model[2].register_forward_hook(lambda module, args, output: output * 2), ["linear_act"]),
    "pre-hook": (lambda model: model[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,)), []),
    "hook of activation": (lambda model: model[1].register_forward_hook(lambda module, args, output: output + 1), []),
    "pruning": (lambda model: prune.l1_unstructured(model[0], "weight", 0.5), []),
    "parametrization": (lambda model: nn.utils.parametrizations.weight_norm(model[0]), []),
    "another activation": (lambda model: model.__setitem__(1, nn.Hardtanh(-0.1, 0.2)), ["mlp"]),
    "no activation": (lambda model: model.__setitem__(1, CustomActivation()), []),
    "another parameter": (lambda model: setattr(model[1], "approximate", "tanh"), ["mlp"]),
    "a layer more": (lambda model: model.append(nn.Tanh()), ["mlp"]),
    "a layer less": (lambda model: model.pop(2), ["mlp"]),
    "forward": (lambda model: setattr(model[0], "forward", lambda x: 2 * nn.Linear.forward(model[0], x)), []),
    "frozen": (lambda model: model[0].requires_grad_(False), ["mlp"]),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_change_afterwards(kind: str, device: Any) -> None:
    """Whatever is done to the layers of a converted module counts, as it does for the original."""
    change, ops = CHANGES[kind]
    model, reference, _ = converted(two_layers, device)
    for each in (model, reference):
        torch.manual_seed(3)
        change(each)
    assert_same(model, reference, device)
    assert ops_of(model, batch(device)) == ops


@pytest.mark.parametrize("part", ["gate", "up", "act", "down"])
def test_change_of_gated_block(part: str, device: Any) -> None:
    """The same for each part of a gated block."""
    model, reference, _ = converted(lambda: Gated().requires_grad_(False), device)
    for each in (model, reference):
        getattr(each, part).register_forward_hook(lambda module, args, output: output + 1)
    assert_same(model, reference, device)
    assert ops_of(model, batch(device)) == ([] if part == "act" else ["act_mul"])


def test_change_of_attribute(device: Any) -> None:
    """A formula holds for the attributes that it was read with; else the original forward is called."""
    model, reference, _ = converted(lambda: Packed().requires_grad_(False), device)
    model.gate_last = reference.gate_last = False
    assert_same(model, reference, device)
    assert not ops_of(model, batch(device))


@pytest.mark.parametrize(("form", "name"), [(Chain, "down"), (Packed, "gate_last")])
def test_missing_attribute(form: Any, name: str, device: Any) -> None:
    """What is no longer there is missed where the original misses it, after what it calls before."""
    model, reference, _ = converted(lambda: form().requires_grad_(False), device)
    notes: dict[nn.Module, list[nn.Module]] = {model: [], reference: []}
    for each, called in notes.items():
        delattr(each, name)
        for child in each.children():
            child.register_forward_hook(lambda module, *_, called=called: called.append(type(module)))
        with pytest.raises(AttributeError, match=name):
            each(batch(device))
    assert notes[model] == notes[reference] != []


def test_change_of_class(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward that somebody else gives the class afterwards counts."""
    model, _, _ = converted(Chain, device)
    monkeypatch.setattr(Chain, "forward", lambda self, x: x - 1)
    x = batch(device)
    close([model(x)], [x - 1])
    pickled = pickle_and_back(model)
    assert type(pickled) is Chain
    close([pickled(x)], [x - 1])


def test_other_inputs(device: Any) -> None:
    """Inputs that the ops do not take reach the layers that do: indices, sparse and nested tensors."""
    model, reference, _ = converted(lambda: nn.Sequential(nn.Embedding(5, 6), *two_layers()), device)
    indices = torch.tensor([[0, 4], [2, 2]], device=device)
    close([model(indices)], [reference(indices)])
    assert ops_of(model, indices) == ["mlp"]
    model, reference, _ = converted(two_layers, device)
    nested = torch.nested.nested_tensor([batch(device, 2, 6), batch(device, 3, 6)], layout=torch.jagged)
    close([model(nested).values()], [reference(nested).values()])
    with pytest.raises(TypeError):
        model(batch(device), 1)


def pickle_and_back(model: nn.Module) -> nn.Module:
    """The model through torch.save and torch.load."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, pickle_and_back])
@pytest.mark.parametrize("make", [mixed, Packed], ids=["Sequential", "block"])
def test_copies(copied: Any, make: Any, device: Any) -> None:
    """Copies are converted, too, and independent of the report."""
    model, reference, report = converted(lambda: make().eval().requires_grad_(False), device)
    copy_of_model = copied(model)
    assert type(copy_of_model) is type(model)
    report.revert()
    assert_same(copy_of_model, reference, device)
    assert "gated_mlp" in (names := ops_of(copy_of_model, batch(device))) or "mlp" in names


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [mixed, Chain, Gated, Packed])
def test_capture(make: Any, device: Any) -> None:
    """torch.compile, torch.export with names and dynamic sizes of inputs, and torch.jit.trace capture the fused ops."""
    model, reference, _ = converted(lambda: make().eval(), device)
    x = batch(device)
    expected = reference(x)
    close([torch.compile(model, fullgraph=True, backend="aot_eager")(x)], [expected])
    name = "input" if make is mixed else "x"
    exported = torch.export.export(model, (x,), dynamic_shapes={name: {0: torch.export.Dim("batch")}})
    assert any("fastops" in str(node.target) for node in exported.graph.nodes)
    close([exported.module()(x[:3])], [expected[:3]])
    with torch.no_grad():
        traced = torch.jit.trace(model, x)
    assert "fastops::" in str(traced.inlined_graph)
    close([traced(x[:3])], [expected[:3]])


class NewGELU(nn.Module):
    """As transformers has it: with functions of two modules that have others by the same names."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def test_export_with_functions_of_python(device: Any) -> None:
    """torch.export puts its own in the place of some of them, of which a function uses those that it names."""
    make = lambda: nn.Sequential(nn.Linear(6, 8), NewGELU(), nn.Linear(8, 6)).eval()  # noqa: E731
    model, reference, _ = converted(make, device)
    x = batch(device)
    exported = torch.export.export(model, (x,), strict=False)
    assert [str(node.target) for node in exported.graph.nodes if node.op == "call_function"] == ["fastops.mlp.default"]
    close([exported.module()(x)], [reference(x)])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_script(device: Any) -> None:
    """TorchScript compiles the original forward of a converted module."""
    model, reference, _ = converted(lambda: nn.Sequential(mixed(), Chain()).eval(), device)
    scripted = torch.jit.script(model)
    close([scripted(batch(device))], [reference(batch(device))])
    assert "FusedChain" in repr(model)


def test_class_names(device: Any) -> None:
    """A converted module's class goes by the name of its own, by which other libraries find or save it."""
    model, reference, report = converted(lambda: nn.Sequential(Chain(), encoder_layer()), device)
    assert [row.module for row in report.replaced] == list(model)
    for module, original in zip(model, reference, strict=True):
        assert type(module) is not type(original)
        for name in ("__name__", "__qualname__", "__module__"):
            assert getattr(type(module), name) == getattr(type(original), name)


def test_symbolic_trace_of_torch_layers(device: Any) -> None:
    """torch.fx leaves torch.nn's layers as they are, converted or not."""
    model, reference, _ = converted(lambda: nn.Sequential(nn.Linear(6, 8), encoder_layer()).eval(), device)
    x = batch(device).view(1, *batch(device).shape)
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["0", "1"]
    close([traced(x)], [reference(x)])


def test_functional_call_and_vmap(device: Any) -> None:
    """Parameters from elsewhere, and transforms."""
    model, reference, _ = converted(two_layers, device)
    x = batch(device)
    parameters = {name: parameter.detach() + 1 for name, parameter in model.named_parameters()}
    expected = torch.func.functional_call(reference, parameters, x)
    close([torch.func.functional_call(model, parameters, x)], [expected])
    close([torch.vmap(model)(x)], [reference(x)])


def test_autocast(device: Any) -> None:
    """Under autocast, the converted module computes in the lower type, too."""
    model, reference, _ = converted(two_layers, device)
    model, reference, x = model.float(), reference.float(), batch(device, dtype=torch.float32)
    with torch.autocast(device.type, torch.bfloat16):
        value, expected = model(x), reference(x)
    assert value.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(value, expected, rtol=0.05, atol=0.05)
