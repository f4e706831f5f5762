"""fastops.nn.convert on the models of timm and transformers: the same values, gradients and state dicts."""

from __future__ import annotations

import copy
import importlib
import inspect
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastops
from checks import CalledOps
from fastops._convert.reader import read
from fastops._resolve import OTHER_CLASSES, resolve
from reference import ACTIVATIONS
from sample import close
from strategies import WIDEST
from zoo import BLOCKS, MODELS

DOCUMENTATION = pathlib.Path(__file__).parents[1] / "docs" / "convert.md"


def seeded(make: Any, device: Any) -> nn.Module:
    """The model with the same random weights in every call."""
    torch.manual_seed(0)
    model = make().to(device, WIDEST)
    for parameter in model.parameters():  # some are zeros or ones
        nn.init.normal_(parameter, std=0.3)
    return model


ATTENTION = re.compile("Attention$")


def linears(module: nn.Module) -> Iterator[nn.Module]:
    """The linear layers that a module has itself."""
    return (child for child in module.children() if type(child).__name__ in ("Linear", "Conv1D"))


def output_of(result: Any) -> Tensor:
    """The first tensor of what a model gives."""
    return result if isinstance(result, Tensor) else result[0]


def value_and_gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The value and the gradients of all parameters that have one; the same dropouts in every call."""
    torch.manual_seed(1)
    value = output_of(model(x))
    model.zero_grad()
    (value**2).sum().backward()
    return [value, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("kind", MODELS)
def test_model(kind: str, training: bool, device: Any) -> None:
    """A converted model is the same function, with the same parameters under the same names."""
    make, batch, replaced, left = MODELS[kind]
    model = seeded(make, device).train(training)
    reference = copy.deepcopy(model)
    keys, parameters = list(model.state_dict()), list(model.parameters())
    report = fastops.nn.convert(model)
    attention = [row for row in report.left if ATTENTION.search(type(row.module).__name__)]
    assert (len(report.replaced), len(report.left) - len(attention)) == (replaced, left), str(report)
    named = [module for module in model.modules() if ATTENTION.search(type(module).__name__)]
    assert [row.module for row in attention] == [module for module in named if len(list(linears(module))) > 1]
    assert {row.reason for row in attention} <= {"its products are those of attention, which is no feed-forward block"}
    x = batch().to(device)
    close(value_and_gradients(model, x), value_and_gradients(reference, x))
    assert list(model.state_dict()) == keys
    assert all(mine is theirs for mine, theirs in zip(model.parameters(), parameters, strict=True))
    report.revert()
    assert [type(module) for module in model.modules()] == [type(module) for module in reference.modules()]


@pytest.mark.parametrize("kind", BLOCKS)
def test_block(kind: str, device: Any) -> None:
    """A block by itself, by position and by keyword."""
    block = seeded(BLOCKS[kind], device).eval()
    reference = copy.deepcopy(block)
    assert fastops.nn.convert(block).replaced
    x = torch.randn(3, 5, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(device, WIDEST)
    x.requires_grad_()
    results = []
    for module in (block, reference):
        value = module(x)
        results.append([value, *torch.autograd.grad((value**2).sum(), [x, *module.parameters()])])
    close(*results)
    name = next(iter(inspect.signature(block.forward).parameters))
    close([block(**{name: x})], [reference(x)])


@pytest.mark.parametrize("kind", ["T5DenseActDense", "T5DenseGatedActDense"])
def test_layers_of_two_dtypes(kind: str, device: Any) -> None:
    """T5 casts before a last layer that was kept in float32."""
    block = seeded(BLOCKS[f"transformers.models.t5.modeling_t5.{kind}"], device).eval().bfloat16()
    block.wo.float()
    x = torch.randn(3, 12, generator=torch.Generator().manual_seed(2)).to(device, torch.bfloat16)
    expected = block(x)
    assert fastops.nn.convert(block).replaced
    assert expected.dtype == torch.float32
    assert torch.equal(block(x), expected)


def test_transposed_layers(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2's linear layers are looked at in each call, as torch.nn's are."""
    block = seeded(BLOCKS["transformers.models.gpt2.modeling_gpt2.GPT2MLP"], device).eval()
    reference = copy.deepcopy(block)
    assert fastops.nn.convert(block).replaced
    x = torch.randn(3, 5, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(device, WIDEST)

    def check(*ops: str) -> None:
        with CalledOps() as called:
            result = block(x)
        close([result], [reference(x)])
        assert called.names == list(ops)

    with torch.no_grad():
        check("mlp")
        handles = [module.c_fc.register_forward_hook(lambda _, __, output: 2 * output) for module in (block, reference)]
        check()
        for handle in handles:
            handle.remove()
        check("mlp")
        for module in (block, reference):
            module.c_proj.forward = lambda input: input[..., :12].sin()
        check("linear_act")
        for module in (block, reference):
            del module.c_proj.forward
            weight = module.c_fc.weight.detach() / 2
            del module.c_fc.weight
            module.c_fc.register_buffer("weight", weight)
        check("mlp")
        addmm = torch.addmm
        with monkeypatch.context() as patch:
            patch.setattr(torch, "addmm", lambda *arguments: 3 * addmm(*arguments))
            check()
        check("mlp")
        monkeypatch.setattr(type(block.c_fc), "forward", lambda self, input: input @ self.weight)
        check()


def test_compiled_model(device: Any) -> None:
    """torch.compile of a converted model, without graph breaks in its blocks."""
    model = seeded(MODELS["timm ViT"][0], device).eval()
    x = MODELS["timm ViT"][1]().to(device)
    expected = model(x)
    fastops.nn.convert(model)
    close([torch.compile(model, fullgraph=True, backend="aot_eager")(x)], [expected])


def test_replaced_activation(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function that an activation of transformers keeps, and the forward of its class, may be replaced."""
    activations = importlib.import_module("transformers.activations")
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4), activations.GELUActivation(), nn.Linear(4, 4)), device)
    reference = copy.deepcopy(model)
    assert fastops.nn.convert(model).replaced
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(device, WIDEST)
    for act in (torch.sin, nn.functional.silu, nn.functional.gelu):
        model[1].act = reference[1].act = act
        close([model(x)], [reference(x)])
    monkeypatch.setattr(activations.GELUActivation, "forward", lambda self, input: input.cos())
    close([model(x)], [reference(x)])


@pytest.mark.parametrize(
    ("library", "name"),
    [
        (library, name)
        for library, names in OTHER_CLASSES.items()
        for name in names
        if hasattr(importlib.import_module(library), name)  # transformers 4 and 5 have not the same
    ],
)
def test_activation(library: str, name: str, device: Any) -> None:
    """The activations of timm and transformers are what the table says."""
    module = getattr(importlib.import_module(library), name)()
    activation, params = resolve(module)
    x = torch.linspace(-6, 6, 101, dtype=WIDEST, device=device)
    close([getattr(torch.ops.fastops, activation)(x, *params)], [module(x)])


def test_documentation() -> None:
    """The tables of the documentation are the ones that the code gives."""
    rows = []
    for name, make in BLOCKS.items():
        block = make()
        formula = read(block)
        ops = fastops.nn.convert(block).replaced[0].ops
        rows.append(f"| `{name.partition('.')[0]}` | `{name.rpartition('.')[2]}` | `{formula}` | `{ops}` |")
    for library, names in OTHER_CLASSES.items():
        rows += [f"| `{library}` | `{name}` | `{activation}` |" for name, activation in names.items()]
        assert set(names.values()) <= set(ACTIVATIONS)
    text = DOCUMENTATION.read_text(encoding="utf-8")
    missing = [row for row in rows if row not in text]
    assert not missing, "docs/convert.md lacks\n" + "\n".join(missing)
