"""The memory of large results on the CPU, which is kept for the next ones."""

import itertools
import sys
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from processes import run
from strategies import DEVICE

ops = torch.ops.fastops

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="the CPU's results")

# Elements of float32: results from 2^16 on have memory of this kind; the last two fall into one size of it.
SIZES = [2**16 - 1, 2**16, 2**17, 2**18 - 5, 2**18]


def constant(value, size):
    """A result of this many equal numbers."""
    return ops.relu(torch.full((size,), float(value)))


def is_constant(tensor, value):
    """Whether every number is this one."""
    return bool((tensor == value).all())


@given(st.lists(st.tuples(st.sampled_from(SIZES), st.integers(0, 3)), max_size=20))
def test_results_have_memory_of_their_own(steps):
    """Results that are alive at the same time do not overlap, in whatever order others are made and freed."""
    alive = {}
    for value, (size, place) in enumerate(steps):
        alive[place] = (value, constant(value, size))
        for expected, tensor in alive.values():
            assert is_constant(tensor, expected)


def test_threads():
    """Results that several threads make and free at once do not overlap; one may be freed by another thread."""
    wrong = []
    shared = [None] * 4
    steps = [0] * 4

    def work(number):
        for step, size in zip(range(50), itertools.cycle(SIZES), strict=False):
            value = 100 * number + step
            mine = constant(value, size)
            shared[(number + step) % 4] = constant(value, size)
            if not is_constant(mine, value):
                wrong.append((number, step))
            steps[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert steps == [50] * 4
    assert not wrong


# Makes and frees results of `sizes` MiB, one after the other, and prints by how many MiB the process has grown.
GROWTH = """
import torch, fastops

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

torch.set_num_threads(1)
x = torch.ones({largest} * 2**18)
torch.ops.fastops.relu(x[:1])
before = resident()
for mib in {sizes}:
    torch.ops.fastops.relu(x[: mib * 2**18])
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("limit", "sizes", "least", "most"),
    [
        ("", [128], 120, 140),
        ("0", [128, 64], 0, 20),
        ("100", [128], 0, 20),
        ("100", list(range(34, 64)), 30, 120),
        ("", list(range(100, 120)), 90, 276),
    ],
)
def test_limit(limit, sizes, least, most):
    """What is kept is at most as much as FASTOPS_CPU_KEPT_MIB says, by default 256 MiB."""
    result = run("-c", GROWTH.format(sizes=sizes, largest=max(sizes)), FASTOPS_CPU_KEPT_MIB=limit)
    assert result.returncode == 0, result.stderr
    assert least <= float(result.stdout) <= most


@pytest.mark.parametrize("value", ["much", "-1", "1.5", "12 MiB", "99999999999999999999"])
def test_bad_limit(value):
    """A limit that is no number of MiB is a ValueError that names the variable and the value."""
    script = "import torch, fastops; torch.ops.fastops.relu(torch.ones(2**18))"
    result = run("-c", script, FASTOPS_CPU_KEPT_MIB=value)
    assert result.returncode != 0
    message = f"ValueError: fastops: FASTOPS_CPU_KEPT_MIB is '{value}', but must be a number of MiB, 0 or more"
    assert message in result.stderr


def test_ordinary_tensors():
    """Results are resized, shared and written to like any other tensor."""
    result = constant(2, 2**18)
    result.resize_(2**20)
    assert is_constant(result[: 2**18], 2)
    result = constant(3, 2**18).share_memory_()
    assert result.is_shared()
    assert is_constant(result, 3)
    array = constant(4, 2**18).numpy()
    constant(5, 2**18)
    assert (array == 4).all()
