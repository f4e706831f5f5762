"""Times of several functions in one process, in turns, so that what disturbs one of them disturbs all."""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import NamedTuple

# A sample is one call, or as many as last this long: well above what the clock and the loop cost, and long enough that
# what was in the caches before does not count.
SAMPLE_SECONDS = 0.01
FEWEST_ROUNDS, MOST_ROUNDS = 5, 101

Work = Callable[[], object]


class Spread(NamedTuple):
    """The median of some samples, and the quartiles around it."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        if len(samples) < 2:
            return cls(samples[0], samples[0], samples[0])
        lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, lower, upper)


class Timings(NamedTuple):
    """Seconds per call of each function, round by round, and the calls that make a sample."""

    seconds: dict[str, list[float]]
    calls: dict[str, int]

    def spread(self, name: str) -> Spread:
        return Spread.of(self.seconds[name])

    def ratio(self, slow: str, fast: str) -> Spread:
        """How many times longer ``slow`` took than ``fast``, each round by itself."""
        return Spread.of([a / b for a, b in zip(self.seconds[slow], self.seconds[fast], strict=True)])


def measure(functions: Mapping[str, Work], *, seconds: float, synchronize: Callable[[], None]) -> Timings:
    """Times the functions in rounds of one sample each, for about ``seconds`` in all but at least a few rounds.

    The order within a round is shuffled: nobody always runs after the same other one. The functions have to have been
    called before: nothing is compiled or set up here.
    """
    order = list(functions)
    shuffle = random.Random(0).shuffle
    with _no_garbage_collection():
        start = time.perf_counter()
        calls = {name: _calibrate(work, synchronize) for name, work in functions.items()}
        samples: dict[str, list[float]] = {name: [] for name in functions}
        for round_number in range(MOST_ROUNDS):
            if round_number >= FEWEST_ROUNDS and time.perf_counter() - start > seconds:
                break
            shuffle(order)
            for name in order:
                samples[name].append(_sample(functions[name], calls[name], synchronize))
    return Timings(samples, calls)


def warm_up(functions: Mapping[str, Work]) -> None:
    """Calls each a few times, as :func:`measure` wants: what compiles has compiled then."""
    for work in functions.values():
        for _ in range(3):
            work()


def _calibrate(work: Work, synchronize: Callable[[], None]) -> int:
    """How many calls last as long as a sample should."""
    calls = 1
    while True:
        each = _sample(work, calls, synchronize)
        if calls * each >= SAMPLE_SECONDS / 2:
            return max(1, math.ceil(SAMPLE_SECONDS / each))
        calls *= 4


def _sample(work: Work, calls: int, synchronize: Callable[[], None]) -> float:
    """Seconds per call. Where calls are short, one goes ahead, which finds the caches full of others' data."""
    if calls > 1:
        work()
    synchronize()
    start = time.perf_counter()
    for _ in repeat(None, calls):
        work()
    synchronize()
    return (time.perf_counter() - start) / calls


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """As timeit does it: a collection costs whoever happens to run."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
