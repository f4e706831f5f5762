"""What is done with modules: copies, TorchScript, devices, dtypes, autocast, checkpoints."""

from __future__ import annotations

import contextlib
import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import fastops.nn
from checks import assert_same_bits
from fastops.nn import MLP, GatedMLP, LinearAct
from modules import CLASSES, MODULES, PAIRS, batch, each_module, each_pair, seeded, value_and_gradients
from sample import close
from strategies import WIDEST

# ---- copies and other formats ----


@each_module
def test_pickle_and_deepcopy(kind: str, device: Any) -> None:
    """A pickled and a copied module compute the same with parameters of their own."""
    module = seeded(MODULES[kind], device).eval()
    x = batch(device)
    for copied in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module), copy.copy(module)):
        close(copied(x), module(x))
        assert repr(copied) == repr(module)
    assert not set(copy.deepcopy(module).parameters()) & set(module.parameters())


@each_module
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_script(kind: str, training: bool, device: Any, tmp_path: Any) -> None:
    """A scripted module has the module's values and gradients, and still does once saved and loaded."""
    module = seeded(MODULES[kind], device).train(training)
    x = batch(device)
    scripted = torch.jit.script(module)
    scripted.save(str(tmp_path / "module.pt"))
    results = []
    for made in (module, scripted, torch.jit.load(str(tmp_path / "module.pt"))):
        torch.manual_seed(6)
        results.append(value_and_gradients(made, made.parameters(), x))
    close(results[1], results[0])
    close(results[2], results[0])


@each_module
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_trace(kind: str, device: Any) -> None:
    """A traced module computes with the input and the parameters that it is given, not with those of the trace."""
    module = seeded(MODULES[kind], device).eval()
    traced = torch.jit.trace(module, batch(device) / 2)
    x = batch(device, 3, 6)
    close(traced(x), module(x))
    close(*(value_and_gradients(made, made.parameters(), x) for made in (traced, module)))


def test_fx_trace(device: Any) -> None:
    """torch.fx.symbolic_trace records an MLP's op."""
    module = seeded(MODULES["MLP"], device)
    close(torch.fx.symbolic_trace(module)(batch(device)), module(batch(device)))


# ---- devices, dtypes, modes ----


@each_module
def test_meta_device(kind: str, device: Any) -> None:
    """Made on the meta device a module computes shapes, and to_empty gives it memory."""
    with torch.device("meta"):
        module = MODULES[kind]().eval()
    y = module(torch.empty(7, 6, device="meta"))
    assert y.is_meta
    real = seeded(MODULES[kind], device, torch.float32).eval()
    assert y.shape == real(batch(device, dtype=torch.float32)).shape
    module = module.to_empty(device=device)
    module.load_state_dict(real.state_dict())
    x = batch(device, dtype=torch.float32)
    torch.testing.assert_close(module(x), real(x))


@each_module
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_to_dtype(kind: str, dtype: torch.dtype, device: Any) -> None:
    """Converted, a module computes in the dtype, close to the widest."""
    exact = seeded(MODULES[kind], device).eval()
    module = copy.deepcopy(exact).to(dtype)
    y = module(batch(device, dtype=dtype))
    assert y.dtype == dtype
    tolerance = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(y.to(WIDEST), exact(batch(device)), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("make", [MLP, GatedMLP, LinearAct])
def test_device_and_dtype_arguments(make: Any) -> None:
    """device= and dtype= are those of the parameters."""
    for parameter in make(6, 8, bias=True, device="meta", dtype=torch.bfloat16).parameters():
        assert parameter.is_meta and parameter.dtype == torch.bfloat16


@each_module
@pytest.mark.parametrize("checkpoint", [False, True])
def test_input_of_another_dtype(kind: str, checkpoint: bool, device: Any) -> None:
    """Is refused, whatever the modules are and the mode, as torch.nn does."""
    module = seeded(MODULES[kind], device, torch.float32)
    if not any(True for _ in module.parameters()):
        pytest.skip("it has no dtype")
    x = batch(device, dtype=torch.float32).bfloat16()
    if hasattr(module, "checkpoint"):
        module.checkpoint = checkpoint  # type: ignore[assignment]
    for training in (True, False):
        with pytest.raises((TypeError, RuntimeError), match=r"same dtype|[Ff]loat"):
            module.train(training)(x)


@each_pair
@pytest.mark.parametrize("training", [False, True])
def test_autocast(kind: str, training: bool, device: Any) -> None:
    """Under autocast the result is bfloat16 and close to float32, and parameters get float32 gradients.

    What is added to a residual of float32 is float32, as with torch.nn.
    """
    module = seeded(MODULES[kind], device, torch.float32).train(training)
    x = batch(device, dtype=torch.float32)
    torch.manual_seed(7)
    expected = value_and_gradients(module, module.parameters(), x)

    def cast(x: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return module(x)

    torch.manual_seed(7)
    actual = value_and_gradients(cast, module.parameters(), x)
    first = torch.float32 if kind in ("MLP with residual", "GatedMLP with norm") else torch.bfloat16
    assert [result.dtype for result in actual] == [first] + [torch.float32] * (len(actual) - 1)
    for a, e in zip(actual, expected, strict=True):
        assert (a.float() - e).norm() <= 0.03 * e.norm()


@pytest.mark.parametrize("class_name", CLASSES)
def test_autocast_leaves_activations(class_name: str, device: Any) -> None:
    """Under autocast an activation keeps its input's dtype."""
    with torch.autocast(device.type, torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            assert getattr(fastops.nn, class_name)()(batch(device, dtype=dtype)).dtype == dtype


def test_autocast_disabled_inside(device: Any) -> None:
    """A region without autocast computes in the input's dtype."""
    mlp = seeded(MODULES["MLP"], device, torch.float32)
    x = batch(device, dtype=torch.float32)
    with torch.autocast(device.type, torch.bfloat16), torch.autocast(device.type, enabled=False):
        assert torch.equal(mlp(x), mlp(x))
        assert mlp(x).dtype == torch.float32


@each_module
def test_without_gradients(kind: str, device: Any) -> None:
    """inference_mode and no_grad give the same values without a graph."""
    module = seeded(MODULES[kind], device).eval()
    x = batch(device)
    expected = module(x)
    with torch.inference_mode():
        y = module(x)
        assert y.is_inference()
    close(y, expected)
    with torch.no_grad():
        y = module(x)
    assert not y.requires_grad
    close(y, expected)


@each_pair
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(kind: str, use_reentrant: bool, device: Any) -> None:
    """Checkpointed, a module has the same values and gradients, dropout included."""
    module = seeded(MODULES[kind], device).train()
    x = batch(device)
    results = []
    for run in (module, lambda x: checkpoint(module, x, use_reentrant=use_reentrant)):
        torch.manual_seed(8)
        inputs = x.clone().requires_grad_()
        module.zero_grad()
        value = run(inputs)
        (value**2).sum().backward()
        results.append([value, inputs.grad, *[parameter.grad for parameter in module.parameters()]])
    close(*results)


@pytest.mark.parametrize("kind", ["MLP", "MLP with norms", "MLP with residual", "GatedMLP", "GatedMLP with norm"])
@pytest.mark.parametrize("hooked", [False, True])
def test_own_checkpoint_under_func(kind: str, hooked: bool, device: Any) -> None:
    """Where PyTorch lets nothing be computed again, all is kept."""
    module = seeded(MODULES[kind], device).eval()
    if hooked:
        add_hook(module, None)
    x = batch(device)
    results = []
    for module.checkpoint in (False, True):  # type: ignore[assignment]
        results.append(torch.func.grad(lambda x: (module(x) ** 2).sum())(x))
    close(*results)


@each_pair
def test_own_checkpoint(kind: str, device: Any) -> None:
    """It is the same op: with the same dropout, values and gradients, bit for bit."""
    module = seeded(MODULES[kind], device).train()
    if not hasattr(module, "checkpoint"):
        pytest.skip("it has none")
    results = []
    for module.checkpoint in (False, True):  # type: ignore[assignment]
        torch.manual_seed(8)
        results.append(value_and_gradients(module, module.parameters(), batch(device)))
    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)


def remove_hook(module: nn.Module, handle: Any) -> None:
    """Takes away what was there in the forward pass."""
    handle.remove()


def add_hook(module: nn.Module, handle: Any) -> None:
    """A hook that was not there in the forward pass."""
    next(layer for layer in module.modules() if isinstance(layer, nn.Linear)).register_forward_hook(lambda *_: None)


@pytest.mark.parametrize("change", [None, remove_hook, add_hook])
@pytest.mark.parametrize(
    "kind", ["MLP", "MLP with dropout", "MLP with norms", "MLP with residual", "GatedMLP", "GatedMLP with norm"]
)
def test_own_checkpoint_with_other_hooks(kind: str, change: Any, device: Any) -> None:
    """The backward pass computes again what the forward pass did, though its hooks, or a mode, are others."""
    module = seeded(MODULES[kind], device).train()
    x = batch(device)
    parameters = list(module.parameters())
    results = []
    for module.checkpoint in (False, True):
        handle = None
        if change is remove_hook:
            layer = next(layer for layer in module.modules() if isinstance(layer, nn.Linear))
            handle = layer.register_forward_hook(lambda *_: None)
        torch.manual_seed(8)
        inputs = x.clone().requires_grad_()
        with FlopCounterMode(display=False) if change is None else contextlib.nullcontext():
            value = module(inputs)
        if change is not None:
            change(module, handle)
        results.append([value, *torch.autograd.grad((value**2).sum(), [inputs, *parameters])])
        for layer in module.modules():
            layer._forward_hooks.clear()
    close(*results)


def test_parametrized_layers(device: Any) -> None:
    """torch.nn.utils.parametrizations of the layers take part in the computation."""
    mine, theirs = (seeded(make, device) for make in PAIRS["MLP"])
    for module in (mine, theirs):
        nn.utils.parametrizations.weight_norm(module.get_submodule("0"))
    with torch.no_grad():
        mine.get_submodule("0").parametrizations.weight.original0.mul_(2)
        theirs.get_submodule("0").parametrizations.weight.original0.mul_(2)
    x = batch(device)
    close(*(value_and_gradients(module, module.parameters(), x) for module in (mine, theirs)))
