"""Nothing that somebody does to modules is left out: one op stands for plain torch.nn alone."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules_of_torch

import fastops
from fastops.nn import MLP, LinearAct
from modules import PAIRS, batch, seeded, value_and_gradients
from sample import close

KINDS = ["MLP", "MLP without bias", "GatedMLP", "LinearAct"]
each_kind = pytest.mark.parametrize("kind", KINDS)


def pair(kind: str, device: Any) -> tuple[nn.Module, nn.Module]:
    """The module and its equivalent in torch.nn, with the same parameters and without dropout."""
    ours, reference = (seeded(make, device).eval() for make in PAIRS[kind])
    return ours, reference


def is_one_op(module: nn.Module, device: Any) -> bool:
    """Whether nothing but the module's op computes its result."""
    return "Fastops" in module(batch(device)).grad_fn.name()


def assert_equivalent(ours: nn.Module, reference: nn.Module, device: Any) -> None:
    """Values and gradients are the same."""
    x = batch(device)
    results = [value_and_gradients(module, list(module.parameters()), x) for module in (ours, reference)]
    close(*results)


def linears(module: nn.Module) -> list[nn.Linear]:
    """The layers, in order."""
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


@each_kind
def test_one_op(kind: str, device: Any) -> None:
    """With modules as torch.nn has them, one op computes all."""
    module, reference = pair(kind, device)
    assert is_one_op(module, device)
    assert not is_one_op(reference, device)


# ---- all modules are watched ----


@pytest.fixture
def seen() -> Iterator[list[str]]:
    """What hooks note; the hooks of all modules are removed afterwards."""
    yield []
    assert not modules_of_torch._has_any_global_hook()


GLOBAL_HOOKS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "forward": (modules_of_torch.register_module_forward_hook, lambda module, args, output: output * 2),
    "forward_pre": (modules_of_torch.register_module_forward_pre_hook, lambda module, args: (args[0] * 2,)),
    "full_backward": (
        modules_of_torch.register_module_full_backward_hook,
        lambda module, inputs, outputs: (inputs[0] * 2,) if inputs[0] is not None else None,
    ),
    "full_backward_pre": (
        modules_of_torch.register_module_full_backward_pre_hook,
        lambda module, outputs: (outputs[0] * 2,),
    ),
}


@pytest.mark.parametrize("name", GLOBAL_HOOKS)
@pytest.mark.parametrize("kind", ["MLP", "GatedMLP"])
@pytest.mark.parametrize("compiled", [False, True])
def test_global_hooks(name: str, kind: str, compiled: bool, seen: list[str], device: Any) -> None:
    """Hooks of all modules see the layers, and what they return counts."""
    register, change = GLOBAL_HOOKS[name]
    if compiled and name != "forward":
        pytest.skip("one is enough: torch.compile follows the same code")

    def hook(module: nn.Module, *args: Any) -> Any:
        if type(module) is nn.Linear:
            if not torch.compiler.is_compiling():
                seen.append(type(module).__name__)
            return change(module, *args)
        return None

    ours, reference = pair(kind, device)
    handle = register(hook)
    try:
        called = torch.compile(ours, backend="aot_eager", fullgraph=True) if compiled else ours
        x = batch(device)
        close(*(value_and_gradients(f, list(ours.parameters()), x) for f in (called, ours)))
        assert_equivalent(ours, reference, device)
    finally:
        handle.remove()
    assert seen
    assert is_one_op(ours, device)
    assert_equivalent(ours, reference, device)


# ---- classes and functions are replaced ----


def doubling(function: Callable[..., Any]) -> Callable[..., Any]:
    """What somebody puts in a function's place."""

    def replacement(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * 2

    return replacement


def doubling_layers(function: Callable[..., Any]) -> Callable[..., Any]:
    """What somebody puts in the place of a method of all modules."""

    def replacement(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = function(self, *args, **kwargs)
        return result * 2 if type(self) is nn.Linear else result

    return replacement


REPLACED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "Linear.forward": (nn.Linear, "forward", doubling),
    "Linear.__call__": (nn.Linear, "__call__", doubling),
    "Module.__call__": (nn.Module, "__call__", doubling_layers),
    "Module._call_impl": (nn.Module, "_call_impl", doubling_layers),
    "F.linear": (nn.functional, "linear", doubling),
    "Softshrink.forward": (nn.Softshrink, "forward", doubling),
    "F.softshrink": (nn.functional, "softshrink", doubling),
}


@pytest.mark.parametrize("name", REPLACED)
@pytest.mark.parametrize("compiled", [False, True])
def test_replaced_functions(name: str, compiled: bool, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method of a class or a function of torch.nn that somebody replaced is called."""
    if compiled and name.endswith(("__call__", "_call_impl")):
        pytest.skip("torch.compile does not follow those of torch.nn.Module")
    owner, attribute, replacement = REPLACED[name]
    torch.compiler.reset()  # each of these is another graph of the same code
    ours, reference = pair("MLP", device)
    plain = ours(batch(device))
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, replacement(getattr(owner, attribute)))
        called = torch.compile(ours, backend="aot_eager", fullgraph=True) if compiled else ours
        assert not torch.allclose(called(batch(device)), plain)
        close(called(batch(device)), reference(batch(device)))
        assert_equivalent(ours, reference, device)
    assert is_one_op(ours, device)
    assert torch.equal(ours(batch(device)), plain)


@pytest.mark.parametrize("kind", ["MLP", "GatedMLP", "converted"])
def test_forward_of_a_layer_that_is_replaced_after_compilation(kind: str, device: Any) -> None:
    """A module that is compiled calls it from then on, as PyTorch's do."""
    ours, reference = pair("MLP" if kind == "converted" else kind, device)
    if kind == "converted":
        ours = copy.deepcopy(reference)
        assert fastops.nn.convert(ours).replaced
    torch.compiler.reset()
    x, compiled = batch(device), torch.compile(ours, backend="aot_eager", fullgraph=True)
    close(compiled(x), reference(x))
    for module in (ours, reference):
        layer = linears(module)[0]
        layer.forward = doubling(layer.forward)
    close(compiled(x), reference(x))


def test_replaced_functions_of_others(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """GatedMLP and LinearAct see that linear layers do something else now."""
    for kind in ("GatedMLP", "LinearAct"):
        ours, reference = pair(kind, device)
        with monkeypatch.context() as patch:
            patch.setattr(nn.functional, "linear", doubling(nn.functional.linear))
            assert_equivalent(ours, reference, device)
        assert is_one_op(ours, device)


def test_replaced_before_fastops_was_imported() -> None:
    """What somebody replaced before is called, too."""
    program = """
import torch
from torch import nn
forward = nn.Linear.forward
nn.Linear.forward = lambda self, x: 2 * forward(self, x)
import fastops
mlp, x = fastops.nn.MLP(3, [], 2), torch.ones(1, 3)
assert torch.equal(mlp(x), nn.Sequential(*mlp)(x))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# ---- layers that are more than torch.nn.Linear ----


class Called(nn.Linear):
    """A layer whose call, not its forward, does more."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) * 2


class Fetching(OrderedDict[str, Any]):
    """Parameters that are fetched when they are asked for, as those that are partitioned among machines."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        return value if value is None else value * 2


def fetch(layer: nn.Linear) -> None:
    """Puts a layer's parameters elsewhere."""
    layer._parameters = Fetching(layer._parameters)


def set_call(layer: nn.Linear) -> None:
    """Somebody's call, on the layer itself."""
    layer._call_impl = lambda x: nn.Linear.forward(layer, x) * 2


def set_compiled_call(layer: nn.Linear) -> None:
    """A call as layer.compile() leaves it on the layer."""
    layer._compiled_call_impl = lambda x: nn.Linear.forward(layer, x) * 2


def set_class(layer: nn.Linear) -> None:
    """Somebody's class."""
    layer.__class__ = Called


def test_order_of_modules(device: Any) -> None:
    """Is that in which Python has them, also where somebody has moved one: an OrderedDict has an order of its own."""
    mlp = MLP(6, [6], 6, activation="tanh", device=device)
    del mlp[len(mlp) - 1]  # which makes it an OrderedDict
    mlp.append(nn.Linear(6, 6, device=device))
    mlp._modules.move_to_end("0")  # type: ignore[attr-defined]
    mlp.append(nn.Tanh())
    x = batch(device).to(torch.float32)
    expected = x
    for module in mlp:
        expected = module(expected)
    close(mlp(x), expected)


@pytest.mark.parametrize("change", [fetch, set_call, set_compiled_call, set_class])
@pytest.mark.parametrize("kind", ["MLP", "GatedMLP"])
def test_changed_layers(change: Callable[[nn.Linear], None], kind: str, device: Any) -> None:
    """A layer that is more than its class says is called."""
    ours, reference = pair(kind, device)
    x = batch(device)
    plain = ours(x)
    for module in (ours, reference):
        change(linears(module)[0])
    assert not torch.allclose(ours(x), plain)
    close(ours(x), reference(x))


def as_attribute(module: nn.Module, name: str, value: Tensor | None) -> None:
    """As FSDP leaves parameters while they are gathered."""
    delattr(module, name)
    setattr(module, name, value)


def as_buffer(module: nn.Module, name: str, value: Tensor | None) -> None:
    """As frozen parameters are."""
    delattr(module, name)
    module.register_buffer(name, value)


@pytest.mark.parametrize("place", [as_attribute, as_buffer])
@pytest.mark.parametrize(
    "kind", ["MLP", "GatedMLP with bias", "MLP with norms", "MLP with residual", "GatedMLP with norm"]
)
def test_tensors_that_are_no_parameters(place: Callable[..., None], kind: str, device: Any) -> None:
    """Weights and biases are found where torch.nn.Module finds them, and one op still stands for the modules."""
    ours, reference = pair(kind, device)
    for module in (ours, reference):
        for layer in list(module.modules()):
            for name, parameter in list(layer.named_parameters(recurse=False)):
                place(layer, name, torch.linspace(-1, 2, parameter.numel()).view_as(parameter).to(parameter))
        assert not list(module.parameters())
    x = batch(device).requires_grad_()
    close(ours(x), reference(x))
    assert "Fastops" in ours(x).grad_fn.name()
    del linears(ours)[0].bias
    with pytest.raises(AttributeError, match="bias"):
        ours(x)


class Half(Tensor):
    """A weight of another class, that stands for half of its values."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear:
            x, weight, *bias = (arg.as_subclass(Tensor) if isinstance(arg, Tensor) else arg for arg in args)
            return func(x, weight / 2, *bias)
        return super().__torch_function__(func, types, args, kwargs)


@each_kind
def test_weights_of_another_class(kind: str, device: Any) -> None:
    """Such a weight decides itself what a linear layer is."""
    ours, reference = pair(kind, device)
    for module in (ours, reference):
        for layer in module.modules():
            if isinstance(layer, (nn.Linear, LinearAct)):
                weight = layer.weight.detach().as_subclass(Half)
                del layer.weight
                layer.register_parameter("weight", nn.Parameter(weight, requires_grad=False))
                assert type(layer.weight) is Half
    x = batch(device)
    assert type(ours(x)) is Tensor
    close(ours(x), reference(x))


@each_kind
def test_sparse_weights(kind: str, device: Any) -> None:
    """Sparse weights are multiplied as in torch.nn."""
    if device.type != "cpu":
        pytest.skip("sparse products of other devices are theirs")
    ours, reference = pair(kind, device)
    x = batch(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse CSR is in beta
        for module in (ours, reference):
            for layer in module.modules():
                if isinstance(layer, (nn.Linear, LinearAct)):
                    layer.weight = nn.Parameter(layer.weight.detach().to_sparse_csr(), requires_grad=False)
        close(ours(x), reference(x))


@each_kind
def test_computed_weights_are_computed_once(kind: str, device: Any) -> None:
    """A parametrization runs once in each call."""

    class Counting(nn.Module):
        calls = 0

        def forward(self, weight: Tensor) -> Tensor:
            Counting.calls += 1
            return weight / 2

    ours, reference = pair(kind, device)
    for module in (ours, reference):
        for layer in [layer for layer in module.modules() if isinstance(layer, (nn.Linear, LinearAct))]:
            nn.utils.parametrize.register_parametrization(layer, "weight", Counting())
        Counting.calls = 0
        module(batch(device))
        layers = sum("parametrizations.weight" in name and "." not in name for name, _ in module.named_modules())
        assert Counting.calls == max(layers, len(linears(module)), 1)
    assert_equivalent(ours, reference, device)


# ---- LinearAct is no linear layer ----


def test_linear_act_is_not_taken_for_a_linear_layer(device: Any) -> None:
    """What looks for linear layers, to merge adapters or to quantize them, must not find it."""
    layer = LinearAct(6, 3, device=device)
    assert not isinstance(layer, nn.Linear)
    assert list(layer.state_dict()) == ["weight", "bias"]
    if device.type == "cpu":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated
            quantized = torch.ao.quantization.quantize_dynamic(nn.Sequential(copy.deepcopy(layer)), {nn.Linear})
        x = torch.randn(5, 6)
        close(quantized(x), layer(x))


# ---- what may not deadlock ----


def test_first_calls_from_two_threads() -> None:
    """No call imports anything under a lock that other threads wait for while they hold the GIL."""
    program = """
import builtins, threading, time
import torch, fastops
importing = builtins.__import__
def slow(name, *args, **kwargs):
    time.sleep(0.2)
    return importing(name, *args, **kwargs)
mlp, x = fastops.nn.MLP(3, 4, 2), torch.ones(1, 3)
builtins.__import__ = slow
threads = [threading.Thread(target=mlp, args=(x,)) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# ---- arguments that are no tensors ----


@pytest.mark.parametrize("value", [[1.0], None, 2.0], ids=str)
def test_no_tensor(value: Any, device: Any) -> None:
    """The error names the argument and what it got."""
    activation = fastops.nn.Softshrink()
    in_place = fastops.nn.ReLU(inplace=True)
    for module in (MLP(6, 8), fastops.nn.GatedMLP(6, 8), LinearAct(6, 3), activation, in_place):
        with pytest.raises(TypeError, match=f"^fastops.*: input must be a tensor, but is a {type(value).__name__}$"):
            module(value)


def test_convert_leaves_them(device: Any) -> None:
    """They are one op already: fastops.nn.convert has nothing to say of them."""
    model = nn.Sequential(
        MLP(6, 8), fastops.nn.GatedMLP(6, 8), LinearAct(6, 6), nn.Sequential(LinearAct(6, 6), nn.ReLU())
    )
    report = fastops.nn.convert(model)
    assert not report.replaced and not report.left


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize(
    "eps", [1, 0.5, np.float32(0.1), np.float64(0.1), torch.tensor(0.1), None], ids=lambda eps: type(eps).__name__
)
def test_eps_of_norms(kind: type[nn.Module], eps: Any, device: Any) -> None:
    """Whatever number it is, it is the norm's; an RMSNorm may have none."""
    if kind is nn.LayerNorm and eps is None:
        pytest.skip("it has one")
    eps = eps.to(device) if isinstance(eps, Tensor) else eps

    def network() -> nn.Sequential:
        return nn.Sequential(nn.Linear(6, 8), kind(8, eps=eps), nn.ReLU(), nn.Linear(8, 3))  # type: ignore[call-arg]

    reference = seeded(network, device)
    assert_equivalent(MLP.from_sequential(seeded(network, device)), reference, device)
    converted = seeded(network, device)
    fastops.nn.convert(converted)
    assert_equivalent(converted, reference, device)


@pytest.mark.parametrize("name", ["min_val", "max_val"])
def test_bounds_of_relu6(name: str, device: Any) -> None:
    """They are a Hardtanh's, which somebody may change."""
    models = [seeded(lambda: MLP(6, 8, 3, activation=nn.ReLU6()), device)]
    models.append(seeded(lambda: nn.Sequential(*MLP(6, 8, 3, activation=nn.ReLU6())), device))
    fastops.nn.convert(models[1])
    reference = nn.Sequential(*copy.deepcopy(models[0]))
    for each in (*models, reference):
        each(batch(device))
        setattr(each[1], name, 0.25)
    for each in models:
        assert_equivalent(each, reference, device)
