"""What all tests share: the hypothesis profiles and the device under test.

``FASTOPS_TEST_PROFILE=quick`` tries fewer examples; ``CI`` makes the examples the same on every run.
"""

import os

import hypothesis
import pytest
import torch

from strategies import DEVICE, QUICK

common = {"deadline": None, "print_blob": True, "derandomize": "CI" in os.environ}
hypothesis.settings.register_profile("full", max_examples=60, **common)
hypothesis.settings.register_profile("quick", max_examples=10, **common)
hypothesis.settings.load_profile("quick" if QUICK else "full")

# Processes that run beside each other share the cores. Tests of threads ask for as many as they need.
processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
torch.set_num_threads(max(1, torch.get_num_threads() // processes))


@pytest.fixture(scope="session")
def device():
    """The device under test: environment variable FASTOPS_TEST_DEVICE, by default the CPU."""
    return torch.device(DEVICE)


@pytest.fixture
def restore_threads():
    """Gives PyTorch its number of threads back after a test that changes it."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
