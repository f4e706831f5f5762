"""What all tests share: the hypothesis profiles and the device under test.

``FASTOPS_TEST_PROFILE=quick`` tries fewer examples, ``brief`` still fewer, ``thorough`` many more, others on every run;
``CI`` makes those of the other profiles the same on every run.
"""

import gc
import os

import hypothesis
import pytest
import torch

import features
from strategies import DEVICE, PROFILE

collect_ignore = ["strangers"]  # make strangers has an environment of their own

common = {"deadline": None, "print_blob": True}
always_the_same = "CI" in os.environ
hypothesis.settings.register_profile("full", max_examples=15, derandomize=always_the_same, **common)
hypothesis.settings.register_profile("quick", max_examples=10, derandomize=always_the_same, **common)
hypothesis.settings.register_profile("brief", max_examples=5, derandomize=always_the_same, **common)
hypothesis.settings.register_profile("thorough", max_examples=500, derandomize=False, **common)
hypothesis.settings.load_profile(PROFILE)

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


def pytest_collection_finish(session):
    """What was imported and collected stays: looking for garbage in it takes a twentieth of the tests' time."""
    gc.freeze()


# ---- the tables of features, features.py ----

collected = pytest.StashKey[list[pytest.Item]]()


def pytest_addoption(parser):
    """--write-features."""
    parser.addoption("--write-features", action="store_true", help="write the tables of docs/composability.md")


def pytest_configure(config):
    """The mark of a test that stands for a feature."""
    config.addinivalue_line("markers", "feature(name, ops): for the tables of docs/composability.md")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Notes all tests, before any are left out."""
    config.stash[collected] = list(items)
    if config.getoption("--write-features"):
        before, _, after = features.split(features.PATH.read_text())
        features.PATH.write_text(before + features.tables(items) + after)


@pytest.fixture(scope="session")
def all_tests(pytestconfig):
    """Every test of the suite; skips where a part of it was collected."""
    items = pytestconfig.stash[collected]
    files = {item.path for item in items}
    if not files.issuperset(features.PATH.parent.parent.glob("tests/test_*.py")):
        pytest.skip("needs all tests to be collected")
    return items
