"""The memory that is kept on the CPU: results keep apart, and what is kept obeys."""

import gc
import itertools
import math
import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from fastops import memory
from strategies import DEVICE, ONCE

ops = torch.ops.fastops

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="the CPU's memory")

MIB = 2**20

# Elements of float32: results from 2^16 on have memory of this kind; the last two fall into one size of it.
SIZES = [2**16 - 1, 2**16, 2**17, 2**18 - 5, 2**18]


@pytest.fixture(autouse=True)
def empty_room():
    """Nothing is kept at first, and the limit is what it was in the end."""
    limit = memory.stats().limit
    gc.collect()
    memory.empty_cache()
    yield
    memory.set_limit(limit)


def constant(value, size=2**18):
    """A result of this many equal numbers; by default of one MiB."""
    return ops.relu(torch.full((size,), float(value)))


def is_constant(tensor, value):
    """Whether every number is this one."""
    return bool((tensor == value).all())


def network(rows=2048, features=128, value=1):
    """The result of a small network, which takes a workspace of some MiB where the products are fastops' own."""
    weights = [torch.ones(features, features)] * 2
    x = torch.full((rows, features), float(value))
    return ops.mlp(x, weights, [None, None], "relu", "identity", [], [])


# ---- results ----


@settings(max_examples=ONCE * settings().max_examples)
@given(st.lists(st.tuples(st.sampled_from(SIZES), st.integers(0, 3)), max_size=20))
def test_results_have_memory_of_their_own(steps):
    """Results that are alive at the same time do not overlap, in whatever order others are made and freed."""
    alive = {}
    for value, (size, place) in enumerate(steps):
        alive[place] = (value, constant(value, size))
        for expected, tensor in alive.values():
            assert is_constant(tensor, expected)


def test_threads():
    """Results that threads make and free at once do not overlap, whoever frees them and whatever limits are set."""
    wrong = []
    shared = [None] * 4
    steps = [0] * 4

    def work(number):
        for step, size in zip(range(50), itertools.cycle(SIZES), strict=False):
            value = 100 * number + step
            mine = constant(value, size)
            shared[(number + step) % 4] = constant(value, size)
            if step % 10 == number:
                memory.set_limit((number + 1) * MIB)
            if step % 10 == number + 4:
                memory.empty_cache()
            if not is_constant(mine, value) or not is_constant(network(value=value), value * 128**2):
                wrong.append((number, step))
            steps[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert steps == [50] * 4
    assert not wrong
    assert memory.stats().kept <= memory.stats().limit


def test_many_threads():
    """The workspaces of small networks do not overlap, with more threads than have a place for theirs."""
    right = []
    start = threading.Barrier(100)

    def work(number):
        start.wait()
        for step in range(10):
            right.append(is_constant(network(rows=40, features=32, value=number), number * 32**2))
            if step % 3 == number % 30:
                memory.empty_cache()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 1000


def test_ordinary_tensors():
    """Results are resized, shared and written to like any other tensor."""
    result = constant(2)
    result.resize_(2**20)
    assert is_constant(result[: 2**18], 2)
    result = constant(3).share_memory_()
    assert result.is_shared()
    assert is_constant(result, 3)
    array = constant(4).numpy()
    constant(5)
    assert (array == 4).all()
    result = constant(6)
    result.untyped_storage().resize_(0)
    result.untyped_storage().resize_(64)
    assert result.untyped_storage().nbytes() == 64


@pytest.mark.parametrize("written", ["result", "clone"])
def test_copy_on_write(written):
    """A result can be cloned lazily: the one of the two that is written to first is copied then."""
    result = constant(2)
    clone = torch._lazy_clone(result)
    assert torch._C._data_address(clone) == torch._C._data_address(result)
    other = {"result": clone, "clone": result}[written]
    {"result": result, "clone": clone}[written].fill_(3)
    constant(4)
    assert is_constant(other, 2)
    assert is_constant(result if written == "result" else clone, 3)
    del result, clone, other
    assert memory.stats().kept >= 2 * MIB


@pytest.mark.parametrize("size", [2**10, 2**18])
def test_uninitialized_memory_is_filled(size):
    """In deterministic mode results are filled before they are written to, as torch.empty does it."""
    fills = {}
    for mode in (False, True):
        try:
            torch.use_deterministic_algorithms(mode)
            x = torch.ones(size)
            with profile(activities=[ProfilerActivity.CPU]) as profiler:
                ops.relu(x)
        finally:
            torch.use_deterministic_algorithms(mode=False)
        fills[mode] = sum(event.name == "aten::fill_" for event in profiler.events())
    assert fills == {False: 0, True: 1}


def test_profiler():
    """PyTorch's profiler sees the bytes of each result at its op, whether its memory is new or was kept."""
    x = torch.ones(1000, 321)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in range(3):
            ops.relu(x)
        memory.empty_cache()
    events = [event for event in profiler.events() if event.name == "fastops::relu"]
    assert [event.cpu_memory_usage for event in events] == [1000 * 321 * 4] * 3
    assert sum(event.cpu_memory_usage for event in profiler.events() if event.name == "[memory]") == -3 * 1000 * 321 * 4


# ---- what is kept ----


def test_stats():
    """Every block is counted: where it came from, and what is kept."""
    before = memory.stats()
    for size in (2**18, 2**18, 2**18 - 5, 2**20):
        constant(1, size)
    after = memory.stats()
    assert after.reused - before.reused == 2
    assert after.allocated - before.allocated == 2
    assert after.released == before.released
    assert after.kept == 5 * MIB
    memory.empty_cache()
    assert memory.stats() == after._replace(kept=0, released=before.released + 2)


def test_the_oldest_goes_first():
    """Over the limit, what has been kept for longest goes, as much of it as is over."""
    memory.set_limit(8 * MIB)
    for mib in (4, 2, 1):
        constant(mib, mib * 2**18)
    assert memory.stats().kept == 7 * MIB
    constant(3, 3 * 2**18)
    assert memory.stats().kept == 6 * MIB
    before = memory.stats()
    results = [constant(1, mib * 2**18) for mib in (3, 2, 1)]
    assert memory.stats().reused - before.reused == 3
    del results
    memory.set_limit(3 * MIB)
    assert memory.stats().kept <= 3 * MIB
    constant(4, 4 * 2**18)
    assert memory.stats().kept <= 3 * MIB


def test_results_over_the_limit():
    """They are PyTorch's: nothing that is kept gives way to them."""
    memory.set_limit(2 * MIB)
    constant(1)
    before = memory.stats()
    result = constant(2, 2**20)
    assert memory.stats() == before
    del result
    assert memory.stats() == before
    # One that was over no limit when it was made.
    memory.set_limit(8 * MIB)
    result = constant(2, 2**20)
    memory.set_limit(2 * MIB)
    del result
    assert memory.stats().kept == MIB


def test_nothing_kept():
    """With a limit of 0 nothing is kept, for small networks neither."""
    memory.set_limit(0)
    before = memory.stats()
    constant(1)
    expected = network(rows=4, features=16)
    network()
    after = memory.stats()
    assert after.kept == 0
    assert after.reused == before.reused
    memory.set_limit(16 * MIB)
    assert torch.equal(network(rows=4, features=16), expected)


def test_unused_for():
    """Only what has not been used for so long is given back."""
    constant(1)
    time.sleep(0.5)
    constant(1, 2**19)
    memory.empty_cache(unused_for=math.inf)
    assert memory.stats().kept == 3 * MIB
    memory.empty_cache(unused_for=0.5)
    assert memory.stats().kept in (0, 2 * MIB)  # where this process was held up, both
    memory.empty_cache(unused_for=0)
    assert memory.stats().kept == 0


def test_unused_for_long():
    """What has not been used for 10 seconds goes at the next call that allocates."""
    constant(1)
    time.sleep(10.1)
    constant(1, 2**19)
    assert memory.stats().kept == 2 * MIB


def test_unused_workspace():
    """The memory of small networks goes, too, where none has run between two calls that look for it."""
    network(rows=4, features=16)
    for _ in range(2):
        time.sleep(0.2)
        memory.empty_cache(unused_for=0.1)
    assert memory.stats().kept == 0


def test_workspaces():
    """The workspaces of threads are within the limit, and are given back when the threads have ended."""
    memory.set_limit(4 * MIB)
    kept = []

    def work():
        for rows in (1, 2048, 1000):
            network(rows)
            kept.append(memory.stats().kept)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # While a call runs, its thread's 256 KiB are counted.
    assert max(kept) <= (4 + 8 / 4) * MIB
    assert memory.stats().kept <= 4 * MIB
    memory.empty_cache()
    assert memory.stats().kept == 0


def test_bad_arguments():
    """Errors name the function and the argument, and what it got."""
    with pytest.raises(ValueError, match=r"^fastops\.memory\.set_limit: limit is -1, but must be 0 or more bytes$"):
        memory.set_limit(-1)
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        memory.set_limit(1.5)
    for bad in (-1, math.nan):
        with pytest.raises(ValueError, match=r"^fastops\.memory\.empty_cache: unused_for is .*, but must be 0 or more"):
            memory.empty_cache(unused_for=bad)
    memory.set_limit(2**80)
    assert memory.stats().limit == 2**63 - 1
