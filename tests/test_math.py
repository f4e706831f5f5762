"""The elementary functions of the CPU kernels, for each instruction set that has its own, against their true values.

They are compiled by themselves, as few of them can be had alone from an op.
"""

import math
import os
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from math_functions import FLAGS, NAMES, compile_functions, error, points, true_value
from strategies import DEVICE, QUICK
from test_capability import usable

# In units in the last place.
BOUNDS = {torch.float32: 2.0, torch.float64: 1.0}
BOUND_OF_SINES = 2.2  # in float32, at pi / 2, where the series is longest

pytestmark = [
    pytest.mark.skipif(DEVICE != "cpu", reason="the functions are the CPU's"),
    pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "g++")), reason="needs a C++ compiler"),
]


@pytest.fixture(scope="module", params=[tier for tier in usable() if tier in FLAGS])
def functions(request):
    return compile_functions(request.param)


every_name = pytest.mark.parametrize("name", NAMES)
every_dtype = pytest.mark.parametrize("dtype", BOUNDS, ids=lambda dtype: str(dtype)[6:])


def assert_exact_enough(functions, name, x):
    """The function is within its bound of the true value for each number, and has the right sign at zero."""
    is_sine = name in ("sin", "cos") and x.dtype == torch.float32
    bound = BOUND_OF_SINES if is_sine else BOUNDS[x.dtype]
    for value, result in zip(x.tolist(), functions[name, x.dtype](x).tolist(), strict=True):
        exact = true_value(name, value)
        wrong = error(result, exact, x.dtype)
        assert wrong < bound, f"{name}({value!r}) is {result!r}: {wrong:.3f} units from {exact}"
        if value == 0:
            assert math.copysign(1, result) == (1 if name in ("exp", "cos") else math.copysign(1, value))


@every_name
@every_dtype
def test_errors(functions, name, dtype):
    """Numbers of every size, where the function changes, about the seams of its formulas, and special ones."""
    assert_exact_enough(functions, name, points(name, 2000 if QUICK else 20000, dtype))


@every_name
@given(st.lists(st.floats(), min_size=1, max_size=40))
def test_any_number(functions, name, values):
    """Whatever hypothesis thinks of, at any place of a vector."""
    assert_exact_enough(functions, name, torch.tensor(values, dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("exp", -math.inf, 0.0),
        ("exp", -745.2, 0.0),
        ("exp", -745.1, 5e-324),
        ("exp", 709.782712893384, 1.797693134862273e308),
        ("exp", 709.7827128933841, math.inf),
        ("expm1", -math.inf, -1.0),
        ("expm1", -40.0, -1.0),
        ("expm1", 5e-324, 5e-324),
        ("expm1", 709.7827128933841, math.inf),
        ("log1p", -1.0, -math.inf),
        ("log1p", -1.0000000000000002, math.nan),
        ("log1p", -math.inf, math.nan),
        ("log1p", math.inf, math.inf),
        ("log1p", 5e-324, 5e-324),
        ("tanh", 5e-324, 5e-324),
        ("tanh", -30.0, -1.0),
        ("tanh", math.inf, 1.0),
        ("erf", -7.0, -1.0),
        ("erf", math.inf, 1.0),
        ("erf", 5e-324, 5e-324),
    ],
)
def test_limits(functions, name, x, expected):
    """Where float64 begins and ends."""
    result = functions[name, torch.float64](torch.tensor([x], dtype=torch.float64)).item()
    assert result == pytest.approx(expected, rel=1e-15, abs=0, nan_ok=True)
