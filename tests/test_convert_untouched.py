"""Converted modules where programs hook, patch, parametrize or subclass: nothing is bypassed, nothing done twice."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import fastops
from convertible import Chain, Gated, assert_same, converted, ops_of, two_layers
from modules import batch

calls: list[str] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    """Each test notes its own."""
    calls.clear()


class Noise(nn.Module):
    """A parametrization that draws random numbers."""

    def forward(self, weight: Tensor) -> Tensor:
        calls.append("noise")
        return weight + torch.rand_like(weight)


PARAMETRIZATIONS: dict[str, Callable[[nn.Linear], Any]] = {
    "random": lambda layer: parametrize.register_parametrization(layer, "weight", Noise()),
    "random bias": lambda layer: parametrize.register_parametrization(layer, "bias", Noise()),
    "spectral_norm": parametrizations.spectral_norm,
    "weight_norm": parametrizations.weight_norm,
    "old spectral_norm": torch.nn.utils.spectral_norm,
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", PARAMETRIZATIONS)
@pytest.mark.parametrize("make", [two_layers, Gated])
def test_parametrizations(make: Any, kind: str, when: str, device: Any) -> None:
    """They are evaluated exactly as often as without conversion: buffers, random numbers and calls are the same."""

    def register(model: nn.Module) -> None:
        torch.manual_seed(2)
        for layer in [layer for layer in model.modules() if type(layer) is nn.Linear][:2]:
            PARAMETRIZATIONS[kind](layer)

    def parametrized() -> nn.Module:
        model = make().requires_grad_(False)
        if when == "before":
            register(model)
        return model

    model, reference, report = converted(parametrized, device)
    calls.clear()
    report.revert()
    state = torch.get_rng_state()
    fastops.nn.convert(model)
    assert not calls
    assert torch.equal(state, torch.get_rng_state())
    if when == "after":
        register(model)
        register(reference)
    seen = []
    for each in (model, reference):
        calls.clear()
        torch.manual_seed(5)
        values = [each(batch(device)).detach() for _ in range(3)]
        seen.append((list(calls), [*values, torch.get_rng_state(), *each.buffers()]))
    assert seen[0][0] == seen[1][0]
    torch.testing.assert_close(seen[0][1], seen[1][1])


@contextlib.contextmanager
def global_hook(kind: str) -> Iterator[None]:
    """A hook of all modules that notes their classes."""

    def note(module: nn.Module, *_: Any) -> None:
        calls.append(type(module).__name__)

    handle = getattr(nn.modules.module, f"register_module_{kind}")(note)
    try:
        yield
    finally:
        handle.remove()


def patched(owner: Any, name: str) -> Any:
    """Something else, that notes that it was called, in the place of a function."""
    function = getattr(owner, name)

    def other(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return 1.5 * function(*args, **kwargs)

    return mock.patch.object(owner, name, other)


OTHERS: dict[str, Callable[[], Any]] = {
    **{
        kind: (lambda kind=kind: global_hook(kind))
        for kind in ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook")
    },
    "F.linear": lambda: patched(F, "linear"),
    "F.silu": lambda: patched(F, "silu"),
    "Linear.forward": lambda: patched(nn.Linear, "forward"),
    "SiLU.forward": lambda: patched(nn.SiLU, "forward"),
    "Module.__call__": lambda: patched(nn.Module, "__call__"),
    "Linear.__call__": lambda: patched(nn.Linear, "__call__"),
}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("form", [Chain, Gated])
def test_patches(form: Any, kind: str, device: Any) -> None:
    """Hooks of all modules, and what takes the place of PyTorch's functions and forwards, are called as before."""
    model, reference, _ = converted(lambda: form().eval().requires_grad_(False), device)
    ops = ops_of(model, batch(device))
    assert ops
    with OTHERS[kind]():
        assert_same(reference, reference, device)
        expected = calls[len(calls) // 2 :]
        calls.clear()
        assert_same(model, model, device)
        assert calls[len(calls) // 2 :] == expected
        assert expected
        assert_same(model, reference, device)
    assert_same(model, reference, device)
    assert ops_of(model, batch(device)) == ops


class Counted(Tensor):
    """A tensor that wants to see what is done with it."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        calls.append(getattr(function, "__name__", ""))
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_weights_of_other_classes(name: str, device: Any) -> None:
    """A layer whose weight or bias is of another class is called."""
    model, reference, _ = converted(lambda: two_layers().requires_grad_(False), device)
    for each in (model, reference):
        for layer in (each[0], each[2]):
            value = getattr(layer, name).detach().as_subclass(Counted)
            setattr(layer, name, nn.Parameter(value, requires_grad=False))
    seen, values = [], []
    for each in (model, reference):
        calls.clear()
        value = each(batch(device))
        seen.append(list(calls))
        values.append(value.as_subclass(Tensor))
    assert seen[0] == seen[1]
    assert seen[0].count("linear") == 2
    torch.testing.assert_close(*values)


def test_weights_of_other_classes_are_not_asked(device: Any) -> None:
    """What convert looks at runs no code of a tensor's class."""
    model = two_layers().to(device).requires_grad_(False)
    for layer in (model[0], model[2]):
        layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Counted), requires_grad=False)
    calls.clear()
    report = fastops.nn.convert(model)
    assert not calls
    assert report.left


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse_weight(device: Any) -> None:
    """A sparse weight takes the layer's own way."""
    if device.type != "cpu":
        pytest.skip("sparse products are tested on the CPU")
    model, reference, _ = converted(lambda: two_layers().requires_grad_(False), device)
    for each in (model, reference):
        each[0].weight = nn.Parameter(each[0].weight.detach().to_sparse_csr(), requires_grad=False)
    torch.testing.assert_close(model(batch(device)), reference(batch(device)))
    assert not ops_of(model, batch(device))


class CallsTwice(nn.Linear):
    def __call__(self, x: Tensor) -> Tensor:
        return 2 * super().__call__(x)


class Doubled(nn.Linear):
    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return 2 * self._parameters["weight"]


@pytest.mark.parametrize("kind", [CallsTwice, Doubled])
def test_subclasses_of_linear(kind: Any, device: Any) -> None:
    """A class with the forward of Linear may still do more."""

    def make() -> nn.Module:
        model = two_layers()
        model[0].__class__ = kind
        return model

    model, reference, _ = converted(make, device)
    assert_same(model, reference, device)
    assert not ops_of(model, batch(device))


UNUSUAL: dict[str, Callable[[Gated], Any]] = {
    "bias of one element": lambda block: setattr(block.gate, "bias", nn.Parameter(block.gate.bias.detach()[:1])),
    "one gate": lambda block: setattr(block, "gate", nn.Linear(6, 1).to(block.up.weight)),
    "one feature": lambda block: setattr(block, "up", nn.Linear(6, 1).to(block.up.weight)),
    "learned slope": lambda block: setattr(block, "act", slope(block.up.weight)),
    "ReLU6 with another bound": lambda block: setattr(block, "act", bounded()),
    "in-place activation of the input": lambda block: block.__dict__.update(_modules=inplace(block)),
}


def slope(like: Tensor) -> nn.Module:
    activation = nn.LeakyReLU(0.2)
    activation.negative_slope = nn.Parameter(torch.tensor(0.7).to(like), requires_grad=False)
    return activation


def bounded() -> nn.Module:
    activation = nn.ReLU6()
    activation.max_val = 0.25
    return activation


def inplace(block: nn.Module) -> dict[str, Any]:
    square = nn.Linear(6, 6).to(block.up.weight)
    nn.init.eye_(square.weight)
    return {**block._modules, "gate": nn.Identity(), "act": nn.SiLU(inplace=True), "up": square, "down": square}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_layers(kind: str, device: Any) -> None:
    """What PyTorch takes and fastops does not is computed as before."""
    model, reference, _ = converted(lambda: Gated().requires_grad_(False), device)
    for each in (model, reference):
        torch.manual_seed(3)
        UNUSUAL[kind](each)
    x, y = batch(device), batch(device)
    torch.testing.assert_close(model(x), reference(y))
    torch.testing.assert_close(x, y)


def test_errors(device: Any) -> None:
    """Inputs of a wrong size or dtype have the errors of PyTorch."""
    model, reference, _ = converted(two_layers, device)
    for x in (batch(device, 3, 5), batch(device).to(torch.complex64), batch(device).bfloat16(), None):
        errors = []
        for each in (model, reference):
            with pytest.raises((RuntimeError, TypeError)) as error:
                each(x)
            errors.append((type(error.value), str(error.value)))
        assert errors[0] == errors[1]


def test_errors_of_layers(device: Any) -> None:
    """An error that a layer raises is raised by its only call."""

    class Refusing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            calls.append("refusing")
            raise ValueError("not this")

    for make, name in ((Gated, "up"), (Gated, "gate"), (Chain, "up"), (Chain, "down")):
        model, _, _ = converted(make, device)
        setattr(model, name, Refusing())
        with pytest.raises(ValueError, match="not this"):
            model(batch(device))
    assert len(calls) == 4


def test_result_that_is_overwritten(device: Any) -> None:
    """A result that the next layer writes over is not one that an op keeps for the backward pass."""
    make = lambda: nn.Sequential(nn.Linear(6, 8), nn.ELU(), nn.Dropout(0.5, inplace=True), nn.Linear(8, 6))  # noqa: E731
    model, reference, _ = converted(make, device)
    assert_same(model.train(), reference.train(), device)


def test_saved_elsewhere(device: Any) -> None:
    """A model that is loaded meets the patches of its process, too."""
    model, reference, _ = converted(lambda: Chain().eval().requires_grad_(False), device)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    with patched(F, "silu"):
        assert_same(loaded, reference, device)
        assert "silu" in calls
