"""fastops.nn against torch.nn: values, gradients, parameters, state dicts, and all that is done with modules."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fastops.nn
from checks import CalledOps
from expected import activation, sequential_reference
from fastops._steps import dropout_seed
from fastops.nn import MLP, EnsembleMLP, GatedMLP, LinearAct
from modules import CLASSES, MODULES, PAIRS, batch, each_pair, seeded, value_and_gradients
from reference import ACTIVATIONS, parameter_sets
from sample import close
from strategies import WIDEST

# ---- against torch.nn ----


@each_pair
@pytest.mark.parametrize("shape", [(7, 6), (6,), (2, 3, 6), (0, 6)], ids=str)
def test_values_and_gradients(kind: str, shape: tuple[int, ...], device: Any) -> None:
    """With the same parameters a module has the values and gradients of its equivalent."""
    mine, theirs = (seeded(make, device).eval() for make in PAIRS[kind])
    x = batch(device, *shape)
    close(*(value_and_gradients(module, module.parameters(), x) for module in (mine, theirs)))


@each_pair
def test_initialization_and_parameter_order(kind: str, device: Any) -> None:
    """From the same seed, parameters() and their names are those of the equivalent, in the same order."""
    mine, theirs = (seeded(make, device) for make in PAIRS[kind])
    assert [name for name, _ in mine.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    close(list(mine.parameters()), list(theirs.parameters()))


def test_parameters_are_weight_bias_weight_bias() -> None:
    """An MLP's parameters are W0, b0, W1, b1, ..."""
    shapes = [tuple(parameter.shape) for parameter in MLP(6, [8, 5], 3).parameters()]
    assert shapes == [(8, 6), (8,), (5, 8), (5,), (3, 5), (3,)]


@each_pair
def test_state_dict_interchange(kind: str, device: Any) -> None:
    """State dicts load in both directions, strictly."""
    mine, theirs = (make().to(device, WIDEST).eval() for make in PAIRS[kind])
    x = batch(device)
    theirs.load_state_dict(mine.state_dict(), strict=True)
    close(mine(x), theirs(x))
    other = PAIRS[kind][1]().to(device, WIDEST).eval()
    mine.load_state_dict(other.state_dict(), strict=True)
    close(mine(x), other(x))


@each_pair
def test_training_steps(kind: str, device: Any) -> None:
    """Some steps of an optimizer lead to the same parameters."""
    mine, theirs = (seeded(make, device).train() for make in PAIRS[kind])
    for module in (*mine.modules(), *theirs.modules()):
        module.train(not isinstance(module, nn.Dropout))  # which draw other numbers
    x = batch(device)
    for module in (mine, theirs):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        torch.manual_seed(1)
        for _ in range(5):
            optimizer.zero_grad()
            (module(x) ** 2).mean().backward()
            optimizer.step()
    close(list(mine.parameters()), list(theirs.parameters()))


@pytest.mark.parametrize("class_name", CLASSES)
def test_activation_module(class_name: str, device: Any) -> None:
    """An activation's module computes its function with its parameters, in place where asked, and shows them."""
    x = batch(device) * 3
    name = CLASSES[class_name]
    for params in parameter_sets(name):
        module = getattr(fastops.nn, class_name)(*params)
        close(module(x), activation(name, params)(x))
        assert all(str(value) in repr(module) for value in params)
        changed = x.clone()
        assert getattr(fastops.nn, class_name)(*params, inplace=True)(changed) is changed
        close(changed, module(x))


@pytest.mark.parametrize("class_name", sorted(CLASSES.keys() & set(dir(nn)) - {"Identity", "GELU"}))
def test_activation_module_signature(class_name: str) -> None:
    """Parameters have the names, order and defaults that torch.nn gives them."""
    mine, theirs = (inspect.signature(getattr(place, class_name)).parameters for place in (fastops.nn, nn))
    names = [name for name in mine if name != "inplace"]
    assert names == [name for name in theirs if name in names]
    assert [mine[name].default for name in names] == [theirs[name].default for name in names]


# ---- construction ----


@pytest.mark.parametrize("hidden", [8, [8], (8, 5), [], range(7, 9), [np.int64(8), 5]], ids=str)
def test_hidden_features(hidden: Any) -> None:
    """One size, several in any sequence, or none."""
    sizes = [6, *([hidden] if isinstance(hidden, int) else hidden), 3]
    shapes = [tuple(layer.weight.shape) for layer in MLP(6, hidden, 3)[::2]]
    assert shapes == [(after, before) for before, after in itertools.pairwise(sizes)]


@pytest.mark.parametrize("hidden", [8.0, [8, 5.0], None, "8"], ids=str)
def test_bad_hidden_features(hidden: Any) -> None:
    """The message names the argument and shows what it is."""
    for make in (MLP, functools.partial(EnsembleMLP, 3)):
        with pytest.raises(TypeError, match=rf"hidden_features must be .* but is {re.escape(repr(hidden))}"):
            make(6, hidden, 3)


def test_out_features_default() -> None:
    """Without out_features there are as many outputs as inputs."""
    assert MLP(6, 8)(torch.ones(2, 6)).shape == (2, 6)
    assert GatedMLP(6, 8)(torch.ones(2, 6)).shape == (2, 6)


@pytest.mark.parametrize("make", [MLP, GatedMLP, LinearAct])
def test_unknown_activation(make: Any) -> None:
    """The message quotes the name and lists all that there are."""
    with pytest.raises(ValueError, match=f"'swish'.*{', '.join(ACTIVATIONS)}"):
        make(6, 3, activation="swish")
    with pytest.raises(ValueError, match="PReLU is not an activation"):
        make(6, 3, activation=nn.PReLU())
    with pytest.raises(ValueError, match=r"is a class; give a module of it, ReLU\(\)"):
        make(6, 3, activation=nn.ReLU)
    with pytest.raises(ValueError, match="is None; for none, 'identity'"):
        make(6, 3, activation=None)


@pytest.mark.parametrize("norm", ["batch", [1], 2])
@pytest.mark.parametrize("make", [MLP, GatedMLP])
def test_bad_norm(norm: Any, make: Any) -> None:
    """There are two."""
    with pytest.raises(ValueError, match="norm must be 'layer', 'rms' or None, but is "):
        make(6, 8, norm=norm)


@pytest.mark.parametrize("dropout", [-0.1, 1.5, float("nan")])
def test_bad_dropout(dropout: float) -> None:
    """A probability lies between 0 and 1."""
    with pytest.raises(ValueError, match="dropout must be between 0 and 1"):
        MLP(6, 8, dropout=dropout)


@pytest.mark.parametrize("kind", PAIRS)
def test_repr(kind: str) -> None:
    """A module shows what it is made of."""
    module = MODULES[kind]()
    text = repr(module)
    assert text.startswith(kind.split()[0])
    assert "in_features=6" in text
    children = "".join(text.split())
    assert all(f"({name}):{''.join(repr(child).split())}" in children for name, child in module.named_children())


# ---- dropout ----


def test_dropout_statistics(device: Any) -> None:
    """In training, hidden outputs are zeroed with the given probability and the others scaled to keep the mean."""
    mlp = MLP(200, 200, activation="identity", dropout=0.3, bias=False, device=device)
    with torch.no_grad():
        for layer in (mlp[0], mlp[-1]):
            layer.weight.copy_(torch.eye(200))
    x = torch.ones(500, 200, device=device)
    torch.manual_seed(5)
    y = mlp.train()(x)
    kept = y != 0
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 1 / 0.7))
    standard_deviation = (0.3 * 0.7 / y.numel()) ** 0.5
    assert abs((~kept).float().mean().item() - 0.3) < 5 * standard_deviation
    assert torch.equal(mlp.eval()(x), x)


def test_dropout_is_that_of_the_op(device: Any) -> None:
    """In training, the hidden outputs that are dropped are those of the seed that the default generator gives."""
    mlp = seeded(lambda: MLP(6, (8, 8), 3, activation="silu", dropout=0.4), device).train()
    x = batch(device)
    torch.manual_seed(3)
    result = mlp(x)
    torch.manual_seed(3)
    seed = int(dropout_seed(x))
    steps, params = "linear silu dropout linear silu dropout linear", [0.4, 0.4]
    close(result, sequential_reference(steps, params, seed)(x, *mlp.parameters()))
    torch.manual_seed(3)
    close(torch.compile(mlp, backend="eager")(x), result)


def test_dropout_of_a_gated_block(device: Any) -> None:
    """Likewise, with a norm before it and a residual connection around it."""
    block = seeded(lambda: GatedMLP(6, 8, norm="rms", dropout=0.4, residual=True), device).train()
    x = batch(device)
    torch.manual_seed(3)
    result = block(x)
    torch.manual_seed(3)
    seed = int(dropout_seed(x))
    gate, up, down, norm = block.parameters()
    steps = "residual rms_norm gated_linear silu dropout linear dropout add"
    params = [torch.finfo(torch.float32).eps, 0.4, 0.4]
    close(result, sequential_reference(steps, params, seed)(x, norm, gate, None, up, None, down, None))
    state = torch.get_rng_state()
    block.eval()(x)
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [lambda: MLP(6, 8, norm="rms"), lambda: GatedMLP(6, 8, norm="rms", residual=True)])
def test_rms_norm_is_part_of_the_op(make: Callable[[], nn.Module], dtype: torch.dtype, device: Any) -> None:
    """In 16 bits, too."""
    module = make().to(device, dtype)
    with CalledOps() as called:
        module(batch(device).to(dtype))
    assert called.names == ["sequential_forward"]


def test_changed_gated_block(device: Any) -> None:
    """Norm and dropout may be replaced or taken out, as all modules may; then it computes what they do."""
    block = seeded(lambda: GatedMLP(6, 8, norm="rms", dropout=0.4, residual=True), device)
    plain = GatedMLP(6, 8, residual=True).to(device, WIDEST)
    x = batch(device)
    block.norm, block.drop = None, nn.Identity()
    plain.load_state_dict(block.state_dict())
    close(block(x), plain(x))
    block.drop = None
    close(block(x), plain(x))
    close(torch.jit.script(block)(x), plain(x))
    block.act_fn.register_forward_hook(lambda *_: None)
    close(block(x), plain(x))
    with pytest.raises(ValueError, match="at least 1 dim"):  # of torch.nn's norm, which has none to work on
        GatedMLP(6, 8, norm="rms")(torch.tensor(1.0))


@pytest.mark.parametrize("p", [0, 0.0, False])
def test_dropout_of_nothing(p: Any, device: Any) -> None:
    """Draws nothing."""
    mlp = MLP(6, 8, 3, dropout=0.5, device=device, dtype=WIDEST).train()
    mlp[2].p = p
    state = torch.get_rng_state()
    x = batch(device)
    close(mlp(x), mlp[3](mlp[1](mlp[0](x))))
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_of_everything(device: Any) -> None:
    """With probability 1 only the last layer's bias comes through, and gradients stay finite."""
    mlp = MLP(6, 8, 3, dropout=1.0, device=device).train()
    y = mlp(torch.ones(4, 6, device=device))
    close(y, mlp[3].bias.expand(4, 3))
    y.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mlp.parameters())
