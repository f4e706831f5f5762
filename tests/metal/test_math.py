"""The functions of kernels/math.h, compiled for the CPU, over a sample of all float32."""

from __future__ import annotations

import ctypes
import functools
import tempfile
from pathlib import Path

import kernels
import pytest
import torch
from torch import Tensor

from reference import flushed

# The bounds that math.h states, in units in the last place.
BOUNDS = {"exp": 2, "exp2": 2, "expm1": 2, "log1p": 2, "tanh": 3, "erf": 2, "sin": 2.2, "cos": 2.2}


@functools.cache
def library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "probe.so")
        kernels.build(path, [kernels.HERE / "math_probe.metal"])
        loaded = ctypes.CDLL(str(path))
    loaded.metal_find_kernel.restype = ctypes.c_void_p
    loaded.metal_launch.restype = ctypes.c_char_p
    return loaded


def evaluate(function: str, x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    kernel = ctypes.c_void_p(library().metal_find_kernel(f"probe_{function}".encode()))
    buffers = (ctypes.c_void_p * 2)(x.data_ptr(), y.data_ptr())
    grid, group = (ctypes.c_uint * 3)(len(x), 1, 1), (ctypes.c_uint * 3)(1024, 1, 1)
    assert library().metal_launch(kernel, buffers, grid, group) is None
    return y


def sample(stride: int) -> Tensor:
    """Every stride-th float32, NaNs and infinities included."""
    return torch.arange(-(2**31), 2**31, stride).to(torch.int32).view(torch.float32)


def error(actual: Tensor, exact: Tensor) -> Tensor:
    """In units in the last place."""
    rounded = exact.float()
    same = (actual == rounded) | (actual.isnan() & rounded.isnan())
    larger = torch.nextafter(rounded.abs(), torch.tensor(torch.inf)).double()
    ulp = torch.where(larger.isinf(), 2.0**104, larger - rounded.abs().double())
    # A result past the largest number may be infinite.
    return torch.where(same, 0.0, ((actual.double().clamp(-(2.0**128), 2.0**128) - exact) / ulp).abs())


@pytest.mark.parametrize("function", BOUNDS)
def test_error(function: str) -> None:
    x = sample(2039)
    actual = evaluate(function, x)
    exact = getattr(torch, function)(x.double())
    bound = BOUNDS[function]
    # A subnormal number may be taken for zero, and so may a result that is subnormal within the bound.
    at_zero = getattr(torch, function)(flushed(x.double()))
    zero = flushed(exact * (1 - bound * torch.finfo(torch.float32).eps))
    off = torch.stack([error(actual, exact), error(actual, at_zero), error(actual, zero)]).amin(0)
    assert off.max() < bound, x[off.argmax()].item()


@pytest.mark.parametrize("function", BOUNDS)
def test_special_values(function: str) -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, -1.0, -2.0])
    expected = getattr(torch, function)(x.double()).float()
    actual = evaluate(function, x)
    torch.testing.assert_close(actual, expected, equal_nan=True)
    assert (actual.signbit() == expected.signbit())[3:5].all()
