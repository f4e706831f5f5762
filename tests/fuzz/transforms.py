"""Transforms composed at random over every op of samples.py, against the same transforms of plain PyTorch in float64.

Every kind of op meets every transform in turn, and one or two others by chance. Where PyTorch's own function does not
take a composition, neither must ours.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functionalize, grad, jacfwd, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from fuzz.cases import category
from reference import ACTIVATIONS
from sample import Sample
from samples import SAMPLES

Function = Callable[..., tuple[Tensor, ...]]  # of tensors
Wrap = Callable[[Function], Function]

TOLERANCE = 1e-6
TRIES = 5  # until PyTorch takes a composition

warnings.filterwarnings("ignore")


def scalar(function: Function) -> Callable[..., Tensor]:
    """A number that depends on every result."""
    return lambda *inputs: sum((result.double() ** 2).sum() for result in function(*inputs))


def leaves(function: Callable[..., Any]) -> Function:
    """All results in one tuple."""
    return lambda *inputs: tuple(tree_leaves(function(*inputs)))


def some(rng: random.Random, count: int) -> tuple[int, ...]:
    """Some of the arguments, at least one."""
    return tuple(sorted(rng.sample(range(count), rng.randint(1, count))))


# ---- the transforms: each draws what there is to choose and says how it wraps a function; vmap adds to inputs ----


def draw_vmap(rng: random.Random, inputs: list[Tensor]) -> tuple[str, Wrap]:
    """Over a new dimension anywhere in some of the inputs."""
    batched = some(rng, len(inputs))
    size = rng.choice([1, 2, 3])
    in_dims = tuple(rng.randint(-x.dim() - 1, x.dim()) if i in batched else None for i, x in enumerate(inputs))
    scale = torch.linspace(0.5, 1.0, size, dtype=torch.float64)
    for i in batched:
        inputs[i] = torch.stack([inputs[i] * number for number in scale], in_dims[i])
    # Not to the last dimension: PyTorch takes garbage for the size of a result that is not batched there.
    chunk_size = rng.choice([1, 2]) if rng.random() < 0.2 else None
    return f"vmap({in_dims}, chunk_size={chunk_size})", lambda f: vmap(f, in_dims, chunk_size=chunk_size)


def draw_jvp(rng: random.Random, inputs: list[Tensor]) -> tuple[str, Wrap]:
    """Values and directional derivatives through some inputs."""
    chosen = some(rng, len(inputs))

    def wrap(f: Function) -> Function:
        def push(*xs: Tensor) -> tuple[Tensor, ...]:
            def of_chosen(*given: Tensor) -> tuple[Tensor, ...]:
                every = list(xs)
                for i, x in zip(chosen, given, strict=True):
                    every[i] = x
                return f(*every)

            points = tuple(xs[i] for i in chosen)
            values, tangents = jvp(of_chosen, points, tuple(torch.cos(x) for x in points))
            return (*values, *tangents)

        return push

    return f"jvp({chosen})", wrap


def draw_grad(rng: random.Random, inputs: list[Tensor]) -> tuple[str, Wrap]:
    """The gradients of some inputs."""
    chosen = some(rng, len(inputs))
    return f"grad({chosen})", lambda f: leaves(grad(scalar(f), chosen))


def draw_vjp(rng: random.Random, inputs: list[Tensor]) -> tuple[str, Wrap]:
    """A pulled-back cotangent."""

    def wrap(f: Function) -> Function:
        def pull(*xs: Tensor) -> tuple[Tensor, ...]:
            values, pull_back = vjp(f, *xs)
            return pull_back(tuple(torch.cos(value) for value in values))

        return pull

    return "vjp", wrap


def jacobian(transform: Callable[..., Any]) -> Callable[..., tuple[str, Wrap]]:
    """The Jacobian of two elements of each result in some inputs."""

    def draw(rng: random.Random, inputs: list[Tensor]) -> tuple[str, Wrap]:
        chosen = some(rng, len(inputs))
        part = lambda f: lambda *xs: tuple(result.reshape(-1)[:2] for result in f(*xs))  # noqa: E731
        return f"{transform.__name__}({chosen})", lambda f: leaves(transform(part(f), chosen))

    return draw


def draw_functionalize(rng: random.Random, inputs: list[Tensor]) -> tuple[str, Wrap]:
    """Without mutations, and perhaps without views, of inputs that are views of what has just been written to."""
    remove = rng.choice(["mutations", "mutations_and_views"])

    def wrap(f: Function) -> Function:
        def of_views(*xs: Tensor) -> tuple[Tensor, ...]:
            bases = [torch.zeros_like(x) for x in xs]
            views = [base.view_as(base) for base in bases]
            for base, x in zip(bases, xs, strict=True):
                base.add_(x)
            return f(*views)

        return functionalize(of_views, remove=remove)

    return f"functionalize({remove})", wrap


def draw_autocast(rng: random.Random, inputs: list[Tensor]) -> tuple[str, Wrap]:
    """Which leaves float64 alone."""

    def wrap(f: Function) -> Function:
        def cast(*xs: Tensor) -> tuple[Tensor, ...]:
            with torch.autocast("cpu", torch.bfloat16):
                return f(*xs)

        return cast

    return "autocast", wrap


# ---- those that are the last ones only ----


def draw_make_fx(rng: random.Random, inputs: list[Tensor]) -> tuple[str, Wrap]:
    """Traced, and run with other inputs."""
    mode = rng.choice(["real", "fake", "symbolic"])

    def wrap(f: Function) -> Function:
        def traced(*xs: Tensor) -> tuple[Tensor, ...]:
            return make_fx(f, tracing_mode=mode)(*[x.cos() for x in xs])(*xs)

        return traced

    return f"make_fx({mode})", wrap


def draw_compile(rng: random.Random, inputs: list[Tensor]) -> tuple[str, Wrap]:
    """Dynamo and AOTAutograd."""
    dynamic = rng.choice([True, False])

    def wrap(f: Function) -> Function:
        def run(*xs: Tensor) -> tuple[Tensor, ...]:
            torch._dynamo.reset()
            return torch.compile(f, backend="aot_eager", dynamic=dynamic)(*xs)

        return run

    return f"compile(dynamic={dynamic})", wrap


def gradients(f: Function, xs: Sequence[Tensor], order: int) -> tuple[Tensor, ...]:
    """Those of torch.autograd.grad, again and again."""
    xs = [x.detach().requires_grad_() for x in xs]
    results: list[Tensor] = []
    value = scalar(f)(*xs)
    for i in range(order):
        if not value.requires_grad:
            return (*results, *[torch.zeros_like(x) for x in xs] * (order - i))
        found = torch.autograd.grad(value, xs, create_graph=i + 1 < order, materialize_grads=True)
        results += [gradient.detach() for gradient in found]
        value = sum((gradient**2).sum() for gradient in found)
    return tuple(results)


def draw_autograd(rng: random.Random, inputs: list[Tensor]) -> tuple[str, Wrap]:
    """torch.autograd.grad, and of its result."""
    order = rng.choice([1, 1, 2])
    return f"autograd({order})", lambda f: lambda *xs: gradients(f, xs, order)


def draw_checkpoint(rng: random.Random, inputs: list[Tensor]) -> tuple[str, Wrap]:
    """torch.utils.checkpoint, under autograd."""
    order, reentrant = rng.choice([(1, True), (1, False), (2, False)])
    again = lambda f: lambda *xs: checkpoint(f, *xs, use_reentrant=reentrant)  # noqa: E731
    return f"checkpoint({order}, {reentrant})", lambda f: lambda *xs: gradients(again(f), xs, order)


def draw_compiled_gradients(rng: random.Random, inputs: list[Tensor]) -> tuple[str, Wrap]:
    """The way back of a compiled function."""

    def wrap(f: Function) -> Function:
        def run(*xs: Tensor) -> tuple[Tensor, ...]:
            torch._dynamo.reset()
            return gradients(torch.compile(f, backend="aot_eager"), xs, 1)

        return run

    return "autograd of compile", wrap


def draw_batched_gradients(rng: random.Random, inputs: list[Tensor]) -> tuple[str, Wrap]:
    """is_grads_batched."""

    def wrap(f: Function) -> Function:
        def run(*xs: Tensor) -> tuple[Tensor, ...]:
            xs = tuple(x.detach().requires_grad_() for x in xs)
            values = [value for value in f(*xs) if value.requires_grad]
            if not values:
                return tuple(torch.zeros(2, *x.shape, dtype=x.dtype) for x in xs)
            cotangents = [torch.stack([value.detach().cos(), value.detach()]) for value in values]
            return torch.autograd.grad(values, xs, cotangents, is_grads_batched=True, materialize_grads=True)

        return run

    return "batched gradients", wrap


def draw_dual(rng: random.Random, inputs: list[Tensor]) -> tuple[str, Wrap]:
    """torch.autograd.forward_ad, over reverse mode."""
    chosen = some(rng, len(inputs))

    def wrap(f: Function) -> Function:
        def run(*xs: Tensor) -> tuple[Tensor, ...]:
            with forward_ad.dual_level():
                duals = [forward_ad.make_dual(x, x.cos()) if i in chosen else x for i, x in enumerate(xs)]
                parts = [forward_ad.unpack_dual(value) for value in f(*duals)]
            return tuple(
                tensor
                for part in parts
                for tensor in (part.primal, torch.zeros_like(part.primal) if part.tangent is None else part.tangent)
            )

        return run

    return f"forward_ad({chosen})", wrap


Draw = Callable[[random.Random, list[Tensor]], tuple[str, Wrap]]

ANYWHERE: dict[Draw, float] = {  # how often beside another one
    draw_vmap: 4,
    draw_jvp: 2,
    draw_grad: 3,
    draw_vjp: 2,
    jacobian(jacrev): 1,
    jacobian(jacfwd): 1,
    draw_functionalize: 2,
    draw_autocast: 1,
}
LAST: list[Draw] = [
    draw_make_fx,
    draw_compile,
    draw_compiled_gradients,
    draw_autograd,
    draw_checkpoint,
    draw_batched_gradients,
    draw_dual,
]
COMPILED: list[Draw] = [draw_compile, draw_compiled_gradients]
# For the forms with out=, of which PyTorch has no derivatives and no vmap.
PLAIN: list[Draw] = [draw_functionalize, draw_autocast, draw_make_fx, draw_compile]


def dressed(tensor: Tensor, rng: random.Random) -> Tensor:
    """The same numbers in another layout."""
    choice = rng.random()
    if choice < 0.2 and tensor.dim() > 1:
        return tensor.mT.contiguous().mT
    if choice < 0.3:
        return torch.stack([tensor, tensor], -1)[..., 0]
    if choice < 0.4:
        return torch._neg_view(-tensor)
    return tensor


def written_to_out(function: Function) -> Function:
    """The same by an op of PyTorch with out=."""
    return lambda *xs: tuple(torch.mul(result, 1, out=torch.empty_like(result)) for result in function(*xs))


def wrapped(function: Function, steps: Sequence[tuple[str, Wrap]]) -> Function:
    """The function under all transforms, the first one innermost."""
    for _, wrap in steps:
        function = wrap(function)
    return function


def outcome(function: Function, inputs: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Exception | None]:
    """Results, or an error."""
    try:
        return tuple(result.detach() for result in function(*[x.clone() for x in inputs])), None
    except Exception as error:
        return (), error


def kind(sample: Sample) -> str:
    """Samples of one kind go through the same code: the activations are one kind, and so are their other forms."""
    name, dot, out = sample.op.partition(".")
    plain = name.removesuffix("_")
    return f"activation{name.removeprefix(plain)}{dot}{out}" if plain in ACTIVATIONS else sample.op


KINDS: dict[str, list[Sample]] = {}
for sample in SAMPLES:
    KINDS.setdefault(kind(sample), []).append(sample)

PAIRS = [
    (samples, draw)
    for draw in [*ANYWHERE, *LAST]
    for samples in KINDS.values()
    if samples[0].differentiable or draw in PLAIN
]
random.Random(0).shuffle(PAIRS)
SLOW = [(samples, draw) for samples, draw in PAIRS if draw in COMPILED]
QUICK = [(samples, draw) for samples, draw in PAIRS if draw not in COMPILED]
SLOW_AT_ONCE = 6


def pair(seed: int) -> tuple[list[Sample], Draw]:
    """What to transform and how: of seeds in turn, all that is quick and then a few of the slow ones."""
    rounds, place = divmod(seed, len(QUICK) + SLOW_AT_ONCE)
    if place < len(QUICK):
        return QUICK[place]
    return SLOW[(rounds * SLOW_AT_ONCE + place - len(QUICK)) % len(SLOW)]


def compose(rng: random.Random, sample: Sample, wanted: Draw, inputs: list[Tensor]) -> list[tuple[str, Wrap]]:
    """The wanted transform with up to two others; one that is a last one comes last."""
    others = [draw for draw in ANYWHERE if sample.differentiable or draw in PLAIN]
    draws = rng.choices(others, [ANYWHERE[draw] for draw in others], k=rng.choice([0, 1, 1, 2]))
    draws.insert(rng.randint(0, len(draws)) if wanted in ANYWHERE else len(draws), wanted)
    return [draw(rng, inputs) for draw in draws]


def case(seed: int) -> None:
    """One composition."""
    rng = random.Random(seed)
    samples, wanted = pair(seed)
    for _ in range(TRIES):
        sample = rng.choice(samples)
        inputs = sample.tensors("cpu")
        steps = compose(rng, sample, wanted, inputs)
        names = [name for name, _ in steps]
        category(names[-1].partition("(")[0], f"{' of '.join(reversed(names))} of {sample}")
        inputs = [dressed(tensor, rng) for tensor in inputs]
        reference = sample.reference if sample.differentiable else written_to_out(sample.reference)
        expected, refused = outcome(wrapped(reference, steps), inputs)
        if refused is None:
            return compare(sample, steps, inputs, expected)
    return category("what PyTorch refuses")


def pytorch_manages_in_place(steps: Sequence[tuple[str, Wrap]], inputs: Sequence[Tensor]) -> bool:
    """Whether tanh_ under the transforms is tanh."""
    (actual, error), (expected, _) = (
        outcome(wrapped(function, steps), inputs)
        for function in (lambda x: (x.clone().tanh_(),), lambda x: (x.tanh(),))
    )
    return error is None and all(map(torch.allclose, actual, expected))


def compare(
    sample: Sample, steps: Sequence[tuple[str, Wrap]], inputs: Sequence[Tensor], expected: Sequence[Tensor]
) -> None:
    """The op under the transforms gives what PyTorch's function gives."""
    actual, error = outcome(wrapped(sample.call, steps), inputs)
    if sample.op.endswith("_") and not pytorch_manages_in_place(steps, inputs):
        return category("what PyTorch refuses, or gets wrong, in place")
    if error is not None:
        if "aten::detach_copy" in str(error):  # of the sample, which detaches what an op saves
            return category("what PyTorch refuses")
        if "symbolic sizes" in str(error) and "slice_backward" in str(error):  # batched twice, as PyTorch's own slices
            return category("what PyTorch refuses")
        raise AssertionError(f"{type(error).__name__}: {error}") from error
    assert len(actual) == len(expected)
    for i, (result, other) in enumerate(zip(actual, expected, strict=True)):
        one_batched = result.shape == other.shape[1:] or result.shape[1:] == other.shape
        if one_batched and not other.any() and not result.any():
            continue  # what autograd puts in place of a batched gradient that there is not
        assert result.shape == other.shape and result.dtype == other.dtype, f"{result.shape} {other.shape}"
        bound = TOLERANCE * (1 + other.abs() + other.nan_to_num(0, 0, 0).abs().amax() if other.numel() else 1)
        fine = ((result - other).abs() <= bound) | (result == other) | other.isnan()
        if not fine.all():
            place = tuple((~fine).nonzero()[0].tolist())
            raise AssertionError(f"result {i} at {place} is {result[place]}, expected {other[place]}")
