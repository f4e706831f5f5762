"""What the ops are given: shapes, strides, dtypes, parameters and values, drawn by hypothesis."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import strategies as st

from reference import ACTIVATIONS, is_valid, kinks, parameter_sets

DEVICE = os.environ.get("FASTOPS_TEST_DEVICE", "cpu")
MAPS = Path("/proc/self/maps")
IN_GPU_EMULATOR = MAPS.exists() and "libgpu_kernels" in MAPS.read_text()  # that of make gpu-check
PROFILE = os.environ.get("FASTOPS_TEST_PROFILE") or "full"  # of those in conftest.py
QUICK = PROFILE in ("quick", "brief")
# So many times the examples of a property that is tried for every activation has one that is tried once.
ONCE = 2 if PROFILE == "full" else 1

# Metal has no float64.
DTYPES = [torch.float32, torch.bfloat16, torch.float16] + ([torch.float64] if DEVICE != "mps" else [])
WIDEST = torch.float64 if torch.float64 in DTYPES else torch.float32
needs_float64 = pytest.mark.skipif(torch.float64 not in DTYPES, reason=f"{DEVICE} has no float64")

every_activation = pytest.mark.parametrize("name", ACTIVATIONS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])

dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**32 - 1)
features = st.sampled_from([0, 1, 2, 3, 5, 8, 17, 33])
leading_sizes = st.lists(st.sampled_from([0, 1, 2, 3, 9]), max_size=3).map(tuple)
activations = st.sampled_from(list(ACTIVATIONS))

# Lengths of tensors that put an element at every position of a vector, and of a vector's remainder.
LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 67] if QUICK else range(1, 68)


@st.composite
def sizes(draw, min_dims=0, max_dims=4):
    """Sizes with zeros, ones and lengths about those of SIMD vectors; at most a few thousand elements."""
    size = []
    room = 3000
    for _ in range(draw(st.integers(min_dims, max_dims))):
        fits = [side for side in (0, 1, 2, 3, 5, 8, 17, 33, 67, 257) if side <= room]
        size.append(draw(st.sampled_from(fits)))
        room //= max(1, size[-1])
    return tuple(size)


@dataclass(frozen=True)
class Layout:
    """The sizes, strides and storage offset of a tensor."""

    size: tuple
    stride: tuple
    offset: int

    @property
    def storage_size(self):
        """The number of elements from the start of the storage to the last element."""
        if 0 in self.size:
            return self.offset
        return self.offset + 1 + sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))

    def of(self, storage):
        """The tensor of this layout in a one-dimensional tensor."""
        return storage.as_strided(self.size, self.stride, self.offset)

    def random(self, dtype, device, seed):
        """A tensor of this layout with values of many magnitudes."""
        return self.of(random_values(self.storage_size, seed).to(dtype).to(device))

    def normal(self, dtype, device, seed, scale=1.0):
        """A tensor of this layout with normally distributed values."""
        return self.of(random_tensor((self.storage_size,), dtype, device, seed, scale))


@st.composite
def layouts(draw, size, overlapping=True):
    """Layouts of one size: contiguous, permuted, with steps and offsets, expanded, overlapping."""
    dims = len(size)
    kinds = ["contiguous", "permuted", "stepped"] + (["expanded", "overlapping"] if overlapping else [])
    kind = draw(st.sampled_from(kinds))
    order = list(reversed(range(dims)))
    if kind != "contiguous":
        order = draw(st.permutations(order))
    stride = [0] * dims
    dense = 1
    for d in order:
        stride[d] = dense * (draw(st.integers(1, 3)) if kind == "stepped" else 1)
        dense = stride[d] * max(1, size[d])
        if size[d] == 1:
            stride[d] = draw(st.sampled_from([1, stride[d], 7]))  # means nothing
        if kind == "expanded" and draw(st.booleans()):
            stride[d] = 0
        if kind == "overlapping":
            stride[d] = draw(st.integers(0, 3))
    return Layout(tuple(size), tuple(stride), draw(st.integers(0, 5)))


@st.composite
def tensor_layouts(draw, count=1, min_dims=0, max_dims=4, overlapping=True):
    """Layouts of `count` tensors of one size."""
    size = draw(sizes(min_dims, max_dims))
    return [draw(layouts(size, overlapping)) for _ in range(count)]


def parameters(name):
    """Valid parameters of an activation: the interesting ones and any others."""
    anything = st.tuples(*(_RANGES.get(p, _fractions(0.5, 2.0)) for p in ACTIVATIONS[name]["parameters"]))
    return st.sampled_from(parameter_sets(name)) | anything.filter(lambda values: is_valid(name, values))


def _fractions(low, high):
    """Numbers of which few are exact in binary; none is so small that products with it vanish."""
    steps = 4095
    return st.integers(int(low * steps), int(high * steps)).map(lambda n: n / steps)


_RANGES = {
    "negative_slope": _fractions(-1.0, 2.0),
    "alpha": _fractions(-2.0, 4.0),
    "beta": _fractions(0.25, 4.0),
    "threshold": _fractions(0.0, 30.0),
    "lambd": _fractions(0.0, 3.0),
    "min_val": _fractions(-3.0, 1.0),
    "max_val": _fractions(-1.0, 3.0),
}


def random_values(count, seed, smallest=-3.0, largest=2.0):
    """Normally distributed numbers times 10**smallest to 10**largest, in float64 on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.rand(count, generator=generator, dtype=torch.float64) * (largest - smallest) + smallest
    return torch.randn(count, generator=generator, dtype=torch.float64) * 10**exponents


def random_tensor(size, dtype, device, seed, scale=1.0):
    """A contiguous tensor of normally distributed numbers."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(math.prod(size), generator=generator, dtype=torch.float64) * scale
    return values.reshape(size).to(dtype).to(device)


def special_values(name, params, dtype):
    """NaN, infinities, zeros, subnormal and huge numbers, and each kink with the numbers next to it."""
    info = torch.finfo(dtype)
    tiny, smallest, largest = info.smallest_normal, info.smallest_normal * info.eps, info.max
    sizes = [0.0, smallest, tiny - smallest, tiny, 0.7, 12.5, 100.0, largest / 2, largest, math.inf]
    values = torch.tensor([math.nan, *sizes, *(-size for size in sizes)], dtype=torch.float64).to(dtype)
    places = torch.tensor(kinks(name, params), dtype=torch.float64).to(dtype)
    beside = [torch.nextafter(places, torch.full_like(places, side)) for side in (-math.inf, math.inf)]
    return torch.cat([values, places, *beside])


def draw_tensor(data, size, dtype, device, scale=1.0, overlapping=True):
    """A tensor of some layout."""
    return data.draw(layouts(size, overlapping)).normal(dtype, device, data.draw(seeds), scale)


def draw_activation(data):
    """An activation's name and parameters."""
    name = data.draw(activations)
    return name, data.draw(parameters(name))
