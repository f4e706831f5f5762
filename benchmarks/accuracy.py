"""The largest errors of the elementary functions and the activations over every float32, and PyTorch's beside them.

``python benchmarks/accuracy.py`` takes half an hour or so on two cores and writes ``docs/accuracy.md``; with
``--stride 1000`` it tries every thousandth float32 and takes seconds. What is done is kept in ``build/accuracy.json``:
an interrupted run goes on where it was. It needs what ``math_functions.py`` needs, which has the elementary functions.

The reference is float64, by formulas without cancellation; its own error is some 1e-16 relative, 1e-9 of what is
measured. The unit is the distance between neighbouring float32 numbers at the true value (ulp), so half a unit is the
best that any float32 result can do. Where values are so small that exp(-x) overflows on the way there, formulas flush
to zero (PyTorch's as well as ours): for the activations, values below 2^-98 in magnitude count with the unit of 2^-98,
which is 2^-121. For the elementary functions the unit is that of the value, down to the denormals.

The elementary functions in float64 are tried at 200,000 numbers each, against mpmath.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import fastops
from fastops.bench.models import pytorch_activation
from math_functions import NAMES, compile_functions, error, points, true_value

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / "build" / "accuracy.json"
CHUNK = 1 << 15  # numbers at a time: what stays in a core's cache
FINITE = 0x7F800000  # bit patterns of the finite numbers of either sign
FLOAT64_POINTS = 200_000

Function = Callable[[Tensor], Tensor]


class Case(NamedTuple):
    reference: Function
    ours: Function
    pytorch: Function
    smallest: float  # where the unit stops shrinking


# ---- what is measured ----


def elementary_functions() -> dict[str, Case]:
    """The functions of math.h, compiled for the instruction set in use."""
    functions = compile_functions(fastops._C.cpu_capability())
    pytorch = {name: getattr(torch, name) for name in NAMES}
    return {name: Case(pytorch[name], functions[name, torch.float32], pytorch[name], 2.0**-126) for name in NAMES}


def logistic(x: Tensor) -> Tensor:
    e = torch.exp(-x.abs())
    return torch.where(x < 0, e, 1.0) / (1 + e)


def logistic_slope(x: Tensor) -> Tensor:
    e = torch.exp(-x.abs())
    return e / (1 + e) ** 2


def gelu_tanh_argument(x: Tensor) -> Tensor:
    return 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def normal_cumulative(x: Tensor) -> Tensor:
    return 0.5 * torch.special.erfc(-x * math.sqrt(0.5))


def tanhshrink(x: Tensor) -> Tensor:
    s = x * x
    series = x * s * (1 / 3 - s * (2 / 15 - s * (17 / 315 - s * (62 / 2835 - s * 1382 / 155925))))
    return torch.where(x.abs() < 0.1, series, x - torch.tanh(x))


def mish_parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    e = torch.exp(x.clamp(max=40))
    w = e * (e + 2)
    return e, w, w + 2


def mish_slope(x: Tensor) -> Tensor:
    e, w, d = mish_parts(x)
    return w / d + x.clamp(max=40) * 4 * e * (e + 1) / d**2


SELU_SCALE = 1.0507009873554804934193349852946
SELU_ALPHA = 1.6732632423543772848170429916717
GELU_TANH_SLOPE = 2 * math.sqrt(2 / math.pi)

# Value and derivative in float64, for the activations whose formula in PyTorch is not as good there.
REFERENCES: dict[str, tuple[Function, Function]] = {
    "identity": (lambda x: x, torch.ones_like),
    "elu": (lambda x: torch.where(x < 0, torch.expm1(x), x), lambda x: torch.exp(x.clamp(max=0))),
    "selu": (
        lambda x: SELU_SCALE * torch.where(x < 0, SELU_ALPHA * torch.expm1(x), x),
        lambda x: SELU_SCALE * torch.where(x <= 0, SELU_ALPHA * torch.exp(x), 1.0),
    ),
    "gelu": (
        lambda x: x * normal_cumulative(x),
        lambda x: normal_cumulative(x) + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    ),
    "gelu_tanh": (
        lambda x: x * logistic(gelu_tanh_argument(x)),
        lambda x: (
            logistic(gelu_tanh_argument(x))
            + x * logistic_slope(gelu_tanh_argument(x)) * GELU_TANH_SLOPE * (1 + 3 * 0.044715 * x * x)
        ),
    ),
    "quick_gelu": (
        lambda x: x * logistic(1.702 * x),
        lambda x: logistic(1.702 * x) + 1.702 * x * logistic_slope(1.702 * x),
    ),
    "silu": (lambda x: x * logistic(x), lambda x: logistic(x) + x * logistic_slope(x)),
    "mish": (lambda x: x * (mish_parts(x)[1] / mish_parts(x)[2]), mish_slope),
    "softplus": (
        lambda x: torch.where(x > 20, x, x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))),
        lambda x: torch.where(x > 20, 1.0, logistic(x)),
    ),
    "sigmoid": (logistic, logistic_slope),
    "tanh": (torch.tanh, lambda x: 4 * logistic_slope(2 * x)),
    "tanhshrink": (tanhshrink, lambda x: torch.tanh(x) ** 2),
    "hardswish": (
        lambda x: x * ((x + 3).clamp(0, 6) / 6),
        lambda x: torch.where(x <= -3, 0.0, torch.where(x < 3, x / 3 + 0.5, 1.0)),
    ),
    "hardsigmoid": (
        lambda x: (x + 3).clamp(0, 6) / 6,
        lambda x: ((x > -3) & (x < 3)).to(x) / 6,
    ),
}


def derivative(function: Function) -> Function:
    def call(x: Tensor) -> Tensor:
        leaf = x.detach().clone().requires_grad_()
        return torch.autograd.grad(function(leaf), leaf, torch.ones_like(leaf))[0]

    return call


def activations(gradients: bool) -> dict[str, Case]:
    cases = {}
    for entry in fastops._C.activations():
        name = entry["name"]
        pytorch, ours = pytorch_activation(name), getattr(fastops.functional, name)
        value, slope = REFERENCES.get(name, (pytorch, derivative(pytorch)))
        if gradients:
            cases[name] = Case(slope, derivative(ours), derivative(pytorch), 2.0**-98)
        else:
            cases[name] = Case(value, ours, pytorch, 2.0**-98)
    return cases


# ---- how ----


class Worst(NamedTuple):
    """The largest error in ulp, and where it is."""

    error: float
    x: float


def unit_of(exact: Tensor, smallest: float) -> Tensor:
    """The unit in the last place of float32 for each element, which stops shrinking at `smallest`."""
    bits_of_exponent = 0x7FF0000000000000
    return (exact.view(torch.int64) & bits_of_exponent).view(torch.float64).clamp_(min=smallest).mul_(2.0**-23)


def errors(result: Tensor, exact: Tensor, unit: Tensor) -> Tensor:
    """The error of each element in those units; infinity counts as the float32 number that would come next.

    What is NaN where the exact value is not, or the other way round, is infinitely wrong.
    """
    next_number = 2.0**128
    bounded = exact.clamp(-next_number, next_number)
    error = result.double().clamp_(-next_number, next_number).sub_(bounded).abs_().div_(unit)
    return error.masked_fill_(exact.isnan() & result.isnan(), 0.0).nan_to_num_(nan=math.inf)


def measure(case: Case, stride: int) -> tuple[Worst, Worst]:
    """The worst of fastops and of PyTorch over every `stride`-th finite float32."""
    worst = [Worst(-1.0, 0.0), Worst(-1.0, 0.0)]
    for sign in (0, -(1 << 31)):
        for begin in range(0, FINITE, CHUNK * stride):
            pattern = torch.arange(begin, min(FINITE, begin + CHUNK * stride), stride, dtype=torch.int32) + sign
            x = pattern.view(torch.float32)
            exact = case.reference(x.double())
            unit = unit_of(exact, case.smallest)
            for i, function in enumerate((case.ours, case.pytorch)):
                error = errors(function(x), exact, unit)
                largest = error.amax().item()
                if largest > worst[i].error:
                    worst[i] = Worst(largest, x[error.argmax()].item())
    return worst[0], worst[1]


def measure_float64(name: str, count: int) -> tuple[Worst, Worst]:
    """The worst of an elementary function of fastops and of PyTorch in float64."""
    worst = [Worst(-1.0, 0.0), Worst(-1.0, 0.0)]
    x = points(name, count, torch.float64)
    ours, pytorch = compile_functions(fastops._C.cpu_capability())[name, torch.float64](x), getattr(torch, name)(x)
    for value, *results in zip(x.tolist(), ours.tolist(), pytorch.tolist(), strict=True):
        exact = true_value(name, value)
        for i, result in enumerate(results):
            worst[i] = max(worst[i], Worst(error(result, exact, torch.float64), value), key=lambda w: w.error)
    return worst[0], worst[1]


def cases_of(kind: str) -> dict[str, Case]:
    return elementary_functions() if kind == "function" else activations(gradients=kind == "gradient")


def measure_alone(kind: str, name: str, stride: int) -> tuple[str, tuple[Worst, Worst]]:
    """One case, in a process that has one core."""
    torch.set_num_threads(1)
    if kind == "float64":
        return f"{kind} {name}", measure_float64(name, FLOAT64_POINTS // stride)
    return f"{kind} {name}", measure(cases_of(kind)[name], stride)


# ---- the report ----


def number(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.3f}" if value < 1000 else f"{value:.1e}"


def table(kept: dict[str, tuple[Worst, Worst]], kind: str) -> str:
    digits = 17 if kind == "float64" else 8
    lines = ["| | fastops, ulp | at x | PyTorch, ulp | at x |", "|---|---|---|---|---|"]
    for key, (ours, pytorch) in sorted(kept.items()):
        if key.startswith(f"{kind} "):
            name = key.split()[1]
            worst = [f"{number(error)} | {x:.{digits}g}" for error, x in (ours, pytorch)]
            lines.append(f"| {name} | {worst[0]} | {worst[1]} |")
    return "\n".join(lines)


def report(kept: dict[str, tuple[Worst, Worst]], stride: int, gradient_stride: int) -> str:
    tried = "every float32" if stride == 1 else f"every {stride}th float32"
    vendor = "MKL's" if torch.backends.mkl.is_available() else "SLEEF's"
    return f"""# Accuracy

Written by `benchmarks/accuracy.py`, which says how it is measured: {fastops._C.cpu_capability()} kernels, torch
{torch.__version__}. The unit is the distance of neighbouring float32 numbers at the true value; half a unit is the best
possible. 16-bit types are computed in float32, on x86 by formulas with errors of some 3e-6, which do not show there,
and rounded once; `tests/test_activation.py` tries all of their values.

## Elementary functions

The largest error over {tried}. The bound is 2, of sin and cos 2.2. (PyTorch's functions here are {vendor}.)

{table(kept, "function")}

In float64, the largest error over {FLOAT64_POINTS // stride:,} numbers each: of every size, where the function changes,
and about the places where its formulas meet. The bound is 1.

{table(kept, "float64")}

## Activations

The largest error over {tried}; below 2^-98 the unit is that of 2^-98.
The aim is PyTorch's own error, or 2 where the activation is an elementary function.

{table(kept, "value")}

## Gradients

The largest error of the gradient over every {gradient_stride}th float32, the incoming gradient being 1. Near the zeros
of a derivative its terms cancel, so that the unit there is small for what any formula in float32 can do. Where the
gradient is had from the output (elu, selu, sigmoid, tanh), its tails are lost in the output's rounding, in PyTorch too
where it does so: errors of 6e-8 in absolute terms. 16-bit tensors have elu's and selu's from the input.

{table(kept, "gradient")}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stride", type=int, default=1, help="try every STRIDE-th float32 (default: every one)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "accuracy.md", help="the report")
    parser.add_argument("--afresh", action="store_true", help="forget what an earlier run has measured")
    parser.add_argument("names", nargs="*", help="only these")
    arguments = parser.parse_args()
    gradient_stride = 61 * arguments.stride
    resume = STATE.exists() and not arguments.afresh and arguments.stride == 1
    kept: dict[str, tuple[Worst, Worst]] = json.loads(STATE.read_text()) if resume else {}
    strides = {"function": arguments.stride, "value": arguments.stride, "gradient": gradient_stride}
    names = {kind: list(cases_of(kind)) for kind in strides} | {"float64": NAMES}
    with ProcessPoolExecutor() as pool:
        running = [
            pool.submit(measure_alone, kind, name, strides.get(kind, arguments.stride))
            for kind in names
            for name in names[kind]
            if f"{kind} {name}" not in kept and (not arguments.names or name in arguments.names)
        ]
        for case in as_completed(running):
            key, worst = case.result()
            kept[key] = worst
            print(key, *worst, flush=True)
            if arguments.stride == 1:
                STATE.parent.mkdir(exist_ok=True)
                STATE.write_text(json.dumps(kept, indent=1))
    arguments.out.write_text(report(kept, arguments.stride, gradient_stride))


if __name__ == "__main__":
    main()
