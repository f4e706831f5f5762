"""The allocator, storages and pinned memory."""

import ctypes
import os
import signal
import subprocess
import sys

import pytest
import torch

MEBIBYTE = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="the memory is protected on Linux alone")
def test_the_host_cannot_read_device_memory() -> None:
    """Following a device pointer crashes."""
    code = "import ctypes, torch; ctypes.string_at(torch.ones(4, device='hostmem').data_ptr(), 4)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert run.returncode == -signal.SIGSEGV
    x = torch.ones(1)
    assert ctypes.string_at(x.data_ptr(), 4) == x.numpy().tobytes()  # and the host's does not


def test_counts() -> None:
    """What is allocated, its peak, and what is kept for others."""
    torch.hostmem.empty_cache()
    before = torch.hostmem.memory_allocated(1)
    torch.hostmem.reset_peak_memory_stats(1)
    x = torch.empty(MEBIBYTE, dtype=torch.uint8, device="hostmem:1")
    y = torch.empty(MEBIBYTE, dtype=torch.uint8, device="hostmem:1")
    assert torch.hostmem.memory_allocated(1) == before + 2 * MEBIBYTE
    assert torch.hostmem.memory_allocated(0) == torch.accelerator.memory_allocated(0)
    address = y.data_ptr()
    del y
    assert torch.hostmem.memory_allocated(1) == before + MEBIBYTE
    assert torch.hostmem.max_memory_allocated(1) == before + 2 * MEBIBYTE
    reserved = torch.hostmem.memory_reserved(1)
    assert reserved >= torch.hostmem.memory_allocated(1) + MEBIBYTE
    z = torch.empty(MEBIBYTE, dtype=torch.uint8, device="hostmem:1")
    assert z.data_ptr() == address  # memory is used again
    del z
    torch.hostmem.empty_cache()
    assert torch.hostmem.memory_reserved(1) == torch.hostmem.memory_allocated(1)
    assert x.numel() == MEBIBYTE


def test_content_after_empty_cache() -> None:
    """What is in use stays, and what was given back can be taken again."""
    kept = torch.arange(MEBIBYTE, device="hostmem")
    for _ in range(3):
        again = torch.ones(MEBIBYTE, device="hostmem")
        assert again.sum().item() == MEBIBYTE
        del again
        torch.hostmem.empty_cache()
    assert torch.equal(kept.cpu(), torch.arange(MEBIBYTE))


def test_out_of_memory() -> None:
    """The error is PyTorch's own."""
    with pytest.raises(torch.OutOfMemoryError, match="tried to allocate"):
        torch.empty(1 << 40, dtype=torch.uint8, device="hostmem")


def test_storage_resize() -> None:
    """A storage grows and shrinks, as FSDP does it."""
    x = torch.arange(4.0, device="hostmem")
    storage = x.untyped_storage()
    storage.resize_(64)
    assert storage.nbytes() == 64
    assert x.tolist() == [0, 1, 2, 3]
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(16)
    x.fill_(2)
    assert x.tolist() == [2, 2, 2, 2]
    assert x.resize_(2, 3).shape == (2, 3)


def test_pinned_memory() -> None:
    """pin_memory, and the loader that uses it."""
    x = torch.arange(5)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned() and pinned.device.type == "cpu" and torch.equal(pinned, x)
    assert pinned[2:].is_pinned() and not pinned.clone().is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.equal(pinned.to("hostmem", non_blocking=True).cpu(), x)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=2, pin_memory=True)
    assert all(batch.is_pinned() for (batch,) in loader)


def test_forked_child() -> None:
    """A child process may use the device."""
    x = torch.ones(3, device="hostmem")
    child = os.fork()
    if child == 0:
        os._exit(0 if (x + 1).tolist() == [2, 2, 2] else 1)
    assert os.waitpid(child, 0)[1] == 0
