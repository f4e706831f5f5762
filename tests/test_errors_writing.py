"""Bad input of the ops that write into an argument: which error is raised, and that nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from calls import raises
from samples import each_activation
from strategies import DEVICE, DTYPES

ops = torch.ops.fastops


def plain_calls(name: str) -> dict[str, Callable[[Tensor, Tensor], Any]]:
    """The three forms, of an input and of an out tensor."""
    return {
        "functional": lambda x, out: getattr(ops, name)(x),
        "in place": lambda x, out: getattr(ops, f"{name}_")(x),
        "out": lambda x, out: getattr(ops, name).out(x, out=out),
    }


@each_activation
@pytest.mark.parametrize("place", ["real", "meta"])
def test_plain_op_refuses_other_tensors(name: str, place: str, device: Any) -> None:
    """Integers, booleans, complex numbers and sparse tensors are refused in every form."""
    ones = torch.ones(3, 4)
    has_sparse = place == "meta" or device.type != "mps"
    for x in (ones.long(), ones.bool(), ones.cfloat(), *([ones.to_sparse()] if has_sparse else [])):
        for function in plain_calls(name).values():
            out = torch.ones(3, 4, device="meta" if place == "meta" else device)
            with raises(TypeError, name, "self"):
                function(x.to(out.device), out)
            assert out.is_meta or (out == 1).all()


# Of a buffer of 30 elements, an input and an out tensor that do not fit.
BAD_OUT: dict[str, tuple[type[Exception], Callable[[Tensor], tuple[Tensor, Tensor]]]] = {
    "wrong shape": (ValueError, lambda b: (b[:12].view(3, 4), b[12:24].view(4, 3))),
    "too large": (ValueError, lambda b: (b[:12], b[12:25])),
    "to broadcast": (ValueError, lambda b: (b[:4].view(1, 4), b[4:16].view(3, 4))),
    "wrong dtype": (TypeError, lambda b: (b[:12], b[12:24].to(DTYPES[-1]))),
    "integers": (TypeError, lambda b: (b[:12], b[12:24].int())),
    "wrong device": (RuntimeError, lambda b: (b[:12], torch.ones(12, device=DEVICE if b.is_meta else "meta"))),
    "overlaps input": (RuntimeError, lambda b: (b[:12], b[4:16])),
    "transposed input": (RuntimeError, lambda b: (b[:9].view(3, 3), b[:9].view(3, 3).T)),
    "overlaps itself": (RuntimeError, lambda b: (b[:12].view(3, 4), b[12:16].expand(3, 4))),
}


@pytest.fixture(params=["real", "meta"])
def buffer(request: pytest.FixtureRequest, device: Any) -> Tensor:
    """Thirty numbers on the device, or none on the meta device."""
    return torch.arange(30.0, device="meta" if request.param == "meta" else device)


@pytest.mark.parametrize("bad", BAD_OUT)
@pytest.mark.parametrize("op", ["relu", "gelu", "softshrink", "bias_act"])
def test_bad_out(op: str, bad: str, buffer: Tensor) -> None:
    """out= of the wrong shape, dtype or device, or sharing memory with the input or with itself: nothing is written."""
    error, tensors = BAD_OUT[bad]
    x, out = tensors(buffer)
    before = [t.clone() for t in (buffer, out)]
    arguments = (None, "gelu") if op == "bias_act" else ()
    with raises(error, op, "out"):
        getattr(ops, op).out(x, *arguments, out=out)
    if not buffer.is_meta:
        assert torch.equal(buffer, before[0])
    if not out.is_meta:
        assert torch.equal(out, before[1])


def test_out_overlapping_bias(buffer: Tensor) -> None:
    """bias_act would read a bias that it has begun to overwrite."""
    x, out, bias = buffer[:12].view(3, 4), buffer[12:24].view(3, 4), buffer[14:18]
    before = buffer.clone()
    with raises(RuntimeError, "bias_act", "bias"):
        ops.bias_act.out(x, bias, "gelu", out=out)
    with raises(RuntimeError, "bias_act", "bias"):  # an empty one, which grows into it
        ops.bias_act.out(x, bias, "gelu", out=bias[:0])
    assert buffer.is_meta or torch.equal(buffer, before)


@each_activation
def test_good_out(name: str, device: Any) -> None:
    """out= may be the input itself, an empty tensor, which is resized, or have any strides."""
    x = torch.linspace(-7, 7, 12, device=device).view(3, 4)
    expected = getattr(ops, name)(x)
    function = getattr(ops, name).out
    for out in (x.clone(), torch.empty(0, device=device), torch.empty(4, 3, device=device).T):
        assert function(x, out=out) is out
        assert torch.equal(out, expected)
    assert torch.equal(function(x, out=x), expected)


@each_activation
def test_in_place_on_expanded_tensor(name: str, buffer: Tensor) -> None:
    """An in-place op on elements that share memory is refused and leaves them as they were."""
    before = buffer.clone()
    with raises(RuntimeError, name, "self"):
        getattr(ops, f"{name}_")(buffer[:4].expand(3, 4))
    assert buffer.is_meta or torch.equal(buffer, before)
