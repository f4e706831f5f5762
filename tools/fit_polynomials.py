"""Fits the polynomials of math.h, math_16.h and math_float64.cpp in src/backends/cpu/kernels and prints them.

src/backends/hip/kernels/number.h has those for 16-bit results on GPUs.

float32: each, and the rational function, is the one of least maximum relative error on Chebyshev nodes (iteratively
reweighted least squares), its coefficients rounded one after another from the lowest on, with the rest fitted again.
float64: the polynomials of least maximum relative error (Remez' exchange), their coefficients rounded.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np

mp.mp.dps = 40

NODES = 400


def fit(
    function: Callable[[mp.mpf], mp.mpf],
    low: float,
    high: float,
    degree: int,
    weight: Callable[[mp.mpf], mp.mpf],
) -> tuple[list[np.float32], float]:
    """Coefficients, lowest first, and the largest error times weight on a fine grid."""
    nodes = [(low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (k + 0.5) / NODES) for k in range(NODES)]
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


def fit_ratio(
    function: Callable[[mp.mpf], mp.mpf], high: float, numerator: int, denominator: int
) -> tuple[list[np.float32], list[np.float32], float]:
    """Coefficients of p and q of these degrees, with q(0) = 1, and the largest relative error on [0, high].

    p - f (q - 1) = f is linear in the coefficients; its weight 1 / (f q) takes q from the iteration before.
    """
    x = high * (0.5 + 0.5 * np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)) ** 1.5  # denser towards 0
    target = np.array([float(function(mp.mpf(v))) for v in x])
    powers = [x**k for k in range(numerator + 1)] + [-target * x**k for k in range(1, denominator + 1)]
    columns = np.stack(powers, axis=1)
    solution = np.zeros(columns.shape[1])
    fixed: list[int] = []

    def refine() -> float:
        free = [k for k in range(len(solution)) if k not in fixed]
        rest = target - columns[:, fixed] @ solution[fixed]
        q = 1 + sum(solution[numerator + k] * x**k for k in range(1, denominator + 1))
        emphasis = np.ones_like(x)
        best, best_error = solution.copy(), np.inf
        for _ in range(200):
            w = np.sqrt(emphasis) / (target * q)
            weighted = columns[:, free] * w[:, None]
            size = np.abs(weighted).max(axis=0)
            if free:
                solution[free] = np.linalg.lstsq(weighted / size, rest * w, rcond=None)[0] / size
            p = sum(solution[k] * x**k for k in range(numerator + 1))
            q = 1 + sum(solution[numerator + k] * x**k for k in range(1, denominator + 1))
            error = np.abs(p / (q * target) - 1)
            if error.max() < best_error:
                best, best_error = solution.copy(), float(error.max())
            emphasis *= error / error.max() + 0.05
            emphasis /= emphasis.mean()
        solution[:] = best
        return best_error

    lowest_first = sorted(range(len(solution)), key=lambda k: k if k <= numerator else k - numerator)
    for k in lowest_first:
        refine()
        solution[k] = np.float32(solution[k])
        fixed.append(k)
    error = refine()
    rounded = [np.float32(c) for c in solution]
    return rounded[: numerator + 1], [np.float32(1)] + rounded[numerator + 1 :], error


def exchange(
    function: Callable[[mp.mpf], mp.mpf],
    low: mp.mpf,
    high: mp.mpf,
    degree: int,
    weight: Callable[[mp.mpf], mp.mpf],
) -> tuple[list[float], float]:
    """Coefficients, lowest first, and the largest error times weight, by Remez' algorithm on Chebyshev nodes."""
    count = degree + 2
    nodes = [(low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * (k + 0.5) / NODES) for k in range(NODES)]
    target = [function(x) for x in nodes]
    scale = [weight(x) for x in nodes]
    places = [round((NODES - 1) * (0.5 - 0.5 * float(mp.cos(mp.pi * k / (count - 1))))) for k in range(count)]
    for _ in range(20):
        # The polynomial whose errors at these places have one size and alternate in sign.
        rows = [[nodes[p] ** k for k in range(count - 1)] + [(-1) ** i / scale[p]] for i, p in enumerate(places)]
        solution = mp.lu_solve(mp.matrix(rows), mp.matrix([target[p] for p in places]))
        coefficients = list(solution)[:-1]
        error = [(mp.polyval(coefficients[::-1], x) - t) * s for x, t, s in zip(nodes, target, scale, strict=True)]
        extrema: list[int] = []
        for k in range(NODES):
            if not extrema or (error[k] > 0) != (error[extrema[-1]] > 0):
                extrema.append(k)
            elif abs(error[k]) > abs(error[extrema[-1]]):
                extrema[-1] = k
        while len(extrema) > count:
            extrema.pop(0 if abs(error[extrema[0]]) < abs(error[extrema[-1]]) else -1)
        if len(extrema) < count or extrema == places:
            break
        places = extrema
    return [float(c) for c in coefficients], float(max(abs(e) for e in error))


def sin_rest(s: mp.mpf) -> mp.mpf:
    """sin(r) - r over r^3 for r^2 = s."""
    r = mp.sqrt(s)
    return -mp.mpf(1) / 6 + s / 120 if s < mp.mpf(10) ** -10 else (mp.sin(r) - r) / r**3


def cos_rest(s: mp.mpf) -> mp.mpf:
    """cos(r) - 1 + r^2/2 over r^4 for r^2 = s."""
    return mp.mpf(1) / 24 - s / 720 if s < mp.mpf(10) ** -10 else (mp.cos(mp.sqrt(s)) - 1 + s / 2) / s**2


def print_float64() -> None:
    half_ln2 = mp.log(2) / 2 * mp.mpf("1.0001")
    half = mp.mpf(1) / 2
    largest_angle = mp.pi / 4 * mp.mpf("1.0001")
    largest_s = (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1) * mp.mpf("1.0001")
    tiny = mp.mpf(10) ** -10

    def cubic_rest(r: mp.mpf) -> mp.mpf:
        """The rest of exp(r) - 1 - r - r^2/2 over r^3."""
        return mp.mpf(1) / 6 + r / 24 if abs(r) < tiny else (mp.expm1(r) - r - r**2 / 2) / r**3

    def log_rest(z: mp.mpf) -> mp.mpf:
        s = mp.sqrt(z)
        return mp.mpf(2) / 3 + 2 * z / 5 if z < tiny else ((mp.log1p(s) - mp.log1p(-s)) / s - 2) / z

    def erf_rest(v: mp.mpf) -> mp.mpf:
        x = mp.sqrt(v + half)
        return 2 / mp.sqrt(mp.pi) - 1 if x < tiny else mp.erf(x) / x - 1

    targets = {
        # exp(r) = 1 + r + r^2 (1/2 + r q(r))
        "exp": (cubic_rest, (-half_ln2, half_ln2, 8), lambda r: abs(r**3) / mp.exp(r)),
        # expm1(r) = r + r^2/2 + r^3/2 q(r)
        "expm1": (
            lambda r: 2 * cubic_rest(r),
            (-half_ln2, half_ln2, 9),
            lambda r: abs(r**3 / mp.expm1(r)) / 2,
        ),
        # log(1 + f) = log((1 + s) / (1 - s)) = 2 s + s^3 q(s^2) with s = f / (2 + f), 1 + f from sqrt(1/2) to sqrt(2)
        "log1p": (log_rest, (mp.mpf(0), largest_s**2, 6), lambda z: z / 2),
        # sin(r) = r + r^3 q(r^2) and cos(r) = 1 - r^2/2 + r^4 q(r^2) for |r| <= pi / 4
        "sin": (sin_rest, (mp.mpf(0), largest_angle**2, 5), lambda s: s / (1 + s * sin_rest(s))),
        "cos": (cos_rest, (mp.mpf(0), largest_angle**2, 5), lambda s: s**2 / mp.cos(mp.sqrt(s))),
        # erf(x) = x + x q(x^2 - 1/2) for |x| <= 1
        "erf_near": (erf_rest, (-half, half, 12), lambda v: 1 / (1 + erf_rest(v))),
        # erf(x) = 1 - exp(-x q(x - 1)) for 1 <= x <= 5.93
        "erf_far": (
            lambda v: -mp.log(mp.erfc(v + 1)) / (v + 1),
            (mp.mpf(0), mp.mpf("4.93"), 17),
            lambda v: (v + 1) * mp.erfc(v + 1) / mp.erf(v + 1),
        ),
    }
    for name, (function, (low, high, degree), weight) in targets.items():
        coefficients, error = exchange(function, low, high, degree, weight)
        print(f"float64 {name} on [{float(low):.6g}, {float(high):.6g}], relative error {error / 2**-53:.3f} * 2^-53:")
        print("   ", ", ".join(f"{c:.17g}" for c in coefficients))
    first = mp.floor(mp.log(2) * 2**42) / 2**42
    print(f"float64 ln 2: {float(first):.17g} + {float(mp.log(2) - first):.17g}")


def main() -> None:
    half_ln2 = float(mp.log(2) / 2) * 1.0001

    def near(x: mp.mpf) -> bool:
        return abs(x) < mp.mpf(10) ** -6

    def tanh_rest(s: mp.mpf) -> mp.mpf:
        return mp.mpf(1) / 3 - 2 * s / 15 if near(s) else (mp.sqrt(s) - mp.tanh(mp.sqrt(s))) / s ** mp.mpf(1.5)

    def exp2_rest(r: mp.mpf) -> mp.mpf:
        """2^r - 1 over r."""
        return mp.log(2) + r * mp.log(2) ** 2 / 2 if near(r) else mp.expm1(r * mp.log(2)) / r

    sixteenth = 1 / 32 * 1.0001
    targets = {
        # expm1(r) = r + r^2 q(r)
        "expm1": (
            lambda r: mp.mpf(1) / 2 + r / 6 if near(r) else (mp.expm1(r) - r) / r**2,
            (-half_ln2, half_ln2, 4),
            lambda r: mp.mpf(1) / 2 if near(r) else abs(r**2 / mp.expm1(r)),
        ),
        # 2^r = 1 + r q(r), and for |r| <= 1/32; for results of 16 bits
        "exp2": (exp2_rest, (-0.5, 0.5, 4), lambda r: abs(r) / 2**r),
        "exp2_by_sixteenths": (exp2_rest, (-sixteenth, sixteenth, 2), lambda r: abs(r) / 2**r),
        "exp2_16": (exp2_rest, (-0.5, 0.5, 3), lambda r: abs(r) / 2**r),
        # for results of 16 bits, 2^r - 1 = r q(r)
        "exp2m1_16": (exp2_rest, (-0.5, 0.5, 4), lambda r: 1 / exp2_rest(r)),
        # log(1 + f) = f - f^2/2 + f^3 q(f); 1 + f is a significand, from 3/4 to 3/2
        "log1p": (
            lambda f: mp.mpf(1) / 3 - f / 4 if near(f) else (mp.log1p(f) - f + f**2 / 2) / f**3,
            (-0.25, 0.5, 7),
            lambda f: mp.mpf(0) if near(f) else abs(f**3 / mp.log1p(f)),
        ),
        # log1p(x) = x + x^2 q(x) for x from 0 to 1
        "log1p_unit": (
            lambda x: -mp.mpf(1) / 2 + x / 3 if near(x) else (mp.log1p(x) - x) / x**2,
            (0.0, 1.0, 8),
            lambda x: mp.mpf(0) if near(x) else abs(x**2 / mp.log1p(x)),
        ),
        # for results of 16 bits: log1p(x) = x q(x) for x from 0 to 1
        "log1p_ratio": (
            lambda x: 1 - x / 2 if near(x) else mp.log1p(x) / x,
            (0.0, 1.0, 6),
            lambda x: mp.mpf(1) if near(x) else x / mp.log1p(x),
        ),
        # on GPUs, for results of 16 bits: expm1(x) = x q(x) for |x| <= 0.2
        "expm1_ratio": (
            lambda x: 1 + x / 2 if near(x) else mp.expm1(x) / x,
            (-0.2, 0.2, 3),
            lambda x: mp.mpf(1) if near(x) else x / mp.expm1(x),
        ),
        # on GPUs, for results of 16 bits: tanh(x) = x q(x^2) for |x| <= 0.3
        "tanh_ratio": (
            lambda s: 1 - s / 3 if near(s) else mp.tanh(mp.sqrt(s)) / mp.sqrt(s),
            (0.0, 0.09, 2),
            lambda s: mp.mpf(1) if near(s) else mp.sqrt(s) / mp.tanh(mp.sqrt(s)),
        ),
        # for results of 16 bits: x - tanh(x) = x^3 q(x^2) for |x| <= 0.6
        "tanh_remainder": (tanh_rest, (0.0, 0.36, 3), lambda s: 1 / tanh_rest(s)),
        # log(1 + exp(z)) = z/2 + ln 2 + z^2 q(z^2) for |z| <= 1
        "log1p_exp": (
            lambda s: mp.mpf(1) / 8 - s / 192 if near(s) else mp.log(mp.cosh(mp.sqrt(s) / 2)) / s,
            (0.0, 1.0, 3),
            lambda s: s / mp.log(2),
        ),
        # x - tanh(x) = x^3 q(x^2) for |x| <= 0.7
        "tanhshrink": (tanh_rest, (0.0, 0.49, 5), lambda s: 1 / tanh_rest(s)),
        # sin(r) = r + r^3 q(r^2) for |r| <= pi / 2, and what the rounding of a large quotient by pi adds
        "sin": (sin_rest, (0.0, 2.47728, 3), lambda s: s / (1 + s * sin_rest(s))),
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

    powers = [np.float32(mp.mpf(2) ** (mp.mpf(k) / 16)) for k in range(16)]
    lacking = [np.float32(mp.mpf(2) ** (mp.mpf(k) / 16) - mp.mpf(float(power))) for k, power in enumerate(powers)]
    print("2^(k / 16) and what these numbers lack:")
    for numbers in (powers, lacking):
        print("   ", ", ".join(f"{number:.9e}f" for number in numbers))

    # Phi(-a) = 2^(-s b^2) p(b) / q(b) with b = a sqrt(log2(e) / (2 s)); on GPUs s is 2
    def print_normal(name: str, s: int, high: float, numerator: int, denominator: int) -> None:
        def mills(b: mp.mpf) -> mp.mpf:
            return mp.erfc(b * mp.sqrt(s * mp.log(2))) / 2 * mp.mpf(2) ** (s * b**2)

        p, q, error = fit_ratio(mills, high, numerator, denominator)
        print(f"{name} on [0, {high}], relative error {error / 2**-24:.3f} * 2^-24:")
        print("   ", ", ".join(f"{c:.9e}f" for c in p))
        print("   ", ", ".join(f"{c:.9e}f" for c in q))

    print_normal("normal", 1, 12.3, 4, 5)
    print_normal("normal_16", 1, 12.3, 3, 4)
    print_normal("normal on GPUs", 2, 8.7, 4, 5)
    print_float64()


if __name__ == "__main__":
    main()
