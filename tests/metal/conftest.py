"""The tests of the Metal backend's own parts run where FASTOPS_METAL_KERNELS is set: in make metal-check.

There, torch.load also knows tensors of the stand-in, which torch for Linux by itself cannot make from bytes.
"""

import os

import pytest
import torch

collect_ignore_glob = [] if "FASTOPS_METAL_KERNELS" in os.environ else ["test_*.py"]


def load_storage(storage, location):
    """A storage of the device that a file says it was on; None for others."""
    if location != "mps":
        return None
    return torch.tensor([], dtype=torch.uint8).set_(storage).to("mps").untyped_storage()


if "FASTOPS_METAL_KERNELS" in os.environ:
    torch.serialization.register_package(0, lambda storage: None, load_storage)


@pytest.fixture(autouse=True)
def fake_device():
    """There is a device."""
    import fastops  # noqa: F401  (brings the stand-in for it)
