"""Random numbers: each device has a generator with a seed and a state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from . import _C
from .device import device_count, index_of

default_generators: tuple[torch.Generator, ...] = tuple(_C.default_generator(i) for i in range(_C.device_count))


def _is_in_bad_fork() -> bool:
    """Whether this process was forked after the device was in use and cannot use it; host memory can be."""
    return False


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    default_generators[index_of()].manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices; ``torch.manual_seed`` calls it."""
    for generator in default_generators:
        generator.manual_seed(seed)


def seed() -> int:
    """Seeds the current device's generator with a random number, and returns that."""
    return default_generators[index_of()].seed()


def seed_all() -> None:
    """Seeds the generators of all devices with one random number."""
    manual_seed_all(seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return default_generators[index_of()].initial_seed()


def get_rng_state(device: Any = "hostmem") -> torch.Tensor:
    """The state of a device's generator, as bytes."""
    return default_generators[index_of(device)].get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "hostmem") -> None:
    """Gives a device's generator a state."""
    default_generators[index_of(device)].set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    return [get_rng_state(i) for i in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Gives all devices' generators a state."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)
