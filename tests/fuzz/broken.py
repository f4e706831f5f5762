"""Not a family that is run: cases that fail in every way there is, for the test of the frame."""

from __future__ import annotations

import ctypes
import os
import time

from fuzz.cases import category

WAYS = ["passes", "asserts", "crashes", "aborts", "exits", "hangs", "remembers", "reads its environment"]
ENVIRONMENTS = [{"FUZZ_BROKEN": str(i)} for i in range(2)]
seen: list[int] = []


def case(seed: int) -> None:
    """Fails as the seed says."""
    way = WAYS[seed % len(WAYS)]
    category(way)
    seen.append(seed)
    if way == "asserts":
        raise AssertionError(f"0.{seed} is wrong")
    if way == "crashes":
        ctypes.string_at(0)
    if way == "aborts":
        os.abort()
    if way == "exits":
        os._exit(3)
    if way == "hangs":
        time.sleep(3600)
    if way == "remembers":
        assert len(seen) == 1, "a case before it has left something behind"
    assert os.environ["FUZZ_BROKEN"] == str(seed % 2)
