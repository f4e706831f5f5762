"""Autograd around writes: in-place ops, out=, and tensors that change between forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from expected import activation
from reference import GRADIENT_FROM_OUTPUT
from samples import each_activation
from strategies import WIDEST

ops = torch.ops.fastops

VERSION_ERROR = "one of the variables needed for gradient computation has been modified by an inplace operation"


def in_place(name: str) -> Callable[[Tensor], Tensor]:
    """The in-place form of an activation."""
    return getattr(ops, f"{name}_")


def needs_output(name: str) -> bool:
    """Whether the derivative of the activation is computed from its output."""
    return name in GRADIENT_FROM_OUTPUT and name != "identity"


def needs_input(name: str) -> bool:
    """Whether it is computed from its input."""
    return name not in GRADIENT_FROM_OUTPUT


def values(device: Any, requires_grad: bool = False) -> Tensor:
    """A [3, 4] tensor that reaches both sides of every threshold."""
    values = torch.tensor([-7.5, -3.4, -2.1, -0.8, -0.4, -0.1, 0.2, 0.4, 0.9, 1.7, 3.3, 7.6], dtype=torch.float64)
    return values.reshape(3, 4).to(device, WIDEST).requires_grad_(requires_grad)


def message(error: type[Exception], function: Callable[[], Any]) -> str:
    """The text of the error that the function raises."""
    with pytest.raises(error) as caught:
        function()
    return str(caught.value)


# ---- in place ----


@each_activation
def test_in_place_on_leaf_raises(name: str, device: Any) -> None:
    """A leaf that requires a gradient is refused with PyTorch's message and left as it was."""
    x = values(device, requires_grad=True)
    assert message(RuntimeError, lambda: in_place(name)(x)) == message(RuntimeError, lambda: torch.tanh_(x))
    assert torch.equal(x, values(device))


@each_activation
def test_in_place_on_view_of_leaf_raises(name: str, device: Any) -> None:
    """So is a view of one."""
    x = values(device, requires_grad=True)
    assert message(RuntimeError, lambda: in_place(name)(x[1:])) == message(RuntimeError, lambda: torch.tanh_(x[1:]))
    assert torch.equal(x, values(device))


@pytest.mark.parametrize("split", [Tensor.unbind, lambda x: x.split(1), lambda x: x.chunk(2)])
def test_in_place_on_one_of_several_views_raises(split: Callable[[Tensor], Any], device: Any) -> None:
    """A view from a function that returns several is refused with PyTorch's message."""
    texts = []
    for operation in (ops.gelu_, torch.tanh_):
        view = split(values(device, requires_grad=True) * 1)[0]
        texts.append(message(RuntimeError, lambda operation=operation, view=view: operation(view)))
    assert texts[0] == texts[1]


@each_activation
def test_in_place_on_non_leaf(name: str, device: Any) -> None:
    """The result is the argument itself, and gradients flow through it as through PyTorch's function."""
    x, y = values(device, requires_grad=True), values(device, requires_grad=True)
    changed = x * 1.5
    result = in_place(name)(changed)
    assert result is changed
    expected = activation(name)(y * 1.5)
    torch.testing.assert_close(changed, expected)
    (changed**2).sum().backward()
    (expected**2).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


VIEWS = {
    "slice": lambda x: x[1:, ::2],
    "transpose": lambda x: x.t(),
    "row": lambda x: x[0],
    "diagonal": lambda x: x.diagonal(),
    "view of a view": lambda x: x[1:].view(-1)[2:5],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("name", ["tanh", "gelu", "softshrink", "hardtanh"])
def test_in_place_on_view_of_non_leaf(name: str, view: Callable[[Tensor], Tensor], device: Any) -> None:
    """The base changes with its view, and the gradient of the base knows of it."""
    x, y = values(device, requires_grad=True), values(device, requires_grad=True)
    base, other = x * 1.5, y * 1.5
    in_place(name)(view(base))
    view(other).copy_(activation(name)(view(other).clone()))
    torch.testing.assert_close(base, other)
    (base**2).sum().backward()
    (other**2).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_in_place_on_base_changes_its_views(name: str, device: Any) -> None:
    """A view made before its base changed has the gradient of the changed base."""
    x, y = values(device, requires_grad=True), values(device, requires_grad=True)
    base = x * 1.5
    row = base[1]
    in_place(name)(base)
    expected = activation(name)(y * 1.5)[1]
    torch.testing.assert_close(row, expected)
    (row**2).sum().backward()
    (expected**2).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@each_activation
def test_in_place_without_grad_mode(name: str, device: Any) -> None:
    """Under no_grad a leaf may change, and its version counts the change."""
    x = values(device, requires_grad=True)
    version = x._version
    with torch.no_grad():
        in_place(name)(x)
    assert x._version == version + 1
    assert x.is_leaf
    torch.testing.assert_close(x.detach(), activation(name)(values(device)))


@each_activation
def test_in_place_twice(name: str, device: Any) -> None:
    """Two changes in a row differentiate as two calls, unless the second destroys the output that the first needs."""
    x, y = values(device, requires_grad=True), values(device, requires_grad=True)
    result = in_place(name)(in_place(name)(x * 0.75))
    if needs_output(name):
        with pytest.raises(RuntimeError, match=VERSION_ERROR):
            result.sum().backward()
    else:
        result.sum().backward()
        activation(name)(activation(name)(y * 0.75)).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


@each_activation
def test_in_place_carries_tangents(name: str, device: Any) -> None:
    """Forward mode goes through an in-place op on a tensor and on a view of one."""
    with forward_ad.dual_level():
        x = forward_ad.make_dual(values(device), values(device) / 3)
        whole, part, expected, rows = x.clone(), x.clone(), activation(name)(x), x.clone()
        in_place(name)(whole)
        in_place(name)(part[1:])
        rows[1:] = expected[1:]
        for actual, reference in ((whole, expected), (part, rows)):
            actual, reference = forward_ad.unpack_dual(actual), forward_ad.unpack_dual(reference)
            torch.testing.assert_close(actual.primal, reference.primal)
            torch.testing.assert_close(actual.tangent, reference.tangent)


def test_writing_into_inference_tensor(device: Any) -> None:
    """An inference tensor may change in inference mode; outside, PyTorch's error is raised."""
    with torch.inference_mode():
        x = values(device)
        torch.testing.assert_close(ops.gelu_(x.clone()), activation("gelu")(x))
        torch.testing.assert_close(ops.gelu.out(x, out=torch.empty_like(x)), activation("gelu")(x))
    expected = message(RuntimeError, lambda: torch.tanh_(x))
    assert message(RuntimeError, lambda: ops.tanh_(x)) == expected
    assert message(RuntimeError, lambda: ops.tanh.out(values(device), out=x)) == expected


# ---- saved tensors that change ----


@each_activation
def test_change_between_forward_and_backward(name: str, device: Any) -> None:
    """Whatever the backward pass needs must not change, and whatever it does not need may: the input or the output."""
    for changes_output in (False, True):
        x = values(device, requires_grad=True) * 1
        y = getattr(ops, name)(x)
        (y if changes_output else x).detach().add_(1)
        if needs_output(name) if changes_output else needs_input(name):
            with pytest.raises(RuntimeError, match=VERSION_ERROR):
                y.sum().backward()
        else:
            y.sum().backward()


@each_activation
def test_change_after_in_place(name: str, device: Any) -> None:
    """The output of an in-place op must not change either if the derivative is had from it."""
    y = in_place(name)(values(device, requires_grad=True) * 1)
    y.detach().add_(1)
    if needs_output(name):
        with pytest.raises(RuntimeError, match=VERSION_ERROR):
            y.sum().backward()
    else:
        y.sum().backward()


FUSED = {
    "bias_act": (lambda t: ops.bias_act(t["x"], t["bias"], "gelu"), ["x", "bias"]),
    "act_mul": (lambda t: ops.act_mul(t["x"], t["x_2"], "silu"), ["x", "x_2"]),
    "gated_act": (lambda t: ops.gated_act(t["x"], "silu"), ["x"]),
    "linear_act": (lambda t: ops.linear_act(t["x"], t["weight"], t["bias"], "gelu"), ["x", "weight"]),
    "mlp": (
        lambda t: ops.mlp(t["x"], [t["weight"], t["weight_2"]], [t["bias"], None], "gelu"),
        ["x", "weight", "weight_2"],
    ),
    "gated_mlp": (
        lambda t: ops.gated_mlp(t["x"], t["weight"], t["weight_2"], t["weight_3"], t["bias"]),
        ["x", "weight", "weight_2", "weight_3"],
    ),
}


@pytest.mark.parametrize(("op", "argument"), [(op, name) for op, (_, needed) in FUSED.items() for name in needed])
def test_changed_argument_raises(op: str, argument: str, device: Any) -> None:
    """A changed argument of a fused op, as by an optimizer step before backward, raises the version error."""
    tensors = {
        name: torch.ones(shape, dtype=WIDEST, device=device, requires_grad=True)
        for name, shape in [("x", (3, 4)), ("x_2", (3, 4)), ("bias", (4,))]
        + [(f"weight{i}", (4, 4)) for i in ("", "_2", "_3")]
    }
    result = FUSED[op][0](tensors)
    with torch.no_grad():
        tensors[argument].mul_(2)
    with pytest.raises(RuntimeError, match=VERSION_ERROR):
        result.sum().backward()


@pytest.mark.parametrize("op", ["linear_act", "mlp"])
def test_changed_output_raises(op: str, device: Any) -> None:
    """An output from which the derivative is had must not change, and one from which it is not may."""
    weight = torch.ones(2, 4, dtype=WIDEST, device=device, requires_grad=True)
    for name in ("tanh", "gelu", "identity"):
        x = values(device, requires_grad=True)
        y = ops.linear_act(x, weight, None, name) if op == "linear_act" else ops.mlp(x, [weight], [None], "relu", name)
        y.detach().add_(1)
        if name == "tanh":
            with pytest.raises(RuntimeError, match=VERSION_ERROR):
                y.sum().backward()
        else:
            y.sum().backward()


# ---- out= ----


@pytest.mark.parametrize("gradient_of", ["self", "out"])
@each_activation
def test_out_with_gradient_raises(name: str, gradient_of: str, device: Any) -> None:
    """out= takes no part in differentiation: it raises and writes nothing, unless grad mode is off."""
    x, out = values(device), torch.full((3, 4), 5.0, dtype=WIDEST, device=device)
    (x if gradient_of == "self" else out).requires_grad_()
    with pytest.raises(RuntimeError, match=rf"{name}.*out=\.\.\. arguments don't support automatic differentiation"):
        getattr(ops, name).out(x, out=out)
    assert (out == 5).all()
    with torch.no_grad():
        getattr(ops, name).out(x, out=out)
    torch.testing.assert_close(out.detach(), activation(name)(values(device)))


def test_bias_act_out_with_gradient_raises(device: Any) -> None:
    """The same for bias_act, in every argument."""
    for position in range(3):
        x, out, bias = (
            values(device),
            torch.full((3, 4), 5.0, dtype=WIDEST, device=device),
            values(device)[0].clone(),
        )
        (x, bias, out)[position].requires_grad_()
        with pytest.raises(RuntimeError, match=r"bias_act.*out=\.\.\. arguments don't support automatic differ"):
            ops.bias_act.out(x, bias, "gelu", out=out)
        assert (out == 5).all()


@pytest.mark.parametrize("name", ["gelu", "tanh"])
def test_out_with_tangent_raises(name: str, device: Any) -> None:
    """Forward mode is refused as well, rather than the tangent dropped."""
    with forward_ad.dual_level():
        x = forward_ad.make_dual(values(device), values(device))
        with pytest.raises(RuntimeError, match=r"out=\.\.\. arguments don't support forward-mode AD"):
            getattr(ops, name).out(x, out=torch.empty_like(values(device)))


def test_out_counts_as_change(device: Any) -> None:
    """Writing through out= raises the version error for a tensor that was saved."""
    x = values(device, requires_grad=True)
    y = ops.tanh(x)
    with torch.no_grad():
        ops.gelu.out(values(device), out=y)
    with pytest.raises(RuntimeError, match=VERSION_ERROR):
        y.sum().backward()
