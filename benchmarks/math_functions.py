"""The elementary functions of the CPU kernels, called from Python, with their true values and where to try them.

For accuracy.py and tests/test_math.py. It needs a clone, as it compiles ``math_functions.cpp``, and g++ or clang.
"""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import mpmath as mp
import torch
import torch.nn.functional as F
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
NAMES = ["exp", "expm1", "log1p", "tanh", "erf", "sin", "cos"]
FLAGS = {
    "avx512": "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c",
    "avx2": "-mavx2 -mfma -mf16c",
    "sve128": "-march=armv8.2-a+sve+bf16 -msve-vector-bits=128",
    "sve256": "-march=armv8.2-a+sve+bf16 -msve-vector-bits=256 -DCPU_CAPABILITY_SVE",
}

Function = Callable[[Tensor], Tensor]


def compile_functions(tier: str) -> dict[tuple[str, torch.dtype], Function]:
    """The functions by name and dtype, compiled for an instruction set as fastops.info().cpu_capability names it.

    They are linked with nothing of torch: a kernel that calls one of its functions fails here.
    """
    tier = "avx512" if tier in ("amx", "avx512_bf16") else tier  # the same elementwise kernels
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "math_functions.so"
        subprocess.run(
            [
                *[os.environ.get("CXX", "g++"), "-std=c++20", "-O3", "-shared", "-fPIC", "-ffp-contract=off"],
                *["-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"],
                *[f"-DCPU_CAPABILITY={tier.upper()}", f"-DCPU_CAPABILITY_{tier.upper()}"],
                *FLAGS.get(tier, "").split(),
                *[f"-I{ROOT / 'src'}", "-isystem", Path(torch.__file__).parent / "include"],
                *[ROOT / "benchmarks" / "math_functions.cpp", "-o", output],
            ],
            check=True,
        )
        library = ctypes.CDLL(str(output), mode=os.RTLD_NOW)

    def function(name: str, dtype: torch.dtype) -> Function:
        native = getattr(library, f"{name}_{str(dtype)[6:]}")
        native.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]

        def call(x: Tensor) -> Tensor:
            padded = F.pad(x, (0, -len(x) % 16))
            y = torch.empty_like(padded)
            native(padded.data_ptr(), y.data_ptr(), len(padded))
            return y[: len(x)]

        return call

    return {(name, dtype): function(name, dtype) for name in NAMES for dtype in (torch.float32, torch.float64)}


def true_value(name: str, x: float) -> mp.mpf:
    """The function's value to 100 bits."""
    if name == "log1p" and x <= -1:
        return mp.ninf if x == -1 else mp.nan
    with mp.workprec(100):
        return mp.nan if name in ("sin", "cos") and math.isinf(x) else getattr(mp, name)(mp.mpf(x))


def error(result: float, exact: mp.mpf, dtype: torch.dtype) -> float:
    """The distance of a result from the true value in units in the last place of the dtype, there.

    Infinity counts as the number that would come next. What is NaN where the true value is not, or the other way
    round, is infinitely wrong.
    """
    if mp.isnan(exact) or math.isnan(result):
        return 0.0 if mp.isnan(exact) and math.isnan(result) else math.inf
    digits, least, most = (53, -1021, 1024) if dtype == torch.float64 else (24, -125, 128)
    next_number = mp.mpf(2) ** most
    exact = min(max(exact, -next_number), next_number)
    result = min(max(mp.mpf(result), -next_number), next_number)
    exponent = max(mp.mag(exact), least) if exact else least
    with mp.workprec(100):
        return float(mp.ldexp(abs(result - exact), digits - exponent))


# Where each function changes, and where a formula ends and another begins, or an exponent (in float64).
RANGES = {
    "exp": (-745.2, 709.8),
    "expm1": (-40, 709.8),
    "log1p": (-1, 40),
    "tanh": (-20, 20),
    "erf": (-6, 6),
    "sin": (-1e5, 1e5),
    "cos": (-1e5, 1e5),
}
HALF_LN2 = math.log(2) / 2
# Zeros and largest values, near the first ones and near the last ones before another formula.
EIGHTHS_OF_TURNS = [
    sign * n * math.pi / 4 for n in (*range(1, 10), 83439, 83441, 83442, 1367130550) for sign in (1, -1)
]
SEAMS = {
    "exp": [-HALF_LN2, HALF_LN2, 3 * HALF_LN2, -708.4, -745.13, 709.783],
    "expm1": [-HALF_LN2, HALF_LN2, -3 * HALF_LN2, 3 * HALF_LN2, -37.1, -37.4, 37.1, 709.783],
    "log1p": [math.sqrt(0.5) - 1, math.sqrt(2) - 1, 2 * math.sqrt(2) - 1, -1.0],
    "tanh": [HALF_LN2 / 2, 3 * HALF_LN2 / 2, 18.5, 18.7, 19.06],
    "erf": [1.0, -1.0, 5.8, 5.93],
    "sin": [*EIGHTHS_OF_TURNS, 65536.0, 2.0**30],
    "cos": [*EIGHTHS_OF_TURNS, 65536.0, 2.0**30],
}


def points(name: str, count: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Some `count` numbers: of every size, where the function changes, about its seams, and special ones."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(count // 4, generator=generator, dtype=torch.float64) * (high - low) + low

    bits = torch.int64 if dtype == torch.float64 else torch.int32
    limits = torch.iinfo(bits)
    patterns = torch.randint(limits.min, limits.max, (count // 4,), generator=generator, dtype=bits).view(dtype)
    seams = torch.tensor([0.0, *SEAMS[name]], dtype=torch.float64)
    choice = seams[torch.randint(len(seams), (count // 4,), generator=generator)]
    distance = uniform(-1, 1) * 10 ** uniform(-16, -1)
    largest, tiny, denormal = torch.finfo(dtype).max, torch.finfo(dtype).tiny, torch.finfo(dtype).smallest_normal / 8
    special = [0.0, denormal, tiny, 1.0, largest, math.inf]
    special = torch.tensor([math.nan, *special, *(-value for value in special)], dtype=dtype)
    rest = [uniform(*RANGES[name]), uniform(-2, 2), choice + distance]
    return torch.cat([special, patterns, *(part.to(dtype) for part in rest)])
