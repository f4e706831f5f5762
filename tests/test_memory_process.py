"""The memory that is kept on the CPU, and what concerns a whole process: its size, its limits, its allocator, forks."""

import os
import sys

import pytest

from processes import run, run_each
from strategies import DEVICE

pytestmark = [
    pytest.mark.skipif(DEVICE != "cpu", reason="the CPU's memory"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, sets limits, forks"),
]

# What the scripts have in common.
BEGIN = """
import os, resource, threading
import torch, fastops
from fastops import memory

zeros = torch.zeros(300 * 2**18)  # takes no memory until it is written to

def halves(mib):
    return torch.ops.fastops.sigmoid(zeros[: mib * 2**18])

def status(row):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith(row))

torch.set_num_threads(1)
"""


def output_of(script, **environment):
    """What a script prints."""
    result = run("-c", BEGIN + script, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


# Makes and frees results of `sizes` MiB, one after the other, and prints by how many MiB the process has grown.
GROWTH = """
halves(1)
before = status("VmRSS")
for mib in {sizes}:
    halves(mib)
print(status("VmRSS") - before)
"""


# The limit, the sizes of results, and the MiB that the process must have grown by at least and at most.
LIMITS = [
    ("", [48], 40, 60),
    ("", [128], 0, 20),
    ("0", [128, 64], 0, 20),
    ("100", [128], 0, 20),
    ("100", list(range(34, 64)), 30, 120),
    ("256", list(range(100, 120)), 90, 276),
]


def test_limit():
    """What is kept is at most as much as FASTOPS_CPU_KEPT_MIB says, by default 64 MiB."""
    cases = [(GROWTH.format(sizes=sizes), {"FASTOPS_CPU_KEPT_MIB": limit}) for limit, sizes, _, _ in LIMITS]
    for (limit, sizes, least, most), (code, printed) in zip(LIMITS, run_each(BEGIN, *cases), strict=True):
        assert code == 0, printed
        assert least <= float(printed) <= most, (limit, sizes)


def test_bad_limit():
    """A limit that is no number of MiB is a ValueError that names the variable and the value."""
    values = ["much", "-1", "1.5", "12 MiB", "99999999999999999999"]
    results = run_each(BEGIN, *(("halves(1)", {"FASTOPS_CPU_KEPT_MIB": value}) for value in values))
    for value, (code, printed) in zip(values, results, strict=True):
        assert code != 0
        must = "must be a whole number of MiB, 0 or more"
        assert f"ValueError: fastops: FASTOPS_CPU_KEPT_MIB is '{value}', but {must}" in printed


# Keeps 100 MiB where there is address space for 150 more, then wants a result of `mib`.
SHORT = """
memory.set_limit({limit} * 2**20)
halves(1)
results = [halves(50), halves(50)]
del results
assert memory.stats().kept > 100 * 2**20
resource.setrlimit(resource.RLIMIT_AS, ((status("VmSize") + 50) * 2**20,) * 2)
try:
    result = halves({mib})
    print(bool((result == 0.5).all()), memory.stats().kept)
except RuntimeError as error:
    print(error)
"""


def test_kept_memory_is_given_back_before_an_allocation_fails():
    """What is kept serves whoever needs memory, within the limit or over it; if not enough, the error is PyTorch's."""
    scripts = [SHORT.format(limit=limit, mib=mib) for limit, mib in ((110, 120), (1000, 120), (1000, 300))]
    within, over, too_little = run_each(BEGIN, *((script, {}) for script in scripts))
    assert within == over == (0, "True 0\n")
    assert "DefaultCPUAllocator: can't allocate memory: you tried to allocate" in too_little[1]


def test_another_allocator():
    """Memory comes from the allocator that PyTorch has at the time, and goes back to the one that it came from."""
    script = """
result = halves(2)
halves(1)
torch._C._set_default_mobile_cpu_allocator()
before = memory.stats()
other = halves(1)
after = memory.stats()
print(after.reused - before.reused, after.allocated - before.allocated, after.kept)
del result
assert memory.stats().kept == 0
torch._lazy_clone(other).fill_(3)
assert bool((other == 0.5).all())
torch._C._unset_default_mobile_cpu_allocator()
del other
halves(1)
print(memory.stats().reused - before.reused, memory.stats().kept)
"""
    assert output_of(script) == f"0 1 0\n0 {2**20}\n"


# Forks while other threads make results and run networks.
FORKS = """
import itertools, signal
stop = threading.Event()
weights = [torch.ones(64, 64)] * 2

def work():
    while not stop.is_set():
        halves(1)
        torch.ops.fastops.mlp(torch.ones(512, 64), weights, [None, None], "relu", "identity", [], [])

threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        clean = memory.stats().kept == 0
        right = bool((halves(1) == 0.5).all())
        kept = memory.stats().kept == 2**20
        memory.empty_cache()
        os._exit(0 if clean and right and kept and memory.stats().kept == 0 else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, code
stop.set()
for thread in threads:
    thread.join()
memory.empty_cache()
print(memory.stats().kept)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork():
    """After a fork nothing is kept in the child, whatever other threads were about; both processes go on."""
    assert output_of(FORKS) == "0\n"
