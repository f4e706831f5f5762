"""Tensors of every kind that a stranger's program may bring, made from a description, as often as they are needed."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

HUGE = 1 << 34  # elements that no machine has memory for
FEW = 1 << 12
PAD = 32  # elements around what a tensor holds: NaN for whoever reads them


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to make a tensor."""

    size: tuple[int, ...]
    dtype: torch.dtype
    kind: str = "contiguous"
    values: str = "small"
    seed: int = 0
    base: Recipe | None = None  # whose memory it overlaps

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.size)

    def meta(self) -> Tensor:
        """A tensor of this size without memory."""
        return torch.empty(self.size, dtype=self.dtype, device="meta")

    def __str__(self) -> str:
        described = f"{self.kind} {str(self.dtype)[6:]}{list(self.size)} of {self.values} numbers"
        return f"{described} on {self.base}" if self.base else described


class Kitchen:
    """Makes the tensors of one call; a recipe that occurs twice gives the same tensor twice."""

    def __init__(self) -> None:
        self.made: dict[int, Tensor] = {}
        self.watched: list[Tensor] = []  # the memory of all that was made, and of what they were made from
        self.buffers: list[bytearray] = []

    def make(self, recipe: Recipe) -> Any:
        """The tensor of a recipe, or what is passed in its place."""
        if id(recipe) not in self.made:
            if recipe.base is not None:
                self.make(recipe.base)
            self.made[id(recipe)] = (KINDS | SPOILED_KINDS)[recipe.kind](self, recipe)
        return self.made[id(recipe)]

    def watch(self, tensor: Tensor) -> Tensor:
        """Notes the memory of a tensor as one that nobody else may write to."""
        if all(tensor.untyped_storage()._cdata != seen.untyped_storage()._cdata for seen in self.watched):
            self.watched.append(tensor)
        return tensor

    def memory(self) -> list[Tensor]:
        """All memory, as bytes."""
        buffers = [torch.frombuffer(buffer, dtype=torch.uint8) for buffer in self.buffers]
        return [raw(tensor) for tensor in self.watched] + buffers

    def strided(self, recipe: Recipe, stride: tuple[int, ...], offset: int = 0) -> Tensor:
        """A tensor with these strides in memory that goes on around it."""
        if recipe.count >= HUGE:
            stride = (0,) * len(stride)
        extent = (
            0 if recipe.count == 0 else 1 + sum((n - 1) * step for n, step in zip(recipe.size, stride, strict=True))
        )
        storage = filled(recipe, extent, PAD + offset)
        return self.watch(storage).as_strided(recipe.size, stride, PAD + offset)


def raw(tensor: Tensor) -> Tensor:
    """The bytes of a tensor's memory."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def filled(recipe: Recipe, count: int, before: int = 0) -> Tensor:
    """A one-dimensional tensor of random numbers, with NaN (or ones) around them."""
    numbers = NUMBERS[recipe.values](count, recipe.seed).to(recipe.dtype)
    outside = math.nan if recipe.dtype.is_floating_point or recipe.dtype.is_complex else 1
    storage = torch.full((before + count + PAD,), outside, dtype=torch.float64).to(recipe.dtype)
    storage[before : before + count] = numbers
    return storage


def small_numbers(count: int, seed: int) -> Tensor:
    """Numbers of which sums and products are exact in most dtypes."""
    return torch.randint(-8, 9, (count,), generator=torch.Generator().manual_seed(seed)).double() / 4


def normal_numbers(count: int, seed: int) -> Tensor:
    """Normally distributed numbers."""
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def special_numbers(count: int, seed: int) -> Tensor:
    """NaN, infinities, zeros with signs, and numbers at the ends of the dtypes' ranges among others."""
    special = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, 1e-40, -1e-38, 6e-8, 6e4, -3e38, 1e300, 88.8, -104.0]
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.tensor(special, dtype=torch.float64)[torch.randint(len(special), (count,), generator=generator)]
    numbers = normal_numbers(count, seed)
    return torch.where(torch.rand(count, generator=generator) < 0.3, chosen, numbers)


NUMBERS = {"small": small_numbers, "normal": normal_numbers, "special": special_numbers}


def dense_strides(size: tuple[int, ...], order: list[int], step: int = 1) -> tuple[int, ...]:
    """The strides of a tensor whose dimensions lie in memory in this order, the first one innermost."""
    strides, next_stride = [0] * len(size), step
    for dim in order:
        strides[dim] = next_stride
        next_stride *= max(1, size[dim])
    return tuple(strides)


def contiguous(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """As torch.empty makes it."""
    return kitchen.strided(recipe, dense_strides(recipe.size, list(reversed(range(len(recipe.size))))))


def at_offset(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """At another alignment."""
    order = list(reversed(range(len(recipe.size))))
    return kitchen.strided(recipe, dense_strides(recipe.size, order), 1 + recipe.seed % 15)


def permuted(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """With its dimensions in any order."""
    order = list(range(len(recipe.size)))
    random.Random(recipe.seed).shuffle(order)
    return kitchen.strided(recipe, dense_strides(recipe.size, order))


def stepped(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """With gaps."""
    order = list(reversed(range(len(recipe.size))))
    strides = list(dense_strides(recipe.size, order, step=random.Random(recipe.seed).choice([2, 3])))
    if len(strides) > 1 and recipe.seed % 2:  # rows apart, their elements side by side
        strides[-1] = 1
    return kitchen.strided(recipe, tuple(strides))


def expanded(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """With some dimensions that repeat the same elements."""
    rng = random.Random(recipe.seed)
    strides = dense_strides(recipe.size, list(reversed(range(len(recipe.size)))))
    return kitchen.strided(recipe, tuple(0 if rng.random() < 0.5 else stride for stride in strides))


def overlapping(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """With rows that share elements, as unfold gives them."""
    rng = random.Random(recipe.seed)
    return kitchen.strided(recipe, tuple(rng.randrange(3) for _ in recipe.size))


def negative(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """With the negative bit."""
    return torch._neg_view(contiguous(kitchen, recipe))


def imaginary(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """The imaginary part of a conjugated complex tensor: strided, and with the negative bit."""
    if recipe.dtype not in (torch.float32, torch.float64):
        return negative(kitchen, recipe)
    if recipe.count >= HUGE:
        return negative(kitchen, recipe)
    double = dataclasses.replace(recipe, size=(*recipe.size, 2))
    return kitchen.watch(torch.view_as_complex(contiguous(kitchen, double).clone()).conj().imag)


def lazy_clone(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """A clone that is made when it is written to."""
    if recipe.count == 0:
        return contiguous(kitchen, recipe)  # one that is resized fails in PyTorch itself
    return kitchen.watch(torch._lazy_clone(contiguous(kitchen, recipe)))


def lazily_cloned(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """What such a clone was made from."""
    tensor = contiguous(kitchen, recipe)
    if recipe.count:
        kitchen.watch(torch._lazy_clone(tensor))
    return tensor


def misaligned(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """At an address that is not a multiple of the elements' size."""
    count = recipe.count
    if count == 0 or count >= HUGE:
        return contiguous(kitchen, recipe)
    buffer = bytearray(b"\xff" * ((count + 2 * PAD) * recipe.dtype.itemsize))
    kitchen.buffers.append(buffer)
    place = PAD * recipe.dtype.itemsize + 1 + recipe.seed % (recipe.dtype.itemsize - 1)
    tensor = torch.frombuffer(buffer, dtype=recipe.dtype, offset=place, count=count)
    tensor.copy_(filled(recipe, count)[:count])
    return tensor.view(recipe.size)


def zero_tensor(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """Zeros without memory, as autograd makes them."""
    return torch._efficientzerotensor(recipe.size, dtype=recipe.dtype)


def with_gradient(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """A leaf of a graph."""
    return contiguous(kitchen, recipe).detach().requires_grad_()


def of_inference(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """Made in inference mode."""
    with torch.inference_mode():
        return contiguous(kitchen, recipe)


Kind = Callable[[Kitchen, Recipe], Any]

WRITABLE_KINDS: dict[str, Kind] = {
    "contiguous": contiguous,
    "at offset": at_offset,
    "permuted": permuted,
    "stepped": stepped,
    "negative": negative,
    "imaginary": imaginary,
    "lazy clone": lazy_clone,
    "lazily cloned": lazily_cloned,
    "misaligned": misaligned,
}
KINDS: dict[str, Kind] = WRITABLE_KINDS | {
    "expanded": expanded,
    "overlapping": overlapping,
    "zero tensor": zero_tensor,
    "with gradient": with_gradient,
    "of inference": of_inference,
}


# ---- what no op takes ----


def floats(recipe: Recipe) -> Tensor:
    """A float32 tensor of the recipe's size, which layouts of few dtypes can be made from."""
    return torch.ones(() if recipe.count >= HUGE else recipe.size)


def of_rank(dims: int, recipe: Recipe) -> Tensor:
    """As above, with so many dimensions."""
    size = (*[1] * dims, *floats(recipe).shape)
    return torch.ones(size[len(size) - dims :])


def freed(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """Without its memory, as FSDP leaves parameters."""
    tensor = contiguous(Kitchen(), recipe)
    tensor.untyped_storage().resize_(0)
    return tensor


def shortened(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """With less memory than it needs."""
    tensor = floats(recipe).to(recipe.dtype)
    tensor.untyped_storage().resize_(max(0, tensor.untyped_storage().nbytes() - 1))
    return tensor


def overlapping_base(kitchen: Kitchen, recipe: Recipe) -> Tensor:
    """In part in the memory of another."""
    base = kitchen.make(recipe.base)
    return base.as_strided(base.size(), base.stride(), base.storage_offset() + 1)


def nested(layout: torch.layout) -> Kind:
    """Two tensors of different lengths in one, whose last dimension is the recipe's where there is memory for it."""

    def make(_: Kitchen, recipe: Recipe) -> Tensor:
        last = [min(n, FEW) for n in recipe.size[-1:]]
        lengths = min(max(1, math.prod(recipe.size[:-1])), FEW), 2
        return torch.nested.nested_tensor([torch.ones(length, *last) for length in lengths], layout=layout)

    return make


NOT_TENSORS: dict[str, Kind] = {
    "none": lambda *_: None,
    "number": lambda *_: 2.5,
    "string": lambda *_: "tensor",
    "array": lambda *_: torch.ones(3).numpy(),
    "list": lambda *_: [[1.0, 2.0], [3.0, 4.0]],
    "storage": lambda *_: torch.ones(3).untyped_storage(),
    "type": lambda *_: torch.Tensor,
}

SPOILED_KINDS: dict[str, Kind] = {
    "overlapping base": overlapping_base,
    "freed": freed,
    "shortened": shortened,
    "meta": lambda _, recipe: recipe.meta(),
    "sparse": lambda _, recipe: floats(recipe).to_sparse(),
    "sparse CSR": lambda _, recipe: of_rank(2, recipe).to_sparse_csr(),
    "nested": nested(torch.strided),
    "jagged": nested(torch.jagged),
    "oneDNN": lambda _, recipe: of_rank(2, recipe).to_mkldnn(),
    "quantized": lambda _, recipe: torch.quantize_per_tensor(floats(recipe), 0.5, 1, torch.qint8),
    "conjugate": lambda _, recipe: floats(recipe).to(torch.complex64).conj(),
} | NOT_TENSORS
