"""A network's value and its gradient in one backward pass, and what is differentiated of them."""

import contextlib
import functools

import pytest
import torch
from torch import nn
from torch._dynamo import compiled_autograd
from torch.autograd import forward_ad

import fastops
from checks import CalledOps
from jets import assert_close, model, plain, random_network
from strategies import WIDEST, random_tensor

ops = torch.ops.fastops


def in_loss(loss, value, gradients):
    """A loss of some of them."""
    terms = {"value": [value], "gradients": gradients, "one": gradients[-1:], "both": [value, *gradients]}[loss]
    return sum((i + 1) * term.square().sum() for i, term in enumerate(terms))


@pytest.mark.parametrize("loss", ["value", "gradients", "one", "both"])
@pytest.mark.parametrize("wanted", ["all", "input", "weight", "hidden"])
@pytest.mark.parametrize("cotangent", ["ones", "constant", "leaf"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_loss_of_values_and_gradients(device, loss, wanted, cotangent, count):
    """By nested torch.autograd.grad: one or two gradients of a value, whose inputs have a history."""
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Linear(3, 5), nn.SiLU(), nn.Linear(5, 4), nn.SiLU(), nn.Linear(4, 2))
    layers.to(device, WIDEST)
    weights, biases = [layer.weight for layer in layers[::2]], [layer.bias for layer in layers[::2]]
    start = random_tensor((6, 3), WIDEST, device, 7).requires_grad_()
    by_values = [torch.ones(6, 2, dtype=WIDEST, device=device)] * count
    if cotangent != "ones":
        by_values = [random_tensor((6, 2), WIDEST, device, 20 + i) for i in range(count)]
    if cotangent == "leaf":
        by_values = [by_value.requires_grad_() for by_value in by_values]
    results = []
    for network in (layers, lambda x: ops.mlp(x, weights, biases, "silu")):
        x = start.sin()
        value = network(x)
        gradients = [torch.autograd.grad(value, x, by, create_graph=True)[0] for by in by_values]
        leaves = {"all": [start, *layers.parameters()], "input": [start], "weight": weights[1:2], "hidden": [x]}[wanted]
        leaves = [*leaves, *(by_values if cotangent == "leaf" else [])]
        total = in_loss(loss, value, gradients)
        twice = [torch.autograd.grad(total, leaves, allow_unused=True, retain_graph=True) for _ in range(2)]
        for one, again in zip(*twice, strict=True):
            assert (one is None and again is None) or torch.equal(one, again)
        results.append(twice[0])
    for one, other in zip(*results, strict=True):
        one, other = (None if each is None or not each.any() else each for each in (one, other))
        assert (one is None) == (other is None)
        if one is not None:
            assert_close(one, other, WIDEST, "gradient")


@pytest.mark.parametrize("first", ["hook", "gradient"])
def test_hooks_of_a_value_and_its_gradient(device, first):
    """They get the gradients by the value and by its gradient; where the loss is not of the value, none or zeros."""
    x = random_tensor((6, 3), WIDEST, device, 7).requires_grad_()
    weights, biases = random_network((3, 5, 1), WIDEST, device)
    for weight in weights:
        weight.requires_grad_()
    for with_value in (True, False):
        seen = []
        value = ops.mlp(x, weights, biases, "tanh")
        if first == "hook":
            value.register_hook(seen.append)
        (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        seen.clear()
        if first == "gradient":
            value.register_hook(seen.append)
        gradient.register_hook(seen.append)
        (gradient.sum() + (2 * value.sum() if with_value else 0)).backward()
        numbers = [number.unique().item() for number in seen]
        if with_value:
            assert numbers == [1, 2]
        else:
            assert numbers == [1] or (first == "gradient" and numbers == [1, 0])
        assert [number.shape for number in seen] == [gradient.shape, value.shape][: len(seen)]


@pytest.mark.parametrize("points", [(6,), (2, 3)], ids=str)
@pytest.mark.parametrize("way", ["nested", "value_jacobian", "value_jacobian of data"])
@pytest.mark.parametrize("sizes", [(3, 5, 1), (3, 300, 300, 1)], ids=str)
def test_a_value_and_its_gradient_are_one_pass(device, points, way, sizes):
    """On CPUs: what second derivatives leave is computed with the value's gradients, without products of their own.

    Up to a number of weights that depends on the CPU.
    """
    mlp = model(device, *sizes)

    def gradients_of(value, gradient):
        return torch.autograd.grad(gradient.square().sum() + value.square().sum(), list(mlp.parameters()))

    x = random_tensor((*points, 3), WIDEST, device, 7).requires_grad_()
    value = plain(mlp, x)
    expected = gradients_of(value, torch.autograd.grad(value.sum(), x, create_graph=True)[0])
    if way == "nested":
        value = mlp(x)
        (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    else:
        value, gradient = mlp.value_jacobian(x if way == "value_jacobian" else x.detach())
    with CalledOps() as called:
        results = gradients_of(value, gradient)
    torch.testing.assert_close(results, expected)
    if device.type == "cpu":
        weights = sum(weight.numel() for weight in mlp.parameters() if weight.dim() > 1)
        is_fused = weights <= fastops._C.most_weights_by_jet()
        assert (called.names == ["mlp_jet_forward", "mlp_jet_backward"]) == is_fused, called.names


@pytest.mark.parametrize("count", [1, 3])
def test_prehook_of_the_node(device, count):
    """A hook on the network's node gets the gradient of its output alone, and changes what comes of it."""
    x = random_tensor((6, 3), WIDEST, device, 7).requires_grad_()
    mlp = model(device, 3, 5, 1)
    results = []
    for network in (mlp, functools.partial(plain, mlp)):
        value = network(x)
        lengths = []

        def doubled(grads, lengths=lengths):
            lengths.append(len(grads))
            return tuple(None if grad is None else 2 * grad for grad in grads)

        if count == 1:
            value.grad_fn.register_prehook(doubled)
        (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        if count == 3:
            value.grad_fn.register_prehook(doubled)
        results.append(torch.autograd.grad(gradient.square().sum() + value.sum(), x)[0])
        assert set(lengths) == {1}
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("wanted", ["input", "parameters", "both"])
@pytest.mark.parametrize("power", [1, 2])
def test_reverse_within_forward_mode(device, wanted, power):
    """A gradient in a level of forward mode has its tangent, that of the input's alone."""
    mlp = model(device, 3, 5, 2)
    x, v = (random_tensor((4, 3), WIDEST, device, seed=i) for i in (7, 8))
    x.requires_grad_(wanted != "parameters")
    mlp.requires_grad_(wanted != "input")
    leaves = [leaf for leaf in (x, *mlp.parameters()) if leaf.requires_grad]
    results = []
    for network in (mlp, functools.partial(plain, mlp)):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, v)
            loss = network(dual).pow(power).sum()
            duals = [forward_ad.unpack_dual(gradient) for gradient in torch.autograd.grad(loss, leaves)]
        tangents = [torch.zeros_like(dual.primal) if dual.tangent is None else dual.tangent for dual in duals]
        results.append([dual.primal for dual in duals] + tangents)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("sizes", [(3, 8, 1), (3, 300, 300, 1)], ids=str)
@pytest.mark.parametrize("loss", ["value", "gradients", "both"])
@pytest.mark.parametrize("wanted", ["input", "parameters"])
def test_compiled_autograd(device, sizes, loss, wanted):
    """Second derivatives, with a part left to the network's node and without, in a captured backward pass."""
    torch._dynamo.reset()
    mlp = model(device, *sizes)
    x = random_tensor((4, 3), WIDEST, device, 7).requires_grad_()
    results = []
    for way in (contextlib.nullcontext(), compiled_autograd._enable(torch.compile(backend="eager"))):
        for leaf in (x, *mlp.parameters()):
            leaf.grad = None
        value = mlp(x)
        gradients = torch.autograd.grad(
            value.square().sum(), [x] if wanted == "input" else list(mlp.parameters()), create_graph=True
        )
        total = in_loss(loss, value, list(gradients))
        with way:
            total.backward()
        results.append([torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in (x, *mlp.parameters())])
    torch.testing.assert_close(*results)
