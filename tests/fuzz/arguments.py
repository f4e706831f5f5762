"""Hostile arguments for every overload of every op, made from the schemas.

The native kernel, the composite one and the Meta kernel must agree: on the results' shapes, dtypes and strides, on
their values, which are those of the composite kernel in float64, or on the class of the error. Whatever happens, no
memory changes but the elements of arguments that the op writes to.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import fastops
from fuzz.cases import category
from fuzz.schemas import SCHEMAS, Arguments, Schema, each_tensor, good_call, overload, recipes
from fuzz.spoil import dress, spoil, written
from fuzz.tensors import HUGE, NOT_TENSORS, SPOILED_KINDS, Kitchen, Recipe, raw
from reference import LOST_IN_ROUNDING

# The kernels under this key are those that every device gets that fastops has no kernels for.
COMPOSITE = torch._C.DispatchKeySet(torch._C.DispatchKey.XPU)

# Elements between which a result is neither worth its time nor refused by the allocator.
LARGE = range(1 << 24, HUGE)

warnings.filterwarnings("ignore")


class Outcome:
    """What became of a call: results or an error."""

    def __init__(self, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
        self.error: Exception | None = None
        self.results: list[Tensor] = []
        try:
            self.results = flat(function(**arguments))
        except Exception as error:
            self.error = error

    @property
    def kind(self) -> str:
        """The class of the error."""
        return type(self.error).__name__ if self.error else "results"

    @property
    def lacks_memory(self) -> bool:
        """Whether the error is that of an allocation."""
        return self.error is not None and any(
            text in str(self.error) for text in ("allocate memory", "bad_alloc", "Storage size calculation overflowed")
        )

    def __str__(self) -> str:
        return f"{self.kind}: {self.error}" if self.error else "results"


def flat(results: Any) -> list[Tensor]:
    """All tensors of an op's results."""
    if isinstance(results, Tensor):
        return [results.detach()]
    return [tensor for result in results for tensor in flat(result)]


def described(schema: Schema, arguments: Arguments) -> str:
    """The call, for a message."""
    values = ", ".join(f"{name}={value!s:.200}" for name, value in each_tensor(str, arguments).items())
    return f"{schema.name[9:]}.{schema.overload_name or 'default'}({values})"


def watched(function: Callable[..., Any], arguments: Arguments, targets: list[str]) -> Outcome:
    """The outcome of a call, after which nothing else has changed."""
    kitchen = Kitchen()
    made = each_tensor(kitchen.make, arguments)
    memory = kitchen.memory()
    before = [tensor.clone() for tensor in memory]
    candidates = [made[name] for name in targets if isinstance(made[name], Tensor) and not made[name].is_nested]
    sizes = [target.shape for target in candidates]
    outcome = Outcome(function, made)
    written_to = candidates if outcome.error is None else []
    for old, new in zip(before, kitchen.memory(), strict=True):
        changed = old != new if old.shape == new.shape else torch.zeros(0, dtype=torch.bool)
        for target, size in zip(written_to, sizes, strict=False):
            if target.shape == size:
                changed &= ~place_of(target, new)
            elif raw(target).data_ptr() == new.data_ptr():  # resized
                changed = changed[:0]
        assert not changed.any(), f"{int(changed.sum())} bytes have changed that were not to be written to"
    return outcome


def place_of(target: Tensor, memory: Tensor) -> Tensor:
    """Which bytes of the memory are the target's."""
    mine = torch.zeros(len(memory), dtype=torch.bool)
    start = raw(target).data_ptr() - memory.data_ptr()
    if 0 <= start < len(memory):
        size = target.element_size()
        elements = torch.zeros(raw(target).numel() // size, dtype=torch.bool)
        elements.as_strided(target.size(), target.stride(), target.storage_offset()).fill_(True)
        mine[start : start + len(elements) * size] = elements.repeat_interleave(size)
    return mine


# ---- other forms of the same call ----


def on_meta(arguments: Arguments) -> dict[str, Any]:
    """The arguments' sizes, strides and dtypes."""
    kitchen, seen = Kitchen(), {}

    def convert(recipe: Recipe) -> Any:
        made = kitchen.make(recipe)
        if id(made) not in seen and made is not None:
            seen[id(made)] = torch.empty_strided(made.size(), made.stride(), dtype=made.dtype, device="meta")
        return seen.get(id(made))

    return each_tensor(convert, arguments)


def exact_dtype(schema: Schema, arguments: Arguments) -> torch.dtype:
    """float64, but the arguments' own where that decides what mlp keeps for the way back: inputs or outputs."""
    names = {arguments.get(name) for name in ("activation", "output_activation")}
    dtype = recipes(arguments)[0].dtype
    keeps = schema.name in ("fastops::mlp_forward", "fastops::mlp_backward")
    return dtype if keeps and dtype.itemsize == 2 and names & LOST_IN_ROUNDING else torch.float64


def in_dtype(dtype: torch.dtype, arguments: Arguments, targets: list[str], noise: float = 0.0) -> dict[str, Any]:
    """The arguments' values, each number off by about so much of itself; what is only written to is new."""
    kitchen = Kitchen()

    def convert(recipe: Recipe) -> Any:
        made = kitchen.make(recipe)
        if made is None:
            return None
        exact = made.detach().to(dtype, copy=True).contiguous()
        return exact * (1 + noise * torch.randn_like(exact)) if noise else exact

    converted = each_tensor(convert, arguments)
    for name in targets:
        if name != "self":
            converted[name] = torch.empty(0, dtype=dtype)
    return converted


# ---- comparisons ----


def layout(tensor: Tensor) -> Any:
    """Shape, dtype and the strides that mean something."""
    strides = [step for step, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1 and tensor.numel() > 0]
    return tuple(tensor.shape), tensor.dtype, strides


def agrees(actual: Tensor, expected: Tensor, bound: Tensor | float) -> Tensor:
    """Which elements are within the bound, in float64; NaN is NaN."""
    return (actual == expected) | (actual.isnan() & expected.isnan()) | ((actual - expected).abs() <= bound)


def rounding(expected: Tensor, dtype: torch.dtype) -> Tensor:
    """What results of this dtype may be off by: a little of themselves, and of the largest of them."""
    info = torch.finfo(dtype)
    largest = expected.nan_to_num(0, 0, 0).abs().amax()
    return 16 * (info.eps * (expected.abs() + largest) + info.smallest_normal)


def any_nan(arguments: Arguments, shape: torch.Size) -> Tensor:
    """Where one of the tensors of a shape is NaN."""
    made = [Kitchen().make(recipe) for recipe in recipes(arguments)]
    return sum((x.isnan() for x in made if x is not None and x.shape == shape), torch.zeros(shape)) > 0


def compare_values(
    native: list[Tensor], composite: list[Tensor], arguments: Arguments, schema: Schema, special: bool
) -> None:
    """Each result is the composite kernel's in float64, up to rounding; special numbers may go the composite's way."""
    dtype = exact_dtype(schema, arguments)
    exact_call = lambda noise=0.0: [  # noqa: E731
        result.double()
        for result in flat(overload(schema).redispatch(COMPOSITE, **in_dtype(dtype, arguments, written(schema), noise)))
    ]
    for i, (result, other, expected) in enumerate(zip(native, composite, exact_call(), strict=True)):
        if not result.numel():
            continue
        bound = rounding(expected, result.dtype)
        actual, other = result.double(), other.double()
        fine = agrees(actual, expected, bound) | agrees(actual, expected.to(result.dtype).double(), 0)
        fine |= ~other.isfinite() & ~actual.isfinite()  # what overflows on the way
        if special:
            fine |= agrees(actual, other, rounding(other, result.dtype))
            fine |= actual.isnan() & any_nan(arguments, result.shape)  # where a derivative is constant
            if "mlp_jet" in schema.name:
                fine |= ~actual.isfinite()  # what overflows in another order
        for _ in range(64):
            if fine.all():
                break
            # Where the results depend much on their arguments, the arguments' rounding counts.
            noise = 4 * torch.finfo(result.dtype).eps
            off = (exact_call(noise)[i] - expected).abs().nan_to_num(torch.inf)
            fine |= agrees(actual, expected, bound + 4 * off)
        if not fine.all():
            place = tuple((~fine).nonzero()[0].tolist())
            raise AssertionError(
                f"result {i} at {place} is {actual[place]}, expected {expected[place]}; composite {other[place]}"
            )


def drawn(rng: random.Random) -> Schema:
    """The op of a case."""
    return rng.choice(SCHEMAS)


def case(seed: int) -> None:
    """One call."""
    rng = random.Random(seed)
    schema = drawn(rng)
    arguments = dress(good_call(schema, rng), schema, rng)
    spoiled = []
    while rng.random() < (0.15 if spoiled else 0.6):
        what, arguments = spoil(arguments, schema, rng)
        spoiled.append(what)
    category(" and ".join(sorted(set(spoiled))[:1]) or "good", described(schema, arguments))
    check(schema, arguments, spoiled, rng)


def entry(schema: Schema, rng: random.Random) -> Callable[..., Any]:
    """The op, or the direct entry point of fastops._C where it has one."""
    direct = None if schema.overload_name else getattr(fastops._C, schema.name[len("fastops::") :], None)
    if direct and rng.random() < 0.3:
        return lambda **made: direct(*made.values())
    return overload(schema)


def check(schema: Schema, arguments: Arguments, spoiled: list[str], rng: random.Random) -> None:
    """The kernels agree about a call."""
    op, targets = overload(schema), written(schema)
    kinds = {recipe.kind for recipe in recipes(arguments)}
    if kinds & set(NOT_TENSORS) and kinds & {"freed", "shortened"}:
        return  # PyTorch's error shows all values, those without memory too
    if "sparse CSR" in kinds and any(size >= HUGE for recipe in recipes(arguments) for size in recipe.size):
        return  # its rows need memory, though they are empty
    meta = None
    if not kinds & set(SPOILED_KINDS):
        meta = Outcome(op, on_meta(arguments))
        if any(result.numel() in LARGE for result in meta.results):
            return
        huge = any(recipe.count >= HUGE for recipe in recipes(arguments))
        if huge and any(result.numel() < HUGE for result in meta.results):
            return  # sums of too many numbers
    native = watched(entry(schema, rng), arguments, targets)
    if "jagged" in kinds and torch.Tag.pointwise in op.tags:
        return  # PyTorch itself takes it apart, or refuses to
    with torch.no_grad():
        composite = watched(lambda **made: op.redispatch(COMPOSITE, **made), arguments, targets)
    if any(result.is_meta for result in native.results):
        assert composite.kind == "results"
        return
    if native.lacks_memory or composite.lacks_memory:
        return
    refused_first = {*NOT_TENSORS, *(["nested", "jagged"] if len(spoiled) > 1 else [])}
    if kinds & refused_first and native.error and composite.error:
        return  # of another class where these are refused before anything else is looked at
    assert native.kind == composite.kind, f"native: {native}\ncomposite: {composite}"
    if native.error is not None:
        assert meta is None or meta.kind == native.kind, f"native: {native}\nMeta: {meta}"
        return
    for result, other in zip(native.results, composite.results, strict=True):
        assert layout(result) == layout(other), f"native: {layout(result)}\ncomposite: {layout(other)}"
    if meta is not None:
        assert [layout(r) for r in native.results] == [layout(r) for r in meta.results], (
            f"native: {native} {[layout(r) for r in native.results]}\nMeta: {meta} {[layout(r) for r in meta.results]}"
        )
    if "with gradient" in kinds and arguments.get("saved"):
        return  # autograd may compute anew what is kept, and here that is not the network's
    special = bool({"number", "numbers"} & set(spoiled)) or any(r.values == "special" for r in recipes(arguments))
    if not (special and "zero tensor" in kinds):  # PyTorch's own ops take zero times infinity for zero there
        compare_values(native.results, composite.results, arguments, schema, special)
