"""Fits the polynomials of src/backends/cpu/kernels/math.h and prints their coefficients.

Each is the polynomial of least maximum relative error on Chebyshev nodes (iteratively reweighted least squares), its
coefficients rounded to float32 one after another from the lowest on, with the rest fitted again.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np

mp.mp.dps = 40


def fit(
    function: Callable[[mp.mpf], mp.mpf],
    low: float,
    high: float,
    degree: int,
    weight: Callable[[mp.mpf], mp.mpf],
) -> tuple[list[np.float32], float]:
    """Coefficients, lowest first, and the largest error times weight on a fine grid."""
    nodes = [(low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (k + 0.5) / 400) for k in range(400)]
    target = np.array([float(function(x)) for x in nodes])
    scale = np.array([float(weight(x)) for x in nodes])
    x = np.array([float(node) for node in nodes])
    fixed: list[np.float32] = []
    for first in range(degree + 1):
        rest = target - sum(float(c) * x**k for k, c in enumerate(fixed))
        powers = np.stack([x**k for k in range(first, degree + 1)], axis=1)
        emphasis = np.ones_like(x)
        for _ in range(60):
            w = scale * np.sqrt(emphasis)
            solution = np.linalg.lstsq(powers * w[:, None], rest * w, rcond=None)[0]
            error = np.abs((powers @ solution - rest) * scale)
            emphasis *= error / error.max() + 0.05
            emphasis /= emphasis.mean()
        fixed.append(np.float32(solution[0]))
    error = np.abs((sum(float(c) * x**k for k, c in enumerate(fixed)) - target) * scale)
    return fixed, float(error.max())


def main() -> None:
    half_ln2 = float(mp.log(2) / 2) * 1.0001

    def near(x: mp.mpf) -> bool:
        return abs(x) < mp.mpf(10) ** -6

    targets = {
        # expm1(r) = r + r^2 q(r)
        "expm1": (
            lambda r: mp.mpf(1) / 2 + r / 6 if near(r) else (mp.expm1(r) - r) / r**2,
            (-half_ln2, half_ln2, 4),
            lambda r: mp.mpf(1) / 2 if near(r) else abs(r**2 / mp.expm1(r)),
        ),
        # log(1 + f) = f - f^2/2 + f^3 q(f); 1 + f is a significand, from 3/4 to 3/2
        "log1p": (
            lambda f: mp.mpf(1) / 3 - f / 4 if near(f) else (mp.log1p(f) - f + f**2 / 2) / f**3,
            (-0.25, 0.5, 7),
            lambda f: mp.mpf(0) if near(f) else abs(f**3 / mp.log1p(f)),
        ),
        # erf(x) = x + x q(x^2) for |x| <= 1
        "erf_near": (
            lambda s: 2 / mp.sqrt(mp.pi) - 1 if near(s) else mp.erf(mp.sqrt(s)) / mp.sqrt(s) - 1,
            (0.0, 1.0, 6),
            lambda s: mp.mpf(1) if near(s) else mp.sqrt(s) / mp.erf(mp.sqrt(s)),
        ),
        # erf(x) = 1 - exp(-x q(x)) for 1 <= x <= 4
        "erf_far": (
            lambda x: -mp.log(mp.erfc(x)) / x,
            (1.0, 3.95, 6),
            lambda x: x * mp.erfc(x) / mp.erf(x),
        ),
    }
    for name, (function, (low, high, degree), weight) in targets.items():
        coefficients, error = fit(function, low, high, degree, weight)
        print(f"{name} on [{low:.6g}, {high:.6g}], relative error {error / 2**-24:.3f} * 2^-24:")
        print("   ", ", ".join(f"{c:.9e}f" for c in coefficients))


if __name__ == "__main__":
    main()
