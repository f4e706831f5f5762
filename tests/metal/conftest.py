"""The tests of the Metal backend's own parts run where FASTOPS_METAL_KERNELS is set: in make metal-check."""

import os

import pytest

collect_ignore_glob = [] if "FASTOPS_METAL_KERNELS" in os.environ else ["test_*.py"]


@pytest.fixture(autouse=True)
def fake_device():
    """There is a device."""
    import fastops  # noqa: F401  (brings the stand-in for it)
